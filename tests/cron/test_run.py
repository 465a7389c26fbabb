"""The scheduler in the foreground: ticks at every slot, whatever the clock does, until it is told to end."""

from __future__ import annotations

import os
import resource
import signal
import subprocess
import sys
import time
from collections import Counter
from pathlib import Path

import pytest

from resilience.cron.project import CronProject
from resilience.cron.records import Table
from resilience.cron.run import REPEATED_EVERY, Ran, run
from resilience.errors import StateDirectoryError
from tests.cron.context import TOP, CronContext, wait_until

ROOT = Path(__file__).parents[2]
A = "cron.minutely+a"


@pytest.fixture
def context(tmp_path: Path) -> CronContext:
    return CronContext(tmp_path)


def _run(context: CronContext, seconds: float, **more: object) -> Ran:
    end = context.clock.time + seconds
    return run(context.cron, driver="foreground", stop=lambda: context.clock.time >= end, **more)  # type: ignore[arg-type]


def test_it_ticks_at_every_minute_and_runs_every_slot_once(context: CronContext) -> None:
    context.drop("cron.minutely/a")
    ran = _run(context, 640)
    assert context.ran() == [TOP + 60 * minute for minute in range(11)]
    assert ran.why == "stop requested" and ran.ticks == 12
    beat = context.cron.state.heartbeat()
    assert beat is not None and beat.ticks == 12 and beat.late_s == 0


def test_a_slot_between_two_ticks_is_not_late(tmp_path: Path) -> None:
    context = CronContext(tmp_path, settings="tick_s = 300")
    context.crontab('SHELL=/bin/sh\n*/2 * * * * echo "$RESIL_CRON_SLOT $(date +\\%s)" >> ran2 # resil: name=x\n')
    started: list[float] = []
    context.clock.at_sleep = lambda _: started.append(context.clock.time)
    _run(context, 600)
    times = {record.slot: record.started for record in context.history("crontab+x")}
    assert len(times) == 5 and all(began is not None and began - slot < 2 for slot, began in times.items())


def test_it_ends_at_its_time_and_leaves_the_rest_to_the_next_one(context: CronContext) -> None:
    context.drop("cron.minutely/a", options="timeout=30s")
    ran = run(context.cron, driver="slurm", until=TOP + 140, stop=lambda: False)
    assert ran.why == "time limit reached"
    assert context.ran() == [TOP, TOP + 60], "the slot after could not have ended"
    run(context.cron, driver="slurm", until=TOP + 200, stop=lambda: False)
    assert context.ran() == [TOP, TOP + 60, TOP + 120]


def test_one_tick_waits_for_its_runs(context: CronContext) -> None:
    context.drop("cron.minutely/a", body="sleep 0.2; echo end >> ended")
    run(context.cron, driver="x", once=True)
    context.clock.time = TOP
    ran = run(context.cron, driver="x", once=True)
    assert (context.home / "ended").exists() and ran.last is not None and len(ran.last.ended) == 1


def test_it_ends_when_the_scheduler_is_stopped(context: CronContext) -> None:
    context.drop("cron.minutely/a")

    def stop(_: float) -> None:
        if context.clock.time > TOP + 100 and not (context.cron.state.path / "stop").exists():
            context.cron.state.stop("alice", "enough", context.clock.time)

    context.clock.at_sleep = stop
    ran = _run(context, 10_000)
    assert "alice" in ran.why and context.ran() == [TOP, TOP + 60]


@pytest.mark.parametrize("jump_s", [3600, 86400, 8 * 3600 + 17])
def test_a_suspended_machine_makes_up_for_one_slot(context: CronContext, jump_s: float) -> None:
    """The wall clock has gone on, the monotonic clock has not."""
    context.drop("cron.minutely/a")

    def suspend(_: float) -> None:
        if TOP + 100 < context.clock.time < TOP + 110:
            context.clock.time += jump_s

    context.clock.at_sleep = suspend
    _run(context, 90 + 60 + jump_s)
    ran = context.ran()
    assert len(ran) == len(set(ran)) and ran[:2] == [TOP, TOP + 60]
    woken = [slot for slot in ran if slot > TOP + 120]
    assert 1 <= len(woken) <= 3 and woken[0] >= TOP + jump_s
    assert sum(r.count for r in context.history(A) if str(r.outcome) == "missed") == (woken[0] - TOP - 120) / 60


@pytest.mark.parametrize("jump_s", [300, 3600, 86400])
def test_a_clock_that_is_set_back_stops_nothing_for_long_and_runs_no_slot_twice(
    context: CronContext, jump_s: float
) -> None:
    context.drop("cron.minutely/a")
    is_done = False

    def set_back(_: float) -> None:
        nonlocal is_done
        if context.clock.time > TOP + 300 and not is_done:
            is_done = True
            context.clock.time -= jump_s

    context.clock.at_sleep = set_back
    began = context.clock.monotonic()
    run(context.cron, driver="x", stop=lambda: context.clock.monotonic() > began + 1200)
    ran = context.ran()
    assert len(ran) == len(set(ran))
    assert len(ran) >= 1200 / 60 - 1 - (jump_s / 60 if jump_s <= 900 else 1)


def test_a_failing_tick_is_reported_once_and_does_not_end_the_loop(
    context: CronContext, monkeypatch: pytest.MonkeyPatch
) -> None:
    context.drop("cron.minutely/a")
    errors: list[Exception] = [StateDirectoryError("cannot read cron: Stale file handle"), ZeroDivisionError("bug")]
    read = CronProject.read_table
    said: list[str] = []

    def sometimes(cron: CronProject) -> Table:
        if context.clock.time < TOP + 200:
            raise errors[context.clock.time > TOP + 90]
        return read(cron)

    monkeypatch.setattr(CronProject, "read_table", sometimes)
    _run(context, 400, say=said.append)
    assert context.ran()[-1] == TOP + 360
    assert len([line for line in said if "Stale" in line]) == 1 and len([line for line in said if "bug" in line]) == 1


def test_a_lasting_error_is_repeated_once_an_hour(context: CronContext, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(_: CronProject) -> Table:
        raise StateDirectoryError("no such luck")

    monkeypatch.setattr(CronProject, "read_table", fail)
    said: list[str] = []
    _run(context, 60 * REPEATED_EVERY + 120, say=said.append)
    assert said.count("no such luck") == 2


def test_hundreds_of_ticks_cost_no_memory_and_no_descriptors(context: CronContext) -> None:
    context.drop("cron.hourly/a")
    context.drop("cron.hourly/b.slurm")
    _run(context, 20 * 60)
    before = (len(os.listdir("/proc/self/fd")), resource.getrusage(resource.RUSAGE_SELF).ru_maxrss)  # noqa: PTH208
    _run(context, 200 * 60)
    after = (len(os.listdir("/proc/self/fd")), resource.getrusage(resource.RUSAGE_SELF).ru_maxrss)  # noqa: PTH208
    assert after[0] <= before[0] and after[1] - before[1] < 4096, "KiB"
    assert len(context.ran()) == 4


# ---- real processes -------------------------------------------------------------------------------------------------

_LOOP = """
import os, sys
from pathlib import Path
from resilience.cron.project import open_cron
from resilience.cron.run import run
from resilience.runs.project import Project
from resilience.settings.load import load
from resilience.system.ports import System
os.chdir(sys.argv[1])
system = System()
print("ready", flush=True)
ran = run(open_cron(Project(system, load(system))), driver="foreground", grace_s=2.0)
print(ran.why, flush=True)
"""


def _loops(context: CronContext, count: int) -> list[subprocess.Popen[bytes]]:
    words = [sys.executable, "-c", _LOOP, str(context.home)]
    loops = [
        subprocess.Popen(words, stdout=subprocess.PIPE, cwd=ROOT, env={**os.environ, "PYTHONPATH": str(ROOT)})
        for _ in range(count)
    ]
    for loop in loops:
        assert loop.stdout is not None and loop.stdout.readline() == b"ready\n"
    return loops


def _end(loop: subprocess.Popen[bytes]) -> str:
    loop.send_signal(signal.SIGTERM)
    said, _ = loop.communicate(timeout=120)
    assert loop.returncode == 0
    return said.decode().strip()


def test_two_schedulers_at_once_run_each_slot_once(context: CronContext) -> None:
    context.crontab(
        'SHELL=/bin/sh\n@every 1s echo "$RESIL_CRON_SLOT" >> ran # resil: name=x overlap=allow catch_up=all<=60\n'
    )
    loops = _loops(context, 2)
    wait_until(lambda: len(context.ran()) >= 4)
    for loop in loops:
        assert _end(loop) == "stop requested"
    ran = context.ran()
    assert set(Counter(ran).values()) == {1}
    assert sorted(ran) == list(range(min(ran), max(ran) + 1)), "and none was left out"


def test_sigterm_ends_what_runs_politely_and_records_it(context: CronContext) -> None:
    context.crontab(
        "SHELL=/bin/sh\n@every 1s trap 'echo polite > polite; exit 0' TERM; touch begun; while :; do sleep 0.1; done "
        "# resil: name=x\n"
    )
    (loop,) = _loops(context, 1)
    wait_until((context.home / "begun").exists)
    began = time.monotonic()
    assert _end(loop) == "stop requested"
    assert time.monotonic() - began < 60
    assert (context.home / "polite").exists()
    assert "cut short" in {str(record.outcome) for record in context.history("crontab+x")}
    assert context.names("runs") == []


def test_sighup_ends_nothing(context: CronContext) -> None:
    context.crontab("@every 1s true # resil: name=x\n")
    (loop,) = _loops(context, 1)
    wait_until(lambda: len(context.history("crontab+x")) > 0)
    loop.send_signal(signal.SIGHUP)
    known = len(context.history("crontab+x"))
    wait_until(lambda: len(context.history("crontab+x")) > known)
    _end(loop)


def test_a_killed_scheduler_is_followed_by_the_next_one(context: CronContext) -> None:
    context.crontab('SHELL=/bin/sh\n@every 1s echo "$RESIL_CRON_SLOT" >> ran; sleep 0.5 # resil: name=x\n')
    (loop,) = _loops(context, 1)
    wait_until(lambda: len(context.ran()) >= 1)
    loop.kill()
    loop.communicate(timeout=60)
    known = len(context.ran())
    (loop,) = _loops(context, 1)
    wait_until(lambda: len(context.ran()) > known)
    _end(loop)
    assert set(Counter(context.ran()).values()) == {1}
