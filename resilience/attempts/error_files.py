"""torchelastic's error files: the exception of the first failing rank, also when the log has only its echoes.

The templates set TORCHELASTIC_ERROR_FILE to `attempts/0003.error.<task>`. A function that is decorated with `@record`
writes its exception there; torchrun copies that of the first failing worker of its node. Format: JSON,
`{"message": {"message": ..., "extraInfo": {"py_callstack": ..., "timestamp": "1763608455", "rank": ...}}}`, in older
releases only `{"message": text}` (torch/distributed/elastic/multiprocessing/errors/error_handler.py).
"""

from __future__ import annotations

import json
from contextlib import suppress
from typing import TYPE_CHECKING, Any

from resilience import layout
from resilience.attempts.failure import RankError
from resilience.errors import StateDirectoryError
from resilience.system.files import read_regular

if TYPE_CHECKING:
    from resilience.runs.attempts import Attempt
    from resilience.runs.run_directory import RunDirectory

MOST_FILES = 64
"""A thousand ranks may fail at once; the first is among the oldest files."""


def first_error(directory: RunDirectory, attempt: Attempt) -> RankError | None:
    """Return the earliest exception in the error files of an attempt; files that are half-written are skipped."""
    pattern = f"{layout.attempt_file(attempt.number)}.error.*"
    try:
        paths = [path for path in (directory.path / layout.ATTEMPTS).glob(pattern) if path.is_file()]
        paths = sorted(paths, key=lambda path: path.stat().st_mtime)[:MOST_FILES]
    except OSError:
        return None
    found = []
    for path in paths:
        with suppress(StateDirectoryError, ValueError, RecursionError):
            raw = read_regular(path)
            if raw is not None:
                found.append(parse_error(raw[0].decode("utf-8", "replace")))
    return min((one for one in found if one.text), key=lambda one: one.time, default=None)


def parse_error(text: str) -> RankError:
    """Return the exception in an error file. Pure. Raise ValueError if the text is no JSON."""
    record = json.loads(text)
    message = record.get("message") if isinstance(record, dict) else None
    if isinstance(message, str):
        return RankError(message)
    if not isinstance(message, dict):
        return RankError()
    extra: Any = message.get("extraInfo")
    extra = extra if isinstance(extra, dict) else {}
    stack, time, rank = (extra.get(key) for key in ("py_callstack", "timestamp", "rank"))
    said = str(message.get("message", ""))
    text = stack if isinstance(stack, str) and stack else said
    return RankError(
        text=text,
        time=float(time) if str(time).replace(".", "", 1).isdecimal() else float("inf"),
        rank=rank if isinstance(rank, int) else None,
        host=str(extra.get("host", "")) or "",
    )
