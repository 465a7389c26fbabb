"""Who makes the others wait, and when a run is slower than it was: tables, and simulated trainings.

The simulated ranks are looked at as real ones are: at irregular times, each from its own process, through the guard's
own windows.
"""

from __future__ import annotations

import os
import random
from collections.abc import Sequence
from dataclasses import dataclass, replace

import pytest

from resilience.guard.heartbeat.windows import KEPT, LOOKS, Windows
from resilience.ranks.beats import NodeBeat, RankBeat, Window
from resilience.ranks.stragglers import Limits, Past, judge, judge_drift

HOUR = 3600.0


def a_node(host: str, *ranks: RankBeat) -> NodeBeat:
    return NodeBeat("12", host, 3, 1000.0, 1000.0, ranks)


def a_rank(number: int, shares: Sequence[float], looks: int = 60) -> RankBeat:
    windows = tuple(Window(64 * n, 64, 64, looks, round(share * looks), 66.0) for n, share in enumerate(shares, 1))
    return RankBeat(number, 7, 64 * len(shares), 999.0, "train", windows=windows)


def nodes(*shares: Sequence[float], per_node: int = 2) -> list[NodeBeat]:
    ranks = [a_rank(number, of) for number, of in enumerate(shares)]
    return [a_node(f"n{1 + n // per_node}", *ranks[n : n + per_node]) for n in range(0, len(ranks), per_node)]


WELL, LATE = [0.3] * 10, [0.05] * 10
LAST_8 = [0.3, 0.3, *[0.05] * 8]


@pytest.mark.parametrize(
    ("shares", "named", "says"),
    [
        ([WELL] * 4, [], ""),
        (
            [WELL, WELL, LATE, WELL],
            [(2,)],
            "rank 2 on n2 takes 1.36 times as long as the median rank, last in 10 of 10",
        ),
        ([WELL, LATE], [(1,)], "rank 1 on n1 takes 1.36"),
        ([WELL, WELL, LAST_8, WELL], [(2,)], "last in 8 of 10"),
        ([WELL, WELL, [0.3, *LAST_8[:-1]], WELL], [], ""),  # seven
        ([WELL, WELL, LATE, LATE], [(2, 3)], "all 2 ranks of n2 take 1.36"),
        ([LATE, LATE], [], ""),
        ([WELL, [0.27] * 10, WELL, WELL], [], ""),  # within chance
        ([[0.3, 0.0, 0.2] * 4] * 4, [], ""),
    ],
)
def test_a_rank_is_named_if_it_waits_least_in_8_of_10_windows(
    shares: list[list[float]], named: list[tuple[int, ...]], says: str
) -> None:
    found = judge(nodes(*shares))
    assert [one.ranks for one in found.stragglers] == named and found.nothing == ""
    assert says in "".join(one.why for one in found.stragglers)


def test_how_slow_is_slow_is_a_setting() -> None:
    assert judge(nodes(WELL, LATE, WELL), Limits(degraded=1.3)).stragglers
    assert not judge(nodes(WELL, LATE, WELL), Limits(degraded=1.4)).stragglers


@pytest.mark.parametrize(
    ("beats", "why"),
    [
        (nodes(WELL), "one rank"),
        (nodes(WELL, LATE[:-1], WELL), "9 of 10 windows"),
        (nodes(WELL, LATE, [*WELL, *WELL]), ""),
        (
            nodes([0.99] * 10, [0.5] * 10, [0.98] * 10),
            "open for 98% of the time: enqueued and not waited for, as by NCCL",
        ),
        ([a_node("n1", RankBeat(0, 7, 5, 9.0, "train"), RankBeat(1, 7, 5, 9.0, "train"))], "0 of 10 windows"),
        ([], "one rank"),
    ],
)
def test_nothing_is_said_rather_than_something_wrong(beats: list[NodeBeat], why: str) -> None:
    found = judge(beats)
    assert why in found.nothing and bool(found.nothing) == (not found.stragglers)


def test_shorter_windows_of_a_rank_are_joined() -> None:
    halves = [one for n in range(1, 11) for one in ((64 * n - 32, 0.1), (64 * n, 0.0))]
    windows = tuple(Window(end, 32, 32, 30, round(30 * share), 33.0) for end, share in halves)
    found = judge(
        [a_node("n1", a_rank(0, WELL), a_rank(1, WELL), RankBeat(2, 7, 640, 9.0, "train", windows=windows[1:]))]
    )
    assert found.nothing.startswith("9 of 10")
    found = judge([a_node("n1", a_rank(0, WELL), a_rank(1, WELL), RankBeat(2, 7, 640, 9.0, "train", windows=windows))])
    assert [one.ranks for one in found.stragglers] == [(2,)] and found.ranks[2].waits == 0.05


def test_windows_in_which_another_rank_saved_do_not_count() -> None:
    """Rank 0 saves alone, and the others wait for it; all evaluate; a second is too short to matter."""
    saving = replace(a_rank(0, [0.3] * 10), pauses=((130, 133, 5.0), (330, 331, 2.0), (420, 421, 60.0), (10, 11, 1.0)))
    waiting = [replace(a_rank(n, [0.3, 0.3, 0.9] * 3 + [0.3]), pauses=((419, 421, 1.9),)) for n in (1, 2, 3)]
    found = judge([a_node("n1", saving, *waiting)])
    assert found.nothing.startswith("8 of 10") and not found.stragglers
    assert [share for _, share in found.ranks[1].windows] == [0.3, 0.3, None, 0.3, 0.3, None, 0.3, 0.3, 0.9, 0.3]
    assert None not in [share for _, share in found.ranks[0].windows]


# ---- slower than its own past --------------------------------------------------------------------------------


def past(*step_s: float, world: int = 8, hosts: tuple[str, ...] = ("n1", "n2")) -> list[Past]:
    return [Past(n * HOUR, of, world, hosts) for n, of in enumerate(step_s)]


@pytest.mark.parametrize(
    ("readings", "factor"),
    [
        (past(1.0, 1.02, 0.99, 1.01, 1.0, 1.03), None),
        (past(1.0, 1.0, 1.0, 1.2, 1.2), 1.2),
        (past(1.0, 1.0, 1.2, 1.2), None),  # too little past
        (past(1.0, 1.0, 1.0, 1.0, 1.2), None),  # once
        (past(1.0, 1.0, 1.0, 1.2, 1.0), None),
        (past(*(1.0 + 0.01 * n for n in range(30))), 1.24),  # creeping
        (past(1.0, 1.0, 1.0, 4.0, 4.0), 4.0),
        (past(1.0, 1.0, 1.0, world=4) + past(1.5, 1.5, 1.5), None),  # another number of ranks
        ([], None),
    ],
)
def test_a_run_that_became_slower_is_told(readings: list[Past], factor: float | None) -> None:
    found = judge_drift(readings)
    assert (None if found is None else pytest.approx(found.factor, abs=0.02)) == factor


def test_drift_says_since_when_and_names_the_nodes_that_are_new_since_then() -> None:
    before, now = past(1.0, 1.0, 1.0), past(0, 0, 0, 1.5, 1.5, 1.5, hosts=("n1", "n9"))[3:]
    found = judge_drift([*before, *now])
    assert found is not None and (found.since, found.new_hosts) == (3 * HOUR, ("n9",))
    assert found.why == (
        "1.5 s per step, 1.50 times as long as the 1 s it took before with 8 ranks, for 2 h; new since then: n9"
    )
    slow = judge_drift([*before, *now], slow_hosts=["n1"])
    assert slow is not None and slow.why.endswith("the others wait for n1")


# ---- simulated trainings ------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Training:
    """Seconds of computing and of communicating per step, and what else happens."""

    ranks: int
    slow: int = -1
    factor: float = 1.3
    compute_s: float = 0.5
    network_s: float = 0.05
    noise: float = 0.05
    pauses: bool = False


def simulate(training: Training, seed: str) -> list[NodeBeat]:
    """Return the heartbeats of a training as soon as it can be judged; with pauses, later."""
    chance = random.Random(seed)
    windows = [Windows() for _ in range(training.ranks)]
    looks = [(0, 0)] * training.ranks
    due = [chance.random() for _ in windows]
    now, step, save_at = 0.0, 0, chance.randrange(300, 900)
    found: list[NodeBeat] = []
    while not found or judge(found).nothing:
        found = []
        arrives = []
        for rank in range(training.ranks):
            own = training.compute_s * (training.factor if rank == training.slow else 1.0)
            arrives.append(now + own * max(0.5, chance.gauss(1.0, training.noise)))
        phases = ["train"] * training.ranks
        if training.pauses and step and step % save_at == 0:
            arrives[0] += 20.0  # rank 0 saves alone
            phases[0] = "save"
        if training.pauses and step and step % 700 == 0:
            arrives = [one + 30.0 for one in arrives]
            phases = ["eval"] * training.ranks
        if training.pauses and step and step % 50 == 0:
            arrives = [one + 0.5 for one in arrives]
            phases = [chance.choice(("save", phase)) for phase in phases]  # too short to be seen of every rank
        if training.pauses and chance.random() < 0.003:
            arrives[chance.randrange(training.ranks)] += chance.uniform(1, 10)  # its data are late
        end = max(arrives) + training.network_s
        for rank, arrived in enumerate(arrives):
            if phases[rank] != "train":
                windows[rank].update(step, *looks[rank], phases[rank], now)
            count, inside = looks[rank]
            while due[rank] < end:
                count, inside = count + 1, inside + (due[rank] >= arrived)
                due[rank] += chance.uniform(0.5, 1.5)
            looks[rank] = count, inside
        now, step = end, step + 1
        for rank, one in enumerate(windows):
            one.update(step, *looks[rank], "train", now)
        if step % 8 == 0 and min(len(one.kept) for one in windows) >= (20 if training.pauses else 10):
            ranks = [
                RankBeat(
                    rank,
                    7,
                    step,
                    now,
                    "train",
                    windows=tuple(Window(*each) for each in one.kept),
                    pauses=tuple(one.pauses),
                )
                for rank, one in enumerate(windows)
            ]
            found = [a_node(f"n{1 + n // 8}", *ranks[n : n + 8]) for n in range(0, len(ranks), 8)]
    return found


SOAK = os.environ.get("RESIL_SOAK") == "1"
HEALTHY = (
    *(Training(8, noise=noise, network_s=network_s) for noise in (0.02, 0.1, 0.3) for network_s in (0.01, 0.3)),
    Training(8, compute_s=0.95),  # a look per step
    Training(8, compute_s=20.0, network_s=1.0),
    Training(8, pauses=True),
    Training(64),
)


def test_healthy_trainings_give_no_alarm() -> None:
    """1,000 with RESIL_SOAK=1."""
    rounds = 100 if SOAK else 2
    for training in HEALTHY:
        for number in range(rounds):
            found = judge(simulate(training, f"{training} {number}"))
            assert not found.stragglers, (training, number, found.stragglers)


SLOW = (
    *(Training(ranks, slow=3) for ranks in (8, 64)),
    Training(8, slow=3, noise=0.2),
    Training(8, slow=3, compute_s=0.7),
    Training(8, slow=3, compute_s=20.0, network_s=1.0),
    Training(8, slow=3, pauses=True),
    Training(64, slow=3, pauses=True),
)


@pytest.mark.parametrize("training", SLOW)
def test_a_rank_30_percent_slower_is_named(training: Training) -> None:
    """50 of 50 with RESIL_SOAK=1."""
    for number in range(50 if SOAK else 2):
        found = judge(simulate(training, f"{training} {number}"))
        assert [one.ranks for one in found.stragglers] == [(3,)], (number, found.nothing, found.ranks[3])
        assert 1.15 < found.stragglers[0].factor < 1.45


# ---- the guard's windows ------------------------------------------------------------------------------------------


def fed(*samples: tuple[int, int, int, str]) -> Windows:
    windows = Windows()
    for now, sample in enumerate(samples):
        windows.update(*sample, float(now))
    return windows


def test_windows_are_a_power_of_two_of_steps_with_60_to_120_looks_and_leave_out_the_start_and_pauses() -> None:
    steps = [(n // 2, n, n // 4, "train") for n in range(350)]
    assert fed(*steps).kept == [(end, 32, 32, 64, 16, 64.0) for end in (96, 128, 160)]
    saved = [(*one[:3], "save") if n in (150, 151) else one for n, one in enumerate(steps)]
    assert fed(*saved).kept[0] == (96, 32, 30, 60, 15, 60.0)
    assert fed(*saved).pauses == [(74, 76, 2.0)]


def test_without_steps_or_looks_no_window_ends() -> None:
    assert fed(*[(5, n, 0, "train") for n in range(200)]).kept == []
    assert fed(*[(n, 0, 0, "train") for n in range(200)]).kept == []
    assert fed(*[(n, n, 0, "eval") for n in range(200)]).kept == []


def test_a_training_that_goes_back_to_a_checkpoint_counts_on_from_there() -> None:
    samples = [(n, n, 0, "train") for n in range(100)] + [(n - 60, n, 0, "train") for n in range(100, 290)]
    assert [one[:4] for one in fed(*samples).kept] == [(192, 64, 64, 64)]


def test_windows_and_pauses_are_few_however_long_the_training_is() -> None:
    found = fed(*[(n, n, 0, "train" if n % 30 else "save") for n in range(LOOKS * 50)])
    assert (len(found.kept), len(found.pauses)) == (KEPT, KEPT)
