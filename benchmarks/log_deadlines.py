"""How late a silent log is noticed, and how many looks that takes: deadlines in a heap against a poll each second."""

from __future__ import annotations

import os
import random
import signal
import threading
import time
from collections.abc import Sequence
from pathlib import Path

from benchmarks.measure import Claim, Options, Report
from resilience.watch.daemon import FollowedLog, LogDeadlines, serve

LOGS = 200
POLL_S = 1.0


def run(options: Options) -> Report:
    """200 logs, each written to every 50 to 500 ms until it hangs at a time of its own; both watch the same ones."""
    timeout_s, longest_s = (2.0, 6.0) if options.quick else (5.0, 20.0)
    chance = random.Random(4)
    paths = [options.scratch / f"rank{number}.log" for number in range(LOGS)]
    hang_at = [chance.uniform(0.5, longest_s) for _ in paths]
    began = time.time() + 0.5
    for path in paths:
        path.touch()
        os.utime(path, (began, began))
    writer = os.fork()
    if writer == 0:
        _write(paths, [began + at for at in hang_at], chance)
    heap, poll = _Told(), _Told()
    deadlines = LogDeadlines(FollowedLog(str(path), (str(path),), began, timeout_s) for path in paths)
    alive, life = os.pipe()
    threads = [
        threading.Thread(target=serve, args=(deadlines, heap.tell, alive)),
        threading.Thread(target=_poll, args=(paths, timeout_s, poll)),
    ]
    try:
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    finally:
        os.close(life)
        os.close(alive)
        os.kill(writer, signal.SIGKILL)
        os.waitpid(writer, 0)
    late = {name: sorted(told.late(timeout_s)) for name, told in (("heap", heap), ("poll", poll))}
    claims = [
        Claim("overshoot beyond the timeout, deadlines in a heap, p95", 1e3 * _p95(late["heap"]), 50.0, "ms"),
        Claim("the same, poll each second, p95", 1e3 * _p95(late["poll"]), float("nan"), "ms"),
        Claim(
            f"looks: heap {deadlines.stats}, poll {poll.stats}; their ratio", deadlines.stats / poll.stats, 0.25, "x"
        ),
    ]
    notes = (
        f"{len(late['heap'])} and {len(late['poll'])} of {LOGS} hangs noticed; median overshoot "
        f"{1e3 * late['heap'][LOGS // 2]:.1f} ms and {1e3 * late['poll'][LOGS // 2]:.0f} ms; timeout {timeout_s:g} s, "
        f"hangs within {longest_s:g} s: with timeouts of minutes the ratio of the looks becomes far smaller",
    )
    return Report("silent logs noticed by deadline and by poll", claims=tuple(claims), notes=notes)


class _Told:
    """When each log was told, and how many looks that took."""

    def __init__(self) -> None:
        self.stats = 0
        self._at: dict[str, float] = {}

    def tell(self, path: str) -> None:
        self._at.setdefault(path, time.time())

    def late(self, timeout_s: float) -> list[float]:
        return [at - Path(path).stat().st_mtime - timeout_s for path, at in self._at.items()]


def _write(paths: Sequence[Path], until: Sequence[float], chance: random.Random) -> None:
    """The writers of all logs, as one process that is killed in the end."""
    due = {number: time.time() for number in range(len(paths))}
    while due:
        now = time.time()
        for number, at in list(due.items()):
            if now >= until[number]:
                del due[number]
            elif now >= at:
                os.utime(paths[number])
                due[number] = now + chance.uniform(0.05, 0.5)
        time.sleep(0.005)
    signal.pause()


def _poll(paths: Sequence[Path], timeout_s: float, told: _Told) -> None:
    """What is usual: all logs, each second."""
    left = {str(path) for path in paths}
    while left:
        for path in sorted(left):
            told.stats += 1
            if time.time() - os.stat(path).st_mtime > timeout_s:  # noqa: PTH116
                told.tell(path)
                left.discard(path)
        time.sleep(POLL_S)


def _p95(values: Sequence[float]) -> float:
    return values[min(len(values) - 1, int(0.95 * len(values)))]
