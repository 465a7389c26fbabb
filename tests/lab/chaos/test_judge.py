"""The judge of a night finds each thing that can be wrong, in the facts of a night in which all else is well."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from tests.lab.chaos.judge import Attempt, Facts, judge
from tests.lab.chaos.plan import Fault, Night

KILL, FULL = Fault(0, "kill", 13, 2, 10), Fault(1, "disk_full", 26, 0, 20)
CORRUPT = Night(1, (replace(KILL, kind="gradient"), FULL), 45)
STAYS_FULL = replace(FULL, kind="disk_stays_full")
INCIDENT = {"episode": "abcdef01", "fault": "breaker-open", "count": 2, "resolved": 99.0, "summary": "it is open"}
OF_IT = {"episode": "abcdef01", "fault": "breaker-open", "fingerprint": "ab", "summary": "it is open"}
AGAIN = {"headline": "it is open", "notices": [OF_IT | {"episode": "0", "reason": "FIRST", "verdict": "CRITICAL"}]}
TOLD = {"headline": "it is open", "notices": [OF_IT | {"reason": "FIRST", "verdict": "CRITICAL"}]}
RESOLVED = {"headline": "it is closed", "notices": [OF_IT | {"reason": "RESOLVED", "verdict": "OK"}]}
PER_ATTEMPT = {1: (1, 12), 2: (11, 30), 3: (21, 30), 4: (21, 45)}
STEPPED = tuple(
    (attempt, step, 100.0 * attempt + step, f"loss {step}")
    for attempt, (first, last) in PER_ATTEMPT.items()
    for step in range(first, last + 1)
)
WELL = Facts(
    night=Night(1, (KILL, FULL), 45),
    alone="0x1p0",
    final="0x1p0",
    reason="",
    attempts=(Attempt(1, "killed"), Attempt(2, "disk_full"), Attempt(3, "disk_full"), Attempt(4, "finished")),
    met={0: ((13, 1),), 1: ((26, 2),)},
    resumed={1: (0,) * 4, 2: (10,) * 4, 3: (20,) * 4, 4: (20,) * 4},
    stepped=STEPPED,
    saved=((1, 10), (2, 20), (4, 30), (4, 40), (4, 45)),
    messages=(TOLD, RESOLVED),
    incidents=(INCIDENT,),
)
OPEN = (INCIDENT | {"resolved": None},)
HELD = replace(
    WELL, night=Night(1, (KILL, STAYS_FULL), 45), final="", reason="no restart heals it: disk full", messages=(TOLD,),
    attempts=WELL.attempts[:3], stepped=tuple(one for one in STEPPED if one[0] < 4), incidents=OPEN,
    resumed={attempt: ranks for attempt, ranks in WELL.resumed.items() if attempt < 4}, saved=WELL.saved[:2],
)  # fmt: skip


def test_nothing_is_wrong_where_all_is_well() -> None:
    assert judge(WELL) == [] and judge(HELD) == []


def less(*left_out: tuple[int, int]) -> tuple[tuple[int, int, float, str], ...]:
    return tuple(one for one in STEPPED if one[:2] not in left_out)


WRONG: dict[str, tuple[Facts, dict[str, Any], str]] = {
    "another loss": (WELL, {"final": "0x1p1"}, "the end is not that of a training left alone"),
    "no end": (WELL, {"final": "", "incidents": ()}, "the run did not finish"),
    "held for nothing": (WELL, {"final": "", "reason": "an exception"}, "the run did not finish; the breaker says an"),
    "held after the end": (WELL, {"reason": "an exception"}, "the run has finished, and is held"),
    "not held": (HELD, {"reason": ""}, "held for another reason than disk_stays_full at 26: it is not held"),
    "another reason": (HELD, {"reason": "a network failure"}, "held for another reason than disk_stays_full at 26: a"),
    "an end in spite of it": (HELD, {"final": "0x1p0"}, "the run finished in spite of disk_stays_full"),
    "a fault that never came": (WELL, {"met": {0: ((13, 1),)}}, "disk_full at 26 never came"),
    "a fault elsewhere": (WELL, {"met": {**WELL.met, 0: ((14, 1),)}}, "kill at 13 on rank 2 came at another step"),
    "a gap in the ledger": (WELL, {"attempts": WELL.attempts[1:]}, "the ledger has the attempts [2, 3, 4]"),
    "another class": (WELL, {"attempts": (Attempt(1, "quota"), *WELL.attempts[1:])}, "attempt 1 ended as quota: "),
    "no class": (WELL, {"attempts": (Attempt(1, ""), *WELL.attempts[1:])}, "attempt 1 has no end"),
    "an end without a fault": (WELL, {"met": {**WELL.met, 0: ((13, 4),)}}, "attempt 1 ended as killed, and nothing"),
    "a step left out": (WELL, {"stepped": less((2, 14))}, "attempt 2 made step 15 after 13"),
    "a step twice": (WELL, {"stepped": (*STEPPED, STEPPED[-1])}, "attempt 4 made step 45 after 45"),
    "twins": (WELL, {"stepped": (*STEPPED, (3, 31, 1e9, "loss 31"))}, "attempt 3 made step 31 while attempt 4 trained"),
    "ranks apart": (WELL, {"resumed": {**WELL.resumed, 2: (10, 10, 0, 10)}}, "the ranks of attempt 2 began at"),
    "a checkpoint lost": (WELL, {"saved": (*WELL.saved, (3, 30))}, "attempt 4 began at step 20, and the newest good"),
    "a damaged one used": (WELL, {"damaged": ((3, 20),)}, "attempt 4 began at step 20, and the newest good"),
    "corruption unseen": (replace(WELL, night=CORRUPT), {}, "nothing was found at gradient at 13 on rank 2"),
    "corruption imagined": (WELL, {"corrupted": ((5, "transient"),)}, "silent corruption was found at the steps [5]"),
    "corruption misjudged": (
        replace(WELL, night=CORRUPT), {"corrupted": ((13, "unstable"),)}, "unstable was found at gradient"),
    "told twice": (WELL, {"messages": (TOLD, TOLD, RESOLVED)}, "CRITICAL of incident abcdef01 (breaker-open) was"),
    "told as another": (
        WELL, {"messages": (*WELL.messages, AGAIN, AGAIN)}, "3 incidents were told of one thing: it is open"),
    "its end told twice": (WELL, {"messages": (TOLD, RESOLVED, RESOLVED)}, "RESOLVED of incident abcdef01"),
    "its end not told": (WELL, {"messages": (TOLD,)}, "the end of incident abcdef01 (breaker-open) was not told"),
    "a lost message": (WELL, {"messages": ()}, "incident abcdef01 (breaker-open) counts as told, and no message came"),
    "open after the end": (WELL, {"incidents": OPEN}, "incident abcdef01 (breaker-open) is open after the end"),
    "held in silence": (HELD, {"messages": (), "incidents": ()}, "the run is held, and nobody was told"),
    "a hold untold": (WELL, {"messages": (), "incidents": ()}, "nobody was told of disk_full at 26"),
    "about nothing": (WELL, {"messages": (*WELL.messages, {"headline": "dead", "notices": []})}, "a message about"),
    "undelivered": (WELL, {"undelivered": ("a.slack",)}, "not delivered: a.slack"),
    "a traceback": (WELL, {"said": "x\nTraceback (most recent call last):\n"}, "a watchdog or a batch shell broke"),
    "a process": (WELL, {"left": ("process 17 sleep",)}, "left behind: process 17 sleep"),
    "in vain": (WELL, {"waited": "240 s for the end"}, "waited in vain for 240 s for the end"),
}  # fmt: skip


@pytest.mark.parametrize("name", WRONG)
def test_the_judge_finds(name: str) -> None:
    facts, change, sentence = WRONG[name]
    found = judge(replace(facts, **change))
    assert any(sentence in one for one in found) and found, found


def test_each_step_has_the_loss_that_it_had_before() -> None:
    other = tuple((a, step, at, "other" if (a, step) == (4, 25) else loss) for a, step, at, loss in STEPPED)
    assert judge(replace(WELL, stepped=other)) == ["step 25 had another loss in attempt 4"]


def test_what_a_rank_with_other_weights_has_saved_is_not_good() -> None:
    diverged = Night(1, (KILL, replace(FULL, kind="replica", step=19)), 45)
    facts = replace(WELL, night=diverged, met={0: ((13, 1),), 1: ((19, 2),)}, corrupted=((20, "replica"),), attempts=(
        Attempt(1, "killed"), Attempt(2, "unknown"), Attempt(3, "finished")), messages=(TOLD, RESOLVED),
        stepped=tuple(one for one in STEPPED if one[0] < 3) + tuple((3, step, 9e9, "x") for step in range(11, 46)),
        resumed={1: (0,) * 4, 2: (10,) * 4, 3: (10,) * 4}, saved=((1, 10), (2, 20), (3, 45)))  # fmt: skip
    found = judge(facts)
    assert {one.split(" had ")[0] for one in found} == {f"step {step}" for step in range(11, 19)}, found
    assert judge(replace(facts, resumed={**facts.resumed, 3: (20,) * 4}))[-1].startswith("attempt 3 began at step 20")


def test_a_disk_that_is_full_once_may_hold_the_run_and_then_the_later_faults_do_not_come() -> None:
    once, later = replace(STAYS_FULL, kind="disk_full_once"), Fault(2, "kill", 42, 2, 30)
    night = Night(1, (KILL, once, later), 60)
    facts = replace(HELD, night=night, attempts=HELD.attempts[:2])
    assert judge(facts) == []
    assert any("the run did not finish" in one for one in judge(replace(facts, reason="an exception")))
