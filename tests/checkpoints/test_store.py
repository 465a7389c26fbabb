"""A store in one process: save, commit, latest, and what it refuses."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from resilience.checkpoints import Store
from resilience.checkpoints import store as store_module
from resilience.checkpoints.directory import Checkpoint, StoreDirectory
from resilience.checkpoints.names import BAD, OWN
from resilience.checkpoints.quarantine import reason, restore
from resilience.checkpoints.resume import NoGoodCheckpoint
from resilience.checkpoints.starts import read_start
from resilience.checkpoints.store import RECORD
from resilience.errors import CheckpointError, SettingsError
from tests.checkpoints.ranks import Launch, commit, fails, workers_here
from tests.checkpoints.saves import RUN, committed, new_store, write_part
from tests.checkpoints.trees import rewrite
from tests.lab.waiting import until

__all__ = ["workers_here"]

pytestmark = pytest.mark.usefixtures("workers_here")


def flip(path: Path, bit: int = 3) -> None:
    """Flip one bit, without a trace in size and times."""
    info = path.stat()
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 1 << bit
    path.write_bytes(content)
    os.utime(path, ns=(info.st_atime_ns, info.st_mtime_ns))


def names(path: Path) -> list[str]:
    return sorted(one.name for one in path.iterdir() if not one.name.startswith("."))


def latest_step(launch: Launch) -> int:
    found: Checkpoint | None = launch.stores[0].latest()
    assert found is not None
    return found.step


# ---- saves ----------------------------------------------------------------------------------------------------------


def test_a_committed_save_is_the_latest(tmp_path: Path) -> None:
    launch = Launch(tmp_path / "ckpt", run_dir=tmp_path)
    assert launch.stores[0].latest() is None
    assert launch.stores[0].latest_path() is None
    launch.save(100, label="best", metrics={"loss": 2})
    launch.save(200)
    found = launch.stores[0].latest()
    assert found is not None
    assert (found.step, found.name, str(found.path)) == (200, "step-00000200", launch.stores[0].latest_path())
    first = launch.stores[0]._directory.find(100).manifest()
    assert (first.label, first.metrics, first.attempt, first.run, first.world) == ("best", {"loss": 2.0}, 1, "demo", 1)
    kinds = [event["event"] for event in launch.ranks[0].events]
    assert kinds == ["checkpoint", "checkpoint", "checkpoint_chosen", "checkpoint_chosen"]


def test_a_save_that_is_not_committed_is_not_listed(tmp_path: Path) -> None:
    launch = Launch(tmp_path / "ckpt")
    launch.save(100)
    (part,) = launch.parts(200)
    assert not part.look()  # the training writes
    assert latest_step(launch) == 100
    part.written(None)
    commit(part)
    assert latest_step(launch) == 200


def test_the_child_is_a_real_process_of_its_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.undo()
    launch = Launch(tmp_path / "ckpt")
    launch.save(100)
    assert names(tmp_path / "ckpt") == ["step-00000100"]


def test_a_failed_save_ends_in_words_and_leaves_no_part(tmp_path: Path) -> None:
    launch = Launch(tmp_path / "ckpt")
    (part,) = launch.parts(100)
    part.written(OSError(28, "No space left on device"))
    assert fails(part) == ["rank 0: No space left on device"]
    assert launch.stores[0]._directory.parts() == []
    assert launch.stores[0].latest() is None


def test_the_part_of_a_failed_block_goes_at_the_next_save(tmp_path: Path) -> None:
    """The guard does not look at a save whose block raised."""
    launch = Launch(tmp_path / "ckpt")
    launch.parts(100)[0].written(ValueError("boom"))
    launch.save(200)
    assert launch.stores[0]._directory.parts() == []


def test_a_failed_save_leaves_nothing_on_the_disk_though_none_is_committed_after_it(tmp_path: Path) -> None:
    """Otherwise a save that fails for hours fills the disk."""
    launch = Launch(tmp_path / "ckpt")
    (part,) = launch.parts(100)
    part.written(ValueError("boom"))
    fails(part)
    until(lambda: not launch.stores[0]._directory.trash(), "the trash is emptied")


def test_what_earlier_attempts_have_left_goes_once_a_start_is_past_its_load(tmp_path: Path) -> None:
    """A training that saves only at its end has no time to delete: the guard ends, and its children with it."""
    directory = new_store(tmp_path / "ckpt")
    for step in (100, 200, 300, 400):
        committed(directory, step)
    write_part(directory, 500)  # killed in a save
    launch = Launch(tmp_path / "ckpt", attempt=2, run=RUN)
    launch.stores[0].latest()
    assert directory.trash(), "not while it loads"
    launch.stores[0].loaded(400)
    until(lambda: not directory.trash(), "the trash is emptied")
    assert names(tmp_path / "ckpt") == ["step-00000300", "step-00000400"]


def test_a_fresh_start_deletes_what_killed_ones_have_left(tmp_path: Path) -> None:
    directory = new_store(tmp_path / "ckpt")
    write_part(directory, 100)
    launch = Launch(tmp_path / "ckpt", attempt=2, run=RUN)
    assert launch.stores[0].latest() is None
    launch.stores[0].loaded(0)
    until(lambda: not directory.trash(), "the trash is emptied")


def test_a_save_with_nothing_written_is_refused(tmp_path: Path) -> None:
    launch = Launch(tmp_path / "ckpt")
    part = launch.stores[0].begin_save(100, save=1)
    part.written(None)
    assert "nothing was written" in fails(part)[0]


def test_a_truncated_file_of_torch_is_not_committed(tmp_path: Path) -> None:
    """A writer thread that failed, and a framework that did not notice."""
    launch = Launch(tmp_path / "ckpt")
    (part,) = launch.parts(100)
    (part.path / "model.pt").write_bytes(b"PK\x03\x04" + bytes(5000))
    part.written(None)
    assert "model.pt" in fails(part)[0]
    assert launch.stores[0].latest() is None


def test_the_same_step_twice_keeps_the_first_and_says_so_once(tmp_path: Path) -> None:
    launch = Launch(tmp_path / "ckpt")
    launch.save(100)
    launch.save(100, save=2)
    assert names(tmp_path / "ckpt") == ["step-00000100"]
    assert [text for text in launch.ranks[0].warnings if "committed before" in text] == launch.ranks[0].warnings


def test_a_save_that_is_cut_off_is_left_for_the_next_start(tmp_path: Path) -> None:
    launch = Launch(tmp_path / "ckpt")
    (part,) = launch.parts(100)
    part.cut_off("not durable after 60 s")
    assert fails(part) == ["not durable after 60 s"]
    assert launch.stores[0]._directory.parts() == [".part-00000100.a1.1"]
    Launch(tmp_path / "ckpt", attempt=2)
    assert launch.stores[0]._directory.parts() == []


def test_a_save_under_the_name_of_a_framework_is_sealed_and_a_failed_one_stays(tmp_path: Path) -> None:
    launch = Launch(tmp_path / "ckpt", 2, nodes=2, pattern="checkpoint-{step}")
    parts = [store.begin_save(500, save=1) for store in launch.stores]
    parts[0].path.mkdir()
    for rank, part in enumerate(parts):
        (part.path / f"model{rank}.bin").write_bytes(bytes(100))
        part.written(None)
    commit(*parts)
    assert launch.each(lambda store: store.latest_path()) == [str(tmp_path / "ckpt" / "checkpoint-500")] * 2
    launch.save(500, save=2)  # again, after a step back: sealed anew
    assert len(launch.stores[0]._directory.find(500).manifest().files) == 4
    (part, other) = [store.begin_save(600, save=1) for store in launch.stores]
    part.path.mkdir()
    part.written(OSError(28, "No space left on device"))
    other.written(None)
    assert fails(part, other) == ["rank 0: No space left on device"] * 2
    assert names(tmp_path / "ckpt") == ["checkpoint-500", "checkpoint-600"]
    assert launch.each(lambda store: store.latest())[0].step == 500


def test_with_a_tracker_the_names_are_those_of_its_framework(tmp_path: Path) -> None:
    launch = Launch(tmp_path / "ckpt", tracker="latest_checkpointed_iteration.txt")
    assert launch.stores[0].begin_save(500, save=1).path == tmp_path / "ckpt" / "iter_0000500"


def test_a_damaged_one_of_a_framework_is_passed_over_and_set_aside_only_if_managed(tmp_path: Path) -> None:
    for step in (1, 2):
        (tmp_path / "ckpt" / f"out-{step}").mkdir(parents=True)
        (tmp_path / "ckpt" / f"out-{step}" / "model.bin").write_bytes(bytes(500))
        assert Store(tmp_path / "ckpt").adopt(tmp_path / "ckpt" / f"out-{step}", step)()
    flip(tmp_path / "ckpt" / "out-2" / "model.bin")
    launch = Launch(tmp_path / "ckpt")
    assert latest_step(launch) == 1
    assert "manage = false" in launch.ranks[0].warnings[0]
    assert names(tmp_path / "ckpt") == ["out-1", "out-2"]
    launch = Launch(tmp_path / "ckpt", manage=True)
    assert latest_step(launch) == 1
    assert names(tmp_path / "ckpt") == ["out-1"]
    directory = StoreDirectory(tmp_path / "ckpt")
    assert directory.checkpoints() == [directory.find(1)]
    flip(tmp_path / "ckpt" / BAD / "out-2" / "model.bin")
    restored = restore(directory, "out-2")
    assert restored == directory.find(2)
    assert latest_step(launch) == 2


def test_a_save_cannot_begin_without_a_guard(tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match="store=store"):
        Store(tmp_path).begin_save(1, save=1)


def test_a_directory_that_cannot_be_created_is_told(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(CheckpointError, match="cannot be used: Not a directory"):
        Launch(tmp_path / "file" / "ckpt")


# ---- damage ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("damage", ["flip", "truncate", "remove", "manifest"])
def test_a_damaged_newest_is_set_aside_and_named_and_the_one_before_is_taken(tmp_path: Path, damage: str) -> None:
    launch = Launch(tmp_path / "ckpt")
    launch.save(100)
    launch.save(200)
    file = tmp_path / "ckpt" / "step-00000200" / "rank0.bin"
    if damage == "flip":
        flip(file)
    elif damage == "truncate":
        os.truncate(file, 100)
    elif damage == "remove":
        file.unlink()
    else:
        flip(file.parent / ".resil" / "manifest.json")
    launch = Launch(tmp_path / "ckpt", attempt=2)
    found = launch.stores[0].latest()
    assert found is not None
    assert found.step == 100
    (text,) = launch.ranks[0].warnings
    named = "manifest.json" if damage == "manifest" else "rank0.bin"
    assert "step-00000200" in text
    assert named in text
    why = reason(launch.stores[0]._directory, "step-00000200")
    assert named in why["file"]
    assert why["expected"]
    assert why["found"]
    assert (tmp_path / "ckpt" / BAD / "step-00000200").is_dir()
    bad = [event for event in launch.ranks[0].events if event["event"] == "checkpoint_bad"]
    assert [(event["name"], event["found"]) for event in bad] == [("step-00000200", why["found"])]


def test_checkpoints_of_which_none_is_good_are_an_error_not_a_fresh_start(tmp_path: Path) -> None:
    launch = Launch(tmp_path / "ckpt")
    launch.save(100)
    flip(tmp_path / "ckpt" / "step-00000100" / "rank0.bin")
    for attempt in (2, 3):  # also once it is set aside
        with pytest.raises(NoGoodCheckpoint, match=r"none is good.*step-00000100"):
            Launch(tmp_path / "ckpt", attempt=attempt).stores[0].latest()
    assert NoGoodCheckpoint.exit_code == 4


def test_a_restored_checkpoint_is_judged_again(tmp_path: Path) -> None:
    launch = Launch(tmp_path / "ckpt")
    launch.save(100)
    file = tmp_path / "ckpt" / "step-00000100" / "rank0.bin"
    flip(file)
    with pytest.raises(NoGoodCheckpoint):
        launch.stores[0].latest()
    directory = StoreDirectory(tmp_path / "ckpt")
    checkpoint = restore(directory, "step-00000100")
    assert directory.bad() == []
    flip(file)  # back
    assert launch.stores[0].latest() == checkpoint


def test_checkpoints_that_vanished_are_an_error(tmp_path: Path) -> None:
    launch = Launch(tmp_path / "ckpt", run_dir=tmp_path)
    launch.save(100)
    (tmp_path / "ckpt" / "step-00000100").rename(tmp_path / "moved")
    with pytest.raises(NoGoodCheckpoint, match="has committed some there"):
        Launch(tmp_path / "ckpt", attempt=2, run_dir=tmp_path).stores[0].latest()


def test_a_manifest_of_a_newer_version_is_passed_over_and_stays(tmp_path: Path) -> None:
    launch = Launch(tmp_path / "ckpt")
    launch.save(100)
    launch.save(200)
    directory = launch.stores[0]._directory
    rewrite(directory.find(200), replace(directory.find(200).manifest(), format=99))
    assert latest_step(launch) == 100
    assert "step-00000200 is passed over" in launch.ranks[0].warnings[-1]
    assert "format 99" in launch.ranks[0].warnings[-1]
    assert names(tmp_path / "ckpt") == ["step-00000100", "step-00000200"]
    rewrite(directory.find(100), replace(directory.find(100).manifest(), format=99))
    with pytest.raises(NoGoodCheckpoint):
        launch.stores[0].latest()
    assert not (tmp_path / "ckpt" / BAD).exists()


def test_a_checkpoint_that_cannot_be_read_is_unknown_and_neither_set_aside_nor_skipped(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    launch = Launch(tmp_path / "ckpt")
    launch.save(100)
    launch.save(200)

    def unreadable(*_: object, **__: object) -> tuple[int, str]:
        raise OSError(5, "Input/output error", "rank0.bin")

    monkeypatch.setattr("resilience.checkpoints.verify.digest_file", unreadable)
    with pytest.raises(CheckpointError, match=r"cannot be verified.*Input/output error") as raised:
        launch.stores[0].latest()
    assert raised.value.transient
    assert names(tmp_path / "ckpt") == ["step-00000100", "step-00000200"]


@pytest.mark.parametrize("odd", [os.mkfifo, Path.mkdir, lambda path: path.symlink_to("elsewhere")])
def test_a_manifest_that_is_no_file_is_damage_and_the_one_before_is_taken(
    tmp_path: Path, odd: Callable[[Path], object]
) -> None:
    launch = Launch(tmp_path / "ckpt")
    launch.save(100)
    launch.save(200)
    manifest = tmp_path / "ckpt" / "step-00000200" / ".resil" / "manifest.json"
    manifest.unlink()
    odd(manifest)
    assert latest_step(launch) == 100
    assert "manifest.json is not a file" in launch.ranks[0].warnings[0]


def test_a_file_with_the_name_of_a_checkpoint_is_foreign(tmp_path: Path) -> None:
    launch = Launch(tmp_path / "ckpt")
    launch.save(100)
    (tmp_path / "ckpt" / "step-00000200").touch()
    assert latest_step(launch) == 100 and (tmp_path / "ckpt" / "step-00000200").exists()


def test_a_directory_that_cannot_be_read_is_told_in_words(tmp_path: Path) -> None:
    (tmp_path / ".resil").touch()
    with pytest.raises(CheckpointError, match=r"cannot be used: Not a directory \(.*store.json\)") as raised:
        Store(tmp_path).latest()
    assert raised.value.transient


def test_more_than_the_budget_is_read_in_the_background(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    launch = Launch(tmp_path / "ckpt")
    launch.save(100)
    launch.save(200)
    flip(tmp_path / "ckpt" / "step-00000200" / "rank0.bin")
    launch = Launch(tmp_path / "ckpt", attempt=2, verify_budget_s=0)
    assert latest_step(launch) == 200
    launch.end()
    (text,) = launch.ranks[0].warnings
    assert "step-00000200, from which this training resumed, is damaged: rank0.bin" in text
    launch = Launch(tmp_path / "ckpt", attempt=3, verify_budget_s=0)  # the record is enough
    assert latest_step(launch) == 100


# ---- starts that died -----------------------------------------------------------------------------------------------


def test_after_two_starts_that_died_the_checkpoint_before_is_taken(tmp_path: Path) -> None:
    launch = Launch(tmp_path / "ckpt")
    launch.save(100)
    launch.save(200)
    for attempt in (2, 3):
        died = Launch(tmp_path / "ckpt", attempt=attempt)
        assert latest_step(died) == 200
        assert latest_step(died) == 200  # asked twice, died once
        died.end(failed=attempt == 3)  # killed or failed
        died.stores[0]._is_loading = False
        if attempt == 2:
            _kill_while_loading(tmp_path / "ckpt")
    launch = Launch(tmp_path / "ckpt", attempt=4)
    assert latest_step(launch) == 100
    assert "attempts 2 and 3 died while loading it" in launch.ranks[0].warnings[0]
    assert "2 and 3" in reason(launch.stores[0]._directory, "step-00000200")["why"]


def _kill_while_loading(path: Path) -> None:
    record = path / ".resil" / "starts.json"
    record.write_text(json.dumps(json.loads(record.read_text()) | {"is_loading": True}))


def test_a_start_that_got_past_the_load_or_ended_on_purpose_has_not_died(tmp_path: Path) -> None:
    Launch(tmp_path / "ckpt").save(100)
    for attempt in (2, 3, 4, 5, 6):
        launch = Launch(tmp_path / "ckpt", attempt=attempt)
        assert launch.stores[0].latest() is not None, attempt
        if attempt in (2, 4):
            launch.stores[0].loaded(100)
        launch.end(failed=attempt in (2, 4))


def test_rank_0_past_its_load_is_no_start_past_the_load(tmp_path: Path) -> None:
    """Rank 1 alone cannot read its share, which no verification finds: two such starts are enough."""
    launch = Launch(tmp_path / "ckpt", 2)
    launch.save(100)
    launch.save(200)
    for attempt in (2, 3):
        launch = Launch(tmp_path / "ckpt", 2, attempt=attempt)
        assert {found.step for found in launch.each(Store.latest) if found} == {200}
        launch.stores[0].loaded(200)
        launch.leave(1)
        launch.end(failed=True)
    launch = Launch(tmp_path / "ckpt", 2, attempt=4)
    assert {found.step for found in launch.each(Store.latest) if found} == {100}
    for store in launch.stores:
        store.loaded(100)
    until(lambda: not read_start(launch.stores[0]._directory).is_loading, "the start to be past its load")


def test_ranks_that_are_past_the_load_and_fail_at_once_have_not_died_of_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(store_module, "BACKGROUND_LOOK_S", 600.0)  # nobody has looked meanwhile
    Launch(tmp_path / "ckpt", 2).save(100)
    for attempt in (2, 3, 4):
        launch = Launch(tmp_path / "ckpt", 2, attempt=attempt)
        assert {found.step for found in launch.each(Store.latest) if found} == {100}
        for store in launch.stores:
            store.loaded(100)
        launch.end(failed=True)


@pytest.mark.parametrize(
    ("end", "counts"),
    [("exited", True), ("terminated", False), ("lost", False), ("stopped", False), ("", False), (None, True)],
)
def test_a_start_that_was_ended_from_outside_has_not_died(tmp_path: Path, end: str | None, counts: bool) -> None:
    """A cancel, a preemption or a lost node while loading is no evidence against the checkpoint. None: no records."""
    attempts = tmp_path / "run" / "attempts"
    attempts.mkdir(parents=True)
    Launch(tmp_path / "ckpt").save(100)
    Launch(tmp_path / "ckpt").save(200)
    for attempt in (2, 3):
        assert latest_step(Launch(tmp_path / "ckpt", attempt=attempt, run_dir=tmp_path / "run")) == 200
        if end is not None:
            (attempts / f"{attempt:04}").write_text(f"number = {attempt}\n")
        if end:
            (attempts / f"{attempt:04}.end").write_text(f'end = "{end}"\nexit_code = 143\n')
    launch = Launch(tmp_path / "ckpt", attempt=4, run_dir=tmp_path / "run")
    assert latest_step(launch) == (100 if counts else 200)


def test_a_script_that_only_loads_is_no_start(tmp_path: Path) -> None:
    Launch(tmp_path / "ckpt").save(100)
    for _ in range(3):
        assert Store(tmp_path / "ckpt").latest_path() == str(tmp_path / "ckpt" / "step-00000100")
        assert Launch(tmp_path / "ckpt", attempt=0).stores[0].latest() is not None


def test_starts_that_die_with_the_next_checkpoint_too_have_another_cause(tmp_path: Path) -> None:
    """A training that does not start must not set aside one checkpoint after the other."""
    launch = Launch(tmp_path / "ckpt")
    for step in (100, 200, 300):
        launch.save(step)
    steps = []
    for attempt in range(2, 9):
        launch = Launch(tmp_path / "ckpt", attempt=attempt)
        steps.append(latest_step(launch))
    assert steps == [300, 300, 200, 200, 200, 200, 200]
    assert "probably not the cause" in launch.ranks[0].warnings[-1]


# ---- what is refused ------------------------------------------------------------------------------------------------


def test_two_runs_cannot_share_a_store(tmp_path: Path) -> None:
    Launch(tmp_path / "ckpt", run="one").save(100)
    with pytest.raises(CheckpointError, match="checkpoints of the run one, not of two"):
        Launch(tmp_path / "ckpt", run="two")
    assert names(tmp_path / "ckpt") == ["step-00000100"]


def test_a_path_that_was_unmounted_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "ckpt"
    Launch(path, run_dir=tmp_path).save(100)
    path.rename(tmp_path / "unmounted")
    path.mkdir()  # the mount point
    with pytest.raises(CheckpointError, match=rf"is it mounted\? \(if .* remove {tmp_path}/{RECORD}\)"):
        Launch(path, attempt=2, run_dir=tmp_path)
    with pytest.raises(CheckpointError, match="is it mounted"):
        Store.from_env({"RESIL_RUN_DIR": str(tmp_path), "RESIL_CHECKPOINTS__PATH": str(path)}).latest()
    assert list(path.iterdir()) == []
    (tmp_path / RECORD).unlink()
    Launch(path, attempt=3, run_dir=tmp_path).save(100)


def test_a_path_on_another_file_system_than_before_is_refused_even_without_a_commit(tmp_path: Path) -> None:
    Launch(tmp_path / "ckpt", run_dir=tmp_path)
    record = tmp_path / RECORD
    record.write_text(json.dumps(json.loads(record.read_text()) | {"mount": "/scratch (lustre)"}))
    (tmp_path / "ckpt").rename(tmp_path / "unmounted")
    with pytest.raises(CheckpointError, match=r"on /scratch \(lustre\): is it mounted"):
        Launch(tmp_path / "ckpt", attempt=2, run_dir=tmp_path)


def test_a_directory_that_is_unmounted_during_the_training_takes_no_save(tmp_path: Path) -> None:
    path = tmp_path / "ckpt"
    launch = Launch(path)
    launch.save(100)
    path.rename(tmp_path / "unmounted")
    path.mkdir()
    with pytest.raises(CheckpointError, match="mounted on every node, and stay mounted"):
        launch.stores[0].begin_save(200, save=1)
    assert list(path.iterdir()) == []


def test_another_directory_than_before_is_no_fresh_start(tmp_path: Path) -> None:
    Launch(tmp_path / "old", run_dir=tmp_path).save(100)
    launch = Launch(tmp_path / "new", attempt=2, run_dir=tmp_path)
    with pytest.raises(NoGoodCheckpoint, match=f"in {tmp_path}/old"):
        launch.stores[0].latest()


def test_an_older_attempt_neither_saves_nor_takes_parts_away(tmp_path: Path) -> None:
    newer = Launch(tmp_path / "ckpt", attempt=7)
    (part,) = newer.parts(100)
    older = Launch(tmp_path / "ckpt", attempt=6)  # starts: the guard tells it to end
    with pytest.raises(CheckpointError, match="attempt 7 has begun"):
        older.stores[0].begin_save(100, save=1)
    with pytest.raises(CheckpointError, match="attempt 7 has begun"):
        older.stores[0].latest()
    part.written(None)
    commit(part)


def test_a_run_directory_that_was_begun_anew_is_told_how_to_use_its_checkpoints(tmp_path: Path) -> None:
    """Attempts are counted from 1 again, below those that the directory of checkpoints knows."""
    Launch(tmp_path / "ckpt", attempt=7).save(100)
    with pytest.raises(CheckpointError, match=r"attempts are counted anew: rm ") as refused:
        Launch(tmp_path / "ckpt", attempt=1).stores[0].latest()
    Path(refused.value.hint.rpartition("rm ")[2]).unlink()
    launch = Launch(tmp_path / "ckpt", attempt=1)
    assert latest_step(launch) == 100
    launch.save(200)
    assert latest_step(launch) == 200


def test_an_attempt_that_is_overtaken_never_commits(tmp_path: Path) -> None:
    older = Launch(tmp_path / "ckpt", attempt=6)
    (part,) = older.parts(100)
    newer = Launch(tmp_path / "ckpt", attempt=7)
    assert newer.stores[0].latest() is None
    part.written(None)
    assert "attempt 7 has begun" in fails(part)[0] or "taken away" in fails(part)[0]
    assert newer.stores[0].latest() is None


def test_foreign_files_stay_where_they_are(tmp_path: Path) -> None:
    (tmp_path / "ckpt" / "step-99").mkdir(parents=True)
    (tmp_path / "ckpt" / "notes.txt").write_text("mine")
    launch = Launch(tmp_path / "ckpt")
    assert launch.stores[0].latest() is None
    launch.save(100)
    assert names(tmp_path / "ckpt") == ["notes.txt", "step-00000100", "step-99"]


def test_a_directory_that_is_no_store_has_no_checkpoint_and_is_not_changed(tmp_path: Path) -> None:
    (tmp_path / "ckpt").mkdir()
    assert Store(tmp_path / "ckpt").latest() is None
    assert Store(tmp_path / "none").latest() is None
    assert list((tmp_path / "ckpt").iterdir()) == []


def test_checkpoints_that_were_copied_without_our_own_directory_are_no_fresh_start(tmp_path: Path) -> None:
    """`cp -r ckpt/* elsewhere` leaves `.resil` behind."""
    launch = Launch(tmp_path / "ckpt")
    launch.save(100)
    launch.save(200)
    for name in names(tmp_path / "ckpt"):
        shutil.copytree(tmp_path / "ckpt" / name, tmp_path / "new" / name)
    assert Store(tmp_path / "new").latest_path() == str(tmp_path / "new" / "step-00000200")
    assert not (tmp_path / "new" / OWN).exists()
    assert latest_step(Launch(tmp_path / "new")) == 200


def test_ranks_do_not_choose_each_by_itself(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WORLD_SIZE", "8")
    with pytest.raises(CheckpointError, match="8 ranks cannot choose"):
        Store(tmp_path).latest()


def test_without_a_guard_a_damaged_checkpoint_is_passed_over_and_stays(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    launch = Launch(tmp_path / "ckpt")
    launch.save(100)
    launch.save(200)
    flip(tmp_path / "ckpt" / "step-00000200" / "rank0.bin")
    before = sorted((tmp_path / "ckpt").iterdir())
    assert Store(tmp_path / "ckpt").latest_path() == str(tmp_path / "ckpt" / "step-00000100")
    assert "step-00000200 is bad and is passed over: rank0.bin" in capsys.readouterr().err
    assert sorted((tmp_path / "ckpt").iterdir()) == before


def test_settings_come_from_the_environment_and_their_errors_name_them(tmp_path: Path) -> None:
    environ = {"RESIL_CHECKPOINTS__PATH": f"{tmp_path}/{{run}}", "RESIL_RUN": "demo", "RESIL_CHECKPOINTS__LATEST": "3"}
    store = Store.from_env(environ, verify_budget_s=5.0)
    assert (store.path, store.settings.latest, store.settings.verify_budget_s) == (tmp_path / "demo", 3, 5.0)
    with pytest.raises(SettingsError, match="no directory"):
        Store.from_env({})
    with pytest.raises(SettingsError, match="lates"):
        Store(tmp_path, lates=3)
