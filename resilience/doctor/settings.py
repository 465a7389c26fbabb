"""`resil config check`: every setting that a submit, a watchdog, a channel or a tick would refuse."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from resilience.errors import ResilError, SettingsError, StateDirectoryError, UsageError
from resilience.runs.open_project import read_source
from resilience.runs.project import Project
from resilience.runs.templates.script import template_library
from resilience.settings.load import check
from resilience.settings.sections import PluginTable
from resilience.system.ports import System

if TYPE_CHECKING:
    from resilience.runs.templates.lint import LintFinding


def find_errors(system: System, named: Path | None = None) -> tuple[Project, tuple[ResilError, ...]]:
    """Return the project with its valid settings, and all errors.

    Raise SettingsError if the file cannot be read or is not TOML, ProbeError if its file system does not respond.
    """
    loaded, errors = check(system, read_source(system, named))
    found: list[ResilError] = list(errors)
    try:
        project = Project(system, loaded)
    except SettingsError as error:
        found.append(error)
        scheduler = replace(loaded.settings.scheduler, name="auto")
        project = Project(system, loaded._replace(settings=replace(loaded.settings, scheduler=scheduler)))
    found += setting_errors(project)
    return project, tuple({error.message: error for error in found}.values())


def check_settings(project: Project) -> None:
    """Raise SettingsError or UsageError for the first setting that makes a submit, a watchdog or a tick fail."""
    for error in setting_errors(project):
        raise error


def setting_errors(project: Project) -> Iterator[ResilError]:
    """Yield an error for each setting that has the right type and cannot be used."""
    runs = (
        _check_run, _check_template, _check_owners, _check_group, _check_lead, _check_signal, _check_plan,
        _check_treatments, submit_warnings,
    )  # fmt: skip
    yield from _errors_of(_script(project))
    # The name has a check of its own, and the others need a valid one.
    settings = project.loaded.settings
    without_name = replace(settings, run=replace(settings.run, name=""))
    unnamed = replace(project, loaded=project.loaded._replace(settings=without_name))
    yield from _errors_of(partial(one, project) for one in runs)
    for family in (_watchdogs, _alerts, _cron):
        yield from _errors_of(family(unnamed))


def _errors_of(checks: Iterable[Callable[[], object]]) -> Iterator[ResilError]:
    for one in checks:
        try:
            one()
        except UsageError as error:
            yield error if isinstance(error, SettingsError) else SettingsError(error.message, hint=error.hint)
        except ResilError as error:
            yield error


def _check_run(project: Project) -> None:
    from resilience.submission import check_run_name

    if project.loaded.settings.run.name:
        check_run_name(project.loaded.settings.run.name)


def _check_template(project: Project) -> None:
    template_library(project).source(project.loaded.settings.run.template)


def _check_owners(project: Project) -> None:
    from resilience.switch import OwnerPolicy

    owners = project.loaded.settings.run.switch_owners
    if owners and owners not in set(OwnerPolicy):
        raise SettingsError(f"switch_owners = {owners!r} is not an owner policy", hint="there are: owner, group, any")


def _check_group(project: Project) -> None:
    try:
        project.directory("run").group_id()
    except StateDirectoryError as error:
        raise SettingsError(error.message, hint=error.hint) from error


def _check_lead(project: Project) -> None:
    from resilience.submission import MAX_LEAD_S

    if project.loaded.settings.submit.signal_lead_s > MAX_LEAD_S:
        raise SettingsError(
            f"signal_lead_s is above {MAX_LEAD_S} s, which sbatch refuses", hint="for instance signal_lead_s = 300"
        )


def _check_signal(project: Project) -> None:
    from resilience.submission import split_signal

    submit = project.loaded.settings.submit
    split_signal(f"B:{submit.signal}@{int(submit.signal_lead_s)}")


def _check_treatments(project: Project) -> None:
    from resilience.attempts.breaker import check_treatments

    check_treatments(project.loaded.settings.act.treatments)


def _check_plan(project: Project) -> None:
    from resilience.runs.submit_plan import SubmitRequest, plan_submit

    settings = project.loaded.settings
    submit = replace(settings.submit, signal="USR1", signal_lead_s=300.0)  # these have a check of their own
    plan_submit(SubmitRequest(run="run"), replace(settings, submit=submit), "logs")


def submit_warnings(project: Project) -> tuple[LintFinding, ...]:
    """Return what `resil submit` would warn of. Raise UsageError for what `resil submit` would refuse.

    In a child with a deadline: the run directory and the directories of output files may be on a disk that hangs.
    """
    from resilience.runs.open_project import in_child
    from resilience.runs.submit import prepare
    from resilience.runs.submit_plan import SubmitRequest
    from resilience.runs.templates.lint import LintFinding, Severity

    def look() -> list[tuple[str, str]]:
        request = SubmitRequest(run="run", array="1")  # only the cluster can judge the size of an array
        return [(finding.message, finding.hint) for finding in prepare(project, request).findings]

    if not project.loaded.settings.run.command.strip():
        return ()
    place = f"submit of {project.loaded.state_dir}"
    answer = in_child(project.system, place, look, project.loaded.settings.watch.deadline_s)
    if isinstance(answer.error, UsageError):
        raise answer.error
    if answer.error is not None:
        text = f"resil submit could not be checked: {answer.error.message}"
        return (LintFinding(Severity.WARN, text, answer.error.hint),)
    return tuple(LintFinding(Severity.WARN, message, hint) for message, hint in answer.value)


_WITHOUT_RUN = frozenset({"fs", "inodes"})
"""Watchdogs whose incidents are about no run."""


def act_warnings(project: Project) -> Iterator[LintFinding]:
    """Yield what [alert] act does not do with these settings."""
    from resilience.runs.templates.lint import LintFinding, Severity
    from resilience.watch.watchdogs import kind_of, watchdog_names

    settings = project.loaded.settings
    names = ", ".join(name for name in watchdog_names(project) if kind_of(project, name) in _WITHOUT_RUN)
    if settings.alert.act and names:
        yield LintFinding(Severity.WARN, f"[alert] act ignores the incidents of {names}: they are about no run")
    if settings.alert.act and not settings.act.enabled:
        hint = "to let it act: enabled = true under [act]"
        yield LintFinding(Severity.WARN, "[alert] act only names what would be done", hint)


def _script(project: Project) -> Iterator[Callable[[], object]]:
    """Yield a check for each line that the settings write into a script."""
    from resilience.runs.templates.directives import write_directive
    from resilience.runs.templates.script import check_variable

    settings = project.loaded.settings
    yield from (partial(check_variable, name) for name in settings.environment)
    for name, value in settings.sbatch.items():
        yield partial(write_directive, name, None if isinstance(value, bool) else str(value))


def _watchdogs(project: Project) -> Iterator[Callable[[], object]]:
    """Yield a check for each key of a watchdog, and one for its targets."""
    from resilience.watch.watchdogs import checks, context_of, kind_of, load_watchdog

    context = context_of(project)

    def targets(name: str) -> None:
        found = load_watchdog(project, name)
        found.check.targets(found.settings, context)

    for name in dict.fromkeys((*project.loaded.settings.watches, *project.loaded.settings.watch.checks)):
        table = project.loaded.settings.watches.get(name)
        if table is not None:
            yield from _keys(project, "watch", name, table, lambda name=name: checks().load(kind_of(project, name)))  # type: ignore[misc]
        yield partial(targets, name)


def _alerts(project: Project) -> Iterator[Callable[[], object]]:
    """Yield a check of the policy, of each channel and of each of its keys. Nothing is sent, no secret is read."""
    from resilience.alerts.policy import check_policy
    from resilience.alerts.routes import Route, channels, routes_of

    settings = project.loaded.settings
    known = {*channels().names(), *settings.channels}

    def channel(route: Route) -> None:
        found, channel_settings = route()
        found.check(channel_settings)

    for name in settings.alert.channels:
        yield partial(check_policy, replace(settings.alert, channels=(name,), escalation=(), quiet_hours=""), known)
    for step in settings.alert.escalation:
        alone = replace(settings.alert, escalation=(step,), quiet_hours="", channels=())
        yield partial(check_policy, replace(alone, channels=tuple(known)), known)
    yield partial(check_policy, settings.alert, known)
    for name, table in settings.channels.items():
        yield from _keys(project, "channel", name, table, lambda table=table: channels().load(table.kind))  # type: ignore[misc]
    for name, route in routes_of(project).items():
        if name in known:
            yield partial(channel, route)


def _keys(
    project: Project, section: str, name: str, table: PluginTable, load: Callable[[], object]
) -> Iterator[Callable[[], object]]:
    """Yield a check for each key of a plugin's table."""
    from resilience.settings.convert import plugin_settings

    def convert(key: str) -> None:
        owner = load().Settings  # type: ignore[attr-defined]
        alone = PluginTable(table.kind, {key: table.values[key]})
        plugin_settings(owner, section, name, alone, origins=project.loaded.origins)

    for key in table.values:
        yield partial(convert, key)


def _cron(project: Project) -> Iterator[Callable[[], object]]:
    """Yield checks of the settings that only `resil cron` uses."""
    from resilience.cron.report import check_reporting

    settings = project.loaded.settings.cron_settings

    def backend() -> None:
        from resilience.cron.driver_choice import check_backend

        check_backend(settings.backend)

    def mode() -> None:
        from resilience.cron.drivers.slurm import check_mode

        check_mode(settings.mode)

    def catch_up() -> None:
        from resilience.cron.table.options import parse_catch_up

        try:
            parse_catch_up(settings.catch_up)
        except UsageError as error:
            raise SettingsError(
                f"catch_up = {settings.catch_up!r} in [cron]: {error.message}", hint=error.hint
            ) from None

    yield from (backend, mode, catch_up, partial(check_reporting, settings))
