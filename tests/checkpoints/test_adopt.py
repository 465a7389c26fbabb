"""Sealed mode: what a framework saved is sealed once it is complete, and never what is still being written."""

from __future__ import annotations

import json
import os
import time
import zipfile
from collections.abc import Callable
from pathlib import Path

import pytest

from resilience.checkpoints import adopt, fence
from resilience.checkpoints.adopt import QUIET_S, Found, find_new, seal, seal_job
from resilience.checkpoints.digest import digest_file
from resilience.checkpoints.directory import StoreDirectory
from resilience.checkpoints.names import SEALS
from resilience.checkpoints.verify import verify
from resilience.errors import CheckpointError, UsageError

NOW = 1_750_000_000.0
MEGATRON = "latest_checkpointed_iteration.txt"


def torch_file(path: Path, content: bytes = b"weights") -> None:
    """As torch.save writes it: a zip file."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with zipfile.ZipFile(path, "w") as file:
        file.writestr("archive/data.pkl", b"\x80\x02.")
        file.writestr("archive/data/0", content * 100)


def age(path: Path, seconds: float) -> None:
    """Make it look as if all of it was last changed so long ago."""
    for one in [path, *path.rglob("*")]:
        os.utime(one, (NOW - seconds, NOW - seconds))


def hf(root: Path, step: int) -> Path:
    """As the Trainer of transformers: checkpoint-500/."""
    path = root / f"checkpoint-{step}"
    for name in ("pytorch_model.bin", "optimizer.pt", "scheduler.pt", "rng_state.pth"):
        torch_file(path / name, f"{name} {step}".encode())
    (path / "training_args.bin").write_bytes(b"args")
    (path / "trainer_state.json").write_text(json.dumps({"global_step": step}))
    return path


def megatron(root: Path, step: int) -> Path:
    """As Megatron-LM: iter_0000500/mp_rank_00/model_optim_rng.pt, and its tracker."""
    path = root / f"iter_{step:07d}"
    for rank in (0, 1):
        torch_file(path / f"mp_rank_{rank:02d}" / "model_optim_rng.pt", f"{step} {rank}".encode())
    return path


def deepspeed(root: Path, step: int) -> Path:
    """As DeepSpeed with ZeRO: global_step500/, and `latest`."""
    path = root / f"global_step{step}"
    torch_file(path / "mp_rank_00_model_states.pt", str(step).encode())
    torch_file(path / "zero_pp_rank_0_mp_rank_00_optim_states.pt", str(step).encode())
    return path


@pytest.fixture
def store(tmp_path: Path) -> StoreDirectory:
    return StoreDirectory.create(tmp_path / "checkpoints", "gpt")


def new(store: StoreDirectory, pattern: str = "checkpoint-{step}", tracker: str = "") -> dict[str, str]:
    """Names and why they cannot be sealed."""
    return {one.name: one.why_not for one in find_new(store, pattern, tracker, now=NOW)}


def test_what_did_not_change_for_a_while_and_is_whole_is_sealed_and_then_is_a_checkpoint(store: StoreDirectory) -> None:
    age(hf(store.path, 500), QUIET_S + 1)
    assert store.checkpoints() == []
    (found,) = find_new(store, "checkpoint-{step}", now=NOW)
    assert found == Found("checkpoint-500", 500)
    sealed = seal(store, found.name, found.step, run="gpt", metrics={"loss": 2.5})
    assert store.checkpoints() == [sealed] and verify(sealed, "digest").is_good
    manifest = sealed.manifest()
    assert (manifest.step, manifest.run, manifest.metrics, len(manifest.files)) == (500, "gpt", {"loss": 2.5}, 6)
    assert manifest.durable_at == NOW - QUIET_S - 1, "when it was saved, not when it was sealed"
    assert not find_new(store, "checkpoint-{step}", now=NOW)
    assert not (sealed.path / ".resil").exists(), "nothing is written into what belongs to a framework"


def test_what_changed_just_now_is_still_being_written(store: StoreDirectory) -> None:
    age(hf(store.path, 500), QUIET_S - 10)
    assert "may still be written" in new(store)["checkpoint-500"]


def test_a_file_of_a_slow_rank_makes_the_whole_checkpoint_unfinished(store: StoreDirectory) -> None:
    path = hf(store.path, 500)
    age(path, 3600)
    os.utime(path / "rng_state.pth", (NOW - 5, NOW - 5))
    assert "5 s ago" in new(store)["checkpoint-500"]


def test_a_clock_that_is_behind_the_file_server_seals_nothing(store: StoreDirectory) -> None:
    age(hf(store.path, 500), -3600)
    assert "in the future" in new(store)["checkpoint-500"]


def _truncated(path: Path) -> None:
    file = path / "optimizer.pt"
    os.truncate(file, file.stat().st_size // 2)


def _emptied(path: Path) -> None:
    for one in path.iterdir():
        one.unlink()


PARTIAL: dict[str, tuple[Callable[[Path], None], str]] = {
    "optimizer.pt is truncated": (_truncated, "optimizer.pt is truncated"),
    "no trainer state": (
        lambda path: (path / "trainer_state.json").unlink(),
        "trainer_state.json, which is written last",
    ),
    "nothing": (_emptied, "no file"),
    "a link": (lambda path: (path / "x").symlink_to("/etc/passwd"), "link"),
}


@pytest.mark.parametrize("case", PARTIAL)
def test_what_a_killed_save_left_is_never_sealed_however_old(store: StoreDirectory, case: str) -> None:
    damage, words = PARTIAL[case]
    path = hf(store.path, 500)
    damage(path)
    age(path, 86400)
    assert words in new(store)["checkpoint-500"]
    with pytest.raises(CheckpointError, match=words):
        seal(store, "checkpoint-500", 500)
    assert store.checkpoints() == [] and not any((store.own / SEALS).iterdir())


# ---- trackers -------------------------------------------------------------------------------------------------


FRAMEWORKS = {"megatron": (megatron, MEGATRON, "{step}"), "deepspeed": (deepspeed, "latest", "global_step{step}")}


@pytest.mark.parametrize("name", FRAMEWORKS)
def test_what_the_tracker_names_is_complete_at_once_and_what_is_newer_never(store: StoreDirectory, name: str) -> None:
    save, tracker, text = FRAMEWORKS[name]
    first, second = save(store.path, 100), save(store.path, 200)
    age(second, 86400)
    assert set(new(store, "", tracker).values()) == {f"{tracker} names no checkpoint yet"}
    (store.path / tracker).write_text(text.format(step=100))
    found = new(store, "", tracker)
    assert found[first.name] == "" and f"{tracker} is at 100" in found[second.name]
    seal(store, first.name, 100)
    (store.path / tracker).write_text(text.format(step=200))
    assert new(store, "", tracker) == {second.name: ""}


@pytest.mark.parametrize("text", ["", "global_st", "release", "9" * 40, "\0\xff"])
def test_a_tracker_that_is_just_being_written_names_nothing(store: StoreDirectory, text: str) -> None:
    deepspeed(store.path, 100)
    (store.path / "latest").write_bytes(text.encode("latin-1"))
    assert new(store, "", "latest") == {"global_step100": "latest names no checkpoint yet"}


def test_one_that_the_tick_missed_is_sealed_later_if_it_is_whole(store: StoreDirectory) -> None:
    missed, torn = megatron(store.path, 100), megatron(store.path, 200)
    os.truncate(torn / "mp_rank_01" / "model_optim_rng.pt", 100)
    for path in (missed, torn):
        age(path, 3600)
    megatron(store.path, 300)
    (store.path / MEGATRON).write_text("300\n")
    found = new(store, "", MEGATRON)
    assert (found["iter_0000100"], found["iter_0000300"]) == ("", "") and "truncated" in found["iter_0000200"]


def test_a_file_is_a_checkpoint_too(store: StoreDirectory) -> None:
    path = store.path / "epoch=3-step=500.ckpt"
    torch_file(path)
    age(path, 3600)
    (found,) = find_new(store, "epoch=3-step={step}.ckpt", now=NOW)
    sealed = seal(store, found.name, found.step)
    assert verify(sealed, "digest").is_good and sealed.manifest().files[0].path == ""
    os.truncate(path, 50)
    assert not verify(sealed, "sizes").is_good


# ---- what changes after its seal ------------------------------------------------------------------------------


def test_what_a_framework_writes_anew_is_not_verified_until_it_is_sealed_again(store: StoreDirectory) -> None:
    save, tracker, _ = FRAMEWORKS["megatron"]
    save(store.path, 100)
    (store.path / tracker).write_text("100")
    sealed = seal(store, "iter_0000100", 100)
    for one in sealed.path.rglob("*.pt"):
        torch_file(one, b"resumed from an older one")
        os.utime(one, (time.time() + 5, time.time() + 5))
    assert verify(sealed, "digest").fault is not None
    assert new(store, "", tracker) == {"iter_0000100": ""}
    assert verify(seal(store, "iter_0000100", 100), "digest").is_good


def test_damage_is_not_sealed_as_if_it_were_a_new_save(store: StoreDirectory) -> None:
    """A framework writes all of a checkpoint; a program that changes one file of it does damage."""
    sealed = seal(store, megatron(store.path, 100).name, 100)
    (store.path / MEGATRON).write_text("100")
    one = sealed.path / "mp_rank_01" / "model_optim_rng.pt"
    content = bytearray(one.read_bytes())
    content[70] ^= 1
    one.write_bytes(content)
    os.utime(one, (time.time() + 5, time.time() + 5))
    assert new(store, "", MEGATRON) == {"iter_0000100": "1 of 2 files changed after it was sealed"}
    assert verify(sealed, "digest").fault is not None


def test_a_truncated_file_is_not_sealed_as_if_it_were_a_new_save(store: StoreDirectory) -> None:
    path = store.path / "step=100.ckpt"
    path.write_bytes(b"weights" * 100)
    sealed = seal(store, path.name, 100)
    os.truncate(path, 300)
    os.utime(path, (time.time() + 5, time.time() + 5))
    later = time.time() + 3600
    (found,) = find_new(store, "step={step}.ckpt", now=later)
    assert "smaller than when it was sealed" in found.why_not and verify(sealed).fault is not None
    path.write_bytes(b"retrain" * 100)
    assert [one.why_not for one in find_new(store, "step={step}.ckpt", now=later)] == [""]


def test_a_damaged_seal_is_named_and_stays(store: StoreDirectory) -> None:
    sealed = seal(store, megatron(store.path, 100).name, 100)
    (store.path / MEGATRON).write_text("100")
    os.truncate(sealed.manifest_path, 40)
    assert "is not a manifest" in new(store, "", MEGATRON)["iter_0000100"]


def test_a_write_during_the_sealing_is_noticed(store: StoreDirectory, monkeypatch: pytest.MonkeyPatch) -> None:
    path = hf(store.path, 500)

    def write_meanwhile(file: Path, algorithm: str, *, sync: bool = False) -> tuple[int, str]:
        found = digest_file(file, algorithm, sync=sync)
        with (path / "optimizer.pt").open("ab") as other:
            other.write(b"more")
        return found

    monkeypatch.setattr(adopt, "digest_file", write_meanwhile)
    with pytest.raises(CheckpointError, match="changed while it was read") as caught:
        seal(store, "checkpoint-500", 500)
    assert caught.value.transient and store.checkpoints() == []


# ---- names, and the job of the worker -------------------------------------------------------------------------


def test_names_that_are_not_a_frameworks_are_left_alone(store: StoreDirectory) -> None:
    for name in ("logs", "checkpoint-", "checkpoint-12x", ".checkpoint-3"):
        (store.path / name).mkdir()
    (store.path / "checkpoint-7").symlink_to("logs")
    torch_file(store.path / "step-00000005" / "model.pt")
    torch_file(store.path / "logs" / "model.pt")
    age(store.path / "logs", 3600)
    assert new(store) == {"checkpoint-7": "it is a link"}
    for name in ("step-00000005", "../x", ".hidden", "checkpoint-7"):
        with pytest.raises(CheckpointError, match=r"cannot be sealed|it is a link"):
            seal(store, name, 5)


def test_without_a_pattern_or_a_known_tracker_nothing_is_guessed(store: StoreDirectory) -> None:
    with pytest.raises(UsageError, match="pattern"):
        find_new(store, "", "newest.txt", now=NOW)


def test_the_job_of_the_worker_seals(tmp_path: Path) -> None:
    hf(tmp_path, 500)
    answer = seal_job({"do": "seal", "store": str(tmp_path), "name": "checkpoint-500", "step": 500, "run": "gpt"})
    (sealed,) = StoreDirectory.open(tmp_path).checkpoints()
    assert answer["name"] == sealed.name and answer["bytes"] == sealed.manifest().size_bytes
    assert StoreDirectory.open(tmp_path).run() == "gpt"


def test_a_seal_of_another_step_is_replaced(store: StoreDirectory) -> None:
    hf(store.path, 500)
    seal(store, "checkpoint-500", 5)
    assert [one.step for one in (seal(store, "checkpoint-500", 500), *store.checkpoints())] == [500, 500]


def test_an_attempt_that_was_overtaken_seals_nothing(tmp_path: Path) -> None:
    store = StoreDirectory.create(tmp_path)
    hf(tmp_path, 500)
    fence.begin(store, 3)
    with pytest.raises(CheckpointError, match="attempt 3 has begun, so attempt 2 no longer commits"):
        seal_job({"store": str(tmp_path), "name": "checkpoint-500", "step": 500, "attempt": 2})
    assert store.checkpoints() == []
    seal_job({"store": str(tmp_path), "name": "checkpoint-500", "step": 500, "attempt": 3})
    assert [one.step for one in store.checkpoints()] == [500]
