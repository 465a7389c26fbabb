"""Measurements of a job are used by the next one if they fit, else dropped with a reason in the journal."""

from __future__ import annotations

import json
import math
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from resilience.guard import TrainingGuard
from resilience.guard.heartbeat.writer import HeartbeatWriter
from resilience.guard.learned import MAX_LOSSES, kill_after_s
from resilience.guard.step_timer import StepTimer
from tests.guard.guarded import a_launch
from tests.guard.guards import Requester, make_guard, make_run, train
from tests.lab.waiting import until


def learned(run: Path, rank: int = 0) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((run / "learned" / f"{rank}.json").read_text())
    return found


def events(run: Path, name: str) -> list[dict[str, Any]]:
    found = [json.loads(line) for line in (run / "journal" / "12.0.jsonl").read_text().splitlines()]
    return [event for event in found if event["event"] == name]


def job(run: Path, steps: range, loss: Callable[[int], float], **settings: Any) -> list[str]:
    """Run one job: resume, train with a loss, save after the last step; return the messages."""
    said: list[str] = []
    with make_guard(run, say=said.append, **settings) as guard:
        guard.resumed(steps[0])
        for step in steps:
            guard.step(loss(step))
        with guard.saving():
            time.sleep(0.05)
    return said


def smooth(step: int) -> float:
    return 2.0 + 0.01 * math.sin(step)


def test_a_spike_right_after_a_resume_is_detected_at_once(run: Path) -> None:
    """Without earlier losses, none is judged before the twentieth, and the high ones become normal."""
    job(run, range(300), smooth)
    said = job(run, range(300, 306), lambda step: 9.0)
    assert any("the loss is above 2.07" in sentence and "for 3 steps in a row" in sentence for sentence in said), said
    (used,) = [event for event in events(run, "learned") if event["what"] == "loss"]
    assert (used["step"], used["values"]) == (300, 200)


def test_the_loss_is_that_of_the_save_that_the_training_resumes_from(run: Path) -> None:
    job(run, range(200), smooth)
    job(run, range(200, 400), lambda step: smooth(step) * 10)
    said = job(run, range(200, 206), lambda step: 9.0)  # one save back, where the loss was 2
    assert any("the loss is above 2.07" in sentence for sentence in said), said


@pytest.mark.parametrize(
    ("step", "why"),
    [
        (100, "the losses are of step 300, but the training resumes at step 100"),
        (0, "the losses are of step 300, but the training resumes at step 0"),
        (9_000, "the losses are of step 300, but the training resumes at step 9,000"),
    ],
)
def test_a_loss_of_another_part_of_the_training_is_dropped(run: Path, step: int, why: str) -> None:
    job(run, range(300), smooth)
    said = job(run, range(step, step + 6), lambda step: 9.0)
    assert [event["why"] for event in events(run, "learned_dropped")] == [why]
    assert not any("the loss is above" in sentence for sentence in said)


def test_the_losses_at_a_failed_save_are_not_kept(run: Path) -> None:
    with make_guard(run, say=lambda text: None) as guard:
        guard.resumed(0)
        for step in range(300):
            guard.step(smooth(step))
        with pytest.raises(OSError), guard.saving():
            raise OSError
    assert learned(run)["losses"] == []


def test_the_slowest_save_and_step_are_known_from_the_start(run: Path) -> None:
    with make_guard(run, triggers=[Requester("enough")], say=lambda text: None) as guard:
        train(guard)
        with guard.saving():
            time.sleep(0.4)
    with make_guard(run, triggers=[Requester("enough")], say=lambda text: None) as guard:
        assert guard._runtime is not None
        timer = guard._runtime._timer
        until(lambda: timer.slowest_save_s is not None)
        assert timer.slowest_save_s is not None and timer.slowest_save_s >= 0.4
        train(guard)


def test_times_of_another_number_of_ranks_are_dropped_and_the_loss_is_not(run: Path) -> None:
    job(run, range(300), smooth)
    (run / "learned" / "0.json").write_text(json.dumps({**learned(run), "world": 8}))
    said = job(run, range(300, 306), lambda step: 9.0)
    (dropped,) = events(run, "learned_dropped")
    assert dropped["what"] == "pace" and "written by 8 ranks; this job has 1" in dropped["why"]
    assert any("the loss is above" in sentence for sentence in said)


@pytest.mark.parametrize(
    "text",
    [
        "", "x", "[]", "{}", '{"version": 2}', '{"version": 1, "world": 1, "losses": 5, "pace": {}}',
        '{"version":1,"world":1,"losses":[{"step":1,"losses":["NaN"]}],"pace":{"gaps":[],"saves":[],"stalls":[]}}',
        '{"version":1,"world":1,"losses":[{"step":1,"losses":[NaN]}],"pace":{"gaps":[],"saves":[],"stalls":[]}}',
        '{"version":1,"world":1,"losses":[],"pace":{"gaps":[[-1,5]],"saves":[],"stalls":[]}}',
        '{"version":1,"world":1,"losses":[],"pace":{"gaps":[],"saves":[1e999],"stalls":[]}}', "[" * 10_000,
    ],
)  # fmt: skip
def test_an_invalid_file_is_ignored_and_rewritten(run: Path, text: str) -> None:
    (run / "learned").mkdir()
    (run / "learned" / "0.json").write_text(text)
    job(run, range(30), smooth)
    assert learned(run)["version"] == 1 and learned(run)["losses"][0]["step"] == 30
    if text:
        assert events(run, "learned_dropped")
    assert events(run, "end")[0]["exit_code"] == 0


def test_the_batch_shell_can_parse_the_bound(run: Path) -> None:
    with make_guard(run, say=lambda text: None) as guard:
        assert guard._runtime is not None
        guard.step()
        until(lambda: guard.step() is not None and guard._runtime._timer.slowest_step_s is not None)  # type: ignore[union-attr]
        with guard.saving():
            pass
    text = (run / "learned" / "0.json").read_text()
    assert text.count("\n") == 1
    assert isinstance(learned(run)["kill_after_s"], int) and learned(run)["kill_after_s"] >= 60


@pytest.mark.parametrize(
    ("set_s", "step_s", "save_s", "expected"),
    [
        (0.0, None, None, None),
        (0.0, None, 40.0, None),
        (0.0, 4.0, None, 72.0),
        (0.0, 4.0, 40.0, 192.0),
        (5.0, 4.0, 40.0, 5.0),
        (5.0, None, None, 5.0),
    ],
)
def test_the_bound_is_three_steps_and_saves_and_a_minute(
    set_s: float, step_s: float | None, save_s: float | None, expected: float | None
) -> None:
    assert kill_after_s(set_s, step_s, save_s) == expected


def test_a_restored_gap_is_forgotten_at_its_original_time(run: Path) -> None:
    timer = StepTimer()
    timer.restore({"gaps": [[30.0, 100.0], [600.0, 20.0]], "saves": [5.0, 7.0], "stalls": [0.5]}, now=1000.0)
    assert (timer.slowest_save_s, timer.slowest_stall_s) == (7.0, 0.5)
    assert timer.learned(1010.0) == {"gaps": [[600.0, 10.0], [30.0, 90.0]], "saves": [5.0, 7.0], "stalls": [0.5]}
    assert timer.learned(1030.0)["gaps"] == [[30.0, 70.0]]
    assert timer.slowest_step_s is None, "start-up is no step, whatever steps took before"


def test_old_saves_make_room_for_new_ones() -> None:
    timer = StepTimer()
    timer.saved(1.0)
    timer.restore({"gaps": [], "saves": [float(number) for number in range(100, 130)], "stalls": []}, 0.0)
    assert timer.learned(0.0)["saves"] == [*map(float, range(111, 130)), 1.0]


def test_the_memory_growth_is_passed_on_by_a_job_too_short_to_measure_it(run: Path) -> None:
    job(run, range(300), smooth, host_memory=True)
    known = {"trend": [1000.0, 600.0], "gaps_s": [5.0], "save_bytes": [7]}
    assert learned(run)["host_memory"].keys() == known.keys()
    (run / "learned" / "0.json").write_text(json.dumps({**learned(run), "host_memory": known}))
    with make_guard(run, say=lambda text: None, host_memory=True) as guard:
        assert guard._runtime is not None
        guard._runtime._learned._arrived.wait(20)
    assert learned(run)["host_memory"] == known
    job(run, range(3), smooth)
    assert "host_memory" not in learned(run), "it is switched off, and a later job may be another one"


def test_a_job_that_ends_before_the_file_was_read_does_not_change_it(
    run: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    job(run, range(300), smooth)
    before = learned(run)
    monkeypatch.setattr(HeartbeatWriter, "learned", lambda mirror: None)
    job(run, range(300, 302), smooth)
    assert learned(run) == before


def test_a_huge_window_is_cut_to_the_limit(run: Path) -> None:
    job(run, range(3000), smooth, loss_window=2500)
    assert len(learned(run)["losses"][0]["losses"]) == MAX_LOSSES
    assert (run / "learned" / "0.json").stat().st_size < 60_000, "a packet of the mirror holds it"


def test_a_guard_without_a_run_directory_learns_nothing() -> None:
    with TrainingGuard.from_env({}, host_memory=False, walltime=False, signals=()) as guard:
        guard.resumed(5)
        guard.step(2.0)
        with guard.saving():
            pass
    assert guard.exit_code == 0


def test_other_ranks_get_the_file_from_their_nodes_process(tmp_path: Path) -> None:
    run = make_run(tmp_path / "run")
    for attempt in range(2):
        with a_launch(tmp_path / f"launch{attempt}", run, 2, LOSS="2.0") as launch:
            launch.wait_for_steps()
            (run / "switches" / "save").touch()
            until(lambda: not (run / "switches" / "save").exists(), timeout_s=40)
            (run / "switches" / "kill").touch()
            assert [launch.processes[rank].wait(60) for rank in range(2)] == [75, 75]
        (run / "switches" / "kill").unlink()
        until(lambda: (run / "learned" / "1.json").exists())
        assert learned(run, 1)["world"] == 2 and learned(run, 1)["losses"][-1]["losses"]
    used = [event for event in launch.journal(1) if event["event"] in ("learned", "learned_dropped")]
    assert used, "it was asked for, and answered"
