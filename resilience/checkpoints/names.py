"""Names in a directory of checkpoints. Pure.

step-00041200/          committed; `.resil/manifest.json` inside
step-00041200.2/        committed when that name was taken, by a later attempt: it replaces the other one
.part-00041400.a7.2/    in flight: attempt 7 (the fencing token), the second save of that process
checkpoint-500          sealed: named by the framework, its manifest is `.resil/seals/00000500.checkpoint-500.json`
.bad/                   set aside, each with `NAME.why.json`
.trash/                 to be deleted
.resil/                 what is known of the directory: its run, attempts, seals, pins, verifications, starts
"""

from __future__ import annotations

import re

from resilience.errors import UsageError

OWN = ".resil"
"""Our directory in a directory of checkpoints, and in each committed checkpoint."""
BAD, TRASH = ".bad", ".trash"
MANIFEST = "manifest.json"
STORE, SEALS, PINS, VERIFIED, ATTEMPTS, STARTS, PRUNE = (
    "store.json", "seals", "pins", "verified", "attempts", "starts.json", "prune.json",
)  # fmt: skip
"""In `.resil/` of the directory."""
WHY = ".why.json"
"""Ending of the file beside a checkpoint in `.bad/` that says why."""

MOST_DIGITS = 18
_COMMITTED = re.compile(r"step-(\d{8,18})(?:\.([1-9]\d{0,8}))?")
_PART = re.compile(r"\.part-(\d{8,18})\.a(\d{1,9})\.(\d{1,9})")
_SEAL = re.compile(r"(\d{8,18})\.(.+)\.json")
_FIELD = re.compile(r"\{step(?::0(\d{1,2})d)?\}")


def committed_name(step: int, number: int = 1) -> str:
    """Return the name of the committed checkpoint of a step: `step-00041200`; `step-00041200.2`, the second one."""
    return f"step-{step:08d}{f'.{number}' if number > 1 else ''}"


def parse_committed(name: str) -> int | None:
    """Return the step of a committed checkpoint's name, or None if it is another name."""
    match = _COMMITTED.fullmatch(name)
    return int(match[1]) if match and name == committed_name(int(match[1]), int(match[2] or 1)) else None


def number_of(name: str) -> int:
    """Return how many of its step were committed when a checkpoint got this name, itself included: 2 for `step-8.2`."""
    match = _COMMITTED.fullmatch(name)
    return int(match[2] or 1) if match else 1


def part_name(step: int, attempt: int, save: int) -> str:
    """Return the name of the directory that save number `save` of an attempt writes: `.part-00041400.a7.2`."""
    return f".part-{step:08d}.a{attempt}.{save}"


def parse_part(name: str) -> tuple[int, int, int] | None:
    """Return step, attempt and number of a part's name, or None if it is another name."""
    match = _PART.fullmatch(name)
    return (int(match[1]), int(match[2]), int(match[3])) if match else None


def seal_name(step: int, name: str) -> str:
    """Return the name of the file in `.resil/seals/` that seals the checkpoint `name`."""
    return f"{step:08d}.{name}.json"


def parse_seal(file_name: str) -> tuple[int, str] | None:
    """Return the step and the checkpoint's name of a seal's file name, or None if it is another name."""
    match = _SEAL.fullmatch(file_name)
    return (int(match[1]), match[2]) if match else None


class Pattern:
    """How a framework names its checkpoints: `checkpoint-{step}`, `iter_{step:07d}`, `{step}`, `last-{step}.ckpt`."""

    def __init__(self, text: str) -> None:
        """Raise UsageError unless `text` is one name with one `{step}`."""
        fields = list(_FIELD.finditer(text))
        if len(fields) != 1 or "/" in text or "{" in _FIELD.sub("", text) or "}" in _FIELD.sub("", text):
            raise UsageError(
                f"pattern = {text!r} does not name checkpoints",
                hint="for instance checkpoint-{step} or iter_{step:07d}",
            )
        before, after = text[: fields[0].start()], text[fields[0].end() :]
        self.text = text
        self._digits = int(fields[0][1] or 1)
        self._regex = re.compile(re.escape(before) + rf"(\d{{{self._digits},{MOST_DIGITS}}})" + re.escape(after))
        self._before, self._after = before, after

    def step_of(self, name: str) -> int | None:
        """Return the step in a name, or None if the name does not follow the pattern."""
        match = self._regex.fullmatch(name)
        return int(match[1]) if match and self.name_of(int(match[1])) == name else None

    def name_of(self, step: int) -> str:
        """Return the name of a step's checkpoint."""
        return f"{self._before}{step:0{self._digits}d}{self._after}"
