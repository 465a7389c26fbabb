"""The directories of a scan as columns, each directory before those below it, and what they add up to. Pure."""

from __future__ import annotations

import errno
from array import array
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

READ, UNREAD, PARTIAL, UNREADABLE, ELSEWHERE, STUCK = range(6)
"""What became of a directory: read to its end; not yet read; a part was read before the deadline; may not be read, or
is broken; another file system or mount begins there; whoever looked did not come back."""

UNTRUSTED = -1
"""An mtime that equals none: the directory was changing while it was read, so it must be read again."""

BLOCK_BYTES = 512
"""The unit of st_blocks, whatever the file system's own (stat(2), inode(7))."""


MOST_HOT = 500
"""Files that are looked at again at each scan, of all directories together."""


class Hot(NamedTuple):
    """A file that may grow in place, which its directory's mtime would not tell: looked at again at each scan.

    Attributes:
        name: its name in the directory.
        blocks: allocated, of 512 bytes.
        mtime: whole seconds since the epoch.
    """

    name: bytes
    blocks: int
    mtime: int


class Record(NamedTuple):
    """One directory: itself and the files that lie in it, without the directories below.

    Attributes:
        path: from the root of the scan, with slashes; empty for the root.
        state: READ, UNREAD, ...
        inode: the directory's own.
        mtime_ns: of the directory when it was read; UNTRUSTED when it was changing.
        read_at: when it was read, whole seconds since the epoch; 0 for never.
        blocks: allocated to the directory and its files, of 512 bytes each.
        files: everything in it that is no directory.
        newest: the newest mtime among the files and the directory, whole seconds since the epoch.
        uid: whose files hold most of the blocks; the directory's owner if it holds none.
        checkpoint_blocks: allocated to files that are checkpoints by their name.
        trouble: the errno that kept it from being read, or 0.
        links: (inode, blocks) of each file here that has several names.
        hot: files that may grow in place.
        children: names of the directories in it, sorted.
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
    hot: tuple[Hot, ...] = ()
    children: tuple[bytes, ...] = ()

    def plain(self) -> tuple[Any, ...]:
        """As marshal takes it: it knows no named tuples."""
        return (*self[:12], tuple(map(tuple, self.hot)), self.children)

    @classmethod
    def from_plain(cls, values: tuple[Any, ...]) -> Record:
        """What `plain` was given."""
        record = cls(*values)
        return record._replace(hot=tuple(Hot(*hot) for hot in record.hot)) if record.hot else record


def joined(parent: bytes, name: bytes) -> bytes:
    """The path of a directory in a directory. Pure."""
    return parent + b"/" + name if parent else name


NUMBERS = {
    "parent": "i",
    "state": "b",
    "inode": "Q",
    "mtime_ns": "q",
    "read_at": "q",
    "blocks": "q",
    "files": "q",
    "newest": "q",
    "uid": "q",
    "checkpoint_blocks": "q",
    "trouble": "i",
}
"""The columns of numbers in the order in which they lie in the cache, and how each number is kept (module array)."""

_WHOLE = frozenset({READ, ELSEWHERE})


@dataclass(slots=True)
class Tree:
    """One row for each directory; row 0 is the root, and the directories below row i come right after it.

    Attributes:
        names: of each directory in its parent; empty for the root.
        parent: row of the directory that it lies in; -1 for the root.
        links: by row, (inode, blocks) of files with several names.
        hot: by row, files that may grow in place.

    The others are the columns of `Record`.
    """

    names: list[bytes]
    parent: array[int]
    state: array[int]
    inode: array[int]
    mtime_ns: array[int]
    read_at: array[int]
    blocks: array[int]
    files: array[int]
    newest: array[int]
    uid: array[int]
    checkpoint_blocks: array[int]
    trouble: array[int]
    links: dict[int, tuple[tuple[int, int], ...]] = field(default_factory=dict)
    hot: dict[int, tuple[Hot, ...]] = field(default_factory=dict)
    _paths: list[bytes] = field(default_factory=list)

    def __len__(self) -> int:
        return len(self.names)

    @classmethod
    def of_columns(cls, names: list[bytes], columns: Mapping[str, array[int]]) -> Tree:
        """A tree of columns that are there already, by their names."""
        return cls(names, *(columns[name] for name in NUMBERS))  # type: ignore[arg-type]

    @property
    def paths(self) -> list[bytes]:
        """The path of each directory from the root of the scan."""
        if not self._paths:
            paths = [b""]
            for name, parent in zip(self.names[1:], self.parent[1:], strict=True):
                above = paths[parent]
                paths.append(above + b"/" + name if above else name)
            self._paths = paths
        return self._paths

    def below(self) -> list[list[int]]:
        """For each row, the rows of the directories right in it."""
        children: list[list[int]] = [[] for _ in self.names]
        for row in range(1, len(self.names)):
            children[self.parent[row]].append(row)
        return children

    def ends(self) -> list[int]:
        """For each row, the first row after it that is not below it."""
        ends = list(range(1, len(self.names) + 1))
        for row in range(len(self.names) - 1, 0, -1):
            above = self.parent[row]
            if ends[row] > ends[above]:
                ends[above] = ends[row]
        return ends

    def records(self) -> Iterator[Record]:
        """Each row as a record."""
        children = self.below()
        for row, path in enumerate(self.paths):
            yield Record(
                path, self.state[row], self.inode[row], self.mtime_ns[row], self.read_at[row], self.blocks[row],
                self.files[row], self.newest[row], self.uid[row], self.checkpoint_blocks[row], self.trouble[row],
                self.links.get(row, ()), self.hot.get(row, ()), tuple(self.names[child] for child in children[row]),
            )  # fmt: skip

    def totals(self) -> Totals:
        """What each directory adds up to with all below it; a file with several names counts once, at its first."""
        blocks, files = list(self.blocks), list(self.files)
        seen: set[int] = set()
        for row in sorted(self.links):
            for inode, count in self.links[row]:
                if inode in seen:
                    blocks[row] -= count
                    files[row] -= 1
                seen.add(inode)
        own_files = list(files)
        directories = [1] * len(self.names)
        newest = list(self.newest)
        missing = [int(state not in _WHOLE) for state in self.state]
        parent = list(self.parent)
        for row in range(len(parent) - 1, 0, -1):
            above = parent[row]
            blocks[above] += blocks[row]
            files[above] += files[row]
            directories[above] += directories[row]
            if newest[row] > newest[above]:
                newest[above] = newest[row]
            if missing[row]:
                missing[above] += missing[row]
        return Totals(blocks, files, own_files, directories, newest, missing)


@dataclass(frozen=True, slots=True)
class Totals:
    """By row, what a directory adds up to with all below it.

    Attributes:
        blocks: of 512 bytes.
        files: everything that is no directory.
        own_files: those right in the directory.
        directories: itself included.
        newest: the newest change, whole seconds since the epoch.
        missing: directories that were not read to their end: above zero, the others are lower bounds.
    """

    blocks: list[int]
    files: list[int]
    own_files: list[int]
    directories: list[int]
    newest: list[int]
    missing: list[int]


def tree_of(rows: Sequence[Record], parents: Sequence[int]) -> Tree:
    """A tree of rows that are in order already."""
    columns = {name: array(kind) for name, kind in NUMBERS.items()}
    columns["parent"].extend(parents)
    for name, column in columns.items():
        if name != "parent":
            column.extend([getattr(record, name) for record in rows])
    tree = Tree.of_columns([record.path.rpartition(b"/")[2] for record in rows], columns)
    for number, record in enumerate(rows):
        if record.links:
            tree.links[number] = record.links
        if record.hot:
            tree.hot[number] = record.hot
    return tree


def grow(records: Mapping[bytes, Record]) -> Tree:
    """Put records in order: each directory is followed by what lies below it, by name. Pure.

    A directory that its parent names and nobody has read is a row that says so. One that vanished meanwhile is left
    out, and so is one that was met already under another path: a loop of mounts is not walked round.
    """
    rows: list[Record] = []
    parents: list[int] = []
    seen: set[int] = set()
    ahead: list[tuple[bytes, int]] = [(b"", -1)]
    while ahead:
        path, parent = ahead.pop()
        record = records.get(path) or Record(path)
        if (record.trouble == errno.ENOENT and path) or (record.inode and record.inode in seen):
            continue
        if record.inode and record.state != ELSEWHERE:
            seen.add(record.inode)
        row = len(rows)
        rows.append(record)
        parents.append(parent)
        ahead += [(joined(path, name), row) for name in reversed(record.children)]
    return tree_of(rows, parents)


def due(tree: Tree, now: float, full_pass_s: float) -> list[int]:
    """The rows whose directories are due to be read again although they seem unchanged: the full pass. Pure."""
    before = now - full_pass_s
    return [row for row, read_at in enumerate(tree.read_at) if read_at <= before or read_at > now + full_pass_s]


def unknown(tree: Tree) -> list[int]:
    """The rows that must be read in any case: never read, or only in part, not readable before, or barred. Pure."""
    return [
        row
        for row, (state, mtime_ns) in enumerate(zip(tree.state, tree.mtime_ns, strict=True))
        if state != READ or mtime_ns == UNTRUSTED
    ]
