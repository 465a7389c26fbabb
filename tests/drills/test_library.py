"""Verdicts and plans of the drills, which are pure."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from unittest.mock import Mock

import pytest

from resilience.drills.library.corrupt_checkpoint import damage_checkpoint
from resilience.drills.readings import answer
from resilience.drills.rehearse import find, names
from resilience.drills.training import CouldNotLook
from resilience.drills.words import Facts, Outcome, Seen
from resilience.errors import UsageError

FACTS = Facts(
    run="gpt", command="python train.py", store="/scratch/ckpt", successors="an array of 10", walltime_s=7200.0,
    channels=("mail",), checks=("fs", "inodes", "job", "log", "ckpt"), hang_s=600.0, on_hang="restart_step", acts=True,
)  # fmt: skip
RESUMED = Seen(
    done="it", step=30, durable=20, ranks=2, told_s=9.0, stopped_s=1.0, end="killed by SIGKILL", cause="gone",
    resumed_s=8.0, resumed_at=20, last_step=30,
)  # fmt: skip
WENT_ON = Seen(done="it", step=30, durable=20, ranks=2, told_s=4.0, went_on=True, saved_again=True)


@pytest.mark.parametrize(
    ("drill", "seen", "outcome", "says"),
    [
        ("kill-rank", RESUMED, "PASS", "went on at step 20 after 8 s, 10 steps again"),
        ("kill-rank", replace(RESUMED, stopped_s=None), "FAIL", "without the rank"),
        ("kill-rank", replace(RESUMED, resumed_s=None, resumed_at=None), "FAIL", "no attempt trained after it"),
        ("kill-rank", replace(RESUMED, resumed_at=0), "FAIL", "began at step 0, although step 20 was saved"),
        ("kill-rank", replace(RESUMED, resumed_at=None), "UNKNOWN", "at which step it began is not known"),
        ("kill-rank", replace(RESUMED, durable=None, resumed_at=0), "UNKNOWN", "which checkpoint"),
        ("lose-node", replace(RESUMED, resumed_at=None), "UNKNOWN", "at which step"),
        ("stop-rank", replace(RESUMED, resumed_at=None), "UNKNOWN", "at which step"),
        ("walltime", replace(RESUMED, saved_at=30, resumed_at=None), "UNKNOWN", "at which step"),
        ("walltime", replace(RESUMED, durable=None, saved_at=30, resumed_at=30), "PASS", "stopped in time"),
        ("corrupt-checkpoint", replace(RESUMED, resumed_at=None, set_aside=("x",)), "UNKNOWN", "at which step"),
        ("corrupt-checkpoint", replace(RESUMED, durable=None), "UNKNOWN", "which checkpoint"),
        ("corrupt-checkpoint", replace(RESUMED, resumed_at=10), "PASS", "passed over"),
        ("lose-node", replace(RESUMED, end="lost"), "PASS", "known as lost"),
        ("lose-node", replace(RESUMED, resumed_s=None), "FAIL", "no attempt trained"),
        ("stop-rank", RESUMED, "PASS", "then restart_step; the next attempt went on at step 20"),
        ("stop-rank", replace(RESUMED, resumed_s=None), "FAIL", "restart_step did not follow"),
        ("stop-rank", replace(WENT_ON, ranks=1), "PASS", "10 min with your settings"),
        ("stop-rank", replace(WENT_ON, told_s=None), "FAIL", "no watchdog noticed"),
        ("stop-rank", replace(WENT_ON, ranks=1, went_on=False), "FAIL", "did not go on when the rank did"),
        ("corrupt-checkpoint", replace(RESUMED, resumed_at=10, set_aside=("step-00000020",)), "PASS", "by its digest"),
        ("corrupt-checkpoint", RESUMED, "FAIL", "nobody noticed"),
        ("corrupt-checkpoint", replace(RESUMED, resumed_at=0, set_aside=("x",)), "FAIL", "began anew"),
        ("corrupt-checkpoint", replace(RESUMED, resumed_at=0), "FAIL", "without a look at the checkpoints"),
        ("corrupt-checkpoint", replace(RESUMED, resumed_s=None, resumed_at=None), "FAIL", "no attempt trained"),
        ("walltime", replace(RESUMED, saved_at=30, resumed_at=30), "PASS", "saved at step 30 and stopped in time"),
        ("walltime", RESUMED, "FAIL", "ended without a save"),
        ("walltime", replace(RESUMED, saved_at=28, resumed_at=28), "FAIL", "2 steps again"),
        ("walltime", replace(RESUMED, saved_at=30, resumed_s=None, resumed_at=None), "FAIL", "no attempt trained"),
        ("full-checkpoints", WENT_ON, "PASS", "lost one save, and went on"),
        ("full-checkpoints", replace(RESUMED, saved_again=True), "PASS", "and ended (gone)"),
        ("full-checkpoints", replace(WENT_ON, saved_again=False), "FAIL", "no save became durable"),
        ("full-checkpoints", replace(WENT_ON, told_s=None), "FAIL", "nobody was told"),
        ("full-checkpoints", replace(RESUMED, saved_again=True, resumed_at=0), "FAIL", "began at step 0, although"),
        ("controller", WENT_ON, "PASS", "the queue was left alone"),
        ("controller", replace(WENT_ON, left_alone=False), "FAIL", "while nothing was known"),
        ("controller", replace(WENT_ON, went_on=False), "FAIL", "did not go on"),
        ("controller", replace(WENT_ON, told_s=None), "FAIL", "no watchdog told"),
    ],
)
def test_a_verdict_has_its_reason_and_a_failure_says_what_to_change(
    drill: str, seen: Seen, outcome: str, says: str
) -> None:
    found = find(drill).judge(seen, FACTS)
    assert (found.outcome.value, says in found.reason) == (outcome, True), found
    assert found.outcome is not Outcome.FAIL or found.advice


@pytest.mark.parametrize("drill", ["stop-rank", "full-checkpoints", "controller"])
def test_what_is_told_to_nobody_has_failed(drill: str) -> None:
    found = find(drill).judge(replace(WENT_ON, ranks=1), replace(FACTS, channels=()))
    assert found.outcome is Outcome.FAIL and "to nobody" in found.reason


@pytest.mark.parametrize(
    ("hang_s", "walltime_s", "outcome", "advice"),
    [
        (4 * 3600.0, 2 * 3600.0, "FAIL", "no hang is told before the time limit"),
        (4 * 3600.0, 24 * 3600.0, "PASS", "holds the allocation for 4 h"),
        (4 * 3600.0, None, "PASS", "holds the allocation for 4 h"),
        (600.0, 2 * 3600.0, "PASS", "with a single rank"),
    ],
)
def test_a_hang_that_is_told_after_hours_is_not_as_good_as_in_the_drill(
    hang_s: float, walltime_s: float | None, outcome: str, advice: str
) -> None:
    facts = replace(FACTS, hang_s=hang_s, walltime_s=walltime_s)
    found = find("stop-rank").judge(replace(WENT_ON, ranks=1), facts)
    assert (found.outcome.value, advice in found.advice) == (outcome, True), found
    assert any("lower timeout_s" in one for one in find("stop-rank").outlook(facts).missing) == (hang_s > 3600)


@pytest.mark.parametrize("drill", names())
def test_nothing_is_missing_with_all_settings(drill: str) -> None:
    outlook = find(drill).outlook(FACTS)
    assert not outlook.missing and outlook.would
    assert find(drill).expects.endswith(".")


@pytest.mark.parametrize(
    ("drill", "facts", "missing"),
    [
        ("kill-rank", replace(FACTS, successors=""), "no setting queues the next job"),
        ("kill-rank", replace(FACTS, has_guard=False), "the guard is off"),
        ("stop-rank", replace(FACTS, channels=()), "nobody would be told"),
        ("stop-rank", replace(FACTS, checks=("fs",)), "leaves out log"),
        ("stop-rank", replace(FACTS, on_hang="tell"), "on_hang = restart_step"),
        ("stop-rank", replace(FACTS, acts=False), "needs enabled = true in [act]"),
        ("stop-rank", replace(FACTS, quiet_hours="22:00-07:00"), "quiet hours"),
        ("walltime", replace(FACTS, lead_s=0.0), "no warning"),
        ("walltime", replace(FACTS, walltime_s=120.0), "every job would stop at its start"),
        ("walltime", replace(FACTS, watches_walltime=False), "walltime = true"),
        ("corrupt-checkpoint", replace(FACTS, store=""), "path is not set"),
        ("full-checkpoints", replace(FACTS, store=""), "path is not set"),
        ("controller", replace(FACTS, channels=()), "nobody would be told"),
    ],
)
def test_a_plan_names_the_setting_that_is_missing(drill: str, facts: Facts, missing: str) -> None:
    found = find(drill).outlook(facts).missing
    assert any(missing in sentence for sentence in found), found


def test_a_user_who_cannot_lose_a_node_of_slurm_is_shown_how_to_lose_one() -> None:
    with pytest.raises(CouldNotLook) as refused:
        find("lose-node").play(Mock(facts=replace(FACTS, scheduler="slurm")))
    assert refused.value.hint == "resil drill lose-node --scheduler local"


def test_there_are_the_seven_drills() -> None:
    assert names() == (
        "controller", "corrupt-checkpoint", "full-checkpoints", "kill-rank", "lose-node", "stop-rank", "walltime"
    )  # fmt: skip
    with pytest.raises(UsageError) as refused:
        find("kill-rnk")
    assert "kill-rank" in refused.value.hint


def test_one_bit_of_the_largest_file_is_flipped(tmp_path: Path) -> None:
    (tmp_path / ".resil").mkdir()
    (tmp_path / ".resil" / "manifest.json").write_bytes(bytes(500))
    (tmp_path / "small").write_bytes(bytes(10))
    (tmp_path / "large").write_bytes(bytes(100))
    path, bit = damage_checkpoint(tmp_path)
    changed = bytes([0] * 50 + [1] + [0] * 49)
    assert (path.name, bit, path.read_bytes()) == ("large", 400, changed)


DECIDED, BEGAN, SAVED, FAILED = (
    {"event": "decision", "save": True, "step": 12}, {"event": "save_begin", "step": 12},
    {"event": "save", "step": 12}, {"event": "save_failed", "step": 12, "error": "no space"},
)  # fmt: skip


@pytest.mark.parametrize(
    ("events", "found"),
    [
        ([], (None, "")),
        ([DECIDED], (12, "")),
        ([DECIDED, {**DECIDED, "step": 30}], (12, "")),
        ([{**DECIDED, "save": False}], (None, "")),
        ([DECIDED, BEGAN], (None, "")),
        ([DECIDED, BEGAN, FAILED], (None, "no space")),
        ([DECIDED, BEGAN, FAILED, DECIDED, BEGAN, SAVED], (None, "")),
    ],
)
def test_a_training_that_is_told_to_save_and_does_not_is_found_out(
    events: list[dict[str, object]], found: tuple[int | None, str]
) -> None:
    assert answer(events) == found
