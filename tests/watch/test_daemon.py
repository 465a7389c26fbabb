"""Ticks at multiples of the interval, and silent logs detected in between with one stat call per timeout."""

from __future__ import annotations

import itertools
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest

from resilience.system.ports import SystemClock
from resilience.watch.daemon import NAP_S, DueLogs, FollowedLog, LogDeadlines, LogFollower, next_tick, ticks
from resilience.watch.reading import Timed
from resilience.watch.watchdogs import Watchdog
from tests.lab.fakes import FakeClock
from tests.lab.hung import hung_directory
from tests.lab.waiting import until
from tests.runs.a_check import ACheck, AReading, ASettings, a_watchdog
from tests.watch.checks.log.watcher import write


@pytest.mark.parametrize(
    ("now", "every_s", "then"), [(0, 60, 60), (59.9, 60, 60), (60, 60, 120), (100.5, 0.5, 101), (7200, 3600, 10800)]
)
def test_a_tick_is_at_a_whole_multiple_of_the_interval(now: float, every_s: float, then: float) -> None:
    assert next_tick(now, every_s) == then


class Sleeper:
    """A follower without logs that sleeps by the test's clock."""

    def __init__(self, clock: FakeClock) -> None:
        self.clock = clock

    def follow(self, logs: Sequence[FollowedLog]) -> None:
        pass

    def wait(self, seconds: float) -> tuple[str, ...]:
        assert seconds <= NAP_S
        self.clock.sleep(seconds)
        return ()


def tick(clock: FakeClock, every_s: float, count: int = 0) -> Iterator[float]:
    """Return the times of the ticks."""
    return (clock.now() for _ in ticks(clock, every_s, count, list, Sleeper(clock)))


def test_the_first_tick_is_at_once_and_the_others_are_aligned() -> None:
    assert list(tick(FakeClock(time=1000.0), 60.0, 4)) == [1000.0, 1020.0, 1080.0, 1140.0]


def test_ticks_missed_during_a_long_tick_are_skipped() -> None:
    clock = FakeClock(time=0.0)
    seen = []
    for now in tick(clock, 60.0, 4):
        seen.append(now)
        clock.sleep(130 if now == 60 else 1)
    assert seen == [0, 60, 240, 300]


def test_without_a_count_the_ticks_continue() -> None:
    assert len(list(itertools.islice(tick(FakeClock(), 1.0), 1000))) == 1000


@pytest.mark.parametrize(("set_by_s", "every_s", "longest_s"), [(-86400, 60, 60 + NAP_S), (86400, 3600, NAP_S)])
def test_a_clock_change_stops_no_tick_and_is_noticed_within_one_sleep(
    set_by_s: float, every_s: float, longest_s: float
) -> None:
    clock = FakeClock(time=1_008_000.0)

    def set_clock(seconds: float) -> None:
        clock.at_sleep = lambda _: None
        clock.time += set_by_s

    clock.at_sleep = set_clock
    before = clock.monotonic()
    list(tick(clock, every_s, 2))
    assert clock.monotonic() - before <= longest_s


def followed(subject: str, since: float, timeout_s: float, *paths: Path) -> FollowedLog:
    return FollowedLog(subject, tuple(map(str, paths)), since, timeout_s)


class DueCheck(ACheck):
    """A check whose readings have a deadline for the log's progress."""

    def deadline(
        self, reading: AReading, settings: ASettings, now: float
    ) -> tuple[tuple[str, ...], float, float] | None:
        if reading.used == 13:
            raise ZeroDivisionError
        return (reading.words, now - 5, float(reading.used)) if reading.words else None


def test_logs_with_a_deadline_are_followed_and_known_by_their_watchdog() -> None:
    due = DueLogs(FakeClock(time=100.0))
    mine, other = (Watchdog(name, "log", DueCheck(), ASettings()) for name in ("log", "mine"))
    due.note(mine, {"/a": Timed(99.0, AReading(60, ("/a.1", "/a.2"))), "/b": Timed(99.0, AReading(60))})
    due.note(other, {"/a": Timed(99.0, AReading(7, ("/a.1",))), "/bug": Timed(99.0, AReading(13, ("/x",)))})
    due.note(a_watchdog(), {"/a": Timed(99.0, AReading(1, ("/a.1",)))})  # one that awaits nothing
    assert due.logs() == [
        FollowedLog("log /a", ("/a.1", "/a.2"), 95.0, 60.0), FollowedLog("mine /a", ("/a.1",), 95.0, 7.0),
    ]  # fmt: skip
    assert due.owners(["mine /a", "unknown"]) == {"mine"}
    due.note(other, {})
    assert [log.subject for log in due.logs()] == ["log /a"]


@pytest.fixture
def follower() -> Iterator[LogFollower]:
    one = LogFollower()
    yield one
    one.stop()


def test_a_log_takes_one_stat_per_timeout(tmp_path: Path) -> None:
    log = write(tmp_path / "a.log", "x", at=1000.0)
    deadlines = LogDeadlines([followed("a", 1000.0, 60.0, log)])
    assert deadlines.wait_s(1000.0) == 60.0
    assert deadlines.overdue(1059.0) == [] and deadlines.stats == 0
    write(log, "y", at=1050.0)
    assert deadlines.overdue(1060.0) == [] and deadlines.stats == 1
    assert deadlines.wait_s(1060.0) == 50.0
    assert deadlines.overdue(1110.0) == ["a"] and deadlines.stats == 2
    assert deadlines.wait_s(1110.0) is None


def test_one_written_log_of_a_subject_is_enough(tmp_path: Path) -> None:
    paths = [write(tmp_path / f"{n}.log", "x", at=1000.0 + 50 * n) for n in range(2)]
    deadlines = LogDeadlines([followed("run", 1000.0, 60.0, *paths)])
    assert deadlines.overdue(1060.0) == []
    assert deadlines.overdue(1110.0) == ["run"]


def test_a_deleted_log_is_overdue_and_one_with_a_future_mtime_is_not_polled(tmp_path: Path) -> None:
    future = write(tmp_path / "a.log", "x", at=99999.0)
    deadlines = LogDeadlines([followed("f", 0.0, 10.0, future), followed("g", 0.0, 10.0, tmp_path / "gone")])
    assert deadlines.overdue(10.0) == ["g"]
    assert deadlines.wait_s(10.0) == 10.0


def test_a_silent_log_ends_the_wait_and_a_written_one_does_not(tmp_path: Path, follower: LogFollower) -> None:
    silent, busy = tmp_path / "silent.log", tmp_path / "busy.log"
    silent.touch()
    program = f"import time\nwhile True: open({str(busy)!r}, 'a').write('x'); time.sleep(0.02)"
    writer = subprocess.Popen([sys.executable, "-c", program])
    try:
        until(busy.exists)
        now = time.time()
        os.utime(silent, (now, now))
        follower.follow([followed(path.stem, now, 0.5, path) for path in (silent, busy)])
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


def test_the_followers_child_exits_with_it(tmp_path: Path) -> None:
    program = (
        "import os, sys, time\n"
        "from resilience.watch.daemon import FollowedLog, LogFollower\n"
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
    until(lambda: not Path(f"/proc/{pid}").exists() or " Z " in Path(f"/proc/{pid}/stat").read_text())


def test_a_file_system_that_hangs_hides_no_log_of_another(tmp_path: Path, follower: LogFollower) -> None:
    log = tmp_path / "a.log"
    log.touch()
    mount = tmp_path / "hung"
    with hung_directory(mount) as hung:
        now = time.time()
        logs = [followed("hung", now - 10, 0.2, hung / "b.log"), followed("silent", now, 0.3, log)]
        follower.follow(logs)
        assert follower.wait(10.0) == ("silent",)
        began = time.monotonic()
        follower.follow(logs)
        assert follower.wait(10.0) == ("silent",)
        assert time.monotonic() - began < 5.0


def test_overdue_logs_are_reported_between_ticks(tmp_path: Path, follower: LogFollower) -> None:
    log = tmp_path / "a.log"
    log.touch()
    seen: list[tuple[str, ...]] = []

    def logs() -> list[FollowedLog]:
        return [] if ("a",) in seen else [followed("a", time.time(), 0.1, log)]

    for overdue in ticks(SystemClock(), 1.0, 3, logs, follower):
        seen.append(overdue)
    assert seen.count(()) == 3 and seen.count(("a",)) == 1
    assert seen[0] == () and seen[-1] == ()
