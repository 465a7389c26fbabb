"""Asks the checks on this node, or on every node of a job: one task per node, started by srun, that exchanges lines of
JSON with the command. Judgement is in fleet.py.

`python -m resilience.nodes.check ORDER` is such a task.
"""

from __future__ import annotations

import json
import os
import secrets
import socket
import sys
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, replace
from functools import partial
from statistics import median
from typing import Any, NamedTuple

from resilience.errors import ProbeError
from resilience.nodes.checks import Check, Expected
from resilience.nodes.fleet import LEAST_VALUES, NO_ANSWER, NodeReading
from resilience.nodes.pairs import EXCHANGE_S, Times, exchange, pair_again, pair_up, ring
from resilience.nodes.torch_child import PRODUCTS_S, READY_S, TorchChild, idle_torch
from resilience.plugins import Family
from resilience.system.answers import answer_lines, parse_answers
from resilience.system.child import run_in_child
from resilience.system.process import Conversation

START_S = 6.0
"""How long srun may take to start the tasks beside a training."""

ANSWER_S = 1.0

END_S = 29.0
"""The check is over by then: rounds of the pair test have what is left."""


EXCHANGE, ALL_REDUCE = "an exchange", "an all-reduce"


class Asked(NamedTuple):
    """What the nodes answered.

    Attributes:
        nodes: of every host; one without an answer has the error NO_ANSWER.
        rounds: the times of the pair test.
        how: what the pairs did: `an all-reduce`, or `an exchange` of data over TCP.
    """

    nodes: tuple[NodeReading, ...]
    rounds: tuple[Times, ...] = ()
    how: str = EXCHANGE


def load_checks(names: Sequence[str] | None = None) -> dict[str, Check]:
    """Return the checks by name; all without names. Raise UsageError for one that cannot be loaded."""
    family = Family("node_checks", "CHECK")
    return {name: family.load(name) for name in (family.names() if names is None else names)}


def own_host(environ: Mapping[str, str]) -> str:
    """Return the name of this node in the scheduler, or its host name."""
    return environ.get("SLURMD_NODENAME") or os.uname().nodename


def ask_here(checks: Mapping[str, Check], expected: Expected, environ: Mapping[str, str]) -> NodeReading:
    """Probe this node, all checks at the same time, each in a child with its deadline."""
    readings: dict[str, Any] = {}
    errors, hung = {}, []
    works = {name: (partial(check.probe, expected, environ), check.deadline_s) for name, check in checks.items()}
    for name, answer in run_in_child(works):
        if answer.error is None:
            readings[name] = answer.value
        else:
            errors[name] = answer.error.message
            if answer.is_overdue:
                hung.append(name)
    return NodeReading(host=own_host(environ), kind=_kind(), readings=readings, errors=errors, hung=tuple(hung))


def with_products(reading: NodeReading, torch: TorchChild | None, timeout_s: float = READY_S) -> NodeReading:
    """Return the reading with times of products of matrices, if torch is imported in time, and `compute` is checked."""
    if torch is None:
        return reading
    torch.wait_ready(max(0.1, timeout_s))
    if not torch.device or (figures := reading.readings.get("compute")) is None:
        return reading
    return replace(reading, readings={**reading.readings, "compute": {**figures, **torch.products(PRODUCTS_S)}})


def _kind() -> str:
    """Return the processor and the number of its cores."""
    model = ""
    with suppress(OSError), open("/proc/cpuinfo", encoding="utf-8") as file:
        model = next((line.partition(":")[2].strip() for line in file if line.startswith("model name")), "")
    return f"{os.cpu_count()} x {model}"


# ---- the command ----------------------------------------------------------------------------------------------------


def ask_nodes(command: Sequence[str], hosts: Sequence[str], checks: Mapping[str, Check], expected: Expected) -> Asked:
    """Start a task per node with `command`, and return what they answer in time. Raise ProbeError if none does."""
    order = json.dumps({"checks": list(checks), "expected": asdict(expected)})
    probe_s = max(check.deadline_s for check in checks.values()) + ANSWER_S
    end = time.monotonic() + END_S
    with Conversation([*command, sys.executable, "-m", "resilience.nodes.check", order], timeout_s=START_S) as tasks:
        answers = _collect(tasks, "probed", len(hosts), START_S + probe_s)
        if not answers:
            raise ProbeError(f"no node answered: {tasks.errors[-300:] or 'srun said nothing'}",
                             hint="does `srun --overlap hostname` work in the job?", transient=True)  # fmt: skip
        found = {host: answers[host] for host in hosts if host in answers}
        how, rounds = EXCHANGE, list[Times]()
        devices = {answer["torch"]["device"] for answer in found.values()}
        if len(devices) == 1 and devices != {""}:
            how, rounds = ALL_REDUCE, _exchange_in_pairs(tasks, found, end, by_torch=True)
        if all(seconds is None for times in rounds for seconds in times.values()):  # no torch, or no network for it
            how, rounds = EXCHANGE, _exchange_in_pairs(tasks, found, end, by_torch=False)
    readings = {host: _with_clock(host, answers) for host in found}
    silent = "no answer: the task did not start there or ended"
    none = {host: NodeReading(host=host, errors={NO_ANSWER: silent}) for host in hosts}
    return Asked(tuple((none | readings).values()), tuple(rounds), how)


def _exchange_in_pairs(
    tasks: Conversation, found: Mapping[str, Mapping[str, Any]], end: float, *, by_torch: bool
) -> list[Times]:
    """Return the times of two rounds, fewer if the time is over."""
    rounds = list[Times]()
    while len(rounds) < 2 and (pairs := pair_up([*found]) if not rounds else pair_again(rounds[0])):
        if (left_s := min(EXCHANGE_S, end - time.monotonic() - ANSWER_S)) < 1.0:
            break
        to = {host: found[other]["address"] for host, other in ring(pairs).items()}
        groups = {
            host: {
                "rank": rank,
                "ranks": len(pair),
                "store": [found[pair[0]]["address"][0], found[pair[0]]["torch"]["port"]],
            }
            for pair in pairs
            for rank, host in enumerate(pair)
        }
        token = secrets.token_hex(8)
        tasks.say(json.dumps({"token": token, "timeout_s": left_s} | ({"groups": groups} if by_torch else {"to": to})))
        said = _collect(tasks, token, len(found), left_s + ANSWER_S)
        rounds.append({host: said.get(host, {}).get("seconds") for host in found})
    return rounds


def _collect(tasks: Conversation, key: str, count: int, timeout_s: float) -> dict[str, dict[str, Any]]:
    """Return a message with this key from each of `count` nodes, or fewer; `arrived` is added."""
    found: dict[str, dict[str, Any]] = {}
    for message in parse_answers(tasks.hear(timeout_s)):
        with suppress(KeyError, TypeError):
            if key in message:
                found[message["host"]] = {**message, "arrived": time.time()}
        if len(found) == count:
            break
    return found


def _with_clock(host: str, answers: Mapping[str, Mapping[str, Any]]) -> NodeReading:
    """Return the reading of a node, with its clock compared with the others'; of two nodes with that of the command."""
    reading = NodeReading(**answers[host]["probed"])
    clock = reading.readings.get("clock")
    if clock is None:
        return reading
    ahead = {name: answer["sent"] - answer["arrived"] for name, answer in answers.items()}
    other_s = ahead[host] - (median(ahead.values()) if len(ahead) >= LEAST_VALUES else 0.0)
    clock = {**clock, "ahead_s": max(0.0, other_s), "behind_s": max(0.0, -other_s)}
    return replace(reading, readings={**reading.readings, "clock": clock})


# ---- the task -------------------------------------------------------------------------------------------------------


def main(order: str) -> int:
    """Answer with the reading of this node, then exchange data with other nodes as told, until the command ends."""
    asked = json.loads(order)
    given = asked["expected"]
    expected = Expected(**{**given, "mounts": tuple(given["mounts"])})
    environ = dict(os.environ)
    host, end = own_host(environ), time.monotonic() + READY_S
    found = ask_here(load_checks(asked["checks"]), expected, environ)
    # Torch begins after the probes: beside them, on the few processors of a step, they could exceed their deadlines.
    with socket.create_server(("", 0)) as listener, idle_torch(expected, environ) as torch:
        reading = asdict(with_products(found, torch, end - time.monotonic()))
        has = {"device": torch.device, "port": torch.port} if torch is not None else {"device": "", "port": 0}
        address = (_address(host), listener.getsockname()[1])
        _say({"host": host, "probed": reading, "torch": has, "address": address, "sent": time.time()})
        for line in sys.stdin:
            turn = json.loads(line)
            token, timeout_s = turn["token"], turn["timeout_s"]
            seconds, why = None, "no partner"
            try:
                if torch is not None and host in turn.get("groups", ()):
                    seconds, why = torch.all_reduce(**turn["groups"][host], token=token, timeout_s=timeout_s), ""
                elif host in turn.get("to", ()):
                    seconds, why = exchange(listener, tuple(turn["to"][host]), token.encode(), timeout_s), ""
            except (OSError, ProbeError) as error:
                why = str(error)
            _say({"host": host, "seconds": seconds, token: why})
    return 0


def _address(host: str) -> str:
    """Return an address of this node for other nodes: as the guard's coordinator."""
    from resilience.guard.agreement.rendezvous import listening_host

    return listening_host("", local=False, names=[host])


def _say(message: Mapping[str, Any]) -> None:
    sys.stdout.write(answer_lines(message))
    sys.stdout.flush()


if __name__ == "__main__":
    sys.exit(main(sys.argv[1]))
