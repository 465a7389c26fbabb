"""A thrown switch says who, when and why; a save switch is removed when, and only when, it has been obeyed."""

from __future__ import annotations

import os
import re
import time
from pathlib import Path
from typing import Any

import pytest

from resilience.guard.decision import FAILED, OBEYED, SAVED, Request
from resilience.guard.rank_info import RankInfo
from resilience.guard.recorder import Recorder
from resilience.guard.settings import GuardSettings
from resilience.guard.switch_directory import SwitchDirectory
from resilience.guard.triggers import built_in_triggers
from resilience.guard.triggers.switches import KillSwitch, SaveSwitch, StopFile, describe
from resilience.guard.watch import is_polled_on
from resilience.runs.run_directory import RunDirectory
from resilience.runs.switches import write_switch
from resilience.switch import Scope, Switch
from tests.guard.guards import make_guard, make_run, train
from tests.lab.waiting import until
from tests.system.people import NOBODY, acting_as, needs_root, open_the_way

NOW = 1_795_170_000.0
ME = 65532
AN_HOUR = 3600.0


Trigger = KillSwitch | SaveSwitch | StopFile


class Bench:
    """The triggers of a run, what they said, and clocks set by hand."""

    def __init__(self, path: Path, **place: Any) -> None:
        self.path = path
        self.now = NOW
        self.monotonic = 1000.0
        self.said: list[str] = []
        self.place = RankInfo(**{"run": path.name, "run_dir": str(path), "job_id": "12", "attempt": 3, **place})
        self.recorder = Recorder(self.place, self.said.append)
        directory = SwitchDirectory(self.place, GuardSettings(), self.recorder)
        self.kill = KillSwitch(directory, now=lambda: self.now)
        self.save = SaveSwitch(directory, now=lambda: self.now, monotonic=lambda: self.monotonic)
        self.stop = StopFile(directory, now=lambda: self.now)

    def throw(self, kind: str, **fields: Any) -> Path:
        return write_switch(RunDirectory(self.path), Switch(kind, "bob", **{"when": NOW, **fields}))

    @property
    def file(self) -> Path:
        return self.path / "switches" / "save"

    def asks(self, trigger: Trigger | None = None) -> Request:
        """The request of a trigger, by default of the save switch."""
        request = (trigger or self.save).poll()
        assert request is not None
        return request

    def save_ends(self, outcome: str) -> None:
        """The save that the switch asks for is made, or fails."""
        self.asks()
        self.save.done(outcome)


@pytest.fixture
def bench(tmp_path: Path) -> Bench:
    return Bench(make_run(tmp_path / "demo"))


# ---- kill


def test_who_when_and_why_are_in_the_reason(bench: Bench) -> None:
    path = bench.throw("kill", why="loss is NaN.")
    request = bench.asks(bench.kill)
    when = time.strftime("%Y-%m-%d %H:%M", time.localtime(NOW))
    assert request.why == f"the kill switch was set by {path.owner()} at {when}: loss is NaN"
    assert (request.save, request.stop, request.exit_code) == (True, True, 75)


def test_a_wider_scope_is_in_the_reason_too(bench: Bench) -> None:
    bench.throw("kill", scope=Scope.ALL)
    request = bench.asks(bench.kill)
    assert request.why.endswith("for all jobs of the run")


def test_everything_is_in_the_journal(bench: Bench) -> None:
    bench.throw("kill", why="loss is NaN", scope=Scope.ALL)
    bench.kill.poll()
    event = next(event for event in bench.recorder.events if event["event"] == "switch")
    assert (event["kind"], event["when"], event["why"], event["scope"]) == ("kill", NOW, "loss is NaN", "all")


def test_a_kill_switch_asks_once_and_again_when_it_is_thrown_anew(bench: Bench) -> None:
    bench.throw("kill")
    assert bench.kill.poll() is not None
    bench.kill.done(OBEYED)
    assert bench.kill.poll() is None
    bench.throw("kill", why="really")
    again = bench.asks(bench.kill)
    assert "really" in again.why


def test_a_stale_kill_switch_is_named_at_start_with_its_age_and_how_to_clear_it(bench: Bench) -> None:
    path = bench.throw("kill", why="loss is NaN", when=NOW - 3 * 86400 - 5)
    assert bench.kill.poll() is not None
    (said,) = bench.said
    assert f"the kill switch of run demo was set 3 days ago by {path.owner()}, before this training started" in said
    assert said.endswith("resil clear demo")


def test_a_kill_switch_that_is_thrown_during_the_training_is_not_stale(bench: Bench) -> None:
    assert bench.kill.poll() is None
    bench.throw("kill")
    assert bench.kill.poll() is not None
    assert bench.said == []


@pytest.mark.parametrize("when", [0.0, -(10**10), 4e10, float(2**62)])
def test_a_file_of_any_time_can_be_shown(when: float) -> None:
    assert describe(Switch("kill", "bob", when, "enough")).startswith("the kill switch was set by bob")


# ---- save


def test_a_save_switch_saves_with_its_label_and_does_not_stop(bench: Bench) -> None:
    bench.throw("save", label="before-lr-drop", why="lr drops soon")
    request = bench.asks()
    assert (request.save, request.stop, request.label) == (True, False, "before-lr-drop")
    assert "as before-lr-drop: lr drops soon" in request.why


@pytest.mark.parametrize("outcome", [SAVED, OBEYED])
def test_an_obeyed_save_switch_is_removed(bench: Bench, outcome: str) -> None:
    bench.throw("save")
    bench.asks()
    assert bench.file.exists()
    bench.save.done(outcome)
    assert list(bench.file.parent.iterdir()) == []
    assert bench.save.poll() is None and bench.said == []


def test_a_failed_save_leaves_it_armed_says_so_and_is_tried_again_after_a_growing_pause(bench: Bench) -> None:
    bench.throw("save")
    for pause in (60, 120, 240, 480, 960, 1920, 3600, 3600):
        bench.save_ends(FAILED)
        assert bench.file.exists()
        assert f"retrying in {pause} s" in bench.said.pop()
        bench.monotonic += pause - 1
        assert bench.save.poll() is None
        bench.monotonic += 1
    bench.save_ends(SAVED)
    assert not bench.file.exists()
    bench.throw("save")
    bench.save_ends(FAILED)
    assert "retrying in 60 s" in bench.said.pop()


def test_a_switch_thrown_anew_after_a_failed_save_is_obeyed_at_once(bench: Bench) -> None:
    bench.throw("save", label="one")
    bench.save_ends(FAILED)
    bench.throw("save", label="two")
    assert bench.asks().label == "two"


def test_the_pause_is_each_switchs_own(bench: Bench) -> None:
    bench.throw("save", label="one")
    for _ in range(5):
        bench.monotonic += AN_HOUR
        bench.save_ends(FAILED)
    bench.throw("save", label="two")
    bench.save_ends(FAILED)
    assert "retrying in 60 s" in bench.said[-1]


def test_another_switch_put_there_during_the_save_is_left_and_obeyed_too(bench: Bench) -> None:
    bench.throw("save", label="one")
    bench.asks()
    bench.throw("save", label="two")
    bench.save.done(SAVED)
    assert bench.asks().label == "two"
    bench.save.done(SAVED)
    assert bench.save.poll() is None


def test_a_switch_that_somebody_cleared_during_the_save_is_no_trouble(bench: Bench) -> None:
    bench.throw("save")
    bench.asks()
    bench.file.unlink()
    bench.save.done(SAVED)
    assert bench.save.poll() is None and bench.said == []


@needs_root
def test_a_switch_that_cannot_be_removed_is_obeyed_once_said_once_and_removed_when_that_can_be(bench: Bench) -> None:
    open_the_way(bench.file)
    os.chown(bench.path, NOBODY, NOBODY)
    bench.path.chmod(0o755)
    bench.file.parent.chmod(0o755)
    bench.throw("save")
    bench.file.chmod(0o644)
    with acting_as(ME):
        bench.save_ends(SAVED)
        for _ in range(100):
            assert bench.save.poll() is None
            bench.monotonic += 30
        (said,) = bench.said
    assert re.search(r"save switch .* cannot be removed: Permission denied. The save was made", said)
    assert bench.file.exists()
    bench.file.parent.chmod(0o777)
    with acting_as(ME):
        bench.monotonic += AN_HOUR
        assert bench.save.poll() is None
    assert not bench.file.exists()


@needs_root
def test_a_switch_that_cannot_be_removed_and_is_thrown_anew_is_obeyed_again(bench: Bench) -> None:
    open_the_way(bench.file)
    bench.path.chmod(0o755)
    bench.file.parent.chmod(0o755)
    for label in ("one", "two"):
        bench.throw("save", label=label)
        bench.file.chmod(0o644)
        with acting_as(ME):
            assert bench.asks().label == label
            bench.save.done(SAVED)
            assert bench.save.poll() is None


def test_a_run_directory_that_is_away_when_the_save_ends_gets_its_switch_removed_when_it_is_back(bench: Bench) -> None:
    bench.throw("save")
    bench.asks()
    away = bench.path.with_name("away")
    bench.path.rename(away)
    bench.save.done(SAVED)
    away.rename(bench.path)
    assert bench.save.poll() is None
    bench.monotonic += 61
    assert bench.save.poll() is None
    assert not bench.file.exists()


# ---- stop


def test_the_batch_shells_stop_file_stops_for_its_reason(bench: Bench) -> None:
    """As resil_request_stop in slurm_templates/_attempt.bash writes it."""
    why = "the batch shell got SIGUSR1: about 300 s are left before the time limit"
    text = f'who = \'ada\'\nwhen = "2026-11-20T10:46:22+0000"\nwhy = "{why}"\nscope = "job"\n'
    (bench.path / "switches" / "stop.12").write_text(text)
    request = bench.asks(bench.stop)
    assert (request.why, request.save, request.stop) == (why, True, True)
    bench.stop.done(SAVED)
    assert bench.stop.poll() is None


def test_a_stop_file_by_hand_stops_as_well(bench: Bench) -> None:
    (bench.path / "switches" / "stop.12").touch()
    request = bench.asks(bench.stop)
    assert request.why.startswith("the stop file was set by")


def test_a_stop_file_of_another_job_is_none_of_ours(bench: Bench) -> None:
    (bench.path / "switches" / "stop.11").touch()
    (bench.path / "switches" / "stop.120").touch()
    assert bench.stop.poll() is None


@pytest.mark.parametrize(("start", "is_obeyed"), [(NOW - 100, True), (NOW, True), (NOW + 121, False), ("x", True)])
def test_a_stop_file_of_an_earlier_start_of_the_job_is_passed_over(
    bench: Bench, start: object, is_obeyed: bool
) -> None:
    """A requeue keeps the job's id, and the batch shell may not have been able to remove it."""
    (bench.path / "attempts" / "0003").write_text(f"number = 3\njob_id = 12\nstart = {start}\n")
    bench.throw("stop.12")
    assert [bench.stop.poll() is not None for _ in range(3)] == [is_obeyed, False, False]
    assert len(bench.said) == (0 if is_obeyed else 1)


# ---- who looks


def test_rank_0_alone_looks_at_shared_files(bench: Bench) -> None:
    place = RankInfo(rank=1, world=2, run_dir=str(bench.path), job_id="12", attempt=3)
    settings = GuardSettings(walltime=False, host_memory=False, gpu_memory="off")
    triggers = built_in_triggers(place, settings, bench.recorder, None)  # type: ignore[arg-type]
    assert {"kill", "save", "stop", "superseded", "finished"} <= {getattr(trigger, "name", "") for trigger in triggers}
    assert not any(is_polled_on(trigger, place) for trigger in triggers)


# ---- in a training


def test_a_training_saves_under_the_label_and_goes_on(run: Path) -> None:
    with make_guard(run) as guard:
        guard.step()
        write_switch(RunDirectory(run), Switch("save", "bob", time.time(), label="golden"))
        decision = train(guard)
        assert (decision.save, decision.stop, decision.label) == (True, False, "golden")
        with guard.saving():
            assert (run / "switches" / "save").exists()
        until(lambda: not (run / "switches" / "save").exists())
        assert not any(guard.step() for _ in range(100))


def test_a_training_whose_save_fails_keeps_the_switch_and_goes_on(run: Path, said: list[str]) -> None:
    (run / "switches" / "save").touch()
    with make_guard(run, say=said.append) as guard:
        train(guard)
        with pytest.raises(OSError, match="full"), guard.saving():
            raise OSError("the disk is full")
        until(lambda: any("failed; retrying in 60 s" in sentence for sentence in said))
        assert not any(guard.step() for _ in range(100))
    assert (run / "switches" / "save").exists()


def test_a_superseded_training_leaves_the_save_switch_to_its_successor(run: Path) -> None:
    (run / "switches" / "save").touch()
    (run / "attempts" / "0004").write_text("number = 4\njob_id = 12\n")
    with make_guard(run) as guard:
        guard.start()
        until(lambda: len(guard._runtime.agreement._requests) == 2)  # type: ignore[union-attr]
        decision = train(guard)
        assert (decision.stop, decision.save) == (True, False)
    assert (run / "switches" / "save").exists()


@pytest.mark.parametrize("name", ["kill", "save", "stop.12"])
def test_fifos_in_the_place_of_switches_neither_stop_nor_block_a_training(
    run: Path, said: list[str], name: str
) -> None:
    os.mkfifo(run / "switches" / name)
    with make_guard(run, say=said.append) as guard:
        assert not guard.should_stop_early()
        until(lambda: any("it is a FIFO" in sentence for sentence in said))
        assert not any(guard.step() for _ in range(1000))
        time.sleep(0.2)  # ten more looks
    assert len([sentence for sentence in said if "it is a FIFO" in sentence]) == 1
