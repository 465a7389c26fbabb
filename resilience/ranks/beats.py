"""Reads the heartbeats of the ranks of a run: `beats/<jobid>.<node>`. Format: docs/reference/run-directory.md."""

from __future__ import annotations

import math
import os
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, NamedTuple

from resilience import layout
from resilience.errors import StateDirectoryError
from resilience.runs.run_directory import RunDirectory
from resilience.switch import printable
from resilience.system.files import explain_os_error, read_regular

LARGEST_BYTES = 4 * 2**20
"""Of a heartbeat file: a node has at most 1,024 ranks."""


class Window(NamedTuple):
    """A stretch of steps of one rank.

    Attributes:
        end: steps done at its end.
        length: in steps.
        steps: without pauses, as is all that follows.
        looks: how often the guard has looked.
        inside: how often the rank was inside a collective then.
        seconds: by the node's clock.
    """

    end: int
    length: int
    steps: int
    looks: int
    inside: int
    seconds: float


@dataclass(frozen=True, slots=True)
class RankBeat:
    """One rank in the heartbeat of its node.

    Attributes:
        pid: of its process, in its own pid namespace.
        advanced: when a step, a poll or a change of phase was last seen, in seconds since the epoch.
        has_left: whether its guard was closed.
        is_gone: whether its process has ended unexpectedly.
        state: of the process, as in proc_pid_stat(5); empty if unknown.
        wchan: the function of the kernel that it waits in; empty if unknown.
        cpu_s: CPU seconds of it and its children, without the guard's threads, when it last stood still.
        io_bytes: bytes that they have read and written.
        looked: when the guard's thread last ran, in seconds since the epoch; 0 if unknown.
        looks: how often it has looked at the rank's collectives, and `inside` how often the rank was in one.
        entered: collectives that the rank has entered; 0 if unknown.
        is_inside: whether it was in one at the last look.
        windows: its last windows, oldest first.
        pauses: the last stretches in which it did not only train: steps done at the begin, at the end, and seconds.
    """

    rank: int
    pid: int
    step: int
    advanced: float
    phase: str
    has_left: bool = False
    is_gone: bool = False
    state: str = ""
    wchan: str = ""
    cpu_s: float = 0.0
    io_bytes: int = 0
    looked: float = 0.0
    looks: int = 0
    inside: int = 0
    entered: int = 0
    is_inside: bool = False
    windows: tuple[Window, ...] = ()
    pauses: tuple[tuple[int, int, float], ...] = ()


@dataclass(frozen=True, slots=True)
class NodeBeat:
    """The heartbeat of a node.

    Attributes:
        time: when it was written, in seconds since the epoch by the node's clock.
        written: the same by the file server's clock.
        ranks: by number.
    """

    job_id: str
    host: str
    attempt: int
    time: float
    written: float
    ranks: tuple[RankBeat, ...]


def read_beats(directory: RunDirectory, *, job_id: str = "") -> tuple[NodeBeat, ...]:
    """Return the heartbeats of a run, of one job or of all. Damaged files are skipped.

    Raise StateDirectoryError if the directory cannot be read.
    """
    path = directory.path / layout.BEATS
    try:
        names = sorted(name for name in os.listdir(path) if not name.startswith("."))  # noqa: PTH208
    except FileNotFoundError:
        return ()
    except OSError as error:
        raise explain_os_error(error, "read", path) from error
    import tomllib  # imported late: 4 ms

    beats = []
    for name in names:
        job, _, host = name.partition(".")
        if job_id and job != job_id:
            continue
        with suppress(StateDirectoryError, ValueError, TypeError, OverflowError, RecursionError):
            if host and (found := read_regular(path / name, limit_bytes=LARGEST_BYTES)) is not None:
                beat = tomllib.loads(found[0].decode("utf-8", "replace"))
                beats.append(parse_beat(job, host, beat, found[1].st_mtime))
    return tuple(beats)


def parse_beat(job_id: str, host: str, beat: Mapping[str, Any], written: float) -> NodeBeat:
    """Given the content of a heartbeat, return it. Raise ValueError or TypeError if it is damaged. Pure."""
    ranks = beat.get("rank", {})
    if not isinstance(ranks, dict):
        raise TypeError("rank")
    found = sorted((int(rank), table) for rank, table in ranks.items() if isinstance(table, dict))
    return NodeBeat(
        job_id=job_id,
        host=printable(str(beat.get("host", host))),
        attempt=int(beat.get("attempt", 0)),
        time=_seconds(beat.get("time", 0.0)),
        written=written,
        ranks=tuple(_rank(rank, table) for rank, table in found),
    )


def _rank(rank: int, table: Mapping[str, Any]) -> RankBeat:
    return RankBeat(
        rank=rank,
        pid=int(table.get("pid", 0)),
        step=int(table.get("step", 0)),
        advanced=_seconds(table.get("advanced", 0.0)),
        phase=printable(str(table.get("phase", ""))),
        has_left=table.get("left") is True,
        is_gone=table.get("gone") is True,
        state=printable(str(table.get("state", ""))),
        wchan=printable(str(table.get("wchan", ""))),
        cpu_s=_seconds(table.get("cpu_s", 0.0)),
        io_bytes=int(table.get("io_bytes", 0)),
        looked=_seconds(table.get("looked", 0.0)),
        looks=int(table.get("looks", 0)),
        inside=int(table.get("inside", 0)),
        entered=int(table.get("entered", 0)),
        is_inside=table.get("is_inside") is True,
        windows=tuple(_window(one) for one in table.get("windows", ())),
        pauses=tuple((int(begin), int(end), _seconds(took_s)) for begin, end, took_s in table.get("pauses", ())),
    )


def _window(cells: Sequence[Any]) -> Window:
    end, length, steps, looks, inside = map(int, cells[:5])
    if len(cells) != 6 or min(length, steps, looks) < 1 or not 0 <= inside <= looks:
        raise ValueError("windows")
    return Window(end, length, steps, looks, inside, _seconds(cells[5]))


def _seconds(value: Any) -> float:
    seconds = float(value)
    return seconds if math.isfinite(seconds) else 0.0
