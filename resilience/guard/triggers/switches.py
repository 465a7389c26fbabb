"""Triggers for the switch files: kill, save, and the batch shell's stop file."""

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
"""A failed save is retried after one minute, then two, four, and so on up to this."""
STALE_S = 5.0
"""A stop file older than the attempt by this much is left from an earlier start: both times are the batch shell's."""


class _SwitchFile(BuiltInTrigger):
    ranks = "first"
    shared = True

    def __init__(self, directory: SwitchDirectory, *, now: Callable[[], float] = time.time) -> None:
        self._directory = directory
        self._recorder = directory.recorder
        self._now = now
        self._is_first_poll = True

    def _note(self, found: FoundSwitch) -> None:
        """Record in the journal who has set the switch, when, and why."""
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
    """`switches/kill`: save and stop; no job of the run trains while the switch is set."""

    name = layout.KILL_SWITCH

    def __init__(self, directory: SwitchDirectory, *, now: Callable[[], float] = time.time) -> None:
        super().__init__(directory, now=now)
        self._requested: tuple[int, int, int] | None = None

    def poll(self) -> Request | None:
        """Check the switch. Warn about one set before this job, with its age and how to clear it."""
        found = self._directory.read(self.name)
        is_first_poll, self._is_first_poll = self._is_first_poll, False
        if found is None or found.identity == self._requested:
            return None
        self._requested = found.identity
        self._note(found)
        if is_first_poll:
            run = self._directory.run
            ago = describe_age(self._now() - found.switch.when)
            self._recorder.warn(
                f"the kill switch of run {run} was set{ago} by {found.switch.who}, before this training started; no "
                f"job of the run trains while it is set. To continue: resil clear {run}"
            )
        return Request(self.name, describe(found.switch))


class SaveSwitch(_SwitchFile):
    """`switches/save`: save and continue. The switch is removed after a successful save.

    After a failed save it stays set, and is retried with exponential backoff; a switch that is set again is applied
    immediately. A switch that cannot be removed is applied once.
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
        self._active: FoundSwitch | None = None
        self._spent: tuple[int, int, int] | None = None  # applied, but could not be removed
        self._failed: tuple[int, int, int] | None = None  # its save failed
        self._noted: tuple[int, int, int] | None = None
        self._not_before = 0.0

    def poll(self) -> Request | None:
        """Check whether the switch is set and not applied yet."""
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
        self._active = found
        return Request(self.name, describe(found.switch), stop=False, label=found.switch.label)

    def done(self, outcome: str) -> None:
        """Remove the switch, unless the save failed or was skipped, or the switch was set again meanwhile."""
        found, self._active = self._active, None
        if found is None or outcome == SKIPPED:
            return
        if outcome == FAILED:
            self._failed = found.identity
            self._recorder.warn(
                f"the save requested by the save switch of {found.switch.who} failed; retrying in {self._pause_s:g} s. "
                f"To give up: resil clear {self._directory.run}"
            )
            self._wait()
            return
        self._pause_s = self._first_pause_s
        self._remove(found)

    def _remove(self, found: FoundSwitch) -> None:
        """Remove an applied switch; if that fails, warn once and retry later."""
        try:
            self._directory.remove(found)
        except OSError as error:
            if found.identity != self._spent:
                self._spent = found.identity
                reason = os.strerror(error.errno) if error.errno else str(error)
                self._recorder.warn(
                    f"the save switch {found.path} of {found.switch.who} cannot be removed: {reason}. The save was "
                    "made; the switch is ignored until it is set again"
                )
            self._wait()

    def _wait(self) -> None:
        self._not_before = self._monotonic() + self._pause_s
        self._pause_s = min(2 * self._pause_s, MOST_PAUSE_S)


class StopFile(_SwitchFile):
    """`switches/stop.<jobid>`: the batch shell announces that the time limit is near.

    The batch shell removes the file of an earlier start of its job (a requeue keeps the id). If it could not, the
    file's time shows that it is stale.
    """

    name = "stop"

    def __init__(self, directory: SwitchDirectory, *, now: Callable[[], float] = time.time) -> None:
        super().__init__(directory, now=now)
        self._file = layout.STOP_PREFIX + directory.place.job_id
        self._requested: tuple[int, int, int] | None = None

    def poll(self) -> Request | None:
        """Check for the file."""
        found = self._directory.read(self._file, accept_own=True)
        if found is None or found.identity == self._requested:
            return None
        self._requested = found.identity
        began = self._attempt_began()
        if began is not None and found.switch.when < began - STALE_S:
            self._recorder.warn(f"the stop file {found.path} is left from an earlier start of this job: ignored")
            return None
        self._note(found)
        return Request(self.name, found.switch.why.rstrip(". ") or describe(found.switch))

    def _attempt_began(self) -> float | None:
        """Return when this attempt started, in seconds since the epoch by the batch shell's clock; None if unknown."""
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
    """Return the switch as a sentence: `the kill switch was set by bob at 2026-11-20 10:57: loss is NaN`."""
    sentence = f"the {called(switch.kind)} was set by {switch.who}"
    with contextlib.suppress(OverflowError, ValueError, OSError):  # a file can have any time
        sentence += time.strftime(" at %Y-%m-%d %H:%M", time.localtime(switch.when))
    if switch.scope.value == "all":
        sentence += " for all jobs of the run"
    if switch.label:
        sentence += f" as {switch.label}"
    why = switch.why.rstrip(". ")
    return f"{sentence}: {why}" if why else sentence
