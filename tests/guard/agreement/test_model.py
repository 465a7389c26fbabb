"""All that two and three ranks may do, in every order, on the real protocol; and proof that the search can fail."""

from __future__ import annotations

import os
from collections.abc import Iterable
from typing import Any

import pytest

from resilience.guard.agreement.coordinator import Coordinator
from resilience.guard.agreement.member import Member
from resilience.guard.agreement.messages import FREE
from resilience.guard.agreement.rounds import OpenRound, RequestQueue
from resilience.guard.decision import IN_FLIGHT, SAVED, Request
from tests.guard.agreement.explorer import Case, Violation, explore, wander

Message = dict[str, Any]
SAVE = Request("save switch", "alice wants a checkpoint", stop=False)
STOP = Request("kill switch", "bob stops the run")
ONE = ((1, SAVE),)
TWO = ((0, SAVE), (1, STOP))
AT = ((1, Request("cadence", "every 2 steps", stop=False, at=2)),)

# The two threads of a rank interleaved finely, and messages that take any time in both directions; two ranks.
FINE: dict[str, dict[str, Any]] = {
    "two ranks that step as they like": {"steps": 3, "requests": ONE},
    "two ranks that step together": {"steps": 3, "requests": ONE, "coupled": True},
    "save and stop at once": {"steps": 3, "requests": TWO, "coupled": True},
    "the training ends meanwhile": {"steps": 3, "requests": ONE, "coupled": True, "leaves": True},
    "a stop while a save is in flight": {"steps": 2, "requests": TWO, "coupled": True, "in_flight": True},
}
FAULTS: dict[str, dict[str, Any]] = {
    "a connection breaks": {"steps": 2, "requests": ONE, "breaks": 1},
    "a rank is too slow for the round": {"steps": 2, "requests": ONE, "overdue": 1},
    "a rank leaves early": {"steps": 2, "requests": ONE, "leave_early": 1},
    "a connection breaks while a save is in flight": {"steps": 2, "requests": ONE, "breaks": 1, "in_flight": True},
    "a rank is restarted while a save is in flight": {"steps": 2, "requests": ONE, "restarts": 1, "in_flight": True},
    "rank 0 is restarted while saves are in flight": {
        "steps": 2,
        "requests": ONE,
        "deaths": 1,
        "reborn": True,
        "in_flight": True,
    },
    "a rank is restarted": {"steps": 2, "requests": ONE, "restarts": 1},
    "rank 0 dies for good": {"steps": 3, "requests": ONE, "deaths": 1},
    "rank 0 is restarted": {"steps": 2, "requests": ONE, "deaths": 1, "reborn": True},
}
# Three ranks: rank 0 hears promptly, everything else takes any time.
THREE: dict[str, dict[str, Any]] = {
    "three ranks that step together": {"steps": 1, "requests": ((1, STOP),), "coupled": True},
    "one of three is too slow": {"steps": 1, "requests": ONE, "coupled": True, "overdue": 1},
}
# Reports of the phases of a save, with no round beside them; and with one.
PHASES: dict[str, Any] = {"steps": 0, "phases": ("written a", "commit a")}
REPORTS: dict[str, Case] = {
    "two ranks": Case(ranks=2, **PHASES, breaks=1),
    "a rank fails": Case(ranks=2, **PHASES, breaks=1, fault=(1, "written a")),
    "a rank leaves": Case(ranks=2, **PHASES, leave_early=1, breaks=1),
    "a rank is restarted": Case(ranks=2, **PHASES, restarts=1),
    "rank 0 is restarted": Case(ranks=2, **PHASES, deaths=1, reborn=True),
    "rank 0 dies for good": Case(ranks=2, **PHASES, deaths=1),
    "beside a round": Case(ranks=2, steps=1, requests=ONE, phases=("written a",), coupled=True, prompt=True),
    "three ranks": Case(ranks=3, steps=0, phases=("written a",), prompt=True, breaks=1),
}
WANTED: dict[str, dict[str, Any]] = {
    "a save at a wanted step": {"steps": 2, "requests": AT},
    "a broken connection": {"steps": 2, "requests": AT, "breaks": 1, "coupled": True, "prompt": True},
    "a stop meanwhile": {"steps": 2, "requests": (*AT, (0, STOP)), "coupled": True, "prompt": True},
    "a wanted step beyond the end": {"steps": 1, "requests": AT, "coupled": True, "leaves": True},
}
LARGE: dict[str, dict[str, Any]] = {
    "three ranks report, one is restarted, one leaves": {
        "ranks": 3,
        "steps": 0,
        "phases": ("written a",),
        "prompt": True,
        "restarts": 1,
        "leave_early": 1,
    },
    "two report, a restart and a break": {"ranks": 2, **PHASES, "restarts": 1, "breaks": 1},
    "two report beside a round, a break": {
        "ranks": 2,
        "steps": 1,
        "requests": ONE,
        "phases": ("written a",),
        "breaks": 1,
        "prompt": True,
    },
    "two, a wanted step, rank 0 restarted": {"ranks": 2, "steps": 3, "requests": AT, "deaths": 1, "reborn": True},
    "three, uncoupled": {"ranks": 3, "steps": 2, "requests": ONE},
    "three, save and stop": {
        "ranks": 3,
        "steps": 3,
        "requests": ((1, STOP), (2, SAVE)),
        "coupled": True,
        "prompt": True,
    },
    "three, a broken connection": {"ranks": 3, "steps": 2, "requests": ONE, "breaks": 1, "prompt": True},
    "three, a broken connection and a slow rank": {
        "ranks": 3,
        "steps": 1,
        "requests": ONE,
        "coupled": True,
        "breaks": 1,
        "overdue": 1,
        "prompt": True,
    },
    "three, rank 0 restarted": {"ranks": 3, "steps": 2, "requests": ONE, "deaths": 1, "reborn": True, "prompt": True},
    "three, rank 0 dies": {"ranks": 3, "steps": 2, "requests": ONE, "deaths": 1, "prompt": True},
    "three, a rank restarted": {"ranks": 3, "steps": 2, "requests": ONE, "restarts": 1, "prompt": True},
    "three, a rank leaves": {"ranks": 3, "steps": 2, "requests": ONE, "leave_early": 1, "prompt": True},
    "two, fine, a stop while a save is in flight": {
        "ranks": 2,
        "steps": 3,
        "fine": True,
        "requests": TWO,
        "coupled": True,
        "in_flight": True,
    },
    "two, two broken connections": {"ranks": 2, "steps": 3, "requests": TWO, "breaks": 2},
    "two, fine, a restart and a break": {
        "ranks": 2,
        "steps": 2,
        "requests": ONE,
        "fine": True,
        "breaks": 1,
        "restarts": 1,
    },
    "two, rank 0 restarted, and a break": {
        "ranks": 2,
        "steps": 2,
        "requests": TWO,
        "deaths": 1,
        "reborn": True,
        "breaks": 1,
    },
}


LONG_SEARCH = (
    pytest.mark.soak,
    pytest.mark.skipif(os.environ.get("RESIL_SOAK") != "1", reason="a long search: set RESIL_SOAK=1"),
)
# Searches of seconds whose faults a shorter one, or one with more faults at once, has too.
COVERED = {
    "save and stop at once", "a connection breaks while a save is in flight", "a rank is restarted",
    "rank 0 is restarted", "one of three is too slow",
}  # fmt: skip


def titles(cases: Iterable[str]) -> list[Any]:
    """Name the cases to run: those that others cover are run by hand."""
    return [pytest.param(one, marks=LONG_SEARCH if one in COVERED else ()) for one in cases]


def search(title: str, case: Case, most_states: int = 200_000) -> None:
    seen = explore(case, most_states)
    print(f"{title}: {seen.states:,} states, {seen.moves:,} moves, {seen.ends} ends, whole: {seen.whole}")
    assert seen.whole, "the search was cut short"
    assert seen.obeyed, "nothing was ever decided: the search shows nothing"


@pytest.mark.parametrize("title", titles(FINE))
def test_two_ranks_agree_in_every_order_of_their_threads_and_messages(title: str) -> None:
    search(title, Case(ranks=2, fine=True, **FINE[title]))


@pytest.mark.parametrize("title", titles(FAULTS))
def test_two_ranks_agree_whenever_a_fault_comes(title: str) -> None:
    search(title, Case(ranks=2, **FAULTS[title]))


@pytest.mark.parametrize("title", titles(THREE))
def test_three_ranks_agree_in_every_order(title: str) -> None:
    search(title, Case(ranks=3, prompt=True, **THREE[title]))


@pytest.mark.parametrize("title", REPORTS)
def test_reports_are_answered_soundly_and_nobody_waits_for_ever(title: str) -> None:
    seen = explore(REPORTS[title], 200_000)
    print(f"{title}: {seen.states:,} states, {seen.moves:,} moves, {seen.ends} ends")
    assert seen.whole and seen.told, "the search shows nothing"


@pytest.mark.parametrize("title", WANTED)
def test_two_ranks_agree_on_a_wanted_step(title: str) -> None:
    seen = explore(Case(ranks=2, **WANTED[title]), 200_000)
    print(f"{title}: {seen.states:,} states, {seen.moves:,} moves, {seen.ends} ends")
    assert seen.whole
    assert seen.obeyed or "beyond" in title


RESUME: dict[str, Any] = {"ranks": 2, "steps": 12, "requests": ONE, "coupled": True, "resumes": (1, 11)}
EVERYTHING: dict[str, Any] = {"steps": 20, "fine": True, "breaks": 3, "overdue": 2, "restarts": 1, "requests": TWO}
RANDOM: dict[str, Case] = {
    "four ranks, all faults": Case(ranks=4, deaths=1, reborn=True, **EVERYTHING),
    "five ranks that step together": Case(
        ranks=5, steps=20, fine=True, requests=TWO, coupled=True, breaks=3, overdue=2
    ),
    "four ranks of which one leaves": Case(ranks=4, leave_early=1, **EVERYTHING),
    "three ranks that resume": Case(steps=14, requests=TWO, coupled=True, resumes=(2, 11), breaks=2, overdue=1),
}


@pytest.mark.parametrize("title", RANDOM)
def test_ranks_agree_on_random_ways_through_larger_worlds(title: str) -> None:
    seen = wander(RANDOM[title], 5_000 if os.environ.get("RESIL_SOAK") == "1" else 150, seed=7)
    print(f"{title}: {seen.ends:,} ways of {seen.moves:,} moves in all; {seen.obeyed} where all obeyed")
    assert seen.obeyed > seen.ends / 10


@pytest.mark.soak
@pytest.mark.timeout(3600)
@LONG_SEARCH[1]
@pytest.mark.parametrize("title", LARGE)
def test_the_larger_searches_find_nothing_either(title: str) -> None:
    seen = explore(Case(**LARGE[title]), 1_500_000)
    print(f"{title}: {seen.states:,} states, {seen.moves:,} moves, {seen.ends} ends, whole: {seen.whole}")
    assert seen.obeyed or seen.told


@pytest.mark.soak
@LONG_SEARCH[1]
def test_ranks_that_resume_while_a_round_is_open_agree() -> None:
    search("resume", Case(**RESUME))


# ---- The search can fail: each of these is the protocol with one thought left out. -----------------------------------


class WishForgotten(RequestQueue):
    """Decides as soon as possible."""

    def wanted_step(self) -> int:
        return 0


class Impatient(Coordinator):
    """Does not wait for a wanted step."""

    def __init__(self, world: int, **settings: Any) -> None:
        super().__init__(world, **settings)
        self._requests = WishForgotten()


class LeastPromise(Coordinator):
    """The verdict lies where the slowest rank is."""

    def _place_verdict(self, collecting: OpenRound) -> tuple[int, int]:
        return min(collecting.promises.values())


class FirstPromise(Coordinator):
    """Commits when the first promise is there."""

    def _has_all_promises(self, collecting: OpenRound) -> bool:
        return bool(collecting.promises)


class LeaversForgotten(Coordinator):
    """Those who have left do not count."""

    def _place_verdict(self, collecting: OpenRound) -> tuple[int, int]:
        return max(collecting.promises.values())


class NextRoundAtOnce(Coordinator):
    """Does not wait until all have obeyed."""

    def _close(self, committed: OpenRound) -> None:
        committed.pending = set()
        super()._close(committed)


class ForgetfulQueue(RequestQueue):
    """Does not know which requests were answered."""

    def answer(self, names: Iterable[str]) -> None:
        super().answer(names)
        self._answered.clear()


class Forgetful(Coordinator):
    """Answers each request as often as it hears it."""

    def __init__(self, world: int, **settings: Any) -> None:
        super().__init__(world, **settings)
        self._requests = ForgetfulQueue()


class Deaf(Coordinator):
    """Does not listen to what a rank that comes again has promised."""

    def _join(self, rank: int, message: Message, now: float) -> list[tuple[int, Message]]:
        return super()._join(rank, {**message, "state": FREE, "verdict": {}}, now)


class FreshStart(Coordinator):
    """A new coordinator sets everybody free without asking who has heard a verdict."""

    def _recover(self) -> list[tuple[int, Message]]:
        joins = self._earlier.joins
        said = [(rank, {"say": "abort", "round": join["round"]}) for rank, join in joins.items()]
        self.round = max(join["round"] for join in joins.values())
        joins.clear()
        return said


class NoSecondLook(Member):
    """Does not read the position again after the limits were written."""

    def keep(self, number: int) -> bool:
        looked, self._looked = self._looked, (1 << 60, 0)
        super().keep(number)
        self.promise = looked
        self.restore()
        return True


class VoidAtOnce(Coordinator):
    """Tells who resumes that the round is void before the others have heard it."""

    def _resume(self, rank: int, number: int, now: float) -> Any:
        said = super()._resume(rank, number, now)
        for other in range(self._ranks.world):
            self._revoked.acknowledge(other)
        return said + self.proceed(now)


class FirstReport(Coordinator):
    """Answers when the first report is there."""

    def proceed(self, now: float) -> list[tuple[int, Message]]:
        self._reports._world = 1
        return super().proceed(now)


class LeaversReport(Coordinator):
    """Waits for the reports of those who have left."""

    def proceed(self, now: float) -> list[tuple[int, Message]]:
        due = self._reports.due
        self._reports.due = lambda left: due({})  # type: ignore[method-assign]
        said = super().proceed(now)
        del self._reports.due
        return said


class ReportSaidOnce(Member):
    """Does not say again what it has reported."""

    def receive(self, message: Message) -> list[Message]:
        return [said for said in super().receive(message) if message["say"] != "welcome"]


class RestartsUnheard(Member):
    """Does not hear that a rank, or rank 0, was restarted."""

    def receive(self, message: Message) -> list[Message]:
        if message["say"] == "welcome":
            message = {**message, "incarnation": "rank 0", "restarts": 0}
        return super().receive(message)


class VerdictForgotten(Member):
    """Knows nothing of a verdict once it has obeyed it."""

    def join(self) -> list[Message]:
        joining, *rest = super().join()
        if joining["state"] in (FREE, "obeying"):
            joining = {**joining, "state": FREE, "verdict": {}}
        return [joining, *rest]


class OutcomeSaidOnce(Member):
    """Does not say again how the last save went."""

    def join(self) -> list[Message]:
        return super().join()[:1]


class DurableSaidOnce(Member):
    """Does not say again that what was in flight is durable."""

    def join(self) -> list[Message]:
        return [message for message in super().join() if message["say"] != "saved"]


class StagedIsSaved(Coordinator):
    """Takes a save that is in flight for one that is made."""

    def receive(self, rank: int, message: Message, now: float) -> list[tuple[int, Message]]:
        if message.get("outcome") == IN_FLIGHT:
            message = {**message, "outcome": SAVED}
        return super().receive(rank, message, now)


FAULTY: dict[str, Case] = {
    "the least promise": Case(ranks=2, steps=3, requests=ONE, coordinator=LeastPromise),
    "the first promise": Case(ranks=3, steps=2, requests=ONE, prompt=True, coordinator=FirstPromise),
    "leavers forgotten": Case(ranks=2, steps=3, requests=ONE, leaves=True, coupled=True, coordinator=LeaversForgotten),
    "the next round at once": Case(ranks=2, steps=3, requests=TWO, coordinator=NextRoundAtOnce),
    "answers forgotten": Case(ranks=2, steps=20, requests=ONE, breaks=1, coordinator=Forgetful),
    "promises not heard again": Case(ranks=2, steps=2, requests=ONE, breaks=1, coordinator=Deaf),
    "no recovery": Case(ranks=3, steps=20, requests=ONE, deaths=1, reborn=True, coordinator=FreshStart),
    "no second look": Case(ranks=2, steps=3, requests=ONE, fine=True, member=NoSecondLook),
    "the verdict forgotten": Case(ranks=3, steps=20, requests=ONE, deaths=1, reborn=True, member=VerdictForgotten),
    "void at once": Case(**RESUME, coordinator=VoidAtOnce),
    "the outcome said once": Case(ranks=2, steps=2, requests=TWO, breaks=1, member=OutcomeSaidOnce),
    "durable said once": Case(ranks=2, steps=2, requests=ONE, breaks=1, in_flight=True, member=DurableSaidOnce),
    "the first report": Case(ranks=2, **PHASES, coordinator=FirstReport),
    "leavers report": Case(ranks=2, **PHASES, leave_early=1, coordinator=LeaversReport),
    "the report said once": Case(ranks=2, **PHASES, breaks=1, member=ReportSaidOnce),
    "the restart of a rank unheard": Case(ranks=2, **PHASES, restarts=1, member=RestartsUnheard),
    "the restart of rank 0 unheard": Case(ranks=2, **PHASES, deaths=1, reborn=True, member=RestartsUnheard),
    "the wanted step forgotten": Case(ranks=2, steps=3, requests=AT, coordinator=Impatient),
    "staged is saved": Case(ranks=2, steps=2, requests=ONE, in_flight=True, coordinator=StagedIsSaved),
}


@pytest.mark.parametrize("title", FAULTY)
def test_the_search_finds_each_thought_that_is_left_out(title: str) -> None:
    with pytest.raises(Violation) as caught:
        wander(FAULTY[title], 4_000, seed=1)
    print(f"{title}: {caught.value}")
    assert caught.value.trace


SEARCHED = ["the least promise", "the first promise", "promises not heard again", "no second look", "void at once"]


@pytest.mark.parametrize("title", SEARCHED)
def test_the_exhaustive_search_takes_no_two_worlds_for_one_and_finds_it_as_well(title: str) -> None:
    with pytest.raises(Violation):
        explore(FAULTY[title], 60_000)
