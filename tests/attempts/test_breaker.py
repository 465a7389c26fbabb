"""When further attempts stop: never while a run makes progress, never after more than the budget."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest

from resilience.attempts.breaker import TREATMENTS, Breaker, State, Treatment, decide, looked_at, with_decisions
from resilience.attempts.failure import Confidence, Failure, FailureClass
from resilience.attempts.ledger import LedgerRow, causes_of
from resilience.errors import SettingsError
from resilience.runs.attempts import AttemptEnd
from resilience.settings.sections import ActSettings

C = FailureClass
POLICY = ActSettings()


def row(
    number: int,
    failure: FailureClass | None,
    *,
    durable: int | None = None,
    last: int | None = None,
    host: str = "",
    fingerprint: str = "",
    confidence: Confidence = Confidence.LIKELY,
    seconds: float = 1.0,
    has_guard: bool = True,
) -> LedgerRow:
    cause = None
    if failure is not None:
        cause = Failure(
            failure=failure, confidence=confidence, reason="", fingerprint=fingerprint or str(failure), host=host
        )
    start, seen = 1000.0 * number, durable or 0
    return LedgerRow(
        attempt=number,
        job=str(number),
        start_time=start,
        launch_time=start,
        end_time=None if cause is None else start + seconds,
        first_step=0 if has_guard else None,
        last_step=last if last is not None or not has_guard else seen,
        durable_step=durable,
        failure=cause,
    )


def at_end(rows: Sequence[LedgerRow], later_s: float = 0.0) -> Breaker:
    return decide(rows, POLICY, 1000.0 * len(rows) + 1.0 + later_s)


def test_every_class_has_a_treatment() -> None:
    assert TREATMENTS.keys() == set(FailureClass)


@pytest.mark.parametrize(
    ("classes", "state"),
    [
        ([C.UNKNOWN], State.CLOSED),
        ([C.UNKNOWN, C.KILLED], State.CLOSED),
        ([C.UNKNOWN, C.KILLED, C.SEGFAULT], State.OPEN),
        ([C.DISK_FULL], State.OPEN),
        ([C.MISSING_MODULE], State.OPEN),
        ([C.EXCEPTION], State.CLOSED),
        ([C.EXCEPTION, C.EXCEPTION], State.OPEN),
        ([C.NAN_LOSS, C.NAN_LOSS], State.OPEN),
        ([C.NAN_LOSS, C.EXCEPTION], State.CLOSED),
        ([C.PREEMPTED] * 5, State.CLOSED),
        ([C.WALLTIME] * 10, State.CLOSED),
        ([C.PREEMPTED] * 20, State.OPEN),
        ([C.UNKNOWN, C.PREEMPTED, C.UNKNOWN, C.NODE_FAILURE, C.UNKNOWN], State.OPEN),
        ([C.UNKNOWN, C.UNKNOWN, C.FINISHED], State.CLOSED),
        ([C.STOPPED] * 30, State.CLOSED),
    ],
    ids=str,
)
def test_attempts_without_progress(classes: list[FailureClass], state: State) -> None:
    rows = [row(1, C.WALLTIME, durable=50)] + [row(n, one, durable=50) for n, one in enumerate(classes, 2)]
    assert at_end(rows).state is state


def test_a_new_checkpoint_resets_the_budget() -> None:
    rows = [row(n, C.UNKNOWN, durable=10 * (n // 3)) for n in range(1, 40)]
    assert all(at_end(rows[:n]).state is State.CLOSED for n in range(3, 40))


def test_the_same_exception_at_another_step_is_another_cause() -> None:
    first, other, same = row(1, C.EXCEPTION, last=7), row(2, C.EXCEPTION, last=9), row(2, C.EXCEPTION, last=7)
    assert at_end([first, other]).state is State.CLOSED
    assert at_end([first, same]).state is State.OPEN


def test_the_same_exception_at_an_unknown_step_is_no_proof() -> None:
    rows = [row(n, C.EXCEPTION, has_guard=False) for n in (1, 2)]
    assert at_end(rows).state is State.CLOSED


@pytest.mark.parametrize("end", [AttemptEnd.TERMINATED, AttemptEnd.LOST, AttemptEnd.SUPERSEDED])
def test_echoes_of_an_end_from_outside_are_no_failures(end: AttemptEnd) -> None:
    rows = [replace(row(n, C.UNKNOWN), end=end) for n in range(1, 19)]
    assert at_end(rows).state is State.CLOSED
    rows = [replace(row(n, C.UNKNOWN), end=end) for n in range(1, 21)]
    assert at_end(rows).state is State.OPEN


def test_success_starts_the_count_again() -> None:
    good = replace(row(3, C.UNKNOWN), end=AttemptEnd.EXITED, exit_code=0)
    assert at_end([row(1, C.UNKNOWN), row(2, C.UNKNOWN), good, row(4, C.UNKNOWN)]).burnt == 1


@pytest.mark.parametrize("policy", [ActSettings(failures=0), ActSettings(failures=0, neutral=0)])
def test_a_limit_of_zero_is_never_reached(policy: ActSettings) -> None:
    rows = [row(n, C.DISK_FULL) for n in range(1, 50)]
    assert decide(rows, policy, 1e6).state is State.CLOSED


def test_treatments_can_be_set() -> None:
    policy = ActSettings(treatments={"exception": "never", "disk_full": "neutral"})
    assert decide([row(1, C.EXCEPTION)], policy, 1e6).state is State.OPEN
    assert decide([row(n, C.DISK_FULL) for n in range(1, 9)], policy, 1e6).state is State.CLOSED


@pytest.mark.parametrize(
    "given", [{"disk": "never"}, {"network": "sometimes"}, {"network": "end"}, {"finished": "never"}]
)
def test_treatments_that_do_not_exist_are_refused(given: dict[str, str]) -> None:
    with pytest.raises(SettingsError, match="there is no"):
        decide([], ActSettings(treatments=given), 1.0)


def test_alternating_causes_cannot_loop_for_ever() -> None:
    rows = [row(n, (C.NETWORK, C.UNKNOWN)[n % 2]) for n in range(1, 5)]
    assert at_end(rows[:3]).state is State.OPEN


def test_a_guess_is_never_hopeless() -> None:
    assert at_end([row(1, C.DISK_FULL, confidence=Confidence.GUESS)]).state is State.CLOSED


def test_what_may_heal_is_tried_again_one_at_a_time_and_ever_later() -> None:
    rows = [row(n, C.NETWORK, host="n7") for n in range(1, 4)]
    waits = []
    for number in range(4, 12):
        decision = at_end(rows)
        assert decision.state is State.OPEN
        if decision.retry_at is None:
            break
        assert decision.reason.endswith("it may heal on other nodes than n7")
        end = rows[-1].end_time
        assert end is not None
        waits.append(decision.retry_at - end)
        assert decide(rows, POLICY, decision.retry_at).state is State.HALF_OPEN
        rows.append(row(number, C.NETWORK, host="n7"))
    assert waits == [10.0, 20.0, 40.0, 80.0, 160.0, 300.0] and len(rows) == POLICY.failures + POLICY.half_open


def test_a_time_limit_before_the_first_checkpoint_is_told_as_that() -> None:
    rows = [row(n, C.WALLTIME) for n in range(1, 21)]
    told = (
        "20 attempts in a row reached their time limit before a new checkpoint: save more often, or ask for more time"
    )
    assert at_end(rows).reason == told
    assert "ended from outside" in at_end([*rows[:-1], row(20, C.PREEMPTED)]).reason


@pytest.mark.parametrize(
    ("classes", "heals"),
    [
        ([C.NETWORK, C.UNKNOWN, C.EXCEPTION], True),
        ([C.KILLED, C.UNKNOWN, C.EXCEPTION], False),
        ([C.NETWORK, C.GPU_FAULT, C.DISK_FULL], False),
        ([C.NETWORK, C.NAN_LOSS, C.NAN_LOSS], False),
    ],
    ids=str,
)
def test_of_several_causes_one_that_may_heal_is_enough_to_try_unless_the_last_is_hopeless(
    classes: list[FailureClass], heals: bool
) -> None:
    rows = [row(n, one, last=7) for n, one in enumerate(classes, 1)]
    assert at_end(rows).state is State.OPEN and (at_end(rows).retry_at is not None) is heals


def test_ends_from_outside_have_a_budget_of_their_own() -> None:
    rows = [row(1, C.UNKNOWN), *(row(n, C.PREEMPTED) for n in range(2, 22))]
    assert at_end(rows[:-1]).state is State.CLOSED
    assert at_end(rows).state is State.OPEN, "although one of them was a failure"


def test_a_host_that_the_same_cause_names_again_and_again_is_told_despite_progress() -> None:
    rows = [row(n, C.GPU_FAULT, durable=10 * n, host="n7" if n % 2 else "n8") for n in range(1, 5)]
    assert (at_end(rows).state, at_end(rows).culprit) == (State.CLOSED, "")
    rows.append(row(5, C.GPU_FAULT, durable=50, host="n7"))
    assert (at_end(rows).state, at_end(rows).culprit) == (State.CLOSED, "n7")
    (cause,) = causes_of(rows)
    assert (cause.failure, cause.attempts, dict(cause.hosts)) == (C.GPU_FAULT, 5, {"n7": 3, "n8": 2})


def test_a_node_where_everything_fails_while_another_is_fine_is_the_culprit() -> None:
    bad = [replace(row(n, C.UNKNOWN), host="n7", nodes="n7") for n in (2, 3)]
    assert at_end([replace(row(1, C.WALLTIME, durable=5), host="n8"), *bad]).culprit == "n7"
    assert at_end([replace(row(1, C.WALLTIME, durable=5), host="n7"), *bad]).culprit == ""
    wide = [replace(one, nodes="n[7-8]") for one in bad]
    assert at_end([replace(row(1, C.WALLTIME, durable=5), host="n8"), *wide]).culprit == "", "it may be the other node"


def test_each_attempt_shows_what_was_decided_after_it() -> None:
    rows = [row(1, C.WALLTIME, durable=5), *(row(n, C.NETWORK) for n in (2, 3, 4)), row(5, C.FINISHED)]
    policy = ActSettings(enabled=True)
    decided = [one.decided for one in with_decisions(rows, policy, 6000.0)]
    assert decided == ["go on", "go on", "go on", "let one try", ""]
    decided = [one.decided for one in with_decisions(rows[:4], POLICY, 4002.0)]
    assert decided[-1] == "would back off"
    assert with_decisions([row(1, C.DISK_FULL)], POLICY, 4002.0)[-1].decided == "would hold"
    decided = [one.decided for one in with_decisions([*rows[:4], row(5, None)], policy, 6000.0, closings=[4])]
    assert decided == ["go on", "go on", "go on", "let one try", ""], "closing it later changes nothing of that"


@pytest.mark.parametrize(("policy", "would"), [(ActSettings(enabled=True), ""), (POLICY, "would ")])
def test_what_was_decided_names_hosts_to_avoid_and_offers_to_the_training(policy: ActSettings, would: str) -> None:
    bad = [replace(row(n, C.GPU_FAULT, durable=n), host="n7", nodes="n7") for n in (1, 2)]
    decided = [one.decided for one in with_decisions(bad, policy, 3000.0)]
    assert decided == ["go on", f"{would}go on without n7"]
    decided = [one.decided for one in with_decisions([row(1, C.CHECKPOINT)], policy, 3000.0)]
    assert decided == [f"go on, {would}offer to fall back"]
    nan = row(1, C.NAN_LOSS)
    assert nan.failure is not None
    seen = replace(nan, failure=replace(nan.failure, step=7))
    decided = [one.decided for one in with_decisions([seen], policy, 3000.0)]
    assert decided == ["go on, offer to fall back"], "its own guard does that"


def obedient(chosen: Sequence[FailureClass], hosts: Sequence[str]) -> list[LedgerRow]:
    """Return the attempts of a scheduler that starts another job, with another id, whenever it may; the run never
    saves a newer step, and its causes and hosts alternate."""
    rows = [row(1, C.WALLTIME, durable=5)]
    while len(rows) < 200:
        decision = at_end(rows, later_s=900.0)
        if decision.state is State.OPEN:
            break
        number = len(rows) + 1
        host = hosts[number % len(hosts)]
        rows.append(replace(row(number, chosen[number % len(chosen)], durable=5, host=host), host=host, nodes=host))
    return rows


def test_alternating_causes_hosts_and_job_ids_cannot_loop_for_ever() -> None:
    failures = [one for one, how in TREATMENTS.items() if how not in (Treatment.NEUTRAL, Treatment.END)]
    budget = POLICY.failures + POLICY.half_open
    for one in failures:
        for other in failures:
            for hosts in (["n1"], ["n1", "n2", "n3"]):
                assert len(obedient([one, other], hosts)) <= 1 + budget, (one, other, hosts)
        for neutral in (C.PREEMPTED, C.WALLTIME, C.NODE_FAILURE):
            assert len(obedient([one, neutral], ["n1", "n2"])) <= 1 + 2 * budget


def test_what_was_decided_stays_so_when_the_breaker_is_closed_again() -> None:
    rows = [row(n, C.UNKNOWN) for n in range(1, 7)]
    first = [one.decided for one in with_decisions(rows, POLICY, 9000.0, closings=[3])]
    assert first == [one.decided for one in with_decisions(rows, POLICY, 9000.0, closings=[3, 6])]
    assert [text.removeprefix("would ") for text in first] == ["go on", "go on", "hold"] * 2


def test_a_person_closes_it() -> None:
    rows = [row(n, C.UNKNOWN) for n in range(1, 4)]
    assert decide(rows, POLICY, 4000.0, closed_after=3).state is State.CLOSED
    assert decide([*rows, row(4, C.UNKNOWN)], POLICY, 4500.0, closed_after=3).burnt == 1


def test_without_a_guard_the_time_tells() -> None:
    rows = [row(n, C.UNKNOWN, has_guard=False, seconds=4000.0) for n in range(1, 9)]
    assert at_end(rows).state is State.CLOSED
    rows = [row(n, C.UNKNOWN, has_guard=False, seconds=4.0) for n in range(1, 4)]
    assert at_end(rows).state is State.OPEN


def test_a_finished_run_that_goes_on_has_not_failed_before() -> None:
    rows = [row(1, C.FINISHED), row(2, C.UNKNOWN), row(3, C.UNKNOWN)]
    assert (at_end(rows).state, at_end(rows).burnt) == (State.CLOSED, 2)


def test_setup_and_waiting_are_no_training() -> None:
    rows = [replace(row(n, C.UNKNOWN, has_guard=False, seconds=900.0), launch_time=None) for n in (1, 2, 3)]
    assert at_end(rows).state is State.OPEN, "nothing was launched"
    rows = [replace(one, launch_time=one.start_time + 890.0) for one in rows]
    assert at_end(rows).state is State.OPEN, "ten seconds after a setup of a quarter of an hour"


def test_an_attempt_whose_guard_never_began_has_not_trained_however_long_it_took() -> None:
    waits = [row(n, C.RENDEZVOUS, has_guard=False, seconds=900.0) for n in (2, 3, 4)]
    assert at_end([row(1, C.WALLTIME, durable=50), *waits]).state is State.OPEN
    assert at_end([row(1, C.WALLTIME, has_guard=False), *waits]).state is State.CLOSED, "it may have no guard at all"


def test_tries_after_the_back_off_have_the_budget_of_ends_from_outside_as_well() -> None:
    rows = [*(row(n, C.NETWORK) for n in (1, 2, 3)), *(row(n, C.PREEMPTED) for n in range(4, 24))]
    assert at_end(rows[:-1], later_s=900.0).state is State.HALF_OPEN
    assert (at_end(rows, later_s=900.0).state, at_end(rows).outside) == (State.OPEN, 20)


@pytest.mark.parametrize("policy", [ActSettings(failures=60), ActSettings(neutral=90)], ids=str)
def test_a_large_budget_is_reached_within_the_attempts_that_are_read(policy: ActSettings) -> None:
    rows = [row(n, (C.PREEMPTED, C.UNKNOWN)[policy.failures == 60]) for n in range(1, 200)]
    assert decide(rows[-looked_at(policy) :], policy, 1e6).state is State.OPEN


def test_the_documentation_has_each_class_once_with_its_treatment() -> None:
    page = Path(__file__).parents[2] / "docs" / "how-to" / "stop-a-crash-loop.md"
    rows = [line.split("|") for line in page.read_text().splitlines() if line.startswith("| `")]
    told = [(name, row[2].strip(" `")) for row in rows for name in re.findall(r"`(\w+)`", row[1])]
    assert sorted(told) == sorted((str(one), str(how)) for one, how in TREATMENTS.items() if how is not Treatment.END)
    assert all(row[3].strip() and row[4].strip() for row in rows)


def test_injected_failures_open_the_breaker_say_so_and_blame_no_host() -> None:
    on_n7 = replace(row(1, C.IO_ERROR, host="n7"), host="n7", nodes="n7", injected=("eio: the checkpoints",))
    attempts = [replace(on_n7, attempt=number, job=str(number)) for number in (1, 2, 3)]
    found = decide(attempts, POLICY, 4000.0)
    assert found.state is not State.CLOSED and "injected on purpose: eio: the checkpoints" in found.reason
    assert (found.culprit, dict(found.elsewhere)) == ("", {})
    found = decide([replace(one, injected=()) for one in attempts], POLICY, 4000.0)
    assert found.culprit == "n7" and "injected" not in found.reason and "n7" in found.elsewhere
