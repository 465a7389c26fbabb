"""The columns of a scan, and their totals."""

from __future__ import annotations

import errno
import marshal

from resilience.watch.scan.tree import (
    ELSEWHERE,
    PARTIAL,
    READ,
    UNREAD,
    UNREADABLE,
    UNTRUSTED,
    Hot,
    Record,
    Tree,
    due,
    grow,
    joined,
    unknown,
)


def tree_of(*records: Record) -> Tree:
    return grow({record.path: record for record in records})


def directory(path: bytes, inode: int, *children: bytes, blocks: int = 8, files: int = 1, **more: int) -> Record:
    return Record(path, READ, inode, 5, 100, blocks, files, children=children, **more)  # type: ignore[arg-type]


def test_each_directory_is_followed_by_its_subtree() -> None:
    tree = tree_of(directory(b"", 1, b"a", b"b"), directory(b"a", 2, b"x"), directory(b"b", 3), directory(b"a/x", 4))
    assert tree.paths == [b"", b"a", b"a/x", b"b"]
    assert tree.ends() == [4, 3, 3, 4]
    assert tree.below() == [[1, 3], [2], [], []]
    assert tree.totals().blocks == [32, 16, 8, 8]
    assert tree.totals().directories == [4, 2, 1, 1]


def test_an_unread_directory_is_a_row_and_its_ancestors_are_lower_bounds() -> None:
    tree = tree_of(directory(b"", 1, b"a", b"b"), directory(b"a", 2))
    assert tree.state[2] == UNREAD
    assert tree.totals().missing == [1, 0, 1]


def test_a_deleted_directory_is_left_out() -> None:
    tree = tree_of(directory(b"", 1, b"a"), Record(b"a", UNREADABLE, trouble=errno.ENOENT))
    assert tree.paths == [b""]
    assert tree.totals().missing == [0]


def test_a_directory_with_two_paths_counts_once() -> None:
    tree = tree_of(directory(b"", 1, b"a", b"loop"), directory(b"a", 2), directory(b"loop", 1, b"a", b"loop"))
    assert tree.paths == [b"", b"a"]


def test_a_file_linked_in_several_directories_counts_in_the_first() -> None:
    shared = ((9, 8),)
    tree = tree_of(
        directory(b"", 1, b"a", b"b", blocks=0, files=0),
        directory(b"a", 2)._replace(links=shared),
        directory(b"b", 3)._replace(links=shared),
    )
    assert tree.totals().blocks == [8, 8, 0]
    assert tree.totals().own_files == [0, 1, 0]


def test_rows_that_must_be_read_again() -> None:
    tree = tree_of(
        directory(b"", 1, b"changing", b"fine", b"new", b"old", b"other", b"part"),
        directory(b"changing", 2)._replace(mtime_ns=UNTRUSTED),
        directory(b"fine", 3),
        directory(b"old", 4)._replace(read_at=10),
        Record(b"other", ELSEWHERE, 5, read_at=100),
        directory(b"part", 6)._replace(state=PARTIAL),
    )
    assert [tree.paths[row] for row in unknown(tree)] == [b"changing", b"new", b"other", b"part"]
    assert [tree.paths[row] for row in due(tree, 120, 50)] == [b"new", b"old"]


def test_figures_from_the_future_are_read_again() -> None:
    assert due(tree_of(directory(b"", 1)), now=-1000, full_pass_s=50) == [0]


def test_thousands_of_nested_directories_need_no_recursion() -> None:
    records, path = [], b""
    for depth in range(3000):
        records.append(directory(path, depth + 1, b"d"))
        path = path + b"/d" if path else b"d"
    tree = tree_of(*records, directory(path, 9999))
    assert tree.totals().directories[0] == 3001
    assert tree.ends()[0] == 3001


def test_a_record_survives_serialization() -> None:
    record = Record(b"a/b\xff", READ, 2**64 - 1, 5, 6, 7, 8, 9, 10, 11, 0, ((1, 2),), (Hot(b"x", 1, 2),), (b"c",))
    assert Record.from_plain(marshal.loads(marshal.dumps(record.plain()))) == record
    assert Record.from_plain(marshal.loads(marshal.dumps(Record(b"").plain()))) == Record(b"")


def test_paths_directly_below_the_root_have_no_leading_slash() -> None:
    assert (joined(b"", b"a"), joined(b"a", b"b")) == (b"a", b"a/b")
