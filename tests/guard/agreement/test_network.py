"""The agreement over TCP: ranks that meet late and again, leave, and go on from another step.

Its control thread outlives its own faults and its host's, holds no lock while others act, and leaves nothing open.
"""

from __future__ import annotations

import contextlib
import os
import select
import socket
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from resilience.errors import AgreementLost
from resilience.guard import CONTINUE, Decision
from resilience.guard.agreement import connection, network
from resilience.guard.agreement.address_file import Address
from resilience.guard.agreement.base import AgreementEvent, ExitSummary
from tests.guard.agreement.ranks import TOKEN, Meeting, meeting, meeting_over_a_cable, save, stop
from tests.lab.descriptors import count_descriptors
from tests.lab.waiting import until


@pytest.fixture
def ranks() -> Iterator[Meeting]:
    """Two ranks that have been started."""
    with meeting(2) as ranks:
        yield ranks


@pytest.mark.parametrize("world", [2, 4, 8])
def test_any_rank_requests_and_all_obey_at_the_same_step(world: int) -> None:
    with meeting(world) as ranks, ranks.training() as given:
        for number in range(world):
            ranks.ranks[number].request(save(f"rank {number} asks"))
            ranks.wait_for("outcome", number + 1)
        ranks.ranks[world - 1].request(stop("enough"))
        until(lambda: all(decisions and decisions[-1].stop for decisions in given))
    assert all(decisions == given[0] for decisions in given)
    assert len(given[0]) == world + 1
    assert [event.outcome for event in ranks.heard("outcome")] == ["saved"] * (world + 1)


def test_requests_of_all_ranks_at_once_are_all_heard() -> None:
    with meeting(4) as ranks, ranks.training() as given:
        for number, rank in enumerate(ranks.ranks):
            rank.request(save(f"rank {number} asks"))
        reasons = {f"rank {number} asks" for number in range(4)}
        until(lambda: {why for decision in given[3] for why in decision.reasons} == reasons)
        until(lambda: all(len(decisions) == len(given[0]) for decisions in given))
    assert all(decisions == given[0] for decisions in given)


def test_the_worst_outcome_of_all_ranks_is_heard(ranks: Meeting) -> None:
    ranks.ranks[1].request(save())
    for rank, outcome in ((0, "saved"), (1, "failed")):
        ranks.obey(rank)
        ranks.ranks[rank].finish(outcome, 1.0 + rank)
    heard = ranks.wait_for("outcome")
    assert (heard.outcome, heard.seconds) == ("failed", 2.0)


# ---- meeting late, and again ---------------------------------------------------------------------------------------


def test_ranks_wait_for_a_rank_0_that_starts_much_later() -> None:
    with meeting(3, start=False) as ranks:
        ranks.start(1, 2)
        ranks.ranks[2].request(save("asked before there was a rank 0"))
        assert ranks.ranks[1].wait_for_start(0.3) is None
        with ranks.training() as given:
            ranks.ranks[0].start()
            until(lambda: all(given))
        ranks.ranks[0].decide_start(CONTINUE)
        assert ranks.ranks[1].wait_for_start(10) == CONTINUE
    assert given[0] == given[1] == given[2]


@pytest.mark.parametrize("old", ["nobody listens there", "a silent stranger", "a chatty stranger", "another run"])
def test_an_old_address_is_passed_over_until_the_new_one_is_written(old: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(connection, "HANDSHAKE_S", 0.3)
    with socket.create_server(("127.0.0.1", 0)) as stranger, meeting(2, start=False) as ranks:
        port = stranger.getsockname()[1]
        other = Meeting(2)
        if old == "nobody listens there":
            stranger.close()
        elif old == "a chatty stranger":
            threading.Thread(target=_talk, args=(stranger,), daemon=True).start()
        elif old == "another run":
            other.start(0)
            until(lambda: other.address is not None)
            assert other.address is not None
            port = other.address.port
        ranks.address = Address("127.0.0.1", port, "the token of then")
        ranks.start(1)
        time.sleep(0.2)  # it tries the old one
        ranks.start(0)
        until(lambda: ranks.true_address is not None)
        ranks.address = ranks.true_address
        ranks.agree(save())
        for rank in other.ranks:
            rank.leave(1)


def _talk(stranger: socket.socket) -> None:
    with contextlib.suppress(OSError):
        while True:
            sock, _ = stranger.accept()
            with sock, contextlib.suppress(OSError):
                sock.sendall(b"SSH-2.0-OpenSSH_9.2\r\n")


def test_a_cable_that_is_cut_again_and_again_changes_no_decision() -> None:
    with meeting_over_a_cable(3) as (ranks, cable), ranks.training() as given:
        for number in range(12):
            ranks.ranks[number % 3].request(save(f"request {number}"))
            time.sleep(0.003 * (number % 4))  # in the promise, in the commit, in the outcome
            cable.cut()
            until(lambda number=number: any(f"request {number}" in one.reasons for one in given[0]))  # type: ignore[misc]
        until(lambda: len(given[0]) == len(given[1]) == len(given[2]))
    assert given[0] == given[1] == given[2]
    assert cable.connections > 2
    assert all(event.outcome == "saved" for event in ranks.heard("outcome"))


def test_a_rank_finds_rank_0_again_although_its_address_file_is_gone() -> None:
    with meeting_over_a_cable(2) as (ranks, cable):
        client = ranks.client(1)
        until(client.is_up)
        until(lambda: client._known is not None)
        ranks.address = None
        cable.cut()
        until(lambda: cable.connections == 2)
        ranks.agree(save())


def test_the_outcome_of_a_save_is_sent_although_the_connection_broke_meanwhile() -> None:
    with meeting_over_a_cable(2) as (ranks, cable):
        ranks.ranks[1].request(save())
        ranks.obey(1)
        cable.cut()
        ranks.ranks[1].finish("failed", 3.0)
        ranks.obey(0)
        ranks.ranks[0].finish("saved", 1.0)
        assert ranks.wait_for("outcome").outcome == "failed"


def test_a_rank_that_promised_and_hears_nothing_more_says_that_the_agreement_is_lost() -> None:
    with meeting(2, agreement_timeout_s=1.0) as ranks:
        ranks.ranks[0].request(save())
        ranks.wait_for("committed")
        member = ranks.ranks[1].member
        until(lambda: member.state == "committed")
        member.state = "promised"  # the commit never came
        begin = time.monotonic()
        with pytest.raises(AgreementLost, match=r"rank 1 waits at step 1 .* for 1 s") as lost:
            ranks.step(1)
        assert 0.9 < time.monotonic() - begin < 20
        assert lost.value.exit_code == 1, "a fault, not a stop on purpose"


# ---- the end -------------------------------------------------------------------------------------------------------


def test_a_rank_that_never_met_rank_0_leaves_at_once() -> None:
    with meeting(2, start=False) as ranks:
        ranks.start(1)
        ranks.ranks[1].request(save())
        begin = time.monotonic()
        ranks.ranks[1].leave(30)
        assert time.monotonic() - begin < 30


def act(target: Callable[..., object], *args: Any) -> threading.Thread:
    """Do something that waits, in a thread."""
    thread = threading.Thread(target=target, args=args)
    thread.start()
    return thread


def waits(thread: threading.Thread, wait_s: float = 0.3) -> bool:
    """Whether it still waits, after a while."""
    thread.join(wait_s)
    return thread.is_alive()


def test_rank_0_stays_until_all_have_sent_how_their_save_went(ranks: Meeting) -> None:
    ranks.ranks[0].request(stop())
    for rank in (0, 1):
        ranks.obey(rank)
    ranks.ranks[0].finish("saved", 0.1)

    def go() -> None:
        farewell.append(ranks.ranks[0].announce_exit("stopped", "", 20))
        ranks.ranks[0].leave(20)

    farewell: list[ExitSummary] = []
    gone = act(go)
    assert waits(gone, 0.5)
    number = ranks.ranks[1].finish("in_flight", 0.0)
    assert waits(gone), "it is not durable"
    ranks.ranks[1].saved(number, "saved", 0.6)
    ranks.wait_for("outcome")
    assert waits(gone), "rank 1 did not report its end"
    assert ranks.ranks[1].announce_exit("stopped", "", 20).well == 1
    assert not waits(gone, 10)
    assert ranks.heard("outcome")[0].outcome == "saved"
    assert (farewell[0].world, farewell[0].well, farewell[0].faults) == (2, 2, ())


def test_rank_0_does_not_stay_for_ever(ranks: Meeting) -> None:
    ranks.ranks[0].request(save())
    ranks.obey(0)
    begin = time.monotonic()
    ranks.ranks[0].announce_exit("done", "", 0.4)  # rank 1 hangs in its step
    ranks.ranks[0].leave(0.4)
    assert 0.4 <= time.monotonic() - begin < 30


def test_after_a_stop_no_rank_goes_before_rank_0_hangs_up(ranks: Meeting) -> None:
    ranks.ranks[0].request(stop())
    for rank in (0, 1):
        ranks.obey(rank)
    ranks.ranks[1].finish("saved", 0.1)
    gone = act(ranks.ranks[1].leave, 20)
    assert waits(gone, 0.4)
    ranks.ranks[0].finish("saved", 0.1)
    ranks.ranks[0].leave(10)
    assert not waits(gone, 5)


def test_rank_0_that_may_not_start_sends_that_to_all_others_before_it_goes() -> None:
    no = Decision(stop=True, reasons=["the kill switch is thrown"])
    with meeting(3, start=False) as ranks:
        ranks.start(0, 1)
        ranks.ranks[0].decide_start(no)
        gone = act(ranks.ranks[0].leave, 20)
        assert ranks.ranks[1].wait_for_start(10) == no
        assert waits(gone)
        ranks.start(2)
        assert ranks.ranks[2].wait_for_start(10) == no
        assert not waits(gone, 10)


# ---- going on from another step ------------------------------------------------------------------------------------


def resume(ranks: Meeting, rank: int, step: int) -> None:
    """What `guard.resumed` does."""
    ranks.gates[rank].count_from(step)
    ranks.ranks[rank].resumed()


def test_ranks_that_went_back_by_unequal_steps_stop_at_the_same_step(ranks: Meeting) -> None:
    for rank, count in ((0, 50), (1, 51)):  # rank 0 did not complete the step in which a third rank died
        ranks.gates[rank].count = count
        resume(ranks, rank, 40)
    ranks.agree(stop(), by=0)


def test_what_was_decided_before_the_ranks_formed_anew_is_obeyed_by_none_and_asked_anew() -> None:
    with meeting(3) as ranks:
        for gate in ranks.gates:
            gate.count = 10
        resume(ranks, 0, 8)  # the others come later: a verdict comes in between
        ranks.ranks[1].request(save("requested in between"))
        ranks.wait_for("committed")
        until(lambda: all(gate.limit < 100 for gate in ranks.gates))
        for rank in (1, 2):
            resume(ranks, rank, 8)
        assert ranks.heard("void")
        assert ranks.agree().reasons == ("requested in between",)


def test_to_resume_before_the_first_step_loses_no_request(ranks: Meeting) -> None:
    ranks.ranks[0].request(save("thrown before the checkpoint was loaded"))
    for rank in (0, 1):
        resume(ranks, rank, 1000)
    assert ranks.agree().step > 1000


# ---- rank 0 stands still -------------------------------------------------------------------------------------------


def test_time_without_a_word_from_rank_0_is_only_time() -> None:
    with meeting(2) as ranks, ranks.training() as given:
        until(lambda: ranks.client(1).is_up())
        with ranks.ranks[0].changed:  # rank 0's control thread stands still
            ranks.ranks[1].request(save())
            count = ranks.gates[1].count
            until(lambda: ranks.gates[1].count > count + 20)  # nobody waits
        until(lambda: given[0] and given[1])
    assert given[0] == given[1]


def test_the_token_never_travels() -> None:
    """What goes over the connection, both ways, in a whole decision."""
    seen = bytearray()
    decode = connection.Connection._decode

    def remember(connection: connection.Connection, data: bytes) -> Any:
        seen.extend(data)
        return decode(connection, data)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(connection.Connection, "_decode", remember)
        with meeting(2) as ranks:
            ranks.agree(save("a reason that travels"))
    assert b"a reason that travels" in seen
    assert TOKEN.encode() not in seen


def descriptors() -> set[str]:
    return {path.name for path in Path("/proc/self/fd").iterdir()}


def test_news_is_reported_with_no_lock_held() -> None:
    with meeting(2) as ranks, ranks.training():

        def request_again(event: AgreementEvent) -> None:
            if event.kind == "outcome" and len(ranks.heard("outcome")) < 3:
                ranks.ranks[0].request(save(f"after {len(ranks.news)}"))  # waits for the lock

        ranks.on_news = request_again
        ranks.ranks[1].request(save())
        ranks.wait_for("outcome", 3)


def raise_fault(*_: object) -> Any:
    raise RuntimeError("a fault")


def test_a_host_that_fails_when_it_hears_news_does_not_end_the_agreement(ranks: Meeting) -> None:
    ranks.on_news = raise_fault
    for number in range(2):
        ranks.agree(save(str(number)))
    assert ranks.heard("committed")


@pytest.mark.parametrize("fault", ["at any time", "at a request, which is sent again"])
def test_a_fault_in_the_control_thread_costs_a_pause_and_not_the_agreement(fault: str) -> None:
    with meeting(2) as ranks, ranks.training() as given:
        coordinator = ranks.leader._coordinator
        name = "proceed" if fault == "at any time" else "receive"
        method = getattr(coordinator, name)

        def fail_once(*args: Any) -> Any:
            if name == "receive" and args[1]["say"] != "request":
                return method(*args)
            setattr(coordinator, name, method)
            return raise_fault()

        until(lambda: ranks.client(1).is_up())
        setattr(coordinator, name, fail_once)
        ranks.ranks[1].request(save())
        until(lambda: given[0] and given[1])
    assert "a fault" in ranks.heard("fault")[0].text


def test_nothing_is_left_open() -> None:
    with meeting(2):  # what Python itself opens at the first time
        pass
    before = count_descriptors()
    threads = threading.active_count()
    for _ in range(3):
        with meeting(3) as ranks:
            ranks.agree(save())
    assert count_descriptors() <= before
    assert threading.active_count() == threads


def tcp_sockets() -> set[str]:
    """The TCP sockets that this process has open."""
    tcp = Path("/proc/self/net/tcp").read_text()
    found = []
    for name in descriptors():
        with contextlib.suppress(OSError):
            found.append(str(Path("/proc/self/fd", name).readlink()))
    return {name for name in found if name.startswith("socket:") and name[8:-1] in tcp}


@pytest.mark.filterwarnings("ignore:.*fork:DeprecationWarning")  # 3.12 warns of threads: they are the point here
def test_a_forked_child_closes_its_copies_and_the_parent_goes_on() -> None:
    others = tcp_sockets()  # a server of another test's, which lives as long as the tests do
    with meeting(2) as ranks, ranks.training() as given:
        until(lambda: ranks.client(1).is_up())
        child = os.fork()
        if child == 0:
            try:
                for rank in ranks.ranks:
                    rank.after_fork_in_child()
                os._exit(len(tcp_sockets() - others))
            finally:
                os._exit(99)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
        ranks.ranks[1].request(save("after the fork"))
        until(lambda: given[0] and given[1])
    assert given[0] == given[1]


def test_a_thread_that_cannot_be_started_costs_the_decisions_and_not_the_training(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    ranks = Meeting(2)
    with monkeypatch.context() as context:
        context.setattr(threading.Thread, "start", raise_fault)
        ranks.start(1)
    assert "did not start" in ranks.heard_by[1][0].text
    assert ranks.step(1) is None
    ranks.leave()


def test_a_control_thread_that_fails_again_and_again_gives_up_and_the_training_goes_on(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(network, "FAULT_PAUSE_S", 0.0)
    with meeting(2, start=False) as ranks:
        control = ranks.leader
        ranks.start(0)
        until(lambda: ranks.address is not None)  # it has joined itself
        with control.changed:
            control._coordinator.proceed = raise_fault  # type: ignore[method-assign, assignment]
        control._wake()
        until(lambda: not control._is_in_contact())
        assert [heard.kind for heard in ranks.news] == ["fault"] * (network.MOST_FAULTS - 1) + ["broken"]
        assert "no more decisions will be made" in ranks.news[-1].text and "a fault" in ranks.news[-1].text
        ranks.ranks[0].request(save())
        assert ranks.step(0) is None
        with control.changed:
            assert control._is_over(), "nobody waits for it"


def test_nothing_is_over_before_the_host_has_heard_how_it_went() -> None:
    hold, heard = threading.Event(), threading.Event()

    def hear(event: AgreementEvent) -> None:
        if event.kind == "outcome":
            heard.set()
            assert hold.wait(20)

    with meeting(2) as ranks, ranks.training():
        control = ranks.leader
        ranks.on_news = hear
        ranks.ranks[1].request(save())
        assert heard.wait(20)
        with control.changed:
            assert control._coordinator.is_over() and not control._is_over()
        hold.set()

        def is_over() -> bool:
            with control.changed:
                return control._is_over()

        until(is_over)


def test_a_thread_is_woken_however_often_and_no_thread_waits_for_that_or_fails_when_it_has_ended() -> None:
    ranks = Meeting(2)
    control = ranks.ranks[1]
    assert not select.select([control._reader], [], [], 0)[0]
    for _ in range(100_000):  # more than a socket holds
        control._wake()
    assert select.select([control._reader], [], [], 0)[0]
    control._woken(1)
    assert not select.select([control._reader], [], [], 0)[0]
    ranks.leave()
    control._wake()
