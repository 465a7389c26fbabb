"""Prints `resil status`. Does not import Typer: the frequent call runs without it (cli/entry.py)."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

from resilience.cli.output import LiveView, chosen, clean, paint, plain, print_json, print_table
from resilience.cron.late import late_notice
from resilience.errors import EX_TEMPFAIL
from resilience.layout import KILL_SWITCH
from resilience.quantities import format_duration, format_slurm_time
from resilience.runs.attempts import Attempt, AttemptEnd, describe, describe_save
from resilience.runs.breaker_file import describe_breaker
from resilience.runs.status import JobRow, RunStatus, run_statuses
from resilience.runs.submissions import describe_intervention
from resilience.switch import describe_age

if TYPE_CHECKING:
    from resilience.job import JobState
    from resilience.runs.project import Project

_HEADERS = ("JOB", "STATE", "TASKS", "WHY", "LEFT", "NODES")
_HEADLINE_COLOURS = {"running": "green", "queued": "yellow", "finished": "blue", "not queued": "red"}


def show_status(
    project: Project,
    run: str = "",
    *,
    watch_s: float | None = None,
    fresh: bool = False,
    everything: bool = False,
    as_json: bool = False,
) -> int:
    """Print the status once, or every `watch_s` seconds. Return the exit code: 75 if the scheduler did not respond."""
    view = LiveView() if watch_s is not None else None
    while True:
        statuses = _statuses(project, run, fresh=fresh)
        late = late_notice(project)
        show = partial(_show_all, project, statuses, late, everything=everything)
        if as_json:
            notice = {"cron": late} if late else {}
            now = project.system.clock.now()
            print_json("status", {"runs": [_to_json(status, now) for status in statuses], **notice})
        elif view is not None:
            view.show(show)
        else:
            show()
        if watch_s is None:
            break
        sys.stdout.flush()
        project.system.clock.sleep(watch_s)
    return EX_TEMPFAIL if any(status.headline == "unknown" for status in statuses) else 0


def _statuses(project: Project, run: str, *, fresh: bool) -> tuple[RunStatus, ...]:
    directories = (project.existing(run),) if run else project.runs()
    return run_statuses(project, directories, fresh=fresh)


def _show_all(project: Project, statuses: Sequence[RunStatus], late: str, *, everything: bool) -> None:
    _show(project, statuses, everything=everything)
    if late:
        print(f"{paint('cron', 'red')}  {clean(late)}")


def _show(project: Project, statuses: Sequence[RunStatus], *, everything: bool) -> None:
    if not statuses:
        print(f"no run has been submitted here yet (state directory {project.loaded.state_dir})")
        print("  try: resil submit --array 10; for a demonstration: resil demo")
        return
    for number, status in enumerate(statuses):
        if number:
            print()
        _show_run(status, everything=everything, now=project.system.clock.now())


def _show_run(status: RunStatus, *, everything: bool, now: float) -> None:
    facts = [paint(status.headline, _HEADLINE_COLOURS.get(status.headline, "red"))]
    if status.step is not None:
        facts.append(f"step {status.step}")
    if status.attempts:
        facts.append(f"attempt {status.attempts[-1].number}")
    if status.age_s >= 1:
        facts.append(f"queue seen {format_duration(status.age_s)} ago")
    print(f"{paint(clean(status.run), 'bold')}  {', '.join(facts)}")
    rows = [row for row in status.rows if everything or row.is_alive] or list(status.rows[-1:])
    cells = [_cells(row) for row in rows]
    colours = [_colour(row.state) for row in rows]
    if cells:
        print_table(_HEADERS, cells, colours, indent=2)
    for sentence in sentences(status, rows, now):
        print(f"  {sentence}")
    if everything and status.attempts:
        _show_attempts(status, now)


def sentences(status: RunStatus, rows: Sequence[JobRow], now: float) -> Iterator[str]:
    """Yield what is known of a run besides its headline and these of its jobs, one sentence each."""
    for row in rows:
        if row.advice:
            yield f"job {row.job}: {clean(row.advice)}"
    if status.next_in_line:
        yield f"next: {status.next_in_line}"
    if status.save is not None:
        newest = status.attempts[-1].number if status.attempts else 0
        saving = status.save.pending_attempt or newest
        is_running = any(attempt.number == saving and attempt.end is None for attempt in status.attempts)
        yield f"saved: {clean(describe_save(status.save, now, is_running=is_running))}"
    if status.checkpoints is not None:
        from resilience.checkpoints.summary import describe_summary

        yield f"checkpoints: {clean(describe_summary(status.checkpoints, now))}"
    if status.attempts and not status.finished:
        yield from _end(status.attempts[-1], now)
    if status.waits:
        yield clean(status.waits)
    if status.intervention is not None and not any(row.is_alive for row in status.rows):
        yield clean(describe_intervention(status.intervention, now))
    for sentence in status.injected:
        name = sentence.partition(":")[0]
        yield f"injected on purpose: {clean(sentence)}; to undo it: resil inject undo {clean(name)}"
    for sentence in status.lost:
        yield f"lost: {clean(sentence)}"
    if status.breaker is not None:
        yield f"breaker {clean(describe_breaker(status.breaker, now))}; to continue: resil breaker close {status.run}"
    for switch in status.switches:
        why = f": {clean(switch.why)}" if switch.why else ""
        state = "" if switch.honoured else f" (rejected: {clean(switch.refusal)})"
        if status.kill is not None and switch.kind == KILL_SWITCH and switch.honoured:
            state = f"; {describe(status.kill, now)}"
        yield f"{switch.kind} switch of {clean(switch.who)}{why}{state}"
    if status.kill is not None and not any(s.kind == KILL_SWITCH and s.honoured for s in status.switches):
        # because of stop_after, or because the switch was cleared too late
        yield f"{status.kill.why}: {describe(status.kill, now)}"
    if status.relocation:
        yield clean(status.relocation)
    if status.unreadable:
        yield clean(status.unreadable)
    if status.trouble:
        yield f"{clean(status.trouble)}; its jobs are unknown, not dead"


def _end(attempt: Attempt, now: float) -> Iterator[str]:
    if attempt.end in (None, AttemptEnd.LOST, AttemptEnd.FINISHED):
        return
    code = "" if attempt.exit_code is None else f" with code {attempt.exit_code}"
    ago = "" if attempt.end_time is None else f",{describe_age(now - attempt.end_time) or ' just now'}"
    why = f": {clean(attempt.why)}" if attempt.why else ""
    yield f"attempt {attempt.number} {attempt.end.value}{code}{ago}{why}"


def _show_attempts(status: RunStatus, now: float) -> None:
    cells = []
    for attempt in status.attempts:
        length = (attempt.end_time or now) - attempt.start_time
        ended = "" if attempt.end is None else attempt.end.value
        code = "" if attempt.exit_code is None else str(attempt.exit_code)
        cells.append((str(attempt.number), attempt.label, attempt.host, format_duration(length), ended, code))
    print_table(("ATTEMPT", "JOB", "HOST", "LASTED", "END", "CODE"), cells, indent=2)


def _cells(row: JobRow) -> tuple[str, ...]:
    tasks = "" if sum(row.counts.values()) == 1 else " ".join(f"{n} {state}" for state, n in sorted(row.counts.items()))
    left = "" if row.time_left_s is None else format_slurm_time(row.time_left_s)
    return row.job, row.state.value, tasks, row.words, left, row.nodes


def _colour(state: JobState) -> str:
    if state.value == "RUNNING":
        return "green"
    return "" if state.is_alive else "dim"


def _to_json(status: RunStatus, now: float) -> dict[str, Any]:
    keys = ("run", "path", "scheduler", "headline", "finished", "step", "next_in_line", "attempts", "switches", "save")
    kill = None if status.kill is None else plain(status.kill) | {"text": describe(status.kill, now)}
    more = chosen(
        status,
        "lost",
        "trouble",
        "age_s",
        "unreadable",
        "waits",
        "intervention",
        "relocation",
        "breaker",
        "checkpoints",
    )
    return chosen(status, *keys) | {"jobs": status.rows, "kill": kill} | more
