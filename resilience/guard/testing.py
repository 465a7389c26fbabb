"""A guard that follows a script, for tests of your training loop. It monitors nothing and writes no files.

    from resilience.guard.testing import script

    def test_my_loop_saves_and_stops():
        with script(save_at=[3], stop_at=5) as record:
            main()                          # calls TrainingGuard.from_env() as always
        assert record.saved_at == [3, 5]    # the stop comes with a save

With pytest the fixture `resil_guard` is a `GuardScript`: the same, written step by step.
`RESIL_GUARD=test:save@3,save@4=label,stop@5` in the environment does the same for a training in another process;
`stop@0` is a stop before the first step, `kill@5` and `limit@5` are a kill switch and a time limit.
"""

from __future__ import annotations

import contextlib
import os
import re

from resilience.errors import AgreementLost, GuardError
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
_VARIABLE = "RESIL_GUARD"
_WORD = re.compile(r"(save|stop|kill|limit)@([0-9]{1,15})(?:=([A-Za-z0-9][A-Za-z0-9._-]*))?")
_STOPS = {
    "stop": ("script", "requested by the test's script"),
    "kill": ("kill", "the kill switch was set by the test's script"),
    "limit": ("walltime", "the test's script says that the job's time limit is near"),
}
"""Trigger and reason of each kind of stop, as in the decisions of a real guard."""


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


class GuardScript:
    """A script that a test writes, and what the training did by it. While it is installed, every guard that `from_env`
    creates follows it, also one that runs already. Steps count from 1, like all steps of the guard.

    Attributes:
        record: what the training did.
    """

    def __init__(self) -> None:
        self.record = Record()
        self._save_labels: dict[int, str] = {}
        self._stop: tuple[int, str] | None = None
        self._exit_code = EXIT_STOPPED
        self._errors: dict[int, Exception] = {}
        self._guards: list[Scripted] = []

    def save_at(self, *steps: int, label: str = "") -> None:
        """Request a save after each of these steps; the training continues."""
        self._save_labels |= dict.fromkeys(steps, label)
        self._changed()

    def stop_at(self, step: int, *, exit_code: int = EXIT_STOPPED) -> None:
        """Request a save and a stop after this step; 0: stop before the first one."""
        self._exit_code = exit_code
        self._stop_at(step, "stop")

    def kill_at(self, step: int) -> None:
        """Set the kill switch at this step: a save and a stop, for the reason of a kill switch."""
        self._stop_at(step, "kill")

    def time_limit_at(self, step: int) -> None:
        """Let the job's time limit come near at this step: a save and a stop, for the reason of the time limit."""
        self._stop_at(step, "limit")

    def raise_at(self, step: int, error: Exception | None = None) -> None:
        """Raise an error from this call of `guard.step()`, once: by default AgreementLost, the only one that a real
        guard raises there; or your own, such as a CUDA error, to test how the loop ends and what it resumes from."""
        lost = AgreementLost(f"step {step}: another rank is lost, says the test's script")
        self._errors[step] = error or lost
        self._changed()

    @property
    def saves(self) -> list[int]:
        """Return the steps after which the training saved."""
        return self.record.saved_at

    @property
    def failed_saves(self) -> list[int]:
        """Return the steps after which a save failed."""
        return self.record.failed_at

    @property
    def stopped_at(self) -> int | None:
        """Return the step at which the training was told to stop; None if it was not."""
        return self.record.stopped_at

    @property
    def steps(self) -> int:
        """Return the last step of the newest guard: later than `stopped_at` if the loop ignored the stop."""
        return self._guards[-1].count if self._guards else 0

    def __str__(self) -> str:
        """Return the script as the text of RESIL_GUARD."""
        words = [f"save@{step}" + (f"={label}" if label else "") for step, label in sorted(self._save_labels.items())]
        if self._stop is not None:
            words.append(f"{self._stop[1]}@{self._stop[0]}")
        return PREFIX + ",".join(words)

    @contextlib.contextmanager
    def installed(self) -> Iterator[GuardScript]:
        """Make every guard that `from_env` creates inside the block follow this script."""
        before = os.environ.get(_VARIABLE)
        _scripts.append(self)
        try:
            self._changed()
            yield self
        finally:
            _scripts.remove(self)
            if before is None:
                del os.environ[_VARIABLE]
            else:
                os.environ[_VARIABLE] = before

    def _stop_at(self, step: int, kind: str) -> None:
        self._stop = (step, kind)
        self._changed()

    def _changed(self) -> None:
        """Tell the guards, and the trainings that this process starts. Raise GuardError if the script is invalid."""
        parse_script(str(self))
        if self in _scripts:
            os.environ[_VARIABLE] = str(self)
        for guard in self._guards:
            guard.restore()

    @classmethod
    def parsed(cls, text: str) -> GuardScript:
        """Return the script of another process. Raise GuardError for an invalid text."""
        made = cls()
        made._save_labels, made._stop = parse_script(text)
        return made


_scripts: list[GuardScript] = []
"""The installed scripts; the last one counts."""


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
    written = GuardScript()
    written.save_at(*save_at, label=label)
    if stop_at is not None:
        written.stop_at(stop_at, exit_code=exit_code)
    with written.installed():
        yield written.record


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


def parse_script(text: str) -> tuple[dict[int, str], tuple[int, str] | None]:
    """Given `test:save@3,stop@5`, return the saves (step to label) and the stop (step and kind).

    Raise GuardError for other text.
    """
    saves: dict[int, str] = {}
    stop = None
    for word in filter(None, text.removeprefix(PREFIX).split(",")):
        match = _WORD.fullmatch(word.strip())
        if match is None:
            raise GuardError(f"RESIL_GUARD={text!r}: {word!r} is invalid", hint="write test:save@3,stop@5")
        if match[1] == "save":
            saves[int(match[2])] = match[3] or ""
        else:
            stop = int(match[2]), match[1]
    return saves, stop


def scripted(text: str, kind: type[Any]) -> tuple[type[Any], Callable[..., Scripted]]:
    """Return the class of a guard that follows a script, made from `kind`, and the factory of its agreement."""
    installed = _scripts[-1] if _scripts else None
    written = installed if installed is not None and str(installed) == text else GuardScript.parsed(text)

    def make(gate: Gate, on_event: Callable[[AgreementEvent], None], place: RankInfo) -> Scripted:
        return Scripted(gate, written)

    return _raising(kind, written._errors) if written._errors else kind, make


def _raising(kind: type[Any], errors: dict[int, Exception]) -> type[Any]:
    """Return a class of guards that raise at some steps: errors within a real guard never reach the training."""

    def ask(self: Any, loss: Any) -> Any:
        error = errors.pop(self.count, None)
        if error is not None:
            raise error
        return kind._ask(self, loss)

    return type(kind.__name__, (kind,), {"__slots__": (), "_ask": ask})


class Scripted(Agreement):
    """An agreement that follows a script."""

    def __init__(self, gate: Gate, written: GuardScript) -> None:
        super().__init__(gate)
        self._script = written
        self._record = written.record
        self._saving_step: int | None = None
        written._guards.append(self)

    @property
    def count(self) -> int:
        """Return the completed steps."""
        return self._gate.count

    @property
    def _stop(self) -> int | None:
        return None if self._script._stop is None else self._script._stop[0]

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
        is_save = step in self._script._save_labels or step == self._stop
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
        written = self._script
        steps = (*written._save_labels, *written._errors, self._stop)
        ahead = [step for step in steps if step is not None and step > gate.count]
        past = self._stop is not None and gate.count >= self._stop
        gate.limit = gate.count + 1 if past or self._saving_step is not None else min(ahead, default=NEVER)
        gate.poll_limit = 0 if self._stop is not None else NEVER

    def _decision(self, *, save: bool, stop: bool = True) -> Decision:
        step, written = self._gate.count, self._script
        trigger, reason = _STOPS[written._stop[1] if stop and written._stop is not None else "stop"]
        return Decision(
            save=save,
            stop=stop,
            label=written._save_labels.get(step, ""),
            reasons=[reason],
            step=step,
            exit_code=written._exit_code,
            triggers=[trigger],
        )
