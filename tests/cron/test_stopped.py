"""A scheduler that is stopped (SIGSTOP) in the middle of its tick and goes on later runs nothing that another ran."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from resilience.cron.book import State
from resilience.cron.slots import Slots
from resilience.cron.table.supervisor import Supervised
from resilience.cron.table.watched_run import WatchedRun
from resilience.cron.ticker import Ticker
from tests.cron.context import TOP, CronContext, wait_until

A, HOUR = "cron.hourly+a", 3600


@pytest.fixture
def context(tmp_path: Path) -> CronContext:
    return CronContext(tmp_path)


def _stopped_before(owner: type, name: str, meanwhile: Callable[[], object], monkeypatch: pytest.MonkeyPatch) -> None:
    """Have others go on before the next call of a method, which comes after that."""
    original = getattr(owner, name)

    def late(*args: object, **more: object) -> object:
        monkeypatch.setattr(owner, name, original)
        meanwhile()
        return original(*args, **more)

    monkeypatch.setattr(owner, name, late)


def test_slots_that_others_ran_meanwhile_are_not_taken_for_those_of_a_wrong_clock(
    context: CronContext, monkeypatch: pytest.MonkeyPatch
) -> None:
    context.drop("cron.hourly/a")
    context.tick(TOP - 30)

    other = CronContext(context.directory, clock=context.clock)

    def others() -> None:
        for hour in range(3):
            other.tick(TOP + HOUR * hour)

    _stopped_before(Slots, "taken", others, monkeypatch)
    context.tick(TOP - 20)
    context.tick(TOP + 2 * HOUR + 60)
    assert context.ran() == [TOP, TOP + HOUR, TOP + 2 * HOUR]


def test_a_slot_that_another_host_took_over_meanwhile_is_not_run(
    context: CronContext, monkeypatch: pytest.MonkeyPatch
) -> None:
    context.drop("cron.hourly/a")
    context.tick(TOP - 30)

    def seized() -> None:
        (claim,) = context.cron.state.book.active()
        path = context.cron.state.path / "runs" / claim.name
        path.rename(path.with_name(claim._replace(holder="0badf00d-1-1-1800000000").name))

    _stopped_before(Supervised, "start", seized, monkeypatch)
    context.tick(TOP)
    assert context.ran() == [] and context.history(A) == ()


def test_a_run_that_is_repeated_is_not_repeated_beside_itself(context: CronContext) -> None:
    context.drop("cron.hourly/a", options="rerun overlap=allow", body="kill -9 $PPID")
    context.tick(TOP - 30)
    context.tick(TOP)
    assert context.ran() == [TOP]
    context.drop("cron.hourly/a", options="rerun overlap=allow", body="while [ ! -e go ]; do sleep 0.05; done")
    context.clock.time = TOP + 60
    ticker = Ticker(context.cron, driver="x")
    ticker.tick()
    wait_until(lambda: len(context.ran()) == 2)
    for minute in (2, 3):
        context.clock.time = TOP + 60 * minute
        ticker.tick()
        Ticker(context.open(), driver="y").tick()
    (context.home / "go").touch()
    until = time.monotonic() + 60
    while ticker.is_running and time.monotonic() < until:
        ticker.poll(1.0)
    assert context.ran() == [TOP] * 2 and context.outcomes(A) == {TOP: "done"}


def test_a_claim_stays_open_until_its_supervisor_has_registered(
    context: CronContext, monkeypatch: pytest.MonkeyPatch
) -> None:
    context.drop("cron.hourly/a")
    context.tick(TOP - 30)
    # scheduler and supervisor die together, as a cgroup does
    monkeypatch.setattr(WatchedRun, "_register", lambda self: os.kill(os.getpid(), signal.SIGKILL))
    context.clock.time = TOP
    Ticker(context.cron, driver="x").tick()
    assert [(run.slot, run.state) for run in context.cron.state.book.active()] == [(TOP, State.CLAIMED)]
