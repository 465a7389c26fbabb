"""Three real ranks with their agreement over TCP: what a rank does, all know, and no partial is ever listed."""

from __future__ import annotations

from pathlib import Path

from resilience.checkpoints import Store
from resilience.checkpoints.directory import StoreDirectory
from resilience.checkpoints.verify import verify
from tests.checkpoints.launched import a_launch
from tests.lab.waiting import until


def steps(path: Path) -> list[int]:
    """Return the steps of the checkpoints, each of which is verified by its digests."""
    found = StoreDirectory.open(path / "ckpt").checkpoints()
    assert all(verify(one).is_good for one in found)
    return [one.step for one in found]


def test_a_rank_that_fails_and_a_rank_that_is_killed_in_its_save_end_it_on_all(tmp_path: Path) -> None:
    plan = [(10, "", 0), (20, "fail", 1), (30, "", 0), (40, "kill", 2)]
    with a_launch(tmp_path, plan, exit_timeout_s=2.0) as launch:
        assert launch.wait() == [1, 1, -9]
        assert steps(tmp_path) == [10, 30]
        for rank in (0, 1, 2):
            failed = launch.journal(rank, "save_failed")
            assert [event["step"] for event in failed] == [20, 40][: 2 - rank // 2], launch.said(rank)
            assert "No space left on device" in failed[0]["error"]
        assert [event["step"] for event in launch.journal(0, "save")] == [10, 30]
        assert [event["name"] for event in launch.journal(0, "checkpoint")] == ["step-00000010", "step-00000030"]
    with a_launch(tmp_path, [(50, "", 0)], attempt=2) as launch:
        assert launch.wait() == [0, 0, 0], launch.said(0)
        assert [launch.told(rank)[0] for rank in range(3)] == [["latest", "step-00000030"]] * 3
    assert steps(tmp_path)[-2:] == [30, 50]
    assert not StoreDirectory(tmp_path / "ckpt").parts()
    assert {entry.path for entry in StoreDirectory(tmp_path / "ckpt").find(50).manifest().files} == {
        f"rank{rank}.bin" for rank in range(3)
    }


def test_a_rank_that_never_writes_ends_the_save_at_the_deadline(tmp_path: Path) -> None:
    plan = [(10, "", 0), (20, "hang", 1)]
    with a_launch(tmp_path, plan, exit_timeout_s=2.0) as launch:
        codes = launch.wait()
        assert 0 not in codes
        for rank in range(3):
            assert [event["step"] for event in launch.journal(rank, "save_failed")] == [20], launch.said(rank)
    assert steps(tmp_path) == [10]


def test_of_two_attempts_at_once_the_older_never_commits_what_it_still_writes(tmp_path: Path) -> None:
    with a_launch(tmp_path, [(10, "", 0), (20, "slow", 0)], world=2) as older:
        until(lambda: ["writing", 20] in older.told(0), "the save of the older attempt")
        with a_launch(tmp_path, [(15, "", 0)], world=2, attempt=2) as newer:
            assert newer.wait() == [0, 0], newer.said(0)
            assert newer.told(1)[0] == ["latest", "step-00000010"]
        older.go(0)
        assert older.wait() == [1, 1]
        (failed,) = older.journal(0, "save_failed")
        assert "attempt 2 has begun" in failed["error"] or "taken away" in failed["error"]
    assert steps(tmp_path) == [10, 15]
    found = Store(tmp_path / "ckpt").latest()
    assert found is not None
    assert found.step == 15
