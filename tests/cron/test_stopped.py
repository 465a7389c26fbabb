"""A scheduler that is stopped (SIGSTOP) in the middle of its tick and goes on later runs nothing that another ran."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from resilience.cron.slots import Slots
from resilience.cron.table.watched_run import WatchedRun
from resilience.cron.ticker import Ticker
from tests.cron.scene import TOP, CronScene, wait_until

A, HOUR = "cron.hourly+a", 3600


@pytest.fixture
def scene(tmp_path: Path) -> CronScene:
    return CronScene(tmp_path)


def _stopped_before(owner: type, name: str, meanwhile: Callable[[], object], monkeypatch: pytest.MonkeyPatch) -> None:
    """Have others go on before the next call of a method, which comes after that."""
    original = getattr(owner, name)

    def late(*args: object, **more: object) -> object:
        monkeypatch.setattr(owner, name, original)
        meanwhile()
        return original(*args, **more)

    monkeypatch.setattr(owner, name, late)


def test_slots_that_others_ran_meanwhile_are_not_taken_for_those_of_a_wrong_clock(
    scene: CronScene, monkeypatch: pytest.MonkeyPatch
) -> None:
    scene.drop("cron.hourly/a")
    scene.tick(TOP - 30)

    other = CronScene(scene.folder, clock=scene.clock)

    def others() -> None:
        for hour in range(3):
            other.tick(TOP + HOUR * hour)

    _stopped_before(Slots, "taken", others, monkeypatch)
    scene.tick(TOP - 20)
    scene.tick(TOP + 2 * HOUR + 60)
    assert scene.ran() == [TOP, TOP + HOUR, TOP + 2 * HOUR]


def test_a_slot_that_another_host_took_over_meanwhile_is_not_run(
    scene: CronScene, monkeypatch: pytest.MonkeyPatch
) -> None:
    scene.drop("cron.hourly/a")
    scene.tick(TOP - 30)

    def seized() -> None:
        (claim,) = (scene.cron.state.path / "open").iterdir()
        claim.rename(claim.with_name(claim.name.rpartition("@")[0] + "@0badf00d-1-1-1800000000"))

    _stopped_before(Slots, "holds", seized, monkeypatch)
    scene.tick(TOP)
    assert scene.ran() == []


def test_a_run_that_is_repeated_is_not_repeated_beside_itself(scene: CronScene) -> None:
    scene.drop("cron.hourly/a", options="rerun overlap=allow", body="kill -9 $PPID")
    scene.tick(TOP - 30)
    scene.tick(TOP)
    assert scene.ran() == [TOP]
    scene.drop("cron.hourly/a", options="rerun overlap=allow", body="while [ ! -e go ]; do sleep 0.05; done")
    scene.clock.time = TOP + 60
    ticker = Ticker(scene.cron, driver="x")
    ticker.tick()
    wait_until(lambda: len(scene.ran()) == 2)
    for minute in (2, 3):
        scene.clock.time = TOP + 60 * minute
        ticker.tick()
        Ticker(scene.open(), driver="y").tick()
    (scene.home / "go").touch()
    until = time.monotonic() + 60
    while ticker.is_running and time.monotonic() < until:
        ticker.poll(1.0)
    assert scene.ran() == [TOP] * 2 and scene.outcomes(A) == {TOP: "done"}


def test_what_is_begun_stays_in_hand_until_its_supervisor_has_signed_on(
    scene: CronScene, monkeypatch: pytest.MonkeyPatch
) -> None:
    scene.drop("cron.hourly/a")
    scene.tick(TOP - 30)
    # scheduler and supervisor die together, as a cgroup does
    monkeypatch.setattr(WatchedRun, "_sign_on", lambda self: os.kill(os.getpid(), signal.SIGKILL))
    scene.clock.time = TOP
    Ticker(scene.cron, driver="x").tick()
    assert [claim.slot for claim in scene.cron.state.slots.open_claims()] == [TOP]
