"""The directories of a scan in order, and their totals."""

from __future__ import annotations

import errno

from resilience.watch.scan.tree import READ, UNREAD, UNREADABLE, Record, Tree, build, joined


def tree_of(*records: Record) -> Tree:
    return build({record.path: record for record in records})


def directory(path: bytes, inode: int, *children: bytes, blocks: int = 8, files: int = 1) -> Record:
    return Record(path, READ, inode, 5, 100, blocks, files, children=children)


def paths(tree: Tree) -> list[bytes]:
    return [record.path for record in tree.records]


def test_each_directory_is_followed_by_its_subtree() -> None:
    tree = tree_of(directory(b"", 1, b"a", b"b"), directory(b"a", 2, b"x"), directory(b"b", 3), directory(b"a/x", 4))
    assert paths(tree) == [b"", b"a", b"a/x", b"b"]
    assert tree.below() == [[1, 3], [2], [], []]
    assert tree.blocks == [32, 16, 8, 8]
    assert tree.directories == [4, 2, 1, 1]


def test_an_unread_directory_is_a_row_and_its_ancestors_are_lower_bounds() -> None:
    tree = tree_of(directory(b"", 1, b"a", b"b"), directory(b"a", 2))
    assert tree.in_state(UNREAD) == (Record(b"b"),)
    assert tree.missing == [1, 0, 1]


def test_a_deleted_directory_is_left_out() -> None:
    tree = tree_of(directory(b"", 1, b"a"), Record(b"a", UNREADABLE, trouble=errno.ENOENT))
    assert paths(tree) == [b""]
    assert tree.missing == [0]


def test_a_directory_with_two_paths_counts_once() -> None:
    tree = tree_of(directory(b"", 1, b"a", b"loop"), directory(b"a", 2), directory(b"loop", 1, b"a", b"loop"))
    assert paths(tree) == [b"", b"a"]


def test_a_file_linked_in_several_directories_counts_in_the_first() -> None:
    shared = ((9, 8),)
    tree = tree_of(
        directory(b"", 1, b"a", b"b", blocks=0, files=0),
        directory(b"a", 2)._replace(links=shared),
        directory(b"b", 3)._replace(links=shared),
    )
    assert (tree.blocks, tree.files) == ([8, 8, 0], [1, 1, 0])


def test_thousands_of_nested_directories_need_no_recursion() -> None:
    records, path = [], b""
    for depth in range(3000):
        records.append(directory(path, depth + 1, b"d"))
        path = path + b"/d" if path else b"d"
    assert tree_of(*records, directory(path, 9999)).directories[0] == 3001


def test_paths_directly_below_the_root_have_no_leading_slash() -> None:
    assert (joined(b"", b"a"), joined(b"a", b"b")) == (b"a", b"a/b")
