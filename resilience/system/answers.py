"""Answers of tasks on several nodes through the output of one srun, which mixes them. Pure.

slurmstepd passes at most 1,024 bytes at a time on, and srun writes them as they come: longer lines of two nodes end up
within each other (seen with 22.05, and with shorter ones where srun has --unbuffered). So an answer is written as short
lines, each with the name of its task.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from typing import Any

PART_CHARS = 900
MARK = "resil-answer"


def answer_lines(message: Mapping[str, Any], task: str = "") -> str:
    """Return the lines that a task writes to its standard output; `task` names it among the others."""
    text = json.dumps(message)
    task = task or f"{os.uname().nodename}.{os.getpid()}"
    parts = [text[at : at + PART_CHARS] for at in range(0, len(text), PART_CHARS)]
    return "".join(f"{MARK} {task} {len(parts) - number} {part}\n" for number, part in enumerate(parts, 1))


def parse_answers(lines: Iterable[str]) -> Iterator[dict[str, Any]]:
    """Yield each answer as soon as its last line was read; what else programs print is skipped."""
    begun: dict[str, str] = {}
    for line in lines:
        mark, _, rest = line.partition(" ")
        task, _, rest = rest.partition(" ")
        left, _, part = rest.partition(" ")
        if mark == MARK:
            begun[task] = begun.get(task, "") + part
            if left == "0":
                with suppress(ValueError):
                    yield json.loads(begun.pop(task))
