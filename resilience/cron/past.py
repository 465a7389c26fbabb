"""What a tick of cron finds when it comes: the last sign of life, which slots were taken, what was begun and not ended.

And what can be wrong with it: damaged files, a clock that was set, entries that nobody has seen before.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, TypeVar

from resilience.cron.records import Entry, Heartbeat, Kind, Outcome, RunRecord, Table
from resilience.cron.slots import AHEAD_S, machine
from resilience.cron.state_directory import Damaged, Seen
from resilience.errors import StateDirectoryError

if TYPE_CHECKING:
    from resilience.cron.project import CronProject
    from resilience.cron.slots import Claim

EARLIEST = 1_700_000_000
"""November 2023. A clock that says less was never set (a machine without a battery begins in 1970)."""

IN_FLIGHT_S = 5.0
"""A run whose tick was killed may still be on its way to its mark in `running/` for so long."""

FORGOTTEN_S = 30 * 86400.0
"""The slots of an entry that is not there any more are kept for so long."""

AGAIN = "#"
"""Between an entry's key and the number of the run where a slot is taken once more, for a run that was cut short."""

_MACHINES = 32
"""Of so many boots it is remembered when the scheduler first lived on them."""

_T = TypeVar("_T")


class Past:
    """What one tick finds.

    Attributes:
        lines: what was found wrong, one sentence each, for people.
        life_began: when the scheduler's life on this boot of this machine began, where an entry wants to know.
    """

    def __init__(self, cron: CronProject, now: float, period_s: float) -> None:
        self._cron, self._now, self._period_s = cron, now, period_s
        self._clock = cron.project.system.clock
        self.life_began: float | None = None
        self._before: Heartbeat | None = None
        self.lines: tuple[str, ...] = ()

    def check(self) -> None:
        """Raise StateDirectoryError if nothing may run: somebody else's directory, or a clock that was never set."""
        if self._now < EARLIEST:
            raise StateDirectoryError(
                f"the clock of this machine says {int(self._now)} seconds since 1970: it was never set, and nothing is "
                "run by it",
                hint="date; timedatectl",
                transient=True,
            )
        self._cron.state.check()

    def heartbeat(self) -> Heartbeat | None:
        """The last sign of life; None: there is none that makes sense."""
        before = self._before = self._sound("heartbeat", self._cron.state.heartbeat, None)
        now = self._clock.now()  # asked after the look: we may have been stopped for a day, and others have gone on
        if before is not None and before.time > now + AHEAD_S:
            self._say(
                f"the last tick was {_ago(before.time - now)} in the future: the clock was set back, or that of "
                f"{before.host or 'another host'} is ahead; the time of now counts"
            )
            return None
        return before

    def last(self, table: Table, before: Heartbeat | None) -> dict[str, int]:
        """Of each entry of the table: its newest slot, or since when it is known. Remembers those that are new.

        A new entry's past begins with the tick before: nobody could have run it earlier.
        """
        state = self._cron.state
        seen = self._sound("seen", state.seen, dict[str, Seen]())
        taken = state.slots.taken()
        since = int(self._now)
        if before is not None:
            since = int(max(min(before.time, self._now), self._now - 2 * self._period_s))
        new = {entry.key: _schedule(entry) for entry in table.entries}
        kept = {key: value for key, value in seen.items() if key[:1] == "@" or new.get(key) == value.schedule}
        ahead = self._clock.now() + AHEAD_S
        if any(slots[-1] > ahead for slots in taken.values()):
            self._forget_ahead(taken, kept)
        for key, slots in taken.items():
            if key not in new and slots and slots[-1] < self._now - FORGOTTEN_S:
                state.slots.forget(key)
        self.life_began = self._life(table, kept)
        is_born = self.life_began == int(self._now)
        for key, schedule in new.items():
            # Damaged or lost memory: what was taken tells as well that it is not new.
            is_lost = not seen and bool(taken.get(key))
            known = taken[key][-1] if is_lost else since - 1 if is_born and _is_reboot(schedule) else since
            kept.setdefault(key, Seen(known, schedule))
        if kept != seen:
            state.note_seen(kept)
        return {key: max([kept[key].since, *taken.get(key, [])[-1:]]) for key in new}

    def _life(self, table: Table, seen: dict[str, Seen]) -> float | None:
        """When the scheduler's life on this boot of this machine began, where an entry wants to know: `@reboot`."""
        if not any(_is_reboot(_schedule(entry)) for entry in table.entries):
            return None
        key = f"@{machine()}"
        if key not in seen:
            boots = sorted((k for k in seen if k[:1] == "@"), key=lambda k: seen[k].since)
            for old in boots[: -_MACHINES + 1]:
                del seen[old]
            seen[key] = Seen(int(self._alive_since_boot() or self._now))
        return float(seen[key].since)

    def _alive_since_boot(self) -> float | None:
        """Since when there were ticks on this boot of this machine, before anybody asked; None: there were none."""
        before, host = self._before, self._cron.project.system.host.name
        booted = self._now - time.clock_gettime(time.CLOCK_BOOTTIME)
        if before is None or before.host != host or before.time < booted:
            return None
        return max(before.alive_since, booted)

    def _forget_ahead(self, taken: dict[str, list[int]], seen: dict[str, Seen]) -> None:
        """Slots of a clock that was wrong must not silence an entry until that day has come: its time begins anew."""
        for key, newest in self._cron.state.slots.forget_ahead(self._clock.now).items():
            now = self._clock.now()
            taken[key] = [slot for slot in taken.get(key, []) if slot <= now + AHEAD_S]
            if not taken[key]:
                seen[key] = Seen(int(self._now), seen[key].schedule if key in seen else "")
            self._say(
                f"{key.replace('+', '/')} ran {_ago(newest - now)} in the future: the clock was set back, or "
                "that of another host is ahead; the time of now counts"
            )

    def _sound(self, name: str, read: Callable[[], _T], otherwise: _T) -> _T:
        try:
            return read()
        except Damaged as error:
            self._cron.state.set_aside(name)
            self._say(f"{error.message}; it is put aside as {name}.damaged, and begun afresh")
            return otherwise

    def _say(self, line: str) -> None:
        self.lines = (*self.lines, line)


def open_runs(
    cron: CronProject, claims: Sequence[Claim], table: Table
) -> tuple[list[tuple[Claim, RunRecord | None]], list[Claim]]:
    """Of what was begun to be taken by processes that are gone: the runs, taken over, and the submits, left as they
    are. A run comes with its CUT_SHORT, which nobody has written yet, or None: others' books have it, or it never got
    its slot."""
    entries = {entry.key: entry for entry in table.entries}
    now, slots = cron.project.system.clock.now(), cron.state.slots
    runs: list[tuple[Claim, RunRecord | None]] = []
    submits = []
    for claim in claims:
        entry = entries.get(claim.key.partition(AGAIN)[0])
        is_submit = entry.kind is Kind.SUBMIT if entry is not None else claim.key.endswith((".slurm", ".sbatch"))
        if is_submit:
            submits.append(claim)
        elif abs(now - claim.time) >= IN_FLIGHT_S and (mine := slots.seize(claim, now)) is not None:
            runs.append((mine, _cut_short(cron, mine, entry, now)))
    return runs, submits


def _cut_short(cron: CronProject, claim: Claim, entry: Entry | None, now: float) -> RunRecord | None:
    key = claim.key.partition(AGAIN)[0]
    if cron.state.slots.is_won(claim) is False or f"{key}@{claim.slot}" in _marks(cron):
        return None
    if any(r.slot == claim.slot and r.outcome is not Outcome.RUNNING for r in cron.state.history(key)):
        return None
    return RunRecord(
        name=entry.name if entry is not None else key.replace("+", "/"),
        slot=claim.slot,
        outcome=Outcome.CUT_SHORT,
        time=now,
        host=cron.project.system.host.name,
        summary="the scheduler was killed when it was about to run this",
    )


def cut_short(cron: CronProject, table: Table) -> Iterator[tuple[Entry, int, int]]:
    """The entries whose newest slot was cut short and may be run again, with the number of that run: 2, 3 ..."""
    for entry in table.entries:
        if not entry.options.rerun or entry.kind is not Kind.RUN or (slot := _cut_short_slot(cron, entry)) is None:
            continue
        # A run that is repeated is taken, then in hand, then under way, then in the history: asked in that order, it
        # is seen somewhere, however long we are stopped in between.
        again, taken = f"{entry.key}{AGAIN}", cron.state.slots.taken()
        in_hand = any(one.key.startswith(again) and one.slot == slot for one in cron.state.slots.open_claims())
        if in_hand or f"{entry.key}@{slot}" in _marks(cron) or _cut_short_slot(cron, entry) != slot:
            continue
        yield entry, slot, len([key for key in taken if key.startswith(again) and slot in taken[key]]) + 2


def _cut_short_slot(cron: CronProject, entry: Entry) -> int | None:
    history = cron.state.history(entry.key)
    return history[-1].slot if history and history[-1].outcome is Outcome.CUT_SHORT else None


def _marks(cron: CronProject) -> Sequence[str]:
    try:
        return os.listdir(cron.state.path / "running")  # noqa: PTH208 - names only
    except OSError:
        return ()


def _schedule(entry: Entry) -> str:
    return f"{entry.zone} {entry.schedule}".strip()


def _is_reboot(schedule: str) -> bool:
    return schedule.lower().endswith("@reboot")


def _ago(seconds: float) -> str:
    from resilience.quantities import format_duration

    return format_duration(seconds)
