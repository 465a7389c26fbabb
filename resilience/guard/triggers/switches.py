"""The switch files, as the training sees them: kill, save, and the batch shell's own stop."""

from __future__ import annotations

import contextlib
import os
import time

from resilience import layout
from resilience.base.files import read_regular
from resilience.guard.decision import FAILED, SKIPPED, BuiltInTrigger, Request
from resilience.guard.switch_directory import called
from resilience.switch import describe_age

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable

    from resilience.guard.switch_directory import FoundSwitch, SwitchDirectory
    from resilience.switch import Switch

PAUSE_S = 60.0
MOST_PAUSE_S = 3600.0
"""A save that failed is tried again after a minute, then two, four, and so on up to this."""
STALE_S = 5.0
"""A stop file older than the attempt by this much is of an earlier start: both times are of the batch shell's clock."""


class _SwitchFile(BuiltInTrigger):
    ranks = "first"
    shared = True

    def __init__(self, directory: SwitchDirectory, *, now: Callable[[], float] = time.time) -> None:
        self._directory = directory
        self._recorder = directory.recorder
        self._now = now
        self._is_first_look = True

    def _note(self, found: FoundSwitch) -> None:
        """Write down in the journal who has thrown it, when, and why."""
        switch = found.switch
        self._recorder.event(
            "switch",
            kind=switch.kind,
            who=switch.who,
            when=switch.when,
            why=switch.why,
            scope=switch.scope.value,
            label=switch.label,
        )


class KillSwitch(_SwitchFile):
    """`switches/kill`: save and stop, and let no job of the run train while it lies there."""

    name = layout.KILL_SWITCH

    def __init__(self, directory: SwitchDirectory, *, now: Callable[[], float] = time.time) -> None:
        super().__init__(directory, now=now)
        self._asked: tuple[int, int, int] | None = None

    def poll(self) -> Request | None:
        """Look whether it is thrown. One that lay there before the job is named with its age, and how to clear it."""
        found = self._directory.read(self.name)
        is_first_look, self._is_first_look = self._is_first_look, False
        if found is None or found.identity == self._asked:
            return None
        self._asked = found.identity
        self._note(found)
        if is_first_look:
            run = self._directory.run
            ago = describe_age(self._now() - found.switch.when)
            self._recorder.warn(
                f"the kill switch of run {run} was thrown{ago} by {found.switch.who}, before this training started; "
                f"no job of the run trains while it lies there. To let it go on: resil clear {run}"
            )
        return Request(self.name, describe(found.switch))


class SaveSwitch(_SwitchFile):
    """`switches/save`: save and go on. Removed when that has succeeded.

    A failed save leaves it armed, to be tried again after a growing pause; whoever throws it anew is obeyed at once.
    One that cannot be removed is obeyed once.
    """

    name = layout.SAVE_SWITCH

    def __init__(
        self,
        directory: SwitchDirectory,
        *,
        now: Callable[[], float] = time.time,
        monotonic: Callable[[], float] = time.monotonic,
        pause_s: float = PAUSE_S,
    ) -> None:
        super().__init__(directory, now=now)
        self._monotonic = monotonic
        self._first_pause_s = pause_s
        self._pause_s = pause_s
        self._obeying: FoundSwitch | None = None
        self._spent: tuple[int, int, int] | None = None  # obeyed, and could not be removed
        self._failed: tuple[int, int, int] | None = None  # its save failed
        self._noted: tuple[int, int, int] | None = None
        self._not_before = 0.0

    def poll(self) -> Request | None:
        """Look whether it is thrown, and not obeyed yet."""
        found = self._directory.read(self.name)
        if found is None:
            return None
        if found.identity == self._spent:
            if self._monotonic() >= self._not_before:
                self._remove(found)
            return None
        if found.identity == self._failed:
            if self._monotonic() < self._not_before:
                return None
        else:
            self._pause_s = self._first_pause_s
            if found.identity != self._noted:
                self._noted = found.identity
                self._note(found)
        self._obeying = found
        return Request(self.name, describe(found.switch), stop=False, label=found.switch.label)

    def done(self, outcome: str) -> None:
        """Remove it, unless the save failed or was passed over, or it is another one by now."""
        found, self._obeying = self._obeying, None
        if found is None or outcome == SKIPPED:
            return
        if outcome == FAILED:
            self._failed = found.identity
            self._recorder.warn(
                f"the save failed that the save switch of {found.switch.who} asks for: the switch stays, and is tried "
                f"again in {self._pause_s:g} s. To give it up: resil clear {self._directory.run}"
            )
            self._wait()
            return
        self._pause_s = self._first_pause_s
        self._remove(found)

    def _remove(self, found: FoundSwitch) -> None:
        """Take a switch away that was obeyed; where that cannot be, remember it, say so once, and try again later."""
        try:
            self._directory.remove(found)
        except OSError as error:
            if found.identity != self._spent:
                self._spent = found.identity
                reason = os.strerror(error.errno) if error.errno else str(error)
                self._recorder.warn(
                    f"the save switch {found.path} of {found.switch.who} cannot be removed: {reason}. It has been "
                    "obeyed, and is passed over until it is thrown anew"
                )
            self._wait()

    def _wait(self) -> None:
        self._not_before = self._monotonic() + self._pause_s
        self._pause_s = min(2 * self._pause_s, MOST_PAUSE_S)


class StopFile(_SwitchFile):
    """`switches/stop.<jobid>`: the batch shell says that the time is nearly over.

    The batch shell removes what an earlier start of its job has left (a requeue keeps the id). Where it could not, the
    file is told by its time.
    """

    name = "stop"

    def __init__(self, directory: SwitchDirectory, *, now: Callable[[], float] = time.time) -> None:
        super().__init__(directory, now=now)
        self._file = layout.STOP_PREFIX + directory.place.job_id
        self._asked: tuple[int, int, int] | None = None

    def poll(self) -> Request | None:
        """Look whether it is there."""
        found = self._directory.read(self._file, accept_own=True)
        if found is None or found.identity == self._asked:
            return None
        self._asked = found.identity
        began = self._attempt_began()
        if began is not None and found.switch.when < began - STALE_S:
            self._recorder.warn(f"the stop file {found.path} is of an earlier start of this job: it is passed over")
            return None
        self._note(found)
        return Request(self.name, found.switch.why.rstrip(". ") or describe(found.switch))

    def _attempt_began(self) -> float | None:
        """When this attempt began, in seconds since the epoch, by the batch shell's clock; None when nothing tells."""
        place = self._directory.place
        if not place.attempt:
            return None
        from resilience.switch import parse_fields

        try:
            found = read_regular(os.path.join(place.run_dir, layout.ATTEMPTS, layout.attempt_file(place.attempt)))
            return None if found is None else float(parse_fields(found[0]).get("start", ""))
        except (OSError, ValueError, ImportError):
            return None


def describe(switch: Switch) -> str:
    """The switch as a sentence: `the kill switch was thrown by bob at 2026-11-20 10:57: loss is NaN`."""
    sentence = f"the {called(switch.kind)} was thrown by {switch.who}"
    with contextlib.suppress(OverflowError, ValueError, OSError):  # a file can bear any time
        sentence += time.strftime(" at %Y-%m-%d %H:%M", time.localtime(switch.when))
    if switch.scope.value == "all":
        sentence += " for all jobs of the run"
    if switch.label:
        sentence += f" as {switch.label}"
    why = switch.why.rstrip(". ")
    return f"{sentence}: {why}" if why else sentence
