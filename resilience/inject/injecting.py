"""Injects faults: refuses, plans, records, starts, waits, and undoes.

The order makes a crash at any moment harmless: the record is written first, then its keeper starts, then the fault. The
keeper, a process in its own session, holds a pipe of the injector; it undoes the fault at the end of its time, and when
the pipe closes, which the kernel does even after SIGKILL. If the keeper is killed as well, the record remains, and the
next `resil inject` undoes what is overdue.
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import asdict, dataclass, replace
from typing import TYPE_CHECKING, Any

from resilience import layout
from resilience.errors import ResilError, UsageError
from resilience.inject import Fault, Plan, Scene, fault_plugins, typed, written
from resilience.inject.holding import start_holders
from resilience.runs.injections import (
    NOT_STARTED,
    Injection,
    allows_injection,
    create_injection,
    journal_begin,
    journal_end,
    keep_injection,
    read_injection,
    read_injections,
)
from resilience.runs.run_files import read_attempts
from resilience.settings.convert import convert_table
from resilience.system.ports import SystemClock

if TYPE_CHECKING:
    from resilience.runs.project import Project
    from resilience.runs.run_directory import RunDirectory

KEEPER = (sys.executable, "-m", "resilience.inject.keeper")
UNDO_S = 120.0
"""How long the keeper may take to undo a fault; then the injector tries it itself."""
OVER, GONE, BY_HAND, INTERRUPTED, KILLED, OVERDUE = (
    "its time was over", "the attempt that it hit is over", "undone by hand", "its injector was interrupted",
    "its injector was killed", "overdue: its injector and its keeper had ended",
)  # fmt: skip
ON = "on"
"""What the injector tells its keeper when the fault has started."""
_clock = SystemClock()
"""Not the project's: a fault may shift that."""


@dataclass(frozen=True, slots=True)
class Prepared:
    """A fault that could be injected now.

    Attributes:
        name: of the fault, as users type it.
        length_s: how long it lasts; 0: it is over in a moment.
        attempt: number of the attempt that runs, and `job` its id; 0 and empty: none does.
    """

    name: str
    fault: Fault
    settings: Any
    plan: Plan
    length_s: float
    attempt: int
    job: str
    project: Project
    directory: RunDirectory


def check_allowed(project: Project, directory: RunDirectory) -> None:
    """Raise UsageError, with the line to write, unless faults may be injected into this run."""
    uid, own = directory.stat().st_uid, os.geteuid()
    if uid != own:
        raise UsageError(
            f"run {directory.run} belongs to {directory.owner()}: faults are only injected into runs of one's own",
            hint="submit a run of your own for it: resil submit --run NAME",
        )
    if not allows_injection(directory):
        is_set = project.loaded.settings.run.allow_inject
        raise UsageError(
            f"run {directory.run} does not allow faults to be injected",
            hint="submit again: allow_inject is recorded at each submit" if is_set
            else "write allow_inject = true below [run] in resil.toml, and submit again: it is recorded at each submit",
        )  # fmt: skip


def load_fault(name: str) -> Fault:
    """Return a fault by the name that users type. Raise UsageError if there is none."""
    found: Fault = fault_plugins().load(written(name))
    return found


def prepare(
    project: Project,
    directory: RunDirectory,
    name: str,
    options: Mapping[str, Any] | None = None,
    length_s: float | None = None,
) -> Prepared:
    """Return a fault with its plan, having looked only. `options` are fields of its Settings, also as texts.

    Raise UsageError, in words, if the run does not allow it, or if it makes no sense, or has no target.
    """
    check_allowed(project, directory)
    fault = load_fault(name)
    settings = fault.Settings(**convert_table(fault.Settings, options or {}, lambda key: f"resil inject {typed(name)}"))
    newest = next(iter(read_attempts(directory, newest=1)), None)
    attempt, job = (0, "") if newest is None or newest.end is not None else (newest.number, str(newest.job_id or ""))
    plan = fault.plan(settings, fault.look(settings, Scene(project, directory)))
    check_alone(project, plan)
    is_moment = plan.is_moment or not fault.length_s
    if length_s is not None and is_moment:
        raise UsageError(f"{typed(name)} is over in a moment here, so it lasts for no time", hint="omit --for")
    length_s = 0.0 if is_moment else fault.length_s if length_s is None else length_s
    return Prepared(typed(name), fault, settings, plan, length_s, attempt, job, project, directory)


def check_alone(project: Project, plan: Plan, own: str = "") -> None:
    """Raise UsageError if a fault that is on hits the same: the end of the one would end the other. `own`: its id."""
    wanted = set(plan.state.get("alone", ()))
    for one in (one for directory in project.runs() for one in read_injections(directory)):
        if one.is_on and one.id != own and (both := sorted(wanted & set(one.state.get("alone", ())))):
            raise UsageError(
                f"{both[0]} has a fault already: {one.id}", hint=f"end it first: resil inject undo {one.id}"
            )


class Running:
    """An injected fault. As a context manager it undoes the fault at its end.

    Attributes:
        injection: its record, as last known.
    """

    def __init__(self, prepared: Prepared, injection: Injection, keeper: subprocess.Popen[bytes] | None) -> None:
        self.injection = injection
        self._prepared, self._keeper = prepared, keeper

    def __enter__(self) -> Running:
        return self

    def __exit__(self, *_: object) -> None:
        self.undo()

    def wait(self) -> Injection:
        """Return when the fault is undone, at the end of its time. Raise ResilError if it could not be undone."""
        return self._end(OVER, max(0.0, (self.injection.until or 0.0) - _clock.now()))

    def undo(self, how: str = BY_HAND) -> Injection:
        """Undo the fault now, and return its record. Raise ResilError if it could not be undone."""
        self.tell(how)
        return self._end(how, 0.0)

    def tell(self, line: str) -> None:
        """Write a line to the keeper, if there is one and it is alive."""
        if self._keeper is not None and self._keeper.stdin is not None:
            with suppress(OSError):
                os.write(self._keeper.stdin.fileno(), line.encode() + b"\n")

    def _end(self, how: str, left_s: float) -> Injection:
        """Wait for the keeper, and read how the fault ended; if the keeper has not undone it, do so."""
        if self._keeper is not None and self._keeper.stdin is not None:
            with suppress(subprocess.TimeoutExpired):
                self._keeper.wait(left_s + UNDO_S)
            self._keeper.stdin.close()
            self._keeper = None
            self.injection = undo(self._prepared.project, self._prepared.directory, self.injection, how)
        return self.injection


def inject(prepared: Prepared) -> Running:
    """Inject a fault: write its record, start its keeper, then the fault.

    Raise ResilError if it cannot be started; what it has done by then is undone.
    """
    project, directory, plan = prepared.project, prepared.directory, prepared.plan
    now = _clock.now()
    until = now + prepared.length_s if prepared.length_s else None
    injection = create_injection(
        directory,
        Injection(
            id="", fault=prepared.name, target=plan.target, does=plan.does, undoes=plan.undoes, begun=now, until=until,
            by=project.system.host.user, host=project.system.host.name, pid=os.getpid(), attempt=prepared.attempt,
            job=prepared.job, settings=asdict(prepared.settings),
            state=plan.state,
        ),
    )  # fmt: skip
    try:  # again: of two at the same moment, at least one sees the record of the other
        check_alone(project, plan, injection.id)
    except UsageError as error:  # and undoes nothing, which is the other's
        how = f"it did not start: {error.message}"
        keep_injection(directory, replace(injection, ended=_clock.now(), how=how, error=how))
        raise
    keeper = None
    try:
        journal_begin(directory, injection)
        if until is not None:
            keeper = start_holders([*KEEPER, str(directory.path), injection.id], 1)
            until = _clock.now() + prepared.length_s  # the start of the keeper does not count
            injection = replace(injection, until=until)
            keep_injection(directory, injection)
        more = prepared.fault.start(injection.state, Scene(project, directory, injection.id, until))
        if more:
            injection = replace(injection, state={**injection.state, **more})
            keep_injection(directory, injection)
    except BaseException as error:
        why = getattr(error, "message", "") or str(error) or type(error).__name__
        _give_up(prepared, injection, keeper, f"{NOT_STARTED}: {why}")
        raise
    running = Running(prepared, injection, keeper)
    running.tell(ON)
    if until is None:
        injection = replace(injection, ended=_clock.now(), how=OVER)
        keep_injection(directory, injection)
        journal_end(directory, injection)
        running.injection = injection
    return running


def _give_up(prepared: Prepared, injection: Injection, keeper: subprocess.Popen[bytes] | None, why: str) -> None:
    """Undo what has begun, and record that it failed."""
    with suppress(ResilError):
        if keeper is not None:
            injection = Running(prepared, injection, keeper).undo(why)
        else:
            injection = undo(prepared.project, prepared.directory, injection, why)
        keep_injection(prepared.directory, replace(injection, error=why))


def undo(project: Project, directory: RunDirectory, injection: Injection, how: str) -> Injection:
    """Undo an injected fault from its record, and return the record. Nothing happens if it is undone already.

    Raise ResilError if it could not be undone; then the record says why, and it can be tried again.
    """
    injection = read_injection(directory, injection.id) or injection
    if not injection.is_on:
        return injection
    injection = replace(injection, how=how)  # which holders of the fault see, where nothing else reaches them
    with suppress(ResilError):
        keep_injection(directory, injection)
    try:
        load_fault(injection.fault).undo(injection.state, Scene(project, directory, injection.id, injection.until))
    except ResilError as error:
        with suppress(ResilError):
            keep_injection(directory, replace(injection, error=f"it could not be undone: {error.message}"))
        raise ResilError(
            f"{injection.id} could not be undone: {error.message}",
            hint=f"{error.hint}{'; ' if error.hint else ''}try again: resil inject undo {injection.id}; "
            f"if nothing of it is left, remove {directory.path / layout.INJECTIONS / injection.id}.json",
        ) from error
    injection = replace(injection, ended=_clock.now(), error="")
    keep_injection(directory, injection)
    journal_end(directory, injection)
    return injection


def undo_overdue(project: Project, directory: RunDirectory) -> tuple[Injection, ...]:
    """Undo what nobody has undone in time, and return it. Raise ResilError if one could not be undone."""
    now = _clock.now()
    overdue = [one for one in read_injections(directory) if one.is_overdue(now - UNDO_S / 4)]
    return tuple(undo(project, directory, one, OVERDUE) for one in overdue)
