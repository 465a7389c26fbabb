"""`resil cron tick`: makes one tick, and waits for the runs it started."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from resilience.cron.ticked import TickResult
from resilience.cron.ticker import Ticker
from resilience.errors import ResilError

if TYPE_CHECKING:
    from resilience.cron.project import CronProject

__all__ = ["TickResult", "tick"]

CLERK_S = 300.0
"""How long a tick waits for a slow scheduler. The next tick handles what is unfinished then."""

NAP_S = 0.5
"""Interval at which the clerk is polled while no run is active."""


def tick(
    cron: CronProject,
    *,
    driver: str,
    wait: bool = True,
    until: float | None = None,
    stop: Callable[[], bool] = lambda: False,
    grace_s: float = 10.0,
) -> TickResult:
    """Run what is due, and write a heartbeat. `driver`: what makes the ticks: `crontab`, `slurm`, `foreground` ...

    With `wait`, return when all started runs have ended; otherwise when they have started. Slots delayed by jitter are
    awaited in either case. `until`, `stop`, `grace_s`: as in `run`. Raise StateDirectoryError if nothing can be
    written: then nothing runs, because its result could not be recorded. Raise ProbeError if a disk hangs.
    """
    from resilience.cron.tell import TickReporter

    clock, reporter = cron.project.system.clock, TickReporter(cron)
    ticker = Ticker(cron, driver=driver, until=until)

    def is_over() -> bool:
        return stop() or (until is not None and clock.now() >= until)

    cron.check_disks()
    reporter.tick_started()
    done = TickResult()
    try:
        done = ticker.tick()
        deadline = clock.monotonic() + ticker.period_s
        while not done.stopped and (start := ticker.delayed_until()) is not None:
            if clock.monotonic() + (start - clock.now()) > deadline or is_over():
                break
            clock.sleep(min(1.0, max(0.01, start - clock.now())))
            done = done.plus(ticker.start_delayed()).plus(ticker.poll()) if clock.now() >= start else done
        if wait:
            done = _wait(ticker, done, clock.monotonic, is_over)
            done = done.plus(ticker.end_all(grace_s if is_over() else 0.0))
        if ticker.failure is not None:
            raise ticker.failure
    except ResilError as error:
        reporter.ended(done, ticker.table, trouble=error.message)
        reporter.close()
        raise
    done = done.plus(TickResult(lines=reporter.ended(done, ticker.table)))
    reporter.close()
    return done


def _wait(ticker: Ticker, done: TickResult, monotonic: Callable[[], float], is_over: Callable[[], bool]) -> TickResult:
    while ticker.is_running and not is_over():
        done = done.plus(ticker.poll(60.0, is_over=is_over))
    until = monotonic() + CLERK_S
    while ticker.is_busy and monotonic() < until and not is_over():
        done = done.plus(ticker.poll(NAP_S))
    return done
