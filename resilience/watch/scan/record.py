"""What is remembered of one folder, as plain values: they travel through pipes and lie in the cache."""

from __future__ import annotations

from typing import Any, NamedTuple

READ, UNREAD, PARTIAL, UNREADABLE, ELSEWHERE, STUCK = range(6)
"""What became of a folder: read to its end; not yet read; a part was read before the deadline; may not be read, or is
broken; another file system or mount begins there; whoever looked did not come back."""

UNTRUSTED = -1
"""An mtime that equals none: the folder was changing while it was read, so it must be read again."""

BLOCK_BYTES = 512
"""The unit of st_blocks, whatever the file system's own (stat(2), inode(7))."""


MOST_HOT = 500
"""Files that are looked at again at each scan, of all folders together."""


class Hot(NamedTuple):
    """A file that may grow in place, which its folder's mtime would not tell: looked at again at each scan.

    Attributes:
        name: its name in the folder.
        blocks: allocated, of 512 bytes.
        mtime: whole seconds since the epoch.
    """

    name: bytes
    blocks: int
    mtime: int


class Record(NamedTuple):
    """One folder: itself and the files that lie in it, without the folders below.

    Attributes:
        path: from the root of the scan, with slashes; empty for the root.
        state: READ, UNREAD, ...
        inode: the folder's own.
        mtime_ns: of the folder when it was read; UNTRUSTED when it was changing.
        read_at: when it was read, whole seconds since the epoch; 0 for never.
        blocks: allocated to the folder and its files, of 512 bytes each.
        files: everything in it that is no folder.
        newest: the newest mtime among the files and the folder, whole seconds since the epoch.
        uid: whose files hold most of the blocks; the folder's owner if it holds none.
        checkpoint_blocks: allocated to files that are checkpoints by their name.
        trouble: the errno that kept it from being read, or 0.
        links: (inode, blocks) of each file here that has several names.
        hot: files that may grow in place.
        children: names of the folders in it, sorted.
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
    """The path of a folder in a folder. Pure."""
    return parent + b"/" + name if parent else name
