"""What `resil status` says of a directory of checkpoints."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from resilience.checkpoints.directory import Checkpoint, StoreDirectory
from resilience.checkpoints.names import STORE, VERIFIED, part_name
from resilience.checkpoints.quarantine import set_aside
from resilience.checkpoints.summary import Aside, Saved, StoreSummary, describe_summary, read_summary
from resilience.checkpoints.verified import write_verified
from resilience.checkpoints.verify import Fault, Verification, verify
from tests.checkpoints.trees import RECORDED, commit_tree, seal_tree

NOW = 1_800_000_000.0
MIN = 60.0
NEWEST = Saved(name="step-00000900", step=900, at=NOW - 5 * MIN)
GOOD = Saved(name="step-00000800", step=800, at=NOW - 35 * MIN, level="digest", verified_at=NOW)


@pytest.mark.parametrize(
    ("newest", "verified", "fields", "expected"),
    [
        (GOOD, GOOD, {}, "step 800 verified, saved 35 min ago (step-00000800)"),
        (NEWEST, GOOD, {}, "step 800 verified, saved 35 min ago (step-00000800); step 900 not verified yet"),
        (Saved(name="step-00000900", step=900, fault="x"), GOOD, {},
         "step 800 verified, saved 35 min ago (step-00000800); step 900 is damaged"),
        (NEWEST, None, {}, "step 900 not verified, saved 5 min ago (step-00000900)"),
        (Saved(name="step-00000900", step=900, at=NOW - 5 * MIN, fault="x"), None, {},
         "step 900 damaged, saved 5 min ago (step-00000900)"),
        (None, None, {}, "none yet"),
        (None, None, {"bad": (Aside("step-1", "x"),)}, "none is left: 1 checkpoint set aside"),
        (None, None, {"trouble": "no answer within 5 s"}, "unknown: no answer within 5 s"),
    ],
)  # fmt: skip
def test_a_sentence(newest: Saved | None, verified: Saved | None, fields: dict[str, object], expected: str) -> None:
    summary = StoreSummary(path="/ckpts", newest=newest, verified=verified, **fields)  # type: ignore[arg-type]
    assert describe_summary(summary, NOW) == expected


@pytest.fixture
def store(tmp_path: Path) -> StoreDirectory:
    return StoreDirectory.create(tmp_path / "ckpts", "gpt")


def saved(store: StoreDirectory, step: int, level: str = "") -> Checkpoint:
    checkpoint = commit_tree(store, step, RECORDED / "safetensors")
    os.utime(checkpoint.manifest_path, (NOW + step,) * 2)
    if level:
        write_verified(checkpoint, verify(checkpoint, level), NOW)
    return checkpoint


def summary_of(store: StoreDirectory) -> StoreSummary:
    found = read_summary(str(store.path))
    assert found is not None
    return found


def test_only_digests_that_were_read_again_count_as_verified(store: StoreDirectory) -> None:
    for step, level in ((100, "digest"), (200, "digest"), (300, "structure"), (400, "")):
        saved(store, step, level)
    found = summary_of(store)
    assert found.newest == Saved(name="step-00000400", step=400, at=NOW + 400)
    assert found.verified is not None and (found.verified.step, found.verified.verified_at) == (200, NOW)
    assert (found.run, found.count) == ("gpt", 4)


def test_what_was_verified_long_ago_is_found_below_a_thousand_that_were_not(store: StoreDirectory) -> None:
    saved(store, 1, "digest")
    for step in range(2, 1000):
        (store.path / f"step-{step:08d}").mkdir()
    found = summary_of(store)
    assert found.verified is not None and (found.verified.step, found.count) == (1, 999)


def test_a_checkpoint_that_was_replaced_or_found_damaged_is_not_verified(store: StoreDirectory) -> None:
    first, second = saved(store, 100, "digest"), saved(store, 200, "digest")
    fault = Fault("model.safetensors", "9 bytes", "8 bytes", "is truncated")
    write_verified(second, Verification("sizes", fault, token=second.manifest().token), NOW)
    found = summary_of(store)
    assert found.verified is not None and found.newest is not None
    assert (found.verified.step, found.newest.fault) == (100, str(fault))
    other = first.manifest_path.read_text()
    (store.path / "step-00000200" / ".resil" / "manifest.json").write_text(other)
    assert summary_of(store).newest == Saved(name="step-00000200", step=200, at=summary_of(store).newest.at)  # type: ignore[union-attr]
    (store.own / VERIFIED / "step-00000100.json").write_text("{")
    assert summary_of(store).verified is None


def test_parts_and_what_was_set_aside_are_not_checkpoints(store: StoreDirectory) -> None:
    saved(store, 100, "digest")
    (store.path / part_name(200, 1, 1)).mkdir()
    (store.path / "README").write_text("of a person")
    sealed = seal_tree(store, 500, RECORDED / "hf", "checkpoint-500")
    assert summary_of(store).newest == Saved(name="checkpoint-500", step=500, at=sealed.manifest_path.stat().st_mtime)
    set_aside(store, sealed, why="two starts died")
    found = summary_of(store)
    assert (found.count, found.parts) == (1, (".part-00000200.a1.1",))
    assert [one[:3] for one in found.bad] == [("checkpoint-500", "two starts died", "resil")]


def test_what_cannot_be_read_is_trouble_and_what_is_not_there_is_nothing(store: StoreDirectory) -> None:
    assert read_summary(str(store.path / "no")) is None
    (store.own / STORE).write_text("{")
    assert "store.json is damaged" in summary_of(store).trouble
