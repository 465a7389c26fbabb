"""Measured checkpoint sizes and intervals, and the files that a purge will delete."""

from __future__ import annotations

import json
import os
import random
from dataclasses import replace
from pathlib import Path

import pytest

from resilience.checkpoints.directory import StoreDirectory
from resilience.checkpoints.names import part_name
from resilience.watch.checks._filesystem import measure
from resilience.watch.checks._filesystem.measure import find_purge_candidates, interval_s, measure_checkpoints, saves_of
from resilience.watch.checks._filesystem.reading import BYTES, INODES
from tests.checkpoints.trees import RECORDED, commit_tree, rewrite

NOW = 1_800_000_000.0
MIB = 2**20


def a_checkpoint(directory: Path, name: str, age_s: float, *, files: int = 1, size: int = 2 * MIB) -> None:
    place = directory / name
    place.mkdir(parents=True)
    for number in range(files):
        (place / f"rank{number}").write_bytes(bytes(size))
    os.utime(place, (NOW - age_s,) * 2)


def test_size_and_interval_are_learned_from_the_directory(tmp_path: Path) -> None:
    for number in range(5):
        a_checkpoint(tmp_path, f"step{number}", 600 + 3600 * (4 - number), files=number + 1)
    known = measure_checkpoints(str(tmp_path), "", BYTES, NOW)
    assert known.size == pytest.approx(5 * 2 * MIB, rel=0.01)
    assert (known.every_s, known.count, known.source) == (3600, 5, "the times of the checkpoints")
    assert measure_checkpoints(str(tmp_path), "", INODES, NOW).size == 6  # five files and their directory


def test_a_checkpoint_being_written_is_not_measured(tmp_path: Path) -> None:
    a_checkpoint(tmp_path, "whole", 3600, files=2)
    a_checkpoint(tmp_path, "half", 5, files=9)
    assert measure_checkpoints(str(tmp_path), "", BYTES, NOW).size == pytest.approx(4 * MIB, rel=0.01)


def test_small_files_beside_them_are_no_checkpoints(tmp_path: Path) -> None:
    (tmp_path / "latest").write_text("step3")
    (tmp_path / ".hidden").mkdir()
    assert measure_checkpoints(str(tmp_path), "", BYTES, NOW).count == 0
    assert measure_checkpoints(str(tmp_path), "", BYTES, NOW).size is None


def test_a_single_file_is_a_checkpoint_too(tmp_path: Path) -> None:
    (tmp_path / "step1.ckpt").write_bytes(bytes(3 * MIB))
    os.utime(tmp_path / "step1.ckpt", (NOW - 900,) * 2)
    assert measure_checkpoints(str(tmp_path), "", BYTES, NOW).size == 3 * MIB


@pytest.mark.parametrize("kind", [BYTES, INODES])
def test_manifests_tell_sizes_and_times_and_saves_in_flight_do_not_count(tmp_path: Path, kind: str) -> None:
    store = StoreDirectory.create(tmp_path / "ckpts", "gpt")
    for number in range(4):
        one = commit_tree(store, 100 * number, RECORDED / ("hf" if number == 2 else "safetensors"))
        rewrite(one, replace(one.manifest(), durable_at=NOW - 1800 * (4 - number)))
    a_checkpoint(store.path, part_name(400, 1, 5), 600, files=9)
    a_checkpoint(store.path, ".bad/step-00000500", 600, files=9)
    a_checkpoint(store.path, "of-a-person", 600, files=9)
    known = measure_checkpoints(str(store.path), "", kind, NOW)
    largest = store.find(200).manifest()
    assert known.size == (largest.size_bytes if kind == BYTES else largest.inodes)
    assert (known.every_s, known.count, known.source) == (1800, 4, "the manifests")
    store.find(300).manifest_path.write_text("{")
    assert measure_checkpoints(str(store.path), "", kind, NOW).size == known.size, "the others tell"


def test_a_deleted_directory_yields_no_size(tmp_path: Path) -> None:
    known = measure_checkpoints(str(tmp_path / "no"), str(tmp_path / "no"), BYTES, NOW)
    assert (known.size, known.every_s, known.count, known.is_pruned) == (None, None, 0, False)


def test_the_journal_yields_the_interval_and_the_pruning(tmp_path: Path) -> None:
    journal = tmp_path / "journal"
    journal.mkdir()
    lines = [json.dumps({"event": "save", "time": NOW - 7200 * n, "rank": 0, "step": n}) for n in range(10)]
    lines += [json.dumps({"event": "save", "time": NOW - 7200 * n + 1, "rank": 1}) for n in range(10)]
    (journal / "17.0.jsonl").write_text("\n".join([*lines, '{"event": "save", "time": 1'][::-1]) + "\n")
    (journal / "pipe.jsonl").mkdir()
    a_checkpoint(tmp_path / "ckpt", "step9", 600)
    known = measure_checkpoints(str(tmp_path / "ckpt"), str(journal), BYTES, NOW)
    assert (known.every_s, known.saves, known.source) == (7200, 10, "the run's journal")
    assert known.is_pruned


@pytest.mark.parametrize(
    "line",
    ['{"event": "save"}', '{"event": "save", "time": "x"}', '{"event": "save", "time": true}', '"save"', '["save"]',
     '{"event": "save", "time": 1e999}', '{"event": "save_begin", "time": 5}', '{"event": "save", "time": -5}',
     "\0save",
    ],
)  # fmt: skip
def test_lines_without_a_save_are_skipped(line: str) -> None:
    assert saves_of([line]) == ()


def test_a_pause_between_jobs_is_no_interval() -> None:
    times = [0, 3600, 7200, 7200 + 30 * 86400, 10800 + 30 * 86400]
    assert interval_s(times) == 3600
    assert interval_s([1.0, 2000.0]) is None


def test_the_measuring_of_a_checkpoint_of_many_files_is_bounded(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(measure, "MOST_FILES", 10)
    a_checkpoint(tmp_path, "step1", 3600, files=30)
    assert measure_checkpoints(str(tmp_path), "", INODES, NOW).size == 10


def old_files(directory: Path, days: list[float]) -> None:
    for number, age in enumerate(days):
        (directory / f"f{number}").write_bytes(b"x" * 4096)
        os.utime(directory / f"f{number}", (NOW - age * 86400,) * 2)


def test_files_unused_for_long_will_be_purged(tmp_path: Path) -> None:
    (tmp_path / "deep").mkdir()
    old_files(tmp_path / "deep", [40, 25, 22.9, 1])
    found = find_purge_candidates(str(tmp_path), 23 * 86400, NOW)
    assert (found.files, found.seen, found.is_whole, found.spares_newest) == (2, 4, True, True)
    assert found.example.endswith("deep/f0") and found.oldest_s == pytest.approx(40 * 86400)


def test_reading_a_file_resets_its_age(tmp_path: Path) -> None:
    old_files(tmp_path, [40])
    os.utime(tmp_path / "f0", (NOW - 86400, NOW - 40 * 86400))
    assert find_purge_candidates(str(tmp_path), 23 * 86400, NOW).files == 0


def test_the_search_is_limited_and_reports_that(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(measure, "MOST_FILES", 5)
    old_files(tmp_path, [random.Random(n).uniform(30, 40) for n in range(9)])
    found = find_purge_candidates(str(tmp_path), 23 * 86400, NOW)
    assert (found.files, found.is_whole) == (5, False)
