"""Installs, uninstalls and stops what makes the ticks of cron, and finds the installation of a project."""

from __future__ import annotations

import json
import os
import shlex
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import replace as changed
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from resilience.cron.driver_choice import AUTO, Choice, choose, driver_of, drivers, next_best
from resilience.cron.drivers import Step
from resilience.cron.drivers.slurm import check_mode
from resilience.cron.environment import facts_of
from resilience.cron.project import CronProject, open_cron
from resilience.cron.records import Installation
from resilience.errors import ResilError, StateDirectoryError
from resilience.system.files import write_atomic
from resilience.watch.watchdogs import context_of

if TYPE_CHECKING:
    from resilience.cron.project import CronProject
    from resilience.runs.project import Project

_NOTE = "driver.json"


class AlreadyInstalled(ResilError):
    """Another backend or another user makes the ticks of this project already."""


def installation_here(cron: CronProject, *, forget: bool = False, dry_run: bool = False) -> Installation | None:
    """Return the installation of this project; None: there is none.

    A copied project contains the other project's driver.json with its token; that installation is not ours to change,
    so the copy is deleted. With `forget`, an unreadable driver.json is quarantined. A dry run changes nothing.
    """
    note = cron.state.path / _NOTE
    try:
        found = cron.state.installation()
        copied = cron.state.installation(or_copied=True) if found is None else None
    except StateDirectoryError:
        if not forget or not note.exists():
            raise
        if not dry_run:
            cron.state.quarantine(_NOTE)
        return None
    if copied is not None and not dry_run:
        cron.state.uninstall()
    return found


def spelled(installation: Installation, project: Project) -> str:
    """Return the project path as recorded, if that still leads here."""
    here = project.loaded.project
    with suppress(OSError):
        if Path(installation.project).samefile(here):
            return installation.project
    return str(here)


def who(installation: Installation, project: Project) -> str:
    """Return `alice installed crontab on login1 at 2026-11-20T19:00:00+01:00`."""
    from resilience.system.ports import iso_time

    by = "you" if installation.by == project.system.host.user else installation.by
    return f"{by} installed {installation.driver} on {installation.host} at {iso_time(installation.time)}"


def already(installation: Installation, project: Project, wanted: str) -> AlreadyInstalled:
    """Return the error for a request that conflicts with the existing installation."""
    if installation.by == project.system.host.user:
        switch = ["--replace"] if wanted == AUTO else ["--backend", wanted, "--replace"]
        hint = f"one is enough: resil cron status; to switch to {wanted}: resil cron install {shlex.join(switch)}"
    else:
        hint = f"one is enough: resil cron status; only {installation.by} can remove it: resil cron uninstall"
    return AlreadyInstalled(f"this project has a scheduler already: {who(installation, project)}", hint=hint)


WHY = "why"
"""Fact of an installation: why its driver was chosen, for `resil cron status`."""

UNINSTALLING = "it is being uninstalled"

WITH_MODE = ("slurm", "scrontab")
"""Drivers for which [cron] mode selects a daemon or one process per tick."""

_TABLES = ("crontab", "scrontab", "systemd")
"""Drivers whose entries name the project, so that they are found without a recorded installation."""


class Installed(NamedTuple):
    """Result of `install`, or with a dry run its plan.

    Attributes:
        choice: the driver, why, and why not the others.
        installation: as recorded in driver.json; with a dry run, as it would be.
        steps: the steps, with the exact text written. Empty: nothing to do.
        lines: one line per completed step; empty for a dry run, and if everything was in place.
        notes: further information for the user: a stop that was reverted, a previous backend that was removed.
    """

    choice: Choice
    installation: Installation
    steps: tuple[Step, ...] = ()
    lines: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()


class Removed(NamedTuple):
    """Result of `uninstall` or `stop`.

    Attributes:
        installation: what made the ticks; None: nothing.
        lines: one line per completed step.
        notes: steps that failed, and the consequences.
    """

    installation: Installation | None
    lines: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()


def install(project: Project, backend: str = "", *, dry_run: bool = False, replace: bool = False) -> Installed:
    """Install a driver that makes the ticks of this project. Repeating it changes nothing, and reverts a `stop`.

    `backend` (default: the settings) is `auto` or the name of a driver. With `replace`, an installed driver is removed
    first. Raise AlreadyInstalled if another user or another driver makes the ticks, and ResilError if installing fails;
    then everything is as before.
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
        before = () if existing is None else (Step(f"remove the current backend: {who(existing, project)}"),)
        steps = (*before, *choice.driver.plan(installation, cron.settings, context))
        return Installed(choice, installation, steps=steps)
    notes: tuple[str, ...] = ()
    if existing is not None:
        removed = uninstall(project, force=True, for_another=True)
        notes = (*removed.lines, *removed.notes)
    with _resumed(cron) as resumed:
        while True:
            counts = cron.state.install(installation)
            if counts.token != installation.token:  # another process was faster
                if counts.by == installation.by and counts.driver == installation.driver:
                    return _again(cron, counts, dry_run=False)
                raise already(counts, project, wanted)
            try:
                steps = tuple(choice.driver.plan(installation, cron.settings, context))
                lines = tuple(choice.driver.install(installation, cron.settings, context))
                break
            except BaseException as error:
                _forget(cron, installation)
                other = next_best(choice, error) if wanted == AUTO and isinstance(error, ResilError) else None
                if other is None and existing is not None:
                    _put_back(cron, existing)
                if other is None:
                    raise
                notes = (*notes, f"{choice.name} could not be installed: {error}; took the next best backend")
                choice, installation = other, _new(cron, other)
    noted = f"recorded backend {choice.name} in {cron.state.path / _NOTE}"
    return Installed(choice, installation, steps, (*lines, noted), (*notes, *resumed))


def uninstall(project: Project, *, force: bool = False, for_another: bool = False) -> Removed:
    """Remove what makes the ticks. Raise ResilError if this fails, unless `force` is set.

    During the removal the project is stopped, so that no job of a chain submits a successor; it stays stopped if
    something that may tick was left, unless another driver takes over (`for_another`).
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
            return Removed(None, _remove_orphans(cron), _expect_no_more(cron))
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
                f"could not remove it: {error.message}",
                "leftover ticks there do no harm: each slot runs once"
                if for_another
                else "leftover ticks there do nothing: the scheduler is stopped until resil cron install",
            )
            if not for_another and (stopped is None or not stopped.get("why")):
                left = f"uninstalled; the {existing.driver} of {existing.by} on {existing.host} could not be reached"
        _forget(cron, existing)
        notes = (*notes, *_expect_no_more(cron))
    finally:
        if left:
            cron.state.stop(project.system.host.user, left, project.system.clock.now())
        elif stopped is None:
            cron.state.unstop()
    return Removed(existing, lines, notes)


def stop(project: Project, why: str = "") -> Removed:
    """Stop all ticks, and cancel queued jobs. `install` reverts it.

    Every user who can write to the state directory may do this.
    """
    cron = open_cron(project)
    cron.state.stop(project.system.host.user, why, project.system.clock.now())
    existing = installation_here(cron)
    if existing is None:
        return Removed(None)
    try:
        lines = driver_of(existing.driver).uninstall(existing, cron.settings, context_of(project))
    except ResilError as error:
        note = f"could not remove the backend ({error.message}); its ticks do nothing from now on"
        return Removed(existing, notes=(note, *([error.hint] if error.hint else ())))
    return Removed(existing, tuple(lines))


def _again(cron: CronProject, existing: Installation, *, dry_run: bool) -> Installed:
    """Update an existing installation; usually nothing changes."""
    project, context = cron.project, context_of(cron.project)
    driver = driver_of(existing.driver)
    facts = facts_of(project) | {key: value for key, value in existing.facts.items() if key == WHY}
    here, mode = spelled(existing, project), _mode(cron, existing.driver)
    fresh = changed(existing, project=here, python=sys.executable, facts=facts, mode=mode)
    choice = Choice(existing.driver, driver, f"already installed: {who(existing, project)}", ())
    steps = tuple(driver.plan(fresh, cron.settings, context))
    if dry_run:
        notes = ("the scheduler is stopped, and would resume",) if cron.state.stopped() is not None else ()
        return Installed(choice, fresh, steps=steps, notes=notes)
    with _resumed(cron) as resumed:
        lines = tuple(driver.install(fresh, cron.settings, context))
        if (now := cron.state.installation()) is None or now.token != existing.token:
            raise ResilError("another process uninstalled it in the meantime", hint="resil cron status")
        if fresh != existing:
            text = json.dumps(fresh.to_json(), indent=1) + "\n"
            write_atomic(cron.state.path / _NOTE, text, mode=cron.state.file_mode)
    return Installed(choice, fresh, steps if lines else (), lines, resumed)


def _new(cron: CronProject, choice: Choice) -> Installation:
    project = cron.project
    if not sys.executable:
        raise ResilError("the path of this Python interpreter is unknown", hint="call resil by its absolute path")
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
    check_mode(cron.settings.mode)
    return cron.settings.mode if name in WITH_MODE else ""


def _forget(cron: CronProject, installation: Installation) -> None:
    """Revert `CronDirectory.install`, unless another installation replaced it."""
    with suppress(ResilError):
        now = cron.state.installation()
        if now is not None and now.token != installation.token:
            return
    cron.state.uninstall()


def _put_back(cron: CronProject, existing: Installation) -> None:
    """Reinstall the previous driver after a failure. If that fails as well, `resil cron status` shows it."""
    with suppress(ResilError):
        if cron.state.install(existing).token == existing.token:
            driver_of(existing.driver).install(existing, cron.settings, context_of(cron.project))


@contextmanager
def _resumed(cron: CronProject) -> Iterator[tuple[str, ...]]:
    """Revert a stop, because a job that finds one ends without a successor; stop again if the work inside fails.

    Give one line about the stop that was reverted, if there was one.
    """
    stopped = cron.state.stopped()
    if stopped is None:
        yield ()
        return
    by, why, at = (stopped.get(key) for key in ("by", "why", "time"))
    cron.state.unstop()
    try:
        yield (f"resumed; it was stopped by {by or 'an unknown user'}{f' ({why})' if why else ''}",)
    except BaseException:
        with suppress(ResilError, OSError):
            now = cron.project.system.clock.now()
            cron.state.stop(str(by or ""), str(why or ""), at if isinstance(at, int | float) else now)
        raise


def _expect_no_more(cron: CronProject) -> tuple[str, ...]:
    """Stop expecting ticks that were never installed: of a `resil cron run` that ended, or a manual tick."""
    from resilience.cron_late import INSTALLED, is_late
    from resilience.system.ports import iso_time

    try:
        beat = cron.state.heartbeat()
        if beat is None or beat.driver in INSTALLED or cron.state.mark_last() is None:
            return ()
    except ResilError:
        return ()
    command = {"foreground": "resil cron run", "tick": "resil cron tick"}.get(beat.driver, beat.driver or "something")
    who = f"{command} on {beat.host}"
    if is_late(beat.time, beat.expected, cron.project.system.clock.now(), cron.settings.late_s):
        return (f"the last tick was at {iso_time(beat.time)} ({who}); no further ticks are expected",)
    return (f"if {who} still ticks, end it there; no further ticks are expected",)


def _remove_orphans(cron: CronProject) -> tuple[str, ...]:
    """Remove entries of this project without a recorded installation: the state directory was deleted."""
    host, project = cron.project.system.host, cron.project
    orphan = Installation(
        driver="", token="0" * 16, time=0.0, by=host.user, host=host.name, project=str(project.loaded.project),
        python=sys.executable,
    )  # fmt: skip
    lines: list[str] = []
    for name in _TABLES:
        if name in drivers().names():
            with suppress(ResilError):
                lines += driver_of(name).uninstall(orphan, cron.settings, context_of(project))
    return tuple(lines)
