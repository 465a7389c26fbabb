"""Members of zip files at their offsets, and checksums that follow what is written into them.

Format: https://pkware.cachefly.net/webdocs/casestudies/APPNOTE.TXT, 4.3. A reader of a zip file compares the CRC-32 of
each member: an altered tensor with the old one would not load, and the experiment would be about that.
"""

from __future__ import annotations

import io
import struct
import zipfile
import zlib
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import BinaryIO, NamedTuple

from resilience.inject.checkpoint.layouts import Change, damaged, store_at

_BLOCK = 2**20
_HAS_DESCRIPTOR = 0x08


class Member(NamedTuple):
    """A member of a zip file.

    Attributes:
        name: in the zip file.
        offset: of its data, from the begin of the file on disk.
        size: of its data there, in bytes.
        is_plain: whether the data is not compressed.
        header: offset of its local header.
        entry: offset of its entry in the central directory.
        flags: its general purpose bits.
    """

    name: str
    offset: int
    size: int
    is_plain: bool
    header: int
    entry: int
    flags: int


class _Window(io.RawIOBase):
    """A part of a file, as a file: one of the archives in a shard of DCP."""

    def __init__(self, file: BinaryIO, begin: int, size: int) -> None:
        self._file, self._begin, self._size, self._at = file, begin, size, 0

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def tell(self) -> int:
        return self._at

    def seek(self, offset: int, whence: int = 0) -> int:
        self._at = max(0, offset + (0, self._at, self._size)[whence])
        return self._at

    def read(self, size: int | None = -1) -> bytes:
        left = max(0, self._size - self._at)
        self._file.seek(self._begin + self._at)
        found = self._file.read(left if size is None or size < 0 else min(size, left))
        self._at += len(found)
        return found


class Archive:
    """A zip file, or a part of a file that is one.

    Attributes:
        members: by name.
        extent: where it begins in the file, and its size, in bytes.
    """

    def __init__(self, path: Path, begin: int = 0, size: int | None = None) -> None:
        """Read the central directory. Raise CheckpointError if there is none; OSError."""
        self._path = path
        self.extent = begin, path.stat().st_size - begin if size is None else size
        self.members: dict[str, Member] = {}
        try:
            with open(path, "rb") as file, zipfile.ZipFile(_Window(file, *self.extent)) as archive:
                entry = begin + archive.start_dir
                for info in archive.infolist():
                    file.seek(begin + info.header_offset)
                    local = file.read(30)
                    file.seek(entry)
                    central = file.read(46)
                    if local[:4] != b"PK\3\4" or central[:4] != b"PK\1\2":
                        raise zipfile.BadZipFile(f"the header of its member {info.filename} is missing")
                    offset = begin + info.header_offset + 30 + sum(struct.unpack("<HH", local[26:30]))
                    if offset + info.compress_size > sum(self.extent):
                        raise zipfile.BadZipFile(f"its member {info.filename} is cut off")
                    self.members[info.filename] = Member(
                        info.filename, offset, info.compress_size, info.compress_type == zipfile.ZIP_STORED,
                        begin + info.header_offset, entry, info.flag_bits,
                    )  # fmt: skip
                    entry += 46 + sum(struct.unpack("<HHH", central[28:34]))
        except (zipfile.BadZipFile, NotImplementedError, struct.error, ValueError) as error:
            raise damaged(path, error) from None

    def read(self, name: str) -> bytes:
        """Return the content of a member, which is checked. Raise CheckpointError; OSError."""
        try:
            with open(self._path, "rb") as file, zipfile.ZipFile(_Window(file, *self.extent)) as archive:
                return archive.read(name)
        except (zipfile.BadZipFile, NotImplementedError, RuntimeError, ValueError, zlib.error, EOFError) as error:
            raise damaged(self._path, error) from None

    def renew_checksums(self, offsets: Iterable[int]) -> None:
        """Write the checksums of the members that have one of these offsets in their data. Raise OSError."""
        places = sorted(offsets)
        with open(self._path, "r+b") as file:
            for member in self.members.values():
                if any(member.offset <= offset < member.offset + member.size for offset in places):
                    self._renew(file, member)

    def _renew(self, file: BinaryIO, member: Member) -> None:
        crc32, left = 0, member.size
        file.seek(member.offset)
        while left and (block := file.read(min(left, _BLOCK))):
            crc32, left = zlib.crc32(block, crc32), left - len(block)
        raw = struct.pack("<I", crc32)
        places = [member.entry + 16]
        if member.flags & _HAS_DESCRIPTOR:
            after = member.offset + member.size
            file.seek(after)
            places.append(after + 4 if file.read(4) == b"PK\7\x08" else after)
        file.seek(member.header + 14)
        if not member.flags & _HAS_DESCRIPTOR or file.read(4) != b"\0\0\0\0":
            places.append(member.header + 14)
        for place in places:
            file.seek(place)
            file.write(raw)


def store_in_archives(root: Path, changes: Sequence[Change]) -> None:
    """Write changes at their offsets, and the checksums of the members around them. Raise OSError."""
    store_at(root, changes)
    offsets: dict[tuple[str, tuple[int, int]], list[int]] = {}
    for change in changes:
        piece, offset = change.location.place(change.index)
        assert piece.archive is not None
        offsets.setdefault((piece.file, piece.archive), []).append(offset)
    for (name, (begin, size)), places in offsets.items():
        Archive(root / name, begin, size).renew_checksums(places)
