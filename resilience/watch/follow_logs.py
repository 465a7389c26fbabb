"""Between the ticks of `resil watch --every`: notices at once when a log has been silent for as long as it may be.

No poll: each log is looked at once, at its last write plus its timeout. Mostly it was written meanwhile, and the look
only moves the deadline: one stat per log and timeout. When it was not, the watchdog itself looks, and judges.

A child process per file system does that, because a stat may never return (system/child.py). A child that hangs is left
behind, and its file system is not followed until it has ended; the ticks go on and say STUCK.
"""

from __future__ import annotations

import contextlib
import os
import select
import signal
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NoReturn

from resilience.base.mounts import current_mounts, mount_of
from resilience.system.deadlines import Deadlines
from resilience.system.world import Clock

LEAST_S = 0.05
"""Two looks at one log are never closer than this, whatever its times are."""
GATHER_S = 0.02
"""Logs that are overdue together are told together."""
WAKE_S = 30.0


@dataclass(frozen=True, slots=True)
class FollowedLog:
    """One subject of the log watchdog.

    Attributes:
        subject: its name; `paths` are its logs, of which one that is written to is enough.
        since: when it last went on, in seconds since the epoch.
        timeout_s: how long it may be silent.
    """

    subject: str
    paths: tuple[str, ...]
    since: float
    timeout_s: float


class LogDeadlines:
    """The deadlines of some logs.

    Attributes:
        stats: how many logs were looked at so far.
    """

    def __init__(self, logs: Iterable[FollowedLog]) -> None:
        self.stats = 0
        self._logs: dict[str, FollowedLog] = {}
        self._looked: dict[str, float] = {}
        self._deadlines: Deadlines[str] = Deadlines()
        for log in logs:
            self._logs[log.subject] = log
            self._looked[log.subject] = log.since
            self._deadlines.set(log.subject, log.since + log.timeout_s)

    def wait_s(self, now: float) -> float | None:
        """How long nothing is due; None when nothing ever is."""
        due = self._deadlines.next()
        return None if due is None else max(0.0, due - now)

    def overdue(self, now: float) -> list[str]:
        """Look at the logs that are due, and return the subjects that have written nothing; each is told once."""
        found = []
        for subject in self._deadlines.pop_due(now):
            log = self._logs[subject]
            written = max(map(self._mtime, log.paths), default=0.0)
            looked, self._looked[subject] = self._looked[subject], now
            # A file server's clock may be ahead of ours; when it is behind, the next tick corrects it.
            written = min(written, now)
            if written > looked or written + log.timeout_s > now:
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
    """Follows logs from a daemon: `follow` after each tick, then `wait` until the next one."""

    def __init__(self) -> None:
        self._children: dict[str, _Child] = {}

    def follow(self, logs: Sequence[FollowedLog]) -> None:
        """Follow these from now on, and no others."""
        self.stop()
        mounts = current_mounts()
        groups: dict[str, list[FollowedLog]] = {}
        for log in logs:
            mount = mount_of(_path(log), mounts)
            groups.setdefault(mount.point if mount is not None else "/", []).append(log)
        for place, group in groups.items():
            if place not in self._children:  # else an earlier one still hangs there
                self._children[place] = _start(group)

    def wait(self, seconds: float) -> tuple[str, ...]:
        """Wait so long, and return; sooner, with the subjects that are overdue, when there are any."""
        pipes = {child.pipe: child for child in self._children.values() if child.pipe >= 0}
        if not pipes:
            time.sleep(max(0.0, seconds))
            return ()
        end = time.monotonic() + max(0.0, seconds)
        found: list[str] = []
        while pipes:
            left = min(GATHER_S, end - time.monotonic()) if found else end - time.monotonic()
            ready = select.select(list(pipes), [], [], max(0.0, left))[0]
            if not ready:
                return tuple(found)
            for pipe in ready:
                told = pipes[pipe].read()
                if told is None:
                    pipes.pop(pipe)
                else:
                    found += told
        if not found:
            time.sleep(max(0.0, end - time.monotonic()))
        return tuple(found)

    def stop(self) -> None:
        """Follow nothing any more."""
        for child in self._children.values():
            child.end()
        self._children = {place: child for place, child in self._children.items() if not child.is_gone()}


class _Child:
    def __init__(self, pid: int, pipe: int, life: int) -> None:
        self.pid = pid
        self.pipe = pipe
        self._life = life
        self._rest = b""

    def read(self) -> list[str] | None:
        """Subjects that it has told of; None when it has ended."""
        chunk = os.read(self.pipe, 65536)
        if not chunk:
            self._close()
            return None
        *told, self._rest = (self._rest + chunk).split(b"\0")
        return [os.fsdecode(subject) for subject in told]

    def end(self) -> None:
        self._close()
        with contextlib.suppress(ProcessLookupError):
            os.kill(self.pid, signal.SIGKILL)

    def is_gone(self) -> bool:
        """Whether it has ended; a moment is given to it."""
        for _ in range(50):
            with contextlib.suppress(ChildProcessError):
                if os.waitpid(self.pid, os.WNOHANG)[0] == 0:
                    time.sleep(0.002)
                    continue
            return True
        return False

    def _close(self) -> None:
        for descriptor in {self.pipe, self._life} - {-1}:
            os.close(descriptor)
        self.pipe = self._life = -1


def _start(logs: Sequence[FollowedLog]) -> _Child:
    told, tell = os.pipe2(os.O_CLOEXEC)
    alive, life = os.pipe2(os.O_CLOEXEC)
    blocked = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM, signal.SIGHUP, signal.SIGINT})
    pid = os.fork()
    if pid == 0:
        _live(logs, tell, alive, (told, life), blocked)
    signal.pthread_sigmask(signal.SIG_SETMASK, blocked)
    os.close(tell)
    os.close(alive)
    return _Child(pid, told, life)


def _live(
    logs: Sequence[FollowedLog], tell: int, alive: int, others: Sequence[int], blocked: Iterable[signal.Signals | int]
) -> NoReturn:
    """The child's whole life. It ends with the daemon: then nobody holds the other end of `alive`."""
    try:
        for number in (signal.SIGTERM, signal.SIGHUP, signal.SIGINT):
            signal.signal(number, signal.SIG_DFL)
        signal.pthread_sigmask(signal.SIG_SETMASK, blocked)
        for descriptor in others:
            os.close(descriptor)
        serve(LogDeadlines(logs), lambda subject: os.write(tell, os.fsencode(subject) + b"\0"), alive)
    finally:
        os._exit(0)


def serve(deadlines: LogDeadlines, tell: Callable[[str], object], alive: int) -> None:
    """Tell each subject when it is overdue, until none is awaited, or the other end of the pipe `alive` is closed."""
    while (wait_s := deadlines.wait_s(time.time())) is not None:
        if select.select([alive], [], [], min(wait_s, WAKE_S))[0]:
            return
        for subject in deadlines.overdue(time.time()):
            tell(subject)


def _path(log: FollowedLog) -> Path:
    return Path(log.paths[0] if log.paths else "/")


def followed_ticks(
    clock: Clock, every_s: float, count: int, logs: Callable[[], Sequence[FollowedLog]], follower: LogFollower
) -> Iterator[tuple[str, ...]]:
    """Yield nothing (an empty tuple) for each tick, and between them the subjects that have just become overdue.

    As `daemon.ticks`; `logs` is asked after each tick and each overdue log for what to follow next.
    """
    from resilience.watch.daemon import NAP_S, next_tick

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
