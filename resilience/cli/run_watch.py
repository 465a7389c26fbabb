"""`resil watch`, once or every so often: looks, prints, alerts. Knows nothing of Typer: the common call skips it."""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, NamedTuple

from resilience.cli.output import clean
from resilience.cli.show_watch import show_reports
from resilience.cli.signals import handled
from resilience.errors import ProbeError, ResilError
from resilience.settings.load import Source
from resilience.system.child import GRACE_S, reap
from resilience.system.world import World
from resilience.watch.watch import OnReadings, send_alerts, watch, watchdogs_of
from resilience.watch.watchdogs import Watchdog, load_watchdog, open_in_child, read_source, watchdog_names

if TYPE_CHECKING:
    from types import FrameType

    from resilience.finding import Report
    from resilience.runs.project import Project

EXIT_UNKNOWN = 3
EXIT_TERMINATED = 128 + signal.SIGTERM


class Ended(BaseException):
    """Somebody wants this process to end. No Exception: nobody on the way may take it for a fault of his own."""


class WatchRequest(NamedTuple):
    """What was asked for.

    Attributes:
        name: of the watchdog; None for all.
        overrides: fields of its settings that the command line gives.
        settings: dotted settings that the command line gives: `watch.deadline_s`.
        config: a settings file that was named.
        explain, as_json: how to print.
        alerts: whether to tell people.
        every_s: look again so often, until told to end; None looks once.
        times: look so many times only; 0 for ever.
    """

    name: str | None = None
    overrides: Mapping[str, object] = MappingProxyType({})
    settings: Mapping[str, str] = MappingProxyType({})
    config: Path | None = None
    explain: bool = False
    as_json: bool = False
    alerts: bool = True
    every_s: float | None = None
    times: int = 0


def run_watch(request: WatchRequest) -> int:
    """Do it, and return the exit code: that of the last verdict; 0 when a repeated look was told to end."""
    with _ended_by_signals():
        try:
            if request.every_s is None:
                return _once(request, open_in_child(World(), path=request.config, overrides=request.settings))
            return _again_and_again(request, request.every_s)
        except Ended:
            return EXIT_TERMINATED if request.every_s is None else 0
        except KeyboardInterrupt:
            if request.every_s is None:
                raise
            return 0


def _once(
    request: WatchRequest, project: Project, only: Collection[str] | None = None, on_readings: OnReadings | None = None
) -> int:
    """One tick of all watchdogs that were asked for, or `only` of some of them."""
    watchdogs, reports = _watchdogs(request, project)
    if only is not None:
        watchdogs, reports = [watchdog for watchdog in watchdogs if watchdog.name in only], []
    reports += watch(project, watchdogs, on_readings)
    code = _show(reports, request)
    if request.alerts:
        from resilience.cron import notes

        for text in send_alerts(project, reports, notes):
            _say(text)
    return code


def _watchdogs(request: WatchRequest, project: Project) -> tuple[list[Watchdog], list[Report]]:
    if request.name is not None:
        return [load_watchdog(project, request.name, request.overrides)], []
    return watchdogs_of(project, watchdog_names(project))


def _again_and_again(request: WatchRequest, every_s: float) -> int:
    from resilience.watch.daemon import DueLogs, LogFollower, ticks

    world = World()
    try:
        source = read_source(world, request.config)
        project = open_in_child(world, path=request.config, overrides=request.settings, source=source)
    except ProbeError:  # the home folder hangs; as soon as it answers, what it says counts
        source, project = Source(), open_in_child(world, path=request.config, overrides=request.settings)
    code, due, follower = 0, DueLogs(world.clock), LogFollower()
    try:
        for overdue in ticks(world.clock, every_s, request.times, due.logs, follower):
            try:
                now_there = read_source(world, request.config)
                if now_there.path is None and source.path is not None:
                    _say(f"{source.path} is no longer there; the settings read before go on")
                elif now_there != source or project.unread is not None:
                    project = open_in_child(world, path=request.config, overrides=request.settings, source=now_there)
                    source = now_there
            except ResilError as error:  # somebody is editing it, or the disk hangs: what was good goes on
                _say(f"{error.message}; the settings read before go on")
            try:
                only = due.owners(overdue) if overdue else None
                code = _once(request, project, only, due.note)
            except ResilError as error:
                _say(error.message)
                code = EXIT_UNKNOWN
            except Exception as error:  # a bug; the next tick may meet none, and nobody else watches
                if os.environ.get("RESIL_TRACEBACK"):
                    raise
                _say(f"internal error: {type(error).__name__}: {error}; RESIL_TRACEBACK=1 shows where")
                code = EXIT_UNKNOWN
            reap(GRACE_S)
    finally:
        follower.stop()
    return code


def _show(reports: Sequence[Report], request: WatchRequest) -> int:
    """Print. A full disk under standard output, or a reader gone, must not keep anybody from being alerted."""
    from resilience.finding import Verdict

    try:
        show_reports(reports, explain=request.explain, as_json=request.as_json, everything=request.name is None)
        sys.stdout.flush()
    except OSError as error:
        if not isinstance(error, BrokenPipeError):
            _say(f"cannot write to standard output: {error.strerror}")
        with suppress(OSError, ValueError):
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    return max((report.verdict for report in reports), default=Verdict.UNKNOWN).exit_code


def _say(text: str) -> None:
    with suppress(OSError):
        print(f"resil: {clean(text)}", file=sys.stderr, flush=True)


@contextmanager
def _ended_by_signals() -> Iterator[None]:
    """Let SIGTERM and SIGHUP end what is under way, children included, instead of leaving those behind."""

    def end(number: int, frame: FrameType | None) -> None:
        raise Ended

    with handled(end, signal.SIGTERM, signal.SIGHUP):
        yield
