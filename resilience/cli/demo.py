"""`resil demo`."""

from __future__ import annotations

import re
import sys
from collections.abc import Sequence
from io import StringIO
from pathlib import Path
from typing import Annotated

import typer

from resilience.cli.options import JsonOption
from resilience.cli.output import chosen, paint, print_json, table
from resilience.demo.cron import CronNight
from resilience.demo.demo import JOBS, DemoResult, run_demo
from resilience.demo.night import DemoFailed
from resilience.demo.sdc import play_sdc
from resilience.errors import UsageError
from resilience.quantities import format_duration
from resilience.runs.project import Project
from resilience.settings.load import Loaded
from resilience.settings.sections import SchedulerSettings, Settings
from resilience.system.files import write_atomic
from resilience.system.ports import System

EPILOG = (
    "Examples: resil demo; resil demo --scheduler slurm; resil demo --svg demo.svg; resil demo --keep; resil demo --sdc"
)

app = typer.Typer(add_completion=False, rich_markup_mode=None)


@app.command(epilog=EPILOG)
def command(
    scheduler: Annotated[
        str, typer.Option("--scheduler", metavar="NAME", help="local (the embedded one) or slurm.")
    ] = "local",
    directory: Annotated[
        Path | None,
        typer.Option("--folder", metavar="DIR", help="Use this directory, and keep it. On SLURM: a shared directory."),
    ] = None,
    keep: Annotated[bool, typer.Option("--keep", help="Keep the directory afterwards.")] = False,
    svg: Annotated[
        Path | None,
        typer.Option("--svg", metavar="FILE", help="Also write the output's main lines as an SVG."),
    ] = None,
    sdc: Annotated[
        bool,
        typer.Option("--sdc", help="Instead: three silent data corruptions, each found, named and survived."),
    ] = False,
    as_json: JsonOption = False,
) -> None:
    """Run a small real training that crashes, is killed, runs out of time and memory, is stopped, and still finishes.

    Then a night with faults: a disk fills, a training hangs, a queue runs dry. Each is notified once by mail and by
    Slack, on servers of the demo itself, acknowledged and resolved. Then a scheduler's node dies, and its watchdog
    still alerts. Needs only this installation and takes about a minute.
    """
    system = System()  # the demo ignores the settings of the current directory
    if sdc:
        if keep and directory is None:
            raise UsageError("--sdc keeps no directory of its own", hint="use --folder NEW, which is kept")
        _play_sdc(system, _new(directory), svg, as_json=as_json)
        return
    settings = Settings(scheduler=SchedulerSettings(name=scheduler))
    project = Project(system, Loaded(settings, None, system.cwd, {"scheduler.name": "command line"}))
    screen = _Screen(quiet=as_json)
    screen.say(f"$ resil demo{'' if scheduler == 'local' else f' --scheduler {scheduler}'}", "bold")
    result = run_demo(
        project,
        directory=directory.resolve() if directory else None,
        keep=keep,
        report=lambda seconds, sentence: screen.say(f"{seconds:6.1f} s  {sentence}", _colour(sentence)),
        detail=lambda seconds, sentence: screen.say(f"{seconds:6.1f} s  {sentence}", drawn=False),
        show=screen.show,
    )
    attempts, total = _summary(result)
    for line in attempts:
        screen.say(line, drawn=False)
    screen.say(total)
    verdict = "exactly the same" if result.is_exact else "NOT the same"
    screen.say(
        f"final loss {result.loss!r}; uninterrupted {result.reference!r}: {verdict}",
        "green" if result.is_exact else "red",
    )
    for line in _night(result):
        screen.say(line)
    if result.night:
        once = (
            "each notified once when it started and once when it was resolved"
            if result.is_notified_once
            else "NOT notified as required"
        )
        screen.say(f"{len(result.night)} faults, {once}", "green" if result.is_notified_once else "red")
    if result.cron is not None:
        screen.say("")
        screen.say(_cron(result.cron), "green" if result.is_run_once else "red")
    if keep or directory:
        screen.say(f"kept: {result.directory}")
    if as_json:
        _print_result(result)
    if svg is not None:
        write_svg(svg, screen.lines, title="resil demo")
    if not result.is_exact:
        raise DemoFailed("the interrupted training did not reach the loss of the uninterrupted one")
    if not result.is_notified_once:
        raise DemoFailed("a fault was not notified exactly once when it started and once when it was resolved")
    if not result.is_run_once:
        raise DemoFailed("the scheduler did not survive the loss of its node")


def _new(directory: Path | None) -> Path | None:
    """Return the directory to use. Raise UsageError if it is not empty."""
    if directory is not None and directory.exists() and (not directory.is_dir() or any(directory.iterdir())):
        raise UsageError(f"{directory} already exists and is not empty", hint="use a new directory: --folder NEW")
    return directory.resolve() if directory else None


def _play_sdc(system: System, directory: Path | None, svg: Path | None, *, as_json: bool) -> None:
    """Run `resil demo --sdc`. Raise DemoFailed unless each corruption was found and survived."""
    screen = _Screen(quiet=as_json)
    screen.say("$ resil demo --sdc", "bold")
    began = system.clock.monotonic()
    result = play_sdc(
        system,
        directory=directory,
        say=lambda sentence: screen.say(f"{system.clock.monotonic() - began:6.1f} s  {sentence}"),
    )
    rows = [
        (
            one.injected,
            one.found_by,
            one.named or "NOT FOUND",
            one.survived_by,
            _yes(set(one.losses) == {result.reference}),
        )
        for one in result.corruptions
    ]
    for line in ["", *table(("INJECTED", "FOUND BY", "NAMED", "SURVIVED BY", "SAME LOSS"), rows)]:
        screen.say(line)
    verdict = "each found, named and survived" if result.is_survived else "NOT each found, named and survived"
    told = f"{len(result.corruptions)} corruptions, {verdict}, with exactly the loss of a training without; "
    screen.say(f"{told}{result.seconds:.0f} s in all", "green" if result.is_survived else "red")
    if as_json:
        print_json("demo-sdc", chosen(result, "corruptions", "reference", "seconds") | {"survived": result.is_survived})
    if svg is not None:
        write_svg(svg, screen.lines, title="resil demo --sdc")
    if not result.is_survived:
        raise DemoFailed("a corruption was not found, or the training did not reach the loss of one without")


class _Screen:
    """Prints sentences, keeps those for the picture, and shows one changing line at a terminal."""

    def __init__(self, *, quiet: bool) -> None:
        self.lines: list[tuple[str, str]] = []
        self._quiet = quiet
        self._live = sys.stdout.isatty() and not quiet

    def say(self, text: str, colour: str = "", *, drawn: bool = True) -> None:
        """Print a line. `drawn`: the picture, which has to fit on a page, shows the line too."""
        if drawn:
            self.lines.append((text, colour))
        if self._quiet:
            return
        if self._live:
            print("\r\x1b[K", end="")
        print(paint(text, colour), flush=True)

    def show(self, text: str) -> None:
        if self._live:
            print(f"\r\x1b[K          {text}", end="", flush=True)


def _colour(sentence: str) -> str:
    if "finished" in sentence:
        return "green"
    if " ended at step " in sentence:
        return "yellow" if "saved" in sentence else "red"
    return ""


def _summary(result: DemoResult) -> tuple[Sequence[str], str]:
    """Return the table of attempts, and the sentence below it."""
    headers = ("ATTEMPT", "JOB", "STEPS", "REDONE", "LASTED", "CODE", "WHY IT ENDED")
    rows = [
        (
            str(attempt.number),
            attempt.label,
            f"{attempt.first_step}-{attempt.last_step}",
            str(attempt.redone),
            format_duration(attempt.seconds or 0.0),
            "" if attempt.exit_code is None else str(attempt.exit_code),
            attempt.why,
        )
        for attempt in result.attempts
    ]
    redone = sum(attempt.redone for attempt in result.attempts)
    rejected = f"{result.turned_away} rejected by the kill switch, " if result.turned_away else ""
    return (
        ["", *table(headers, rows)],
        f"{len(result.attempts)} attempts, {redone} steps redone, {rejected}"
        f"{result.burned} of {JOBS} jobs not needed, {result.seconds:.0f} s in all",
    )


def _night(result: DemoResult) -> Sequence[str]:
    if not result.night:
        return []
    rows = [
        (
            fault.fault,
            fault.episode,
            str(len(fault.mails)),
            str(fault.posts),
            fault.acknowledged_by,
            _yes(fault.resolved),
        )
        for fault in result.night
    ]
    return ["", *table(("FAULT", "INCIDENT", "MAILS", "SLACK", "ACKNOWLEDGED BY", "RESOLVED"), rows)]


def _cron(night: CronNight) -> str:
    if not night.is_well:
        return f"the scheduler did NOT work as required: {night}"
    return (
        f"the scheduler's node died with job {night.killed}, job {night.successor} took over: {night.slots} slots, "
        f"each run once, and the full disk notified after {night.told_s:.1f} s"
    )


def _yes(is_so: bool) -> str:
    return "yes" if is_so else "no"


def _print_result(result: DemoResult) -> None:
    keys = ("attempts", "turned_away", "burned", "burned_s", "loss", "reference", "night", "cron", "seconds")
    print_json("demo", chosen(result, *keys) | {"exact": result.is_exact})


_STYLES = {"dim": "dim", "bold": "bold", "red": "red", "green": "green", "yellow": "yellow", "blue": "blue"}


def write_svg(path: Path, lines: Sequence[tuple[str, str]], *, title: str) -> None:
    """Write lines of (text, colour) as an SVG."""
    draw_svg(path, [(line,) for line in lines], title=title)


def draw_svg(path: Path, lines: Sequence[Sequence[tuple[str, str]]], *, title: str) -> None:
    """Write lines, each of spans (text, colour), as an SVG. rich, which Typer brings, draws it."""
    from rich.console import Console
    from rich.text import Text

    width = max((sum(len(text) for text, _ in line) for line in lines), default=80) + 2
    console = Console(record=True, width=max(80, width), file=StringIO(), force_terminal=True)
    for line in lines:
        console.print(Text.assemble(*((text, _STYLES.get(colour, "")) for text, colour in line)), soft_wrap=True)
    drawn = console.export_svg(title=title, unique_id="resil")
    # rich refers to a font on a public server; a picture must not load anything from the network.
    without_font = re.sub(r"@font-face\s*\{[^}]*\}\s*", "", drawn).replace("Fira Code", "monospace")
    write_atomic(path, without_font, mode=0o644)
