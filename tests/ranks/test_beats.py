"""The heartbeats that guards write are read back, and a damaged one hides no other."""

from __future__ import annotations

from pathlib import Path

import pytest

from resilience.guard.heartbeat.beat import GONE, LEFT, Progress, RankBeat, compose
from resilience.ranks.beats import read_beats
from resilience.runs.run_directory import RunDirectory


def test_a_heartbeat_is_read_as_it_was_written(tmp_path: Path) -> None:
    beats = tmp_path / "beats"
    beats.mkdir()
    progress = Progress(5.0)
    progress.update((41, 3, 'a "phase"'), 7.0)
    ranks = {10: RankBeat(7, progress), 2: RankBeat(8, progress, LEFT), 3: RankBeat(9, progress, GONE)}
    (beats / "12.n1.cluster").write_text(compose(3, "n1.cluster", ranks, 9.0))
    (node,) = read_beats(RunDirectory(tmp_path))
    assert (node.job_id, node.host, node.attempt, node.time) == ("12", "n1.cluster", 3, 9.0)
    assert [(one.rank, one.pid, one.has_left, one.is_gone) for one in node.ranks] == [
        (2, 8, True, False), (3, 9, False, True), (10, 7, False, False),
    ]  # fmt: skip
    assert (node.ranks[2].step, node.ranks[2].advanced, node.ranks[2].phase) == (41, 7.0, 'a "phase"')


def test_windows_are_read_as_they_were_written(tmp_path: Path) -> None:
    beats = tmp_path / "beats"
    beats.mkdir()
    one = RankBeat(7, Progress(5.0))
    (beats / "12.n2").write_text(compose(3, "n2", {1: one}, 9.0))
    for n in range(260):
        one.windows.update(n, n, n // 4, "save" if n == 200 else "train", float(n))
    (beats / "12.n1").write_text(compose(3, "n1", {0: one}, 9.0))
    first, second = read_beats(RunDirectory(tmp_path))
    assert first.ranks[0].windows == ((192, 64, 64, 64, 16, 64.0), (256, 64, 62, 62, 15, 62.0))
    assert first.ranks[0].pauses == ((199, 201, 1.0),) and second.ranks[0].windows == ()


@pytest.mark.parametrize("windows", ["[[1, 2]]", "[3]", "[[64, 64, 64, 60, 61, 1.0]]", "[[64, 0, 0, 0, 0, 1.0]]"])
def test_a_heartbeat_with_damaged_windows_is_skipped(windows: str, tmp_path: Path) -> None:
    beats = tmp_path / "beats"
    beats.mkdir()
    (beats / "9.n1").write_text(f"attempt = 1\n[rank.0]\npid = 1\nwindows = {windows}\n")
    assert read_beats(RunDirectory(tmp_path)) == ()


def test_damaged_heartbeats_are_skipped(tmp_path: Path) -> None:
    assert read_beats(RunDirectory(tmp_path)) == ()
    beats = tmp_path / "beats"
    beats.mkdir()
    for number, text in enumerate(("half = ", "rank = 3", 'attempt = "x"', "[rank.x]\npid = 1", "\0")):
        (beats / f"{number}.n1").write_text(text)
    (beats / "6.n1").write_text("[rank.1]\npid = inf")
    (beats / "7.n1").mkdir()
    (beats / ".8.n1.tmp").write_text("attempt = 1")
    (beats / "9.n1").write_text("attempt = 1\ntime = nan")
    assert [(node.job_id, node.host, node.time) for node in read_beats(RunDirectory(tmp_path))] == [("9", "n1", 0.0)]
