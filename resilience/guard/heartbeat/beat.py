"""The shared memory that each step stores its progress into, readable from another process.

One anonymous file in memory (memfd_create(2)) per rank. It has no name, so nothing is left behind when the training is
killed, and its pages are freed with the last process that maps it. Sealed against shrinking, so that no process that
maps it can get a SIGBUS.

Layout, native byte order: word 0 steps, word 1 polls ever made, both stored by the training; words 2 to 6 stored by the
guard's thread about once a second: when (ms since the epoch), how often, how often inside a collective, collectives
entered, whether it is inside one; bytes 64 to 127 the phase, UTF-8, padded with NUL.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import mmap
import os

from resilience.guard.heartbeat.windows import Windows

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from typing import Any

SIZE = 4096
WORDS = 7
_PHASE = slice(64, 128)
_LONGEST_PHASE = 63


class SharedProgress:
    """The shared memory of one rank.

    Attributes:
        words: unsigned 64 bit words that the training thread stores into; also usable after `close`.
        descriptor: of the memory, to be passed to another process; -1 if there is none.
    """

    def __init__(self) -> None:
        try:
            self.descriptor = os.memfd_create("resil-beat", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
        except (OSError, AttributeError):
            self.descriptor = -1
            self._map = mmap.mmap(-1, SIZE)
        else:
            os.ftruncate(self.descriptor, SIZE)
            with contextlib.suppress(OSError, AttributeError):
                fcntl.fcntl(self.descriptor, fcntl.F_ADD_SEALS, fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW)
            self._map = mmap.mmap(self.descriptor, SIZE)
        self.words: Any = memoryview(self._map).cast("Q")

    def set_phase(self, phase: str) -> None:
        """Store the phase of the training: `train`, `eval`, `save`, `start` or a custom one."""
        raw = phase.encode("utf-8", "replace")[:_LONGEST_PHASE].decode("utf-8", "ignore").encode()
        self._map[_PHASE] = raw.ljust(64, b"\0")

    def note_look(self, collectives: tuple[int, bool] | None, now: float) -> None:
        """Store a look of the guard's thread at the collectives of the rank; `now` in seconds since the epoch."""
        words = self.words
        if collectives is not None:
            words[4] += collectives[1]
            words[5], words[6] = collectives
            words[3] += 1
        words[2] = int(1000 * now)

    def read(self) -> tuple[int, int, str]:
        """Return (steps, polls, phase)."""
        return self.words[0], self.words[1], read_phase(self._map)

    def close(self) -> None:
        """Close the descriptor. The memory stays mapped."""
        descriptor, self.descriptor = self.descriptor, -1
        if descriptor >= 0:
            os.close(descriptor)

    def after_fork_in_child(self) -> None:
        """In a forked child: use private memory from now on, not the parent's."""
        self.close()
        self._map = mmap.mmap(-1, SIZE)
        self.words = memoryview(self._map).cast("Q")


def read_phase(memory: mmap.mmap) -> str:
    """Return the phase in a mapped slot. A read during a write may mix two phases; the next read corrects that."""
    return bytes(memory[_PHASE]).rstrip(b"\0").decode("utf-8", "replace")


class Progress:
    """The last known progress of one rank, and the time of its last change by this node's clock.

    Attributes:
        steps: steps done at the last sample.
        phase: phase at the last sample.
        advanced: when a step, a poll or a change of phase was last seen, in seconds since the epoch. Only the sampling
            process reads a clock, never the step itself.
        stepped: when the first step was seen; None before.
    """

    def __init__(self, now: float) -> None:
        self.steps = 0
        self.phase = ""
        self.advanced = now
        self.stepped: float | None = None
        self._sample: tuple[int, int, str] | None = None

    def update(self, sample: tuple[int, int, str], now: float) -> None:
        """Store a sample of the slot at time `now`."""
        if sample != self._sample:
            if self._sample is not None and sample[0] != self.steps and self.stepped is None:
                self.stepped = now
            self._sample, self.advanced = sample, now
            self.steps, _, self.phase = sample

    def is_news(self, now: float, early_s: float) -> bool:
        """Return whether the sample at `now` is new, within `early_s` of the first step.

        Such news is written at once, so that a training that has just started does not look like one that hangs.
        """
        return self.stepped is not None and self.advanced == now and 0 <= now - self.stepped < early_s


class Signs:
    """What a rank does besides steps, as its node sees it.

    Attributes:
        looked: when the guard's thread of the rank last ran, in seconds since the epoch: not while a library holds the
            GIL, nor while the process is stopped. 0 if it does not look.
        looks: how often it has looked at the rank's collectives.
        inside: how often of these the rank was in one.
        entered: collectives that the rank has entered.
        is_inside: whether it was in one at the last look.
        state: of the process, as in proc_pid_stat(5); empty if unknown.
        wchan: the function of the kernel that it waits in; empty if it does not, or the kernel does not tell.
        cpu_s: CPU seconds of it and its children, such as workers that load data, without the guard's threads; of a
            rank that makes steps it is not read.
        io_bytes: bytes that they have read and written.
    """

    __slots__ = ("cpu_s", "entered", "inside", "io_bytes", "is_inside", "looked", "looks", "state", "wchan")

    def __init__(self) -> None:
        self.looked = self.cpu_s = 0.0
        self.looks = self.inside = self.entered = self.io_bytes = 0
        self.is_inside = False
        self.state = self.wchan = ""

    def update(self, words: Sequence[int]) -> None:
        """Store words 2 to 6 of the slot."""
        self.looked, (self.looks, self.inside, self.entered) = words[0] / 1000, words[1:4]
        self.is_inside = words[4] == 1


RUNNING, LEFT, GONE = "", "left", "gone"


class RankBeat:
    """One rank, as the heartbeat writer sees it.

    Attributes:
        pid: of its process, in its own pid namespace.
        progress: its last known progress.
        end: RUNNING; LEFT if its guard was closed; GONE if its process ended without closing.
        signs: what it does besides.
        windows: how much it waits for other ranks.
    """

    __slots__ = ("end", "pid", "progress", "signs", "windows")

    def __init__(self, pid: int, progress: Progress, end: str = RUNNING) -> None:
        self.pid = pid
        self.progress = progress
        self.end = end
        self.signs = Signs()
        self.windows = Windows()


def compose(attempt: int, host: str, ranks: Mapping[int, RankBeat], now: float) -> str:
    """Given the ranks of a node, return the text of its beats file. `step` is that of the slowest rank."""
    slowest = min((beat.progress.steps for beat in ranks.values()), default=0)
    lines = [f"attempt = {attempt}", f"host = {quote(host)}", f"time = {now:.3f}", f"step = {slowest}"]
    for rank, beat in sorted(ranks.items()):
        progress = beat.progress
        lines += [
            f"[rank.{rank}]",
            f"pid = {beat.pid}",
            f"step = {progress.steps}",
            f"advanced = {progress.advanced:.3f}",
            f"phase = {quote(progress.phase)}",
        ]
        if beat.end:
            lines.append(f"{beat.end} = true")
        else:
            lines += _compose_signs(beat.signs)
            lines += _compose_windows(beat.windows)
    return "\n".join(lines) + "\n"


def _compose_signs(signs: Signs) -> list[str]:
    lines = []
    if signs.state:
        lines += [f"state = {quote(signs.state)}", f"cpu_s = {signs.cpu_s:.2f}", f"io_bytes = {signs.io_bytes}"]
    if signs.wchan:
        lines.append(f"wchan = {quote(signs.wchan)}")
    if signs.looked:
        lines.append(f"looked = {signs.looked:.3f}")
    if signs.looks:
        lines += [f"looks = {signs.looks}", f"inside = {signs.inside}", f"entered = {signs.entered}"]
        lines.append(f"is_inside = {'true' if signs.is_inside else 'false'}")
    return lines


def _compose_windows(windows: Windows) -> list[str]:
    tables = (("windows", windows.kept), ("pauses", windows.pauses))
    rows = ((name, [", ".join([*map(str, row[:-1]), f"{row[-1]:.2f}"]) for row in table]) for name, table in tables)
    return [f"{name} = [[{'], ['.join(cells)}]]" for name, cells in rows if cells]


def file_name(job_id: str, host: str) -> str:
    """Return the name of a node's beats file."""
    return f"{job_id}.{host.replace('/', '_')}"


def quote(text: str) -> str:
    r"""Return a TOML basic string: JSON's, but no pairs of surrogates, and DEL written as \u007f (TOML 1.0, String)."""
    clean = text.encode("utf-8", "replace").decode()
    return json.dumps(clean, ensure_ascii=False).replace("\x7f", "\\u007f")
