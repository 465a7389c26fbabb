"""The listed directories and their growth."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from resilience.errors import UsageError
from resilience.watch.scan.cache import snapshot
from resilience.watch.scan.top import checkpoints, choose, compose, growth, scanned_directories
from resilience.watch.scan.tree import READ, UNREAD, Record, Tree, build
from tests.lab.fakes import make_project
from tests.system.people import NOBODY, needs_root
from tests.watch.scan.trees import NOW, a_tree, run_scan, settle, write

HOUR, DAY = 3600, 86400


def tree_of(sizes: dict[str, int], files: int = 1) -> Tree:
    """Return a tree of directories with this many blocks each; those between them have none."""
    own = {b"": 0} | {path.encode(): size for path, size in sizes.items()}
    for path in list(own):
        while path := path.rpartition(b"/")[0]:
            own.setdefault(path, 0)
    records = {}
    for number, path in enumerate(sorted(own)):
        children = tuple(sorted(p.rpartition(b"/")[2] for p in own if p and p.rpartition(b"/")[0] == path))
        records[path] = Record(path, READ, number + 1, 5, 6, own[path], files, 7, 1000, children=children)
    return build(records)


def paths_of(tree: Tree) -> list[bytes]:
    return [record.path for record in tree.records]


def listed(sizes: dict[str, int], limit: int) -> list[str]:
    """Return the chosen paths, in order."""
    tree = tree_of(sizes)
    return [tree.records[row].path.decode() for row in choose(tree.blocks, tree.below(), limit)]


@pytest.mark.parametrize(
    ("sizes", "limit", "wanted"),
    [
        # not a parent and its only child: the deepest that holds nearly everything
        ({"runs/gpt/checkpoints": 100}, 5, ["runs/gpt/checkpoints"]),
        ({"runs/gpt/checkpoints": 970, "runs/gpt/logs": 10, "home": 5}, 1, ["runs/gpt/checkpoints"]),
        # lines that are left go to what is small
        ({"a/b": 1000, "a/c": 1, "d": 2}, 5, ["a/b", "d", "a/c"]),
        # several that share most of it say more than what they lie in
        ({"r/x": 50, "r/y": 40, "r/z": 1, "s": 20}, 3, ["r/x", "r/y", "s"]),
        # what is large is opened before what is tiny gets a line
        ({"l/x": 500, "l/y": 300, "m": 100, "n": 1, "o": 1}, 4, ["l/x", "l/y", "m", "n"]),
        # a thousand equal ones are one line, whatever else there is
        ({f"r/c{n:03d}": 5 for n in range(1000)} | {"s": 3000}, 4, ["r", "s"]),
        # the files of the directory itself keep its line
        ({"": 50, "a": 40, "b": 30}, 5, ["", "a", "b"]),
        ({"r": 50, "r/a": 30, "r/b": 30, "s": 5}, 5, ["r", "r/a", "r/b", "s"]),
        ({}, 5, []),
        ({"a": 0}, 5, []),
    ],
)
def test_the_list_has_the_most_informative_directories(sizes: dict[str, int], limit: int, wanted: list[str]) -> None:
    assert listed(sizes, limit) == wanted


def test_many_equal_directories_are_listed_beside_the_rest() -> None:
    tree = tree_of({f"d{number:02d}": 10 for number in range(50)})
    chosen = choose(tree.blocks, tree.below(), 20)
    assert len(chosen) == 20
    assert chosen[0] == 500 - 19 * 10  # the root: everything outside the others


@given(
    st.dictionaries(
        st.sampled_from([f"{a}/{b}/{c}" for a in "abc" for b in "abc" for c in "abc"]), st.integers(0, 999)
    ),
    st.integers(1, 9),
)
def test_lines_count_nothing_twice_and_respect_the_limit(sizes: dict[str, int], limit: int) -> None:
    tree = tree_of(sizes)
    totals = tree.blocks
    chosen = choose(totals, tree.below(), limit)
    assert len(chosen) <= limit
    assert sum(chosen.values()) <= totals[0]
    assert all(0 <= rest <= totals[row] for row, rest in chosen.items())
    assert list(chosen) == sorted(chosen, key=lambda row: (-totals[row], row))
    assert bool(chosen) == bool(totals[0])


def test_growth_is_the_difference_and_the_whole_size_of_new_directories() -> None:
    before = tree_of({"a": 100, "b": 50})
    then = snapshot(before, NOW - DAY)
    now = tree_of({"a": 130, "b": 20, "c/new": 7})
    grew = growth(now, now.blocks, then, 0, 1)
    assert dict(zip(paths_of(now), grew, strict=True)) == {b"": 7, b"a": 30, b"b": -30, b"c": 7, b"c/new": 7}


def test_the_growth_of_directories_that_the_earlier_scan_had_not_read_is_unknown() -> None:
    records = {b"": Record(b"", READ, 1, children=(b"a", b"late"), read_at=1), b"a": Record(b"a", READ, 2, read_at=1)}
    before = build(records)
    assert before.records[2].state == UNREAD
    then = snapshot(before, NOW - DAY)
    now = tree_of({"a": 10, "late/deep": 1000})
    grew = growth(now, now.blocks, then, 0, 1)
    assert dict(zip(paths_of(now), grew, strict=True)) == {b"": None, b"a": 10, b"late": None, b"late/deep": None}


def test_no_growth_is_reported_of_unreadable_directories() -> None:
    before = tree_of({"a": 100})
    then = snapshot(before, NOW - DAY)
    now = build({b"": Record(b"", READ, 1, read_at=1, children=(b"a",))})
    assert growth(now, now.blocks, then, 0, 1) == [None, None]


def test_deletions_do_not_hide_growth_beside_them(tmp_path: Path) -> None:
    root, cache = tmp_path / "tree", tmp_path / "cache"
    write(root / "runs" / "old" / "file", 3_000_000)
    write(root / "runs" / "new" / "file", 10_000)
    settle(root)
    run_scan(root, cache, now=NOW - DAY)
    (root / "runs" / "old" / "file").unlink()
    write(root / "runs" / "new" / "more", 1_000_000)
    report = compose(run_scan(root, cache), limit=5, by="bytes")
    assert [(row.path, round(row.grew_bytes or 0, -5)) for row in report.growing] == [(b"runs/new", 1_000_000)]
    assert report.since_s == DAY


def test_many_tiny_files_rank_high_by_inodes(tmp_path: Path) -> None:
    root = tmp_path / "tree"
    write(root / "data" / "big", 20_000_000)
    (root / "cron" / "logs").mkdir(parents=True)
    for number in range(1000):
        (root / "cron" / "logs" / f"{number}.out").touch()
    found = run_scan(root)
    first = compose(found, limit=3, by="inodes").largest[0]
    assert (first.path, first.files) == (b"cron/logs", 1000)
    assert first.share > 0.99
    assert compose(found, limit=3, by="bytes").largest[0].path == b"data"


def test_checkpoints_are_known_by_their_directories_or_files(tmp_path: Path) -> None:
    root = tmp_path / "tree"
    for name in ("hf/checkpoint-500", "hf/checkpoint-1000", "ds/global_step500", "megatron/iter_0000500"):
        write(root / name / "rank0" / "states.bin", 100_000)
    write(root / "plain" / "model.pt", 100_000)
    write(root / "plain" / "model.safetensors", 100_000)
    write(root / "plain" / "notes.txt", 100_000)
    write(root / "checkpoints" / "readme.txt", 100_000)
    write(root / "iterations" / "step.log", 100_000)
    found = run_scan(root)
    total, directories = checkpoints(found.tree)
    assert directories == 5
    assert 6 * 100_000 <= total < 7 * 100_000


@needs_root
def test_owners_are_reported_if_there_are_several(tmp_path: Path) -> None:
    root = a_tree(tmp_path / "tree")
    assert not compose(run_scan(root), limit=5, by="bytes").owners
    write(root / "t1" / "s1" / "others", 1_000_000)
    os.chown(root / "t1" / "s1" / "others", NOBODY, NOBODY)
    report = compose(run_scan(root), limit=5, by="bytes", login_name={0: "root", NOBODY: "nobody"}.__getitem__)
    (row,) = [row for row in report.largest if row.path == b"t1/s1"]
    assert report.owners
    assert row.owners[0][0] == "nobody"
    assert row.owners[0][1] > 0.9


def test_paths_are_resolved_as_by_the_fs_watchdog(tmp_path: Path) -> None:
    project = make_project(tmp_path, environ={"SCRATCH": "/scratch/me"})
    base = project.loaded.project
    assert scanned_directories(project, ()) == (base,)
    wanted = (Path("/scratch/me/runs"), base / "data", tmp_path / "home" / "x")
    assert scanned_directories(project, ("$SCRATCH/runs", "data/", "./data", "~/x")) == wanted
    with pytest.raises(UsageError, match="WORK is not set"):
        scanned_directories(project, ("$WORK",))
