"""The pair test: nodes exchange data in two rounds, so that a bad node and its partner are told apart. Pure, except for
the exchange over TCP; where no training runs, it is an all-reduce of the training's torch (torch_task.py).

DLRover's node check (dlrover/python/master/elastic_training/rdzv_manager.py): neighbours first, then the fastest with
the slowest; a node keeps its shorter time, is bad if it failed in both rounds, and a straggler at more than twice the
median.
"""

from __future__ import annotations

import socket
import time
from collections.abc import Iterable, Mapping, Sequence
from statistics import median

from resilience.messages import plural
from resilience.nodes.checks import Fault, Outcome

SLOW = 2.0
NOISE_S = 1e-4
"""What an exchange may take longer in any case."""

EXCHANGES = 20
CHUNK = bytes(32 * 2**10)
"""Smaller than the buffers of a socket, so that all may send before any receives."""

EXCHANGE_S = 3.0
"""How long a round may take."""

Times = Mapping[str, "float | None"]


def pair_up(hosts: Sequence[str]) -> list[tuple[str, ...]]:
    """Return neighbours as pairs, three where one would be alone; none for a single node. Pure."""
    pairs = [tuple(hosts[index : index + 2]) for index in range(0, len(hosts), 2)]
    if pairs and len(pairs[-1]) == 1:
        pairs[-2:] = [sum(pairs[-2:], ())] if len(pairs) > 1 else []
    return pairs


def pair_again(times: Times) -> list[tuple[str, ...]]:
    """Return the pairs of the second round: the fastest with the slowest, or with one that failed. Pure."""
    order = sorted(times, key=lambda host: (times[host] is None, times[host] or 0.0, host))
    folded = [host for pair in zip(order, reversed(order), strict=True) for host in pair]
    return pair_up(list(dict.fromkeys(folded)))


def judge_pairs(rounds: Sequence[Times], how: str = "an exchange") -> dict[str, Fault]:
    """Return the nodes that failed in every round, or are slow in every round. Pure.

    `how`: what they did in pairs, for the text.
    """
    hosts = list(dict.fromkeys(host for times in rounds for host in times))
    best = {host: min((t for times in rounds if (t := times.get(host)) is not None), default=None) for host in hosts}
    known = [t for t in best.values() if t is not None]
    found = {}
    for host, t in best.items():
        if t is None:
            why = f"{how} with another node never worked in {plural(len(rounds), 'round')}"
            outcome = Outcome.FAIL if len(rounds) > 1 else Outcome.WARN  # it may be its only partner
            found[host] = Fault(outcome, why, "is the network of the node up, and no port blocked?")
        elif len(known) > 2 and t > max(SLOW * median(known), median(known) + NOISE_S):
            why = f"{how} with other nodes takes {1000 * t:.3g} ms, {1000 * median(known):.3g} ms is normal"
            found[host] = Fault(Outcome.WARN, why)
    return found


def ring(pairs: Iterable[Sequence[str]]) -> dict[str, str]:
    """Return to whom each node sends: within a group, to the next one. Pure."""
    return {host: pair[(index + 1) % len(pair)] for pair in pairs for index, host in enumerate(pair)}


def exchange(listener: socket.socket, to: tuple[str, int], token: bytes, timeout_s: float = EXCHANGE_S) -> float:
    """Send to one node, and receive from the one that knows the token. Return the duration in seconds: the
    shortest of several, because the others are what else happened on the node.

    Raise OSError if a connection cannot be made, breaks or takes longer than `timeout_s`.
    """
    end = time.monotonic() + timeout_s

    def read(connection: socket.socket, size: int) -> bytes:
        found = b""
        while len(found) < size:
            connection.settimeout(max(0.01, end - time.monotonic()))
            if not (chunk := connection.recv(size - len(found))):
                raise ConnectionError("the other node closed the connection")
            found += chunk
        return found

    with socket.create_connection(to, timeout=timeout_s) as there:
        there.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        there.sendall(token)
        while True:
            listener.settimeout(max(0.01, end - time.monotonic()))
            here, _ = listener.accept()
            with here:
                if read(here, len(token)) != token:
                    continue  # of another round, or a stranger
                times = []
                for _ in range(EXCHANGES):
                    began = time.perf_counter()
                    there.sendall(CHUNK)
                    read(here, len(CHUNK))
                    times.append(time.perf_counter() - began)
                return min(times)
