"""Alters a checkpoint: a copy is made, altered, read back and made durable; then it gets its name, at once.

In place, too: the original is replaced by its altered copy, after the record that undoes it is on disk. So a kill
leaves the one or the other; a file that other checkpoints share by a hard link stays theirs.
"""

from __future__ import annotations

import hashlib
import os
import shutil
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass
from glob import escape
from pathlib import Path

from resilience.base.files import STALE_S, remove_stale, replace_file, sync_directory
from resilience.errors import CheckpointError, UsageError
from resilience.inject.checkpoint import in_use
from resilience.inject.checkpoint.layouts import Change, Layout, Location, find_layout
from resilience.inject.checkpoint.plan import Mapping, Plan, plan, replay
from resilience.inject.checkpoint.sequence import Patch, Record, from_text, to_text
from resilience.inject.checkpoint.settings import AlterationSettings
from resilience.messages import plural

ALTERED, RESTORED = "altered", "restored"
_BLOCK, _PAGE = 2**20, 4096
_GAP = 16
"""Old bytes between two changes that are nearer than this are kept with them."""


@dataclass(frozen=True, slots=True)
class Places:
    """Where an alteration reads and writes.

    Attributes:
        source: the checkpoint, without symbolic links.
        output: of the altered copy; the source itself: in place.
        sequence: where the record is saved; None: nowhere.
    """

    source: Path
    output: Path
    sequence: Path | None = None

    @property
    def is_in_place(self) -> bool:
        """Return whether the checkpoint itself is altered."""
        return self.output == self.source


@dataclass(frozen=True, slots=True)
class Look:
    """A checkpoint and what will be altered in it; nothing is written yet.

    Attributes:
        layout, locations: of the checkpoint.
        plan: what changes.
        stamp: sizes and times of its files.
    """

    layout: Layout
    locations: tuple[Location, ...]
    plan: Plan
    stamp: tuple[tuple[str, int, int], ...]


def choose_places(file: Path, output: Path | None, sequence: Path | None, *, in_place: bool, word: str) -> Places:
    """Return where to read and write; without `output` beside the checkpoint, with `word`, ALTERED or RESTORED, in the
    name. What is altered in place always has a record. Raise UsageError for what contradicts."""
    if not file.exists():
        raise UsageError(f"there is no file {file}", hint="name a checkpoint: resil inject checkpoint model.pt")
    if not file.is_file() and not file.is_dir():
        raise UsageError(f"{file} is no file and no directory", hint="name a checkpoint")
    source = file.resolve()
    sequence = None if sequence is None else sequence.parent.resolve() / sequence.name
    if in_place:
        if output is not None:
            raise UsageError("--output and --in-place exclude each other", hint="give one of them")
        return Places(
            source, source, sequence or (source.with_name(f"{source.name}.undo.json") if word == ALTERED else None)
        )
    if output is None:
        named = file if file.name not in ("", "..") else source  # of `.`, beside the directory
        stem, suffix = (named.stem, named.suffix) if source.is_file() else (named.name, "")
        output = named.with_name(f"{stem}.{word}{suffix}")
    if os.path.lexists(output):  # the checkpoint itself, too, by any of its names
        raise UsageError(f"{output} exists already", hint="name another file: --output FILE; or say --in-place")
    return Places(source, output.parent.resolve() / output.name, sequence)


def check_places(places: Places, is_alive: in_use.IsAlive) -> None:
    """Raise InUse or UsageError if writing there would harm a run, or a file. Raise OSError."""
    in_use.check_source(places.source, in_place=places.is_in_place)
    if places.is_in_place:
        in_use.check_in_place(places.source, is_alive)
    else:
        in_use.check_output(places.output)
    if places.output != places.source and places.output.is_relative_to(places.source):
        raise UsageError(f"{places.output} is in {places.source} itself", hint="name a directory beside it: --output")
    if places.sequence is not None:
        in_use.check_output(places.sequence, "--save-sequence")
        if places.sequence in (places.output, places.source) or places.sequence.is_relative_to(places.source):
            raise UsageError(f"{places.sequence} is the checkpoint, or in it", hint="name another: --save-sequence")


def look(
    source: Path, settings: AlterationSettings, seed: int, recorded: Record | None, mappings: Sequence[Mapping]
) -> Look:
    """Find out what changes: drawn, or as recorded. Raise UsageError, CheckpointError, OSError."""
    layout = find_layout(source)
    stamp = _stamp(source)
    locations = tuple(layout.locations(source))
    with layout.reading(source) as read:
        if recorded is None:
            found = plan(locations, settings, read, seed)
        else:
            found = replay(locations, recorded.alterations, mappings, read, allow_nan=settings.allow_nan)
    if found.gave_up and not found.alterations:
        raise CheckpointError(
            f"nothing can be altered: of {plural(found.gave_up, 'attempt')}, each change gives NaN or infinity",
            hint="--allow-nan accepts them; or choose other bits",
        )
    return Look(layout, locations, found, stamp)


def write(places: Places, seen: Look, settings: AlterationSettings) -> Record:
    """Write what was planned, and its record. Raise CheckpointError; OSError: then nothing is there that was not."""
    changes = seen.plan.changes
    files = (
        sorted({change.location.place(change.index)[0].file for change in changes}) if places.source.is_dir() else [""]
    )
    with _copy(places, files) as copy:
        if changes:
            seen.layout.store(copy, changes)
        _check_stored(copy, seen, changes)
        patches = [_patch(places.source, copy, name) for name in files]
        if _stamp(places.source) != seen.stamp:
            raise CheckpointError(f"{places.source} changed while it was read", hint="wait for its save, and retry")
        record = Record(
            places.source.name, seen.layout.name, seen.plan.seed, asdict(settings), seen.plan.alterations,
            tuple(one for one in patches if one.old or one.before_sha256 != one.after_sha256),
        )  # fmt: skip
        _finish(places, copy, record, [one.file for one in record.patches])
    return record


def undo(places: Places, record: Record, name: str, *, dry_run: bool = False) -> bool:
    """Make the original of an altered checkpoint again, to the byte; return False if it is the original already.
    `dry_run`: only find out whether that can be done.

    Raise CheckpointError if it is neither the altered one nor the original; OSError.
    """
    paths = {one: places.source / one.file for one in record.patches}
    if any(not path.is_file() for path in paths.values()):
        raise UsageError(f"{places.source} is not what {name} altered", hint="name the altered checkpoint")
    digests = {one: _digest(path) for one, path in paths.items()}
    if all(digests[one] == one.before_sha256 for one in record.patches):
        return False
    if bad := next((one for one in record.patches if digests[one] not in (one.before_sha256, one.after_sha256)), None):
        raise CheckpointError(
            f"{paths[bad]} is not what {name} altered: its SHA-256 is {digests[bad][:16]}..., and that of the altered"
            f" one {bad.after_sha256[:16]}...",
            hint="it was altered or saved again since: name the altered checkpoint itself",
        )
    if dry_run:
        return True
    stamp = _stamp(places.source)
    altered = [one for one in record.patches if digests[one] == one.after_sha256]
    with _copy(places, [one.file for one in altered]) as copy:
        for patch in altered:
            path = copy / patch.file
            with open(path, "r+b") as file:
                for offset, old in patch.old:
                    file.seek(offset)
                    file.write(old)
                file.truncate(patch.size)
            if _digest(path) != patch.before_sha256:
                raise CheckpointError(f"{name} does not restore {path.name}", hint="the record is damaged")
        if _stamp(places.source) != stamp:
            raise CheckpointError(f"{places.source} changed while it was read", hint="retry")
        _finish(places, copy, None, [one.file for one in altered])
    return True


def read_record(path: Path) -> Record:
    """Return the record in a file. Raise UsageError if it is none; OSError."""
    if not path.is_file():
        raise UsageError(f"there is no sequence {path}", hint="--save-sequence FILE writes one")
    return from_text(path.read_bytes(), str(path))


# ---- copies ---------------------------------------------------------------------------------------------------------


@contextmanager
def _copy(places: Places, files: Iterable[str]) -> Iterator[Path]:
    """Make a copy of the checkpoint beside the output, which is removed afterwards unless it was renamed. In place, and
    of a directory, it has only `files`."""
    output = places.output
    copy = output.with_name(f".{output.name}.{os.urandom(6).hex()}.tmp")
    try:
        if places.source.is_dir():
            copy.mkdir()
        for name in files if places.is_in_place else _files(places.source):
            (copy / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(places.source / name, copy / name)
            (copy / name).chmod((places.source / name).stat().st_mode & 0o777 | 0o600)
        _remove_left(output, copy.stat().st_mtime)
        yield copy
    finally:
        if copy.is_dir():
            shutil.rmtree(copy, ignore_errors=True)
        else:
            copy.unlink(missing_ok=True)


def _remove_left(output: Path, now: float) -> None:
    """Remove what was left by a kill: files and directories that nobody has written to for long. Never fails."""
    remove_stale(output.parent, now, of=output.name)
    with suppress(OSError):
        for path in output.parent.glob(f".{escape(output.name)}.*.tmp/"):
            if now - max(one.lstat().st_mtime for one in (path, *path.rglob("*"))) > STALE_S:
                shutil.rmtree(path, ignore_errors=True)


def _files(root: Path) -> list[str]:
    """Return the files of a checkpoint, relative to it; if it is a file: the empty name."""
    return sorted(str(one.relative_to(root)) for one in root.rglob("*") if one.is_file()) if root.is_dir() else [""]


def _finish(places: Places, copy: Path, record: Record | None, files: Sequence[str]) -> None:
    """Make the copy durable, then the record, then the name."""
    for path in sorted([copy, *copy.rglob("*")]):
        _sync(path, places.source / path.relative_to(copy))
    if record is not None and places.sequence is not None:
        replace_file(places.sequence, to_text(record), mode=0o644, durable=True)
    if places.is_in_place and copy.is_dir():
        for name in files:
            (copy / name).replace(places.source / name)
            sync_directory((places.source / name).parent)
        return
    if not places.is_in_place and os.path.lexists(places.output):
        raise UsageError(f"{places.output} exists by now", hint="name another file: --output FILE")
    try:
        copy.rename(places.output)
    except OSError:
        if record is not None and places.sequence is not None:
            places.sequence.unlink()  # of what was not altered
        raise
    sync_directory(places.output.parent)


def _sync(path: Path, original: Path) -> None:
    if path.is_dir():
        sync_directory(path)
        return
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        info = original.stat()
        with suppress(OSError):  # whose it is stays, where this user may say so
            os.fchown(descriptor, info.st_uid, info.st_gid)
        os.fchmod(descriptor, info.st_mode & 0o777)
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _check_stored(copy: Path, seen: Look, changes: Sequence[Change]) -> None:
    """Read back what was written: the stored bits are the planned ones. Raise CheckpointError."""
    with seen.layout.reading(copy) as read:
        for one in changes:
            if read(one.location, one.index) != one.bits:
                raise CheckpointError(
                    f"{one.location.name} {list(one.index)} was not stored as planned", hint="report this bug"
                )


def _stamp(root: Path) -> tuple[tuple[str, int, int], ...]:
    return tuple((name, info.st_size, info.st_mtime_ns) for name in _files(root) for info in ((root / name).stat(),))


def _digest(path: Path) -> str:
    with open(path, "rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _patch(source: Path, copy: Path, name: str) -> Patch:
    """Compare a file with its altered copy, and return what makes the one of the other."""
    before, after = hashlib.sha256(), hashlib.sha256()
    old: list[tuple[int, bytes]] = []
    at = size = 0
    with open(source / name, "rb") as first, open(copy / name, "rb") as second:
        while True:
            was, now = first.read(_BLOCK), second.read(_BLOCK)
            if not was and not now:
                break
            before.update(was)
            after.update(now)
            if was != now:
                old += [(at + begin, was[begin:end]) for begin, end in _differences(was, now)]
            at, size = at + _BLOCK, size + len(was)
    return Patch(name, size, before.hexdigest(), after.hexdigest(), tuple(old))


def _differences(was: bytes, now: bytes) -> Iterator[tuple[int, int]]:
    """Yield begin and end, in `was`, of what differs."""
    begin = end = -1
    for page in range(0, len(was), _PAGE):
        if was[page : page + _PAGE] == now[page : page + _PAGE]:
            continue
        for at in range(page, min(page + _PAGE, len(was))):
            if at >= len(now) or was[at] != now[at]:
                if begin >= 0 and at - end > _GAP:
                    yield begin, end
                    begin = -1
                begin, end = at if begin < 0 else begin, at + 1
    if begin >= 0:
        yield begin, end


def flip_bit(path: Path) -> int:
    """Flip the lowest bit in the middle of a file, in place, as a failing disk does. Return which byte's."""
    with open(path, "r+b") as file:
        middle = file.seek(0, os.SEEK_END) // 2
        file.seek(middle)
        (byte,) = file.read(1)
        file.seek(middle)
        file.write(bytes([byte ^ 1]))
    return middle
