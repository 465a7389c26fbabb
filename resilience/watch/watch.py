"""`resil watch`: probe all targets of all watchdogs in parallel, judge the readings, and report the findings.

A tick takes as long as its longest deadline, not their sum, and reports each watchdog as soon as all its targets have
answered. A signal that ends the process early loses no finding: Tick.unfinished. A failure, timeout or bug in one
watchdog or its remembered readings becomes a finding of that watchdog and does not affect the others.

Probe and judge both run in a child process. Judging is pure but can still fail: a regular expression that backtracks
without end, or a bug, must not affect the other watchdogs.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any, NamedTuple

from resilience.errors import ProbeError, ResilError, SettingsError, UsageError
from resilience.finding import Figure, Finding, Report, Verdict
from resilience.plugins import PLUGIN_PATH, exit_refused
from resilience.records import from_record, to_record
from resilience.runs.context import Context
from resilience.runs.project import Project
from resilience.system.child import Answer
from resilience.system.stuck import ChildProbe, StuckMemory, probe_in_child
from resilience.watch.reading import Memory, Target, Timed, remember
from resilience.watch.reading_store import ReadingStore, Remembered, Series
from resilience.watch.watchdogs import Watchdog, checks, context_of, is_requested, load_watchdog

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


class _Part:
    """The state of one watchdog during one tick."""

    def __init__(self, watchdog: Watchdog) -> None:
        self.watchdog = watchdog
        self.targets: tuple[Target, ...] = ()
        self.findings: list[Finding] = []
        self.answers: dict[int, list[Finding]] = {}  # by target index: findings keep the order of the targets
        self.new: dict[str, tuple[Timed[Any], ...]] = {}
        self.remembered = Remembered({})
        self.took_s = 0.0
        self.is_reported = False

    @property
    def remembers(self) -> bool:
        memory = self.watchdog.check.memory
        return isinstance(memory, Memory) and memory.count > 0

    @property
    def is_complete(self) -> bool:
        return len(self.answers) == len(self.targets)


class _Asked(NamedTuple):
    """One target of a watchdog in a tick, with the earlier readings."""

    part: _Part
    number: int
    target: Target
    before: Mapping[str, Timed[Any]]


class Tick:
    """One tick of some watchdogs. Iterate over it for a report of each watchdog, as their targets answer.

    Raises SettingsError from the iteration if the project's own settings are invalid; every other error is a finding.
    """

    def __init__(self, project: Project, watchdogs: Sequence[Watchdog], on_readings: OnReadings | None = None) -> None:
        """`on_readings` receives the new readings; the daemon schedules the deadlines in them."""
        self._project, self._on_readings = project, on_readings
        self._context = context_of(project)
        self._clock = project.system.clock
        self._began, self._started = self._clock.now(), self._clock.monotonic()
        self._parts = [_Part(watchdog) for watchdog in watchdogs]

    def __iter__(self) -> Iterator[Report]:
        shared, origins = self._project.loaded.settings.watch, self._project.loaded.origins
        for name in ("deadline_s", "state_deadline_s"):
            if not 0 < getattr(shared, name) <= LONGEST_S:
                why = "must be more than 0" if getattr(shared, name) <= 0 else "is longer than a year"
                raise SettingsError(f"{name} = {getattr(shared, name):g} in [watch] {why}", hint=f'{name} = "10s"')
        if self._project.unread is not None:
            yield Report(check="settings", findings=(unknown("settings", self._project.unread),), time=self._began)
        stuck = StuckMemory.of(self._project.system)
        # Before the probes, so that both together take little more than the deadline.
        state_deadline_s = min(shared.state_deadline_s, shared.deadline_s / 2)
        self._context = self._context._replace(state_deadline_s=state_deadline_s, shared={})
        store = ReadingStore(self._context, stuck, state_deadline_s)
        for one in self._parts:
            _find_targets(one, self._context)
        memories = {r.watchdog.name: r.watchdog.check.memory for r in self._parts if r.targets and r.remembers}
        remembered, hangs = store.load(memories)
        # A probe gets no longer deadline of its own if the user has set one, or if it would only wait for the state
        # directory.
        is_capped = origins.get("watch.deadline_s") == "command line" or hangs
        groups: dict[tuple[object, ...], list[_Asked]] = {}
        for number, one in enumerate(self._parts):
            one.remembered = remembered.get(one.watchdog.name, one.remembered)
            before = newest(one.watchdog, one.remembered.series)
            for index, given in enumerate(one.targets):
                deadline_s = given.deadline_s or shared.deadline_s
                # The probe needs its deadline too: it divides the time among the programs that it runs.
                target = given._replace(deadline_s=min(deadline_s, shared.deadline_s) if is_capped else deadline_s)
                together = _together(one.watchdog)
                group: tuple[object, ...] = (number, index)
                if together:
                    group = (together, target.name, target.deadline_s)
                groups.setdefault(group, []).append(_Asked(one, index, target, before))
            if one.is_complete:
                yield self._report(one, store)
        probes = {group: self._probe_of(asked) for group, asked in groups.items()}
        for group, answer in probe_in_child(probes, stuck, self._clock):
            for position, (one, index, target, _) in enumerate(groups[group]):
                own = answer._replace(value=answer.value[position]) if answer.error is None else answer
                one.took_s = self._clock.monotonic() - self._started
                one.answers[index] = findings_of(one.watchdog, target, own)
                if own.error is None:
                    one.new |= {subject: (Timed(time, record),) for subject, (time, record, _) in own.value.items()}
                if one.is_complete:
                    yield self._report(one, store)

    def unfinished(self, why: str) -> list[Report]:
        """Return the reports that the iteration has not yielded: what is known, and UNKNOWN for what is not.

        `why` is the reason why the iteration was ended: `SIGTERM`.
        """
        after_s = self._clock.monotonic() - self._started
        for one in self._parts:
            if one.is_reported:
                continue
            for index, target in enumerate(one.targets or (Target(one.watchdog.name),)):
                if index not in one.answers and not one.findings:
                    error = ProbeError(f"no answer before {why}, after {after_s:.1f} s")
                    one.answers[index] = [unknown(subject, error, STUCK) for subject in target.subjects or target[:1]]
        return [self._report(one) for one in self._parts if not one.is_reported]

    def _probe_of(self, group: Sequence[_Asked]) -> ChildProbe:
        """Return the probe of equal targets, usually one."""
        (one, _, target, _), context = group[0], self._context
        assert target.deadline_s is not None

        def work() -> list[dict[str, Any]]:
            return [
                probe_and_judge(part.watchdog, its_target, context, before, part.remembered.series)
                for part, _, its_target, before in group
            ]

        path = target.name[max(0, target.name.find("/")) :]
        place = _place(one.watchdog, target, context)
        return ChildProbe(place, work, target.deadline_s, path if path.startswith("/") else "")

    def _report(self, one: _Part, store: ReadingStore | None = None) -> Report:
        """Store the readings of a watchdog, if it is complete, and return its report."""
        saved = ""
        if store is not None and one.remembers:
            saved = store.save({one.watchdog.name: (one.new, one.watchdog.check.memory)})
        if self._on_readings is not None:
            self._on_readings(one.watchdog, newest(one.watchdog, one.new))
        one.is_reported = True
        return _report(one, self._began, saved)


def watch(project: Project, watchdogs: Sequence[Watchdog], on_readings: OnReadings | None = None) -> Iterator[Report]:
    """Probe all targets of the watchdogs in parallel, and yield one report per watchdog, as they answer. See Tick."""
    yield from Tick(project, watchdogs, on_readings)


def watchdogs_of(project: Project, names: Sequence[str]) -> tuple[list[Watchdog], list[Report]]:
    """Return the watchdogs with these names, and an UNKNOWN report for each one that cannot be loaded.

    A directory of $RESIL_PLUGINS that is missing has watchdogs that cannot be loaded either: one report for all.
    """
    watchdogs, broken = [], []
    if error := checks().missing_directories():
        broken.append(Report(check="plugins", findings=(unknown(PLUGIN_PATH, error),), time=project.system.clock.now()))
    for name in names:
        try:
            watchdogs.append(load_watchdog(project, name, is_requested=is_requested(project, name)))
        except UsageError as error:
            broken.append(Report(check=name, findings=(unknown(name, error),), time=project.system.clock.now()))
    return watchdogs, broken


def send_alerts(
    project: Project,
    reports: Sequence[Report],
    notes: Notes | None = None,
    *,
    typed: str = "",
    deadline_s: float = ALERTING_S,
) -> tuple[str, ...]:
    """Notify the channels of these reports, and return what to print about that on standard error.

    `typed`: the targets and options of the command line that override the settings, or empty.

    In a child: a channel that hangs or crashes changes no verdict. Messages not sent by the deadline stay queued.
    """
    if not project.loaded.settings.alert.channels:
        return ()

    def alert() -> tuple[str, ...]:
        from resilience.alerts.notify import notify

        lines = notify(project, [with_own_finding(report) for report in reports], notes=notes, typed=typed)
        return tuple(map(str, lines))

    look = ChildProbe(f"alerts of {project.loaded.state_dir}", alert, deadline_s)
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


def _find_targets(one: _Part, context: Context) -> None:
    watchdog = one.watchdog
    try:
        with exit_refused():
            targets = tuple(watchdog.check.targets(watchdog.settings, context))
            if wrong := [target for target in targets if not isinstance(target, Target)]:
                raise TypeError(f"targets() named {wrong[0]!r}, which is no Target")
            one.targets = targets
    except ResilError as error:
        one.findings.append(unknown(watchdog.name, error))
    except (Exception, SystemExit) as error:  # a bug in the watchdog
        summary = f"the check failed: {type(error).__name__}: {error}"
        one.findings.append(_unknown(watchdog.name, "bug", summary, _bug(watchdog)))


def _place(watchdog: Watchdog, target: Target, context: Context) -> str:
    """Return the key under which a hang is recorded on this node: a path as such, other names with the project."""
    whose = "" if target.name.startswith("/") else f" {context.state_dir}"
    return f"{_together(watchdog) or watchdog.kind} {target.name}{whose}"


def _together(watchdog: Watchdog) -> str:
    """Return the name that watchdogs share whose equal targets are probed in one child; empty for most."""
    together = getattr(watchdog.check, "together", None)
    return str(together(watchdog.settings)) if together is not None else ""


def probe_and_judge(
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


def _report(one: _Part, began: float, saved: str) -> Report:
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
