"""Verification: each kind of damage is refused with file, expected and found; "I could not look" is neither."""

from __future__ import annotations

import errno
import os
import random
import shutil
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from resilience.checkpoints import verify as verify_module
from resilience.checkpoints.directory import Checkpoint, StoreDirectory
from resilience.checkpoints.formats import Content
from resilience.checkpoints.manifest import FileEntry, in_share, to_text
from resilience.checkpoints.verified import TRUSTED_S, read_trusted, read_verified, write_verified
from resilience.checkpoints.verify import LEVELS, Fault, Verification, verify
from resilience.checkpoints.worker import do
from tests.checkpoints.trees import (
    FORMATS,
    RECORDED,
    commit_tree,
    manifest_of,
    rewrite,
    seal_tree,
    source_of,
    with_algorithm,
)

SEED = 15


@pytest.fixture
def store(tmp_path: Path) -> StoreDirectory:
    return StoreDirectory.create(tmp_path / "ckpt")


@pytest.fixture
def checkpoint(store: StoreDirectory) -> Checkpoint:
    return commit_tree(store, 3, RECORDED / "dcp")


def fault_of(verification: Verification) -> Fault:
    assert verification.fault is not None, verification
    assert not verification.is_good
    return verification.fault


# ---- good


@pytest.mark.parametrize("level", LEVELS)
@pytest.mark.parametrize("name", FORMATS)
def test_what_frameworks_saved_is_good_at_each_level(store: StoreDirectory, name: str, level: str) -> None:
    found = verify(commit_tree(store, 3, RECORDED / name), level)
    assert found.is_good, found
    assert str(found) == f"good ({level})"


@pytest.mark.parametrize("source", ["hf", "torch/state.pt", "safetensors/model.safetensors"])
def test_a_sealed_directory_and_a_sealed_file_are_verified_alike(store: StoreDirectory, source: str) -> None:
    sealed = seal_tree(store, 500, RECORDED / source, Path(source).name)
    assert verify(sealed).is_good
    victim = sealed.path if sealed.path.is_file() else sealed.path / "model-00002-of-00006.safetensors"
    flip(victim, 8 * (victim.stat().st_size - 300))
    assert fault_of(verify(sealed)).file == victim.name


def test_the_store_may_hold_files_that_nobody_committed(checkpoint: Checkpoint) -> None:
    (checkpoint.path / "notes.txt").write_text("the good one")
    assert verify(checkpoint).is_good


# ---- damage


def flip(path: Path, bit: int) -> None:
    """Flip one bit of a file."""
    content = bytearray(path.read_bytes())
    content[bit // 8] ^= 1 << bit % 8
    path.write_bytes(content)


def files_of(path: Path) -> list[Path]:
    return sorted(inner for inner in path.rglob("*") if inner.is_file() and ".resil" not in inner.parts)


@pytest.mark.parametrize(
    ("name", "kind"),
    [
        (name, kind)
        for name in (*FORMATS, "deepspeed", "megatron")
        for kind in ("flip", "truncate", "swap")
        if (name, kind) != ("safetensors", "swap")  # a single file
    ],
)
def test_200_flips_truncations_and_swaps_are_each_refused_and_named(
    store: StoreDirectory, tmp_path: Path, name: str, kind: str
) -> None:
    checkpoint = commit_tree(store, 3, source_of(name, tmp_path / "source"))
    contents = {path: path.read_bytes() for path in files_of(checkpoint.path)}
    draw = random.Random(f"{SEED} {name} {kind}")
    for _ in range(200):
        victim = draw.choice(list(contents))
        other = draw.choice([path for path in contents if contents[path] != contents[victim]] or [victim])
        if kind == "flip":
            flip(victim, draw.randrange(len(contents[victim]) * 8))
        elif kind == "truncate":
            os.truncate(victim, draw.randrange(len(contents[victim])))
        else:
            swap(victim, other)
        fault = fault_of(verify(checkpoint))
        # An index that is flipped refers to other files: the sentence then names both.
        named = {path.relative_to(checkpoint.path).as_posix() for path in (victim, other)[: 1 + (kind == "swap")]}
        assert any(path in str(fault) for path in named), (named, fault)
        assert fault.file in named or kind == "flip"
        assert fault.expected != fault.found
        for path in (victim, other):
            path.write_bytes(contents[path])
    assert verify(checkpoint).is_good


def swap(one: Path, other: Path) -> None:
    aside = one.with_name("aside")
    one.rename(aside)
    other.rename(one)
    aside.rename(other)


def made_directory(path: Path) -> None:
    path.unlink()
    path.mkdir()


def made_link(path: Path) -> None:
    path.symlink_to(path.rename(path.with_name("other")))


DAMAGE: dict[str, tuple[str, Callable[[Path], object], str, str, str]] = {
    "a missing rank": ("__1_0.distcp", Path.unlink, "is missing", "4,479 bytes", "no file"),
    "a truncated file": ("__1_0.distcp", lambda path: os.truncate(path, 9), "is truncated", "4,479 bytes", "9 bytes"),
    "a longer file": (".metadata", lambda path: os.truncate(path, 2000), "is too long", "1,188 bytes", "2,000 bytes"),
    "a directory": (".metadata", made_directory, "was replaced", "a file", "a directory"),
    "a link": (".metadata", made_link, "was replaced", "a file", "a symbolic link"),
}


@pytest.mark.parametrize("level", LEVELS)
@pytest.mark.parametrize("damage", DAMAGE)
def test_damage_of_names_and_sizes_is_named_at_each_level(checkpoint: Checkpoint, damage: str, level: str) -> None:
    name, act, what, expected, found = DAMAGE[damage]
    act(checkpoint.path / name)
    assert fault_of(verify(checkpoint, level)) == Fault(name, expected, found, what)


def test_a_fault_is_a_sentence_with_file_expected_and_found(checkpoint: Checkpoint) -> None:
    os.truncate(checkpoint.path / "__1_0.distcp", 9)
    assert str(verify(checkpoint)) == "__1_0.distcp is truncated: expected 4,479 bytes, found 9 bytes"


def test_a_flipped_bit_is_found_by_the_digest_only(checkpoint: Checkpoint) -> None:
    flip(checkpoint.path / "__1_0.distcp", 8 * 1000)
    assert verify(checkpoint, "sizes").is_good
    fault = fault_of(verify(checkpoint, "digest"))
    assert fault.file == "__1_0.distcp"
    assert fault.expected.startswith("crc32 ")
    assert fault.what == "has other content than was committed"


# ---- manifests


def test_a_manifest_of_an_older_checkpoint_is_damage(store: StoreDirectory, checkpoint: Checkpoint) -> None:
    other = commit_tree(store, 2, RECORDED / "dcp")
    shutil.copy(other.manifest_path, checkpoint.manifest_path)
    fault = fault_of(verify(checkpoint, "sizes"))
    assert fault.file == ".resil/manifest.json"
    assert "of step 2, not of 3" in fault.found


def test_the_manifest_of_an_older_save_of_the_same_step_is_damage(checkpoint: Checkpoint) -> None:
    older = checkpoint.manifest()
    flip(checkpoint.path / "__0_0.distcp", 8 * 900)  # saved again, with another value
    rewrite(checkpoint, manifest_of(checkpoint.path, 3))
    assert verify(checkpoint).is_good
    rewrite(checkpoint, older)
    assert fault_of(verify(checkpoint)).file == "__0_0.distcp"


@pytest.mark.parametrize("damage", ["flipped", "truncated", "empty", "gone"])
def test_a_damaged_manifest_is_damage(checkpoint: Checkpoint, damage: str) -> None:
    path = checkpoint.manifest_path
    match damage:
        case "flipped":
            flip(path, 8 * 100)
        case "truncated":
            os.truncate(path, 200)
        case "empty":
            os.truncate(path, 0)
        case _:
            path.unlink()
    fault = fault_of(verify(checkpoint, "sizes"))
    assert fault.file == ".resil/manifest.json"
    assert fault.found


def test_a_manifest_of_a_newer_version_is_unknown(checkpoint: Checkpoint) -> None:
    newer = replace(checkpoint.manifest(), format=99)
    checkpoint.manifest_path.write_text(to_text(newer))
    found = verify(checkpoint)
    assert (found.fault, found.is_good) == (None, False)
    assert "format 99" in found.why_unknown


# ---- I could not look


def test_digests_that_cannot_be_computed_here_are_unknown_not_good(checkpoint: Checkpoint) -> None:
    with_algorithm(checkpoint, "sha1024")
    assert verify(checkpoint, "structure").is_good
    found = verify(checkpoint, "digest")
    assert (found.fault, found.is_good) == (None, False)
    assert "sha1024" in found.why_unknown
    os.truncate(checkpoint.path / "__1_0.distcp", 9)
    assert fault_of(verify(checkpoint, "digest")).file == "__1_0.distcp"  # without any digest


def test_an_error_of_reading_is_unknown_not_damaged(checkpoint: Checkpoint, monkeypatch: Any) -> None:
    def broken(path: Path, algorithm: str, **_: Any) -> tuple[int, str]:
        raise OSError(errno.EIO, os.strerror(errno.EIO), str(path))

    monkeypatch.setattr(verify_module, "digest_file", broken)
    found = verify(checkpoint)
    assert (found.fault, found.is_good) == (None, False)
    assert found.why_unknown.endswith("/.metadata: Input/output error")


def test_an_error_of_reading_a_header_is_unknown(checkpoint: Checkpoint, monkeypatch: Any) -> None:
    def broken(self: object, path: str, size: int = -1, offset: int = 0) -> bytes:
        raise OSError(errno.ESTALE, os.strerror(errno.ESTALE), path)

    monkeypatch.setattr(Content, "read", broken)
    found = verify(checkpoint, "structure")
    assert found.fault is None
    assert "Stale file handle" in found.why_unknown


def test_a_checkpoint_that_is_gone_is_unknown(checkpoint: Checkpoint) -> None:
    shutil.rmtree(checkpoint.path)
    found = verify(checkpoint)
    assert found.fault is None
    assert "No such file" in found.why_unknown


def test_a_checkpoint_that_is_pruned_during_the_look_is_unknown(checkpoint: Checkpoint, monkeypatch: Any) -> None:
    def pruned(content: object) -> Fault:
        checkpoint.path.rename(checkpoint.path.with_name("trash"))
        return Fault("x", "1", "2", "is missing")

    monkeypatch.setattr(verify_module, "check_content", pruned)
    assert verify(checkpoint).why_unknown


# ---- shares and deadlines


@pytest.mark.parametrize("nodes", [2, 3, 7])
def test_the_shares_of_all_nodes_find_what_one_node_finds(checkpoint: Checkpoint, nodes: int) -> None:
    flip(checkpoint.path / "__1_0.distcp", 8 * 1000)
    found = [verify(checkpoint, node=node, nodes=nodes) for node in range(nodes)]
    faults = [one.fault for one in found if one.fault]
    assert {fault.file for fault in faults} == {"__1_0.distcp"}
    for entry in checkpoint.manifest().files:
        assert sum(in_share(entry.path, node, nodes) for node in range(nodes)) == 1


def test_files_after_the_deadline_are_unread_and_so_not_good(checkpoint: Checkpoint) -> None:
    found = verify(checkpoint, deadline=time.monotonic() - 1)
    assert (found.fault, found.unread, found.is_good) == (None, 3, False)
    assert verify(checkpoint, deadline=time.monotonic() + 600).is_good


def test_a_file_too_large_for_the_time_left_is_unread(checkpoint: Checkpoint) -> None:
    with open(checkpoint.path / "large.dat", "wb") as file:
        file.truncate(2**32)  # sparse
    manifest = checkpoint.manifest()
    rewrite(checkpoint, replace(manifest, files=(*manifest.files, FileEntry("large.dat", 2**32, "00000000"))))
    found = verify(checkpoint, deadline=time.monotonic() + 0.05)
    assert found.fault is None
    assert found.unread >= 1


# ---- in a child


def test_the_job_of_a_child_names_the_fault_and_records_what_it_read(checkpoint: Checkpoint) -> None:
    job = {"do": "verify", "store": str(checkpoint.store), "name": checkpoint.name}
    assert do(job)["answer"] == {"fault": ""}
    record = read_verified(checkpoint)
    assert record is not None
    assert record.level == "digest"
    flip(checkpoint.path / "__1_0.distcp", 8 * 1000)
    assert do(job)["answer"] == {"fault": str(verify(checkpoint).fault)}
    record = read_verified(checkpoint)
    assert record is not None
    assert record.fault == verify(checkpoint).fault


# ---- records


def test_a_record_is_of_this_manifest_only(checkpoint: Checkpoint) -> None:
    assert read_verified(checkpoint) is None
    write_verified(checkpoint, verify(checkpoint), 1000.0)
    record = read_verified(checkpoint)
    assert record is not None
    assert (record.level, record.at, record.fault) == ("digest", 1000.0, None)
    rewrite(checkpoint, replace(checkpoint.manifest(), token="another save"))
    assert read_verified(checkpoint) is None


def test_what_was_written_to_since_it_was_read_is_not_trusted(checkpoint: Checkpoint) -> None:
    write_verified(checkpoint, verify(checkpoint), 1000.0)
    assert read_trusted(checkpoint, 2000.0) is not None
    assert read_trusted(checkpoint, 1000.0 + TRUSTED_S) is None
    file = checkpoint.path / "__1_0.distcp"
    info = file.stat()
    file.write_bytes(file.read_bytes())
    os.utime(file, ns=(info.st_atime_ns, info.st_mtime_ns + 1))
    assert read_trusted(checkpoint, 2000.0) is None
    assert read_verified(checkpoint) is not None, "still known, with its time"
    write_verified(checkpoint, verify(checkpoint), 1500.0)
    file.unlink()
    assert read_trusted(checkpoint, 2000.0) is None


def test_a_copy_was_not_verified_and_damage_is_known_of_copies_too(checkpoint: Checkpoint, tmp_path: Path) -> None:
    """`cp -a` and rsync keep the times of files."""
    write_verified(checkpoint, verify(checkpoint), 1000.0)
    shutil.copytree(checkpoint.store, tmp_path / "copy", copy_function=shutil.copy2)
    copy = replace(checkpoint, store=tmp_path / "copy")
    assert read_verified(copy) is read_trusted(copy, 1000.0) is None
    flip(copy.path / "__1_0.distcp", 8 * 1000)
    found = verify(copy)
    write_verified(copy, found, 1000.0)
    shutil.copytree(copy.store, tmp_path / "again", copy_function=shutil.copy2)
    record = read_verified(replace(checkpoint, store=tmp_path / "again"))
    assert found.fault is not None and record is not None and record.fault == found.fault


def test_a_quick_look_does_not_replace_a_deep_one_but_a_fault_does(checkpoint: Checkpoint) -> None:
    write_verified(checkpoint, verify(checkpoint), 1000.0)
    write_verified(checkpoint, verify(checkpoint, "sizes"), 2000.0)
    record = read_verified(checkpoint)
    assert record is not None
    assert (record.level, record.at) == ("digest", 1000.0)
    os.truncate(checkpoint.path / ".metadata", 10)
    write_verified(checkpoint, verify(checkpoint, "sizes"), 3000.0)
    record = read_verified(checkpoint)
    assert record is not None
    assert record.fault == Fault(".metadata", "1,188 bytes", "10 bytes", "is truncated")


def test_sizes_and_structure_do_not_clear_damage_that_was_found_by_reading(checkpoint: Checkpoint) -> None:
    fault = Fault("data", "xxh3_128 1", "2", "has other content than was committed")
    write_verified(checkpoint, replace(verify(checkpoint), fault=fault), 1000.0)
    write_verified(checkpoint, verify(checkpoint, "structure"), 2000.0)
    assert (record := read_verified(checkpoint)) is not None and record.fault == fault
    write_verified(checkpoint, verify(checkpoint), 3000.0)
    assert (record := read_verified(checkpoint)) is not None and record.fault is None


def test_what_is_unknown_or_incomplete_is_no_record(checkpoint: Checkpoint) -> None:
    write_verified(checkpoint, verify(checkpoint, deadline=0.0), 1000.0)
    write_verified(checkpoint, Verification("digest", why_unknown="Input/output error"), 1000.0)
    assert read_verified(checkpoint) is None


@pytest.mark.parametrize("text", ["", "{}", "[]", '{"token": 1}', '{"token":"","level":"all","at":1,"fault":null}'])
def test_a_damaged_record_is_none(checkpoint: Checkpoint, text: str) -> None:
    write_verified(checkpoint, verify(checkpoint), 1000.0)
    (checkpoint.store / ".resil" / "verified" / f"{checkpoint.name}.json").write_text(text)
    assert read_verified(checkpoint) is None


# ---- many


def test_a_thousand_checkpoints_are_verified_structurally_in_seconds(store: StoreDirectory) -> None:
    first = commit_tree(store, 0, RECORDED / "safetensors")
    manifest = first.manifest()
    (content,) = files_of(first.path)
    for step in range(1, 1000):
        one = Checkpoint(store.path, f"step-{step:08d}", step)
        (one.path / ".resil").mkdir(parents=True)
        os.link(content, one.path / content.name)
        rewrite(one, replace(manifest, step=step))
    os.truncate(shutil.copy(content, content.with_name("copy")), 200)
    bad = store.find(700)
    content.with_name("copy").rename(bad.path / content.name)
    started = time.thread_time()
    found = [verify(one, "structure") for one in store.checkpoints()]
    assert time.thread_time() - started < 5
    assert [number for number, one in enumerate(found) if not one.is_good] == [700]
