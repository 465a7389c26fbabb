"""The paths that a training uses besides its project: its command, data and environment, from the run's records.

Bounded: of a few runs the newest batch script, and the newest start event of rank 0. No directory is searched, and no
path is accessed.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Iterable, Mapping
from contextlib import suppress
from pathlib import Path

from resilience import layout
from resilience.errors import StateDirectoryError
from resilience.runs.context import Context
from resilience.system.files import read_regular
from resilience.system.stuck import StuckMemory, probe_in_child, state_probe

MOST_PATHS = 32
LONGEST = 255
"""A longer path may exceed NAME_MAX, and is hardly one."""
MOST_RUNS = 4
"""The most runs whose records are read: those that were submitted last."""
READ_BYTES = 2**18
_WORD = re.compile(r"""(?:^|[\s"'=:(])((?:~|\$\w+|\$\{\w+\})?/(?!/)[^\s"'=:;,`*?<>|&()$\\{}]+)""", re.MULTILINE)
_OF_THE_SYSTEM = re.compile(r"/(?:bin|sbin|usr|lib\w*|etc|dev|proc|sys|run|boot|var)(?:/|$)|/$")
"""On every node, of its operating system."""


def used_paths(context: Context) -> tuple[str, ...]:
    """Return the absolute paths; none if the state directory does not respond, which other probes report.

    A child reads the records, once per tick (Context.shared).
    """
    shared = context.shared if context.shared is not None else {}
    if "used paths" not in shared:
        look = state_probe(context.state_dir, lambda: _read(context), context.state_deadline_s)
        system = context.system
        for _, answer in probe_in_child({0: look}, StuckMemory.of(system), system.clock):
            shared["used paths"] = tuple(answer.value or ())
    return tuple(shared["used paths"])


def paths_in(script: str, environ: Mapping[str, str], home: Path) -> list[str]:
    """Return the paths in a batch script, `~` and variables of this environment expanded. Pure."""
    found = []
    for text in _WORD.findall(script):
        start, _, rest = text.partition("/")
        base = str(home) if start == "~" else environ.get(start.strip("${}"), "") if start else "/"
        if base.startswith("/") and "\0" not in rest:
            found.append(os.path.normpath(f"{base}/{rest}").replace("//", "/"))
    return bounded(found)


def bounded(paths: Iterable[str]) -> list[str]:
    """Return the first of the paths that are not of the operating system, each once."""
    usable = (path for path in paths if not _OF_THE_SYSTEM.match(path) and len(path) < LONGEST)
    return list(dict.fromkeys(usable))[:MOST_PATHS]


def _read(context: Context) -> list[str]:
    found: list[str] = []
    for submissions in _newest(context.state_dir, f"*/{layout.SUBMISSIONS}")[:MOST_RUNS]:
        for journal in _newest(submissions.parent / layout.JOURNAL, "*.0.jsonl")[:1]:
            for event in _events(_head(journal)):
                if event.get("event") == "start" and isinstance(uses := event.get("uses"), list):
                    found += map(str, uses)
        scripts = [Path(str(event["script"])) for event in _events(_tail(submissions)) if event.get("script")]
        if scripts:
            found += paths_in(_head(scripts[-1]), context.system.environ, context.system.host.home)
    return bounded(found)


def _newest(directory: Path, pattern: str) -> list[Path]:
    with suppress(OSError):
        return sorted(directory.glob(pattern), key=lambda path: path.stat().st_mtime, reverse=True)
    return []


def _events(text: str) -> Iterable[Mapping[str, object]]:
    for line in text.split("\n"):
        with suppress(ValueError, RecursionError):
            event = json.loads(line)
            if isinstance(event, dict):
                yield event


def _head(path: Path) -> str:
    with suppress(StateDirectoryError):
        found = read_regular(path, READ_BYTES)
        return found[0].decode("utf-8", "replace") if found is not None else ""
    return ""


def _tail(path: Path) -> str:
    from resilience.runs.run_files import read_tail

    with suppress(OSError):
        return read_tail(path, READ_BYTES)[0].decode("utf-8", "replace")
    return ""
