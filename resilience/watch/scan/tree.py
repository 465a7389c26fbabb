"""The directories of a scan, each before its subdirectories, and their totals. Pure."""

from __future__ import annotations

import errno
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

READ, UNREAD, PARTIAL, UNREADABLE, ELSEWHERE, STUCK = range(6)
"""The state of a directory: fully read; not read yet; partly read at the deadline; not readable (permissions or I/O
error); the root of another mount; a worker hung in it."""

UNTRUSTED = -1
"""An mtime that never matches: the directory changed while it was read, so it must be read again."""

BLOCK_BYTES = 512
"""The unit of st_blocks on every file system (stat(2), inode(7))."""


class Record(NamedTuple):
    """One directory and its files, without its subdirectories. Its fields are plain values, for marshal.

    Attributes:
        path: relative to the root of the scan; empty for the root.
        state: READ, UNREAD, ...
        inode: the directory's own; 0 if unknown.
        mtime_ns: of the directory when it was read; UNTRUSTED if it changed meanwhile.
        read_at: when it was read, whole seconds since the epoch; 0 for never.
        blocks: allocated to the directory and its files, of 512 bytes each.
        files: entries that are not directories.
        newest: the newest mtime among the files and the directory, whole seconds since the epoch.
        uid: the owner of most of the files' blocks; the directory's owner if there are no files.
        checkpoint_blocks: allocated to files with the name of a checkpoint.
        trouble: the errno of the read error, or 0.
        links: (inode, blocks) of each file with several hard links.
        remembered: (name, blocks, mtime in whole seconds) of files that the next scan looks at again.
        children: names of the subdirectories, sorted.
    """

    path: bytes
    state: int = UNREAD
    inode: int = 0
    mtime_ns: int = UNTRUSTED
    read_at: int = 0
    blocks: int = 0
    files: int = 0
    newest: int = 0
    uid: int = -1
    checkpoint_blocks: int = 0
    trouble: int = 0
    links: tuple[tuple[int, int], ...] = ()
    remembered: tuple[tuple[bytes, int, int], ...] = ()
    children: tuple[bytes, ...] = ()


def joined(parent: bytes, name: bytes) -> bytes:
    """Return the path of an entry of a directory. Pure."""
    return parent + b"/" + name if parent else name


@dataclass(frozen=True, slots=True)
class Tree:
    """One row per directory: row 0 is the root; the rows below row i follow it, `directories[i]` of them with itself.

    Attributes:
        records: the directories.
        parent: row of the parent directory; -1 for the root.
        blocks: of 512 bytes, in the whole subtree, as the others below. A file with several hard links counts once.
        files: entries that are not directories.
        directories: including the directory itself.
        newest: the newest change, whole seconds since the epoch.
        missing: directories not fully read; if there are any, the other totals are lower bounds.
    """

    records: Sequence[Record]
    parent: Sequence[int]
    blocks: Sequence[int]
    files: Sequence[int]
    directories: Sequence[int]
    newest: Sequence[int]
    missing: Sequence[int]

    def __len__(self) -> int:
        return len(self.records)

    def below(self) -> list[list[int]]:
        """Return, for each row, the rows of its subdirectories."""
        children: list[list[int]] = [[] for _ in self.records]
        for row in range(1, len(self.records)):
            children[self.parent[row]].append(row)
        return children

    def in_state(self, *states: int) -> tuple[Record, ...]:
        """Return the directories in these states."""
        return tuple(record for record in self.records if record.state in states)


def build(records: Mapping[bytes, Record]) -> Tree:
    """Return the directories that are reachable from the root, with their totals. Pure.

    A directory that its parent lists but that was not read gets an UNREAD row. Directories deleted meanwhile are left
    out, and so are those already seen under another path, such as a loop of bind mounts.
    """
    rows: list[Record] = []
    parent: list[int] = []
    seen: set[int] = set()
    ahead: list[tuple[bytes, int]] = [(b"", -1)]
    while ahead:
        path, above = ahead.pop()
        record = records.get(path) or Record(path)
        if (record.trouble == errno.ENOENT and path) or record.inode in seen:
            continue
        if record.inode and record.state != ELSEWHERE:
            seen.add(record.inode)
        row = len(rows)
        rows.append(record)
        parent.append(above)
        ahead += [(joined(path, name), row) for name in reversed(record.children)]
    return _with_totals(rows, parent)


def _with_totals(rows: list[Record], parent: list[int]) -> Tree:
    blocks, files = [record.blocks for record in rows], [record.files for record in rows]
    newest, directories = [record.newest for record in rows], [1] * len(rows)
    missing = [int(record.state not in (READ, ELSEWHERE)) for record in rows]
    seen: set[int] = set()
    for row, record in enumerate(rows):
        for inode, count in record.links:
            if inode in seen:
                blocks[row] -= count
                files[row] -= 1
            seen.add(inode)
    for row in range(len(rows) - 1, 0, -1):
        above = parent[row]
        blocks[above] += blocks[row]
        files[above] += files[row]
        directories[above] += directories[row]
        missing[above] += missing[row]
        newest[above] = max(newest[above], newest[row])
    return Tree(rows, parent, blocks, files, directories, newest, missing)
