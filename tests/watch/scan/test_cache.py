"""What is remembered of a scan: whole, private, bounded, and set aside when it is damaged."""

from __future__ import annotations

import json
import os
import stat
from collections.abc import Callable
from pathlib import Path

import pytest

from resilience.watch.scan import memory as cache
from resilience.watch.scan.memory import Remembered, Snapshot, cache_file, recall, remember, tidy
from resilience.watch.scan.tree import READ, UNREAD, Hot, Record, Tree, grow, unknown
from tests.guard.disks import fill, small_disk
from tests.watch.scan.trees import NOW, a_tree, du, kib, look

ROOT = b"/scratch/caf\xe9"


def a_memory() -> tuple[Tree, Remembered]:
    records = [
        Record(b"", READ, 1, 5, 6, 8, 1, 9, 1000, 0, 0, ((77, 8), (78, 16)), (), (b"a\xff", b"b")),
        Record(b"a\xff", READ, 2**64 - 1, -1, 6, 8, 1, 9, 2**32 - 2, 5, 0, (), (Hot(b"log\xff", 8, 5),), ()),
    ]
    known = Remembered()
    known.add(Snapshot(NOW - 5, {b"": (1, 2), b"a\xff": (3, 4)}, (b"hole",), True))
    known.add(Snapshot(NOW, {}, (), False))
    return grow({record.path: record for record in records}), known


def test_what_was_remembered_is_recalled(tmp_path: Path) -> None:
    tree, known = a_memory()
    path = cache_file(tmp_path / "memory", ROOT)
    remember(path, ROOT, tree, known)
    recalled = recall(path, ROOT)
    assert recalled.tree is not None
    assert list(recalled.tree.records()) == list(tree.records())
    assert [recalled.snapshot(0), recalled.snapshot(1)] == [known.snapshot(0), known.snapshot(1)]
    assert recalled.note == ""
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert stat.S_IMODE(path.parent.stat().st_mode) == 0o700


def _cut(raw: bytes) -> bytes:
    return raw[: len(raw) // 2]


def _flip(raw: bytes) -> bytes:
    return raw[:-40] + bytes([raw[-40] ^ 1]) + raw[-39:]


def _other_format(raw: bytes) -> bytes:
    return raw.replace(b"resil scan 1", b"resil scan 9")


def _disorder(raw: bytes) -> bytes:
    line, _, rest = raw.partition(b"\n")
    import zlib

    head = json.loads(line)
    rest = b"\x07" + rest[1:]
    return json.dumps(head | {"check": zlib.crc32(rest)}).encode() + b"\n" + rest


@pytest.mark.parametrize(
    "damage",
    [lambda raw: b"", lambda raw: b"\0" * 5000, lambda raw: b"[1]\n", lambda raw: b"{}\n", lambda raw: b"[" * 10**5,
     _cut, _flip, _other_format, _disorder],
    ids=["empty", "zeros", "list", "object", "brackets", "cut", "flipped", "format", "disorder"],
)  # fmt: skip
def test_a_damaged_memory_is_set_aside_and_the_scan_starts_afresh(
    tmp_path: Path, damage: Callable[[bytes], bytes]
) -> None:
    root, memory = a_tree(tmp_path / "tree"), tmp_path / "memory"
    look(root, memory)
    path = cache_file(memory, os.fsencode(root))
    damaged = damage(path.read_bytes())
    path.write_bytes(damaged)
    found = look(root, memory)
    assert "damaged" in found.notes[0]
    assert (found.read, kib(found)) == (25, du(root))
    assert path.with_suffix(".damaged").read_bytes() == damaged
    assert look(root, memory).verified == 25


@pytest.mark.parametrize("make", [lambda path: path.mkdir(), os.mkfifo, lambda path: path.symlink_to("/etc/passwd")])
def test_something_else_in_its_place_is_said_and_harms_nothing(tmp_path: Path, make: Callable[[Path], None]) -> None:
    root, memory = a_tree(tmp_path / "tree"), tmp_path / "memory"
    memory.mkdir()
    make(cache_file(memory, os.fsencode(root)))
    found = look(root, memory)
    assert kib(found) == du(root)
    assert found.notes


def test_a_disk_without_room_costs_the_memory_and_not_the_scan(tmp_path: Path) -> None:
    root = a_tree(tmp_path / "tree")
    with small_disk(tmp_path / "full") as disk:
        fill(disk)
        found = look(root, disk / "memory")
    assert kib(found) == du(root)
    assert "start afresh" in found.notes[0]
    assert "full" in found.notes[0] or "space" in found.notes[0]


def test_of_too_many_folders_the_deepest_are_read_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    root, memory = a_tree(tmp_path / "tree"), tmp_path / "memory"
    monkeypatch.setattr(cache, "MOST_FOLDERS", 20)
    look(root, memory)
    recalled = recall(cache_file(memory, os.fsencode(root)), os.fsencode(root))
    assert recalled.tree is not None
    assert len(unknown(recalled.tree)) == 25 - 10
    assert {recalled.tree.state[row] for row in unknown(recalled.tree)} == {UNREAD}
    found = look(root, memory)
    assert (found.verified, found.read) == (10, 15)
    assert kib(found) == du(root)


def test_only_so_many_hot_files_are_remembered(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cache, "MOST_HOT", 3)
    names = tuple(b"%d" % number for number in range(5))
    records = {b"": Record(b"", READ, 1, 5, 6, children=names)}
    for number, name in enumerate(names):
        records[name] = Record(name, READ, number + 2, 5, 6, hot=(Hot(b"log", 8, 100 + number),))
    path = tmp_path / "x.scan"
    remember(path, ROOT, grow(records), Remembered())
    recalled = recall(path, ROOT).tree
    assert recalled is not None
    assert [hot[0].mtime for hot in recalled.hot.values()] == [102, 103, 104]


def test_roots_that_nobody_scans_any_more_are_forgotten(tmp_path: Path) -> None:
    for number in range(6):
        path = tmp_path / f"{number}.scan"
        path.touch()
        os.utime(path, (number, number))
    tidy(tmp_path, most=2)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["4.scan", "5.scan"]


def test_two_scans_at_once_leave_a_whole_memory(tmp_path: Path) -> None:
    root, memory = a_tree(tmp_path / "tree"), tmp_path / "memory"
    pids = []
    for _ in range(2):
        pid = os.fork()
        if pid == 0:
            for number in range(5):
                look(root, memory, now=NOW + number * 1000)
            os._exit(0)
        pids.append(pid)
    assert [os.waitpid(pid, 0)[1] for pid in pids] == [0, 0]
    found = look(root, memory, now=NOW + 6000)
    assert (found.notes, found.verified) == ((), 25)
    assert not list(memory.glob("*.damaged"))
