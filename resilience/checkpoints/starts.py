"""Starts that died while loading a checkpoint: two in a row, and the checkpoint is set aside.

`.resil/starts.json` records which attempt loads which checkpoint, and whether its training got past that. Only guarded
trainings write it: a script that only loads a model, or an attempt without number, is no start.
"""

from __future__ import annotations

import os
from dataclasses import asdict, dataclass, fields, replace

from resilience.base.files import read_regular
from resilience.checkpoints.directory import read_record, write_record
from resilience.checkpoints.names import STARTS
from resilience.layout import ATTEMPTS, attempt_end_file, attempt_file

TYPE_CHECKING = False
if TYPE_CHECKING:
    from resilience.checkpoints.directory import StoreDirectory

MOST_DEATHS = 2
"""Starts of different attempts that die while loading a checkpoint before it is set aside."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Start:
    """The last start that loaded a checkpoint.

    Attributes:
        attempt: its number; 0: no start yet.
        checkpoint: name of the checkpoint, the one last resumed from.
        is_loading: whether the training was not seen past the load.
        died: attempts that died while loading this checkpoint.
        blamed: a checkpoint that was set aside because starts died, if no start has got past its load since.
    """

    attempt: int = 0
    checkpoint: str = ""
    is_loading: bool = False
    died: tuple[int, ...] = ()
    blamed: str = ""


def deaths(last: Start, attempt: int, checkpoint: str) -> tuple[int, ...]:
    """Given the last start, return the attempts before `attempt` that died while loading `checkpoint`. Pure."""
    if last.checkpoint != checkpoint:
        return ()
    own = (last.attempt,) if last.is_loading and last.attempt != attempt else ()
    return tuple(sorted({one for one in (*last.died, *own) if one}))


def begin(store: StoreDirectory, attempt: int, checkpoint: str) -> None:
    """Record that an attempt begins to load a checkpoint. Raise OSError."""
    last = read_start(store)
    died = deaths(last, attempt, checkpoint)
    write_start(store, Start(attempt=attempt, checkpoint=checkpoint, is_loading=True, died=died, blamed=last.blamed))


def end(store: StoreDirectory, attempt: int, *, is_past_load: bool) -> None:
    """Record that the start of an attempt is over: it has loaded its checkpoint, or was ended on purpose before.

    Raise OSError.
    """
    last = read_start(store)
    if last.attempt == attempt and last.is_loading:
        died, blamed = ((), "") if is_past_load else (last.died, last.blamed)
        write_start(store, replace(last, is_loading=False, died=died, blamed=blamed))


def was_ended(run_dir: str, attempt: int) -> bool:
    """Return whether an attempt was ended from outside, or on purpose, as far as the run directory tells: by a time
    limit, a cancel, a preemption, a lost node, a stop. It has not died of what it loaded."""
    if not run_dir:
        return False
    import tomllib

    directory = os.path.join(run_dir, ATTEMPTS)
    try:
        found = read_regular(os.path.join(directory, attempt_end_file(attempt)))
        if found is None:  # claimed, and no end recorded: its node was lost, or all was killed at once
            return os.path.lexists(os.path.join(directory, attempt_file(attempt)))
        end = tomllib.loads(found[0].decode())
    except (OSError, ValueError):
        return True  # unknown is no evidence against a checkpoint
    return end.get("end") != "exited"


def read_start(store: StoreDirectory) -> Start:
    """Return the last start; an empty one if there is none, or its record is damaged. Raise OSError."""
    record = read_record(store.own / STARTS)
    try:
        known = {field.name: record[field.name] for field in fields(Start) if field.name in record}
        return Start(**known | {"died": tuple(map(int, known.get("died", ())))})
    except (ValueError, TypeError):
        return Start()


def write_start(store: StoreDirectory, start: Start) -> None:
    """Replace the record. Raise OSError."""
    write_record(store.own / STARTS, asdict(start))
