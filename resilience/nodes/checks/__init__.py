"""Checks of a node before a training starts: each file exports one as CHECK. Probes run on the node, judgements where
the command was typed."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from enum import Enum
from typing import Any, NamedTuple


class Outcome(Enum):
    """What a check says of a node, least severe first. WARN is told; no training should start on a node that FAILs."""

    PASS = "PASS"
    WARN = "WARN"
    FAIL = "FAIL"


class Fault(NamedTuple):
    """Something wrong with a node.

    Attributes:
        why: one sentence with figures.
        advice: what to try, or empty.
    """

    outcome: Outcome
    why: str
    advice: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Expected:
    """What a node should have. Plain values: it travels to the nodes as JSON.

    Attributes:
        directory: a directory that all nodes share; the clock of its file server is compared with that of the node.
        mounts: directories that must be there and writable.
        is_idle: whether no training runs there: the processors and GPUs may be used.
    """

    directory: str
    mounts: tuple[str, ...] = ()
    is_idle: bool = False


Reading = Mapping[str, Any]
"""What a probe found out: plain data. Numbers are figures for rules, texts can be compared with other nodes."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Check:
    """One check: a file in checks/, or in `node_checks/` of a plugin directory, that exports it as CHECK.

    Attributes:
        probe: returns the reading of this node; None: there is nothing of the kind here. The only I/O; runs in a child
            process with a deadline. An exception is told: the node could not be asked.
        judge: returns what is wrong by a reading alone, beside the rules. Pure.
        deadline_s: how long a probe may take; one that takes longer is a fault of the node.
        rules: for a figure, the rule (nodes/fleet.py) that makes the node FAIL: `"< 64MiB"`, or `"> 100%"` above what
            other nodes had; `*`: for all others.
        equal: for a text, the outcome for a node that differs from the others; `*`: for all others.
    """

    probe: Callable[[Expected, Mapping[str, str]], Reading | None]
    judge: Callable[[Reading, Expected], Iterable[Fault]] = lambda reading, expected: ()
    deadline_s: float = 5.0
    rules: Mapping[str, str] = field(default_factory=dict)
    equal: Mapping[str, Outcome] = field(default_factory=dict)
