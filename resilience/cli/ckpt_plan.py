"""`resil ckpt plan`: how often to save, what that costs, and whether the checkpoints fit."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import TYPE_CHECKING, Annotated, Any

import typer

from resilience.cli.options import ConfigOption, JsonOption, RunArgument, duration_s, open_project
from resilience.cli.output import clean, paint, print_json, print_table
from resilience.errors import ProbeError, UsageError
from resilience.messages import plural
from resilience.quantities import format_bytes, format_duration, parse_bytes

if TYPE_CHECKING:
    from pathlib import Path

    from resilience.cadence import Mtbf
    from resilience.checkpoints.plan import Choice, Known, Plan, Room
    from resilience.runs.project import Project
    from resilience.runs.run_directory import RunDirectory
    from resilience.runs.status import RunStatus

PROBE_S = 20.0
EPILOG = (
    "Examples: resil ckpt plan; resil ckpt plan gpt --mtbf-h 12; "
    "resil ckpt plan --stall-s 5 --save-s 90 --nodes 64 --failures-per-node-day 0.0065"
)
_SECONDS: dict[str, Any] = {"metavar": "SECONDS", "min": 0.0, "max": 1e9, "show_default": False}
NUMBER: dict[str, Any] = {"metavar": "N", "min": 1, "max": 10**7, "show_default": False}

SaveOption = Annotated[float | None, typer.Option(help="A save until it is durable.", **_SECONDS)]
StallOption = Annotated[float | None, typer.Option(help="The training waits so long for it.", **_SECONDS)]
StepOption = Annotated[float | None, typer.Option(help="One step.", **_SECONDS | {"min": 1e-6})]
RestartOption = Annotated[float | None, typer.Option(help="From a start to the first step.", **_SECONDS)]
NodesOption = Annotated[int | None, typer.Option(help="Nodes of the job.", **NUMBER)]
RateOption = Annotated[
    float | None,
    typer.Option(metavar="RATE", min=0.0, max=1e6, help="Failures of one node in a day.", show_default=False),
]
InFlightOption = Annotated[int | None, typer.Option(help="Saves in flight at once.", **NUMBER)]


def plan(
    run: RunArgument = "",
    save_s: SaveOption = None,
    stall_s: StallOption = None,
    step_s: StepOption = None,
    restart_s: RestartOption = None,
    mtbf_h: Annotated[
        float | None,
        typer.Option(metavar="HOURS", min=0.001, max=1e9, help="Mean time between failures.", show_default=False),
    ] = None,
    nodes: NodesOption = None,
    failures_per_node_day: RateOption = None,
    in_flight: InFlightOption = None,
    redo_max: Annotated[str, typer.Option(metavar="DURATION", help="The most work that a failure may destroy.")] = "",
    size: Annotated[str, typer.Option(metavar="SIZE", help="Size of a checkpoint.")] = "",
    as_json: JsonOption = False,
    config: ConfigOption = None,
) -> None:
    """Show how often to save, what each interval costs, and whether the checkpoints fit.

    Of a run, from what its guard has measured; options replace that. With --save-s or --stall-s and no RUN, a
    calculator.
    """
    from resilience.checkpoints.plan import plan as decide_plan

    found = Found()
    for name, value in (("stall_s", stall_s), ("durable_s", save_s), ("step_s", step_s), ("restart_s", restart_s)):
        found.add(name, value, "given")
    found.add("in_flight", in_flight, "given")
    found.add("mtbf", _mtbf(mtbf_h, nodes, failures_per_node_day), "given")
    found.add("redo_max_s", duration_s("--redo-max", redo_max, is_plain=True) if redo_max else None, "given")
    found.add("bytes", parse_bytes(size) if size else None, "given")
    if run or not {"stall_s", "durable_s"} & found.values.keys():
        project = open_project(config)
        try:
            directory = project.existing(run)
        except UsageError as error:
            hint = f"{error.hint}; or give numbers: resil ckpt plan --save-s 60"
            raise UsageError(error.message, hint=error.hint if run else hint) from None
        look(found, project, directory)
        _add_store(found, project, directory)
    known = found.known()
    report = decide_plan(known)
    if as_json:
        print_json("checkpoint-plan", {"run": found.run, "known": known, "sources": found.sources, "plan": report})
    else:
        _show(found, known, report)


def _mtbf(hours: float | None, nodes: int | None, rate: float | None) -> Mtbf | None:
    from resilience.cadence import known_mtbf, mtbf_of_nodes

    if hours is not None and (nodes is not None or rate is not None):
        raise UsageError("--mtbf-h and --nodes are two ways to say the same", hint="give one of them")
    if (nodes is None) != (rate is None):
        raise UsageError(
            "--nodes and --failures-per-node-day belong together", hint="--nodes 64 --failures-per-node-day 0.0065"
        )
    if nodes is not None and rate is not None:
        return mtbf_of_nodes(nodes, rate)
    return None if hours is None else known_mtbf(3600 * hours)


class Found:
    """What is known, and from where: the first source of a value counts."""

    def __init__(self) -> None:
        self.run = ""
        self.values: dict[str, Any] = {}
        self.sources: dict[str, str] = {}
        self.notes: list[str] = []

    def add(self, name: str, value: Any, source: str) -> None:
        """Add a value, unless it is None or known already."""
        if value is not None and name not in self.values:
            self.values[name], self.sources[name] = value, source

    def known(self) -> Known:
        """Return what the plan needs; what nobody knows is assumed, and said to be."""
        from resilience.cadence import Costs, measured_mtbf
        from resilience.checkpoints.plan import BYTES, INODES, Known
        from resilience.guard.settings import GuardSettings

        values = self.values
        self.add("stall_s", values.get("durable_s"), "the training waits for the whole save")
        self.add("stall_s", GuardSettings().first_save_s, "assumed: no save was measured yet (first_save_s)")
        self.add("durable_s", values["stall_s"], "the training waits for the whole save")
        self.add("mtbf", measured_mtbf(0, 0.0), "")
        values["durable_s"] = max(values["durable_s"], values["stall_s"])

        def of(*names: str) -> dict[str, Any]:
            return {name: values[name] for name in names if name in values}

        return Known(
            costs=Costs(**of("stall_s", "durable_s", "step_s", "restart_s", "in_flight")),
            size=of(BYTES, INODES),
            **of("mtbf", "every", "redo_max_s", "rooms", "left_s", "since_save_s", "policy", "step", "now"),
        )


# ---- what is known of a run -----------------------------------------------------------------------------------------


def look(found: Found, project: Project, directory: RunDirectory) -> None:
    """Add what is known of a run: its settings, what its guard has measured, its attempts."""
    from resilience.cadence import parse_every
    from resilience.guard.settings import GuardSettings
    from resilience.job import JobState
    from resilience.runs.status import run_statuses

    loaded, now = project.loaded, project.system.clock.now()
    guard = loaded.settings.guard or GuardSettings()
    (status,) = run_statuses(project, [directory])
    found.run = directory.run
    found.add("now", now, "the clock")
    found.add("in_flight", guard.saves_in_flight, "saves_in_flight")
    found.add("redo_max_s", guard.redo_max or None, "[guard]")
    found.add("every", parse_every(guard.every) if guard.every else None, f'every = "{guard.every}"')
    _add_measured(found, directory)
    _add_attempts(found, directory, status, now)
    running = next((row for row in status.rows if row.state is JobState.RUNNING), None)
    if running is not None:
        found.add("left_s", running.time_left_s, f"job {running.job}")
    if status.trouble:
        found.notes.append(f"how long the job may still run is unknown: {status.trouble}")
    if status.save is not None and status.save.time:
        found.add("since_save_s", max(0.0, now - status.save.time), "the journal")
    found.add("step", status.step, "the heartbeat")


def _add_measured(found: Found, directory: RunDirectory) -> None:
    from resilience import layout
    from resilience.checkpoints.plan import Measured, read_measured
    from resilience.system.files import read_regular

    text = read_regular(directory.path / layout.LEARNED / "0.json")
    measured = read_measured(text[0]) if text is not None else Measured()
    saves = f"of {plural(measured.saves, 'save')}"
    found.add("stall_s", measured.stall_s, f"median {saves}")
    found.add("durable_s", measured.durable_s, f"slowest {saves}")
    found.add("step_s", measured.step_s, "median of recent steps")
    found.add("restart_s", measured.restart_s, "from the start of the process to its first step")


def _add_attempts(found: Found, directory: RunDirectory, status: RunStatus, now: float) -> None:
    from resilience.attempts.ledger import progress_of
    from resilience.cadence import Past, mtbf_of_run
    from resilience.guard.triggers.cadence import read_past

    if not status.attempts:
        return
    newest = status.attempts[-1]
    is_over = newest.end is not None or newest.end_time is not None
    past = read_past(str(directory.path), newest.number + is_over)
    if not is_over:
        past.append(Past(max(0.0, now - newest.start_time), False))
    found.add("mtbf", mtbf_of_run(past, found.values.get("restart_s", 0.0)), "the attempts of the run")
    progress = progress_of(directory, newest)
    if len(progress) > 1 and progress[-1][1] > progress[0][1]:
        seconds, steps = (late - early for early, late in zip(progress[0], progress[-1], strict=True))
        found.add("step_s", seconds / steps, "the progress in the journal, saves included")


def _add_store(found: Found, project: Project, directory: RunDirectory) -> None:
    """Add the size of a checkpoint, what is kept, and the limits of the file system, as `resil watch fs` reads them."""
    store, settings = project.loaded.store_path(directory.run), project.loaded.settings.checkpoints
    if store is None or settings is None:
        found.notes.append("where the checkpoints are is unknown, and so is the room for them: set [checkpoints] path")
        return
    if settings.manage or not settings.pattern:
        found.add("policy", settings.policy(), "[checkpoints]")
    try:
        size, rooms = _read_rooms(project, store)
    except ProbeError as error:
        found.notes.append(f"the room for checkpoints is unknown: {error.message}")
        return
    for kind, amount in size.items():
        found.add(kind, amount, f"the newest in {store}")
    found.add("rooms", rooms, "the file system")


def _read_rooms(project: Project, store: Path) -> tuple[dict[str, float], tuple[Room, ...]]:
    """Return the size of a checkpoint and the limits, by kind. Raise ProbeError if the file system does not respond."""
    from resilience.checkpoints.plan import Room
    from resilience.runs.open_project import in_child
    from resilience.watch.watchdogs import context_of, load_watchdog

    context, place = context_of(project), str(store)

    def read() -> list[Any]:
        path = store
        while not path.exists() and path != path.parent:  # before the first save
            path = path.parent
        found: list[Any] = []
        for name in ("fs", "inodes"):
            dog = load_watchdog(project, name, {"paths": [str(path)], "checkpoints": place})
            for target in dog.check.targets(dog.settings, context):
                for reading in dog.check.probe(target, dog.settings, context, {}).values():
                    rows = [(one.scope, one.kind, one.used, one.limit or one.soft) for one in reading.amounts]
                    found.append((reading.mount, reading.checkpoint.get("size"), name, rows))
        return found

    answer = in_child(project.system, place, read, PROBE_S)
    if answer.error is not None:
        raise ProbeError(answer.error.message)
    size, rooms = {}, []
    for mount, amount, name, rows in answer.value:
        if amount:
            size["bytes" if name == "fs" else "inodes"] = float(amount)
        for scope, kind, used, limit in rows:
            if limit and kind in ("bytes", "inodes"):
                shown = f"{scope} {mount}" if scope == "file system" else f"quota of {scope}"
                rooms.append(Room(name=shown, kind=kind, free=max(0.0, limit - used)))
    return size, tuple(rooms)


# ---- the screen -----------------------------------------------------------------------------------------------------


def _show(found: Found, known: Known, report: Plan) -> None:
    cadence = report.cadence
    is_set = not known.every.is_auto and report.interval_s != cadence.interval_s
    if is_set:
        print(f"{found.sources['every']}: {seconds_text(report.interval_s)}; auto would save every {_cadence(cadence)}")
    else:
        print(f"save every {paint(_cadence(cadence), 'bold')}")
    print(f"  {cadence.reason}")
    print()
    print_table(("", "", ""), list(_inputs(found, known)), indent=2)
    print()
    headers = ("", "EVERY", "STEPS", "STALLS", "REDO", "AT MOST", "LOST", "95 % RANGE")
    print_table(headers, [_row(choice, known.mtbf) for choice in report.choices])
    print()
    end = f"until the end of the job, in {format_duration(round(report.horizon_s))}"
    horizon = "in a day" if known.left_s is None else end
    size = ", ".join(_amount(amount, kind) for kind, amount in report.more.items())
    stay = f"{report.kept:,} of them stay" if known.policy is not None else "nothing deletes them"
    print(f"  {horizon}: {report.saves:,} saves, {stay}" + (f": {size} more at most" if size else ""))
    for note in _notes(found, known, report):
        print(f"  {note}")


def _cadence(cadence: Any) -> str:
    return seconds_text(cadence.interval_s) + (f" ({plural(cadence.steps, 'step')})" if cadence.steps else "")


def _inputs(found: Found, known: Known) -> Iterator[tuple[str, str, str]]:
    costs, sources = known.costs, found.sources
    yield "stall", seconds_text(costs.stall_s), sources["stall_s"]
    yield "durable", seconds_text(costs.durable_s), sources["durable_s"]
    for name, seconds in (("step", costs.step_s), ("restart", costs.restart_s)):
        yield name, seconds_text(seconds) if seconds else "unknown", sources.get(f"{name}_s", "")
    yield "failures", str(known.mtbf).removeprefix("failures are "), sources["mtbf"]
    if known.redo_max_s:
        yield "redo_max", seconds_text(known.redo_max_s), sources["redo_max_s"]
    for kind in ("bytes", "inodes"):
        if kind in known.size:
            yield "checkpoint", _amount(known.size[kind], kind), clean(sources[kind])


def _row(choice: Choice, mtbf: Mtbf) -> tuple[str, ...]:
    loss = choice.loss
    if mtbf.likely_s <= 0:
        lost = bounds = ""
    elif mtbf.estimate_s is None:
        lost, bounds = f"at most {percent_text(loss.lost)}", ""
    else:
        lost = percent_text(loss.lost)
        bounds = (
            "" if mtbf.failures is None else f"{percent_text(choice.best.lost)} to {percent_text(choice.worst.lost)}"
        )
    return (
        ">" if choice.is_chosen else "",
        seconds_text(choice.interval_s),
        f"{choice.steps:,}" if choice.steps else "",
        percent_text(loss.overhead),
        seconds_text(loss.redo_s),
        seconds_text(loss.most_redo_s),
        lost,
        bounds,
    )


def _notes(found: Found, known: Known, report: Plan) -> Iterator[str]:
    if report.next_s is not None or report.is_late is not None:
        when = "now" if not report.next_s else f"in {seconds_text(report.next_s)}"
        end = "" if known.left_s is None else f", and the job ends in {seconds_text(known.left_s)}"
        late = paint(": too late", "red") if report.is_late else ""
        yield f"the next save is due {when}, takes {seconds_text(known.costs.durable_s)}{end}{late}"
    for fit in report.fits:
        kind = fit.room.kind
        verdict = "all fit"
        if not fit.fits and fit.next_fits:
            verdict = paint(f"the next fits, not all {_amount(fit.more, kind)}", "yellow")
        elif not fit.fits:
            verdict = paint("the next checkpoint does not fit", "red")
        yield f"{clean(fit.room.name)}: {_amount(fit.room.free, kind)} free: {verdict}"
    yield from map(clean, found.notes)


def _amount(count: float, kind: str) -> str:
    return format_bytes(count) if kind == "bytes" else f"{count:,.0f} inodes"


def percent_text(share: float) -> str:
    """Return a share as `3.5 %`."""
    return f"{round(100 * share, 1) + 0.0:.1f} %"  # of -0.0 it makes 0.0


def seconds_text(seconds: float) -> str:
    """Return a duration for people; infinity is `never`."""
    return format_duration(round(seconds, 1) if seconds < 10 else round(seconds)) if math.isfinite(seconds) else "never"
