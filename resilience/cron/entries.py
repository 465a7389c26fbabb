"""`resil cron list` and `history`: what runs when, and what became of it."""

from __future__ import annotations

import shlex
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from resilience.cron.records import EntryOptions, Outcome, RunRecord
from resilience.cron.runs import Marks, marks_of, runs_of
from resilience.cron.words import schedule_in_words, unusual_options
from resilience.errors import UsageError

if TYPE_CHECKING:
    from resilience.cron.project import CronProject
    from resilience.cron.records import Due, Entry, Ignored

COUNTED_S = 7 * 86400.0
"""Missed and skipped slots are counted back so far."""


@dataclass(frozen=True, slots=True, kw_only=True)
class EntryRow:
    """One entry as people want to see it. Made of plain data, so that a child process can hand it over.

    Attributes:
        name, place, schedule, zone, path: as of the entry.
        words: the schedule in words.
        kind: `run` or `submit`.
        command: of a line: what is run, without passwords; of a drop-in, empty.
        timeout_s: it is ended after so long; 0: never.
        options: those that are not as usual, by name.
        next: when it runs next, seconds since the epoch; None: never, or nobody knows.
        is_due: whether a slot waits to be run right now.
        last: what became of its newest slot.
        missed, skipped, failed: how many slots of the last seven days were.
    """

    name: str
    place: str
    schedule: str
    zone: str = ""
    path: str = ""
    words: str = ""
    kind: str = "run"
    command: str = ""
    timeout_s: float = 0.0
    options: Mapping[str, str]
    next: float | None = None
    is_due: bool = False
    last: RunRecord | None = None
    missed: int = 0
    skipped: int = 0
    failed: int = 0

    def to_json(self) -> dict[str, Any]:
        """As JSON's own types."""
        plain = {key: getattr(self, key) for key in self.__slots__}
        return plain | {
            "options": dict(self.options),
            "last": self.last.to_json() if self.last is not None else None,
        }

    @classmethod
    def from_json(cls, record: Mapping[str, Any]) -> EntryRow:
        """What `to_json` wrote."""
        last = record["last"]
        return cls(**{**record, "last": RunRecord.from_json(last) if last is not None else None})


@dataclass(frozen=True, slots=True)
class Listing:
    """All that the cron directory says, with what is remembered of it.

    Attributes:
        rows: the entries, as the table has them.
        ignored: what does not run.
        trouble: what could not be read of the histories.
        next: the next runs, (slot, name): at most five, of five different entries where there are so many.
    """

    rows: tuple[EntryRow, ...] = ()
    ignored: tuple[Ignored, ...] = ()
    trouble: tuple[str, ...] = ()
    next: tuple[tuple[float, str], ...] = ()


def list_entries(cron: CronProject) -> Listing:
    """Look at the table and at what is remembered. Raise ResilError if the table cannot be read."""
    from resilience.cron.table.due import due
    from resilience.cron.table.options import default_options
    from resilience.errors import ResilError

    table = cron.read_table()
    now = cron.project.system.clock.now()
    trouble: list[str] = []
    last: dict[str, int] = {}
    marks: Marks = {}
    try:
        last = cron.state.last_slots(now)
        marks = marks_of(cron)
    except ResilError as error:
        trouble.append(error.message)
    waiting = {one.entry.name for one in due(table, last, now, tick_s=cron.settings.tick_s, salt=cron.salt)}
    rows = []
    for entry in table.entries:
        runs: tuple[RunRecord, ...] = ()
        try:
            runs = runs_of(cron, entry.key, marks)
        except ResilError as error:
            trouble.append(error.message)
        usual = default_options(cron.settings, is_drop_in=bool(entry.path))
        rows.append(row_of(entry, runs, now, is_due=entry.name in waiting, usual=usual))
    return Listing(tuple(rows), table.ignored, tuple(dict.fromkeys(trouble)), coming(table.entries, now))


def due_now(cron: CronProject) -> tuple[Due, ...]:
    """What a tick would run now, without taking anything. Raise ResilError if the table cannot be read."""
    from resilience.cron.table.due import due

    now = cron.project.system.clock.now()
    return due(cron.read_table(), cron.state.last_slots(now), now, tick_s=cron.settings.tick_s, salt=cron.salt)


def row_of(
    entry: Entry,
    runs: Sequence[RunRecord],
    now: float,
    *,
    is_due: bool = False,
    usual: EntryOptions = EntryOptions(),  # noqa: B008 - frozen
) -> EntryRow:
    """Given an entry and its history, oldest first, return its row; `usual`: its options if it said nothing. Pure."""
    from resilience.system.redaction import redact

    counted: dict[Outcome, int] = {}
    failed = 0
    for run in runs:
        if run.time >= now - COUNTED_S:
            counted[run.outcome] = counted.get(run.outcome, 0) + max(1, run.count)
            failed += run.outcome.is_failure
    return EntryRow(
        name=entry.name,
        place=entry.place,
        schedule=entry.schedule,
        zone=entry.zone,
        path=entry.path,
        words=schedule_in_words(entry.schedule, entry.zone),
        kind=entry.kind.value,
        command="" if entry.path else redact(shlex.join(entry.argv)),
        timeout_s=entry.options.timeout_s,
        options=unusual_options(entry.options, usual),
        next=next_run(entry, now),
        is_due=is_due,
        last=runs[-1] if runs else None,
        missed=counted.get(Outcome.MISSED, 0),
        skipped=counted.get(Outcome.SKIPPED, 0),
        failed=failed,
    )


def next_run(entry: Entry, now: float) -> float | None:
    """When an entry's next slot is; None: never again, or with the next start of the machine. Pure."""
    return next(iter(next_runs(entry, now, 1)), None)


def next_runs(entry: Entry, now: float, count: int) -> tuple[float, ...]:
    """The next slots of an entry. Pure."""
    from resilience.cron.table.expression import parse_schedule

    schedule = parse_schedule(entry.schedule, entry.zone)
    found: list[float] = []
    while len(found) < count and (slot := schedule.next_after(found[-1] if found else now)) is not None:
        found.append(slot)
    return tuple(found)


def coming(entries: Sequence[Entry], now: float, count: int = 5) -> tuple[tuple[float, str], ...]:
    """The next runs of several entries: each entry's next, and where these are few, those after them. Pure."""
    each = 1 if len(entries) >= count else count
    return tuple(sorted((slot, entry.name) for entry in entries for slot in next_runs(entry, now, each))[:count])


# ---- names and histories --------------------------------------------------------------------------------------


def known_names(cron: CronProject) -> tuple[str, ...]:
    """The names of all entries: of the table, and of those that ran once and are gone."""
    names = [entry.name for entry in cron.read_table().entries]
    remembered = cron.state.keys()
    return tuple(dict.fromkeys([*names, *map(name_of_key, remembered)]))


def name_of_key(key: str) -> str:
    """Given the key of an entry, return its name. Pure."""
    return key.replace("+", "/", 1)


def find_name(names: Iterable[str], wanted: str) -> str:
    """Given what somebody typed, return the name that is meant: all of it, or its last part where only one has that.

    Raise UsageError, with the nearest name, if there is none, or there are several. Pure.
    """
    known = sorted(set(names))
    typed = wanted.removeprefix("cron/")
    for candidate in (wanted, typed):
        if candidate in known:
            return candidate
    ends = [name for name in known if name.rpartition("/")[2] == typed]
    if not ends:
        ends = [name for name in known if name.rpartition("/")[2].rpartition(".")[0] == typed]
    if len(ends) == 1:
        return ends[0]
    if ends:
        raise UsageError(f"{wanted!r} could be one of: {', '.join(ends)}", hint="give the whole name")
    from difflib import get_close_matches

    shorts = {name.rpartition("/")[2]: name for name in known}
    near = get_close_matches(typed, [*known, *shorts], n=1)
    hint = f"did you mean {shorts.get(near[0], near[0])}?" if near else "which there are: resil cron list"
    raise UsageError(f"there is no entry {wanted!r}", hint=hint)


def histories(cron: CronProject, wanted: str = "", last: int = 20) -> tuple[RunRecord, ...]:
    """The newest `last` slots of an entry, oldest first; without a name, of all entries together.

    Raise UsageError if there is no such entry.
    """
    if wanted:
        name = find_name(known_names(cron), wanted)
        return _named(name, runs_of(cron, name.replace("/", "+")))[-last:]
    runs: list[RunRecord] = []
    remembered, marks = cron.state.keys(), marks_of(cron)
    for key in remembered:
        runs += _named(name_of_key(key), runs_of(cron, key, marks)[-last:])
    return tuple(sorted(runs, key=lambda run: (run.slot, run.name)))[-last:]


def _named(name: str, runs: Sequence[RunRecord]) -> tuple[RunRecord, ...]:
    """The records, under the name by which they are kept: a damaged one may say another."""
    return tuple(run if run.name == name else replace(run, name=name) for run in runs)


def lateness_s(run: RunRecord) -> float | None:
    """How long after its slot it began; None: it did not. Pure."""
    return None if run.started is None else max(0.0, run.started - run.slot)


def took_s(run: RunRecord, now: float | None = None) -> float | None:
    """How long it ran, or has been running; None: nobody knows, or it is a job of its own. Pure."""
    if run.started is None or run.outcome in (Outcome.SUBMITTED, Outcome.CUT_SHORT):
        return None
    if run.outcome is Outcome.RUNNING:
        return None if now is None else max(0.0, now - run.started)
    return max(0.0, run.time - run.started)
