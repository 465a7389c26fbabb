"""`beats/<jobid>.<node>`: how far the ranks of a node are. TOML that `cat` can read; `step` comes first. Pure.

docs/reference/run-directory.md shows one.
"""

from __future__ import annotations

import json

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping

    from resilience.guard.mirror.beat import Pulse

RUNNING, LEFT, GONE = "", "left", "gone"


class RankBeat:
    """One rank, as its mirror sees it.

    Attributes:
        pid: of its process, as it calls itself.
        pulse: what its slot told.
        end: RUNNING; LEFT when its guard was closed; GONE when its process ended without a word.
    """

    __slots__ = ("end", "pid", "pulse")

    def __init__(self, pid: int, pulse: Pulse, end: str = RUNNING) -> None:
        self.pid = pid
        self.pulse = pulse
        self.end = end


def compose(attempt: int, host: str, ranks: Mapping[int, RankBeat], now: float) -> str:
    """Given the ranks of a node, return the text of its beats file. `step` is that of the slowest rank."""
    slowest = min((beat.pulse.steps for beat in ranks.values()), default=0)
    lines = [f"attempt = {attempt}", f"host = {quote(host)}", f"time = {now:.3f}", f"step = {slowest}"]
    for rank, beat in sorted(ranks.items()):
        pulse = beat.pulse
        lines += [
            f"[rank.{rank}]",
            f"pid = {beat.pid}",
            f"step = {pulse.steps}",
            f"advanced = {pulse.advanced:.3f}",
            f"phase = {quote(pulse.phase)}",
        ]
        if beat.end:
            lines.append(f"{beat.end} = true")
    return "\n".join(lines) + "\n"


def file_name(job_id: str, host: str) -> str:
    """The name of a node's file."""
    return f"{job_id}.{host.replace('/', '_')}"


def quote(text: str) -> str:
    r"""A TOML basic string: JSON's, but no pairs of surrogates, and DEL written as \u007f (TOML 1.0, String)."""
    clean = text.encode("utf-8", "replace").decode()
    return json.dumps(clean, ensure_ascii=False).replace("\x7f", "\\u007f")
