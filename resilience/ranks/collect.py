"""Asks the ranks of a running attempt for their stacks, and waits for the answers within a bound.

The heartbeat writer of each node answers at its next heartbeat, also for ranks that are blocked or hold the GIL. Then
the nodes of the odd ranks are asked by a task beside the training (`srun --overlap`): py-spy reads the stacks that did
not come, NCCL's RAS tells who is behind, and the kernel's log why.
"""

from __future__ import annotations

import os
import re
from collections.abc import Collection, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from resilience import layout
from resilience.base.processes import state_of
from resilience.errors import NoSuchJob, ProbeError
from resilience.guard.heartbeat.process import refresh_directory
from resilience.guard.heartbeat.run_directory import SILENT
from resilience.messages import plural
from resilience.quantities import format_duration
from resilience.ranks.beats import NodeBeat, RankBeat, read_beats
from resilience.ranks.dumps import find_dumps, read_dumps
from resilience.ranks.grouping import Groups, group
from resilience.ranks.node import NODE_S, NodeLook, look, parse_looks, task_command
from resilience.ranks.ras import RasSignal
from resilience.ranks.stacks import Stacks, parse_stacks
from resilience.runs.run_files import read_attempts
from resilience.runs.run_jobs import scheduler_of, srun_command
from resilience.runs.submissions import read_intents
from resilience.system.files import open_without_waiting, write_atomic

if TYPE_CHECKING:
    from resilience.runs.project import Project
    from resilience.runs.run_directory import RunDirectory

RECENT_S = 300.0
"""A heartbeat older than this, without an attempt that runs, is that of a job that has ended."""
ANSWER_S = 5.0
"""From a heartbeat until the stacks are in the run directory: a second for the ranks, the rest for the file system."""
BEAT_S = 10.0
"""The interval of heartbeats, if the run has no setting."""
STILL_S = 3.0
"""A rank without a step for so long, by its guard's thread as well, stands still: that looks once a second."""
POLL_S = 0.2
REFRESH_S = 2.0
SRUN_S = 8.0
"""How long srun may take to start tasks beside a training, and to end."""
MOST_NODES = 16
"""Nodes that are asked by a task."""
RAS_NODES = 2
"""Of them, those whose RAS is asked: each knows the whole job, but listens in a process that may hang itself."""
MOST_BYTES = 4 * 2**20
SHOWN = 4
"""Ranks named of those that NCCL reports."""
_HEAD = re.compile(r"^(\d{9,12}) (\S+) pid (\d+): .*\n", re.MULTILINE)
_NOT_RUNNING = ("T", "t", "D")
_STATES = {
    "T": "its process is stopped (state T)",
    "t": "a debugger has stopped its process (state t)",
    "D": "its process waits in the kernel, for a disk, a file server or a driver (state D)",
    "Z": "its process has ended (state Z)",
    "X": "its process has ended",
    "?": "its process has just ended",
    "R": "its process runs (state R), but its guard does not answer",
    "S": "its process sleeps (state S), but its guard does not answer",
}


@dataclass(frozen=True, slots=True)
class RankStacks:
    """One rank, and its stacks.

    Attributes:
        text: the stacks, as faulthandler or py-spy wrote them; empty without an answer.
        source: `guard` or `py-spy`; empty without an answer.
        state: of its process, as in proc_pid_stat(5); empty if it answered, or is unknown.
        why: why it did not answer; empty if it did.
    """

    rank: int
    host: str
    pid: int
    step: int
    phase: str
    text: str = ""
    source: str = ""
    state: str = ""
    why: str = ""


@dataclass(frozen=True, slots=True)
class Evidence:
    """The ranks of one job at one time, grouped by their stacks.

    Attributes:
        time: when they were asked, in seconds since the epoch.
        notes: what could not be done, as sentences.
        nccl: what NCCL's RAS reports about ranks that are behind or missing, and what devices do, as sentences.
        kernel: host, and lines of its kernel's log that may explain a hang.
        dumps: lines about the dumps of torch's flight recorder, and what torchfrtrace says.
    """

    run: str
    job_id: str
    attempt: int
    time: float
    ranks: tuple[RankStacks, ...]
    groups: Groups
    notes: tuple[str, ...] = ()
    nccl: tuple[str, ...] = ()
    kernel: tuple[tuple[str, tuple[str, ...]], ...] = ()
    dumps: tuple[str, ...] = ()

    def host_of(self, rank: int) -> str:
        """Return the host of a rank."""
        return next((one.host for one in self.ranks if one.rank == rank), "")


def collect(project: Project, directory: RunDirectory) -> tuple[Evidence, ...]:
    """Ask all ranks of the run's running jobs for their stacks; return them by job. Wait two heartbeats at most.

    Raise NoSuchJob if no guard of the run sends heartbeats, StateDirectoryError if the request cannot be written.
    """
    clock = project.system.clock
    beats = running_beats(directory, clock.now())
    jobs = dict.fromkeys(beat.job_id for beat in beats)
    answers = {(beat.job_id, one.rank): _Answer(directory, beat, one) for beat in beats for one in beat.ranks}
    asked = clock.now()
    for job in jobs:
        path = directory.path / layout.SWITCHES / f"{layout.STACKS_PREFIX}{job}"
        write_atomic(path, "", mode=directory.file_mode, durable=False)
    waiting = [one for one in answers.values() if not one.beat.is_gone]
    until, refresh = clock.monotonic() + _beat_s(directory) + ANSWER_S, 0.0
    while waiting := [one for one in waiting if not one.read()]:
        now = clock.monotonic()
        if now >= until:
            break
        if now >= refresh:  # another node creates the files
            refresh = now + REFRESH_S
            refresh_directory(str(waiting[0].path))
        clock.sleep(POLL_S)
    nodes = {job: [beat for beat in beats if beat.job_id == job] for job in jobs}
    newest = read_beats(directory)
    return tuple(_evidence(project, directory, nodes[job], answers, asked, still_inside(newest, job)) for job in jobs)


def still_inside(nodes: Sequence[NodeBeat], job: str) -> frozenset[int]:
    """Return the ranks of a job that stand still inside a collective, as guards saw after the last step. Pure."""
    return frozenset(
        one.rank
        for node in nodes
        for one in node.ranks
        if node.job_id == job and one.is_inside and node.time - one.advanced > STILL_S < one.looked - one.advanced
    )


def running_beats(directory: RunDirectory, now: float) -> list[NodeBeat]:
    """Return the heartbeats of the attempts that run: no end is recorded, and not all of its guards were closed.

    Raise NoSuchJob if there are none.
    """
    ends = {attempt.number: attempt.end for attempt in read_attempts(directory)}
    beats = [
        replace(beat, ranks=tuple(one for one in beat.ranks if not one.has_left))
        for beat in read_beats(directory)
        if (ends[beat.attempt] is None if beat.attempt in ends else now - beat.written < RECENT_S)
    ]
    beats = [beat for beat in beats if beat.ranks]
    if not beats:
        raise NoSuchJob(
            f"no training of run {directory.run} sends heartbeats: none is running, or it has no guard",
            hint=f"see: resil status {directory.run}; of any Python process: py-spy dump --pid PID",
        )
    return beats


class _Answer:
    """The file with the stacks of one rank, read from where it ended before the request."""

    def __init__(self, directory: RunDirectory, node: NodeBeat, beat: RankBeat) -> None:
        self.beat = beat
        self.text = ""
        self.path = directory.path / layout.JOURNAL / f"{node.job_id}.{beat.rank}.stacks"
        self._begin = 0
        with suppress(OSError):
            self._begin = self.path.stat().st_size

    def read(self) -> bool:
        """Read the answer; return whether it is there."""
        text = self._content(self._begin).decode("utf-8", "replace")
        heads = list(_HEAD.finditer(text))
        if heads and text.endswith("\n\n") and text[heads[-1].end() :].strip():
            self.text = text[heads[-1].end() :].rstrip() + "\n"
        return bool(self.text)

    def _content(self, begin: int) -> bytes:
        with suppress(OSError), open(self.path, "rb", opener=open_without_waiting) as file:
            size = os.fstat(file.fileno()).st_size
            file.seek(max(begin, size - MOST_BYTES))
            return file.read(MOST_BYTES)
        return b""


def _beat_s(directory: RunDirectory) -> float:
    guard = directory.settings().get("guard")
    found = guard.get("beat_s") if isinstance(guard, dict) else None
    return float(found) if isinstance(found, int | float) and 0 < found <= 600 else BEAT_S


def _evidence(
    project: Project,
    directory: RunDirectory,
    beats: Sequence[NodeBeat],
    answers: dict[tuple[str, int], _Answer],
    asked: float,
    inside: Collection[int],
) -> Evidence:
    """Return the evidence of one job."""
    job = beats[0].job_id
    here = {beat.host for beat in beats if beat.host.partition(".")[0] == project.system.host.name.partition(".")[0]}
    ranks = [
        _read_rank(beat, one, answers[job, one.rank].text, asked, is_here=beat.host in here)
        for beat in beats
        for one in beat.ranks
    ]
    ranks.sort(key=lambda one: one.rank)
    groups, gone = _group(ranks, inside), {one.rank for beat in beats for one in beat.ranks if one.is_gone}
    odd = {one.host for one in groups.odd} or {one.host for one in ranks}
    orders = _orders(ranks, groups, gone)
    looks, notes = _look(project, directory, job, orders, here)
    by_host = {one.host: one for one in looks}
    for number, rank in enumerate(ranks):
        if (found := by_host.get(rank.host)) is not None and rank.pid in (*found.stacks, *found.unread):
            ranks[number], note = _by_py_spy(rank, found)
            notes.append(note)
    signals = next((one.signals for one in looks if one.signals), ())
    notes += [] if signals else [one.ras for one in looks if one.ras][:1]
    return Evidence(
        directory.run, job, beats[0].attempt, asked, tuple(ranks), _group(ranks, inside),
        tuple(dict.fromkeys(note for note in notes if note)),
        tuple(f"NCCL: {_names(signal, ranks)}: {signal.text}" for signal in signals)
        + tuple(f"{one.host}: {said}" for one in looks for said in one.devices),
        tuple((one.host, one.kernel) for one in looks if one.kernel and one.host in odd),
        read_dumps(project.system, find_dumps(directory, job)),
    )  # fmt: skip


def _group(ranks: Sequence[RankStacks], inside: Collection[int]) -> Groups:
    stacks: dict[int, Stacks] = {one.rank: parse_stacks(one.text) for one in ranks if one.text}
    silent = {one.rank: one.why for one in ranks if one.why}
    return group(stacks, silent, {one.rank: one.host for one in ranks}, inside)


def _orders(ranks: Sequence[RankStacks], groups: Groups, gone: Collection[int]) -> dict[str, dict[str, Any]]:
    """Return what each node is asked, by host: those of odd ranks, and some whose ranks all answer, for NCCL. Pure."""
    odd = [one.host for one in groups.odd]
    hosts = list(dict.fromkeys([*odd, *(one.host for one in ranks)]))
    well = [host for host in hosts if not any(one.host == host and one.why for one in ranks)]
    asked = dict.fromkeys((*well[:RAS_NODES], *(host for host in hosts if host in odd)))
    ras = [*well, *hosts][:RAS_NODES]
    return {
        host: {
            "pids": [one.pid for one in ranks if one.host == host],
            "silent": [
                one.pid for one in ranks if one.host == host and one.why and not one.text and one.rank not in gone
            ],
            "ras": host in ras,
        }
        for host in list(asked)[:MOST_NODES]
    }


def _look(
    project: Project, directory: RunDirectory, job: str, orders: Mapping[str, dict[str, Any]], here: Collection[str]
) -> tuple[list[NodeLook], list[str]]:
    """Look at these nodes, and return what they answered, and what failed."""
    looks = [look(host, project.system.environ, **order) for host, order in orders.items() if host in here]
    far = {host: order for host, order in orders.items() if host not in here}
    if not far or scheduler_of(read_intents(directory)) != "slurm":
        return looks, []
    lines: list[str] = []
    try:
        for line in project.system.runner.stream(
            [*srun_command(job, list(far)), *task_command(far)], timeout_s=SRUN_S + NODE_S
        ):
            lines.append(line)  # also those before an error
    except ProbeError as error:
        why = [f"not all nodes of job {job} could be looked at: {error.message}"]
    else:
        why = []
    found = list(parse_looks(lines))
    return looks + found, why if len(found) < len(far) else []


def _names(signal: RasSignal, ranks: Sequence[RankStacks]) -> str:
    """Return the ranks of a signal as the training numbers them, found by their process. Pure."""
    if not signal.members:
        return plural(signal.ranks, "rank")
    names = []
    for member in signal.members[:SHOWN]:
        own = [one for one in ranks if one.pid == member.pid]
        number = f"rank {member.rank} of a communicator" if member.rank >= 0 else "a rank"
        found = f"rank {own[0].rank} on {own[0].host}" if len(own) == 1 else ""
        names.append(found or f"{number} (process {member.pid} on {member.host})")
    more = signal.ranks - len(names)
    return ", ".join(names) + (f" and {more} more" if more > 0 else "")


def _read_rank(beat: NodeBeat, one: RankBeat, text: str, asked: float, *, is_here: bool) -> RankStacks:
    """Return a rank with its stacks, or with why it has none: the state of its process, if a process on its node read
    it."""
    found = RankStacks(one.rank, beat.host, one.pid, one.step, one.phase)
    if text and not text.startswith(SILENT):
        return replace(found, text=text, source="guard")
    if one.is_gone:
        return replace(found, why="its process has ended unexpectedly")
    state, function = state_of(one.pid) if is_here else ("", "")
    if text:
        first, _, outside = text.removeprefix(SILENT).partition("\n")
        state, _, function = first.strip().partition(" in ")
        if parse_stacks(outside).threads:
            found = replace(found, text=outside, source="py-spy")
    if state:
        in_kernel = f", in {function}" if function and state == "D" else ""
        why = _STATES.get(state, f"its process is in state {state}") + in_kernel
        return replace(found, state=state, why=why if not found.text or state in _NOT_RUNNING else "")
    age = max(0.0, asked - beat.written)
    return replace(found, why=f"no answer from {beat.host}, whose last heartbeat was {format_duration(age)} before")


def _by_py_spy(rank: RankStacks, found: NodeLook) -> tuple[RankStacks, str]:
    """Return a rank with the stacks that py-spy read, or why it could not."""
    if rank.pid not in found.stacks:
        why = found.unread[rank.pid]
        if not why:
            return rank, f"with py-spy installed on {rank.host}, the stacks of rank {rank.rank} are read from outside"
        return rank, f"py-spy could not read rank {rank.rank}: {why}"
    why = rank.why if rank.state in _NOT_RUNNING else ""
    return replace(rank, text=found.stacks[rank.pid], source="py-spy", why=why), ""
