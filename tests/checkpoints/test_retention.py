"""Retention keeps the union of its rules, and no setting deletes what a run may still need to come back."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from resilience.checkpoints.retention import Best, Candidate, Deleted, Kept, Policy, plan
from resilience.errors import UsageError

NOW = 1_800_000_000.0
HOUR = 3600.0


def saved(*steps: int, **values: Any) -> list[Candidate]:
    """Verified checkpoints, an hour apart, the last of them now."""
    return [
        Candidate(name=f"step-{step:08d}", step=step, at=NOW - HOUR * (len(steps) - 1 - at), is_verified=True, **values)
        for at, step in enumerate(steps)
    ]


def kept(candidates: Sequence[Candidate], policy: Policy, **values: Any) -> list[int]:
    """The steps of what stays."""
    steps = {one.name: one.step for one in candidates}
    return [steps[one.name] for one in plan(candidates, policy, NOW, **values) if isinstance(one, Kept)]


def reason(candidates: Sequence[Candidate], policy: Policy, step: int, **values: Any) -> str:
    """Why the checkpoint of a step stays or goes."""
    return {one.name: one.reason for one in plan(candidates, policy, NOW, **values)}[f"step-{step:08d}"]


@pytest.mark.parametrize(
    ("policy", "stay"),
    [
        (Policy(), [500, 600]),
        (Policy(latest=4), [300, 400, 500, 600]),
        (Policy(latest=1), [500, 600]),  # the floor
        (Policy(every_steps=200), [200, 400, 500, 600]),
        (Policy(every_steps=250), [300, 500, 600]),  # no step is 250: the first one after it
        (Policy(every_steps=1000), [500, 600]),
        (Policy(within_s=3.5 * HOUR), [300, 400, 500, 600]),
        (Policy(every_steps=300, within_s=2 * HOUR), [300, 400, 500, 600]),
    ],
)
def test_what_any_rule_keeps_stays(policy: Policy, stay: list[int]) -> None:
    assert kept(saved(100, 200, 300, 400, 500, 600), policy) == stay


def test_the_first_of_each_period_of_hours_stays_the_one_that_is_kept() -> None:
    midnight = NOW - NOW % (24 * HOUR)
    days = [
        replace(one, at=midnight + 6 * HOUR * number)
        for number, one in enumerate(saved(*range(100, 1300, 100)))  # four a day
    ]
    policy = Policy(every_hours=24)
    for count in range(1, len(days) + 1):
        stay = kept(days[:count], policy)
        assert set(stay) >= {one.step for one in days[:count][::4]}
        if count > 8:
            assert len(stay) <= 2 + -(-count // 4)


@pytest.mark.parametrize(("mode", "stay"), [("min", [200, 300, 700, 800]), ("max", [400, 500, 700, 800])])
def test_the_best_stay_and_of_equal_ones_the_newest(mode: str, stay: list[int]) -> None:
    losses = {100: 1.0, 200: 1.0, 300: 0.5, 400: 9.0, 500: 8.0, 600: math.nan}
    candidates = [
        replace(one, metrics={"loss": losses[one.step]} if one.step in losses else {"lr": 0.1})
        for one in saved(100, 200, 300, 400, 500, 600, 700, 800)
    ]
    assert kept(candidates, Policy(best=Best("loss", 2, mode))) == stay
    assert "loss = 0.5" in reason(candidates, Policy(best=Best("loss", 2)), 300)


def test_pinned_and_labelled_ones_stay() -> None:
    candidates = saved(100, 200, 300, 400)
    candidates[0] = replace(candidates[0], is_pinned=True)
    candidates[1] = replace(candidates[1], label="before the new data")
    assert kept(candidates, Policy()) == [100, 200, 300, 400]
    assert reason(candidates, Policy(), 100) == "pinned"
    assert "before the new data" in reason(candidates, Policy(), 200)


def test_nothing_goes_before_two_newer_ones_are_verified() -> None:
    candidates = saved(100, 200, 300, 400, 500)
    unverified = [replace(one, is_verified=one.step in (100, 200, 500)) for one in candidates]
    assert kept(unverified, Policy(latest=1)) == [200, 300, 400, 500]
    none = [replace(one, is_verified=False) for one in candidates]
    assert kept(none, Policy(latest=1)) == [100, 200, 300, 400, 500]
    only = [replace(one, is_verified=one.step == 300) for one in candidates]
    assert kept(only, Policy(latest=1)) == [100, 200, 300, 400, 500]
    assert reason(only, Policy(latest=1), 100) == "only one newer one is verified"
    assert reason(only, Policy(latest=1), 400) == "no newer one is verified"


def test_what_is_saved_after_a_return_to_an_earlier_step_stays() -> None:
    before = [replace(one, attempt=4) for one in saved(100, 200, 300, 400, 500)]
    after = [replace(one, attempt=5) for one in saved(250, 350, 550, 600)]
    assert kept([*before, *after[:2]], Policy()) == [250, 350, 400, 500]
    assert kept([*before, *after[:3]], Policy()) == [350, 500, 550]
    assert kept([*before, *after], Policy()) == [550, 600]
    outside_of_a_job = [replace(one, attempt=0) for one in saved(700, 800)]
    assert kept([*before, *after, *outside_of_a_job], Policy()) == [700, 800]


def test_the_one_last_resumed_from_stays() -> None:
    candidates = saved(100, 200, 300, 400)
    assert kept(candidates, Policy(), resumed_from="step-00000100") == [100, 300, 400]
    assert reason(candidates, Policy(), 100, resumed_from="step-00000100") == "last resumed from"


def test_what_a_framework_manages_stays_and_protects_nothing() -> None:
    candidates = saved(100, 200, 300, 400)
    foreign = [replace(one, is_foreign=one.step >= 300) for one in candidates]
    assert kept(foreign, Policy(latest=1)) == [100, 200, 300, 400]
    foreign = [replace(one, is_foreign=one.step == 100) for one in candidates]
    assert kept(foreign, Policy(latest=1)) == [100, 300, 400]
    assert "manage = false" in reason(foreign, Policy(), 100)


def test_a_deletion_says_why_and_how_much_it_frees() -> None:
    assert plan(saved(1, 2, 3, size_bytes=7), Policy(), NOW)[0] == Deleted(
        "step-00000001", "no rule keeps it, and 2 newer ones are verified", 7
    )


def test_settings_that_keep_nothing_are_refused() -> None:
    with pytest.raises(UsageError, match="would keep no checkpoint"):
        Policy(latest=0)


def test_a_metric_that_no_checkpoint_has_is_refused_before_anything_is_deleted() -> None:
    policy = Policy(best=Best("val_los"))
    with pytest.raises(UsageError, match=r"'val_los'.*they have lr, val_loss") as caught:
        plan(saved(1, 2, 3, metrics={"val_loss": 1.0, "lr": 0.1}), policy, NOW)
    assert "guard.saving(metrics={'val_los': ...})" in caught.value.hint
    with pytest.raises(UsageError, match="they have no metrics"):
        plan(saved(1, 2, 3), policy, NOW)
    assert kept(saved(1, 2), policy) == [1, 2]  # nothing to delete yet: the first evaluation may still come


_STEPS = st.integers(0, 40)
_CANDIDATES = st.lists(
    st.builds(
        Candidate,
        name=st.text("abc", min_size=1, max_size=4),
        step=_STEPS,
        attempt=st.integers(0, 3),
        at=st.floats(NOW - 1e6, NOW + 1e6),  # clocks jump
        label=st.sampled_from(["", "", "", "final"]),
        metrics=st.dictionaries(st.sampled_from(["loss", "lr"]), st.floats(), max_size=2),
        is_pinned=st.sampled_from([False, False, False, True]),
        is_verified=st.booleans(),
        is_foreign=st.sampled_from([False, False, False, True]),
    ),
    max_size=14,
    unique_by=lambda one: one.name,
)
_POLICIES = st.builds(
    Policy,
    latest=st.integers(1, 4),
    every_steps=st.integers(0, 9),
    every_hours=st.sampled_from([0.0, 0.5, 24.0]),
    within_s=st.sampled_from([0.0, 60.0, 1e5]),
    best=st.none() | st.builds(Best, st.just("loss"), st.integers(1, 3), st.sampled_from(["min", "max"])),
)


@given(_CANDIDATES, _POLICIES, st.text("abc", max_size=2))
def test_no_policy_reaches_below_the_floor(candidates: list[Candidate], policy: Policy, resumed_from: str) -> None:
    try:
        verdicts = plan(candidates, policy, NOW, resumed_from=resumed_from)
    except UsageError:
        assert not any("loss" in one.metrics for one in candidates if not one.is_foreign)
        return
    assert sorted(one.name for one in verdicts) == sorted(one.name for one in candidates)
    gone = {one.name for one in verdicts if isinstance(one, Deleted)}
    ours = sorted((one for one in candidates if not one.is_foreign), key=lambda one: one.step)
    verified = sorted({one.step for one in ours if one.is_verified})
    assert resumed_from not in gone
    assert gone.isdisjoint(one.name for one in candidates if one.is_foreign or one.is_pinned or one.label)
    if len(verified) < 2:
        assert not gone
    else:
        assert all(one.step < verified[-2] for one in ours if one.name in gone)
    left = [one for one in candidates if one.name not in gone]
    assert gone.isdisjoint(one.name for one in ours[-policy.latest :])
    # What was decided once is decided: a second look deletes nothing more.
    assert not any(isinstance(one, Deleted) for one in plan(left, policy, NOW, resumed_from=resumed_from))


@given(_CANDIDATES, _POLICIES)
def test_a_checkpoint_that_turns_out_damaged_never_makes_more_go(candidates: list[Candidate], policy: Policy) -> None:
    labelled = [replace(one, metrics={"loss": 1.0}) for one in candidates]

    def gone(those: list[Candidate]) -> set[str]:
        return {one.name for one in plan(those, policy, NOW) if isinstance(one, Deleted)}

    for at, one in enumerate(labelled):
        if one.is_verified:
            assert gone([*labelled[:at], replace(one, is_verified=False), *labelled[at + 1 :]]) <= gone(labelled)
