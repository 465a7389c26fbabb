"""One save over several ranks: all write, one commits, and a fault of one ends it on all."""

from __future__ import annotations

import os
import random
import shutil
import threading
from pathlib import Path

import pytest

from resilience.checkpoints import Store
from resilience.checkpoints.part import Part
from resilience.checkpoints.resume import NoGoodCheckpoint
from resilience.errors import CheckpointError
from tests.checkpoints.ranks import Launch, commit, fails, workers_here

__all__ = ["workers_here"]

soak = (
    pytest.mark.soak,
    pytest.mark.skipif(os.environ.get("RESIL_SOAK") != "1", reason="takes minutes: set RESIL_SOAK=1"),
)
pytestmark = pytest.mark.usefixtures("workers_here")


def stores(path: Path) -> list[str]:
    return sorted(one.name for one in path.iterdir() if one.name not in (".resil", ".trash"))


@pytest.mark.parametrize("nodes", [1, 3])
def test_all_ranks_commit_together(tmp_path: Path, nodes: int) -> None:
    launch = Launch(tmp_path / "ckpt", 6, nodes=nodes)
    launch.save(100)
    checkpoint = launch.stores[0]._directory.find(100)
    manifest = checkpoint.manifest()
    assert [entry.path for entry in manifest.files] == [f"rank{rank}.bin" for rank in range(6)]
    assert (manifest.world, manifest.step) == (6, 100)
    assert [path.name for path in (checkpoint.path / ".resil").iterdir()] == ["manifest.json"]
    assert launch.each(lambda store: store.latest()) == [checkpoint] * 6


def test_nothing_is_committed_before_the_last_rank_has_written(tmp_path: Path) -> None:
    launch = Launch(tmp_path / "ckpt", 3)
    parts = launch.parts(100)
    parts[0].written(None)
    parts[2].written(None)
    for _ in range(3):
        assert [part.look() for part in parts] == [False] * 3
    assert stores(tmp_path / "ckpt") == [".part-00000100.a1.1"]
    parts[1].written(None)
    commit(*parts)
    assert stores(tmp_path / "ckpt") == ["step-00000100"]


@pytest.mark.parametrize("failing", [0, 2])
def test_the_fault_of_one_rank_is_told_to_all(tmp_path: Path, failing: int) -> None:
    launch = Launch(tmp_path / "ckpt", 3)
    parts = launch.parts(100)
    for rank, part in enumerate(parts):
        part.written(OSError(28, "No space left on device") if rank == failing else None)
    assert fails(*parts) == [f"rank {failing}: No space left on device"] * 3
    assert stores(tmp_path / "ckpt") == []
    launch.save(200)  # the next one is not disturbed


def test_a_failed_part_stays_while_another_rank_still_writes(tmp_path: Path) -> None:
    launch = Launch(tmp_path / "ckpt", 2)
    first, slow = launch.parts(100)
    first.written(OSError(5, "Input/output error"))
    assert not first.look()
    (slow.path / "more.bin").write_bytes(b"still writing")
    slow.written(None)
    assert fails(slow, first) == ["rank 0: Input/output error"] * 2
    assert stores(tmp_path / "ckpt") == []


def test_a_rank_that_is_killed_in_its_save_fails_it(tmp_path: Path) -> None:
    launch = Launch(tmp_path / "ckpt", 3)
    launch.save(100)
    parts = launch.parts(200)
    parts[0].written(None)
    parts[1].written(None)
    launch.leave(2)
    assert fails(*parts[:2]) == ["rank 2: left"] * 2
    assert stores(tmp_path / "ckpt") == ["step-00000100"]


def test_a_rank_that_never_writes_ends_at_the_deadline_and_the_others_are_told(tmp_path: Path) -> None:
    launch = Launch(tmp_path / "ckpt", 3)
    parts = launch.parts(100)
    parts[0].written(None)
    parts[2].written(None)
    assert not any(part.look() for part in parts)
    parts[1].cut_off("not durable after 60 s")
    assert fails(parts[2]) == ["rank 1: not durable after 60 s"]
    assert not parts[0].look()  # rank 1 may still write: its directory stays
    parts[0].cut_off("not durable after 60 s")
    assert fails(parts[0]) == ["rank 1: not durable after 60 s"]
    assert stores(tmp_path / "ckpt") == [".part-00000100.a1.1"]


def test_a_rank_that_cannot_create_its_directory_fails_the_save_of_all(tmp_path: Path) -> None:
    launch = Launch(tmp_path / "ckpt", 2)
    (tmp_path / "ckpt" / ".part-00000100.a1.1").write_text("in the way")
    with pytest.raises(CheckpointError, match="cannot be created: File exists"):
        launch.stores[0].begin_save(100, save=1)
    with pytest.raises(CheckpointError):
        launch.stores[1].begin_save(100, save=1)


def test_a_node_that_does_not_see_the_directory_is_refused(tmp_path: Path) -> None:
    """Its save would be on the disk of that node."""
    launch = Launch(tmp_path / "ckpt", 2, nodes=2, connects=False)
    launch.stores[1] = type(launch.stores[1])(tmp_path / "other")
    launch.connect()
    with pytest.raises(CheckpointError, match=r"is not the same here: .*other does not exist"):
        launch.stores[1].begin_save(100, save=1)
    with pytest.raises(CheckpointError, match="must be mounted on every node"):
        launch.stores[1].latest()


def test_the_refusal_of_rank_0_is_told_to_all(tmp_path: Path) -> None:
    Launch(tmp_path / "ckpt", run="one")
    launch = Launch(tmp_path / "ckpt", 2, run="two", connects=False)
    launch.stores[1].connect(launch.ranks[1])
    with pytest.raises(CheckpointError, match="not of two"):
        launch.stores[0].connect(launch.ranks[0])
    with pytest.raises(CheckpointError, match=r"rank 0: .*not of two"):
        launch.stores[1].latest()


def test_damage_in_the_share_of_another_node_is_found_and_all_go_one_back(tmp_path: Path) -> None:
    launch = Launch(tmp_path / "ckpt", 4, nodes=4)
    launch.save(100)
    launch.save(200)
    for rank in range(4):  # whichever node reads it
        file = tmp_path / "ckpt" / "step-00000200" / f"rank{rank}.bin"
        file.write_bytes(b"x" + file.read_bytes()[1:])
    launch = Launch(tmp_path / "ckpt", 4, nodes=4, attempt=2)
    found = launch.each(lambda store: store.latest())
    assert [one and one.step for one in found] == [100] * 4
    assert "step-00000200 is bad and was set aside" in launch.ranks[0].warnings[0]
    assert not any(rank.warnings for rank in launch.ranks[1:])


def test_ranks_agree_that_there_is_none_and_that_none_is_good(tmp_path: Path) -> None:
    launch = Launch(tmp_path / "ckpt", 3)
    assert launch.each(lambda store: store.latest_path()) == [None] * 3
    launch.save(100)
    (tmp_path / "ckpt" / "step-00000100" / "rank1.bin").unlink()

    def words(store: object) -> str:
        with pytest.raises(CheckpointError) as raised:
            store.latest()  # type: ignore[attr-defined]
        return type(raised.value).__name__

    assert launch.each(words) == ["NoGoodCheckpoint"] * 3


def test_a_rank_that_leaves_during_the_choice_ends_it_in_words(tmp_path: Path) -> None:
    launch = Launch(tmp_path / "ckpt", 2)
    launch.save(100)
    threading.Timer(0.05, launch.leave, [1]).start()
    with pytest.raises(CheckpointError, match="rank 1: left"):
        launch.stores[0].latest()


def test_of_several_saves_in_flight_a_slow_one_never_replaces_a_newer_one(tmp_path: Path) -> None:
    launch = Launch(tmp_path / "ckpt", 2)
    flights = {step: launch.parts(step) for step in (100, 200, 300)}
    for step in (300, 100, 200):
        for part in flights[step]:
            part.written(None)
        commit(*flights[step])
        assert launch.each(lambda store: store.latest())[1].step == 300


def test_a_part_of_a_restarted_process_is_not_committed_by_the_child_of_the_killed_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Both have the attempt and the number, and so the name, of the part."""
    launch = Launch(tmp_path / "ckpt")
    (old,) = launch.parts(100)
    restarted: list[Launch] = []

    def restart(content: object) -> None:
        """In the middle of the commit."""
        restarted.append(Launch(tmp_path / "ckpt"))
        (new,) = restarted[0].parts(100)
        assert new.path == old.path

    monkeypatch.setattr("resilience.checkpoints.commit.check_content", restart)
    old.written(None)
    assert "taken away" in fails(old)[0]
    assert restarted[0].stores[0].latest() is None


@pytest.mark.parametrize("seeds", [range(20), pytest.param(range(20, 2000), marks=soak)], ids=["some", "many"])
def test_whatever_happens_all_ranks_see_the_same_end_and_the_store_has_whole_checkpoints_only(
    tmp_path: Path, seeds: range
) -> None:
    """Random orders of writing, failing, looking and being cut off, over saves in flight."""
    for seed in seeds:
        (tmp_path / str(seed)).mkdir()
        _save_at_random(tmp_path / str(seed), seed)
        shutil.rmtree(tmp_path / str(seed))


def _save_at_random(tmp_path: Path, seed: int) -> None:
    draw = random.Random(seed)
    world = draw.choice([1, 2, 3])
    launch = Launch(tmp_path / "ckpt", world, nodes=draw.choice([1, world]), latest=100)
    open_parts: list[list[Part]] = []
    ends: dict[str, set[str]] = {}
    step = 0
    for _ in range(60):
        if len(open_parts) < 3 and draw.random() < 0.2:
            step += 10
            open_parts.append(launch.parts(step))
        for parts in open_parts:
            part = draw.choice(parts)
            chance = draw.random()
            if chance < 0.3:
                part.written(OSError(28, "No space left on device") if draw.random() < 0.1 else None)
            elif chance < 0.32:
                part.cut_off("cut off")
            try:
                if part.look():
                    ends.setdefault(part.path.name, set()).add("committed")
            except CheckpointError as error:
                ends.setdefault(part.path.name, set()).add("failed" if "cut off" not in str(error) else "cut off")
        committed = {int(name[5:]) for name in stores(tmp_path / "ckpt") if name.startswith("step-")}
        assert all(not {"committed", "failed"} <= end for end in ends.values()), ends
        promised = {int(name[6:14]) for name, end in ends.items() if "committed" in end}
        assert promised <= committed
    for found in launch.each(lambda store: store.latest()):
        assert (found is None) == (not committed)
        assert found is None or found.step == max(committed)


def test_checkpoints_newer_than_the_trusted_step_are_set_aside_on_every_rank(tmp_path: Path) -> None:
    launch = Launch(tmp_path / "ckpt", 3)
    for step in (100, 200, 300):
        launch.save(step)
    found = launch.each(lambda store: store.latest(up_to=250))
    assert [one.step for one in found] == [200] * 3
    assert "step-00000300" not in stores(tmp_path / "ckpt") and any((tmp_path / "ckpt" / ".bad").iterdir())
    assert launch.each(lambda store: store.latest())[1].step == 200


def test_a_single_process_without_a_guard_passes_newer_checkpoints_over(tmp_path: Path) -> None:
    launch = Launch(tmp_path / "ckpt", 1)
    for step in (100, 200):
        launch.save(step)
    found = Store(tmp_path / "ckpt").latest(up_to=150)
    assert found is not None and found.step == 100
    with pytest.raises(NoGoodCheckpoint, match="only checkpoints up to step 50 are trusted"):
        Store(tmp_path / "ckpt").latest(up_to=50)
    assert stores(tmp_path / "ckpt") == ["step-00000100", "step-00000200"], "nothing was moved"
