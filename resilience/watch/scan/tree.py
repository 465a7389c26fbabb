"""The directories of a scan as columns, each directory before its subdirectories, and their totals. Pure."""

from __future__ import annotations

import errno
from array import array
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

READ, UNREAD, PARTIAL, UNREADABLE, ELSEWHERE, STUCK = range(6)
"""The state of a directory: fully read; not read yet; partly read at the deadline; not readable (permissions or I/O
error); the root of another mount; a worker hung in it."""

UNTRUSTED = -1
"""An mtime that never matches: the directory changed while it was read, so it must be read again."""

BLOCK_BYTES = 512
"""The unit of st_blocks on every file system (stat(2), inode(7))."""

MOST_HOT = 500
"""Hot files, over all directories: each scan checks them again."""


class Hot(NamedTuple):
    """A file that may grow in place, which does not change its directory's mtime: each scan checks it again.

    Attributes:
        name: its name in the directory.
        blocks: allocated, of 512 bytes each.
        mtime: whole seconds since the epoch.
    """

    name: bytes
    blocks: int
    mtime: int


class Record(NamedTuple):
    """One directory and its files, without its subdirectories.

    Attributes:
        path: relative to the root of the scan; empty for the root.
        state: READ, UNREAD, ...
        inode: the directory's own.
        mtime_ns: of the directory when it was read; UNTRUSTED if it changed meanwhile.
        read_at: when it was read, whole seconds since the epoch; 0 for never.
        blocks: allocated to the directory and its files, of 512 bytes each.
        files: entries that are not directories.
        newest: the newest mtime among the files and the directory, whole seconds since the epoch.
        uid: the owner of most of the files' blocks; the directory's owner if there are no files.
        checkpoint_blocks: allocated to files with the name of a checkpoint.
        trouble: the errno of the read error, or 0.
        links: (inode, blocks) of each file with several hard links.
        hot: files that may grow in place.
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
    hot: tuple[Hot, ...] = ()
    children: tuple[bytes, ...] = ()

    def plain(self) -> tuple[Any, ...]:
        """Return plain tuples: marshal does not support named tuples."""
        return (*self[:12], tuple(map(tuple, self.hot)), self.children)

    @classmethod
    def from_plain(cls, values: tuple[Any, ...]) -> Record:
        """Return the record that `plain` was called on."""
        record = cls(*values)
        return record._replace(hot=tuple(Hot(*hot) for hot in record.hot)) if record.hot else record


def joined(parent: bytes, name: bytes) -> bytes:
    """Return the path of an entry of a directory. Pure."""
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
"""The numeric columns in the order of the cache file, with their type codes (module array)."""

_WHOLE = frozenset({READ, ELSEWHERE})


@dataclass(slots=True)
class Tree:
    """One row per directory: row 0 is the root, and the directories below row i follow it.

    Attributes:
        names: of each directory within its parent; empty for the root.
        parent: row of the parent directory; -1 for the root.
        links: by row, (inode, blocks) of files with several hard links.
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
        """Return a tree with these columns, given by name."""
        return cls(names, *(columns[name] for name in NUMBERS))  # type: ignore[arg-type]

    @property
    def paths(self) -> list[bytes]:
        """The path of each directory, relative to the root of the scan."""
        if not self._paths:
            paths = [b""]
            for name, parent in zip(self.names[1:], self.parent[1:], strict=True):
                above = paths[parent]
                paths.append(above + b"/" + name if above else name)
            self._paths = paths
        return self._paths

    def below(self) -> list[list[int]]:
        """Return, for each row, the rows of its subdirectories."""
        children: list[list[int]] = [[] for _ in self.names]
        for row in range(1, len(self.names)):
            children[self.parent[row]].append(row)
        return children

    def ends(self) -> list[int]:
        """Return, for each row, the first row after it that is not below it."""
        ends = list(range(1, len(self.names) + 1))
        for row in range(len(self.names) - 1, 0, -1):
            above = self.parent[row]
            if ends[row] > ends[above]:
                ends[above] = ends[row]
        return ends

    def records(self) -> Iterator[Record]:
        """Yield each row as a record."""
        children = self.below()
        for row, path in enumerate(self.paths):
            yield Record(
                path, self.state[row], self.inode[row], self.mtime_ns[row], self.read_at[row], self.blocks[row],
                self.files[row], self.newest[row], self.uid[row], self.checkpoint_blocks[row], self.trouble[row],
                self.links.get(row, ()), self.hot.get(row, ()), tuple(self.names[child] for child in children[row]),
            )  # fmt: skip

    def totals(self) -> Totals:
        """Return the totals of each subtree; a file with several hard links counts once, at the first."""
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
    """By row, the totals of a directory and everything below it.

    Attributes:
        blocks: of 512 bytes.
        files: entries that are not directories.
        own_files: those directly in the directory.
        directories: including the directory itself.
        newest: the newest change, whole seconds since the epoch.
        missing: directories not fully read; if there are any, the other totals are lower bounds.
    """

    blocks: list[int]
    files: list[int]
    own_files: list[int]
    directories: list[int]
    newest: list[int]
    missing: list[int]


def tree_of(rows: Sequence[Record], parents: Sequence[int]) -> Tree:
    """Return a tree of rows that are already in order."""
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
    """Return the records as a tree: each directory is followed by its subdirectories, by name. Pure.

    A directory that its parent lists but that was not read gets an UNREAD row. Directories deleted meanwhile are left
    out, and so are those already seen under another path, such as a loop of bind mounts.
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
    """Return the rows of directories due for the full pass: to be read again although unchanged. Pure."""
    before = now - full_pass_s
    return [row for row, read_at in enumerate(tree.read_at) if read_at <= before or read_at > now + full_pass_s]


def unknown(tree: Tree) -> list[int]:
    """Return the rows that must be read in any case: never or only partly read, unreadable, or mount points. Pure."""
    return [
        row
        for row, (state, mtime_ns) in enumerate(zip(tree.state, tree.mtime_ns, strict=True))
        if state != READ or mtime_ns == UNTRUSTED
    ]
