"""Between ticks: a silent log is noticed when its time is over, with one look per timeout."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from resilience.system.world import SystemClock
from resilience.watch.follow_logs import FollowedLog, LogDeadlines, LogFollower, followed_ticks
from tests.guard.guards import wait_until
from tests.system.hung import hung_folder
from tests.watch.checks.log.watcher import write


@pytest.fixture
def follower() -> Iterator[LogFollower]:
    one = LogFollower()
    yield one
    one.stop()


def test_a_log_is_looked_at_once_per_timeout(tmp_path: Path) -> None:
    log = write(tmp_path / "a.log", "x", at=1000.0)
    deadlines = LogDeadlines([FollowedLog("a", (str(log),), 1000.0, 60.0)])
    assert deadlines.wait_s(1000.0) == 60.0
    assert deadlines.overdue(1059.0) == [] and deadlines.stats == 0
    write(log, "y", at=1050.0)
    assert deadlines.overdue(1060.0) == [] and deadlines.stats == 1
    assert deadlines.wait_s(1060.0) == 50.0
    assert deadlines.overdue(1110.0) == ["a"] and deadlines.stats == 2
    assert deadlines.wait_s(1110.0) is None


def test_of_several_logs_of_a_subject_one_that_is_written_to_is_enough(tmp_path: Path) -> None:
    paths = tuple(str(write(tmp_path / f"{n}.log", "x", at=1000.0 + 50 * n)) for n in range(2))
    deadlines = LogDeadlines([FollowedLog("run", paths, 1000.0, 60.0)])
    assert deadlines.overdue(1060.0) == []
    assert deadlines.overdue(1110.0) == ["run"]


def test_a_log_that_is_gone_is_overdue_and_one_of_the_future_is_not_asked_for_ever(tmp_path: Path) -> None:
    future = write(tmp_path / "a.log", "x", at=99999.0)
    gone = str(tmp_path / "gone")
    deadlines = LogDeadlines([FollowedLog("f", (str(future),), 0.0, 10.0), FollowedLog("g", (gone,), 0.0, 10.0)])
    assert deadlines.overdue(10.0) == ["g"]
    assert deadlines.wait_s(10.0) == 10.0


def test_a_silent_log_ends_the_wait_and_a_written_one_does_not(tmp_path: Path, follower: LogFollower) -> None:
    silent, busy = tmp_path / "silent.log", tmp_path / "busy.log"
    silent.touch()
    program = f"import time\nwhile True: open({str(busy)!r}, 'a').write('x'); time.sleep(0.02)"
    writer = subprocess.Popen([sys.executable, "-c", program])
    try:
        wait_until(busy.exists)
        now = time.time()
        os.utime(silent, (now, now))
        follower.follow([FollowedLog(path.stem, (str(path),), now, 0.5) for path in (silent, busy)])
        assert follower.wait(10.0) == ("silent",)
        assert 0.45 <= time.time() - now <= 5.0
        assert follower.wait(0.7) == ()
    finally:
        writer.kill()
        writer.wait()


def test_a_follower_of_nothing_waits(follower: LogFollower) -> None:
    began = time.monotonic()
    assert follower.wait(0.05) == ()
    follower.follow([])
    assert follower.wait(0.05) == ()
    assert time.monotonic() - began >= 0.1


def test_its_child_ends_with_it_and_leaves_no_process(tmp_path: Path) -> None:
    program = (
        "import os, sys, time\n"
        "from resilience.watch.follow_logs import FollowedLog, LogFollower\n"
        "one = LogFollower()\n"
        "one.follow([FollowedLog('a', (sys.argv[1],), time.time(), 1000.0)])\n"
        "print(next(iter(one._children.values())).pid, flush=True)\n"
        "one.wait(100.0)\n"
    )
    daemon = subprocess.Popen([sys.executable, "-c", program, str(tmp_path / "a")], stdout=subprocess.PIPE, text=True)
    assert daemon.stdout is not None
    pid = int(daemon.stdout.readline())
    assert Path(f"/proc/{pid}").exists()
    daemon.send_signal(signal.SIGKILL)
    daemon.wait()
    daemon.stdout.close()
    wait_until(lambda: not Path(f"/proc/{pid}").exists() or " Z " in Path(f"/proc/{pid}/stat").read_text())


def test_a_file_system_that_hangs_hides_no_log_of_another(tmp_path: Path, follower: LogFollower) -> None:
    log = tmp_path / "a.log"
    log.touch()
    mount = tmp_path / "hung"
    with hung_folder(mount) as hung:
        now = time.time()
        logs = [
            FollowedLog("hung", (str(hung / "b.log"),), now - 10, 0.2),
            FollowedLog("silent", (str(log),), now, 0.3),
        ]
        follower.follow(logs)
        assert follower.wait(10.0) == ("silent",)
        began = time.monotonic()
        follower.follow(logs)
        assert follower.wait(10.0) == ("silent",)
        assert time.monotonic() - began < 5.0


def test_ticks_come_by_the_clock_and_overdue_logs_between_them(tmp_path: Path, follower: LogFollower) -> None:
    log = tmp_path / "a.log"
    log.touch()
    seen: list[tuple[str, ...]] = []

    def logs() -> list[FollowedLog]:
        return [] if ("a",) in seen else [FollowedLog("a", (str(log),), time.time(), 0.1)]

    for overdue in followed_ticks(SystemClock(), 1.0, 3, logs, follower):
        seen.append(overdue)
    assert seen.count(()) == 3 and seen.count(("a",)) == 1
    assert seen[0] == () and seen[-1] == ()
