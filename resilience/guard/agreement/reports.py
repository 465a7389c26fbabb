"""Reports: each rank says that it has done its part of something, and every rank asks whether all have. Pure.

A save over ranks has several phases, and each ends when all ranks have reported it. A key is a phase and a name, such
as `written 400.1`: reports of the same name belong together. No rank waits in a report, and no round waits for one.

Two phases are those of the guard's watch for silent data corruption (guard/sdc), and come with every step or so: the
texts of `same-STEP` are compared, and the answer has the difference; those of `found-STEP` are what ranks have found
abnormal in that step, and the answer has the texts that are not empty, once all ranks have reported.
"""

from __future__ import annotations

from resilience.guard.agreement.messages import MOST_FAULTS, cut_report
from resilience.guard.sdc.replicas import compare

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping
    from typing import Any

    from resilience.guard.agreement.messages import Message

MOST_ANSWERS = 1000
"""How many answers are remembered: a rank may ask again after a broken connection."""
SAME, FOUND, OF_STEPS = "same-", "found-", " sdc"
"""How the keys of these phases begin and end."""
MOST_OPEN = 64
"""Of so many comparisons that wait for a rank the oldest is given up."""


class Report:
    """The answer to a key: every rank has reported, or one never will.

    Attributes:
        faults: a sentence for each rank that failed, such as `rank 3: No space left on device`; none: all is well.
        text: the text that rank 0 reported.
    """

    __slots__ = ("faults", "text")

    def __init__(self, faults: Iterable[str] = (), text: str = "") -> None:
        self.faults = tuple(faults)
        self.text = text


class SentReports:
    """The reports of one rank. Each is repeated on every connection until it is answered.

    The new process of a restarted rank knows nothing of what the former one has begun, and a new coordinator nothing of
    what was reported. So a restart of any rank, known by the WELCOME, makes everything fail that was begun before.
    """

    def __init__(self) -> None:
        self._begun: dict[str, str] = {}
        self._broken: dict[str, str] = {}
        self._open: dict[str, Message] = {}
        self._answers: dict[str, Message] = {}
        self._coordinator, self._restarts = "", 0
        self._is_welcome = False

    @property
    def is_waiting(self) -> bool:
        """Return whether a report is not answered yet."""
        return any(key not in self._answers for key in self._open)

    def begin(self, name: str) -> None:
        """Take part in `name`: from now on the restart of a rank is a fault of it."""
        _keep(self._begun, name, "")

    def add(self, key: str, fault: str, text: str) -> list[Message]:
        """Report under `key`; an empty `fault`: all is well. Return the messages to send now."""
        self.begin(_name(key))
        message = cut_report(key, fault or self._broken.get(_name(key), ""), text)
        if message["key"] in self._answers:
            return []  # another rank has failed
        self._open[message["key"]] = message
        return [message] if self._is_welcome else []

    def answer(self, key: str) -> Report | None:
        """Return the answer to a key, or None."""
        found = self._answers.get(key)
        return None if found is None else Report(found["faults"], found["text"])

    def receive(self, message: Message) -> None:
        """Take an answer. The first one counts."""
        self._open.pop(message["key"], None)
        _keep(self._answers, message["key"], message)

    def disconnected(self) -> None:
        """Send nothing before the coordinator has said who it is."""
        self._is_welcome = False

    def welcomed(self, coordinator: str, restarts: int) -> list[Message]:
        """Return the messages to send to this coordinator, known by a random word, which has seen so many restarts."""
        before = self._coordinator
        if before not in ("", coordinator):
            for key in self._answers:  # a new process of rank 0 must not wait for this rank
                self._open.setdefault(key, cut_report(key, "", ""))
            self._break_off("rank 0 was restarted")
        elif before and restarts != self._restarts:
            self._break_off("another rank was restarted")
        self._coordinator, self._restarts = coordinator, restarts
        self._is_welcome = True
        return list(self._open.values())

    def give_up(self, why: str) -> None:
        """Answer every open report with a fault: rank 0 is gone. If it returns, it is told."""
        if self.is_waiting:
            self._break_off(why)
            for key in self._open:
                _keep(self._answers, key, answer(key, [why]))

    def _break_off(self, why: str) -> None:
        """Let everything that was begun fail: open reports, and later phases."""
        for name in self._begun:
            _keep(self._broken, name, why)
        for key, message in self._open.items():
            self._open[key] = message if message["fault"] else {**message, "fault": why}


class ReportRegistry:
    """Rank 0's table of the reports of all ranks.

    Args:
        world: number of ranks.
    """

    def __init__(self, world: int) -> None:
        self._world = world
        self._open: dict[str, dict[int, Message]] = {}
        self._answers: dict[str, Message] = {}
        self._failed: set[str] = set()

    def add(self, rank: int, message: Message) -> list[tuple[int, Message]]:
        """Take a report, which may be a repetition. Return the answer to this rank if there is one already."""
        key = message["key"]
        if key in self._answers:
            return [(rank, self._answers[key])]
        self._open.setdefault(key, {})[rank] = message
        if message["fault"]:
            self._failed.add(key)
        waiting = [one for one in self._open if one.startswith(SAME)]
        if len(waiting) > MOST_OPEN:
            self._failed.add(waiting[0])
        return []

    def due(self, left: Mapping[int, str]) -> list[Message]:
        """Return the answers that all ranks are to get: every rank has reported, or one has failed, or left without its
        report. `left`: the ranks that have left, and the fault of each."""
        found = []
        for key, reports in list(self._open.items()):
            gone = [rank for rank in left if rank not in reports]
            if len(reports) < self._world and not gone and key not in self._failed:
                continue
            faults = [f"rank {rank}: {reports[rank]['fault']}" for rank in sorted(reports) if reports[rank]["fault"]]
            faults += [f"rank {rank}: left" + (f" with {left[rank]}" if left[rank] else "") for rank in gone]
            text = reports[0]["text"] if 0 in reports else ""
            if key.endswith(OF_STEPS):
                texts = {rank: reports[rank]["text"] for rank in sorted(reports)}
                is_whole = len(reports) == self._world and not faults
                difference = compare(texts) if is_whole and key.startswith(SAME) else None
                text = "" if difference is None else difference.text()
                if not is_whole:
                    faults = faults or ["not every rank has reported"]
                elif key.startswith(FOUND):
                    faults = [f"rank {rank}: {found}" for rank, found in texts.items() if found]
            found.append(answer(key, faults, text))
            del self._open[key]
            self._failed.discard(key)
            _keep(self._answers, key, found[-1])
        return found


def answer(key: str, faults: list[str], text: str = "") -> Message:
    """Return the message that answers all reports of a key."""
    cut = [cut_report(key, fault, "")["fault"] for fault in faults[:MOST_FAULTS]]
    return {"say": "reported", "key": key, "faults": cut, "text": text}


def _name(key: str) -> str:
    return key.partition(" ")[2] or key


def _keep(table: dict[str, Any], key: str, value: Any) -> None:
    """Add to a table of bounded size, unless the key is there already."""
    table.setdefault(key, value)
    while len(table) > MOST_ANSWERS:  # those of steps first: a save may be in flight for thousands of them
        del table[next((one for one in table if one.endswith(OF_STEPS)), next(iter(table)))]
