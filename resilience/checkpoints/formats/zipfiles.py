"""Zip files: `torch.save` (.pt, .pth, .ckpt, .bin) and `numpy.savez` (.npz). The central directory closes the file.

A `torch.save` file of the old kind is a pickle without any structure that can be checked: only its size and digest are.
Format: https://pkware.cachefly.net/webdocs/casestudies/APPNOTE.TXT, 4.3. The standard library's zipfile is no help: it
says "not a zip file" also when reading fails, and accepts files with a part missing in the middle.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator

from resilience.checkpoints.formats import Content, Fault

ALWAYS, MAYBE = (".npz",), (".pt", ".pth", ".ckpt")
_LOCAL, _ENTRY, _END, _END64, _LOCATOR = b"PK\3\4", b"PK\1\2", b"PK\5\6", b"PK\6\6", b"PK\6\7"
_MOST_DIRECTORY_BYTES = 8 * 2**20
"""A longer central directory (80,000 tensors) is not read: a child of the store has 32 MiB."""


def check(content: Content) -> Iterator[Fault]:
    """Yield the faults of files that are one zip archive."""
    for path, size in content.sizes.items():
        if not path.endswith((*ALWAYS, *MAYBE, ".bin")):
            continue
        if not size:
            if not path.endswith(".bin"):  # any data may have this name
                yield Fault(path, "a zip file", "0 bytes", "is empty")
        elif _LOCAL.startswith(content.read(path, 4)):  # also one that was cut off within these bytes
            yield from check_zip(content, path)
        elif path.endswith(ALWAYS) or content.read(path, 4, -22) == _END:
            yield Fault(path, "PK\\3\\4 at byte 0", "other bytes", "is damaged")


def check_zip(content: Content, path: str, *, is_last_of_several: bool = False) -> Iterator[Fault]:
    """Yield the faults of a file that begins as a zip archive and has to end as one. Raise OSError.

    Args:
        content: the checkpoint.
        path: of the file in it.
        is_last_of_several: the file is a sequence of archives; only the last one is checked.
    """
    size = content.sizes[path]
    tail = content.read(path, 22, -22)
    if tail[:4] != _END or len(tail) < 22:  # a comment may follow
        tail = content.read(path, 22 + 0xFFFF, -22 - 0xFFFF)
        at = tail.rfind(_END)
        while at >= 0 and at + 22 + int.from_bytes(tail[at + 20 : at + 22], "little") != len(tail):
            at = tail.rfind(_END, 0, at)
        if at < 0:
            found = f"none at the end of {size:,} bytes"
            yield Fault(path, "the end record of a zip file", found, "is truncated or damaged")
            return
        tail = tail[at:]
    end = size - len(tail)
    count, directory_size, offset = struct.unpack("<HII", tail[10:20])
    locator = content.read(path, 20, end - 20) if end >= 76 else b""
    if locator[:4] == _LOCATOR:
        record = content.read(path, 56, end - 76)
        if record[:4] != _END64:
            yield Fault(path, f"PK\\6\\6 at byte {end - 76:,}", "other bytes", "is damaged")
            return
        count, directory_size, offset = struct.unpack("<QQQ", record[32:56])
        end -= 76
    before = end - directory_size - offset  # archives before this one
    if before < 0 or (before > 0 and not is_last_of_several):
        words = f"{-before:,} bytes less" if before < 0 else f"{before:,} bytes more"
        yield Fault(path, f"a zip directory at byte {offset:,}", words, "lacks data" if before < 0 else "is damaged")
    elif directory_size <= _MOST_DIRECTORY_BYTES:
        yield from _check_entries(path, content.read(path, directory_size, offset + before), count, offset)


def _check_entries(path: str, directory: bytes, count: int, end: int) -> Iterator[Fault]:
    """Check that the members lie one after the other from byte 0 to `end`, where the directory begins."""
    at = last = 0
    for number in range(count):
        if directory[at : at + 4] != _ENTRY or len(directory) < at + 46:
            yield Fault(path, f"{count:,} members in the zip directory", f"{number:,}", "is damaged")
            return
        size, full_size, name, extra, comment = struct.unpack("<IIHHH", directory[at + 20 : at + 34])
        offset = int.from_bytes(directory[at + 42 : at + 46], "little")
        size, offset = _wide(directory[at + 46 + name : at + 46 + name + extra], size, full_size, offset)
        if offset < last or (not number and offset):
            member = directory[at + 46 : at + 46 + name].decode("utf-8", "replace")
            where = f"byte {last:,} or later" if number else "byte 0"
            yield Fault(path, f"its member {member} at {where}", f"byte {offset:,}", "is damaged")
        last = offset + 30 + name + size
        at += 46 + name + extra + comment
    if at != len(directory):
        yield Fault(path, f"a zip directory of {at:,} bytes", f"{len(directory):,} bytes", "is damaged")
    if last > end:
        yield Fault(path, f"members up to byte {end:,}", f"up to byte {last:,}", "is damaged")


def _wide(extra: bytes, size: int, full_size: int, offset: int) -> tuple[int, int]:
    """Return compressed size and offset, from the zip64 field where the 32 bit fields are full (4.5.3)."""
    at = 0
    while at + 4 <= len(extra):
        kind, length = struct.unpack("<HH", extra[at : at + 4])
        if kind == 1:
            wide = [int.from_bytes(extra[i : i + 8], "little") for i in range(at + 4, at + 4 + length - 7, 8)]
            if full_size == 0xFFFFFFFF and wide:
                wide.pop(0)
            if size == 0xFFFFFFFF and wide:
                size = wide.pop(0)
            if offset == 0xFFFFFFFF and wide:
                offset = wide.pop(0)
        at += 4 + length
    return size, offset
