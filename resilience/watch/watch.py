"""`resil watch`: look once with every watchdog, all targets side by side, and say what was found.

A tick takes as long as its longest deadline, not their sum. Whatever one target, one watchdog or its memory does,
fail, hang or lie, is told as a finding of that one, and keeps nobody else from looking.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from resilience.errors import ResilError, SettingsError, UsageError
from resilience.finding import Finding, Report, Verdict
from resilience.runs.context import Context
from resilience.runs.project import Project
from resilience.system.stuck import Look, StuckMemory, look_apart
from resilience.watch.look import bug, findings_of, look_of, newest, unknown
from resilience.watch.reading import Memory, Target, Timed
from resilience.watch.reading_memory import ReadingMemory
from resilience.watch.readings import Remembered, Series
from resilience.watch.watchdogs import Watchdog, is_wanted, scene_of, watchdog

if TYPE_CHECKING:
    from resilience.alerts.notify import Notes

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


def _begin(dog: Watchdog, scene: Context) -> _Round:
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


def _place(dog: Watchdog, target: Target, scene: Context) -> str:
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


__all__ = ["Series", "scene_of", "tell", "watch", "watchdog", "watchdogs_of", "with_itself"]
