"""A guard that follows a script, for tests of your training loop. It monitors nothing and writes no files.

    from resilience.guard.testing import script

    def test_my_loop_saves_and_stops():
        with script(save_at=[3], stop_at=5) as record:
            main()                          # calls TrainingGuard.from_env() as always
        assert record.saved_at == [3, 5]    # the stop comes with a save

`RESIL_GUARD=test:save@3,save@4=label,stop@5` in the environment does the same for a training in another process;
`stop@0` is a stop before the first step.
"""

from __future__ import annotations

import contextlib
import os
import re

from resilience.errors import GuardError
from resilience.guard.agreement.base import Agreement
from resilience.guard.decision import CONTINUE, EXIT_STOPPED, IN_FLIGHT, OBEYED, SAVED, Decision
from resilience.guard.gate import NEVER

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator
    from typing import Any

    from resilience.guard.agreement.base import AgreementEvent
    from resilience.guard.gate import Gate
    from resilience.guard.rank_info import RankInfo

PREFIX = "test:"
_WORD = re.compile(r"(save|stop)@([0-9]{1,15})(?:=([A-Za-z0-9][A-Za-z0-9._-]*))?")


class Record:
    """Saves and stop of a scripted training.

    Attributes:
        saved_at: the steps after which the training saved, in order.
        failed_at: the steps after which a save failed.
        stopped_at: the step of the decision to stop; None without one.
    """

    def __init__(self) -> None:
        self.saved_at: list[int] = []
        self.failed_at: list[int] = []
        self.stopped_at: int | None = None


_scripts: list[tuple[Record, int]] = []
"""Record and exit code of each open `script` block."""


@contextlib.contextmanager
def script(
    *, save_at: Iterable[int] = (), stop_at: int | None = None, label: str = "", exit_code: int = EXIT_STOPPED
) -> Iterator[Record]:
    """Make every guard that `from_env` creates inside the block follow this script.

    Args:
        save_at: the steps after which to save and continue; counted from 1, like all steps of the guard.
        stop_at: the step after which to save and stop; 0 to stop before the first step.
        label: of the saves.
        exit_code: the guard's `exit_code` after the stop.
    """
    words = [f"save@{step}" + (f"={label}" if label else "") for step in save_at]
    if stop_at is not None:
        words.append(f"stop@{stop_at}")
    record = Record()
    before = os.environ.get("RESIL_GUARD")
    os.environ["RESIL_GUARD"] = PREFIX + ",".join(words)
    parse_script(os.environ["RESIL_GUARD"])
    _scripts.append((record, exit_code))
    try:
        yield record
    finally:
        _scripts.pop()
        if before is None:
            del os.environ["RESIL_GUARD"]
        else:
            os.environ["RESIL_GUARD"] = before


SILENT: dict[str, Any] = {
    "kill_switch": False,
    "save_switch": False,
    "superseded": False,
    "walltime": False,
    "host_memory": False,
    "gpu_memory": "off",
    "signals": (),
    "mirror": "off",
}
"""The settings of a guard that monitors nothing."""


def parse_script(text: str) -> tuple[dict[int, str], int | None]:
    """Given `test:save@3,stop@5`, return the saves (step to label) and the stop. Raise GuardError for other text."""
    saves: dict[int, str] = {}
    stop = None
    for word in filter(None, text.removeprefix(PREFIX).split(",")):
        match = _WORD.fullmatch(word.strip())
        if match is None:
            raise GuardError(f"RESIL_GUARD={text!r}: {word!r} is invalid", hint="write test:save@3,stop@5")
        if match[1] == "save":
            saves[int(match[2])] = match[3] or ""
        else:
            stop = int(match[2])
    return saves, stop


def scripted(text: str) -> Callable[..., Scripted]:
    """Return a factory of the agreement of a guard that follows a script."""
    saves, stop = parse_script(text)
    record, exit_code = _scripts[-1] if _scripts else (Record(), EXIT_STOPPED)

    def make(gate: Gate, on_event: Callable[[AgreementEvent], None], place: RankInfo) -> Scripted:
        return Scripted(gate, saves, stop, record, exit_code)

    return make


class Scripted(Agreement):
    """An agreement that follows a script."""

    def __init__(
        self, gate: Gate, saves: dict[int, str], stop: int | None, record: Record, exit_code: int = EXIT_STOPPED
    ) -> None:
        super().__init__(gate)
        self._saves = saves
        self._stop = stop
        self._exit_code = exit_code
        self._record = record
        self._saving_step: int | None = None

    def start(self) -> None:
        """Set the limits; there is nothing else to start."""
        self.restore()

    def wait_for_start(self, timeout_s: float) -> Decision:
        """Return a stop before the first step if the script has one."""
        return self._decision(save=False) if self._stop == 0 else CONTINUE

    def on_step(self) -> Decision:
        """Return the script's decision for this step."""
        step = self._gate.count
        is_stop = self._stop is not None and step >= self._stop
        is_save = step in self._saves or step == self._stop
        if is_save:
            self._saving_step = step
        if is_stop and self._record.stopped_at is None:
            self._record.stopped_at = step
        self.restore()
        return self._decision(save=is_save, stop=is_stop) if is_save or is_stop else CONTINUE

    def on_poll(self) -> Decision:
        """Announce a stop during the step before it."""
        if self._stop is not None and self._gate.count >= self._stop - 1:
            return self._decision(save=False)
        return CONTINUE

    def finish(self, outcome: str, seconds: float) -> int:
        """Record the outcome of a save; `saved` records a save in flight."""
        step, self._saving_step = self._saving_step, None
        if step is not None and outcome != IN_FLIGHT:
            self.saved(step, outcome, seconds)
        self.restore()
        return step or 0

    def saved(self, number: int, outcome: str, seconds: float) -> None:
        """See `Agreement`."""
        (self._record.saved_at if outcome in (SAVED, OBEYED) else self._record.failed_at).append(number)

    def restore(self) -> None:
        """Set the limit to the next step in the script."""
        gate = self._gate
        ahead = [step for step in (*self._saves, self._stop) if step is not None and step > gate.count]
        past = self._stop is not None and gate.count >= self._stop
        gate.limit = gate.count + 1 if past or self._saving_step is not None else min(ahead, default=NEVER)
        gate.poll_limit = 0 if self._stop is not None else NEVER

    def _decision(self, *, save: bool, stop: bool = True) -> Decision:
        step = self._gate.count
        return Decision(
            save=save,
            stop=stop,
            label=self._saves.get(step, ""),
            reasons=["requested by the test's script"],
            step=step,
            exit_code=self._exit_code,
            triggers=["script"],
        )
