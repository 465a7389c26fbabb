"""State that a tick finds: the last heartbeat, taken slots, and runs that began and did not end.

Handles damaged files, a clock that was set, and new entries.
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
from resilience.quantities import format_duration

if TYPE_CHECKING:
    from resilience.cron.project import CronProject
    from resilience.cron.slots import Claim

EARLIEST = 1_700_000_000
"""November 2023. A clock before this was never set (a machine without a battery starts in 1970)."""

IN_FLIGHT_S = 5.0
"""A run whose tick was killed may still be about to write its mark in `running/` for this long."""

FORGOTTEN_S = 30 * 86400.0
"""Slots of removed entries are kept this long."""

AGAIN = "#"
"""Separates an entry's key from the attempt number in the claim for a rerun."""

_MACHINES = 32
"""For this many boots, the start of the scheduler is remembered."""

_T = TypeVar("_T")


class TickState:
    """State that one tick finds.

    Attributes:
        lines: warnings, one sentence each.
        scheduler_start: when the scheduler started on this boot of this machine, if an entry needs it (`@reboot`).
    """

    def __init__(self, cron: CronProject, now: float, period_s: float) -> None:
        self._cron, self._now, self._period_s = cron, now, period_s
        self._clock = cron.project.system.clock
        self.scheduler_start: float | None = None
        self._before: Heartbeat | None = None
        self.lines: tuple[str, ...] = ()

    def check(self) -> None:
        """Raise StateDirectoryError if nothing may run: foreign state directory, or a clock that was never set."""
        if self._now < EARLIEST:
            raise StateDirectoryError(
                f"the clock of this machine was never set: it shows {int(self._now)} seconds since 1970; "
                "no entries run",
                hint="date; timedatectl",
                transient=True,
            )
        self._cron.state.check()

    def heartbeat(self) -> Heartbeat | None:
        """Return the last heartbeat; None if there is no plausible one."""
        before = self._before = self._read_or_reset("heartbeat", self._cron.state.heartbeat, None)
        now = self._clock.now()  # read after the heartbeat: this process may have been suspended for a day
        if before is not None and before.time > now + AHEAD_S:
            self._warn(
                f"the last tick was {format_duration(before.time - now)} in the future: the clock was set back, or "
                f"that of {before.host or 'another host'} is ahead; using the current time"
            )
            return None
        return before

    def last(self, table: Table, before: Heartbeat | None) -> dict[str, int]:
        """Return the newest slot of each entry in the table, or since when the entry is known; remember new entries.

        A new entry is known since the previous tick: no scheduler could have run it earlier.
        """
        state = self._cron.state
        seen = self._read_or_reset("seen", state.seen, dict[str, Seen]())
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
        self.scheduler_start = self._scheduler_start(table, kept)
        is_born = self.scheduler_start == int(self._now)
        for key, schedule in new.items():
            # `seen` is damaged or lost: taken slots show that the entry is not new.
            is_lost = not seen and bool(taken.get(key))
            known = taken[key][-1] if is_lost else since - 1 if is_born and _is_reboot(schedule) else since
            kept.setdefault(key, Seen(known, schedule))
        if kept != seen:
            state.write_seen(kept)
        return {key: max([kept[key].since, *taken.get(key, [])[-1:]]) for key in new}

    def _scheduler_start(self, table: Table, seen: dict[str, Seen]) -> float | None:
        """Return when the scheduler started on this boot of this machine, if an entry needs it (`@reboot`)."""
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
        """Return since when ticks came on this boot of this machine before an `@reboot` entry was added; None: none."""
        before, host = self._before, self._cron.project.system.host.name
        booted = self._now - time.clock_gettime(time.CLOCK_BOOTTIME)
        if before is None or before.host != host or before.time < booted:
            return None
        return max(before.alive_since, booted)

    def _forget_ahead(self, taken: dict[str, list[int]], seen: dict[str, Seen]) -> None:
        """Delete slots of a wrong clock: they must not silence an entry until that day."""
        for key, newest in self._cron.state.slots.forget_ahead(self._clock.now).items():
            now = self._clock.now()
            taken[key] = [slot for slot in taken.get(key, []) if slot <= now + AHEAD_S]
            if not taken[key]:
                seen[key] = Seen(int(self._now), seen[key].schedule if key in seen else "")
            self._warn(
                f"{key.replace('+', '/')} ran {format_duration(newest - now)} in the future: the clock was set back, "
                "or that of another host is ahead; using the current time"
            )

    def _read_or_reset(self, name: str, read: Callable[[], _T], otherwise: _T) -> _T:
        try:
            return read()
        except Damaged as error:
            self._cron.state.quarantine(name)
            self._warn(f"{error.message}; moved to {name}.damaged and recreated")
            return otherwise

    def _warn(self, line: str) -> None:
        self.lines = (*self.lines, line)


def open_runs(
    cron: CronProject, claims: Sequence[Claim], table: Table
) -> tuple[list[tuple[Claim, RunRecord | None]], list[Claim]]:
    """Return runs and submits claimed by processes that are gone; runs are taken over, submits left as they are.

    A run comes with its CUT_SHORT record, not yet written, or None if another process recorded its end or it never got
    its slot.
    """
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
        summary="the scheduler was killed before it started the run",
    )


def cut_short(cron: CronProject, table: Table) -> Iterator[tuple[Entry, int, int]]:
    """Yield entries whose newest slot was cut short and may be rerun, with slot and attempt number: 2, 3 ..."""
    for entry in table.entries:
        if not entry.options.rerun or entry.kind is not Kind.RUN or (slot := _cut_short_slot(cron, entry)) is None:
            continue
        # A rerun is taken, then an open claim, then running, then in the history: checked in that order, it
        # is found, however long this process is suspended in between.
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
