"""Seals what a framework saved under its own names: a manifest beside the data, written last.

Data without a seal is no checkpoint. A seal is written for what is complete only: what the framework's tracker file
names or, by its name's pattern, what has not changed for QUIET_S and has a complete structure.
"""

from __future__ import annotations

import os
import time
from contextlib import suppress
from dataclasses import dataclass
from typing import NamedTuple

from resilience.base.files import read_regular, replace_file, sync_directory
from resilience.checkpoints import fence
from resilience.checkpoints.digest import best_algorithm, digest_file, list_files
from resilience.checkpoints.directory import Checkpoint, StoreDirectory
from resilience.checkpoints.formats import Content, Fault, check_content
from resilience.checkpoints.manifest import FileEntry, Manifest, new_token, to_text
from resilience.checkpoints.names import SEALS, Pattern, parse_committed, parse_seal, seal_name
from resilience.errors import CheckpointError, UsageError
from resilience.messages import plural
from resilience.quantities import format_duration

TYPE_CHECKING = False
if TYPE_CHECKING:
    from pathlib import Path
    from typing import Any

QUIET_S = 300.0
"""What changed within this time may still be written: by a slow rank, or to a slow file server."""
PATTERNS = {"latest_checkpointed_iteration.txt": "iter_{step:07d}", "latest": "global_step{step}"}
"""How Megatron and DeepSpeed name what their trackers point to (`pattern` overrides)."""
_FIELDS = ("run", "attempt", "label", "world", "started_at", "stall_s", "metrics")
_HF_FIRST, _HF_LAST = "training_args.bin", "trainer_state.json"
"""The Trainer of transformers writes one with the model, and the other when rank 0 has saved everything else."""


@dataclass(frozen=True, slots=True)
class Found:
    """A name that follows the pattern, and has no seal for what is there now.

    Attributes:
        name: in the directory.
        step: number of completed steps, from the name.
        why_not: why it is not complete, or not known to be; empty: it can be sealed.
        is_whole: whether it looks complete nevertheless: neither its files nor the tracker say that it is not.
        is_sealed: whether it has a seal already, and no file has changed since.
    """

    name: str
    step: int
    why_not: str = ""
    is_whole: bool = True
    is_sealed: bool = False


class _Content(NamedTuple):
    """Files with sizes, change times and inodes, by path; and the directories inside."""

    files: dict[str, tuple[int, int, int]]
    directories: tuple[str, ...]

    @property
    def changed_at(self) -> float:
        """Return when the newest file changed, in seconds since the epoch."""
        return max((mtime_ns for _, mtime_ns, _ in self.files.values()), default=0) / 1e9


def pattern_of(pattern: str, tracker: str) -> Pattern:
    """Return how checkpoints are named. Raise UsageError if the settings do not say so."""
    text = pattern or PATTERNS.get(tracker, "")
    if not text:
        raise UsageError(
            "neither a pattern nor a known tracker says how the framework names its checkpoints",
            hint='set pattern = "checkpoint-{step}" under [checkpoints] in resil.toml',
        )
    return Pattern(text)


def find_new(
    store: StoreDirectory, pattern: str, tracker: str = "", *, now: float, began: float = 0.0
) -> tuple[Found, ...]:
    """Return what follows the pattern and is not sealed as it is now, the oldest step first. Changes nothing.

    What the tracker names is complete, and what is newer than that is still being written, or was left by a save that
    failed. All else must not have changed for QUIET_S before `now`, unless that was before this attempt `began` (both
    in seconds since the epoch). What is sealed is looked at again if the tracker names it, or it is the newest: a
    framework that resumes from an older one writes it anew. Raise UsageError for a pattern that is none,
    CheckpointError, OSError.
    """
    names = pattern_of(pattern, tracker)
    sealed = {one.name: one for one in store.checkpoints() if one.is_sealed}
    tracked = tracked_step(store, names, tracker) if tracker else None
    found = []
    steps = {name: step for name in os.listdir(store.path) if (step := names.step_of(name)) is not None}
    again = {
        name for name in sealed if name in steps and (steps[name] == tracked or steps[name] == max(steps.values()))
    }
    for name, step in sorted(steps.items(), key=lambda one: one[1]):
        if name.startswith(".") or parse_committed(name) is not None or (name in sealed and name not in again):
            continue
        with suppress(FileNotFoundError):  # deleted by its framework meanwhile
            why = _why_sealed(sealed[name]) if name in sealed else ""
            if why:
                found.append(Found(name, step, why, is_whole=False))
            elif why is not None:
                found.append(judge(store, name, step, tracker, tracked, now, began))
    return tuple(found)


def tracked_step(store: StoreDirectory, names: Pattern, tracker: str) -> int | None:
    """Return the step that the tracker names, or None if it names none: it is being written, or is not there yet."""
    found = read_regular(store.path / tracker, limit_bytes=4096)
    text = found[0].decode("utf-8", "replace").strip() if found is not None else ""
    return int(text) if text.isascii() and text.isdigit() and len(text) < 19 else names.step_of(text)


def _why_sealed(checkpoint: Checkpoint) -> str | None:
    """Return None if a sealed checkpoint is as it was; empty if all of it was written anew; else what happened."""
    try:
        known = checkpoint.manifest().files
    except CheckpointError as error:
        return error.message
    sealed_ns = os.stat(checkpoint.manifest_path).st_mtime_ns
    files = _content(checkpoint.path).files
    same = [one for one in known if (now := files.get(one.path)) and now[0] == one.size and now[1] <= sealed_ns]
    if len(same) == len(known):
        return None
    if len(known) == 1 and 0 < files.get(known[0].path, (0, 0, 0))[0] < known[0].size:  # no second file to tell by
        return f"it is smaller than when it was sealed; if it was written anew: resil ckpt adopt {checkpoint.name}"
    return f"{len(known) - len(same)} of {plural(len(known), 'file')} changed after it was sealed" if same else ""


def judge(
    store: StoreDirectory, name: str, step: int, tracker: str, tracked: int | None, now: float, began: float = 0.0
) -> Found:
    """Return whether a checkpoint can be sealed, and why not. Raise OSError.

    Args:
        store: the directory.
        name, step: the checkpoint.
        tracker: file name of the framework's tracker, or empty.
        tracked: the step that the tracker names; None if it names none.
        now: seconds since the epoch.
        began: when this attempt began: those before it write no more.
    """
    if tracker and tracked is not None and step >= tracked:
        if step == tracked:
            return Found(name, step)
        why = f"{tracker} is at {tracked}: it is still being written, or was left by a save that failed"
        return Found(name, step, why, is_whole=False)
    try:
        if os.path.islink(store.path / name):
            return Found(name, step, "it is a link", is_whole=False)
        content = _content(store.path / name)
        partial = _incomplete(store.path / name, content)
    except CheckpointError as error:
        return Found(name, step, str(error), is_whole=False)
    if tracker and tracked is None:  # without the file, no save has ended yet
        is_whole = not partial and os.path.lexists(store.path / tracker)
        return Found(name, step, f"{tracker} names no checkpoint yet", is_whole)
    quiet_s = now - content.changed_at
    if content.files and quiet_s < QUIET_S and content.changed_at >= began:
        when = f"{format_duration(quiet_s)} ago" if quiet_s >= 0 else "in the future, by the clock of this node"
        why = f"a file changed {when}: it may still be written (complete after {format_duration(QUIET_S)})"
        return Found(name, step, why, not partial)
    return Found(name, step, partial, not partial)


def judge_named(store: StoreDirectory, name: str, step: int, tracker: str, tracked: int | None, now: float) -> Found:
    """Return whether a checkpoint that a person names can be sealed, and why not; see `judge`. Raise OSError.

    One that has a seal is not sealed again as it is: what was lost or changed since would count as good.
    """
    for one in store.checkpoints():
        if not one.is_sealed or (one.name, one.step) != (name, step):
            continue
        with suppress(CheckpointError):  # a damaged seal says nothing
            number = len(one.manifest().files)
            why = _why_sealed(one)
            if why is None:
                return Found(name, step, is_sealed=True)
            if why and number > 1:
                why += f"; if it is complete nevertheless, remove its seal: {one.manifest_path}"
                return Found(name, step, why, is_whole=False)
    return judge(store, name, step, tracker, tracked, now)


def seal(store: StoreDirectory, name: str, step: int, **fields: Any) -> Checkpoint:
    """Write a framework's checkpoint to disk, digest it, and seal it; return it. An earlier seal is replaced.

    Args:
        store: the directory of checkpoints.
        name: a directory or a file in it.
        step: number of completed steps.
        **fields: of the manifest, as known: run, attempt, label, world, metrics; and started_at, stall_s if it
            is sealed as part of its save.

    Raises:
        CheckpointError: it is not complete, or changed meanwhile (transient), or a newer attempt than `attempt` has
            begun. Nothing was written.
        OSError: what could not be read, or written.
    """
    path = store.path / name
    if "/" in name or name.startswith(".") or parse_committed(name) is not None:
        raise CheckpointError(f"{path} cannot be sealed", hint="seal a file or a directory that a framework saved")
    before = _content(path)
    if why := _incomplete(path, before):
        raise CheckpointError(f"{path} is not complete: {why}", hint="it is sealed once it is complete")
    algorithm = best_algorithm()
    files = tuple(
        FileEntry(one, *digest_file(_joined(path, one), algorithm, sync=True)) for one in sorted(before.files)
    )
    for directory in (*reversed(before.directories), "") if path.is_dir() else ():
        sync_directory(path / directory)
    if _content(path) != before:
        raise CheckpointError(f"{path} changed while it was read", hint="seal it once it is complete", transient=True)
    sync_directory(store.path)
    now = time.time()
    manifest = Manifest(
        **fields | {"token": new_token(), "step": step, "algorithm": algorithm, "files": files},
        durable_at=now if fields.get("started_at") else min(before.changed_at, now),
        directories=len(before.directories),
    )
    checkpoint = Checkpoint(store.path, name, step, seal_name(step, name))
    fence.check(store, manifest.attempt)
    replace_file(checkpoint.manifest_path, to_text(manifest), mode=0o644, durable=True)
    for other in os.listdir(store.own / SEALS):
        parsed = parse_seal(other)
        if parsed is not None and parsed[1] == name and other != checkpoint.seal:
            os.unlink(store.own / SEALS / other)
    return checkpoint


def remove_orphans(store: StoreDirectory) -> int:
    """Remove the seals of checkpoints that their framework has deleted; return how many. Raise OSError."""
    seals, count = os.listdir(store.own / SEALS), 0  # listed first: a new checkpoint is there before its seal
    names = set(os.listdir(store.path))
    for file_name in seals:
        parsed = parse_seal(file_name)
        if parsed is not None and parsed[1] not in names:
            with suppress(FileNotFoundError):
                os.unlink(store.own / SEALS / file_name)
                count += 1
    return count


def seal_job(job: dict[str, Any]) -> dict[str, Any]:
    """Do a job of the worker: `store`, `name`, `step`, and the fields of the manifest that are known."""
    store = StoreDirectory.create(job["store"], job.get("run", ""))
    fields = {key: job[key] for key in _FIELDS if key in job}
    manifest = seal(store, job["name"], job["step"], **fields).manifest()
    return {"name": job["name"], "bytes": manifest.size_bytes, "inodes": manifest.inodes}


def _content(path: Path) -> _Content:
    listing = list_files(path)
    stats = {one: os.lstat(_joined(path, one)) for one in listing.sizes}
    files = {one: (info.st_size, info.st_mtime_ns, info.st_ino) for one, info in stats.items()}
    return _Content(files, tuple(listing.directories))


def _incomplete(path: Path, content: _Content) -> str:
    """Return why a checkpoint is not complete, as far as its files show; empty if they show nothing."""
    if path.is_symlink():
        return "it is a link"
    if not content.files:
        return "there is no file in it"
    if _HF_FIRST in content.files and _HF_LAST not in content.files:
        return f"{_HF_LAST}, which is written last, is missing"
    is_file = "" in content.files
    sizes = {(path.name if is_file else one): size for one, (size, _, _) in content.files.items()}
    fault: Fault | None = check_content(Content(path.parent if is_file else path, sizes))
    return str(fault or "")


def _joined(path: Path, inside: str) -> Path:
    return path / inside if inside else path
