"""The counts of torch's flight recorder are read where they are there, and nothing else ever happens."""

from __future__ import annotations

import json
import subprocess
import sys
from importlib.util import find_spec
from types import SimpleNamespace
from typing import Any

import pytest

from resilience.guard import collectives as module
from resilience.guard.collectives import Collectives, parse_counts
from resilience.guard.heartbeat.beat import SharedProgress, Signs


def status(*groups: tuple[int, int, int]) -> str:
    """The recorder's text, as torch 2.13 writes it: (enqueued, started, completed) of each group."""
    keys = ("last_enqueued_collective", "last_started_collective", "last_completed_collective")
    table = {str(number): dict(zip(keys, map(str, group), strict=True)) for number, group in enumerate(groups)}
    return json.dumps({"version": "2.10", "pg_config": {}, "pg_status": table})


@pytest.mark.parametrize(
    ("text", "counts"),
    [
        (status((60, -1, 60)), (60, False)),
        (status((61, -1, 60)), (61, True)),
        (status((60, -1, 60), (7, 7, 6)), (67, True)),
        (status((60, -1, 60), (-1, -1, -1)), (60, False)),
        (status((-1, -1, -1)), None),
        (status(), None),
        ("", None),
        (None, None),
    ],
)
def test_counts_of_all_groups(text: str | None, counts: tuple[int, bool] | None) -> None:
    assert parse_counts(text) == counts


@pytest.mark.parametrize("text", ["{", "[]", '{"pg_status": {"0": {}}}', '{"version": "3.0"}'])
def test_a_recorder_of_another_version_tells_nothing(text: str, monkeypatch: pytest.MonkeyPatch) -> None:
    dumps: dict[str, Any] = {"_dump_fr_trace_json": lambda **_: text, "_dump_nccl_trace_json": lambda **_: None}
    monkeypatch.setitem(sys.modules, module._MODULE, SimpleNamespace(**dumps))
    assert Collectives().read() is None
    dumps["_dump_nccl_trace_json"] = lambda **_: status((3, -1, 2))
    monkeypatch.setitem(sys.modules, module._MODULE, SimpleNamespace(**dumps))
    assert Collectives().read() == (3, True)


def test_without_torch_nothing_is_read_and_nothing_imported(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delitem(sys.modules, module._MODULE, raising=False)
    assert Collectives().read() is None and module._MODULE not in sys.modules


@pytest.mark.skipif(find_spec("torch") is None, reason="needs torch")
def test_the_recorder_of_the_installed_torch_is_understood() -> None:
    code = """
import torch, torch.distributed as dist
from resilience.guard.collectives import Collectives
dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
print(Collectives().read())
for _ in range(3):
    dist.all_reduce(torch.ones(1))
print(Collectives().read())
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.splitlines() == ["None", "(3, False)"]


def test_looks_are_stored_in_the_shared_memory() -> None:
    slot, signs = SharedProgress(), Signs()
    for collectives in ((3, False), (4, True), (4, True), None):
        slot.note_look(collectives, 1_800_000_000.25)
    signs.update(list(slot.words[2:7]))
    assert (signs.looked, signs.looks, signs.inside, signs.entered, signs.is_inside) == (
        1_800_000_000.25, 3, 2, 4, True,
    )  # fmt: skip
    assert slot.read() == (0, 0, ""), "the training's own words are untouched"
    slot.close()
