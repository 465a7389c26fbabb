"""Reads a directory of checkpoints, verifies the newest, and looks up whether its run trains: the I/O of the check."""

# pathlib takes longer, and there may be thousands of files in a save.
# ruff: noqa: PTH112, PTH116

from __future__ import annotations

import os
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from itertools import islice
from pathlib import Path
from typing import NamedTuple

from resilience.cadence import parse_every
from resilience.checkpoints import digest
from resilience.checkpoints.directory import Checkpoint, StoreDirectory
from resilience.checkpoints.names import parse_part
from resilience.checkpoints.summary import VERIFIES, Saved, summarize
from resilience.checkpoints.verified import Verified, read_verified, write_verified
from resilience.checkpoints.verify import verify
from resilience.errors import CheckpointError, ProbeError, ResilError, StateDirectoryError
from resilience.messages import cut, plural
from resilience.quantities import format_duration
from resilience.runs.context import Context
from resilience.runs.run_directory import RunDirectory
from resilience.runs.run_jobs import Queues
from resilience.watch.checks._ckpt.reading import CkptReading, CkptSettings, Part, Save
from resilience.watch.checks._filesystem.measure import below

LEARNED = 16
"""The newest checkpoints from which intervals and durations are learned."""
MOST_ENTRIES = 5_000
"""Of one save in flight, so many files are looked at."""
QUERY_S = 4.0
SILENT_S = 600.0
"""An attempt whose batch shell wrote no heartbeat for this long does not train: `resil watch job` reports it."""


class StoreProbe:
    """One probe of the directories of checkpoints of a target."""

    def __init__(
        self, settings: CkptSettings, context: Context, before: Mapping[str, CkptReading], deadline_s: float
    ) -> None:
        """`deadline_s`: when the probe is ended: reading digests stops in time for the rest."""
        self.settings, self.context, self.before = settings, context, before
        self.verify_until = time.monotonic() + min(settings.verify_s, deadline_s / 2)

    def read(self, target: str, path: str) -> dict[str, CkptReading]:
        """Return the reading of one directory, or of those of all runs if the path has `{run}`."""
        runs = self.context.runs()
        if "{run}" not in path:
            return {path: self._look(path, runs)}
        looks = {path.replace("{run}", directory.run): directory for directory in runs}
        readings = {one: self._look(one, [directory]) for one, directory in looks.items()}
        found = {one: reading for one, reading in readings.items() if reading.began or not reading.nothing}
        return found or {target: CkptReading(path=target, nothing=f"no run has checkpoints in {target} yet")}

    def _look(self, path: str, runs: Sequence[RunDirectory]) -> CkptReading:
        known = self.before.get(path)
        known = known if known is not None and not known.nothing else None
        try:
            if (store := StoreDirectory(path)).is_there():
                return self._read(store, known)
            is_missing = bool(self.settings.paths) and not os.path.isdir(path)
            if not is_missing and (known is None or known.over):  # or removed after the run
                nothing = CkptReading(path=path, nothing=f"no checkpoints in {path}")
                return nothing if self.settings.paths else self._with_training(nothing, runs)
            lost = "does not exist" if known is None else "held checkpoints and holds none now"
            why = f"{path} {lost}: is its file system mounted on this node?"
        except ResilError as error:
            why = f"{error.message}: {error.hint}" if error.hint else error.message
        except OSError as error:
            why = f"cannot read {error.filename or path}: {error.strerror or error}"
        return replace(known or CkptReading(path=path), unseen=why)

    def _with_training(self, nothing: CkptReading, runs: Sequence[RunDirectory]) -> CkptReading:
        """Return the reading with the run that has trained longest of those that should save there."""
        states = [(_training(self.context, run), run.run) for run in runs]
        training = [(state.began, run) for state, run in states if not state.over]
        began, run = min(((began, run) for began, run in training if began), default=(0.0, ""))
        return replace(nothing, run=run, began=began, every_s=parse_every(self.context.save_every).seconds)

    def _read(self, store: StoreDirectory, known: CkptReading | None) -> CkptReading:
        summary, checkpoints = summarize(store), store.checkpoints()
        directory = RunDirectory(self.context.state_dir / summary.run, self.context.group) if summary.run else None
        state = _training(self.context, directory)
        known = known or CkptReading(path=str(store.path))
        saves = _saves(checkpoints[-LEARNED:], known, self.context.system.clock.now())
        present = [saves[one.name] for one in checkpoints if one.name in saves]
        reading = CkptReading(
            path=str(store.path),
            run=summary.run,
            is_foreign=directory is None or not directory.exists(),
            over=state.over,
            unasked=state.unasked,
            began=state.began,
            every_s=parse_every(self.context.save_every).seconds,
            count=summary.count,
            newest=saves.get(checkpoints[-1].name) if checkpoints else None,
            saves=tuple(sorted(saves.values(), key=lambda save: save.at)[-LEARNED:]),
            saved_at=max((save.at for save in present), default=0.0),
            verified=_verified(checkpoints, saves, summary.verified, known.verified),
            tried=known.tried,
            unread=known.unread,
            parts=() if state.over or state.unasked else tuple(_parts(store)),
            bad=summary.bad,
            trash=summary.trash,
            prune_failure=summary.prune_failure,
        )
        return self._verify(reading, checkpoints[-1]) if reading.newest is not None else reading

    def _verify(self, reading: CkptReading, newest: Checkpoint) -> CkptReading:
        """Return the reading with a verification of the newest: its structure, and once, in time, its digests."""
        assert reading.newest is not None
        this, began = f"{newest.name} {reading.newest.stamp}", time.monotonic()
        algorithm = reading.newest.algorithm
        is_known = not algorithm or digest.is_known(algorithm)
        if reading.verified == reading.newest:
            reading = replace(reading, unread="")
        elif not is_known:
            reading = replace(reading, unread=f"digests of the kind {algorithm} cannot be computed here")
        reads = is_known and reading.verified != reading.newest and this != reading.tried and began < self.verify_until
        found = verify(newest, VERIFIES if reads else "structure", deadline=self.verify_until if reads else None)
        took = f"{newest.name}: {found.level} verified in {format_duration(time.monotonic() - began)}"
        reading = replace(reading, looked=(*reading.looked, took))
        if found.is_good or found.fault is not None:
            with suppress(OSError):  # a colleague's directory may be read-only for us
                write_verified(newest, found, self.context.system.clock.now())
        if found.fault is None and (record := _recorded(newest)) is not None:
            found = replace(found, fault=record.fault)  # by somebody who has read it; or by an earlier tick
        if found.fault is not None:
            older = None if reading.verified == reading.newest else reading.verified
            missing = found.fault.what == "is missing"
            return replace(reading, fault=str(found.fault), is_incomplete=missing, verified=older)
        if found.why_unknown:
            return replace(reading, unknown=found.why_unknown)
        if found.unread:
            unread = f"{plural(found.unread, 'file')} of the newest could not be read in {self.settings.verify_s:g} s"
            return replace(reading, tried=this, unread=unread)
        return replace(reading, verified=reading.newest) if reads else reading


def _recorded(checkpoint: Checkpoint) -> Verified | None:
    """Return the record of a verification that found a fault, or None."""
    with suppress(OSError, CheckpointError):
        record = read_verified(checkpoint)
        return record if record is not None and record.fault is not None else None
    return None


def _verified(
    checkpoints: Sequence[Checkpoint], saves: Mapping[str, Save], recorded: Saved | None, own: Save | None
) -> Save | None:
    """Return the newest that is verified: by a record or, where none can be written, as this watchdog has found."""
    for one in reversed(checkpoints):
        save = saves.get(one.name)
        if save is None or (recorded is not None and one.name == recorded.name):
            return save
        if save == own and _recorded(one) is None:
            return own
    return None


def _saves(checkpoints: Sequence[Checkpoint], known: CkptReading, now: float) -> dict[str, Save]:
    """Return what the manifests say, each read once; checkpoints that were pruned since are remembered.

    A checkpoint from the future, by a clock that was wrong, was saved when it was first seen: else none would be missed
    until then.
    """
    found = {save.name: save for save in known.saves}
    for one in checkpoints:
        stamp = _changed_at(one.manifest_path)
        if one.name in found and found[one.name].stamp == stamp:
            continue
        at = min(stamp or _changed_at(one.path), now)
        found[one.name] = Save(one.name, one.step, at, stamp=stamp)
        with suppress(OSError, CheckpointError):  # of the newest, a verification reports it
            manifest = one.manifest()
            took_s = manifest.durable_at - manifest.started_at if manifest.started_at else None
            size_bytes, algorithm = manifest.size_bytes, manifest.algorithm
            at = manifest.durable_at if 0 < manifest.durable_at <= now else at
            found[one.name] = Save(one.name, one.step, at, took_s, size_bytes, stamp, algorithm)
    return found


def _changed_at(path: Path) -> float:
    """Return the modification time of a file in seconds since the epoch; 0 if it is gone, or cannot be looked at."""
    with suppress(OSError):  # of the newest, a verification reports it
        return os.stat(path).st_mtime
    return 0.0


def _parts(store: StoreDirectory) -> Iterator[Part]:
    """Yield the saves in flight, the one written to longest ago first."""
    found = []
    for name in store.parts():
        step_of = parse_part(name)
        with suppress(OSError):  # committed meanwhile
            size_bytes, changed_at = 0, os.stat(store.path / name).st_mtime
            for _, info in islice(below(f"{store.path}/{name}"), MOST_ENTRIES):
                size_bytes, changed_at = size_bytes + info.st_size, max(changed_at, info.st_mtime)
            if step_of is not None:
                found.append(Part(name, step_of[0], size_bytes, changed_at))
    yield from sorted(found, key=lambda part: part.changed_at)


class _State(NamedTuple):
    """Whether a run trains: `over`, `unasked` and `began` as in the reading."""

    over: str = ""
    unasked: str = ""
    began: float = 0.0


def _training(context: Context, directory: RunDirectory | None) -> _State:
    """Return whether a run trains."""
    from resilience.runs.run_files import last_beat
    from resilience.watch.checks._log.rundirs import run_now

    if directory is None or not directory.exists():
        return _State(f"the run {directory.run} is not known here" if directory is not None else "its run is not known")
    now = context.system.clock.now()
    try:
        state = run_now(directory, now, Queues(context.system, context.scheduler, "", patience_s=QUERY_S))
    except StateDirectoryError as error:
        raise ProbeError(error.message, hint=error.hint, transient=True) from error
    except ResilError as error:
        return _State(unasked=f"not known whether it trains: {cut(error.message, 100)}")
    if state.over or state.unsure:
        return _State(state.over, "" if state.over else state.unsure, state.began)
    if state.attempt is None and not state.job_id:
        return _State("it has not started yet")
    beat = last_beat(directory, state.attempt) if state.attempt is not None else None
    if beat is not None and now - beat > SILENT_S:
        return _State(f"no heartbeat of its job for {format_duration(now - beat)}", began=state.began)
    return _State(began=state.began)
