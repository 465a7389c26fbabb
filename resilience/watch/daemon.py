"""The schedule of `resil watch --every`: ticks at multiples of the interval, and the timeouts of logs in between.

All nodes tick at the same moments. Between ticks, a log that exceeds its timeout is checked at once, without polling:
one stat at the last write plus the timeout. If the log was written to since, the deadline moves; otherwise its watchdog
probes and judges.

One child process per file system makes these stat calls, because a stat may never return (system/child.py). A child
that hangs is abandoned, and its file system is not followed until the child has exited; the ticks continue and report
STUCK.
"""

from __future__ import annotations

import contextlib
import os
import select
import signal
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NoReturn, Protocol

from resilience.base.mounts import current_mounts, mount_of
from resilience.system.deadlines import Deadlines
from resilience.system.ports import Clock
from resilience.watch.reading import Timed
from resilience.watch.watchdogs import Watchdog

NAP_S = 30.0
"""The longest sleep, so that a suspended machine or a clock change is noticed."""
LEAST_S = 0.05
"""The least time between two stat calls for one log, whatever its times are."""
GATHER_S = 0.02
"""Logs that become overdue within this time are reported together."""
WAKE_S = 30.0


@dataclass(frozen=True, slots=True)
class FollowedLog:
    """One subject of the log watchdog.

    Attributes:
        subject: its name. A write to any of `paths` counts.
        since: when the subject last made progress, in seconds since the epoch.
        timeout_s: how long the logs may go without a write.
    """

    subject: str
    paths: tuple[str, ...]
    since: float
    timeout_s: float


class Follower(Protocol):
    """Follows logs between ticks: see LogFollower."""

    def follow(self, logs: Sequence[FollowedLog]) -> None: ...

    def wait(self, seconds: float) -> tuple[str, ...]: ...


def ticks(
    clock: Clock, every_s: float, count: int, logs: Callable[[], Sequence[FollowedLog]], follower: Follower
) -> Iterator[tuple[str, ...]]:
    """Yield an empty tuple for each tick, and between ticks the subjects that have just become overdue.

    The first tick is now, the others are at multiples of `every_s` by the wall clock, `count` in all (0: unlimited). A
    tick that becomes due during the previous one is skipped. A clock change never lengthens the current wait. `logs`
    returns the logs to follow next; it is called after each tick and after each overdue log.
    """
    done = 0
    while True:
        yield ()
        done += 1
        if done == count:
            return
        due = next_tick(clock.now(), every_s)
        longest = clock.monotonic() + max(0.0, due - clock.now())
        follower.follow(logs())
        while (left := min(due - clock.now(), longest - clock.monotonic())) > 0:
            overdue = follower.wait(min(left, NAP_S))
            if overdue:
                yield overdue
                follower.follow(logs())


def next_tick(now: float, every_s: float) -> float:
    """Return the next multiple of the interval after `now`. For instance, 60 s at 12:00:31 give 12:01. Pure."""
    return (now // every_s + 1) * every_s


class DueLogs:
    """The logs to follow: those of every watchdog that has a `deadline`, the time by which they must make progress."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._seen: dict[str, tuple[Watchdog, Mapping[str, Timed[Any]]]] = {}
        self._owners: dict[str, str] = {}

    def note(self, watchdog: Watchdog, readings: Mapping[str, Timed[Any]]) -> None:
        """Store a watchdog's newest readings."""
        if hasattr(watchdog.check, "deadline"):
            self._seen[watchdog.name] = watchdog, readings

    def logs(self) -> Sequence[FollowedLog]:
        """Return the logs to follow now."""
        now, found = self._clock.now(), []
        self._owners = {}
        for watchdog, readings in self._seen.values():
            for subject, timed in readings.items():
                try:
                    due = watchdog.check.deadline(timed.reading, watchdog.settings, now)  # type: ignore[attr-defined]
                except Exception:  # a bug in one watchdog; the ticks still probe
                    continue
                if due is not None:
                    name = f"{watchdog.name} {subject}"
                    self._owners[name] = watchdog.name
                    found.append(FollowedLog(name, *due))
        return found

    def owners(self, subjects: Iterable[str]) -> set[str]:
        """Return the names of the watchdogs that these logs belong to."""
        return {self._owners[subject] for subject in subjects if subject in self._owners}


class LogDeadlines:
    """The deadlines of some logs.

    Attributes:
        stats: the number of stat calls made so far.
    """

    def __init__(self, logs: Iterable[FollowedLog]) -> None:
        self.stats = 0
        self._logs = {log.subject: log for log in logs}
        self._read_at = {log.subject: log.since for log in self._logs.values()}
        self._deadlines: Deadlines[str] = Deadlines()
        for log in self._logs.values():
            self._deadlines.set(log.subject, log.since + log.timeout_s)

    def wait_s(self, now: float) -> float | None:
        """Return the seconds until the next log is due; None if no log is followed."""
        due = self._deadlines.next()
        return None if due is None else max(0.0, due - now)

    def overdue(self, now: float) -> list[str]:
        """Stat the logs that are due, and return the subjects without a write since; each is returned once."""
        found = []
        for subject in self._deadlines.pop_due(now):
            log = self._logs[subject]
            written = max(map(self._mtime, log.paths), default=0.0)
            read_at, self._read_at[subject] = self._read_at[subject], now
            # The file server's clock may be ahead of ours. If it is behind, the next tick corrects the deadline.
            written = min(written, now)
            if written > read_at or written + log.timeout_s > now:
                self._deadlines.set(subject, max(written + log.timeout_s, now + LEAST_S))
            else:
                found.append(subject)
        return found

    def _mtime(self, path: str) -> float:
        self.stats += 1
        try:
            return os.stat(path).st_mtime  # noqa: PTH116
        except OSError:
            return 0.0


class LogFollower:
    """Follows logs for the daemon: `follow` after each tick, then `wait` until the next one."""

    def __init__(self) -> None:
        self._children: dict[str, _Child] = {}

    def follow(self, logs: Sequence[FollowedLog]) -> None:
        """Follow these logs from now on instead of the earlier ones."""
        self.stop()
        mounts = current_mounts()
        groups: dict[str, list[FollowedLog]] = {}
        for log in logs:
            mount = mount_of(Path(log.paths[0] if log.paths else "/"), mounts)
            groups.setdefault(mount.point if mount is not None else "/", []).append(log)
        for place, group in groups.items():
            if place not in self._children:  # otherwise an earlier child still hangs there
                self._children[place] = _start(group)

    def wait(self, seconds: float) -> tuple[str, ...]:
        """Wait for that long; return early, with the overdue subjects, if there are any."""
        pipes = {child.pipe: child for child in self._children.values() if child.pipe >= 0}
        end = time.monotonic() + max(0.0, seconds)
        found: list[str] = []
        while pipes:
            left = min(GATHER_S, end - time.monotonic()) if found else end - time.monotonic()
            ready = select.select(list(pipes), [], [], max(0.0, left))[0]
            if not ready:
                return tuple(found)
            for pipe in ready:
                overdue = pipes[pipe].read()
                if overdue is None:
                    pipes.pop(pipe)
                else:
                    found += overdue
        if not found:
            time.sleep(max(0.0, end - time.monotonic()))
        return tuple(found)

    def stop(self) -> None:
        """Stop following logs."""
        for child in self._children.values():
            child.end()
        self._children = {place: child for place, child in self._children.items() if not child.is_gone()}


class _Child:
    def __init__(self, pid: int, pipe: int, lifeline: int) -> None:
        self.pid = pid
        self.pipe = pipe
        self._lifeline = lifeline
        self._rest = b""

    def read(self) -> list[str] | None:
        """Return the subjects that this child has reported; None if the child has exited."""
        chunk = os.read(self.pipe, 65536)
        if not chunk:
            self._close()
            return None
        *overdue, self._rest = (self._rest + chunk).split(b"\0")
        return [os.fsdecode(subject) for subject in overdue]

    def end(self) -> None:
        self._close()
        with contextlib.suppress(ProcessLookupError):
            os.kill(self.pid, signal.SIGKILL)

    def is_gone(self) -> bool:
        """Return whether the child has exited, waiting up to 0.1 s."""
        for _ in range(50):
            with contextlib.suppress(ChildProcessError):
                if os.waitpid(self.pid, os.WNOHANG)[0] == 0:
                    time.sleep(0.002)
                    continue
            return True
        return False

    def _close(self) -> None:
        for descriptor in {self.pipe, self._lifeline} - {-1}:
            os.close(descriptor)
        self.pipe = self._lifeline = -1


def _start(logs: Sequence[FollowedLog]) -> _Child:
    reading, writing = os.pipe2(os.O_CLOEXEC)
    alive, lifeline = os.pipe2(os.O_CLOEXEC)
    blocked = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM, signal.SIGHUP, signal.SIGINT})
    pid = os.fork()
    if pid == 0:
        _run_child(logs, writing, alive, (reading, lifeline), blocked)
    signal.pthread_sigmask(signal.SIG_SETMASK, blocked)
    os.close(writing)
    os.close(alive)
    return _Child(pid, reading, lifeline)


def _run_child(
    logs: Sequence[FollowedLog], pipe: int, alive: int, others: Sequence[int], blocked: Iterable[signal.Signals | int]
) -> NoReturn:
    """Run the child. The child exits when the daemon does, which holds the other end of the pipe `alive`."""
    try:
        for number in (signal.SIGTERM, signal.SIGHUP, signal.SIGINT):
            signal.signal(number, signal.SIG_DFL)
        signal.pthread_sigmask(signal.SIG_SETMASK, blocked)
        for descriptor in others:
            os.close(descriptor)
        serve(LogDeadlines(logs), lambda subject: os.write(pipe, os.fsencode(subject) + b"\0"), alive)
    finally:
        os._exit(0)


def serve(deadlines: LogDeadlines, report: Callable[[str], object], alive: int) -> None:
    """Report each subject when it becomes overdue, until none is left or the other end of `alive` is closed."""
    while (wait_s := deadlines.wait_s(time.time())) is not None:
        if select.select([alive], [], [], min(wait_s, WAKE_S))[0]:
            return
        for subject in deadlines.overdue(time.time()):
            report(subject)
