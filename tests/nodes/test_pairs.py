"""The pair test tells a bad node from its partner."""

from __future__ import annotations

import socket
import threading

import pytest

from resilience.nodes.checks import Outcome
from resilience.nodes.pairs import exchange, judge_pairs, pair_again, pair_up, ring


@pytest.mark.parametrize(
    ("hosts", "pairs"),
    [
        ("", []),
        ("a", []),
        ("ab", ["ab"]),
        ("abc", ["abc"]),
        ("abcd", ["ab", "cd"]),
        ("abcde", ["ab", "cde"]),
    ],
)
def test_everybody_has_a_partner(hosts: str, pairs: list[str]) -> None:
    assert ["".join(pair) for pair in pair_up(list(hosts))] == pairs


def test_the_second_round_pairs_the_fastest_with_the_slowest() -> None:
    times = {"a": 0.4, "b": 0.1, "c": None, "d": 0.2}
    assert pair_again(times) == [("b", "c"), ("d", "a")]
    assert pair_again({"a": 1.0, "b": 1.0, "c": 1.0}) == [("a", "c", "b")]


def test_only_the_node_that_failed_twice_is_bad() -> None:
    faults = judge_pairs([{"a": None, "b": None, "c": 0.1, "d": 0.1}, {"a": 0.1, "b": None, "c": None, "d": 0.1}])
    assert list(faults) == ["b"] and faults["b"].outcome is Outcome.FAIL


def test_after_a_single_round_nobody_knows_which_partner_is_bad() -> None:
    faults = judge_pairs([{"a": None, "b": None, "c": 0.1, "d": 0.1}], "an all-reduce")
    assert {host: fault.outcome for host, fault in faults.items()} == {"a": Outcome.WARN, "b": Outcome.WARN}
    assert faults["a"].why == "an all-reduce with another node never worked in 1 round"


def test_only_the_node_that_is_slow_twice_is_slow() -> None:
    first = {"a": 0.5, "b": 0.5, "c": 0.1, "d": 0.1}
    faults = judge_pairs([first, {"a": 0.1, "b": 0.5, "c": 0.5, "d": 0.1}])
    assert list(faults) == ["b"] and faults["b"].outcome is Outcome.WARN
    assert faults["b"].why == "an exchange with other nodes takes 500 ms, 100 ms is normal"
    assert judge_pairs([{"a": 0.5, "b": 0.1}]) == {}  # two nodes share a slow link


def test_data_go_around_and_strangers_are_ignored() -> None:
    with socket.create_server(("127.0.0.1", 0)) as one, socket.create_server(("127.0.0.1", 0)) as other:
        assert ring([("a", "b")]) == {"a": "b", "b": "a"}
        with socket.create_connection(other.getsockname()) as stranger:
            stranger.sendall(b"x" * 16)
            times: list[float] = []
            thread = threading.Thread(target=lambda: times.append(exchange(other, one.getsockname(), b"t" * 16)))
            thread.start()
            times.append(exchange(one, other.getsockname(), b"t" * 16))
            thread.join()
        assert len(times) == 2 and all(0 < t < 2 for t in times)
        with pytest.raises(OSError):
            exchange(one, other.getsockname(), b"t" * 16, timeout_s=0.1)
