"""`resil cron list` and `history`: entries with their next runs and their recent results."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from resilience.cron.records import EntryOptions, Outcome, RunRecord
from resilience.cron.words import schedule_in_words, unusual_options
from resilience.errors import UsageError
from resilience.job import Liveness
from resilience.messages import quoted

if TYPE_CHECKING:
    from resilience.cron.book import Run
    from resilience.cron.project import CronProject
    from resilience.cron.records import Due, Entry, Ignored, Table


def runs_of(cron: CronProject, key: str, active: Sequence[Run] | None = None) -> tuple[RunRecord, ...]:
    """Return the slots of an entry, oldest first, including active runs.

    `active`: the records of all active runs, if they were read. Raise StateDirectoryError if they cannot be read.
    """
    runs = {run.slot: run for run in cron.state.history(key)}
    for run in cron.state.book.active() if active is None else active:
        if run.entry_key == key and run.state == "running":
            runs[run.slot] = _under_way(cron, run)
    return tuple(runs[slot] for slot in sorted(runs))


def _under_way(cron: CronProject, run: Run) -> RunRecord:
    """Return the record of an active run: RUNNING, or CUT_SHORT if no tick has noticed yet."""
    from resilience.cron.table.output import number_of, outputs

    book, now = cron.state.book, cron.project.system.clock.now()
    about = book.about(run)
    if about.get("end"):
        return RunRecord.from_json(about["end"])
    names = [name for name in outputs(cron.state, run.entry_key) if number_of(name) == f"{run.slot}"]
    record = RunRecord(
        name=book.name_of(run), slot=run.slot, outcome=Outcome.RUNNING, time=now, started=run.time,
        host=str(about.get("host", "")), pid=run.pid, output=names[-1] if names else "",
    )  # fmt: skip
    liveness, why = book.liveness(run, now)
    return replace(record, outcome=Outcome.CUT_SHORT, summary=why) if liveness is Liveness.GONE else record


COUNTED_S = 7 * 86400.0
"""Missed, skipped and failed slots are counted over this time."""


@dataclass(frozen=True, slots=True, kw_only=True)
class EntryRow:
    """One entry for display.

    Attributes:
        options: options that differ from the defaults, by name.
        next: the next run, seconds since the epoch; None: none, or unknown.
        is_due: whether a slot is due right now.
        last: result of the newest slot.
        missed, skipped, failed: number of such slots in the last seven days.
    """

    entry: Entry
    options: Mapping[str, str]
    next: float | None = None
    is_due: bool = False
    last: RunRecord | None = None
    missed: int = 0
    skipped: int = 0
    failed: int = 0

    @property
    def words(self) -> str:
        """The schedule in words."""
        return schedule_in_words(self.entry.schedule, self.entry.zone)

    @property
    def command(self) -> str:
        """The command of a crontab line, without passwords; empty for a drop-in."""
        from resilience.cron.table.crontab_file import command_of
        from resilience.system.redaction import redact

        return "" if self.entry.path else redact(command_of(self.entry.argv))

    def to_json(self) -> dict[str, Any]:
        """Return the row as JSON values."""
        keys = ("name", "place", "schedule", "zone", "path", "kind")
        own = ("words", "command", "options", "next", "is_due", "missed", "skipped", "failed")
        return {
            **{key: getattr(self.entry, key) for key in keys},
            **{key: getattr(self, key) for key in own},
            "timeout_s": self.entry.options.timeout_s,
            "last": self.last.to_json() if self.last is not None else None,
        }


@dataclass(frozen=True, slots=True)
class Listing:
    """The cron directory, with results.

    Attributes:
        rows: the entries, in table order.
        ignored: what the scheduler ignores.
        trouble: errors of reading the histories.
        next: at most five next runs, (slot, name), of different entries where there are enough.
    """

    rows: tuple[EntryRow, ...] = ()
    ignored: tuple[Ignored, ...] = ()
    trouble: tuple[str, ...] = ()
    next: tuple[tuple[float, str], ...] = ()

    @property
    def faults(self) -> int:
        """Number of ignored things that were probably meant to run."""
        return sum(one.is_fault for one in self.ignored)


def list_entries(cron: CronProject) -> Listing:
    """Read the table and the histories. Raise ResilError if the table cannot be read."""
    from resilience.cron.table.due import due
    from resilience.cron.table.options import usual_options
    from resilience.errors import ResilError

    table = cron.read_table()
    now = cron.project.system.clock.now()
    trouble: list[str] = []
    last: dict[str, int] = {}
    active: Sequence[Run] = ()
    try:
        last = cron.state.last_slots(now)
        active = cron.state.book.active()
    except ResilError as error:
        trouble.append(error.message)
    waiting = {one.entry.name for one in due(table, last, now, tick_s=cron.settings.tick_s, salt=cron.salt)}
    rows = []
    for entry in table.entries:
        runs: tuple[RunRecord, ...] = ()
        try:
            runs = runs_of(cron, entry.key, active)
        except ResilError as error:
            trouble.append(error.message)
        usual = usual_options(entry, cron.settings)
        rows.append(row_of(entry, runs, now, is_due=entry.name in waiting, usual=usual))
    return Listing(tuple(rows), table.ignored, tuple(dict.fromkeys(trouble)), coming(table.entries, now))


def due_now(cron: CronProject) -> tuple[Due, ...]:
    """Return the slots that a tick would run now, without claiming them.

    Raise ResilError if the table cannot be read.
    """
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
    """Return the row of an entry; `runs` is its history, oldest first, `usual` its default options. Pure."""
    counted: dict[Outcome, int] = {}
    failed = 0
    for run in runs:
        if run.time >= now - COUNTED_S:
            counted[run.outcome] = counted.get(run.outcome, 0) + max(1, run.count)
            failed += run.outcome.is_failure
    return EntryRow(
        entry=entry,
        options=unusual_options(entry.options, usual),
        next=next(iter(next_runs(entry, now, 1)), None),
        is_due=is_due,
        last=runs[-1] if runs else None,
        missed=counted.get(Outcome.MISSED, 0),
        skipped=counted.get(Outcome.SKIPPED, 0),
        failed=failed,
    )


def next_runs(entry: Entry, now: float, count: int) -> tuple[float, ...]:
    """Return the next slots of an entry. Pure."""
    from resilience.cron.table.expression import parse_schedule

    schedule = parse_schedule(entry.schedule, entry.zone)
    found: list[float] = []
    while len(found) < count and (slot := schedule.next_after(found[-1] if found else now)) is not None:
        found.append(slot)
    return tuple(found)


def coming(entries: Sequence[Entry], now: float, count: int = 5) -> tuple[tuple[float, str], ...]:
    """Return the next runs of several entries: one per entry, or more where there are few entries. Pure."""
    each = 1 if len(entries) >= count else count
    return tuple(sorted((slot, entry.name) for entry in entries for slot in next_runs(entry, now, each))[:count])


# ---- names and histories --------------------------------------------------------------------------------------


def known_names(cron: CronProject) -> tuple[str, ...]:
    """Return the names of all entries: those in the table, and removed ones with a history."""
    names = [entry.name for entry in cron.read_table().entries]
    remembered = cron.state.keys()
    return tuple(dict.fromkeys([*names, *map(name_of_key, remembered)]))


def name_of_key(key: str) -> str:
    """Return the name of the entry with this key. Pure."""
    return key.replace("+", "/", 1)


def find_name(names: Iterable[str], wanted: str) -> str:
    """Return the entry name that the user means: the whole name, or its unique last part.

    Raise UsageError, with the nearest name, if no entry or several match. Pure.
    """
    known, typed = sorted(set(names)), wanted.removeprefix("cron/")
    shorts = {name: name.rpartition("/")[2] for name in known}
    for found in (
        [name for name in known if name in (wanted, typed)],
        [name for name in known if shorts[name] == typed],
        [name for name in known if shorts[name].rpartition(".")[0] == typed],
    ):
        if len(found) > 1:
            raise UsageError(f"{wanted!r} is ambiguous: {', '.join(found)}", hint="give the full name")
        if found:
            return found[0]
    from difflib import get_close_matches

    meant = {short: name for name, short in shorts.items()}
    near = get_close_matches(typed, [*known, *meant], n=1)
    hint = f"did you mean {meant.get(near[0], near[0])}?" if near else "list the entries: resil cron list"
    raise UsageError(f"unknown entry {wanted!r}", hint=hint)


def find_entry(table: Table, wanted: str) -> Entry:
    """Return the entry that the user means, as `find_name` does. Raise UsageError if it is unknown or ignored. Pure."""
    entries = {entry.name: entry for entry in table.entries}
    try:
        return entries[find_name(entries, wanted)]
    except UsageError:
        ignored = [one for one in table.ignored if one.place.endswith(f"/{wanted.removeprefix('cron/')}")]
        if len(ignored) == 1:
            place = ignored[0].place
            remove = "" if ":" in place.rpartition("/")[2] else f"to remove it: rm {quoted(place)}"  # a line is no file
            hint = "; ".join(filter(None, (ignored[0].hint, remove)))
            raise UsageError(f"{place} is not an entry: {ignored[0].reason}", hint=hint) from None
        raise


def histories(cron: CronProject, wanted: str = "", last: int = 20) -> tuple[RunRecord, ...]:
    """Return the newest `last` slots of an entry, oldest first; without a name, of all entries together.

    Raise UsageError for an unknown entry.
    """
    if wanted:
        name = find_name(known_names(cron), wanted)
        return _named(name, runs_of(cron, name.replace("/", "+")))[-last:]
    runs: list[RunRecord] = []
    known, active = cron.state.keys(), cron.state.book.active()
    for key in known:
        runs += _named(name_of_key(key), runs_of(cron, key, active)[-last:])
    return tuple(sorted(runs, key=lambda run: (run.slot, run.name)))[-last:]


def _named(name: str, runs: Sequence[RunRecord]) -> tuple[RunRecord, ...]:
    """Return the records with the name of their file: a damaged record may contain another name."""
    return tuple(run if run.name == name else replace(run, name=name) for run in runs)


def lateness_s(run: RunRecord) -> float | None:
    """Return the delay between slot and start; None if it did not start. Pure."""
    return None if run.started is None else max(0.0, run.started - run.slot)


def took_s(run: RunRecord, now: float | None = None) -> float | None:
    """Return the duration of a run, so far if it is running; None if unknown or a job of its own. Pure."""
    if run.started is None or run.outcome in (Outcome.SUBMITTED, Outcome.CUT_SHORT):
        return None
    if run.outcome is Outcome.RUNNING:
        return None if now is None else max(0.0, now - run.started)
    return max(0.0, run.time - run.started)
