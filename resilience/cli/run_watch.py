"""`resil watch`, once or repeatedly: runs the watchdogs, prints findings, sends alerts. Does not import Typer.

The output is that of a Nagios plugin, a table on a terminal, or JSON. Source:
https://www.monitoring-plugins.org/doc/guidelines.html ("Plugin Output for Nagios", "Performance data"): the first line
has the verdict and all performance data, further lines are long output. Here the first line is the worst finding's, and
each finding has its own line.
"""

from __future__ import annotations

import os
import re
import signal
import sys
import time
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import replace
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, NamedTuple

from resilience.cli.output import (
    LiveView,
    chosen,
    clean,
    close_stdout,
    folded,
    handled,
    paint,
    print_json,
    say,
    table,
    verdict_colour,
)
from resilience.errors import ProbeError, ResilError
from resilience.finding import Figure, Finding, Report, Verdict
from resilience.messages import plural
from resilience.quantities import format_duration
from resilience.runs.open_project import in_child, open_in_child, read_source
from resilience.settings.load import Source
from resilience.system.child import GRACE_S, reap
from resilience.system.ports import System
from resilience.system.stuck import StuckMemory
from resilience.watch.watch import ALERTING_S, SETTINGS_FAULT, OnReadings, Tick, send_alerts, watchdogs_of
from resilience.watch.watchdogs import Watchdog, load_watchdog, watchdog_names

if TYPE_CHECKING:
    from types import FrameType

    from resilience.runs.project import Project

EVIDENCE_LINES = 5
"""Lines of evidence shown below a bad finding; `--explain` and `--json` have all."""

NRPE_BYTES = 4096
"""Nagios reads no more of a plugin (https://assets.nagios.com/downloads/nagioscore/docs/nagioscore/4/en/pluginapi.html)."""

OK_ROWS = 20
"""OK findings shown on a terminal; the rest is counted."""


def show_reports(
    reports: Sequence[Report],
    *,
    explain: bool = False,
    as_json: bool = False,
    everything: bool = False,
    is_first: bool = True,
    nrpe: bool = False,
) -> int:
    """Print the findings. Return the exit code of the worst verdict.

    `everything`: as with `--all`. `is_first`: print the headers of a table. `nrpe`: one line in all.
    """
    if nrpe:
        print(nrpe_line(lines(reports, everything=everything)[0]))
    elif as_json:
        print_json("watch", to_json(reports))
    elif sys.stdout.isatty():
        print(*terminal_lines(reports, explain=explain)[not is_first :], sep="\n")
    else:
        print(*lines(reports, explain=explain, everything=everything), sep="\n")
    return _worst(reports).exit_code


def lines(reports: Sequence[Report], *, explain: bool = False, everything: bool = False) -> list[str]:
    """Return the lines for pipes, programs and cron's mail, worst first. Pure."""
    found = _worst_first(reports)
    data_parts = (performance(f, fig, check if everything else "") for check, f in found for fig in f.figures)
    data = " ".join(dict.fromkeys(data_parts))  # two findings about one subject have the same figures
    worst = _worst(reports)
    shown = []
    if everything:
        shown.append(f"RESIL {worst.value} - {_counted(reports, found)}" + (f" | {data}" if data else ""))
    elif not found:
        shown.append(f"RESIL {worst.value} - no watchdog ran")
    for number, (check, finding) in enumerate(found):
        text = line(check, finding)
        if number == 0 and not everything:
            what = f"all {len(found)} are OK" if worst is Verdict.OK else f"worst of {len(found)}"
            text += f" ({what})" if len(found) > 1 else ""
            text += f" | {data}" if data else ""
        shown.append(text)
        shown += [f"  {text}" for text in _details(finding, explain=explain)]
    return shown


def nrpe_line(text: str) -> str:
    """Return a line that Nagios reads whole: what is too much of the performance data, then of the text, is left out.
    Pure."""
    said, bar, data = _without_breaks(text).partition(" | ")
    figures = re.findall(r"'(?:[^']|'')*'=\S*", data)
    room = NRPE_BYTES - 1 - len(said.encode()) - len(bar)
    kept = []
    for figure in figures:
        room -= len(figure.encode()) + 1
        if room < 0:
            break
        kept.append(figure)
    if len(said.encode()) >= NRPE_BYTES:
        return said.encode()[: NRPE_BYTES - 4].decode("utf-8", "ignore") + "..."
    return said + (f" | {' '.join(kept)}" if kept else "")


def nrpe_unknown(why: str) -> str:
    """Return the line that says why nothing could be checked. Pure."""
    return nrpe_line(f"RESIL UNKNOWN - {_without_bars(_without_breaks(why))}")


def _without_breaks(text: str) -> str:
    return " ".join(text.split("\n"))


def _worst_first(reports: Sequence[Report]) -> list[tuple[str, Finding]]:
    found = ((report.check, finding) for report in reports for finding in report.findings)
    return sorted(found, key=lambda pair: pair[1].verdict, reverse=True)


def _counted(reports: Sequence[Report], found: Sequence[tuple[str, Finding]]) -> str:
    """`1 critical, 12 ok in 4 watchdogs; worst: fs /scratch: 97% used`. Pure."""
    verdicts = [finding.verdict for _, finding in found]
    counts = [
        f"{verdicts.count(verdict)} {verdict.value.lower()}" for verdict in reversed(Verdict) if verdict in verdicts
    ]
    text = f"{', '.join(counts) or 'nothing'} in {plural(len(reports), 'watchdog')}"
    if found and found[0][1].verdict is not Verdict.OK:
        text += f"; worst: {found[0][0]} {_subject_and_summary(found[0][1])}"
    return text


def line(check: str, finding: Finding) -> str:
    """`FS WARNING - /scratch: 91% used`. Pure."""
    return f"{_without_bars(check).upper()} {finding.verdict.value} - {_subject_and_summary(finding)}"


def _subject_and_summary(finding: Finding) -> str:
    return _without_bars(f"{finding.subject}: {finding.summary}")


def _without_bars(text: str) -> str:
    """Return text without `|`, which begins performance data, and without line breaks."""
    return clean(text).replace("|", "¦")


def _details(finding: Finding, *, explain: bool) -> list[str]:
    """Return the lines below a finding: evidence, advice, and the explanation of the verdict."""
    shown = []
    if finding.verdict is not Verdict.OK:
        evidence = finding.evidence if explain else finding.evidence[:EVIDENCE_LINES]
        shown += [f"> {_without_bars(text)}" for text in evidence]
        if finding.advice:
            shown.append(f"try: {_without_bars(finding.advice)}")
    return shown + ([_without_bars(text) for text in finding.looked] if explain else [])


def performance(finding: Finding, figure: Figure, check: str = "") -> str:
    """`'label'=value[unit];[warn];[crit];[min];[max]`. Pure.

    The label has the subject, so that it does not depend on the number of findings. `=` is not allowed in a label, and
    quotes are doubled. A value that is not a number is `U`, undetermined.
    """
    label = figure.label if finding.subject in figure.label else f"{finding.subject} {figure.label}"
    label = _without_bars(f"{check} {label}".strip()).replace("=", ":").replace("'", "''")

    def number(value: float | None) -> str:
        if value is None:
            return ""
        if value != value or value in (float("inf"), -float("inf")):
            return "U"
        return f"{value:.6f}".rstrip("0").rstrip(".") if value % 1 else f"{value:.0f}"  # no exponent: [-0-9.] only

    value = number(figure.value)
    rest = ";".join(
        "" if number(v) == "U" else number(v) for v in (figure.warn, figure.crit, figure.minimum, figure.maximum)
    )
    return f"'{label}'={value}{figure.unit if value != 'U' else ''};{rest}".rstrip(";")


def terminal_lines(reports: Sequence[Report], *, explain: bool = False) -> list[str]:
    """Return a table for a terminal: worst first, with advice below each finding."""
    found = _worst_first(reports)
    well = [pair for pair in found if pair[1].verdict is Verdict.OK]
    hidden = 0 if explain else max(0, len(well) - OK_ROWS)
    found = found[: len(found) - hidden]
    headers = ("VERDICT", "WATCHDOG", "SUBJECT", "SUMMARY")
    cells = [(f.verdict.value, check, f.subject, f.summary) for check, f in found]
    head, *rows = table(headers, cells)
    indent = " " * (head.find("SUBJECT") - head.find("VERDICT"))
    shown = [head]
    for (_, finding), row in zip(found, rows, strict=True):
        word = finding.verdict.value
        shown.append(paint(word, verdict_colour(finding.verdict)) + row.removeprefix(word))
        if (finding.verdict is not Verdict.OK or explain) and not row.endswith(clean(finding.summary)):  # clipped
            shown += folded(_subject_and_summary(finding), len(indent))
        shown += [paint(f"{indent}{text}", "dim") for text in _details(finding, explain=explain)]
    if hidden:
        shown.append(paint(f"and {hidden} more OK (all: --explain, --json)", "dim"))
    return shown


def to_json(reports: Sequence[Report]) -> dict[str, Any]:
    """Return the reports for a JSON document. Pure."""
    worst = _worst(reports)
    rows = [chosen(r, "check", "verdict", "time", "findings") | {"took_s": round(r.took_s, 3)} for r in reports]
    return {"verdict": worst, "exit_code": worst.exit_code, "reports": rows}


def _worst(reports: Sequence[Report]) -> Verdict:
    return max((report.verdict for report in reports), default=Verdict.UNKNOWN)


CRON_ENTRY = "RESIL_CRON_ENTRY"
"""Set for every entry of the cron table, which belongs to the project as the settings do."""

EXIT_UNKNOWN = 3

ENDING_S = 10.0
"""The deadline for notifications after a signal: SIGKILL usually follows after 30 s or more."""

TEND_S = 30.0
"""The deadline for ledgers and breakers of all runs: they query the scheduler only after an attempt has ended, or while
a breaker is open. A submission that it interrupts is looked up by the next one."""

PROMPT_S = 1.0
"""On a terminal, findings are printed this long after the start, although others are awaited."""


class Ended(BaseException):
    """Raised by a terminating signal, which it names. Not an Exception, so that no handler on the way swallows it."""


class WatchRequest(NamedTuple):
    """The options of `resil watch`.

    Attributes:
        name: of the watchdog; None for all.
        overrides: fields of its settings, given on the command line.
        settings: dotted settings of the command line: `watch.deadline_s`.
        config: the settings file of the command line, or None.
        explain, as_json: how to print.
        alerts: whether to notify; None: unless targets or options that change the check are typed.
        every_s: interval in seconds, until a signal; None runs once.
        times: number of repetitions; 0 for no limit.
        retry: whether to probe at once what is known to hang.
        nrpe: whether to print one line in all.
    """

    name: str | None = None
    overrides: Mapping[str, object] = MappingProxyType({})
    settings: Mapping[str, str] = MappingProxyType({})
    config: Path | None = None
    explain: bool = False
    as_json: bool = False
    alerts: bool | None = None
    every_s: float | None = None
    times: int = 0
    retry: bool = False
    nrpe: bool = False

    @property
    def typed(self) -> str:
        """What the command line overrides, for instance `fs paths=['/scratch']`; empty: the settings alone decide."""
        given = {**self.overrides, **self.settings}
        return " ".join([self.name or "--all", *(f"{key}={given[key]}" for key in sorted(given))]) if given else ""

    def notifies(self, environ: Mapping[str, str]) -> bool:
        """Return whether this watch notifies: as asked, else if it is what the settings name or an entry of cron."""
        return self.alerts if self.alerts is not None else not self.typed or CRON_ENTRY in environ


def run_watch(request: WatchRequest) -> int:
    """Run the watchdogs. Return the exit code of the last verdict; 0 if a signal ended a repeated watch."""
    if request.retry:
        StuckMemory.of(System()).release()
    with _ended_by_signals():
        try:
            if request.every_s is None:
                return _once(request, open_in_child(System(), path=request.config, overrides=request.settings))
            return _repeatedly(request, request.every_s)
        except Ended as ended:
            if request.every_s is not None:
                return 0
            say(f"ended by {ended}: nothing was checked")
            if request.nrpe:
                print(nrpe_unknown(f"ended by {ended}: nothing was checked"))
            return EXIT_UNKNOWN
        except KeyboardInterrupt:
            if request.every_s is None:
                raise
            return 0


def _once(
    request: WatchRequest,
    project: Project,
    only: Collection[str] | None = None,
    on_readings: OnReadings | None = None,
    view: _View | None = None,
) -> int:
    """Run all requested watchdogs once, or `only` some of them.

    A signal that ends the process is no reason to lose what is known: the findings are printed and sent, those of
    targets that have not answered are UNKNOWN. A repeated watch omits watchdogs without an answer, and raises Ended
    then. A second signal ends the process at once.
    """
    watchdogs, reports = _watchdogs(request, project)
    if only is not None:
        watchdogs, reports = [watchdog for watchdog in watchdogs if watchdog.name in only], []
    if any(watchdog.name == "job" for watchdog in watchdogs) and request.notifies(project.system.environ):
        _tend_runs(project)
    tick, deadline_s, ending = Tick(project, watchdogs, on_readings), ALERTING_S, None
    with _shown_as_they_come(reports, request, is_live=view is not None) as shown:
        try:
            for report in tick:
                reports.append(report)
        except Ended as ended:
            reports += tick.unfinished(str(ended))
            deadline_s = ENDING_S
            if request.every_s is not None:
                ending = ended
                reports = [r for r in reports if any(f.verdict is not Verdict.UNKNOWN for f in r.findings)]
                if not reports:
                    raise
    order = [watchdog.name for watchdog in watchdogs]
    reports.sort(key=lambda report: order.index(report.check) if report.check in order else -1)
    if ending is None and request.notifies(project.system.environ) and any(r.verdict.exit_code for r in reports):
        from resilience.watch.hangs import attend_hangs

        try:
            reports = attend_hangs(project, watchdogs, reports)
        except Ended as ended:  # the next tick collects what is missing
            deadline_s, ending = ENDING_S, ended if request.every_s is not None else None
    code = _show(reports, request, view, shown)
    if request.notifies(project.system.environ):
        from resilience.cron import late as notes

        if request.typed:  # a mistyped option or target is no incident
            kept = [tuple(f for f in report.findings if f.fault != SETTINGS_FAULT) for report in reports]
            reports = [replace(report, findings=found) for report, found in zip(reports, kept, strict=True) if found]
        try:
            for text in send_alerts(project, reports, notes, typed=request.typed, deadline_s=deadline_s):
                say(text)
        except Ended as ended:
            say(f"ended by {ended}: alerts may not have been sent; the next look sends them")
            ending = ended if request.every_s is not None else None
    elif code and request.every_s is None:
        _say_look(request, project)
    if ending is not None:
        raise ending
    return code


def _tend_runs(project: Project) -> None:
    """Add what the scheduler says to the ledgers of runs while it remembers, open or close breakers, and queue missing
    jobs, before the watchdog reports; in a child, because a disk may hang."""

    def work() -> list[str]:
        from resilience.attempts.acting import tend_runs

        return tend_runs(project)

    answer = in_child(project.system, f"runs of {project.loaded.state_dir}", work, TEND_S)
    for text in answer.value or ():
        say(text)
    if answer.error is not None:
        say(f"the runs were not acted upon: {answer.error.message}")


@contextmanager
def _shown_as_they_come(reports: Sequence[Report], request: WatchRequest, *, is_live: bool) -> Iterator[list[Report]]:
    """Print reports on a terminal while others are still awaited, from PROMPT_S on; yield those that were printed.

    Programs get one text at the end, whose first line is the worst finding.
    """
    shown: list[Report] = []
    if is_live or request.as_json or request.nrpe or not sys.stdout.isatty():
        yield shown
        return

    def show(number: int, frame: FrameType | None) -> None:
        new = [report for report in reports if report not in shown]
        before = signal.pthread_sigmask(signal.SIG_BLOCK, ())
        try:
            if new:
                # A signal between printing and recording would have the reports printed twice.
                signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM, signal.SIGHUP})
                _show(new, request, shown=shown)
                shown.extend(new)
        finally:
            signal.pthread_sigmask(signal.SIG_SETMASK, before)

    with handled(show, signal.SIGALRM):
        signal.setitimer(signal.ITIMER_REAL, PROMPT_S, PROMPT_S)
        try:
            yield shown
        finally:
            signal.setitimer(signal.ITIMER_REAL, 0)


def _say_look(request: WatchRequest, project: Project) -> None:
    """Say that typed targets or options are not notified, if they would be without them."""
    channels = project.loaded.settings.alert.channels
    if channels and request.alerts is None:
        say(f"{', '.join(channels)} not notified: typed targets and options are a look; --alert notifies")


def _watchdogs(request: WatchRequest, project: Project) -> tuple[list[Watchdog], list[Report]]:
    if request.name is not None:
        return [load_watchdog(project, request.name, request.overrides)], []
    return watchdogs_of(project, watchdog_names(project))


def _repeatedly(request: WatchRequest, every_s: float) -> int:
    from resilience.watch.daemon import DueLogs, LogFollower, ticks

    system = System()
    try:
        source = read_source(system, request.config)
        project = open_in_child(system, path=request.config, overrides=request.settings, source=source)
    except ProbeError:  # the home directory hangs; its settings are read as soon as it responds
        source, project = Source(), open_in_child(system, path=request.config, overrides=request.settings)
    if not request.notifies(system.environ):
        _say_look(request, project)
    code, due, follower = 0, DueLogs(system.clock), LogFollower()
    view = _View(request, system)
    try:
        for overdue in ticks(system.clock, every_s, request.times, due.logs, follower):
            try:
                current = read_source(system, request.config)
                if current.path is None and source.path is not None:
                    say(f"{source.path} no longer exists; the previous settings stay in use")
                elif current != source or project.unread is not None:
                    project = open_in_child(system, path=request.config, overrides=request.settings, source=current)
                    source = current
            except ResilError as error:  # the file is being edited, or the disk hangs
                say(f"{error.message}; the previous settings stay in use")
            try:
                only = due.owners(overdue) if overdue else None
                code = _once(request, project, only, due.note, view)
            except ResilError as error:
                say(error.message)
                code = EXIT_UNKNOWN
            except Exception as error:  # a bug: continue, because no other process watches
                if os.environ.get("RESIL_TRACEBACK"):
                    raise
                say(f"internal error: {type(error).__name__}: {error}; RESIL_TRACEBACK=1 shows where")
                code = EXIT_UNKNOWN
            reap(GRACE_S)
    finally:
        view.live.close()
        follower.stop()
    return code


class _View:
    """The newest report of each watchdog, drawn again on a terminal; elsewhere reports are printed as they come."""

    def __init__(self, request: WatchRequest, system: System) -> None:
        self.request, self.system, self.live = request, system, LiveView()
        self.newest: dict[str, Report] = {}

    def show(self, reports: Sequence[Report]) -> None:
        """Show new reports."""
        if self.request.as_json or not sys.stdout.isatty():
            _print(reports, self.request)
            return
        self.newest |= {report.check: report for report in reports}
        at = time.strftime("%H:%M:%S", time.localtime(self.system.clock.now()))
        title = f"resil watch, every {format_duration(self.request.every_s or 0)}; last at {at}; Ctrl-C ends it"
        found = [*self.newest.values()]

        def show() -> None:
            print(paint(title, "dim"))
            _print(found, self.request)

        self.live.show(show)


def _print(reports: Sequence[Report], request: WatchRequest, *, is_first: bool = True) -> None:
    show_reports(
        reports,
        explain=request.explain,
        as_json=request.as_json,
        everything=request.name is None,
        is_first=is_first,
        nrpe=request.nrpe,
    )


def _show(
    reports: Sequence[Report], request: WatchRequest, view: _View | None = None, shown: Collection[Report] = ()
) -> int:
    """Print the reports that are not `shown` yet. A full disk or a closed pipe does not raise: alerts must still be
    sent."""
    try:
        new = [report for report in reports if report not in shown]
        if view is not None:
            view.show(new)
        elif new or not reports:
            _print(new, request, is_first=not shown)
        sys.stdout.flush()
    except OSError as error:
        if not isinstance(error, BrokenPipeError):
            say(f"cannot write to standard output: {error.strerror}")
        with suppress(OSError, ValueError):
            close_stdout()
    return _worst(reports).exit_code


@contextmanager
def _ended_by_signals() -> Iterator[None]:
    """Raise Ended on the first SIGTERM or SIGHUP, so that running checks and their children are ended too."""

    def end(number: int, frame: FrameType | None) -> None:
        raise Ended(signal.Signals(number).name)

    with handled(end, signal.SIGTERM, signal.SIGHUP):
        yield
