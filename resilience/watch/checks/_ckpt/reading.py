"""The settings of `resil watch ckpt`, and the reading of one directory of checkpoints. Pure."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

from resilience.checkpoints.summary import Aside


@dataclass(frozen=True, slots=True, kw_only=True)
class CkptSettings:
    """[watch.ckpt]: the checkpoints of a run.

    Attributes:
        paths: directories of checkpoints; `{run}` stands for the name of each run. Default: [checkpoints] path.
        interval_s: how often a checkpoint is expected. Default: [guard] every if that is a time, else learned. If it is
            set, it also holds where no run of this project is known to train.
        factor: warn if none was saved for this many intervals; critical after twice as many.
        slow_factor: warn if the newest save took this many times as long as the earlier ones.
        part_s: warn if nothing was written for this long to a save in flight; three times the longest earlier save, if
            that is longer.
        verify_s: how long a new checkpoint may be read to compare its digests; 0: only sizes and structure.
    """

    paths: tuple[str, ...] = ()
    interval_s: float | None = None
    factor: float = 3.0
    slow_factor: float = 3.0
    part_s: float = 900.0
    verify_s: float = 30.0


class Save(NamedTuple):
    """One checkpoint, from its manifest.

    Attributes:
        name: its name.
        step: number of completed steps.
        at: when it became durable, in seconds since the epoch.
        took_s: from the start of the save until then; None: unknown.
        size_bytes: of its files.
        stamp: modification time of the manifest: another one is another checkpoint of the same name.
        algorithm: of its digests; empty: unknown.
    """

    name: str
    step: int
    at: float
    took_s: float | None = None
    size_bytes: int = 0
    stamp: float = 0.0
    algorithm: str = ""


class Part(NamedTuple):
    """One save in flight, or left by a killed process: its size, and when something was last written there."""

    name: str
    step: int
    size_bytes: int
    changed_at: float


@dataclass(frozen=True, slots=True, kw_only=True)
class CkptReading:
    """The reading of one directory of checkpoints.

    Attributes:
        path: the directory.
        nothing: why there is nothing to watch; empty if there is.
        unseen: why the directory could not be looked at; the rest is then from an earlier tick.
        run: the run whose checkpoints these are; empty: unknown.
        is_foreign: whether that run is none of this project, so that only `interval_s` can say when one is missing.
        over: why no new checkpoint is expected now; empty while the run trains.
        unasked: why it is not known whether the run trains: the queue could not be asked. Then `over` is empty.
        began: when its attempt began, in seconds since the epoch; 0: unknown.
        every_s: [guard] every, if that is a time; 0: not.
        count: number of checkpoints.
        newest: the one with the highest step; None: there is none.
        saved_at: when the last one that is there became durable, in seconds since the epoch; 0: there is none.
        saves: the newest ones ever seen, oldest first.
        verified: the newest that was read again and found equal; None: unknown.
        fault: why the newest is damaged; empty if no fault was found.
        is_incomplete: whether one of its files, or a node's share, is missing.
        unknown: why it is not known whether the newest is sound.
        unread: why its digests were not all compared; empty if they were.
        tried: the checkpoint whose digests this watchdog has compared, or tried to.
        parts: saves in flight.
        bad: checkpoints that were set aside.
        trash: number of names to be deleted.
        prune_failure: why the last prune failed; empty if it did not.
        looked: the explanation for `--explain`.
    """

    path: str
    nothing: str = ""
    unseen: str = ""
    run: str = ""
    is_foreign: bool = False
    over: str = ""
    unasked: str = ""
    began: float = 0.0
    every_s: float = 0.0
    count: int = 0
    newest: Save | None = None
    saved_at: float = 0.0
    saves: tuple[Save, ...] = ()
    verified: Save | None = None
    fault: str = ""
    is_incomplete: bool = False
    unknown: str = ""
    unread: str = ""
    tried: str = ""
    parts: tuple[Part, ...] = ()
    bad: tuple[Aside, ...] = ()
    trash: int = 0
    prune_failure: str = ""
    looked: tuple[str, ...] = ()
