"""`resil cron run`: ticks on and on, in the foreground of a terminal, a container or a job.

It sleeps a second at a time and then looks at the wall clock: so a clock that is set, and a machine that was suspended,
are noticed at once, and nothing is made up for more than once.
"""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING

from resilience.errors import ResilError

if TYPE_CHECKING:
    from types import FrameType

    from resilience.cron.project import CronProject
    from resilience.cron.tell import Teller
    from resilience.cron.ticked import Ticked
    from resilience.cron.ticker import Ticker

NAP_S = 1.0
"""The longest sleep."""

REPEATED_EVERY = 60
"""A trouble that comes in every tick is said at the first, and then once in so many."""


@dataclass(frozen=True, slots=True)
class Ran:
    """How a loop ended.

    Attributes:
        ticks: how many ticks it made.
        last: what the last one did; None: there was none, or it failed.
        why: why it ended: one sentence.
    """

    ticks: int
    last: Ticked | None
    why: str


def run(
    cron: CronProject,
    *,
    driver: str,
    once: bool = False,
    until: float | None = None,
    stop: Callable[[], bool] | None = None,
    say: Callable[[str], None] = lambda _: None,
    grace_s: float = 10.0,
) -> Ran:
    """Tick at every slot, and at least every `tick_s`, until `until` (seconds since the epoch), a stop, or a signal.

    Args:
        driver: who makes the ticks, for the heartbeat.
        once: one tick, and wait for what it started.
        until: end then; what could not end before is left to the next scheduler, unless it could never end before.
        stop: asked at least every second; True ends the loop. None: SIGTERM and SIGINT do.
        say: told each line for people as it comes.
        grace_s: how long what still runs at the end gets between SIGTERM and SIGKILL.

    A tick that fails is said, and the next one comes as if nothing had been.
    """
    if stop is None:
        with _flag_of_signals() as is_told:
            return run(cron, driver=driver, once=once, until=until, stop=is_told, say=say, grace_s=grace_s)
    if not once:
        return _Loop(cron, driver, until, stop, say).run(grace_s)
    from resilience.cron.tick import tick

    done = tick(cron, driver=driver, until=until, stop=stop, grace_s=grace_s)
    for line in done.lines:
        say(line)
    return Ran(1, done, "one tick was asked for")


class _Loop:
    def __init__(
        self,
        cron: CronProject,
        driver: str,
        until: float | None,
        stop: Callable[[], bool],
        say: Callable[[str], None],
    ) -> None:
        from resilience.cron.tell import Teller
        from resilience.cron.ticker import Ticker

        self._clock = cron.project.system.clock
        self._ticker: Ticker = Ticker(cron, driver=driver, period_s=cron.settings.tick_s, until=until)
        self._teller: Teller = Teller(cron)
        self._until, self._stop, self._say = until, stop, say
        self._ticks = 0
        self._said: dict[str, int] = {}
        self._between: Ticked | None = None

    def run(self, grace_s: float) -> Ran:
        last: Ticked | None = None
        why = ""
        while not why:
            last = self._tick()
            self._ticks += 1
            if last is not None and last.stopped:
                why = f"the scheduler is {last.stopped}"
                self._let_end()
                break
            why = self._sleep()
        self._hear(self._ticker.end_all(grace_s))
        if self._between is not None:
            self._say_news((*self._between.lines, *self._teller.ended(self._between, self._ticker.table)))
        self._teller.close()
        return Ran(self._ticks, last, why)

    def _tick(self) -> Ticked | None:
        from resilience.cron.ticked import Ticked

        done, trouble = Ticked(), ""
        self._teller.begins()
        try:
            done = self._ticker.tick()
            trouble = self._ticker.failure.message if self._ticker.failure is not None else ""
        except ResilError as error:
            trouble = f"{error.message}; try: {error.hint}" if error.hint else error.message
            done = Ticked(lines=(trouble,))
        except Exception as error:  # a bug; the next tick may meet none, and nobody else runs what is due
            if os.environ.get("RESIL_TRACEBACK"):
                raise
            trouble = f"internal error: {type(error).__name__}: {error}; RESIL_TRACEBACK=1 shows where"
            done = Ticked(lines=(trouble,))
        if self._between is not None:
            done, self._between = self._between.plus(done), None
        lines = (*done.lines, *self._teller.ended(done, self._ticker.table, trouble=trouble))
        self._say_news(lines)
        return None if trouble else done

    def _sleep(self) -> str:
        """Wait for the next tick; return why there is none, or nothing."""
        from resilience.cron.ticked import next_boundary

        clock, ticker = self._clock, self._ticker
        now = clock.now()
        moment = next_boundary(now, ticker.period_s)
        if ticker.next_start is not None and ticker.failure is None:
            moment = min(moment, max(ticker.next_start, now))
        longest = clock.monotonic() + max(0.0, moment - now)
        while True:
            if self._stop():
                return "it was told to end"
            if self._until is not None and clock.now() >= self._until:
                return "its time is over"
            left = min(moment - clock.now(), longest - clock.monotonic())
            if left <= 0:
                return ""
            nap_s = min(left, NAP_S)
            if ticker.is_running:
                self._hear(ticker.poll(nap_s, is_over=self._stop))
            else:
                clock.sleep(nap_s)

    def _let_end(self) -> None:
        """Nothing new is begun any more; what runs may end, if it has the time."""
        while self._ticker.is_running and not self._stop():
            if self._until is not None and self._clock.now() >= self._until:
                return
            self._hear(self._ticker.poll(NAP_S, is_over=self._stop))

    def _hear(self, ended: Ticked) -> None:
        """What ended between two ticks is told with the next one; and at once where there is none."""
        from resilience.cron.ticked import Ticked

        if ended == Ticked():
            return
        self._between = ended if self._between is None else self._between.plus(ended)

    def _say_news(self, lines: tuple[str, ...]) -> None:
        before, self._said = self._said, {}
        for line in dict.fromkeys(lines):
            times = self._said[line] = before.get(line, 0) + 1
            if times % REPEATED_EVERY == 1:
                self._say(line)


@contextmanager
def _flag_of_signals() -> Iterator[Callable[[], bool]]:
    """Whether SIGTERM or SIGINT came. SIGHUP ends nothing: the table is read anew in every tick anyway."""
    told = False

    def note(number: int, frame: FrameType | None) -> None:
        nonlocal told
        told = told or number != signal.SIGHUP

    if threading.current_thread() is not threading.main_thread():
        yield lambda: told
        return
    numbers = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)
    before = {number: signal.getsignal(number) for number in numbers}
    if before[signal.SIGHUP] is signal.SIG_IGN:  # nohup
        del before[signal.SIGHUP]
    try:
        for number in before:
            signal.signal(number, note)
        yield lambda: told
    finally:
        for number, handler in before.items():
            signal.signal(number, handler if handler is not None else signal.SIG_DFL)
