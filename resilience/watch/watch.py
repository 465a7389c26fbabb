"""`resil watch`: probe once with every watchdog, all targets side by side, and report the findings.

A tick takes as long as its longest deadline, not their sum. A target, watchdog or memory that fails, hangs or lies
becomes a finding of that one watchdog, and keeps no other from probing.

Probe and judge run in a child process. Judging is pure, and still belongs there: a pattern that backtracks for ever, or
a bug, must not reach the other watchdogs.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from resilience.errors import ResilError, SettingsError, UsageError
from resilience.finding import Figure, Finding, Report, Verdict
from resilience.records import from_record, to_record
from resilience.runs.context import Scene
from resilience.runs.project import Project
from resilience.system.child import Answer
from resilience.system.stuck import Look, StuckMemory, look_apart
from resilience.watch.reading import Memory, Target, Timed, remember
from resilience.watch.reading_store import ReadingMemory, Remembered, Series
from resilience.watch.watchdogs import Watchdog, is_wanted, scene_of, watchdog

if TYPE_CHECKING:
    from resilience.alerts.notify import Notes

STUCK = "stuck"
"""The fault of a look that got no answer in time, now and in every tick until one comes: that is one incident."""


def look_of(
    dog: Watchdog, target: Target, scene: Scene, before: Mapping[str, Timed[Any]], series: Series
) -> Callable[[], Any]:
    """The work of a child: it returns {subject: (time, record of the reading, findings)}, all plain."""

    def look() -> dict[str, Any]:
        answers = {}
        for subject, reading in dog.check.probe(target, dog.settings, scene, before).items():
            now = scene.world.clock.now()
            record = to_record(reading)
            findings = judged(dog, str(subject), Timed(now, reading), series.get(str(subject), ()), now)
            answers[str(subject)] = (now, record, [pack(finding) for finding in findings])
        return answers

    return look


def newest(dog: Watchdog, series: Series) -> dict[str, Timed[Any]]:
    """The last reading of each subject, for `probe`. One of another version is as if it were not there."""
    found: dict[str, Timed[Any]] = {}
    for subject, rows in series.items():
        try:
            found[subject] = Timed(rows[-1].time, from_record(dog.check.Reading, rows[-1].reading))
        except (TypeError, ValueError, IndexError):
            continue
    return found


def judged(dog: Watchdog, subject: str, taken: Timed[Any], rows: Sequence[Timed[Any]], now: float) -> list[Finding]:
    """What a watchdog says of a subject. A judge that fails says UNKNOWN; one that says nothing has found it well."""
    series: tuple[Timed[Any], ...] = (taken,)
    note = ""
    if rows and dog.check.memory.count > 1:  # else the newest is all that is wanted
        try:
            older: list[Timed[Any]] = [
                Timed(row.time, from_record(dog.check.Reading, row.reading)) for row in rows if row.time < now
            ]
            series = remember(older, series, dog.check.memory) or series
        except (TypeError, ValueError):
            note = "what was remembered is of another version, and was not used"
    try:
        try:
            findings = list(dog.check.judge(subject, series, dog.settings, now))
        except Exception:
            if len(series) == 1:
                raise
            # What is remembered may be damaged in a way that only shows here; then the judge must not fail for ever.
            findings = list(dog.check.judge(subject, (taken,), dog.settings, now))
            note = "what was remembered could not be judged, and was not used"
    except ResilError as error:
        return [unknown(subject, error, fault="judge")]
    except Exception as error:
        summary = f"the judgement failed: {type(error).__name__}: {error}"
        return [Finding(subject=subject, verdict=Verdict.UNKNOWN, fault="judge", summary=summary, advice=_bug(dog))]
    if note:
        findings = [replace(finding, looked=(*finding.looked, note)) for finding in findings]
    return findings or [Finding(subject=subject, verdict=Verdict.OK, summary="nothing is wrong")]


def findings_of(dog: Watchdog, target: Target, answer: Answer) -> list[Finding]:
    """Given what became of a look, return what it says of its target, of every subject that was to be looked at."""
    wanted = target.subjects or (target.name,)
    if answer.error is not None:
        error = answer.error
        if error.hint == "this is a bug of the look":
            error = type(error)(error.message, hint=_bug(dog))
        return [unknown(subject, error, fault=STUCK if answer.is_overdue else "") for subject in wanted]
    findings = [from_record(Finding, packed) for _, _, packed_all in answer.value.values() for packed in packed_all]
    missing = [subject for subject in target.subjects if subject not in answer.value]
    return findings + [
        Finding(subject=subject, verdict=Verdict.UNKNOWN, fault="probe", summary="the look said nothing of it")
        for subject in missing
    ]


def unknown(subject: str, error: ResilError, fault: str = "") -> Finding:
    """What is said where there was no answer. `fault` is stable from tick to tick; figures stand in the summary."""
    fault = fault or ("settings" if isinstance(error, UsageError) else "probe")
    return Finding(
        subject=subject, verdict=Verdict.UNKNOWN, fault=fault, summary=error.message, advice=error.hint,
        looked=("could not look, which is UNKNOWN: neither well nor broken",),
    )  # fmt: skip


def bug(dog: Watchdog, error: Exception) -> Finding:
    """What is said of a watchdog that fails before it looks."""
    summary = f"it failed: {type(error).__name__}: {error}"
    return Finding(subject=dog.name, verdict=Verdict.UNKNOWN, fault="bug", summary=summary, advice=_bug(dog))


def _bug(dog: Watchdog) -> str:
    return f"this is a bug of the watchdog {dog.kind}; RESIL_TRACEBACK=1 shows where"


def pack(finding: Finding) -> dict[str, Any]:
    """A finding as plain data. Raise TypeError or ValueError if a part of it has the wrong type."""
    figures = (
        Figure(str(f.label), float(f.value), str(f.unit), *(None if level is None else float(level) for level in f[3:]))
        for f in finding.figures
    )
    texts = {name: str(getattr(finding, name)) for name in ("subject", "summary", "fault", "advice", "run")}
    lines = {name: tuple(map(str, getattr(finding, name))) for name in ("evidence", "looked")}
    return to_record(Finding(verdict=Verdict(finding.verdict), figures=tuple(figures), **texts, **lines))  # type: ignore[arg-type]


LONGEST_S = 366 * 86400.0
ALERTING_S = 60.0
"""How long it may take to decide who is told and to send it. What is not sent by then lies in the outbox."""


class _Round:
    """What one watchdog does in this tick, and what it has found so far."""

    def __init__(self, dog: Watchdog) -> None:
        self.dog = dog
        self.targets: tuple[Target, ...] = ()
        self.findings: list[Finding] = []
        self.answers: dict[int, list[Finding]] = {}  # by target: who answers first must not change the order
        self.new: dict[str, tuple[Timed[Any], ...]] = {}
        self.remembered = Remembered({})
        self.took_s = 0.0


Saw = Callable[[Watchdog, Mapping[str, Timed[Any]]], None]
"""Is told the readings of a watchdog, by subject."""


def watch(project: Project, watchdogs: Sequence[Watchdog], saw: Saw | None = None) -> Iterator[Report]:
    """Look once with each watchdog, all targets at the same time, and yield what each says, in their order.

    `saw` is told what was seen besides: a daemon waits for what that makes due. Raise UsageError if the project's own
    settings cannot be used; everything else is a finding.
    """
    world = project.world
    scene = scene_of(project)
    stuck = StuckMemory.of(world)
    shared = project.loaded.settings.watch
    for key in ("deadline_s", "state_deadline_s"):
        if not 0 < getattr(shared, key) <= LONGEST_S:
            why = "leaves no time to look" if getattr(shared, key) <= 0 else "is longer than a year"
            raise SettingsError(f"{key} = {getattr(shared, key):g} in [watch] {why}", hint=f'{key} = "10s"')
    memory = ReadingMemory(scene, stuck, shared.state_deadline_s)
    began, started = world.clock.now(), world.clock.monotonic()
    rounds = [_begin(dog, scene) for dog in watchdogs]
    remembered = memory.load({r.dog.name: r.dog.check.memory for r in rounds if r.targets and _remembers(r.dog)})
    looks: dict[tuple[int, int], Look] = {}
    for number, one in enumerate(rounds):
        one.remembered = remembered.get(one.dog.name, one.remembered)
        before = newest(one.dog, one.remembered.series)
        for index, wanted in enumerate(one.targets):
            # A probe that asks several programs shares its time out among them.
            target = wanted._replace(deadline_s=wanted.deadline_s or shared.deadline_s)
            work = look_of(one.dog, target, scene, before, one.remembered.series)
            place = _place(one.dog, target, scene)
            looks[number, index] = Look(place, work, wanted.deadline_s or shared.deadline_s)
    for (number, index), answer in look_apart(looks, stuck, world.clock):
        one = rounds[number]
        one.took_s = world.clock.monotonic() - started
        one.answers[index] = findings_of(one.dog, one.targets[index], answer)
        if answer.error is None:
            one.new |= {subject: (Timed(time, record),) for subject, (time, record, _) in answer.value.items()}
    saved = memory.save({r.dog.name: (r.new, r.dog.check.memory) for r in rounds if _remembers(r.dog)})
    if project.unread is not None:
        yield Report(check="settings", findings=(unknown("settings", project.unread),), time=began)
    for one in rounds:
        if saw is not None:
            saw(one.dog, newest(one.dog, one.new))
        yield _report(one, began, saved)


def watchdogs_of(project: Project, names: Sequence[str]) -> tuple[list[Watchdog], list[Report]]:
    """The watchdogs of these names, and a report for each that cannot be used: it does not keep the others back."""
    dogs, broken = [], []
    for name in names:
        try:
            dogs.append(watchdog(project, name, is_wanted=is_wanted(project, name)))
        except UsageError as error:
            broken.append(Report(check=name, findings=(unknown(name, error),), time=project.world.clock.now()))
    return dogs, broken


def tell(project: Project, reports: Sequence[Report], notes: Notes | None = None) -> tuple[str, ...]:
    """Alert whoever is to be told, and return what to say about that on standard error.

    In a child: a channel that hangs or crashes changes nobody's verdict.
    """
    if not project.loaded.settings.alert.channels:
        return ()

    def alert() -> tuple[str, ...]:
        from resilience.alerts.notify import notify

        return tuple(map(str, notify(project, [with_itself(report) for report in reports], notes=notes)))

    look = Look(f"alerts of {project.loaded.state_dir}", alert, ALERTING_S)
    ((_, answer),) = look_apart({0: look}, StuckMemory.of(project.world), project.world.clock)
    said = tuple(answer.said.splitlines())
    if answer.error is None:
        return (*answer.value, *said)
    return (f"nobody may have been told: {answer.error.message}", *said)


def with_itself(report: Report) -> Report:
    """A report with a finding about the watchdog itself, so that the end of a fault of its own is known. Pure."""
    if any(finding.subject == report.check for finding in report.findings):
        return report
    itself = Finding(subject=report.check, verdict=Verdict.OK, summary="it looked")
    return replace(report, findings=(*report.findings, itself))


def _begin(dog: Watchdog, scene: Scene) -> _Round:
    one = _Round(dog)
    try:
        one.targets = tuple(dog.check.targets(dog.settings, scene))
    except ResilError as error:
        one.findings.append(unknown(dog.name, error))
    except Exception as error:
        one.findings.append(bug(dog, error))
    return one


def _remembers(dog: Watchdog) -> bool:
    return isinstance(dog.check.memory, Memory) and dog.check.memory.count > 0


def _place(dog: Watchdog, target: Target, scene: Scene) -> str:
    """What may hang, by the same name in every process of this node: a path is everybody's, other names a project's."""
    return f"{dog.kind} {target.name}" if target.name.startswith("/") else f"{dog.kind} {target.name} {scene.state_dir}"


def _report(one: _Round, began: float, saved: str) -> Report:
    answers = [finding for index in sorted(one.answers) for finding in one.answers[index]]
    findings = [*one.findings, *answers] or [_nothing(one.dog)]
    notes = [f"memory: {text}" for text in (one.remembered.trouble, saved if one.new and _remembers(one.dog) else "")]
    if notes := list(dict.fromkeys(note for note in notes if note != "memory: ")):
        findings = [replace(finding, looked=(*finding.looked, *notes)) for finding in findings]
    findings = sorted(findings, key=lambda finding: finding.verdict, reverse=True)
    return Report(check=one.dog.name, findings=tuple(findings), time=began, took_s=one.took_s)


def _nothing(dog: Watchdog) -> Finding:
    """Silence is no good news where somebody wanted it to look; where it is only there, it is none either way."""
    if not dog.is_wanted:
        return Finding(subject=dog.name, verdict=Verdict.OK, summary="nothing to look at")
    return Finding(
        subject=dog.name, verdict=Verdict.UNKNOWN, fault="nothing", summary="there is nothing to look at",
        advice=getattr(dog.check, "on_nothing", "") or f"name something: {dog.check.example}",
    )  # fmt: skip
