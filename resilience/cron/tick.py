"""`resil cron tick`: one tick, and what it started waited for."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from resilience.cron.ticked import Ticked
from resilience.cron.ticker import Ticker
from resilience.errors import ResilError

if TYPE_CHECKING:
    from resilience.cron.project import CronProject

__all__ = ["Ticked", "tick"]

CLERK_S = 300.0
"""How long a tick that waits for its end waits for a scheduler that answers late. What is open then is settled by the
next one."""

NAP_S = 0.5
"""How often to look whether the clerk has ended, while nothing of ours runs."""


def tick(
    cron: CronProject,
    *,
    driver: str,
    wait: bool = True,
    until: float | None = None,
    stop: Callable[[], bool] = lambda: False,
    grace_s: float = 10.0,
) -> Ticked:
    """Do what is due, and leave a sign of life. `driver`: who makes the ticks: `crontab`, `slurm`, `foreground` ...

    With `wait`, return when all that was started has ended; without, when it is under way. Slots that are held back by
    their jitter are waited for in either case. `until`, `stop`, `grace_s`: as of `run`.
    Raise StateDirectoryError if nothing can be written: then nothing runs, because nobody could know that it ran.
    Raise ProbeError if a disk hangs.
    """
    from resilience.cron.tell import Teller

    clock, teller = cron.project.system.clock, Teller(cron)
    ticker = Ticker(cron, driver=driver, until=until)

    def is_over() -> bool:
        return stop() or (until is not None and clock.now() >= until)

    cron.check_disks()
    teller.begins()
    done = Ticked()
    try:
        done = ticker.tick()
        deadline = clock.monotonic() + ticker.period_s
        while not done.stopped and (start := ticker.waits_until()) is not None:
            if clock.monotonic() + (start - clock.now()) > deadline or is_over():
                break
            clock.sleep(min(1.0, max(0.01, start - clock.now())))
            done = done.plus(ticker.again()).plus(ticker.poll()) if clock.now() >= start else done
        if wait:
            done = _wait(ticker, done, clock.monotonic, is_over)
            done = done.plus(ticker.end_all(grace_s if is_over() else 0.0))
        if ticker.failure is not None:
            raise ticker.failure
    except ResilError as error:
        teller.ended(done, ticker.table, trouble=error.message)
        teller.close()
        raise
    done = done.plus(Ticked(lines=teller.ended(done, ticker.table)))
    teller.close()
    return done


def _wait(ticker: Ticker, done: Ticked, monotonic: Callable[[], float], is_over: Callable[[], bool]) -> Ticked:
    while ticker.is_running and not is_over():
        done = done.plus(ticker.poll(60.0, is_over=is_over))
    until = monotonic() + CLERK_S
    while ticker.is_busy and monotonic() < until and not is_over():
        done = done.plus(ticker.poll(NAP_S))
    return done
