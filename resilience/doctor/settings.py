"""`resil config check`: whether the settings could be used, beyond their types."""

from __future__ import annotations

from resilience.alerts.routes import channels, routes_of
from resilience.errors import SettingsError, UsageError
from resilience.runs.project import Project, schedulers
from resilience.runs.submit_plan import SubmitRequest, plan_submit, split_signal
from resilience.runs.templates.script import template_library
from resilience.submission import MAX_LEAD_S, check_run_name
from resilience.switch import OwnerPolicy
from resilience.watch.watchdogs import load_watchdog, scene_of


def check_settings(project: Project) -> None:
    """Raise SettingsError or UsageError for the first setting that no submit could use."""
    settings = project.loaded.settings
    if settings.run.name:
        check_run_name(settings.run.name)
    template_library(project).source(settings.run.template)
    if settings.scheduler.name != "auto" and settings.scheduler.name not in schedulers().names():
        schedulers().load(settings.scheduler.name)
    if settings.run.switch_owners and settings.run.switch_owners not in set(OwnerPolicy):
        raise SettingsError(
            f"switch_owners = {settings.run.switch_owners!r} is no owner policy", hint="there are: owner, group, any"
        )
    if settings.submit.signal_lead_s > MAX_LEAD_S:
        raise SettingsError(
            f"signal_lead_s is above {MAX_LEAD_S} s, which sbatch refuses", hint="for instance signal_lead_s = 300"
        )
    try:
        split_signal(f"B:{settings.submit.signal}@{int(settings.submit.signal_lead_s)}")
        plan_submit(SubmitRequest(run=settings.run.name or "run"), settings, "logs")
    except UsageError as error:
        raise SettingsError(error.message, hint=error.hint) from error
    _check_watchdogs(project)
    _check_alerts(project)
    _check_cron(project)


def _check_watchdogs(project: Project) -> None:
    scene = scene_of(project)
    for name in dict.fromkeys((*project.loaded.settings.watches, *project.loaded.settings.watch.checks)):
        found = load_watchdog(project, name)
        found.check.targets(found.settings, scene)


def _check_cron(project: Project) -> None:
    """What a tick could not use, and would only say then."""
    from resilience.cron.tell import check_telling

    check_telling(project.loaded.settings.cron_settings)


def _check_alerts(project: Project) -> None:
    """The policy, and every channel; nothing is sent, and no secret is read."""
    from resilience.alerts.policy import check_policy

    settings = project.loaded.settings
    check_policy(settings.alert, {*channels().names(), *settings.channels})
    for route in routes_of(project).values():
        channel, channel_settings = route.load()
        channel.check(channel_settings)
