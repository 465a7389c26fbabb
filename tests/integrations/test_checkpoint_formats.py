"""What torch writes today has no fault, in each of its ways; what DCP writes after a failure is not committed."""

from __future__ import annotations

import errno
import os
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from resilience.checkpoints.commit import commit
from resilience.checkpoints.directory import StoreDirectory
from resilience.checkpoints.names import part_name
from resilience.errors import CheckpointError
from tests.checkpoints.trees import check_structure
from tests.integrations.launched import needs

pytestmark = [needs("torch"), pytest.mark.filterwarnings("ignore")]


def state() -> dict[str, Any]:
    import torch

    return {
        "model": {f"w{number}": torch.full((10 + number,), float(number)) for number in range(40)},
        "optimizer": {"lr": 0.1, "empty": torch.empty(0), "half": torch.ones(3, 5).bfloat16(), "names": ["a", "b"]},
        "fqn": torch.ones(2),
        "step": 3,
    }


def save_dcp(path: Path, **options: Any) -> None:
    import torch.distributed.checkpoint as dcp

    dcp.save(state(), storage_writer=dcp.FileSystemWriter(path, **options))


def save_dcp_twice_in_one_process(path: Path) -> None:
    """Save with cached plans, as trainings do."""
    import torch.distributed.checkpoint as dcp

    for name in ("one", "two"):
        planner = dcp.DefaultSavePlanner(enable_plan_caching=True)
        dcp.save(state(), storage_writer=dcp.FileSystemWriter(path / name), planner=planner)


def save_dcp_in_background(path: Path) -> None:
    import torch.distributed.checkpoint as dcp

    dcp.async_save(state(), checkpoint_id=path).result()


def save_as_hugging_face(path: Path) -> None:
    import torch
    import torch.distributed.checkpoint as dcp

    tensors = {f"w{number}": torch.ones(10) for number in range(6)}
    index = {name: 1 + number % 3 for number, name in enumerate(tensors)}
    dcp.save(tensors, storage_writer=dcp.HuggingFaceStorageWriter(path=str(path), fqn_to_index_mapping=index))


def save_files(path: Path) -> None:
    import torch

    path.mkdir()
    torch.save(state(), path / "state.pt")
    torch.save(state(), path / "legacy.pt", _use_new_zipfile_serialization=False)
    torch.save(torch.nn.Linear(3, 3), path / "model.pth")
    torch.save([], path / "nothing.ckpt")


SAVERS: dict[str, Callable[[Path], None]] = {
    "torch.save": save_files,
    "DCP": save_dcp,
    "DCP, threads": lambda path: save_dcp(path, thread_count=4),
    "DCP, a file for each tensor": lambda path: save_dcp(path, single_file_per_rank=False),
    "DCP, cached plans": save_dcp_twice_in_one_process,
    "DCP, in the background": save_dcp_in_background,
    "DCP, safetensors": save_as_hugging_face,
}


@pytest.mark.parametrize("saver", SAVERS)
def test_what_torch_writes_has_no_fault(tmp_path: Path, saver: str) -> None:
    if saver == "DCP, safetensors":
        pytest.importorskip("safetensors", reason="needs safetensors")
    SAVERS[saver](tmp_path / "saved")
    assert check_structure(tmp_path / "saved") is None
    assert any(path.is_file() for path in (tmp_path / "saved").rglob("*"))


@pytest.mark.parametrize(
    ("when", "words"),
    [
        ("at its beginning", ".metadata names data that was not written: expected 1 chunks of "),
        ("in the middle", "__0_2.distcp is truncated or damaged"),
    ],
)
def test_a_save_of_dcp_whose_writer_thread_failed_is_not_committed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, when: str, words: str
) -> None:
    from torch.distributed.checkpoint.filesystem import FileSystem

    original: Callable[..., Any] = FileSystem.create_stream

    @contextmanager
    def full(self: Any, path: Any, mode: str) -> Iterator[Any]:
        is_victim = str(path).endswith("__0_2.distcp")
        if is_victim and when == "at its beginning":
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        with original(self, path, mode) as stream:
            yield stream
        if is_victim:
            os.truncate(path, 1000)
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(FileSystem, "create_stream", full)
    failures: list[object] = []
    monkeypatch.setattr(threading, "excepthook", failures.append)
    store = StoreDirectory.create(tmp_path / "ckpt")
    part = part_name(3, 0, 1)
    save_dcp(store.path / part, thread_count=4)  # returns as if all were well
    assert (store.path / part / ".metadata").exists()
    assert len(failures) == 1
    with pytest.raises(CheckpointError) as caught:
        commit(store, part, {})
    assert words in str(caught.value)
    assert store.checkpoints() == []
