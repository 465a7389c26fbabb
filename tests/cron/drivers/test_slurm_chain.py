"""Which jobs of the scheduler should wait: a table of queues, and days of them."""

from __future__ import annotations

import random

import pytest

from resilience.cron.drivers._slurm.chain import SUCCESSORS, Mode, Plan, QueuedJob, Token, next_slots, plan_chain

NOW = 1_800_000_100.0  # 100 s after a multiple of 900
SLOT = 1_800_000_000
P = 900


def seen(job_id: int, token: str, state: str = "waits") -> QueuedJob:
    parsed = Token.parse(token)
    assert parsed is not None
    return QueuedJob(job_id, parsed, state != "ended", state == "waits")


def plan(*jobs: QueuedJob, mode: Mode = Mode.PULSE, own: int = 0, now: float = NOW, slot: int = 0) -> Plan:
    return plan_chain(jobs, now, installation="abc", mode=mode, pulse_s=P, own=own, slot=slot)


def tokens(what: Plan) -> list[str]:
    return [str(request.token) for request in what.submit]


def cancelled(what: Plan) -> list[int]:
    return [one.job_id for one in what.cancel]


@pytest.mark.parametrize("text", ["abc-p1800000000.1", "abc-d88.2", "0a1b-d0.bash1800000000", "abc-d0.1"])
def test_a_token_is_read_back_as_it_was_written(text: str) -> None:
    assert str(Token.parse(text)) == text


@pytest.mark.parametrize("text", ["", "abc", "abc-x1.1", "abc-d.1", "abc-d1.", "a b-d1.1", "-d1.1", "abc-d1.1 more"])
def test_an_invalid_token_is_none(text: str) -> None:
    assert Token.parse(text) is None


def test_slots_are_multiples_of_the_period_and_never_now() -> None:
    assert next_slots(NOW, P, 2) == (SLOT + P, SLOT + 2 * P)
    assert next_slots(SLOT + P, P, 1) == (SLOT + 2 * P,)
    assert next_slots(SLOT + P - 0.001, P, 1) == (SLOT + P,)


def test_from_nothing_the_first_pulse_comes_at_once_and_the_second_at_its_slot() -> None:
    first, second = plan().submit
    assert (str(first.token), first.begin) == (f"abc-p{SLOT}.1", None)
    assert (str(second.token), second.begin) == (f"abc-p{SLOT + P}.1", SLOT + P)


def test_two_concurrent_bootstraps_make_the_same_tokens() -> None:
    assert tokens(plan(now=NOW)) == tokens(plan(now=NOW + 5))
    assert tokens(plan(mode=Mode.DAEMON)) == tokens(plan(mode=Mode.DAEMON, now=NOW + 500)) == ["abc-d0.1", "abc-d0.2"]


def test_a_pulse_that_runs_late_submits_from_the_clock_and_not_from_its_own_start() -> None:
    late = plan(seen(7, f"abc-p{SLOT - 5 * P}.1", "runs"), own=7)
    assert [request.begin for request in late.submit] == [SLOT + P, SLOT + 2 * P]


def test_a_pulse_that_begins_a_moment_early_does_not_submit_its_own_slot_again() -> None:
    early = plan(seen(7, f"abc-p{SLOT}.1", "runs"), own=7, slot=SLOT, now=SLOT - 0.4)
    assert [request.begin for request in early.submit] == [SLOT + P, SLOT + 2 * P]


def test_a_whole_chain_needs_nothing() -> None:
    whole = plan(
        seen(7, f"abc-p{SLOT}.1", "runs"), seen(8, f"abc-p{SLOT + P}.1"), seen(9, f"abc-p{SLOT + 2 * P}.1"), own=7
    )
    assert (whole.submit, whole.cancel, whole.waiting) == ((), (), 2)
    daemon = plan(seen(7, "abc-d0.1", "runs"), seen(8, "abc-d0.2"), seen(9, "abc-d7.1"), own=7, mode=Mode.DAEMON)
    assert (daemon.submit, daemon.cancel, daemon.waiting) == ((), (), 2)


def test_pulses_whose_slot_is_past_are_cancelled_by_the_one_that_runs_and_only_when_the_next_are_queued() -> None:
    stale, first = seen(8, f"abc-p{SLOT - P}.1"), seen(9, f"abc-p{SLOT + P}.1")
    own = seen(7, f"abc-p{SLOT - 2 * P}.1", "runs")
    before = plan(own, stale, first, own=7)
    assert (tokens(before), cancelled(before)) == ([f"abc-p{SLOT + 2 * P}.1"], [])
    after = plan(own, stale, first, seen(10, f"abc-p{SLOT + 2 * P}.1"), own=7)
    assert (tokens(after), cancelled(after)) == ([], [8])


def test_seen_from_outside_a_pulse_whose_slot_is_past_is_the_head_of_the_queue() -> None:
    """It waits for a free node, and has waited long."""
    outside = plan(seen(8, f"abc-p{SLOT - P}.1"), seen(9, f"abc-p{SLOT}.1"))
    assert (outside.submit, outside.cancel) == ((), ())


def test_of_twins_the_older_stays() -> None:
    twins = [seen(8, f"abc-p{SLOT + P}.1"), seen(9, f"abc-p{SLOT + P}.1"), seen(10, f"abc-p{SLOT + 2 * P}.bash1")]
    assert cancelled(plan(seen(7, f"abc-p{SLOT}.1", "runs"), *twins, own=7)) == [9]
    daemons = [seen(number, "abc-d0.1") for number in (5, 6, 7, 8)]
    assert cancelled(plan(*daemons, mode=Mode.DAEMON)) == [7, 8]


def test_a_token_that_an_ended_job_carries_is_not_used_again() -> None:
    """Its job would be found, and nothing be submitted: SLURM remembers ended jobs for MinJobAge."""
    ended = [seen(8, "abc-d7.1", "ended"), seen(9, "abc-d7.3", "ended")]
    assert tokens(plan(seen(7, "abc-d0.1", "runs"), *ended, own=7, mode=Mode.DAEMON)) == ["abc-d7.2", "abc-d7.4"]
    gone = seen(8, f"abc-p{SLOT + P}.1", "ended")
    assert f"abc-p{SLOT + P}.2" in tokens(plan(seen(7, f"abc-p{SLOT}.1", "runs"), gone, own=7))


def test_other_installations_jobs_are_not_touched_and_do_not_count() -> None:
    foreign = [seen(8, "old-d0.1"), seen(9, "old-d0.2")]
    there = plan(*foreign, mode=Mode.DAEMON)
    assert (len(there.submit), there.cancel) == (SUCCESSORS, ())


def test_after_a_change_of_mode_the_old_ones_go_when_the_new_ones_wait() -> None:
    old = [seen(8, "abc-d0.1"), seen(9, "abc-d0.2")]
    assert plan(*old).cancel == ()
    new = [seen(10, f"abc-p{SLOT}.1"), seen(11, f"abc-p{SLOT + P}.1")]
    assert cancelled(plan(*old, *new)) == [8, 9]


@pytest.mark.parametrize("mode", list(Mode))
def test_whatever_happens_to_the_queue_it_has_two_successors_again_and_never_more(mode: Mode) -> None:
    """Jobs are lost, doubled by a controller that hung, started, ended: looking twice makes it good."""
    dice = random.Random(5)
    queue: list[QueuedJob] = []
    now, number = NOW, 1
    for _ in range(400):
        now += dice.choice([0.5, 60, 900, 5000])
        running = next((job for job in queue if job.is_alive and not job.is_waiting), None)
        for _ in range(3):
            todo = plan_chain(
                queue, now, installation="abc", mode=mode, pulse_s=P, own=running.job_id if running else 0
            )
            assert not (todo.submit and todo.cancel)
            for request in todo.submit:
                for _ in range(dice.choice([1, 1, 1, 2])):
                    queue.append(QueuedJob(number, request.token, True, True))
                    number += 1
            gone = set(cancelled(todo))
            queue = [job._replace(is_alive=False) if job.job_id in gone else job for job in queue]
        waiting = [job for job in queue if job.is_alive and job.is_waiting]
        assert len(waiting) == SUCCESSORS
        assert len({job.token for job in waiting}) == SUCCESSORS or mode is Mode.DAEMON
        event = dice.choice(["start", "start", "lose", "lose all", "end"])
        if event == "start" and running is None:
            queue[queue.index(waiting[0])] = waiting[0]._replace(is_waiting=False)
        elif event == "end" and running is not None:
            queue[queue.index(running)] = running._replace(is_alive=False)
        elif event == "lose":
            queue.remove(waiting[-1])
        elif event == "lose all":
            queue.clear()
        queue = queue[-20:]
