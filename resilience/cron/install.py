"""Has something make the ticks of cron, or nothing any more: install, uninstall, stop."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import replace as changed
from typing import TYPE_CHECKING, Any, NamedTuple

from resilience.cron.driver_choice import AUTO, Choice, choose, driver_of, drivers
from resilience.cron.drivers import Step
from resilience.cron.environment import facts_of
from resilience.cron.installation import AlreadyInstalled, already, installation_here, spelled, who
from resilience.cron.project import CronProject, open_cron
from resilience.cron.records import Installation
from resilience.errors import ResilError, UsageError
from resilience.system.files import write_atomic
from resilience.watch.watchdogs import context_of

if TYPE_CHECKING:
    from resilience.runs.project import Project

__all__ = ["AlreadyInstalled", "Installed", "Removed", "install", "stop", "uninstall"]

WHY = "why"
"""The fact of an installation that says why its driver was chosen, for `resil cron status`."""

UNINSTALLING = "it is being uninstalled"

WITH_MODE = ("slurm", "scrontab")
"""Drivers that keep a process running, or start one for each tick: [cron] mode says which."""

_TABLES = ("crontab", "scrontab", "systemd")
"""Drivers whose lines name the project, and so are found where nobody remembers the installation."""


class Installed(NamedTuple):
    """What `install` did, or would do.

    Attributes:
        choice: which driver, why, and why none of the others.
        installation: as it stands in driver.json; of a dry run: as it would.
        steps: what is (to be) done, word for word. Empty: there is nothing to do.
        lines: a line for each thing that was done; empty in a dry run, and where everything was there already.
        notes: what the person should know besides: a stop that was taken back, an older backend that was taken out.
    """

    choice: Choice
    installation: Installation
    steps: tuple[Step, ...] = ()
    lines: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()


class Removed(NamedTuple):
    """What `uninstall` or `stop` did.

    Attributes:
        installation: what made the ticks; None: nothing did.
        lines: a line for each thing that was done.
        notes: what could not be done, and what follows from that.
    """

    installation: Installation | None
    lines: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()


def install(project: Project, backend: str = "", *, dry_run: bool = False, replace: bool = False) -> Installed:
    """Have a driver make the ticks of this project. Doing it again does nothing, and takes back a `stop`.

    `backend` (empty: the settings') is `auto` or a driver's name. With `replace`, one that is installed already is
    taken out first. Raise AlreadyInstalled, saying whose, if somebody else's, or another driver, makes the ticks, and
    ResilError if it could not be done; then, and after every failure, everything is as it was.
    """
    cron = open_cron(project)
    wanted = backend or cron.settings.backend
    existing = installation_here(cron, forget=replace, dry_run=dry_run)
    if existing is not None:
        is_same = existing.by == project.system.host.user and wanted in (AUTO, existing.driver)
        if is_same and not (replace and existing.host != project.system.host.name):
            return _again(cron, existing, dry_run=dry_run)
        if not replace:
            raise already(existing, project, wanted)
    choice = choose(project, wanted)
    installation = _new(cron, choice)
    context = context_of(project)
    if dry_run:
        before = () if existing is None else (Step(f"take out what makes the ticks now: {who(existing, project)}"),)
        steps = (*before, *choice.driver.plan(installation, cron.settings, context))
        return Installed(choice, installation, steps=steps)
    notes: tuple[str, ...] = ()
    if existing is not None:
        removed = uninstall(project, force=True, for_another=True)
        notes = (*removed.lines, *removed.notes)
    counts = cron.state.install(installation)
    if counts.token != installation.token:  # somebody was quicker
        if counts.by == installation.by and counts.driver == installation.driver:
            return _again(cron, counts, dry_run=False)
        raise already(counts, project, wanted)
    stopped = _unstop(cron)
    try:
        steps = tuple(choice.driver.plan(installation, cron.settings, context))
        lines = tuple(choice.driver.install(installation, cron.settings, context))
    except BaseException:
        _forget(cron, installation)
        if existing is not None:
            _put_back(cron, existing)
        _stop_again(cron, stopped)
        raise
    noted = f"noted in {cron.state.path / 'driver.json'} that {choice.name} makes the ticks"
    return Installed(choice, installation, steps, (*lines, noted), (*notes, *_taken_back(stopped)))


def uninstall(project: Project, *, force: bool = False, for_another: bool = False) -> Removed:
    """Have nothing make the ticks any more. Raise ResilError if it could not be taken out; `force` forgets it then.

    Meanwhile the project is stopped, so that no job of a chain is submitted behind our back; and it stays so where
    something was left that may tick on, unless this is `for_another` driver that takes over.
    """
    cron = open_cron(project)
    existing = installation_here(cron, forget=force)
    stopped = cron.state.stopped()
    if stopped is not None and stopped.get("why") == UNINSTALLING:  # an uninstall that was killed
        stopped = None
    lines: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()
    left = ""
    try:
        if existing is None:
            return Removed(None, _sweep(cron), _missed_no_more(cron))
        if stopped is None:
            cron.state.stop(project.system.host.user, UNINSTALLING, project.system.clock.now())
        try:
            lines = tuple(driver_of(existing.driver).uninstall(existing, cron.settings, context_of(project)))
        except ResilError as error:
            if not force:
                if not error.hint:
                    error.hint = "if it is gone for good: resil cron uninstall --force"
                raise
            notes = (
                f"could not be taken out: {error.message}",
                "what still ticks there finds nothing to do that does not run here as well: each slot runs once"
                if for_another
                else "what still ticks there does nothing from now on: it finds a stop, until resil cron install",
            )
            if not for_another and (stopped is None or not stopped.get("why")):
                left = f"uninstalled; the {existing.driver} of {existing.by} on {existing.host} could not be reached"
        _forget(cron, existing)
        notes = (*notes, *_missed_no_more(cron))
    finally:
        if left:
            cron.state.stop(project.system.host.user, left, project.system.clock.now())
        elif stopped is None:
            cron.state.unstop()
    return Removed(existing, lines, notes)


def stop(project: Project, why: str = "") -> Removed:
    """Have no tick run anything any more, and take away what is queued. `install` takes it back.

    Everybody who may write in the state directory can do that, whoever installed it.
    """
    cron = open_cron(project)
    cron.state.stop(project.system.host.user, why, project.system.clock.now())
    existing = installation_here(cron)
    if existing is None:
        return Removed(None)
    try:
        lines = driver_of(existing.driver).uninstall(existing, cron.settings, context_of(project))
    except ResilError as error:
        note = f"what makes the ticks could not be taken away ({error.message}); they do nothing from now on"
        return Removed(existing, notes=(note, *([error.hint] if error.hint else ())))
    return Removed(existing, tuple(lines))


def _again(cron: CronProject, existing: Installation, *, dry_run: bool) -> Installed:
    """Bring what is installed up to date: mostly there is nothing to do."""
    project, context = cron.project, context_of(cron.project)
    driver = driver_of(existing.driver)
    facts = facts_of(project) | {key: value for key, value in existing.facts.items() if key == WHY}
    fresh = changed(existing, project=spelled(existing, project), python=sys.executable, facts=facts)
    fresh = changed(fresh, mode=_mode(cron, existing.driver))
    choice = Choice(existing.driver, driver, f"it makes the ticks already: {who(existing, project)}", ())
    steps = tuple(driver.plan(fresh, cron.settings, context))
    if dry_run:
        notes = ("the scheduler is stopped, and would go on",) if cron.state.stopped() is not None else ()
        return Installed(choice, fresh, steps=steps, notes=notes)
    stopped = _unstop(cron)
    try:
        lines = tuple(driver.install(fresh, cron.settings, context))
        if (now := cron.state.installation()) is None or now.token != existing.token:
            raise ResilError("somebody uninstalled it while it was being installed", hint="resil cron status")
        if fresh != existing:
            text = json.dumps(fresh.to_json(), indent=1) + "\n"
            write_atomic(cron.state.path / "driver.json", text, mode=cron.state.file_mode)
    except BaseException:
        _stop_again(cron, stopped)
        raise
    return Installed(choice, fresh, steps if lines else (), lines, _taken_back(stopped))


def _new(cron: CronProject, choice: Choice) -> Installation:
    project = cron.project
    if not sys.executable:
        raise ResilError("it cannot be told which Python this is", hint="call resil by its absolute path")
    return Installation(
        driver=choice.name,
        token=os.urandom(8).hex(),
        time=project.system.clock.now(),
        by=project.system.host.user,
        host=project.system.host.name,
        project=str(project.loaded.project),
        python=sys.executable,
        mode=_mode(cron, choice.name),
        facts=facts_of(project) | {WHY: choice.why},
    )


def _mode(cron: CronProject, name: str) -> str:
    mode = cron.settings.mode
    if mode not in ("daemon", "pulse"):
        raise UsageError(f"[cron] mode is {mode!r}", hint="it can be daemon or pulse")
    return mode if name in WITH_MODE else ""


def _forget(cron: CronProject, installation: Installation) -> None:
    """Take back what `CronDirectory.install` wrote, if it is still ours."""
    with suppress(ResilError):
        now = cron.state.installation()
        if now is not None and now.token != installation.token:
            return
    cron.state.uninstall()


def _put_back(cron: CronProject, existing: Installation) -> None:
    """Install again what was taken out for something that failed. Where even that fails, `resil cron status` tells."""
    with suppress(ResilError):
        if cron.state.install(existing).token == existing.token:
            driver_of(existing.driver).install(existing, cron.settings, context_of(cron.project))


def _unstop(cron: CronProject) -> Mapping[str, Any] | None:
    """Take back a `stop` before anything is queued: a job that finds one ends without a successor."""
    stopped = cron.state.stopped()
    if stopped is not None:
        cron.state.unstop()
    return stopped


def _stop_again(cron: CronProject, stopped: Mapping[str, Any] | None) -> None:
    if stopped is not None:
        with suppress(ResilError, OSError):
            now = stopped.get("time")
            when = now if isinstance(now, int | float) else cron.project.system.clock.now()
            cron.state.stop(str(stopped.get("by", "")), str(stopped.get("why", "")), when)


def _taken_back(stopped: Mapping[str, Any] | None) -> tuple[str, ...]:
    if stopped is None:
        return ()
    why = f" ({stopped['why']})" if stopped.get("why") else ""
    return (f"it was stopped by {stopped.get('by') or 'somebody'}{why}, and goes on now",)


def _missed_no_more(cron: CronProject) -> tuple[str, ...]:
    """Have nobody miss what was never installed: a `resil cron run` that ended, a tick by hand."""
    from resilience.cron_late import INSTALLED, is_late
    from resilience.system.ports import iso_time

    try:
        beat = cron.state.heartbeat()
        if beat is None or beat.driver in INSTALLED or cron.state.expect_no_more() is None:
            return ()
    except ResilError:
        return ()
    command = {"foreground": "resil cron run", "tick": "resil cron tick"}.get(beat.driver, beat.driver or "something")
    who = f"{command} on {beat.host}"
    if is_late(beat.time, beat.expected, cron.project.system.clock.now(), cron.settings.late_s):
        return (f"no tick comes since {iso_time(beat.time)} ({who}), and nobody misses them any more",)
    return (f"if ticks still come from {who}, end that there: nobody misses them",)


def _sweep(cron: CronProject) -> tuple[str, ...]:
    """Take out lines of this project whose installation nobody remembers: the state directory was removed."""
    host, project = cron.project.system.host, cron.project
    nobody = Installation(
        driver="", token="0" * 16, time=0.0, by=host.user, host=host.name, project=str(project.loaded.project),
        python=sys.executable,
    )  # fmt: skip
    lines: list[str] = []
    for name in _TABLES:
        if name in drivers().names():
            with suppress(ResilError):
                lines += driver_of(name).uninstall(nobody, cron.settings, context_of(project))
    return tuple(lines)
