"""The stacks of a rank: parsed from what faulthandler and py-spy write, and where its main thread waits. Pure."""

from __future__ import annotations

import re
from dataclasses import dataclass
from enum import Enum
from itertools import takewhile

MOST_FRAMES = 500
"""Frames kept of one thread, the innermost ones: an endless recursion has a million."""

_FAULTHANDLER = re.compile(r'^  File "(?P<file>.*)", line (?P<line>\d+|\?\?\?) in (?P<function>.*)$')
_PY_SPY = re.compile(r"^ {4,}(?P<function>\S.*?) \((?P<file>[^()]+?)(?::(?P<line>\d+))?\)$")
_THREAD = re.compile(r"^(?P<kind>Thread|Current thread|Stack) .*\(most recent call first\):$")
_PY_SPY_THREAD = re.compile(r'^Thread \S+ \([\w+]+\)(?:: "(?P<name>.*)")?$')
_NAME = re.compile(r"\[(.+)\]")
_INSTALLED = re.compile(r"/(site|dist)-packages/|/lib/python3|^<frozen|/resilience/")


@dataclass(frozen=True, slots=True)
class Frame:
    """One Python frame; `line` is 0 if unknown."""

    function: str
    file: str
    line: int = 0


@dataclass(frozen=True, slots=True)
class Thread:
    """One thread: its Python frames, the innermost first. Empty while it runs no Python code."""

    frames: tuple[Frame, ...]
    name: str = ""


@dataclass(frozen=True, slots=True)
class Stacks:
    """The threads of one process; `main` is where the training is."""

    threads: tuple[Thread, ...] = ()
    main: Thread | None = None


def parse_stacks(text: str) -> Stacks:
    """Given the text of one process, return its stacks. Lines of another format are skipped; no text is an error.

    Formats: CPython's Python/traceback.c, `_Py_DumpTracebackThreads`, and `py-spy dump`. faulthandler lists the newest
    thread first, so the main thread is the last one. It stops after 100 threads with `...`; then only the thread that
    handled the signal can be known, which is the main one unless that blocks signals.
    """
    threads: list[tuple[str, str, list[Frame]]] = []
    is_cut = False
    for line in text.splitlines():
        if head := _THREAD.match(line) or _PY_SPY_THREAD.match(line):
            groups = head.groupdict()
            named = _NAME.search(line) if "kind" in groups else None
            name = named[1] if named is not None else groups.get("name") or ""
            threads.append((groups.get("kind") or "", name, []))
        elif threads and (frame := _FAULTHANDLER.match(line) or _PY_SPY.match(line)):
            number = frame["line"] or ""
            if len(threads[-1][2]) < MOST_FRAMES:
                threads[-1][2].append(Frame(frame["function"], frame["file"], int(number) if number.isdigit() else 0))
        is_cut |= line == "..."
    found = [(kind, Thread(tuple(frames), name)) for kind, name, frames in threads]
    main = next((thread for _, thread in found if thread.name == "MainThread"), None)
    if main is None and is_cut:
        main = next((thread for kind, thread in found if kind == "Current thread"), None)
    elif main is None and found:
        main = found[-1][1]
    return Stacks(tuple(thread for _, thread in found), main)


class Where(Enum):
    """Where a rank is, as its frames tell."""

    COLLECTIVE = "in a collective"
    GPU = "waiting for the GPU"
    LOADER = "in the data loader"
    CHECKPOINT = "in a checkpoint"
    CODE = "in the user's code"
    UNKNOWN = "in no Python code"


_PLACES: tuple[tuple[Where, re.Pattern[str], re.Pattern[str]], ...] = (
    (
        Where.COLLECTIVE,
        re.compile(r"/torch/distributed/(distributed_c10d|_functional_collectives|rendezvous)\.py$|/deepspeed/comm/"),
        re.compile(r"(?!(get|is|new|_get|_rank|_world)_).*"),
    ),
    (
        Where.COLLECTIVE,
        re.compile(""),
        re.compile(r"(monitored_)?barrier|all_?reduce\w*|all_?gather\w*|all_?to_?all\w*|reduce_?scatter\w*"),
    ),
    (
        Where.COLLECTIVE,
        re.compile(r"/(horovod|jax/experimental|accelerate)/"),
        re.compile(r"synchronize|broadcast\w*|gather|reduce|wait_for_everyone|sync_global_devices|process_allgather"),
    ),
    (Where.GPU, re.compile(r"/torch/cuda/|/torch/_tensor\.py$|/jax/"), re.compile("synchronize|block_until_ready")),
    (Where.LOADER, re.compile(r"/torch/utils/data/|/grain/|/webdataset/|/streaming/base/"), re.compile(".*")),
    (
        Where.CHECKPOINT,
        re.compile(
            r"/torch/distributed/checkpoint/|/torch/serialization\.py$|/safetensors/|/orbax/|/resilience/checkpoints/"
        ),
        re.compile(".*"),
    ),
)
"""By file and function of a frame; the innermost frame that fits decides. `work.wait()` has no Python frame."""


def where(stacks: Stacks) -> tuple[Where, str]:
    """Return where the main thread is, and the function that says so: of its innermost frame for the user's code."""
    frames = stacks.main.frames if stacks.main is not None else ()
    if not frames:
        return Where.UNKNOWN, ""
    for number, frame in enumerate(frames):
        for word, file, function in _PLACES:
            if _fits(frame, file, function):
                # all_reduce, not torch's wrapper inside of it
                beyond = takewhile(lambda one: _fits(one, file, function), frames[number:])  # noqa: B023 - used at once
                return word, list(beyond)[-1].function
    return Where.CODE, frames[0].function


def _fits(frame: Frame, file: re.Pattern[str], function: re.Pattern[str]) -> bool:
    return bool(file.search(frame.file) and function.fullmatch(frame.function.rpartition(".")[2]))


def place_of(stacks: Stacks) -> str:
    """Return the innermost place outside of installed packages, such as `train.py:41 in step`; else the innermost."""
    frames = stacks.main.frames if stacks.main is not None else ()
    own = (
        one for one in frames if not re.search(r"/(site|dist)-packages/|/lib/python3|^<frozen|/resilience/", one.file)
    )
    frame = next(own, frames[0] if frames else None)
    return "" if frame is None else f"{frame.file.rpartition('/')[2]}:{frame.line} in {frame.function}"
