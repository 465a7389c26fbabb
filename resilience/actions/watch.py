"""`resil watch`: which watchdogs there are, what they look at, and what they found."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any

from resilience.actions.project import Project
from resilience.errors import ResilError, UsageError
from resilience.model.finding import Finding, Report
from resilience.model.reading import Target, Timed
from resilience.model.verdict import Verdict
from resilience.plugins import Family
from resilience.settings.plugin_table import plugin_settings
from resilience.system.child import Answer, run_apart
from resilience.system.ports import Check
from resilience.system.readings import from_record, to_record
from resilience.system.scene import Scene


@cache
def checks() -> Family:
    """The watchdogs there are."""
    return Family("checks", "CHECK")


@dataclass(frozen=True, slots=True)
class Watchdog:
    """One check with its settings.

    Attributes:
        name: the name of its table in resil.toml, and after `resil watch`.
        kind: the plugin's name; the same, unless the table says otherwise.
    """

    name: str
    kind: str
    check: Check
    settings: Any


def scene_of(project: Project) -> Scene:
    """Where the checks of a project stand."""
    loaded = project.loaded
    return Scene(
        world=project.world,
        project=loaded.project,
        state_dir=loaded.state_dir,
        run=project.default_run(),
        group=loaded.settings.run.group,
        scheduler=project.scheduler,
        has_settings=loaded.path is not None,
    )


def watchdog(project: Project, name: str, overrides: Mapping[str, object] | None = None) -> Watchdog:
    """One watchdog with its settings, `overrides` (the command line's) winning.

    Raise UsageError if there is none of that name, SettingsError if its settings cannot be used.
    """
    table = project.loaded.settings.watches.get(name)
    kind = table.kind if table is not None else name
    check = checks().load(kind)
    settings = plugin_settings(
        check.Settings, "watch", name, table, origins=project.loaded.origins, overrides=overrides
    )
    return Watchdog(name, kind, check, settings)


def watchdog_names(project: Project) -> tuple[str, ...]:
    """What `resil watch --all` runs: the setting's, or every plugin and every table of one's own."""
    wanted = project.loaded.settings.watch.checks
    return wanted or tuple(dict.fromkeys((*checks().names(), *project.loaded.settings.watches)))


def watch(project: Project, watchdogs: Sequence[Watchdog]) -> Iterator[Report]:
    """Look once with each watchdog, all targets at the same time, and yield what each says, as they end.

    A watchdog that cannot be used says so as an UNKNOWN finding: it does not keep the others from looking.
    """
    scene = scene_of(project)
    for dog in watchdogs:
        yield _look(project, dog, scene)


def _look(project: Project, dog: Watchdog, scene: Scene) -> Report:
    clock = project.world.clock
    began, started = clock.now(), clock.monotonic()
    try:
        targets = tuple(dog.check.targets(dog.settings, scene))
    except ResilError as error:
        return Report(check=dog.name, findings=(_unknown(dog.name, error),), time=began)
    deadline_s = project.loaded.settings.watch.deadline_s
    works = {t.name: (_work(dog, t, scene), t.deadline_s or deadline_s) for t in targets}
    answers = dict(run_apart(works))
    findings = [f for target in targets for f in _findings(dog, target, answers[target.name], clock.now())]
    findings.sort(key=lambda finding: finding.verdict, reverse=True)
    return Report(check=dog.name, findings=tuple(findings), time=began, took_s=clock.monotonic() - started)


def _work(dog: Watchdog, target: Target, scene: Scene) -> Callable[[], Any]:
    def look() -> dict[str, dict[str, Any]]:
        return {
            subject: to_record(reading) for subject, reading in dog.check.probe(target, dog.settings, scene, {}).items()
        }

    return look


def _findings(dog: Watchdog, target: Target, answer: Answer, now: float) -> Sequence[Finding]:
    if answer.error is not None:
        return [_unknown(subject, answer.error) for subject in target.subjects or (target.name,)]
    return [
        finding
        for subject, record in answer.value.items()
        for finding in dog.check.judge(
            subject, (Timed(now, from_record(dog.check.Reading, record)),), dog.settings, now
        )
    ]


def _unknown(subject: str, error: ResilError) -> Finding:
    verdict = Verdict.UNKNOWN
    fault = "settings" if isinstance(error, UsageError) else "probe"
    return Finding(subject=subject, verdict=verdict, fault=fault, summary=error.message, advice=error.hint)
