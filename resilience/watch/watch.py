"""`resil watch`: probe all targets of all watchdogs in parallel, judge the readings, and report the findings.

A tick takes as long as its longest deadline, not their sum. A failure, timeout or bug in one watchdog or its remembered
readings becomes a finding of that watchdog and does not affect the others.

Probe and judge both run in a child process. Judging is pure but can still fail: a regular expression that backtracks
without end, or a bug, must not affect the other watchdogs.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any

from resilience.errors import ResilError, SettingsError, UsageError
from resilience.finding import Figure, Finding, Report, Verdict
from resilience.records import from_record, to_record
from resilience.runs.context import Context
from resilience.runs.project import Project
from resilience.system.child import Answer
from resilience.system.stuck import ChildProbe, StuckMemory, probe_in_child
from resilience.watch.reading import Memory, Target, Timed, remember
from resilience.watch.reading_store import ReadingStore, Remembered, Series
from resilience.watch.watchdogs import Watchdog, context_of, is_requested, load_watchdog

if TYPE_CHECKING:
    from resilience.alerts.notify import Notes

STUCK = "stuck"
"""The fault of a probe that timed out. The same in every tick until the probe succeeds, so that it is one incident."""
SETTINGS_FAULT = "settings"
"""The fault of a watchdog whose settings or command line are invalid."""
LONGEST_S = 366 * 86400.0
ALERTING_S = 60.0
"""The deadline for routing and sending notifications. Messages not sent by then stay in the outbox."""

OnReadings = Callable[[Watchdog, Mapping[str, Timed[Any]]], None]
"""Callback for the newest readings of a watchdog, by subject."""


class _Tick:
    """The state of one watchdog during one tick."""

    def __init__(self, watchdog: Watchdog) -> None:
        self.watchdog = watchdog
        self.targets: tuple[Target, ...] = ()
        self.findings: list[Finding] = []
        self.answers: dict[int, list[Finding]] = {}  # by target index: findings keep the order of the targets
        self.new: dict[str, tuple[Timed[Any], ...]] = {}
        self.remembered = Remembered({})
        self.took_s = 0.0

    @property
    def remembers(self) -> bool:
        memory = self.watchdog.check.memory
        return isinstance(memory, Memory) and memory.count > 0


def watch(project: Project, watchdogs: Sequence[Watchdog], on_readings: OnReadings | None = None) -> Iterator[Report]:
    """Probe all targets of the watchdogs in parallel, and yield one report per watchdog, in the given order.

    `on_readings` receives the new readings; the daemon schedules the deadlines in them. Raise UsageError if the
    project's own settings are invalid; every other error is a finding.
    """
    system = project.system
    context = context_of(project)
    stuck = StuckMemory.of(system)
    shared = project.loaded.settings.watch
    for key in ("deadline_s", "state_deadline_s"):
        if not 0 < getattr(shared, key) <= LONGEST_S:
            why = "must be more than 0" if getattr(shared, key) <= 0 else "is longer than a year"
            raise SettingsError(f"{key} = {getattr(shared, key):g} in [watch] {why}", hint=f'{key} = "10s"')
    store = ReadingStore(context, stuck, shared.state_deadline_s)
    began, started = system.clock.now(), system.clock.monotonic()
    ticks = [_start(watchdog, context) for watchdog in watchdogs]
    remembered = store.load({r.watchdog.name: r.watchdog.check.memory for r in ticks if r.targets and r.remembers})
    probes: dict[tuple[int, int], ChildProbe] = {}
    for number, one in enumerate(ticks):
        one.remembered = remembered.get(one.watchdog.name, one.remembered)
        before = newest(one.watchdog, one.remembered.series)
        for index, given in enumerate(one.targets):
            # The probe needs its deadline too: it divides the time among the programs that it runs.
            deadline_s = given.deadline_s or shared.deadline_s
            target = given._replace(deadline_s=deadline_s)
            work = partial(_probe_and_judge, one.watchdog, target, context, before, one.remembered.series)
            probes[number, index] = ChildProbe(_place(one.watchdog, target, context), work, deadline_s)
    for (number, index), answer in probe_in_child(probes, stuck, system.clock):
        one = ticks[number]
        one.took_s = system.clock.monotonic() - started
        one.answers[index] = findings_of(one.watchdog, one.targets[index], answer)
        if answer.error is None:
            one.new |= {subject: (Timed(time, record),) for subject, (time, record, _) in answer.value.items()}
    saved = store.save({r.watchdog.name: (r.new, r.watchdog.check.memory) for r in ticks if r.remembers})
    if project.unread is not None:
        yield Report(check="settings", findings=(unknown("settings", project.unread),), time=began)
    for one in ticks:
        if on_readings is not None:
            on_readings(one.watchdog, newest(one.watchdog, one.new))
        yield _report(one, began, saved)


def watchdogs_of(project: Project, names: Sequence[str]) -> tuple[list[Watchdog], list[Report]]:
    """Return the watchdogs with these names, and an UNKNOWN report for each one that cannot be loaded."""
    watchdogs, broken = [], []
    for name in names:
        try:
            watchdogs.append(load_watchdog(project, name, is_requested=is_requested(project, name)))
        except UsageError as error:
            broken.append(Report(check=name, findings=(unknown(name, error),), time=project.system.clock.now()))
    return watchdogs, broken


def send_alerts(
    project: Project, reports: Sequence[Report], notes: Notes | None = None, *, typed: str = ""
) -> tuple[str, ...]:
    """Notify the channels of these reports, and return what to print about that on standard error.

    `typed`: the targets and options of the command line that override the settings, or empty.

    In a child: a channel that hangs or crashes changes no verdict.
    """
    if not project.loaded.settings.alert.channels:
        return ()

    def alert() -> tuple[str, ...]:
        from resilience.alerts.notify import notify

        lines = notify(project, [with_own_finding(report) for report in reports], notes=notes, typed=typed)
        return tuple(map(str, lines))

    look = ChildProbe(f"alerts of {project.loaded.state_dir}", alert, ALERTING_S)
    ((_, answer),) = probe_in_child({0: look}, StuckMemory.of(project.system), project.system.clock)
    printed = tuple(answer.said.splitlines())
    if answer.error is None:
        return (*answer.value, *printed)
    return (f"alerts may not have been sent: {answer.error.message}", *printed)


def with_own_finding(report: Report) -> Report:
    """Return the report with a finding about the watchdog itself, so that its own faults are resolved. Pure."""
    if any(finding.subject == report.check for finding in report.findings):
        return report
    itself = Finding(subject=report.check, verdict=Verdict.OK, summary="the check ran")
    return replace(report, findings=(*report.findings, itself))


def newest(watchdog: Watchdog, series: Series) -> dict[str, Timed[Any]]:
    """Return the last reading of each subject, for `probe`. Skips readings written by an incompatible version."""
    found: dict[str, Timed[Any]] = {}
    for subject, rows in series.items():
        try:
            found[subject] = Timed(rows[-1].time, from_record(watchdog.check.Reading, rows[-1].reading))
        except (TypeError, ValueError, IndexError):
            continue
    return found


def _start(watchdog: Watchdog, context: Context) -> _Tick:
    one = _Tick(watchdog)
    try:
        one.targets = tuple(watchdog.check.targets(watchdog.settings, context))
    except ResilError as error:
        one.findings.append(unknown(watchdog.name, error))
    except Exception as error:  # a bug in the watchdog
        summary = f"the check failed: {type(error).__name__}: {error}"
        one.findings.append(_unknown(watchdog.name, "bug", summary, _bug(watchdog)))
    return one


def _place(watchdog: Watchdog, target: Target, context: Context) -> str:
    """Return the key under which a hang is recorded on this node: a path as such, other names with the project."""
    whose = "" if target.name.startswith("/") else f" {context.state_dir}"
    return f"{watchdog.kind} {target.name}{whose}"


def _probe_and_judge(
    watchdog: Watchdog, target: Target, context: Context, before: Mapping[str, Timed[Any]], series: Series
) -> dict[str, Any]:
    """Return {subject: (time, reading, findings)} as plain data. Runs in the child process."""
    answers = {}
    for subject, reading in watchdog.check.probe(target, watchdog.settings, context, before).items():
        now = context.system.clock.now()
        record = to_record(reading)
        findings = _judge(watchdog, str(subject), Timed(now, reading), series.get(str(subject), ()), now)
        answers[str(subject)] = (now, record, [pack(finding) for finding in findings])
    return answers


def _judge(
    watchdog: Watchdog, subject: str, taken: Timed[Any], rows: Sequence[Timed[Any]], now: float
) -> list[Finding]:
    """Return the findings about a subject: UNKNOWN if `judge` fails, OK if `judge` returns none."""
    check, note = watchdog.check, ""
    series: tuple[Timed[Any], ...] = (taken,)
    if rows and check.memory.count > 1:  # otherwise `judge` needs only the newest
        try:
            older: list[Timed[Any]] = [
                Timed(row.time, from_record(check.Reading, row.reading)) for row in rows if row.time < now
            ]
            series = remember(older, series, check.memory) or series
        except (TypeError, ValueError):
            note = "remembered readings ignored: written by an incompatible version"
    try:
        try:
            findings = list(check.judge(subject, series, watchdog.settings, now))
        except Exception:
            if len(series) == 1:
                raise
            # Damaged remembered readings must not make every later tick fail too.
            findings = list(check.judge(subject, (taken,), watchdog.settings, now))
            note = "remembered readings ignored: the check could not judge them"
    except ResilError as error:
        return [unknown(subject, error, fault="judge")]
    except Exception as error:
        summary = f"judging the reading failed: {type(error).__name__}: {error}"
        return [_unknown(subject, "judge", summary, _bug(watchdog))]
    if note:
        findings = [replace(finding, looked=(*finding.looked, note)) for finding in findings]
    return findings or [Finding(subject=subject, verdict=Verdict.OK, summary="no problem found")]


def findings_of(watchdog: Watchdog, target: Target, answer: Answer) -> list[Finding]:
    """Return the findings of a probe result: at least one for each subject of the target."""
    if answer.error is not None:
        error = answer.error
        if error.hint == "this is a bug in the probe":
            error = type(error)(error.message, hint=_bug(watchdog))
        fault = STUCK if answer.is_overdue else ""
        return [unknown(subject, error, fault) for subject in target.subjects or (target.name,)]
    findings = [from_record(Finding, packed) for _, _, packed_all in answer.value.values() for packed in packed_all]
    missing = [subject for subject in target.subjects if subject not in answer.value]
    return findings + [
        _unknown(subject, "probe", "the probe returned no reading for this subject") for subject in missing
    ]


def unknown(subject: str, error: ResilError, fault: str = "") -> Finding:
    """Return the UNKNOWN finding for an error. `fault` is the same in every tick; figures belong in the summary."""
    fault = fault or (SETTINGS_FAULT if isinstance(error, UsageError) else "probe")
    found = _unknown(subject, fault, error.message, error.hint)
    return replace(found, looked=("the probe failed, so the state is UNKNOWN: neither OK nor CRITICAL",))


def _unknown(subject: str, fault: str, summary: str, advice: str = "") -> Finding:
    return Finding(subject=subject, verdict=Verdict.UNKNOWN, fault=fault, summary=summary, advice=advice)


def _bug(watchdog: Watchdog) -> str:
    return f"this is a bug in the watchdog {watchdog.kind}; RESIL_TRACEBACK=1 shows where"


def pack(finding: Finding) -> dict[str, Any]:
    """Return a finding as plain data. Raise TypeError or ValueError if a field has the wrong type."""
    figures = (
        Figure(str(f.label), float(f.value), str(f.unit), *(None if level is None else float(level) for level in f[3:]))
        for f in finding.figures
    )
    texts = {name: str(getattr(finding, name)) for name in ("subject", "summary", "fault", "advice", "run")}
    lines = {name: tuple(map(str, getattr(finding, name))) for name in ("evidence", "looked")}
    return to_record(Finding(verdict=Verdict(finding.verdict), figures=tuple(figures), **texts, **lines))  # type: ignore[arg-type]


def _report(one: _Tick, began: float, saved: str) -> Report:
    answers = [finding for index in sorted(one.answers) for finding in one.answers[index]]
    findings = [*one.findings, *answers] or [_no_targets(one.watchdog)]
    notes = [f"memory: {text}" for text in (one.remembered.error, saved if one.new and one.remembers else "")]
    if notes := list(dict.fromkeys(note for note in notes if note != "memory: ")):
        findings = [replace(finding, looked=(*finding.looked, *notes)) for finding in findings]
    findings = sorted(findings, key=lambda finding: finding.verdict, reverse=True)
    return Report(check=one.watchdog.name, findings=tuple(findings), time=began, took_s=one.took_s)


def _no_targets(watchdog: Watchdog) -> Finding:
    """Return the finding for a watchdog without targets: UNKNOWN if requested by name, else OK."""
    if not watchdog.is_requested:
        return Finding(subject=watchdog.name, verdict=Verdict.OK, summary="nothing to check")
    advice = getattr(watchdog.check, "on_nothing", "") or f"name a target: {watchdog.check.example}"
    return _unknown(watchdog.name, "nothing", "nothing to check", advice)
