"""Asks NCCL's RAS service which ranks of a job are behind, unresponsive or dead. `parse_ras` and `compare` are pure.

Each process with NCCL 2.24 or newer has a RAS thread; one per node listens, and knows the whole job. One look proves
nothing: NCCL launches faster than RAS collects, so counts that differ are normal while a training runs. Only what two
looks report alike is a signal, and never the only one: while a kernel hangs, all counts may be equal (NCCL issue 1730).

Protocol: lines of text, src/ras/client_support.cc of NCCL. JSON since 2.28.7 (rasDumpCommsToJSON); an older one answers
`SET FORMAT json` with an error and goes on with text, where only ranks of small groups have numbers.
"""

from __future__ import annotations

import json
import re
import socket
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

ADDRESS = "localhost:28028"
"""Where RAS listens unless NCCL_RAS_ADDR is set."""
LOOKS_S = 4.0
"""Between two looks: many steps of a training that runs."""
LEGS_S = 3
"""How long RAS waits for other processes of the job."""
MOST_BYTES = 64 * 2**20
"""Of a report: JSON takes 600 bytes per rank and communicator."""
_SAID = re.compile(
    r"^  (?:(?P<many>\d+) ranks have|Rank (?P<rank>\d+) has)"
    r" (?:launched up to operation (?P<launched>\d+)|not launched any operations)"
)
_DIFFERENT = re.compile(r"^  Communicator ranks have different (?:(?P<operation>\w+) operation counts|status)")
_COMMUNICATOR = re.compile(r"^#\d+-\d+ \((?P<name>[0-9a-f]+)\)")
_PROCESS = re.compile(r"^  Process (?P<pid>\d+) on node (?P<host>\S+)")
_MEMBER = re.compile(r"^  Rank (?P<rank>\d+)\b.* -- .*managed by process (?P<pid>\d+) on node (?P<host>\S+)")
_PLAIN_MEMBER = re.compile(r"^  Rank (?P<rank>\d+) -- .*managed by process (?P<pid>\d+) on node (?P<host>\S+)")


@dataclass(frozen=True, slots=True)
class Member:
    """A rank of a communicator.

    Attributes:
        rank: in the communicator, which may be a part of the training's ranks; -1 if unknown.
        host: an IP address.
    """

    rank: int
    host: str
    pid: int


@dataclass(frozen=True, slots=True)
class Count:
    """The ranks of a communicator that have launched the same number of operations of one kind.

    Attributes:
        operation: `AllReduce` for instance; `collective` before NCCL 2.26, which counts all kinds together.
        ranks: how many these are.
        members: who; in a text report only of the smaller groups.
    """

    operation: str
    launched: int
    ranks: int
    members: tuple[Member, ...] = ()


@dataclass(frozen=True, slots=True)
class Communicator:
    """A communicator whose ranks have different counts: those of each operation, the most ranks first."""

    name: str
    counts: tuple[Count, ...]


@dataclass(frozen=True, slots=True)
class RasReport:
    """What RAS knows at one time.

    Attributes:
        unresponsive: processes that did not answer RAS; it waits a minute until it considers them `dead`.
    """

    version: str = ""
    communicators: tuple[Communicator, ...] = ()
    unresponsive: tuple[Member, ...] = ()
    dead: tuple[Member, ...] = ()


@dataclass(frozen=True, slots=True)
class RasSignal:
    """What two looks report alike.

    Attributes:
        text: a sentence without the ranks, such as `launched 639 AllReduce, 31 others 640, unchanged for 4 s`.
        ranks: how many ranks it is about.
        members: those of them that RAS names.
    """

    text: str
    ranks: int
    members: tuple[Member, ...] = ()


def parse_ras(text: str) -> RasReport:
    """Given the answer to `VERBOSE STATUS`, as JSON or text, return it. Raise ValueError if it is neither. Pure."""
    begin = re.search(r"^\{", text, re.MULTILINE)
    try:
        if begin is not None:
            return _from_json(json.loads(text[begin.start() :]))
    except (KeyError, TypeError, AttributeError, RecursionError) as error:
        raise ValueError(f"not a RAS report: {error!r}") from error
    if "\nCommunicators..." not in text:
        raise ValueError("not a RAS report")
    return _from_text(text)


def _from_json(report: Mapping[str, Any]) -> RasReport:
    communicators, unresponsive, dead = [], dict[Member, None](), dict[Member, None]()
    for one in report["communicators"]:
        for missing in one["missing_ranks"]:
            status = missing["status"]
            if status["considered_dead"]:
                dead[_member(missing)] = None
            elif status["unresponsive"]:  # else it has left the communicator
                unresponsive[_member(missing)] = None
        by_count: dict[tuple[str, int], list[Member]] = {}
        for rank in one["ranks"]:
            for operation, launched in rank["collective_counts"].items():
                by_count.setdefault((operation, int(launched)), []).append(_member(rank))
        counts = [Count(*key, len(members), tuple(members)) for key, members in by_count.items()]
        differ = _differing(counts)
        if differ:
            communicators.append(Communicator(str(one["hash"]).removeprefix("0x"), differ))
    return RasReport(str(report.get("nccl_version", "")), tuple(communicators), tuple(unresponsive), tuple(dead))


def _member(table: Mapping[str, Any]) -> Member:
    return Member(int(table["rank"]), str(table["host"]), int(table["pid"]))


def _differing(counts: Sequence[Count]) -> tuple[Count, ...]:
    """Return the counts of operations that have more than one, the most ranks first."""
    kinds = [one.operation for one in counts]
    differ = [one for one in counts if kinds.count(one.operation) > 1]
    return tuple(sorted(differ, key=lambda one: (one.operation, -one.ranks, one.launched)))


def _from_text(text: str) -> RasReport:
    version = re.search(r"^NCCL version (\S+)", text, re.MULTILINE)
    found: dict[str, list[Count]] = {}
    missing: dict[str, dict[tuple[str, int], int]] = {"INCOMPLETE": {}, "DEAD": {}}
    name = section = operation = ""
    for line in text.splitlines():
        if line in missing:
            name, section, operation = "", line, ""
        elif head := _COMMUNICATOR.match(line):
            name, section, operation = head["name"], line.rpartition(" ")[2], ""
        elif kind := _DIFFERENT.match(line):
            operation = kind["operation"] or ""
        elif operation and (said := _SAID.match(line)):
            own = _MEMBER.match(line)
            members = (_found(own),) if own is not None else ()
            count = Count(operation, int(said["launched"] or 0), int(said["many"] or 1), members)
            found.setdefault(name, []).append(count)
        elif operation and found.get(name) and (own := _PLAIN_MEMBER.match(line)):
            last = found[name][-1]
            found[name][-1] = replace(last, members=(*last.members, _found(own)))
        elif section in missing and not name and (process := _PROCESS.match(line)):
            missing[section][process["host"], int(process["pid"])] = -1
        elif section == "INCOMPLETE" and name and (own := _PLAIN_MEMBER.match(line)):
            for processes in missing.values():
                if (own["host"], int(own["pid"])) in processes:
                    processes[own["host"], int(own["pid"])] = int(own["rank"])
    gone = {section: tuple(Member(rank, *who) for who, rank in who.items()) for section, who in missing.items()}
    communicators = tuple(Communicator(name, differ) for name, one in found.items() if (differ := _differing(one)))
    return RasReport(version[1] if version else "", communicators, gone["INCOMPLETE"], gone["DEAD"])


def _found(line: re.Match[str]) -> Member:
    return Member(int(line["rank"]), line["host"], int(line["pid"]))


def compare(first: RasReport, second: RasReport, seconds: float) -> tuple[RasSignal, ...]:
    """Given two looks, and the seconds between them, return what both report: counts that differ and have not changed,
    and processes that do not answer. Pure."""
    signals = []
    for why, before, after in (
        ("is considered dead by NCCL", first.dead, second.dead),
        ("does not answer NCCL's RAS", first.unresponsive, (*second.unresponsive, *second.dead)),
    ):
        both = {(one.host, one.pid) for one in after}
        if members := tuple(one for one in before if (one.host, one.pid) in both):
            signals.append(RasSignal(why, len(members), members))
    for one in second.communicators:
        if one not in first.communicators:
            continue
        for operation in dict.fromkeys(count.operation for count in one.counts):
            counts = [count for count in one.counts if count.operation == operation]
            most = max(count.launched for count in counts)
            behind = [count for count in counts if count.launched < most]
            ahead = sum(count.ranks for count in counts) - sum(count.ranks for count in behind)
            for count in behind:
                text = f"launched {count.launched} {operation}, {ahead} others {most}, unchanged for {seconds:.0f} s"
                signals.append(RasSignal(text, count.ranks, count.members))
    return tuple(signals)


def ask_ras(address: str, timeout_s: float) -> str:
    """Ask the RAS service at `host:port`, and return its answer. Raise OSError, ValueError for a bad address."""
    host, _, port = address.rpartition(":")
    until = time.monotonic() + timeout_s
    answer = bytearray()
    with socket.create_connection((host.strip("[]"), int(port)), timeout=timeout_s) as connection:
        connection.sendall(f"TIMEOUT {LEGS_S}\nSET FORMAT json\nVERBOSE STATUS\n".encode())
        while len(answer) < MOST_BYTES:
            connection.settimeout(max(0.01, until - time.monotonic()))
            if not (chunk := connection.recv(2**16)):
                return answer.decode("utf-8", "replace")
            answer += chunk
    raise OSError(f"RAS at {address} sends more than {MOST_BYTES >> 20} MiB")


def look_twice(address: str, timeout_s: float) -> tuple[tuple[RasSignal, ...], str]:
    """Ask twice, LOOKS_S apart; return the signals, and why there are none in words. Takes LOOKS_S and `timeout_s` at
    most."""
    until = time.monotonic() + LOOKS_S + timeout_s
    try:
        first = parse_ras(ask_ras(address, timeout_s))
        began = time.monotonic()
        if not (first.communicators or first.unresponsive or first.dead):
            return (), f"NCCL {first.version}: no rank is behind or missing (RAS at {address})"
        time.sleep(LOOKS_S)
        second = parse_ras(ask_ras(address, max(0.5, until - time.monotonic())))
    except ConnectionRefusedError:
        return (), f"no RAS service of NCCL listens at {address}"
    except (OSError, ValueError) as error:
        return (), f"the RAS service of NCCL at {address} gives no answer: {error}"
    signals = compare(first, second, time.monotonic() - began)
    return signals, "" if signals else f"NCCL {second.version}: counts differ but change (RAS at {address})"
