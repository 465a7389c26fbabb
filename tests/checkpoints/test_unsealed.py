"""A start seals what a framework saved whole and nothing has sealed, and never what a killed save left."""

from __future__ import annotations

import errno
import os
import shutil
import time
from collections.abc import Callable
from itertools import count
from pathlib import Path
from typing import Any

import pytest

from resilience.checkpoints import adopt, resume
from resilience.checkpoints.adopt import find_new, seal
from resilience.checkpoints.digest import digest_file
from resilience.checkpoints.directory import StoreDirectory
from resilience.checkpoints.resume import NoGoodCheckpoint
from resilience.checkpoints.verify import verify
from tests.checkpoints.ranks import Launch, workers_here
from tests.checkpoints.test_adopt import deepspeed, hf, megatron, torch_file
from tests.checkpoints.trees import source_of

__all__ = ["workers_here"]

pytestmark = pytest.mark.usefixtures("workers_here")

HF: dict[str, Any] = {"pattern": "checkpoint-{step}"}
TRACKERS = {"megatron": ("latest_checkpointed_iteration.txt", "{step}"), "deepspeed": ("latest", "global_step{step}")}
ATTEMPTS = count(1)


def started(path: Path, world: int = 1, **settings: Any) -> tuple[int | None, Launch]:
    """Begin the next attempt, a moment after the one before has ended; return the step it resumes from."""
    for one in path.rglob("*"):
        if ".resil" not in one.parts and not one.is_symlink():
            info = one.stat()
            os.utime(one, ns=(info.st_atime_ns, info.st_mtime_ns - 10**9))
    launch = Launch(path, world, attempt=next(ATTEMPTS), **settings)
    found = launch.each(lambda store: store.latest())
    assert len({one and one.name for one in found}) == 1, "the same on every rank"
    return (None if found[0] is None else found[0].step), launch


def sealed(path: Path) -> list[str]:
    return [one.name for one in StoreDirectory(path).checkpoints()]


def test_killed_between_the_save_and_its_seal_the_next_start_resumes_from_it(tmp_path: Path) -> None:
    hf(tmp_path, 500)
    step, launch = started(tmp_path, 2, **HF)
    assert step == 500 and "checkpoint-500 has no seal, and is sealed" in launch.ranks[0].warnings[0]
    hf(tmp_path, 600)
    hf(tmp_path, 700)
    assert started(tmp_path, **HF)[0] == 700
    assert sealed(tmp_path) == ["checkpoint-500", "checkpoint-700"], "no more is read than what is loaded"
    torch_file(tmp_path / "checkpoint-700" / "optimizer.pt", b"")  # damaged after its seal
    assert started(tmp_path, **HF)[0] == 600, "never further back than it must"
    assert all(verify(one).is_good for one in StoreDirectory(tmp_path).checkpoints()[:2])


def test_a_save_written_anew_in_place_and_killed_before_its_seal_is_sealed_again(tmp_path: Path) -> None:
    hf(tmp_path, 500)
    assert started(tmp_path, manage=True, **HF)[0] == 500
    shutil.rmtree(tmp_path / "checkpoint-500")
    for one in hf(tmp_path, 500).glob("*.pt*"):
        torch_file(one, b"from an older one")
    os.utime(tmp_path / ".resil" / "seals" / "00000500.checkpoint-500.json", (time.time() - 60,) * 2)
    assert started(tmp_path, manage=True, **HF)[0] == 500, "it was not set aside as damaged"
    assert verify(StoreDirectory(tmp_path).find(500)).is_good


def test_what_this_attempt_has_written_may_still_be_written(tmp_path: Path) -> None:
    launch = Launch(tmp_path, **HF)
    later = time.time() + 1
    for one in hf(tmp_path, 500).iterdir():
        os.utime(one, (later, later))
    with pytest.raises(NoGoodCheckpoint, match=r"checkpoint-500 \(it has no seal, and a file changed .* still be wri"):
        launch.stores[0].latest()
    assert sealed(tmp_path) == []


@pytest.mark.parametrize("has_older", [True, False])
def test_what_cannot_be_sealed_is_passed_over_with_words_and_is_never_a_fresh_start(
    tmp_path: Path, has_older: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    if has_older:
        hf(tmp_path, 400)
        assert started(tmp_path, **HF)[0] == 400
    hf(tmp_path, 500)

    def full(*_: Any, **__: Any) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(adopt, "replace_file", full)
    if has_older:
        step, launch = started(tmp_path, **HF)
        assert step == 400 and "No space left" in launch.ranks[0].warnings[1]
    else:
        with pytest.raises(NoGoodCheckpoint, match=r"No space left .*resil ckpt adopt checkpoint-500"):
            started(tmp_path, 2, **HF)


def test_the_other_ranks_wait_as_long_as_the_size_takes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    hf(tmp_path, 500)
    waits: list[float] = []
    wait_for = resume.wait_for

    def noted(ranks: Any, key: str, budget_s: float = 0.0, **more: Any) -> Any:
        waits.extend([budget_s] if key.startswith("sealed ") else [])
        return wait_for(ranks, key, budget_s, **more)

    monkeypatch.setattr(resume, "wait_for", noted)
    monkeypatch.setattr(resume, "SLOWEST_BYTES_PER_S", 1.0)
    assert started(tmp_path, 2, **HF)[0] == 500
    assert waits == [sum(one.stat().st_size for one in (tmp_path / "checkpoint-500").iterdir())] * 2


# ---- trees with a tracker -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("cut", [0, 1, 0.1, 0.5, 0.99])
@pytest.mark.parametrize("name", TRACKERS)
def test_a_save_that_was_killed_is_never_sealed_and_the_one_before_is(tmp_path: Path, name: str, cut: float) -> None:
    """Whether the tracker had moved, or not; a file cut off anywhere, or the whole of it there but others missing."""
    tracker, text = TRACKERS[name]
    made = next(one for one in source_of(name, tmp_path / "source").iterdir() if one.is_dir())
    directory = {step: made.name.replace("500", str(step)) for step in (500, 600)}
    for moved in (500, 600):
        path = tmp_path / f"moved-{moved}"
        for step in (500, 600):
            shutil.copytree(made, path / directory[step])
        (path / tracker).write_text(text.format(step=moved))
        newest = sorted(one for one in (path / directory[600]).rglob("*") if one.is_file())[-1]
        os.truncate(newest, int(newest.stat().st_size * cut) if cut != 1 else 1)
        found, launch = started(path, tracker=tracker)
        assert (found, sealed(path)) == (500, [directory[500]]), moved
        assert any("not complete" in one for one in launch.ranks[0].warnings) == (moved == 600)


@pytest.mark.parametrize("save", [megatron, deepspeed])
def test_a_first_save_that_never_ended_is_a_fresh_start_and_a_torn_tracker_is_not(
    tmp_path: Path, save: Callable[[Path, int], Path]
) -> None:
    tracker = TRACKERS[save.__name__][0]
    name = save(tmp_path, 500).name
    assert started(tmp_path, tracker=tracker)[0] is None and sealed(tmp_path) == []
    (tmp_path / tracker).write_text("")
    with pytest.raises(NoGoodCheckpoint, match=f"{name} .*names no checkpoint"):
        started(tmp_path, tracker=tracker)


# ---- what frameworks do besides -------------------------------------------------------------------------------------


def test_what_its_framework_deletes_before_or_during_the_seal_is_gone_without_an_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for step in (400, 500, 600):
        hf(tmp_path, step)

    def delete_meanwhile(path: Path, *more: Any, **fields: Any) -> Any:
        if path.parent.name == "checkpoint-600":
            shutil.rmtree(path.parent, ignore_errors=True)
        return digest_file(path, *more, **fields)

    monkeypatch.setattr(adopt, "digest_file", delete_meanwhile)
    assert started(tmp_path, **HF)[0] == 500
    shutil.rmtree(tmp_path / "checkpoint-500")  # save_total_limit, after its seal
    assert started(tmp_path, **HF)[0] == 400 and sealed(tmp_path) == ["checkpoint-400"]


def test_links_and_temporary_names_are_never_sealed(tmp_path: Path) -> None:
    """Lightning's `save_last="link"`, and the directories that Orbax renames when they are complete."""
    torch_file(tmp_path / "step=500.ckpt")
    (tmp_path / "last.ckpt").symlink_to("step=500.ckpt")
    (tmp_path / "step=600.ckpt").symlink_to("step=600.ckpt")  # to itself
    assert started(tmp_path, pattern="step={step}.ckpt")[0] == 500 and sealed(tmp_path) == ["step=500.ckpt"]
    orbax = tmp_path / "orbax"
    for name in ("500.orbax-checkpoint-tmp", "500.orbax-checkpoint-tmp-1763900000", "500"):
        torch_file(orbax / name / "state" / "array", name.encode())
    assert started(orbax, pattern="{step}")[0] == 500 and sealed(orbax) == ["500"]


def test_numbers_that_are_no_steps_order_the_checkpoints_nevertheless(tmp_path: Path) -> None:
    """Accelerate counts its saves: checkpoint_0, checkpoint_1."""
    for number in (0, 9, 10):
        torch_file(tmp_path / f"checkpoint_{number}" / "model.bin", str(number).encode())
    assert started(tmp_path, pattern="checkpoint_{step}")[0] == 10


def test_what_is_sealed_by_the_tick_meanwhile_is_not_sealed_again(tmp_path: Path) -> None:
    hf(tmp_path, 500)
    started(tmp_path, **HF)
    store = StoreDirectory(tmp_path)
    token = store.find(500).manifest().token
    assert started(tmp_path, **HF)[0] == 500 and store.find(500).manifest().token == token
    assert not find_new(store, "checkpoint-{step}", now=time.time()) and seal(store, "checkpoint-500", 500)
