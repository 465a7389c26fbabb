"""The evidence of a hang: collected once, before anything acts, and kept in the run directory.

`hangs/<attempt>-<step>.html` and `.txt`: a hang is told from the next one by the step at which it stands still.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

from resilience import layout
from resilience.messages import cut
from resilience.ranks.beats import NodeBeat
from resilience.ranks.collect import collect, running_beats
from resilience.ranks.page import render_html, render_text
from resilience.runs.run_files import read_attempts
from resilience.system.files import make_directory, read_regular, write_atomic

if TYPE_CHECKING:
    from resilience.runs.project import Project
    from resilience.runs.run_directory import RunDirectory

EVIDENCE_S = 75.0
"""For everything: a heartbeat and ANSWER_S for the ranks, SRUN_S and NODE_S for the nodes, READ_S for the dumps."""
COOL_DOWN_S = 1800.0
"""From the evidence of one hang of a run to that of the next one."""
MESSAGE_LINES, MESSAGE_WIDTH = 14, 240
MOST_BYTES = 2**20


@dataclass(frozen=True, slots=True)
class Hang:
    """A hang whose evidence is in the run directory.

    Attributes:
        attempt: its number.
        job: the id of its job, `1233_4` of an array's task: the internal id of its last task is that of the array.
        step: of the slowest rank.
        page: the HTML page; the text is beside it.
        lines: of the text.
        pids: of its ranks, by host.
    """

    run: str
    attempt: int
    job: str
    step: int
    page: Path
    lines: tuple[str, ...]
    pids: tuple[tuple[str, int], ...] = ()

    @property
    def message(self) -> list[str]:
        """Return what fits into a message: the page, and the first lines of the text."""
        lines = [cut(line, MESSAGE_WIDTH) for line in self.lines if line.strip()][:MESSAGE_LINES]
        return [f"evidence: {self.page}", *lines] if self.page.exists() else lines


def record_hang(project: Project, directory: RunDirectory, why: str) -> Hang | None:
    """Return the hang of a run's newest attempt, with its evidence; collect that unless it is there.

    `why`: how it was found. None during the cool-down after another hang. Raise NoSuchJob if no guard of the run sends
    heartbeats, StateDirectoryError if the evidence cannot be written.
    """
    beats = running_beats(directory, project.system.clock.now())
    newest = max(beat.attempt for beat in beats)
    hang = _hang(directory, [beat for beat in beats if beat.attempt == newest])
    text = hang.page.with_suffix(".txt")
    known = read_regular(text, limit_bytes=MOST_BYTES)
    # Without a page, whoever collects it is at work, or was killed.
    if known and (hang.page.exists() or is_recent([text], project.system.clock.now())):
        lines = tuple(known[0].decode("utf-8", "replace").splitlines())
    elif is_recent(hang.page.parent.glob("*.txt"), project.system.clock.now()):
        return None
    else:
        make_directory(text.parent, mode=directory.directory_mode)
        write_atomic(text, f"{why}\n", mode=directory.file_mode, durable=False)  # others need not collect it too
        found = collect(project, directory)
        lines = (why, "", *(line for one in found for line in (*render_text(one), "")))
        write_atomic(hang.page, render_html(found, why), mode=directory.file_mode, durable=False)
        write_atomic(text, "\n".join(lines) + "\n", mode=directory.file_mode, durable=False)
    return replace(hang, lines=lines)


def _hang(directory: RunDirectory, beats: Sequence[NodeBeat]) -> Hang:
    step = min(one.step for beat in beats for one in beat.ranks)
    page = directory.path / layout.HANGS / f"{layout.attempt_file(beats[0].attempt)}-{step}.html"
    pids = tuple((beat.host, one.pid) for beat in beats for one in beat.ranks if not one.is_gone)
    labels = {one.number: one.label for one in read_attempts(directory)}
    job = labels.get(beats[0].attempt) or beats[0].job_id
    return Hang(directory.run, beats[0].attempt, job, step, page, (), pids)


def is_recent(files: Iterable[Path], now: float) -> bool:
    """Return whether one of these files was written within COOL_DOWN_S."""
    for path in files:
        with suppress(OSError):
            if now - path.stat().st_mtime < COOL_DOWN_S:
                return True
    return False
