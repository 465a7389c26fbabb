"""Ranks of the agreement over TCP in one process: their trainings are threads, or move only when a test says so."""

from __future__ import annotations

import contextlib
import socket
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import Any

from resilience.guard import Decision, Request
from resilience.guard.agreement import frames
from resilience.guard.agreement.address_file import Address
from resilience.guard.agreement.base import Agreement, AgreementEvent
from resilience.guard.agreement.client import Client
from resilience.guard.agreement.network import FollowerAgreement, LeaderAgreement, NetworkAgreement
from resilience.guard.gate import Gate
from resilience.guard.settings import GuardSettings
from tests.lab.waiting import until

TOKEN = "the run's token"


class Meeting:
    """A few ranks and where they meet.

    Attributes:
        address: what `locate` tells; None as long as rank 0 does not listen.
        news: what rank 0's host heard, and (from `heard_by`) what each host did.
        on_news: what rank 0's host does when it hears news.
    """

    def __init__(self, world: int, **settings: Any) -> None:
        self.world = world
        self.settings = settings
        self.address: Address | None = None
        self.true_address: Address | None = None
        self.on_news: Callable[[AgreementEvent], object] = lambda event: None
        self.heard_by: list[list[AgreementEvent]] = [[] for _ in range(world)]
        self.gates = [Gate() for _ in range(world)]
        for gate in self.gates:
            gate.open()
        self.ranks = [self.make(rank) for rank in range(world)]

    @property
    def leader(self) -> LeaderAgreement:
        """Rank 0."""
        leader = self.ranks[0]
        assert isinstance(leader, LeaderAgreement)
        return leader

    def client(self, rank: int) -> Client:
        """The connection of another rank."""
        return client_of(self.ranks[rank])

    @property
    def news(self) -> list[AgreementEvent]:
        return self.heard_by[0]

    def make(self, rank: int) -> NetworkAgreement:
        """A rank; not started."""
        settings = GuardSettings(**{"agreement_timeout_s": 20.0, **self.settings})

        def on_event(event: AgreementEvent) -> None:
            self.heard_by[rank].append(event)
            if rank == 0:
                self.on_news(event)

        if rank == 0:
            return LeaderAgreement(self.gates[0], self.world, settings, on_event, listen=self.listen)
        return FollowerAgreement(self.gates[rank], rank, self.world, settings, on_event, locate=lambda: self.address)

    def listen(self) -> tuple[socket.socket, str]:
        """Rank 0 listens, and all know where."""
        listener = socket.create_server(("127.0.0.1", 0), backlog=1024)
        self.true_address = Address("127.0.0.1", listener.getsockname()[1], TOKEN)
        self.address = self.address or self.true_address
        return listener, TOKEN

    def knock(self) -> socket.socket:
        """A connection to rank 0 that sends nothing."""
        if self.true_address is None:
            raise ConnectionRefusedError("rank 0 does not listen yet")
        return socket.create_connection((self.true_address.host, self.true_address.port), timeout=10)

    def start(self, *ranks: int) -> None:
        """Start these ranks, or all."""
        for rank in ranks or range(self.world):
            self.ranks[rank].start()

    def step(self, rank: int) -> Decision | None:
        """One step of one rank, as `TrainingGuard.step` does it; None where there was nothing to ask."""
        gate = self.gates[rank]
        gate.count += 1
        return self.ranks[rank].on_step() if gate.count >= gate.limit else None

    def obey(self, rank: int) -> Decision:
        """Wait until this rank has heard the first verdict, and do the step at which it is obeyed."""
        self.wait_for("committed")
        until(lambda: self.gates[rank].limit < 100)
        decision = self.step(rank)
        assert decision
        return decision

    def agree(self, request: Request | None = None, by: int = 1) -> Decision:
        """Let the ranks train until all have obeyed a request of rank `by`, or one that was made before, at the same
        step. Return the one decision."""
        with self.training() as given:
            if request:
                self.ranks[by].request(request)
            until(lambda: all(given))
        assert given == [given[0][:1]] * self.world
        return given[0][0]

    def heard(self, kind: str) -> list[AgreementEvent]:
        """What rank 0's host heard of this kind."""
        return [heard for heard in self.news if heard.kind == kind]

    def wait_for(self, kind: str, count: int = 1) -> AgreementEvent:
        """Wait until rank 0's host has heard so many of this kind; return the last."""
        until(lambda: len(self.heard(kind)) >= count)
        return self.heard(kind)[-1]

    def leave(self, wait_s: float = 10.0) -> None:
        """All ranks leave, at once."""
        leave_together(self.ranks, wait_s)

    @contextmanager
    def training(self, step_s: float = 0.002, outcome: str = "saved") -> Iterator[list[list[Decision]]]:
        """Let all ranks train, in step as ranks with an all-reduce are; yields the decisions that each was given."""
        together = threading.Barrier(self.world)
        given: list[list[Decision]] = [[] for _ in range(self.world)]

        def train(rank: int) -> None:
            while True:
                time.sleep(step_s)
                try:
                    together.wait(30)
                except threading.BrokenBarrierError:
                    return
                decision = self.step(rank)
                if decision:
                    given[rank].append(decision)
                    self.ranks[rank].finish(outcome, 0.1)
                    if decision.stop:
                        return

        with in_threads(train, range(self.world)):
            try:
                yield given
            finally:
                together.abort()


@contextmanager
def in_threads(act: Callable[[Any], object], each: Iterable[Any]) -> Iterator[None]:
    """Do something for each in a thread of its own. At the end all must come to an end."""
    threads = [threading.Thread(target=act, args=(one,)) for one in each]
    for thread in threads:
        thread.start()
    try:
        yield
    finally:
        for thread in threads:
            thread.join(30)
            assert not thread.is_alive()


def leave_together(agreements: Iterable[Agreement], wait_s: float) -> None:
    with in_threads(lambda agreement: agreement.leave(wait_s), agreements):
        pass


def client_of(made: Agreement) -> Client:
    assert isinstance(made, FollowerAgreement)
    return made._client


@contextmanager
def meeting(world: int, start: bool = True, **settings: Any) -> Iterator[Meeting]:
    """Ranks that have been started, and leave at the end."""
    ranks = Meeting(world, **settings)
    if start:
        ranks.start()
    try:
        yield ranks
    finally:
        for rank in ranks.ranks:
            rank.member.stopped = None  # do not wait for a rank 0 that a test has ended
        ranks.leave(wait_s=1.0)


def save(why: str = "somebody asks") -> Request:
    """A request to save and go on."""
    return Request("test", why, stop=False)


def stop(why: str = "somebody asks") -> Request:
    """A request to save and stop."""
    return Request("test", why)


@contextmanager
def meeting_over_a_cable(world: int) -> Iterator[tuple[Meeting, Proxy]]:
    """Ranks that have been started, and find rank 0 at the near end of a cable."""
    ranks = Meeting(world)
    cable = Proxy(ranks)
    ranks.address = cable.address
    ranks.start()
    try:
        yield ranks, cable
    finally:
        ranks.leave()
        cable.close()


class Proxy:
    """A cable between the ranks and rank 0 that a test can cut, or stop."""

    def __init__(self, ranks: Meeting) -> None:
        self._ranks = ranks
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.address = Address("127.0.0.1", self._listener.getsockname()[1], TOKEN)
        self._ends: list[socket.socket] = []
        self.connections = 0
        self._threads = [threading.Thread(target=self._accept, daemon=True)]
        self._threads[0].start()

    def cut(self) -> None:
        """All connections break."""
        ends, self._ends = self._ends, []
        for end in ends:
            with contextlib.suppress(OSError):
                end.shutdown(socket.SHUT_RDWR)

    def close(self) -> None:
        with contextlib.suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)
        self._threads[0].join(10)
        self._listener.close()
        self.cut()
        for thread in self._threads:
            thread.join(10)

    def _accept(self) -> None:
        while True:
            try:
                near, _ = self._listener.accept()
            except OSError:
                return
            try:
                far = self._ranks.knock()
            except OSError:
                near.close()
                continue
            far.settimeout(None)
            self.connections += 1
            self._ends += [near, far]
            for one, other in ((near, far), (far, near)):
                self._threads.append(threading.Thread(target=_pump, args=(one, other), daemon=True))
                self._threads[-1].start()


def _pump(one: socket.socket, other: socket.socket) -> None:
    with contextlib.suppress(OSError):
        while data := one.recv(65536):
            other.sendall(data)
    for end in (one, other):
        with contextlib.suppress(OSError):
            end.shutdown(socket.SHUT_RDWR)
    one.close()


class Impostor:
    """A connection to rank 0 that knows the token and says whatever a test wants."""

    def __init__(self, ranks: Meeting, rank: object, token: str = TOKEN) -> None:
        self.socket = ranks.knock()
        self._decoder = frames.Decoder()
        greeting = self.hear()
        word = str(greeting["word"])
        proof = frames.proof(token, f"member {rank}", word, "mine")
        self.say({"word": "mine", "rank": rank, "proof": proof})

    def say(self, message: dict[str, Any]) -> None:
        self.socket.sendall(frames.encode(message))

    def hear(self) -> dict[str, Any]:
        """The next message. Raise ConnectionError when rank 0 has hung up."""
        while True:
            data = self.socket.recv(4096)
            if not data:
                raise ConnectionError
            for message in self._decoder.feed(data):
                return message


def is_hung_up(sock: socket.socket) -> bool:
    """Whether rank 0 ends the connection, soon."""
    try:
        while sock.recv(4096):
            pass
    except ConnectionError:
        return True
    except TimeoutError:
        return False
    return True
