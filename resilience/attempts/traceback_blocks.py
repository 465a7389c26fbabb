"""Python tracebacks in a log: their exception, and the deepest frame of the user's own code. Pure.

Ranks write into one log at the same time; their lines are told apart by the prefixes of torchrun (`[rank3]:`,
`[default3]:`), of `srun --label` (`3: `) and of `mpirun --tag-output` (`[1,3]<stderr>:`).
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import PurePosixPath

_PREFIX = re.compile(
    r"^(?:\[(?:rank|default) ?(?P<torch>\d{1,6})\]:? ?|\s{0,6}(?P<srun>\d{1,6}): |\[\d+,(?P<mpi>\d{1,6})\]<\w+>: ?)"
)
_HEAD = "Traceback (most recent call last)"
_BOX = re.compile(r"^[╭│╰]")
_BOX_FRAME = re.compile(r"^│ (?P<path>/\S+|\S+\.py):(?P<line>\d+) in (?P<name>\S+)")
"""rich's tracebacks."""
_ORIGINAL = re.compile(r"Original Traceback|last\): \(RANK \d+\)")
"""The exception inside of the one that reports it: torch/_utils.py, ExceptionWrapper (of a DataLoader worker);
torch/distributed/checkpoint/api.py (of a rank)."""
_FRAME = re.compile(r'^\s*(?:\| )?File "(?P<path>[^"]+)", line (?P<line>\d+)(?:, in (?P<name>\S+))?')
_FINAL = re.compile(r"^(?P<type>(?:[A-Za-z_]\w*\.)*[A-Za-z_]\w*)(?::\s?(?P<message>.*))?$")
_CHAINED = ("The above exception was the direct cause", "During handling of the above exception")
_FOREIGN = re.compile(r"/(?:site|dist)-packages/|/lib/python\d|^<frozen |/python\d\.\d+/(?!.*(?:train|run))|^<string>$")
"""Paths of installed packages and of the standard library."""
_OTHERS = ("resil: ", "srun: ", "slurmstepd")
"""The guard of another rank, or the launcher, may write between the first line of a traceback and the others."""
_MOST_LINES = 2000
"""A traceback that has no end after this many lines is no traceback."""


@dataclass(frozen=True, slots=True)
class Traceback:
    """One traceback, or the first of a chain.

    Attributes:
        begin, end: indexes of its first line and of the line with the exception.
        exception: type as printed: `torch.OutOfMemoryError`.
        message: the rest of that line.
        frame: `train.py:88 in step`, the deepest frame outside of installed packages, else the deepest; may be empty.
        is_own: whether that frame is outside of installed packages.
        rank: of the process; None: unknown.
        chain_end: index of the last line of the chain; `end` if there is none.
    """

    begin: int
    end: int
    exception: str
    message: str
    frame: str
    is_own: bool
    rank: int | None
    chain_end: int


def split_rank(line: str) -> tuple[int | None, str]:
    """Return the rank in a line's prefix, or None, and the line without the prefix."""
    if line[:1] not in "[ 0123456789":
        return None, line
    found = _PREFIX.match(line)
    if found is None:
        return None, line
    return int(found["torch"] or found["srun"] or found["mpi"]), line[found.end() :]


def tracebacks(lines: Sequence[str]) -> list[Traceback]:
    """Return the tracebacks of all ranks in order of their first lines; of a chain of exceptions only the first."""
    heads = [index for index, line in enumerate(lines) if _HEAD in line]
    found: list[Traceback] = []
    latest: dict[int | None, int] = {}
    chained: dict[int | None, int] = {}
    for head in heads:
        rank, first = split_rank(lines[head])
        one = _read(lines, head, rank, first)
        if one is None:
            continue
        last = latest.get(rank)
        if last is not None and _ORIGINAL.search(first):
            begin = found[last].begin
            found[last] = replace(one, begin=begin) if one.frame else replace(found[last], chain_end=one.end)
        elif last is not None and chained.get(rank, -1) >= head:
            found[last] = replace(found[last], chain_end=one.end)
        else:
            latest[rank] = len(found)
            found.append(one)
        chained[rank] = _chain_end(lines, one, rank)
    return found


def _read(lines: Sequence[str], head: int, rank: int | None, first: str) -> Traceback | None:
    indent = len(first) - len(first.lstrip())
    before = first[: first.index(_HEAD)]
    if _ORIGINAL.search(first) or _BOX.match(before):
        before = ""
    frames: list[re.Match[str]] = []
    for index in range(head + 1, min(len(lines), head + _MOST_LINES)):
        whose, line = split_rank(lines[index])
        if whose != rank or line.startswith(_OTHERS):
            continue
        body = line.removeprefix(before) if before.strip() else line[indent:]
        if (frame := _FRAME.match(body) or _BOX_FRAME.match(body)) is not None:
            frames.append(frame)
        elif _BOX.match(body):
            continue
        elif body[:1] not in (" ", "\t", "") and (final := _FINAL.match(body)) is not None:
            frame_text, is_own = _deepest(frames)
            return Traceback(head, index, final["type"], final["message"] or "", frame_text, is_own, rank, index)
        elif body[:1] not in (" ", "\t", "") and frames:
            return None  # something else wrote into the middle
    return None


def _chain_end(lines: Sequence[str], one: Traceback, rank: int | None) -> int:
    """Return the index up to which a further traceback of the same rank belongs to the chain; -1: there is none."""
    seen = 0
    for index in range(one.end + 1, min(len(lines), one.end + 40)):
        whose, line = split_rank(lines[index])
        if whose != rank:
            continue
        if any(words in line for words in _CHAINED):
            return index + 40
        seen += bool(line.strip())
        if seen > 8:
            break
    return -1


def _deepest(frames: Sequence[re.Match[str]]) -> tuple[str, bool]:
    own = [frame for frame in frames if not _FOREIGN.search(frame["path"])]
    chosen = (own or list(frames))[-1:]
    if not chosen:
        return "", False
    name = PurePosixPath(chosen[0]["path"]).name
    return f"{name}:{chosen[0]['line']} in {chosen[0]['name'] or '<module>'}", bool(own)
