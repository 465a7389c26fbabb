"""Runs `resil cron run` and `resil cron tick`: the scheduler in this process."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING

from resilience.cli.output import chosen, clean, handled, print_json, say
from resilience.errors import EX_TEMPFAIL, ResilError
from resilience.messages import plural

if TYPE_CHECKING:
    from types import FrameType

    from resilience.cron.project import CronProject
    from resilience.cron.records import RunRecord
    from resilience.cron.ticker import TickResult

FOREGROUND = "foreground"
_OUTCOMES = ("ended", "submitted", "skipped", "refused")


def run_loop(cron: CronProject, *, driver: str = "", once: bool = False) -> int:
    """Tick until a signal. Return 0 after a signal as well: that is the regular end."""
    from resilience.cron.run import run, tick

    by: list[int] = []
    if sentence := stopped_message(cron):
        print(f"{clean(sentence)}: no tick is made\n  to restart: resil cron install")
        return 0
    if not once:
        where = clean(str(cron.directory))
        print(f"the scheduler of {where} runs in the foreground, until Ctrl-C or SIGTERM")
        print("  health: resil cron status; entries: resil cron list", flush=True)
    with _flagged_by_signals(by.append):
        if once:
            ticked = tick(cron, driver=driver or FOREGROUND, stop=lambda: bool(by))
        else:
            ran = run(cron, driver=driver or FOREGROUND, stop=lambda: bool(by), say=say)
    if once:
        for line in ticked.lines:
            say(line)
        _show(ticked)
    else:
        print(f"ended after {plural(ran.ticks, 'tick')}: {clean(ran.why)}")
        _print_consequence(cron, by)
    return 0


def _print_consequence(cron: CronProject, by: Sequence[int]) -> None:
    """Print whether the missing ticks are reported: not after Ctrl-C, which is deliberate."""
    if not by:
        return
    with suppress(ResilError):
        if signal.SIGINT in by and cron.state.installation() is None:
            host = cron.project.system.host.name
            if cron.state.mark_last(host, os.getpid()) is not None:
                print("  the ticks end without an alert, because you ended the scheduler")
            return
    print("  the missing ticks will be reported; to stop without an alert: resil cron stop")


def run_one(cron: CronProject, name: str) -> int:
    """Run one entry now, print its output as it comes, and return its exit code; 75: an earlier run is still active."""
    from resilience.cli.show_cron import print_output
    from resilience.cron.entries import find_entry
    from resilience.cron.records import Outcome
    from resilience.cron.run import run_entry

    entry = find_entry(cron.read_table(), name)
    if sentence := stopped_message(cron):
        say(f"{sentence}; this run does not restart it")
    began, by, position = int(cron.project.system.clock.now()), list[int](), 0

    def stop() -> bool:
        nonlocal position
        position = print_output(cron, entry.key, began, position)
        return bool(by)

    with _flagged_by_signals(by.append):
        run = run_entry(cron, entry, stop=stop)
    print_output(cron, entry.key, began, position, is_over=True)
    say(_line(run))
    if by:
        return 128 + by[0]
    return run.exit_code or (EX_TEMPFAIL if run.outcome is Outcome.SKIPPED else int(run.outcome.is_failure))


def run_tick(cron: CronProject, *, driver: str, wait: bool, dry_run: bool, as_json: bool) -> int:
    """Make one tick, or print the due entries."""
    from resilience.cron.run import tick

    if dry_run:
        return _show_due(cron, as_json=as_json)
    ticked = tick(cron, driver=driver or "tick", wait=wait)
    for line in () if ticked.stopped else ticked.lines:
        say(line)
    if as_json:
        print_json("cron-tick", _to_json(ticked))
    else:
        _show(ticked)
    return 0


def stopped_message(cron: CronProject) -> str:
    """Return a message about the stop of the scheduler; empty while it is not stopped."""
    from resilience.cron.health import describe_stop

    stopped = cron.state.stopped()
    return describe_stop(stopped, cron.project.system.clock.now()) if stopped is not None else ""


def _show(ticked: TickResult) -> None:
    """Print a line for each slot; nothing if none was due."""
    if ticked.stopped:
        print(f"{clean(ticked.stopped)}: no tick is made\n  to restart: resil cron install")
    for run in () if ticked.stopped else _runs(ticked):
        print(clean(_line(run)))


def _line(run: RunRecord) -> str:
    from resilience.cli.show_cron import sign
    from resilience.cron.words import slot_text

    job = f" as job {run.job_id}" if run.job_id else ""
    summary = f": {run.summary}" if run.summary else ""
    return f"{sign(run.outcome)}  {run.name} {slot_text(run.slot)}: {run.outcome.value}{job}{summary}"


def _runs(ticked: TickResult) -> Sequence[RunRecord]:
    """Return one record per slot: only the end, for a slot that began and ended in this tick."""
    ended = {(run.name, run.slot) for kind in _OUTCOMES for run in getattr(ticked, kind)}
    begun = [run for run in ticked.started if (run.name, run.slot) not in ended]
    return [*begun, *(run for kind in _OUTCOMES for run in getattr(ticked, kind))]


def _to_json(ticked: TickResult) -> dict[str, object]:
    kinds = ("started", *_OUTCOMES)
    return {
        "stopped": ticked.stopped or None,
        **chosen(ticked, "heartbeat", "lines"),
        **{kind: [run.to_json() for run in getattr(ticked, kind)] for kind in kinds},
    }


def _show_due(cron: CronProject, *, as_json: bool) -> int:
    from resilience.cron.entries import due_now
    from resilience.cron.words import slot_text

    found = due_now(cron)
    if as_json:
        rows = [{"name": due.entry.name} | chosen(due, "slot", "start", "reason", "passed_over") for due in found]
        print_json("cron-due", {"due": rows})
        return 0
    if sentence := stopped_message(cron):
        print(f"{clean(sentence)}: a tick would do nothing")
        return 0
    for due in found:
        reason = f": {due.reason}" if due.reason else ""
        print(clean(f"{due.entry.name} {slot_text(due.slot)} would {due.entry.kind.value}{reason}"))
    if not found:
        print("nothing is due")
    return 0


@contextmanager
def _flagged_by_signals(note: Callable[[int], None]) -> Iterator[None]:
    """Record the number of each terminating signal; a second Ctrl-C ends the process at once."""

    def flag(number: int, frame: FrameType | None) -> None:
        note(number)
        if number == signal.SIGINT:
            signal.signal(signal.SIGINT, signal.default_int_handler)
            with suppress(OSError):
                os.write(2, b"\nresil: stopping; running entries get 10 s. Press Ctrl-C again to stop at once\n")

    with handled(flag, signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        yield
