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
from tests.cron.scene import TOP, CronScene, wait_until

ROOT = Path(__file__).parents[2]
A = "cron.minutely+a"


@pytest.fixture
def scene(tmp_path: Path) -> CronScene:
    return CronScene(tmp_path)


def _run(scene: CronScene, seconds: float, **more: object) -> Ran:
    end = scene.clock.time + seconds
    return run(scene.cron, driver="foreground", stop=lambda: scene.clock.time >= end, **more)  # type: ignore[arg-type]


def test_it_ticks_at_every_minute_and_runs_every_slot_once(scene: CronScene) -> None:
    scene.drop("cron.minutely/a")
    ran = _run(scene, 640)
    assert scene.ran() == [TOP + 60 * minute for minute in range(11)]
    assert ran.why == "it was told to end" and ran.ticks == 12
    beat = scene.cron.state.heartbeat()
    assert beat is not None and beat.ticks == 12 and beat.late_s == 0


def test_a_slot_between_two_ticks_is_not_late(tmp_path: Path) -> None:
    scene = CronScene(tmp_path, settings="tick_s = 300")
    scene.crontab('SHELL=/bin/sh\n*/2 * * * * echo "$RESIL_CRON_SLOT $(date +\\%s)" >> ran2 # resil: name=x\n')
    started: list[float] = []
    scene.clock.at_sleep = lambda _: started.append(scene.clock.time)
    _run(scene, 600)
    times = {record.slot: record.started for record in scene.history("crontab+x")}
    assert len(times) == 5 and all(began is not None and began - slot < 2 for slot, began in times.items())


def test_it_ends_at_its_time_and_leaves_the_rest_to_the_next_one(scene: CronScene) -> None:
    scene.drop("cron.minutely/a", options="timeout=30s")
    ran = run(scene.cron, driver="slurm", until=TOP + 140, stop=lambda: False)
    assert ran.why == "its time is over"
    assert scene.ran() == [TOP, TOP + 60], "the slot after could not have ended"
    run(scene.cron, driver="slurm", until=TOP + 200, stop=lambda: False)
    assert scene.ran() == [TOP, TOP + 60, TOP + 120]


def test_one_tick_waits_for_what_it_started(scene: CronScene) -> None:
    scene.drop("cron.minutely/a", body="sleep 0.2; echo end >> ended")
    run(scene.cron, driver="x", once=True)
    scene.clock.time = TOP
    ran = run(scene.cron, driver="x", once=True)
    assert (scene.home / "ended").exists() and ran.last is not None and len(ran.last.ended) == 1


def test_it_ends_when_somebody_stops_the_scheduler(scene: CronScene) -> None:
    scene.drop("cron.minutely/a")

    def stop(_: float) -> None:
        if scene.clock.time > TOP + 100 and not (scene.cron.state.path / "stop").exists():
            scene.cron.state.stop("alice", "enough", scene.clock.time)

    scene.clock.at_sleep = stop
    ran = _run(scene, 10_000)
    assert "alice" in ran.why and scene.ran() == [TOP, TOP + 60]


@pytest.mark.parametrize("jump_s", [3600, 86400, 8 * 3600 + 17])
def test_a_suspended_machine_makes_up_for_one_slot(scene: CronScene, jump_s: float) -> None:
    """The wall clock has gone on, the monotonic clock has not."""
    scene.drop("cron.minutely/a")

    def suspend(_: float) -> None:
        if TOP + 100 < scene.clock.time < TOP + 110:
            scene.clock.time += jump_s

    scene.clock.at_sleep = suspend
    _run(scene, 90 + 60 + jump_s)
    ran = scene.ran()
    assert len(ran) == len(set(ran)) and ran[:2] == [TOP, TOP + 60]
    woken = [slot for slot in ran if slot > TOP + 120]
    assert 1 <= len(woken) <= 3 and woken[0] >= TOP + jump_s
    assert sum(r.count for r in scene.history(A) if str(r.outcome) == "missed") == (woken[0] - TOP - 120) / 60


@pytest.mark.parametrize("jump_s", [300, 3600, 86400])
def test_a_clock_that_is_set_back_stops_nothing_for_long_and_runs_no_slot_twice(
    scene: CronScene, jump_s: float
) -> None:
    scene.drop("cron.minutely/a")
    is_done = False

    def set_back(_: float) -> None:
        nonlocal is_done
        if scene.clock.time > TOP + 300 and not is_done:
            is_done = True
            scene.clock.time -= jump_s

    scene.clock.at_sleep = set_back
    began = scene.clock.monotonic()
    run(scene.cron, driver="x", stop=lambda: scene.clock.monotonic() > began + 1200)
    ran = scene.ran()
    assert len(ran) == len(set(ran))
    assert len(ran) >= 1200 / 60 - 1 - (jump_s / 60 if jump_s <= 900 else 1)


def test_a_tick_that_fails_is_said_once_and_does_not_end_it(scene: CronScene, monkeypatch: pytest.MonkeyPatch) -> None:
    scene.drop("cron.minutely/a")
    errors: list[Exception] = [StateDirectoryError("cannot read cron: Stale file handle"), ZeroDivisionError("bug")]
    read = CronProject.read_table
    said: list[str] = []

    def sometimes(cron: CronProject) -> Table:
        if scene.clock.time < TOP + 200:
            raise errors[scene.clock.time > TOP + 90]
        return read(cron)

    monkeypatch.setattr(CronProject, "read_table", sometimes)
    _run(scene, 400, say=said.append)
    assert scene.ran()[-1] == TOP + 360
    assert len([line for line in said if "Stale" in line]) == 1 and len([line for line in said if "bug" in line]) == 1


def test_a_trouble_that_stays_is_said_again_once_an_hour(scene: CronScene, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(_: CronProject) -> Table:
        raise StateDirectoryError("no such luck")

    monkeypatch.setattr(CronProject, "read_table", fail)
    said: list[str] = []
    _run(scene, 60 * REPEATED_EVERY + 120, say=said.append)
    assert said.count("no such luck") == 2


def test_hundreds_of_ticks_cost_no_memory_and_no_descriptors(scene: CronScene) -> None:
    scene.drop("cron.hourly/a")
    scene.drop("cron.hourly/b.slurm")
    _run(scene, 20 * 60)
    before = (len(os.listdir("/proc/self/fd")), resource.getrusage(resource.RUSAGE_SELF).ru_maxrss)  # noqa: PTH208
    _run(scene, 200 * 60)
    after = (len(os.listdir("/proc/self/fd")), resource.getrusage(resource.RUSAGE_SELF).ru_maxrss)  # noqa: PTH208
    assert after[0] <= before[0] and after[1] - before[1] < 4096, "KiB"
    assert len(scene.ran()) == 4


# ---- real processes -------------------------------------------------------------------------------------------------

_LOOP = """
import os, sys
from pathlib import Path
from resilience.cron.project import open_cron
from resilience.cron.run import run
from resilience.runs.project import Project
from resilience.settings.load import load
from resilience.system.world import World
os.chdir(sys.argv[1])
world = World()
print("ready", flush=True)
ran = run(open_cron(Project(world, load(world))), driver="foreground", grace_s=2.0)
print(ran.why, flush=True)
"""


def _loops(scene: CronScene, count: int) -> list[subprocess.Popen[bytes]]:
    words = [sys.executable, "-c", _LOOP, str(scene.home)]
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


def test_two_schedulers_at_once_run_each_slot_once(scene: CronScene) -> None:
    scene.crontab(
        'SHELL=/bin/sh\n@every 1s echo "$RESIL_CRON_SLOT" >> ran # resil: name=x overlap=allow catch_up=all<=60\n'
    )
    loops = _loops(scene, 2)
    wait_until(lambda: len(scene.ran()) >= 4)
    for loop in loops:
        assert _end(loop) == "it was told to end"
    ran = scene.ran()
    assert set(Counter(ran).values()) == {1}
    assert sorted(ran) == list(range(min(ran), max(ran) + 1)), "and none was left out"


def test_sigterm_ends_what_runs_politely_and_records_it(scene: CronScene) -> None:
    scene.crontab(
        "SHELL=/bin/sh\n@every 1s trap 'echo polite > polite; exit 0' TERM; touch begun; while :; do sleep 0.1; done "
        "# resil: name=x\n"
    )
    (loop,) = _loops(scene, 1)
    wait_until((scene.home / "begun").exists)
    began = time.monotonic()
    assert _end(loop) == "it was told to end"
    assert time.monotonic() - began < 60
    assert (scene.home / "polite").exists()
    assert "cut short" in {str(record.outcome) for record in scene.history("crontab+x")}
    assert scene.names("running") == []


def test_sighup_ends_nothing(scene: CronScene) -> None:
    scene.crontab("@every 1s true # resil: name=x\n")
    (loop,) = _loops(scene, 1)
    wait_until(lambda: len(scene.history("crontab+x")) > 0)
    loop.send_signal(signal.SIGHUP)
    known = len(scene.history("crontab+x"))
    wait_until(lambda: len(scene.history("crontab+x")) > known)
    _end(loop)


def test_a_killed_scheduler_is_followed_by_the_next_one(scene: CronScene) -> None:
    scene.crontab('SHELL=/bin/sh\n@every 1s echo "$RESIL_CRON_SLOT" >> ran; sleep 0.5 # resil: name=x\n')
    (loop,) = _loops(scene, 1)
    wait_until(lambda: len(scene.ran()) >= 1)
    loop.kill()
    loop.communicate(timeout=60)
    known = len(scene.ran())
    (loop,) = _loops(scene, 1)
    wait_until(lambda: len(scene.ran()) > known)
    _end(loop)
    assert set(Counter(scene.ran()).values()) == {1}
