"""The scan cache, also if the home directory is full or hangs."""

from __future__ import annotations

import marshal
import os
import stat
import time
import zlib
from collections.abc import Callable
from pathlib import Path

import pytest

from resilience.watch.scan import cache as module
from resilience.watch.scan.cache import AGES_S, HOLE, PARTLY, baseline, cache_file, kept, snapshot, thin, tidy
from resilience.watch.scan.tree import READ, STUCK, Record, build
from tests.lab.disks import fill, small_disk
from tests.lab.hung import hung_directory
from tests.system.people import NOBODY, needs_root
from tests.watch.scan.trees import NOW, a_tree, du, kib, run_scan


def test_the_cache_is_on_this_node_while_the_home_directory_is_full(tmp_path: Path) -> None:
    root, fallback = a_tree(tmp_path / "tree"), tmp_path / "node" / "scan"
    with small_disk(tmp_path / "home") as home:
        ballast = fill(home)
        found = run_scan(root, home / "cache", fallback=fallback)
        assert f"scan cache written on this node, in {fallback}" in found.notes[0] and "space" in found.notes[0]
        ballast.unlink()
        again = run_scan(root, home / "cache", now=NOW + 700, fallback=fallback)
        assert (again.notes, again.verified) == ((), 25)
        assert list((home / "cache").glob("*.scan"))


def test_a_hung_home_directory_does_not_block_the_scan(tmp_path: Path) -> None:
    root, fallback, began = a_tree(tmp_path / "tree"), tmp_path / "node" / "scan", time.monotonic()
    with hung_directory(tmp_path / "home") as home:
        found = run_scan(root, home / "cache", fallback=fallback, deadline_s=5.0)
        assert found.is_complete and "no answer within 1 s" in found.notes[0]
        assert run_scan(root, home / "cache", fallback=fallback, deadline_s=5.0).verified == 25
    assert time.monotonic() - began < 30


@needs_root
def test_a_fallback_directory_of_another_user_is_not_trusted(tmp_path: Path) -> None:
    root, fallback = a_tree(tmp_path / "tree"), tmp_path / "node" / "scan"
    (tmp_path / "file").write_text("no directory")
    assert run_scan(root, None, fallback=fallback).notes == ()
    assert run_scan(root, None, now=NOW + 1, fallback=fallback).verified == 25
    os.chown(tmp_path / "node", NOBODY, NOBODY)
    found = run_scan(root, tmp_path / "file" / "cache", fallback=fallback)
    assert found.verified == 0 and "starts from scratch" in found.notes[-1]


def content_of(raw: bytes) -> bytes:
    return raw.partition(b"\n")[2]


def with_checksum(content: bytes) -> bytes:
    return f"{module.FORMAT} {zlib.crc32(content)}\n".encode() + content


DAMAGES: dict[str, Callable[[bytes], bytes]] = {
    "empty": lambda raw: b"",
    "zeros": lambda raw: b"\0" * 5000,
    "cut": lambda raw: raw[: len(raw) // 2],
    "flipped": lambda raw: raw[:-40] + bytes([raw[-40] ^ 1]) + raw[-39:],
    "format": lambda raw: raw.replace(b"resil scan 2", b"resil scan 1"),
    "no data": lambda raw: with_checksum(b""),
    "cut, but with its checksum": lambda raw: with_checksum(content_of(raw)[:200]),
    "of another root": lambda raw: with_checksum(marshal.dumps((b"/other", [], [], []))),
    "other fields": lambda raw: with_checksum(
        marshal.dumps((marshal.loads(content_of(raw))[0], [(b"", 1)], [[0]], []))
    ),
    "other columns": lambda raw: with_checksum(marshal.dumps((*marshal.loads(content_of(raw))[:2], [[0]] * 6, []))),
    "a number": lambda raw: with_checksum(marshal.dumps(5)),
}


@pytest.mark.parametrize("damage", DAMAGES)
def test_a_damaged_cache_is_quarantined_and_the_scan_starts_from_scratch(root: Path, cache: Path, damage: str) -> None:
    run_scan(root, cache)
    path = cache_file(cache, os.fsencode(root))
    damaged = DAMAGES[damage](path.read_bytes())
    path.write_bytes(damaged)
    found = run_scan(root, cache)
    assert "damaged" in found.notes[0]
    assert (found.read, kib(found)) == (25, du(root))
    assert path.with_suffix(".damaged").read_bytes() == damaged
    assert run_scan(root, cache).verified == 25


@pytest.mark.parametrize("make", [lambda path: path.mkdir(), os.mkfifo, lambda path: path.symlink_to("/etc/passwd")])
def test_anything_but_a_file_in_place_of_the_cache_is_a_warning(
    root: Path, cache: Path, make: Callable[[Path], None]
) -> None:
    cache.mkdir()
    make(cache_file(cache, os.fsencode(root)))
    found = run_scan(root, cache)
    assert kib(found) == du(root)
    assert found.notes


def test_a_full_disk_prevents_the_cache_but_not_the_scan(tmp_path: Path, root: Path) -> None:
    with small_disk(tmp_path / "full") as disk:
        fill(disk)
        found = run_scan(root, disk / "cache")
    assert kib(found) == du(root)
    assert "starts from scratch" in found.notes[0]
    assert "full" in found.notes[0] or "space" in found.notes[0]


def test_the_cache_is_private(root: Path, cache: Path) -> None:
    run_scan(root, cache)
    assert stat.S_IMODE(cache_file(cache, os.fsencode(root)).stat().st_mode) == 0o600
    assert stat.S_IMODE(cache.stat().st_mode) == 0o700


def test_the_deepest_of_too_many_directories_are_read_again(
    root: Path, cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "MOST_DIRECTORIES", 20)
    run_scan(root, cache)
    found = run_scan(root, cache)
    assert (found.verified, found.read) == (10, 15)
    assert kib(found) == du(root)


def test_the_newest_and_the_largest_files_are_looked_at_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "REMEMBERED", 2)
    names = tuple(b"%d" % number for number in range(6))
    records = {b"": Record(b"", READ, 1, 5, 6, children=names)}
    for number, name in enumerate(names):
        records[name] = Record(name, READ, number + 2, 5, 6, remembered=((b"log", 80 - number, 100 + number),))
    chosen = [record.path for record in kept(build(records)).records if record.remembered]
    assert chosen == [b"0", b"1", b"4", b"5"]


def test_caches_of_roots_no_longer_scanned_are_deleted(tmp_path: Path) -> None:
    for number in range(6):
        path = tmp_path / f"{number}.scan"
        path.touch()
        os.utime(path, (number, number))
    tidy(tmp_path, most=2)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["4.scan", "5.scan"]


def test_two_concurrent_scans_leave_an_intact_cache(root: Path, cache: Path) -> None:
    pids = []
    for _ in range(2):
        pid = os.fork()
        if pid == 0:
            for number in range(5):
                run_scan(root, cache, now=NOW + number * 1000)
            os._exit(0)
        pids.append(pid)
    assert [os.waitpid(pid, 0)[1] for pid in pids] == [0, 0]
    found = run_scan(root, cache, now=NOW + 6000)
    assert (found.notes, found.verified) == ((), 25)
    assert not list(cache.glob("*.damaged"))


HOUR, DAY = 3600, 86400


@pytest.mark.parametrize(
    ("ages_s", "wanted_s"),
    [
        ([], None),
        ([5], 5),
        ([5, 60], 60),  # of two that are both too young, the older
        ([60, 2 * HOUR], 2 * HOUR),
        ([60, 2 * HOUR, 22 * HOUR, 3 * DAY], 22 * HOUR),
        ([10 * DAY], 10 * DAY),
        ([-60], None),  # a clock that went back: the future is nothing to compare with
        ([0], None),
    ],
)
def test_growth_is_measured_over_about_a_day_where_it_can_be(ages_s: list[float], wanted_s: float | None) -> None:
    now = 1.8e9
    number = baseline([now - age for age in ages_s], now)
    assert (None if number is None else ages_s[number]) == wanted_s


def test_scans_every_ten_minutes_for_two_months_leave_a_few_snapshots_of_all_ages() -> None:
    times: list[float] = []
    for minute in range(0, 60 * 24 * 60, 10):
        now = minute * 60.0
        times.append(now)
        times = [times[number] for number in thin(times, now)]
        assert len(times) <= len(AGES_S)
    ages = [now - time for time in times]
    number = baseline(times, now)
    assert number is not None
    assert HOUR <= ages[number] <= 3 * DAY
    assert max(ages) > 8 * DAY


def test_directories_that_were_not_read_are_holes_without_sums() -> None:
    records = [
        Record(b"", 0, inode=1, read_at=1, blocks=8, files=1, children=(b"a", b"b")),
        Record(b"a", 0, inode=2, read_at=1, blocks=8, files=2),
        Record(b"b", 0, inode=3, read_at=1, blocks=8, files=3, children=(b"dead",)),
        Record(b"b/dead", STUCK),
    ]
    tree = build({record.path: record for record in records})
    taken = snapshot(tree, 5.0)
    assert taken.sums == {b"": PARTLY, b"a": (8, 3), b"b": PARTLY, b"b/dead": HOLE}
    assert taken.whole


def test_a_snapshot_of_very_many_directories_keeps_the_largest_by_bytes_and_by_count() -> None:
    names = tuple(f"d{number:03d}".encode() for number in range(300))
    records = [Record(b"", 0, inode=1, read_at=1, children=names)]
    records += [
        Record(name, 0, inode=number + 2, read_at=1, blocks=number, files=300 - number)
        for number, name in enumerate(names)
    ]
    tree = build({record.path: record for record in records})
    taken = snapshot(tree, 5.0, most=20)
    assert not taken.whole
    assert {b"", b"d000", b"d299"} <= set(taken.sums)
    assert b"d150" not in taken.sums
    assert len(taken.sums) <= 20
