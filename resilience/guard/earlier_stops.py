"""Stops without a save because the training's state was ruined (a loss that is NaN), kept for the next attempts.

`learned/stops.json` of the run directory. Rank 0 adds a stop when it is decided (a watchdog adds one for an attempt
whose guard could not, because its checkpoint was unreadable: attempts/acting.py), marks it as passed once a checkpoint
from its step on is durable, and sends the list to all ranks with the decision before the first step, so that every rank
gets the same answers from `guard.resumed_after` and `guard.skip_steps`.
"""

from __future__ import annotations

import json
import os
import time

from resilience import layout
from resilience.base.files import read_regular, replace_file
from resilience.guard.decision import EXIT_ERROR
from resilience.guard.heartbeat.run_directory import file_mode, subfolder

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence
    from typing import Any

    from resilience.guard.decision import Decision, Request
    from resilience.guard.rank_info import RankInfo

VERSION = 1
MOST_STOPS = 10
"""The newest stops are kept, one for each step."""
MOST_SKIPPED = 1000
"""At most this many steps are offered for each stop: the loss may have been passed in few steps only."""
LONGEST_WHY = 300
HARDWARE = "sdc"
"""The trigger of stops that are not the fault of any batch."""
MOST_STEPS = 1 << 62


class EarlierStop:
    """An earlier attempt was stopped because its state was ruined, and no later one has got past that step.

    Attributes:
        why: the reason, as a sentence without a full stop: `the loss is NaN, at step 1200`.
        step: the step at which a rank saw it first.
        times: trainings in a row that were stopped at this step.
        saved_step: the newest checkpoint when it happened: the last durable save, else the step the training had
            resumed from; 0 if there was none.
        attempt: the number of that attempt, 0 without a template.
    """

    __slots__ = ("attempt", "is_passed", "saved_step", "since", "step", "time", "times", "why", "world")

    def __init__(self, fields: Mapping[str, Any]) -> None:
        """Raise ValueError unless the fields are those of `as_dict`: they come from a file or from the network."""
        try:
            self.why = str(fields["why"])[:LONGEST_WHY]
            self.time = float(fields["time"])
            self.is_passed = bool(fields["is_passed"])
            for name in ("attempt", "step", "since", "saved_step", "times", "world"):
                number = fields[name]
                if type(number) is not int or not 0 <= number < MOST_STEPS:
                    raise ValueError(f"{name} is no step")
                setattr(self, name, number)
        except (KeyError, TypeError, OverflowError) as error:
            raise ValueError(f"not a stop: {error!r}"[:200]) from None

    attempt: int
    step: int
    since: int
    saved_step: int
    times: int
    world: int

    def __repr__(self) -> str:
        return f"EarlierStop(step={self.step}, times={self.times}, saved_step={self.saved_step}, why={self.why!r})"

    def as_dict(self) -> dict[str, Any]:
        """Return the stop in JSON types."""
        return {name: getattr(self, name) for name in self.__slots__}


def newest_open(stops: Iterable[EarlierStop]) -> EarlierStop | None:
    """Return the newest stop that no training has passed. Pure."""
    return next((stop for stop in reversed(list(stops)) if not stop.is_passed), None)


def suspects(stops: Iterable[EarlierStop], world: int) -> frozenset[int]:
    """Return the steps whose batches may have ruined the state: from the last step with a finite value to the first
    without one. With another number of ranks, these steps have other batches: they are left out. Pure."""
    found: set[int] = set()
    for stop in stops:
        if stop.world == world:
            found.update(range(max(stop.since, stop.step + 1 - MOST_SKIPPED, 1), stop.step + 1))
    return frozenset(found)


def read_stops(text: bytes | str) -> list[EarlierStop]:
    """Return the stops in the text of the file, oldest first. Raise ValueError if damaged, or of another version."""
    try:
        fields = json.loads(text)
        if fields["version"] != VERSION:
            raise ValueError(f"written by another version of resil: {fields['version']!r}"[:100])
        return [EarlierStop(one) for one in fields["stops"]][-MOST_STOPS:]
    except (KeyError, TypeError, RecursionError) as error:
        raise ValueError(f"cannot read the file: {error!r}"[:200]) from None


class EarlierStops:
    """Rank 0's record of these stops. `read` and `write` touch the run directory and may hang with it; the rest may be
    called from any thread."""

    def __init__(self, place: RankInfo) -> None:
        self._place = place
        self._open: frozenset[int] = frozenset()  # steps of earlier stops that no training has passed
        self._checkpoint = 0
        self._passed = -1  # a durable save from this step on is to be recorded
        self._new: dict[str, Any] | None = None
        self._is_written = False

    def read(self) -> list[EarlierStop]:
        """Return the stops, oldest first. Raise OSError or ValueError if they cannot be read."""
        stops = self._load()
        self._open = frozenset(stop.step for stop in stops if not stop.is_passed)
        return stops

    def resumed(self, step: int) -> None:
        """Note the checkpoint that the training has loaded."""
        self._checkpoint = step
        self._pass(step)

    def saved(self, step: int) -> None:
        """Note a durable save. One after the decision to stop proves nothing: its loss may be NaN."""
        if self._new is None:
            self._checkpoint = step
            self._pass(step)

    def stopped(self, requests: Iterable[Request], decision: Decision) -> dict[str, Any] | None:
        """Return what is recorded of a decision to stop, or None if the state was not ruined."""
        ruined = [one for one in requests if one.stop and one.exit_code == EXIT_ERROR and (one.discard or one.step)]
        if not ruined or self._new is not None:
            return None
        first = min(ruined, key=lambda one: (one.step or decision.step, one.rank))
        place, step = self._place, first.step or decision.step
        known = 0 < first.since <= step  # not if the training went back to before that step
        self._new = {
            "why": first.why[:LONGEST_WHY], "step": step,
            "since": first.since if known else min(self._checkpoint + 1, step),
            "saved_step": self._checkpoint, "attempt": place.attempt, "times": 1,
            "world": 0 if first.trigger == HARDWARE else place.world,  # no batch is suspect
            "time": round(time.time(), 3), "is_passed": False,
        }  # fmt: skip
        return self._new

    def write(self) -> None:
        """Write what has changed. Raise OSError; the next call tries again."""
        new, passed = None if self._is_written else self._new, self._passed
        if not self._place.run_dir or (new is None and passed < 0):
            return
        _change(self._place.run_dir, new, passed)
        self._is_written |= new is not None
        if self._passed == passed:
            self._passed = -1

    def _load(self) -> list[EarlierStop]:
        return _load(self._place.run_dir) if self._place.run_dir else []

    def _pass(self, step: int) -> None:
        if any(one <= step for one in self._open):
            self._open = frozenset(one for one in self._open if one > step)
            self._passed = max(step, self._passed)


def add_unreadable(run_dir: str, attempt: int, step: int, why: str) -> bool:
    """Tell the next training that an attempt could not use the checkpoint of a step: `step` and `saved_step` of this
    stop are equal. Return False if that attempt has recorded a stop. Raise OSError or ValueError."""
    if any(stop.attempt == attempt for stop in _load(run_dir)):
        return False
    fields = {"step": step, "since": step + 1, "saved_step": step, "attempt": attempt, "times": 1, "world": 0}
    _change(run_dir, {**fields, "why": why, "time": round(time.time(), 3), "is_passed": False})
    return True


def _load(run_dir: str) -> list[EarlierStop]:
    found = read_regular(os.path.join(run_dir, layout.LEARNED, layout.STOPS))
    return [] if found is None else read_stops(found[0])


def _change(run_dir: str, new: Mapping[str, Any] | None, passed: int = -1) -> None:
    """Add a stop, and mark those up to the step `passed`. Raise OSError."""
    try:
        stops = _load(run_dir)
    except ValueError:  # damaged: written anew
        stops = []
    for stop in stops:
        stop.is_passed |= stop.step <= passed
    if new is not None:
        stops = _with(stops, EarlierStop(new))
    text = json.dumps({"version": VERSION, "stops": [stop.as_dict() for stop in stops]}, separators=(",", ":"))
    path = os.path.join(subfolder(run_dir, layout.LEARNED), layout.STOPS)
    replace_file(path, text + "\n", mode=file_mode(run_dir), durable=True)


def _with(stops: Sequence[EarlierStop], new: EarlierStop) -> list[EarlierStop]:
    """Return the stops with a new one, which counts the earlier ones at its step that no training has passed."""
    same = [stop for stop in stops if stop.step == new.step]
    new.times += sum(stop.times for stop in same if not stop.is_passed)
    return [*(stop for stop in stops if stop.step != new.step), new][-MOST_STOPS:]
