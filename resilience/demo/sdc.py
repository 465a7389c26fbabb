"""`resil demo --sdc`: three silent corruptions of a small training, each found, named and survived.

A flipped bit in a checkpoint, an extreme gradient, and a replica whose weight has another bit than those of the other
ranks. Whoever survives one of them ends with exactly the loss of a training without.
"""

from __future__ import annotations

import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from resilience import layout
from resilience.checkpoints.directory import StoreDirectory
from resilience.demo.night import DemoFailed
from resilience.inject.checkpoint.alter import flip_bit
from resilience.system.files import make_directory, read_lines
from resilience.system.ports import System
from resilience.system.process import Completed, DeadlineExceeded

STEPS, SAVE_EVERY = 100, 20
STOPPED_AT, GRADIENT_AT, WEIGHT_AT = 60, 55, 47
REPLICAS, ODD_RANK = 3, 1
DEADLINE_S = 120.0
JOB = "1"
_TRAINING = Path(__file__).with_name("_replicas.py")
_KEEP = "another file system, and the files are kept: resil demo --sdc --folder NEW"
STORE, CHECKPOINT_FILE, FINAL_LOSS = "checkpoints", "model.json", "final-loss"
"""As `_replicas.py` names them in its directory."""


@dataclass(frozen=True, slots=True)
class Corruption:
    """One injected corruption and what came of it.

    Attributes:
        injected: what was done to the training.
        found_by: what noticed it.
        named: what it named: a file, a tensor, a rank.
        survived_by: how the training went on.
        losses: the final loss of each rank.
    """

    injected: str
    found_by: str
    named: str
    survived_by: str
    losses: tuple[float, ...]


@dataclass(frozen=True, slots=True)
class SdcResult:
    """The result of the demo.

    Attributes:
        corruptions: in the order of their injection.
        reference: the final loss of the training without any.
        seconds: of the whole demo.
    """

    corruptions: tuple[Corruption, ...]
    reference: float
    seconds: float

    @property
    def is_survived(self) -> bool:
        """Return whether every corruption was found, and every rank then reached exactly the same loss."""
        return len(self.corruptions) == 3 and all(
            one.named and set(one.losses) == {self.reference} for one in self.corruptions
        )


class _Training:
    """A training in a directory of its own, over one attempt or several."""

    def __init__(self, system: System, directory: Path, world: int = 1) -> None:
        self._system, self.directory, self._world = system, directory, world
        self.run_dir = directory / "run"
        self._attempt = 0
        for name in layout.FOLDERS:
            make_directory(self.run_dir / name, mode=0o755)

    def attempt(self, *options: str) -> list[int]:
        """Run all ranks to their end; return their exit codes. Raise DemoFailed if they do not end in time."""
        self._attempt += 1
        words = [sys.executable, str(_TRAINING), str(self.directory), "--steps", str(STEPS)]
        words += ["--save-every", str(SAVE_EVERY), *options]

        def run(rank: int) -> Completed:
            return self._system.runner.run(words, timeout_s=DEADLINE_S, env=self._environ(rank))

        try:
            with ThreadPoolExecutor(self._world) as ranks:
                ended = list(ranks.map(run, range(self._world)))
        except DeadlineExceeded as error:
            raise DemoFailed(error.message, hint="this machine is very busy; try again") from error
        failed = [one for one in ended if one.returncode not in (0, 1) or "Traceback" in one.stderr]
        if failed:
            last = failed[0].stderr.strip().rpartition("\n")[2][-300:] or f"exit code {failed[0].returncode}"
            raise DemoFailed(f"the training cannot run here: {last}", hint=_KEEP)
        return [one.returncode for one in ended]

    def events(self, name: str) -> list[Mapping[str, Any]]:
        """Return the events of the last attempt's rank 0."""
        found = read_lines(self.run_dir / layout.JOURNAL / f"{JOB}.0.jsonl")
        return [one for one in found if one.get("event") == name and one.get("attempt") == self._attempt]

    def losses(self) -> tuple[float, ...]:
        """Return the final loss of each rank. Raise DemoFailed if there is none."""
        paths = [self.directory / f"{FINAL_LOSS}.{rank}" for rank in range(self._world)]
        if not all(path.exists() for path in paths):
            raise DemoFailed("a training has not reached its last step", hint=_KEEP)
        return tuple(float(path.read_text(encoding="utf-8")) for path in paths)

    def resumed_at(self) -> int:
        """Return the step from which the last attempt went on."""
        return next((int(one["step"]) for one in self.events("resume")), 0)

    def _environ(self, rank: int) -> dict[str, str]:
        known = ("RESIL_", "SLURM", "RANK", "WORLD_SIZE", "LOCAL_", "OMPI_", "PMI_", "TORCHELASTIC", "MASTER_")
        clean = {name: value for name, value in self._system.environ.items() if not name.startswith(known)}
        ranks = {"RANK": str(rank), "WORLD_SIZE": str(self._world), "LOCAL_RANK": str(rank)}
        own = {"RESIL_RUN_DIR": str(self.run_dir), "RESIL_RUN": "demo", "RESIL_JOB_ID": JOB}
        polls = {"RESIL_GUARD__POLL_S": "0.1", "RESIL_GUARD__BEAT_S": "0.5"}
        return clean | ranks | own | polls | {"RESIL_ATTEMPT": str(self._attempt)}


def play_sdc(system: System, *, directory: Path | None, say: Callable[[str], None]) -> SdcResult:
    """Run the demo in a new directory, which is removed unless it was given. `say(sentence)` is called for each event.

    Raise DemoFailed if a training does not end as expected.
    """
    began = system.clock.monotonic()
    with _directory(directory) as path:
        clean = _Training(system, path / "clean")
        clean.attempt()
        (reference,) = clean.losses()
        say(f"a training without corruption reaches loss {reference!r} after {STEPS} steps; now with three")
        acts = (_flipped_bit, _extreme_gradient, _wrong_replica)
        found = tuple(act(system, path / act.__name__.strip("_"), say) for act in acts)
    return SdcResult(found, reference, system.clock.monotonic() - began)


def _flipped_bit(system: System, directory: Path, say: Callable[[str], None]) -> Corruption:
    training = _Training(system, directory)
    training.attempt("--until", str(STOPPED_AT))
    newest = StoreDirectory(directory / STORE).checkpoints()[-1]
    byte = flip_bit(newest.path / CHECKPOINT_FILE)
    injected = f"bit 0 of byte {byte} in {newest.name}/{CHECKPOINT_FILE}"
    say(injected)
    training.attempt()
    (bad,) = training.events("checkpoint_bad") or [{}]
    survived = f"the checkpoint before, step {training.resumed_at()}"
    named = f"{bad.get('name')}/{bad.get('file')}" if bad else ""
    return _told(Corruption(injected, "digest of the file", named, survived, training.losses()), say)


def _extreme_gradient(system: System, directory: Path, say: Callable[[str], None]) -> Corruption:
    training = _Training(system, directory)
    injected = f"gradient of -1e30 at step {GRADIENT_AT}"
    say(injected)
    training.attempt("--gradient", str(GRADIENT_AT))
    (found,) = training.events("sdc") or [{}]
    named = f"{str(found.get('why')).partition(' is ')[0]}, step {found.get('step')}" if found else ""
    survived = f"replay of two steps: {found.get('verdict')}"
    return _told(Corruption(injected, "bounds, before the update", named, survived, training.losses()), say)


def _wrong_replica(system: System, directory: Path, say: Callable[[str], None]) -> Corruption:
    training = _Training(system, directory, REPLICAS)
    injected = f"bit flip in a weight of rank {ODD_RANK} of {REPLICAS}, step {WEIGHT_AT}"
    say(injected)
    training.attempt("--weight", f"{ODD_RANK}:{WEIGHT_AT}")
    (found,) = training.events("sdc") or [{}]
    named = f"rank {found.get('of_rank')} on {found.get('node')}, step {found.get('step')}" if found else ""
    training.attempt()
    survived = f"a checkpoint from when all were equal, step {training.resumed_at()}"
    return _told(Corruption(injected, "digests of all ranks", named, survived, training.losses()), say)


def _told(found: Corruption, say: Callable[[str], None]) -> Corruption:
    say(f"  found by {found.found_by}: {found.named or 'NOT FOUND'}")
    say(f"  survived by {found.survived_by}")
    return found


@contextmanager
def _directory(given: Path | None) -> Iterator[Path]:
    if given is not None:
        make_directory(given, mode=0o755)
        yield given
        return
    with tempfile.TemporaryDirectory(prefix="resil-demo-", ignore_cleanup_errors=True) as path:
        yield Path(path)
