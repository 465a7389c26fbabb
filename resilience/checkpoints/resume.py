"""The checkpoint to resume from: the newest that verifies, the same on every rank.

Rank 0 proposes the newest one that is complete; then each node reads its share of the files, within a budget, and
compares the digests. A damaged one is set aside, and rank 0 proposes the one before. Checkpoints of which none is good
are an error, never a fresh start; one that cannot be read is neither good nor damaged, and an error as well.
"""

from __future__ import annotations

import json
import sys
import time
from contextlib import suppress
from dataclasses import dataclass, field, replace
from itertools import count
from typing import NamedTuple

from resilience.checkpoints import starts
from resilience.checkpoints.digest import list_files
from resilience.checkpoints.directory import Checkpoint, StoreDirectory
from resilience.checkpoints.manifest import DamagedManifest, NewerManifest
from resilience.checkpoints.part import MOST_WORDS
from resilience.checkpoints.quarantine import set_aside
from resilience.checkpoints.verified import read_verified, write_verified
from resilience.checkpoints.verify import Fault, Verification, verify
from resilience.errors import CheckpointError, ResilError
from resilience.messages import cut
from resilience.quantities import format_bytes

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

    from resilience.checkpoints.adopt import Found
    from resilience.checkpoints.part import Ranks, Report

LOOK_S = 0.01
SLOWEST_BYTES_PER_S = 20e6
"""How fast rank 0 reads at least what it seals, before the others wait no longer."""
REMIND_S, MOST_S = 30.0, 1800.0
"""When a rank that waits for the others says so, and when it gives up, beyond the budget of the verification."""
EXIT_NONE_GOOD = 4
WITHOUT = "to resume from the one before a checkpoint that stays unreadable: resil ckpt quarantine NAME"


class NoGoodCheckpoint(CheckpointError):
    """There were checkpoints, and none of them is good: not a reason to begin anew."""

    exit_code = EXIT_NONE_GOOD


class Choice(NamedTuple):
    """The checkpoint to resume from.

    Attributes:
        checkpoint: None: there is none yet, and never was.
        is_read: whether all of its files were read within the budget.
        shown: what this rank's share of it showed.
    """

    checkpoint: Checkpoint | None
    is_read: bool = True
    shown: Verification | None = None


class Look:
    """One look for the checkpoint to resume from, over all ranks."""

    def __init__(
        self,
        store: StoreDirectory,
        ranks: Ranks,
        *,
        number: int = 0,
        budget_s: float = 60.0,
        manage: bool = False,
        earlier: str = "",
        reads_only: bool = False,
        find_unsealed: Callable[[], tuple[Found, ...]] = lambda: (),
        up_to: int | None = None,
    ) -> None:
        """No I/O.

        Args:
            store: the directory of checkpoints.
            ranks: of the training; `Alone` without one.
            number: of the look in this process, equal on all ranks.
            budget_s: how long to read before the rest is left unread, in seconds.
            manage: whether checkpoints that a framework named may be set aside.
            earlier: what shows that there were checkpoints, even if the directory is empty.
            reads_only: change nothing: bad ones are passed over, and stay where they are.
            find_unsealed: returns what a framework saved and nothing has sealed; it is sealed before it is proposed.
            up_to: set newer ones than of this step aside.
        """
        self._up_to = up_to
        self._find_unsealed = find_unsealed
        self._store, self._ranks, self._number = store, ranks, number
        self._budget_s, self._manage, self._earlier, self._reads_only = budget_s, manage, earlier, reads_only
        self._passed: dict[str, str] = {}
        """Names of checkpoints that are not good, with the reasons."""

    def choose(self) -> Choice:
        """Return the newest good checkpoint. Waits for all ranks.

        Raise NoGoodCheckpoint; CheckpointError if a rank has left, or, with `transient`, if one could not be read.
        """
        ranks = self._ranks
        for turn in count():
            key = f"{self._number}.{turn}"
            ranks.report(f"candidate {key}", text=self._proposal() if ranks.is_first else "")
            answer = wait_for(ranks, f"candidate {key}")
            if answer.faults:
                raise CheckpointError(f"no checkpoint could be chosen: {'; '.join(answer.faults)}")
            proposal = json.loads(answer.text)
            if "name" not in proposal:
                return self._end(proposal)
            if "size" in proposal:
                ranks.report(f"sealed {key}", text=self._seal(**proposal) if ranks.is_first else "")
                wait_for(ranks, f"sealed {key}", proposal["size"] / SLOWEST_BYTES_PER_S)
                continue
            checkpoint = Checkpoint(self._store.path, proposal["name"], proposal["step"], proposal["seal"])
            mine = Verification("digest")
            if ranks.is_first_of_node:
                deadline = time.monotonic() + self._budget_s
                mine = verify(checkpoint, "digest", node=ranks.node, nodes=ranks.nodes, deadline=deadline)
            ranks.report(f"verified {key}", fault=_fault_text(mine))
            answer = wait_for(ranks, f"verified {key}", self._budget_s)
            if not answer.faults:
                ranks.report(f"read {key}", fault=f"{mine.unread} files unread" if mine.unread else "")
                is_read = not wait_for(ranks, f"read {key}").faults
                if ranks.is_first:
                    self._record(checkpoint, mine, is_read)
                return Choice(checkpoint, is_read, mine)
            fault = _damage(checkpoint, answer.faults)
            if ranks.is_first:
                self._drop(checkpoint, fault, str(fault))
        raise AssertionError

    # ---- rank 0 -----------------------------------------------------------------------------------------------

    def _proposal(self) -> str:
        """Return what rank 0 tells the others: a checkpoint, or why there is none."""
        try:
            unsealed = {one.name: one for one in self._find_unsealed() if one.is_whole and one.name not in self._passed}
            for checkpoint in reversed([None, *self._store.checkpoints()]):
                for one in sorted(unsealed.values(), key=lambda one: -one.step):
                    if checkpoint is None or one.step > checkpoint.step or one.name == checkpoint.name:
                        del unsealed[one.name]
                        if one.why_not:
                            self._pass(one.name, f"it has no seal, and {one.why_not}")
                            continue
                        with suppress(FileNotFoundError):  # deleted by its framework meanwhile
                            size = sum(list_files(self._store.path / one.name).sizes.values())
                            return _line({"name": one.name, "step": one.step, "size": size})
                if checkpoint and checkpoint.name not in self._passed and self._is_complete(checkpoint):
                    return _line({"name": checkpoint.name, "step": checkpoint.step, "seal": checkpoint.seal})
            bad = self._store.bad()
        except OSError as error:
            return _line({"unknown": f"{error.filename or self._store.path}: {error.strerror}"})
        except ResilError as error:
            return _line({"unknown": str(error)})
        were = [name if number else f"{name} ({why})" for number, (name, why) in enumerate(self._passed.items())]
        were += [f".bad/{name}" for name in bad if not name.startswith(tuple(self._passed))]
        if were or self._earlier:
            more = f" and {len(were) - 3} more" if len(were) > 3 else ""
            return _line({"none_good": ", ".join(were[:3]) + more or self._earlier})
        return "{}"

    def _seal(self, name: str, step: int, size: int) -> str:
        """Seal what a framework saved, or pass it over, and say so. Return an empty text: the next look finds it."""
        from resilience.checkpoints.adopt import seal

        self._ranks.warn(f"{name} has no seal, and is sealed before it is loaded: {format_bytes(size)} are read")
        try:
            seal(self._store, name, step, run=self._ranks.run, attempt=self._ranks.attempt)
        except FileNotFoundError:
            self._pass(name, "its framework has deleted it")
        except (CheckpointError, OSError) as error:
            self._pass(name, f"it has no seal, and cannot be sealed: {error}. Try: resil ckpt adopt {name}")
        return ""

    def _end(self, proposal: dict[str, Any]) -> Choice:
        if "unknown" in proposal:
            raise CheckpointError(
                f"the checkpoints in {self._store.path} cannot be read: {proposal['unknown']}",
                hint=f"try again once the file system answers; {WITHOUT}",
                transient=True,
            )
        if "none_good" in proposal:
            raise NoGoodCheckpoint(
                f"there were checkpoints in {self._store.path}, and none is good: {proposal['none_good']}",
                hint="to begin anew, use a new run with a directory of its own; the reasons: resil ckpt list",
            )
        return Choice(None)

    def _is_complete(self, checkpoint: Checkpoint) -> bool:
        """Return whether a checkpoint is good, content aside. Raise CheckpointError if that is unknown; OSError."""
        if self._up_to is not None and checkpoint.step > self._up_to:
            self._drop(checkpoint, None, f"only checkpoints up to step {self._up_to} are trusted")
            return False
        try:
            checkpoint.manifest()
            known = read_verified(checkpoint)
            if known is not None and known.fault is not None:
                self._drop(checkpoint, known.fault, str(known.fault))
                return False
        except NewerManifest as error:
            self._pass(checkpoint.name, str(error))
            return False
        except DamagedManifest:
            pass  # found again, with its words
        found = verify(checkpoint, "structure")
        if found.why_unknown:
            raise CheckpointError(f"{checkpoint.name}: {found.why_unknown}")
        if found.fault is not None:
            self._drop(checkpoint, found.fault, str(found.fault))
            return False
        return self._may_load(checkpoint)

    def _may_load(self, checkpoint: Checkpoint) -> bool:
        """Return whether not too many starts have died while loading a checkpoint. Raise OSError."""
        if not self._ranks.attempt or self._reads_only:
            return True
        last = starts.read_start(self._store)
        if last.is_loading and starts.was_ended(self._ranks.run_dir, last.attempt):
            last = replace(last, is_loading=False)
            self._note(last)
        died = starts.deaths(last, self._ranks.attempt, checkpoint.name)
        if len(died) < starts.MOST_DEATHS:
            return True
        attempts = " and ".join(map(str, died))
        if last.blamed:
            self._ranks.warn(
                f"attempts {attempts} died while loading {checkpoint.name}, as others did with {last.blamed}, which "
                "was set aside: the checkpoints are probably not the cause. See how the attempts ended: resil why. "
                f"To use the newer one again: resil ckpt restore {last.blamed}"
            )
            return True
        self._note(replace(last, is_loading=False, died=(), blamed=checkpoint.name))
        self._drop(checkpoint, None, f"attempts {attempts} died while loading it")
        return False

    def _note(self, start: starts.Start) -> None:
        try:
            starts.write_start(self._store, start)
        except OSError as error:
            self._warn_of(error)

    def _warn_of(self, error: OSError) -> None:
        self._ranks.warn(f"{self._store.own} cannot be written: {error.strerror}. The start is not recorded there")

    def _drop(self, checkpoint: Checkpoint, fault: Fault | None, why: str) -> None:
        """Set a checkpoint aside where that is allowed, and pass it over in any case."""
        name = checkpoint.name
        fields = {} if fault is None else {"file": fault.file, "expected": fault.expected, "found": fault.found}
        self._ranks.event("checkpoint_bad", name=name, why=why, **fields)
        if self._reads_only:
            place = "is passed over"
        elif checkpoint.is_sealed and not self._manage:
            place = "is passed over, and stays where it is, because manage = false"
        else:
            try:
                place = f"was set aside as {set_aside(self._store, checkpoint, fault=fault, why=why)}"
            except (OSError, CheckpointError) as error:
                words = error.strerror if isinstance(error, OSError) else error
                place = f"is passed over; it cannot be set aside: {words}"
        self._pass(name, why, f"the checkpoint {name} is bad and {place}: {why}")

    def _pass(self, name: str, why: str, text: str = "") -> None:
        self._passed[name] = why
        self._ranks.warn(text or f"the checkpoint {name} is passed over: {why}")

    def _record(self, checkpoint: Checkpoint, verification: Verification, is_read: bool) -> None:
        """Record which checkpoint this start loads, and that all of it was read."""
        self._ranks.event("checkpoint_chosen", name=checkpoint.name, is_read=is_read)
        if self._reads_only:
            return
        try:
            if is_read:
                write_verified(checkpoint, verification, time.time())
            starts.begin(self._store, self._ranks.attempt, checkpoint.name)
        except OSError as error:
            self._warn_of(error)


# ---- between ranks --------------------------------------------------------------------------------------------------


def wait_for(ranks: Ranks, key: str, budget_s: float = 0.0, hint: str = "call store.latest() on every rank") -> Report:
    """Return what all ranks have reported for a key. Raise CheckpointError if a rank never reports."""
    began = time.monotonic()
    reminds = True
    while (answer := ranks.reported(key)) is None:
        waited_s = time.monotonic() - began - budget_s
        if waited_s > MOST_S:
            raise CheckpointError(f"rank {ranks.rank} waited {MOST_S / 60:.0f} minutes for the other ranks", hint=hint)
        if reminds and waited_s > REMIND_S:
            reminds = False
            ranks.warn(f"rank {ranks.rank} waits for the other ranks: {hint}")
        time.sleep(LOOK_S)
    return answer


def _line(proposal: dict[str, Any]) -> str:
    """Return a proposal as text that fits into a report."""
    return json.dumps(
        {name: cut(value, MOST_WORDS) if isinstance(value, str) else value for name, value in proposal.items()}
    )


def _fault_text(found: Verification) -> str:
    """Return what a rank reports of its share: empty if it found nothing bad."""
    if found.fault is not None:
        whole = json.dumps([found.fault.file, found.fault.expected, found.fault.found, found.fault.what])
        return whole if len(whole) <= MOST_WORDS else json.dumps([found.fault.file[-200:], "", "", found.fault.what])
    return f"unknown: {found.why_unknown}" if found.why_unknown else ""


def _damage(checkpoint: Checkpoint, faults: tuple[str, ...]) -> Fault:
    """Return the damage that a rank has found. Raise CheckpointError if there is none: a rank has left, or could not
    read."""
    for fault in faults:
        try:
            return Fault(*json.loads(fault.partition(": ")[2]))
        except (ValueError, TypeError):
            continue
    raise CheckpointError(
        f"{checkpoint.path} cannot be verified: {'; '.join(faults)}",
        hint=f"try again once all nodes can read it; {WITHOUT}",
        transient=True,
    )


@dataclass(slots=True)
class Alone:
    """The ranks of a process without a guard: itself."""

    rank: int = 0
    world: int = 1
    node: int = 0
    nodes: int = 1
    is_first: bool = True
    is_first_of_node: bool = True
    run: str = ""
    attempt: int = 0
    run_dir: str = ""
    _answers: dict[str, _Answer] = field(default_factory=dict)

    def report(self, key: str, *, fault: str = "", text: str = "") -> None:
        """Answer at once."""
        self._answers[key] = _Answer((f"rank 0: {fault}",) if fault else (), text)

    def reported(self, key: str) -> Report | None:
        """Return the report."""
        return self._answers.get(key)

    def warn(self, text: str) -> None:
        """Warn on stderr."""
        if sys.stderr is not None:
            sys.stderr.write(f"resil: warning: {text}\n")

    def event(self, kind: str, **fields: Any) -> None:
        """There is no journal."""


@dataclass(slots=True)
class _Answer:
    faults: tuple[str, ...]
    text: str
