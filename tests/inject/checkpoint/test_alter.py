"""Altered checkpoints of each layout: only what was planned changes, the original never does, and undo is exact."""

from __future__ import annotations

import errno
import os
import shutil
import signal
import subprocess
import sys
import zipfile
from pathlib import Path
from random import Random
from typing import Any

import pytest

from resilience.checkpoints.directory import StoreDirectory
from resilience.checkpoints.verify import verify
from resilience.errors import CheckpointError, ResilError, UsageError
from resilience.inject.checkpoint import alter
from resilience.inject.checkpoint.alter import ALTERED, RESTORED, Places, check_places, choose_places, look, undo, write
from resilience.inject.checkpoint.layouts import find_layout, layouts
from resilience.inject.checkpoint.number_types import is_finite
from resilience.inject.checkpoint.plan import parse_mapping
from resilience.inject.checkpoint.sequence import Record, from_text, to_text
from resilience.inject.checkpoint.settings import AlterationSettings
from tests.checkpoints.saves import committed, new_store
from tests.inject.checkpoint.files import ARRAYS, MAKERS, hdf5, kinds, leaves, npz, raw_bytes, safetensors
from tests.lab.disks import small_disk


@pytest.fixture(params=sorted(MAKERS))
def checkpoint(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    return MAKERS[request.param](tmp_path)


REPOSITORY = Path(__file__).parents[3]


def test_each_layout_is_tried_here(tmp_path: Path) -> None:
    tried = {"npz" if name.startswith("np") else name for name in MAKERS}
    assert {layout.name for layout in layouts()} == tried


def altered(
    path: Path, output: Path | None = None, *, in_place: bool = False, recorded: Record | None = None,
    maps: tuple[str, ...] = (), save: Path | None = None, seed: int = 1, **given: Any,
) -> tuple[Places, Record]:  # fmt: skip
    """Alter a checkpoint, with all checks but that of jobs."""
    settings = AlterationSettings(**given)
    places = choose_places(path, output, save, in_place=in_place, word=ALTERED)
    check_places(places, lambda run: "")
    seen = look(places.source, settings, seed, recorded, [parse_mapping(text) for text in maps])
    return places, write(places, seen, settings)


def test_only_what_was_planned_changes(checkpoint: Path) -> None:
    before, original = leaves(checkpoint), raw_bytes(checkpoint)
    places, record = altered(checkpoint, attempts=25, seed=3)
    after, types = leaves(places.output), kinds(checkpoint)
    expected = {name: list(values) for name, values in before.items()}
    for one in record.alterations:
        location = types[one.location]
        number = 0
        for i, length in zip(one.index, location.shape, strict=True):
            number = number * length + i
        for name, other in types.items():  # tied weights, hard links
            if name == one.location or (other.pieces and other.pieces == location.pieces):
                assert expected[name][number] == one.before
                expected[name][number] = one.after
        assert (one.before ^ one.after).bit_count() == 1
    assert {name: tuple(values) for name, values in expected.items()} == after != before
    assert raw_bytes(checkpoint) == original
    assert all(is_finite(bits, kind) for name, values in after.items() for bits in values if (kind := types[name].type))


def test_the_same_seed_gives_the_same_bytes(checkpoint: Path, tmp_path: Path) -> None:
    outputs = [
        altered(checkpoint, tmp_path / f"out{n}", attempts=10, seed=seed)[0].output for n, seed in enumerate((5, 5, 6))
    ]
    first, second, third = map(raw_bytes, outputs)
    assert first == second != third


def test_without_a_success_the_copy_is_byte_identical(checkpoint: Path) -> None:
    places, record = altered(checkpoint, attempts=50, probability=0)
    assert raw_bytes(places.output) == raw_bytes(checkpoint) and not record.alterations and not record.patches
    assert undo(choose_places(places.output, None, None, in_place=True, word=RESTORED), record, "x") is False
    altered(places.output, in_place=True, attempts=2, probability=0, save=places.output.with_name("s.json"))
    assert raw_bytes(places.output) == raw_bytes(checkpoint)


@pytest.mark.parametrize("in_place", [False, True])
def test_undo_restores_each_byte(checkpoint: Path, tmp_path: Path, in_place: bool) -> None:
    original = raw_bytes(checkpoint)
    record_path = tmp_path / "flips.json"
    places, _ = altered(checkpoint, in_place=in_place, attempts=30, burst=1, save=record_path, seed=9)
    assert places.is_in_place == in_place and raw_bytes(places.output) != original
    record = from_text(record_path.read_bytes(), "flips.json")
    back = choose_places(places.output, None, None, in_place=in_place, word=RESTORED)
    assert undo(back, record, "flips.json") is True
    assert raw_bytes(back.output) == original
    assert undo(choose_places(back.output, None, None, in_place=True, word=RESTORED), record, "x") is False
    assert not list(tmp_path.rglob("*.tmp"))


def test_in_place_the_record_is_there_first_and_other_links_keep_their_bytes(checkpoint: Path, tmp_path: Path) -> None:
    original = raw_bytes(checkpoint)
    linked = tmp_path / "linked"
    shutil.copytree(checkpoint, linked, copy_function=os.link) if checkpoint.is_dir() else os.link(checkpoint, linked)
    places, _ = altered(checkpoint, in_place=True, attempts=5)
    assert places.sequence is not None and places.sequence.name == f"{checkpoint.name}.undo.json"
    assert raw_bytes(checkpoint) != original == raw_bytes(linked)


def test_a_sequence_replays_on_another_file(checkpoint: Path, tmp_path: Path) -> None:
    other = tmp_path / "other"
    shutil.copytree(checkpoint, other) if checkpoint.is_dir() else shutil.copy(checkpoint, other)
    altered(other, in_place=True, attempts=3, seed=2, save=tmp_path / "noise.json")
    _, record = altered(checkpoint, attempts=10, seed=4, burst=1)
    _, again = altered(other, tmp_path / "again", recorded=from_text(to_text(record), "x"), allow_nan=True)
    assert [(one.location, one.index, one.bits) for one in again.alterations] == [
        (one.location, one.index, one.bits) for one in record.alterations
    ]


def test_a_sequence_replays_in_another_layout(tmp_path: Path) -> None:
    hard = hdf5(tmp_path / "model.h5")
    soft = safetensors(tmp_path / "model.safetensors", {"net.weight": ("F32", (4, 2, 3, 3))})
    _, record = altered(hard, attempts=8, locations=("conv1/w",))
    places, again = altered(soft, recorded=record, maps=("conv1/w=net.weight:3,2,0,1",), allow_nan=True)
    for old, new in zip(record.alterations, again.alterations, strict=True):
        assert new.index == (old.index[3], old.index[2], old.index[0], old.index[1]) and new.bits == old.bits
    assert leaves(places.output) != leaves(soft)


def test_a_sequence_of_two_ranks_replays_on_a_file_of_one(tmp_path: Path) -> None:
    shards = MAKERS["dcp"](tmp_path)
    whole = safetensors(tmp_path / "whole.safetensors", {"w": ("F32", (8, 4)), "b": ("F32", (4,))})
    _, record = altered(shards, attempts=40, locations=("w",), seed=5)
    assert {one.index[0] < 4 for one in record.alterations} == {True, False}  # in the files of both ranks
    _, again = altered(whole, recorded=record, allow_nan=True)
    assert [(one.index, one.bits) for one in again.alterations] == [(one.index, one.bits) for one in record.alterations]


@pytest.mark.parametrize("given", [{"burst": 5}, {"bit_mask": "101101"}, {"bit_mask": "1001", "weight": "element"}])
def test_as_many_stored_bits_differ_as_were_asked_for(tmp_path: Path, given: dict[str, Any]) -> None:
    path = safetensors(tmp_path / "m.safetensors", {name: one for name, one in ARRAYS.items() if name[0] in "cfdh"})
    places, record = altered(path, attempts=1, seed=8, **given)
    both = zip(path.read_bytes(), places.output.read_bytes(), strict=True)
    wanted = given.get("burst") or given["bit_mask"].count("1")
    assert sum((one ^ two).bit_count() for one, two in both) == wanted == len(record.alterations[0].bits)


def test_each_type_of_safetensors_is_altered_in_its_own_width(tmp_path: Path) -> None:
    path = safetensors(tmp_path / "m.safetensors")
    _, record = altered(path, attempts=300, weight="dataset")
    assert {one.type for one in record.alterations} == {
        "float64", "float32", "float16", "bfloat16", "float8_e4m3fn", "float8_e5m2", "int64", "int8", "uint8",
    }  # fmt: skip
    places, record = altered(path, tmp_path / "mask", attempts=1, locations=("mask",))
    assert record.alterations[0].bits == (0,) and set(leaves(places.output)["mask"]) <= {0, 1}


def test_the_checksums_of_a_zip_file_follow(tmp_path: Path) -> None:
    for path in (MAKERS["torch"](tmp_path), npz(tmp_path / "a.npz"), npz(tmp_path / "b.npz", compressed=True)):
        places, _ = altered(path, attempts=20)
        with zipfile.ZipFile(places.output) as archive:
            assert archive.testzip() is None


@pytest.mark.parametrize("in_place", [False, True])
@pytest.mark.parametrize("call", ["copy", "store", "patch", "record", "rename"])
def test_a_failure_leaves_nothing_that_was_not_there(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, call: str, in_place: bool
) -> None:
    """A full disk at each step: the copy, the change, the comparison, the record, the name."""
    path = safetensors(tmp_path / "m.safetensors")
    before = {str(one): one.read_bytes() for one in tmp_path.iterdir()}

    def full(*_: object, **__: object) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), "m")

    where: Any = {"copy": (shutil, "copyfile"), "store": (find_layout(path), "store"), "patch": (alter, "_patch"),
                  "record": (alter, "replace_file"), "rename": (Path, "rename")}[call]  # fmt: skip
    places = choose_places(path, None, tmp_path / "s.json", in_place=in_place, word=ALTERED)
    seen = look(path, AlterationSettings(), 1, None, [])
    if call == "store":
        from dataclasses import replace

        seen = replace(seen, layout=replace(seen.layout, store=full))
    else:
        monkeypatch.setattr(where[0], where[1], full)
    with pytest.raises(OSError, match="No space"):
        write(places, seen, AlterationSettings())
    assert {str(one): one.read_bytes() for one in tmp_path.iterdir()} == before


KILLED = """
import os, signal, sys
from pathlib import Path
from resilience.inject.checkpoint import alter
from resilience.inject.checkpoint.settings import AlterationSettings
def killed(*arguments, **named):
    write(*arguments, **named)
    os.kill(os.getpid(), signal.SIGKILL)
write, alter.replace_file = alter.replace_file, killed
places = alter.choose_places(Path(sys.argv[1]), None, None, in_place=True, word=alter.ALTERED)
alter.write(places, alter.look(places.source, AlterationSettings(attempts=9), 1, None, []), AlterationSettings())
"""


def test_killed_in_place_before_the_last_step_the_original_is_whole_and_undo_knows(tmp_path: Path) -> None:
    path = safetensors(tmp_path / "m.safetensors")
    original = path.read_bytes()
    done = subprocess.run([sys.executable, "-c", KILLED, str(path)], cwd=REPOSITORY, timeout=120)
    assert done.returncode == -signal.SIGKILL and path.read_bytes() == original
    record = from_text((tmp_path / "m.safetensors.undo.json").read_bytes(), "x")
    assert record.alterations
    assert undo(choose_places(path, None, None, in_place=True, word=RESTORED), record, "x") is False


def test_what_a_kill_left_of_an_earlier_copy_is_removed_and_not_what_is_written_to(tmp_path: Path) -> None:
    path = safetensors(tmp_path / "m.safetensors")
    dead, busy, other = (
        tmp_path / f".{name}.0123456789ab.tmp" for name in ("m.altered.safetensors", "m.altered.safetensors.", "x")
    )
    for left in (dead, busy, other):
        (left / "sub").mkdir(parents=True)
        (left / "sub" / "__0_0.distcp").touch()
        for one in (left / "sub" / "__0_0.distcp", left / "sub", left):
            if left != busy or one.is_dir():
                os.utime(one, (1000.0, 1000.0))
    altered(path)
    assert not dead.exists() and busy.exists() and other.exists()


def test_a_record_is_not_written_over_the_copy_or_into_a_directory_of_checkpoints(tmp_path: Path) -> None:
    path = safetensors(tmp_path / "m.safetensors")
    store = new_store(tmp_path / "ckpt")
    for record in (
        tmp_path / "m.altered.safetensors",
        store.path / "flips.json",
        store.path / committed(store, 3) / "x",
    ):
        with pytest.raises((UsageError, CheckpointError)):
            altered(path, save=record)
        assert not record.exists()


def test_a_file_that_changes_meanwhile_is_not_taken_for_altered(tmp_path: Path) -> None:
    path = safetensors(tmp_path / "m.safetensors")
    seen = look(path, AlterationSettings(), 1, None, [])
    os.utime(path, ns=(1, 1))
    with pytest.raises(CheckpointError, match="changed while it was read"):
        write(choose_places(path, None, None, in_place=False, word=ALTERED), seen, AlterationSettings())
    assert sorted(one.name for one in tmp_path.iterdir()) == ["m.safetensors"]


def test_what_only_gives_nan_is_refused_before_a_byte_is_written(tmp_path: Path) -> None:
    path = safetensors(tmp_path / "m.safetensors", {"w": ("F32", (1,))})
    raw = bytearray(path.read_bytes())
    raw[-4:] = (0x3FC00000).to_bytes(4, "little")  # 1.5
    path.write_bytes(raw)
    with pytest.raises(CheckpointError, match="nothing can be altered"):
        altered(path, attempts=3, first_bit=1, last_bit=1)
    assert len(list(tmp_path.iterdir())) == 1
    places, _ = altered(path, attempts=1, first_bit=1, last_bit=1, allow_nan=True)
    assert leaves(places.output)["w"] == (0x7FC00000,)


def test_undo_refuses_what_the_record_did_not_alter(tmp_path: Path) -> None:
    path = safetensors(tmp_path / "m.safetensors")
    places, record = altered(path, attempts=3)
    altered(places.output, in_place=True, attempts=1, seed=5, save=tmp_path / "more.json")
    with pytest.raises(CheckpointError, match=r"is not what s\.json altered"):
        undo(choose_places(places.output, None, None, in_place=True, word=RESTORED), record, "s.json")


def test_verify_finds_an_alteration_in_a_directory_of_checkpoints(tmp_path: Path) -> None:
    store = new_store(tmp_path / "ckpt")
    path = store.path / committed(store, 10)
    safetensors(path / "model.safetensors")
    from resilience.checkpoints.commit import commit
    from resilience.checkpoints.names import part_name

    (store.path / part_name(20, 1, 1)).mkdir()
    safetensors(store.path / part_name(20, 1, 1) / "model.safetensors")
    commit(store, part_name(20, 1, 1), {"run": "run-1"})
    newest = StoreDirectory(store.path).checkpoints()[-1]
    assert verify(newest).is_good
    file = newest.path / "model.safetensors"
    with pytest.raises(CheckpointError, match="which stays as it is"):
        altered(file)
    with pytest.raises(CheckpointError, match=r"undo\.json is in .* which stays as it is"):
        altered(file, in_place=True)
    places, record = altered(file, in_place=True, save=tmp_path / "undo.json")
    fault = verify(newest).fault
    assert fault is not None and fault.what == "has other content than was committed"
    assert undo(choose_places(file, None, None, in_place=True, word=RESTORED), record, "undo.json")
    assert verify(newest).is_good and places.output == file


ODD: dict[str, tuple[Any, str]] = {
    "nothing": (lambda path: None, "there is no file"),
    "empty": (lambda path: path.write_bytes(b""), "is empty"),
    "text": (lambda path: path.write_text("hello, this is no checkpoint"), "no checkpoint of a known layout"),
    "directory": (lambda path: path.mkdir(), "it has no .metadata"),
    "pickle": (lambda path: path.write_bytes(b"\x80\x02}q\0."), "is a bare pickle"),
    "fifo": (lambda path: os.mkfifo(path), "is no file and no directory"),
    "dangling link": (lambda path: path.symlink_to("nowhere"), "there is no file"),
}


@pytest.mark.parametrize("name", ODD)
def test_what_is_no_checkpoint_is_refused_in_words(tmp_path: Path, name: str) -> None:
    make, words = ODD[name]
    path = tmp_path / "model.pt"
    make(path)
    with pytest.raises(UsageError) as told:
        altered(path)
    assert words in told.value.message and told.value.hint


@pytest.mark.parametrize("name", sorted(set(MAKERS) - {"dcp"}))
def test_a_damaged_file_never_raises_anything_else(tmp_path: Path, name: str) -> None:
    """Cut off, or with other bytes anywhere: altered, or refused in words, and then nothing is left behind."""
    path = MAKERS[name](tmp_path)
    content, random, refused = path.read_bytes(), Random(3), 0
    for number in range(40):
        raw = bytearray(content[: random.randrange(len(content))] if number % 2 else content)
        for _ in range(random.randrange(1, 8) if raw and not number % 2 else 0):
            raw[random.randrange(min(len(raw), 600))] = random.randrange(256)
        path.write_bytes(raw)
        output = tmp_path / "out"
        try:
            seen = look(path, AlterationSettings(), number, None, [])
            write(Places(path, output), seen, AlterationSettings())
        except ResilError as error:
            refused += 1
            assert error.message and not output.exists()
        output.unlink(missing_ok=True)
    assert refused > 12 and sorted(one.name for one in tmp_path.iterdir() if one.suffix != ".outside") == [path.name]


def test_a_hostile_pickle_runs_nothing(tmp_path: Path) -> None:
    import pickle

    class Evil:
        def __reduce__(self) -> tuple[Any, ...]:
            return os.mkdir, (str(tmp_path / "owned"),)

    path = tmp_path / "evil.pt"
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("archive/data.pkl", pickle.dumps({"x": Evil()}))
        archive.writestr("archive/data/0", bytes(16))
    with pytest.raises(UsageError, match="has no arrays"):
        altered(path)
    assert not (tmp_path / "owned").exists()


def test_a_part_of_a_distributed_checkpoint_is_not_taken_for_a_checkpoint(tmp_path: Path) -> None:
    path = MAKERS["dcp"](tmp_path)
    with pytest.raises(UsageError, match="is a part of a distributed checkpoint") as told:
        altered(path / "__0_0.distcp")
    assert told.value.hint == f"name its directory: {path}"


def test_a_real_full_disk_is_told_and_leaves_no_part(tmp_path: Path) -> None:
    with small_disk(tmp_path / "full", "1m") as full:
        path = safetensors(tmp_path / "m.safetensors", {"w": ("F32", (1000, 500))})
        with pytest.raises(OSError, match="No space left"):
            altered(path, full / "out")
        assert list(full.iterdir()) == []


def test_a_checkpoint_may_be_named_by_a_dot(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = MAKERS["dcp"](tmp_path).rename(tmp_path / "step-1.5")
    monkeypatch.chdir(path)
    for word, name in ((ALTERED, "step-1.5.altered"), (RESTORED, "step-1.5.restored")):
        assert choose_places(Path("."), None, None, in_place=False, word=word).output == tmp_path / name  # noqa: PTH201


@pytest.mark.parametrize(("cut", "words"), [(None, "is missing"), (0, "is cut off"), (900, "is cut off")])
def test_a_distributed_checkpoint_with_a_shard_missing_or_cut_off_is_refused_in_words(
    tmp_path: Path, cut: int | None, words: str
) -> None:
    path = MAKERS["dcp"](tmp_path)
    shard = path / "__1_0.distcp"
    shard.unlink() if cut is None else os.truncate(shard, cut)
    with pytest.raises(CheckpointError, match=rf"model is damaged: __1_0\.distcp, which has a part of \w+, {words}"):
        altered(path, tmp_path / "out")
    assert sorted(one.name for one in tmp_path.iterdir()) == ["model"]


def test_a_disk_that_is_full_while_a_compressed_npz_is_packed_anew_leaves_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = npz(tmp_path / "m.npz", compressed=True)

    def full(*_: object, **__: object) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(zipfile.ZipFile, "writestr", full)
    with pytest.raises(OSError, match="No space"):
        altered(path)
    assert [one.name for one in tmp_path.iterdir()] == ["m.npz"]


def test_bits_that_were_not_stored_are_noticed(tmp_path: Path) -> None:
    from dataclasses import replace

    path = safetensors(tmp_path / "m.safetensors")
    seen = look(path, AlterationSettings(), 1, None, [])
    seen = replace(seen, layout=replace(seen.layout, store=lambda copy, changes: None))
    with pytest.raises(CheckpointError, match="was not stored as planned"):
        write(choose_places(path, None, None, in_place=False, word=ALTERED), seen, AlterationSettings())
    assert [one.name for one in tmp_path.iterdir()] == ["m.safetensors"]
