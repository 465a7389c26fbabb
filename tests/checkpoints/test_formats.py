"""Formats: an incomplete file is named by its own headers, before any digest exists; unknown files are left alone."""

from __future__ import annotations

import json
import os
import random
import shutil
import zipfile
from collections.abc import Callable
from pathlib import Path

import pytest

from resilience.checkpoints.formats import Content, Fault, check_content, first_gap
from resilience.checkpoints.formats.dcp import read_metadata
from tests.checkpoints.trees import FORMATS, RECORDED, ZERO, ZERO3, check_structure, deepspeed, torch_file, written

SEED = 15


@pytest.fixture
def tree(tmp_path: Path) -> Callable[[str], Path]:
    """Copy a recorded checkpoint."""

    def copy(name: str) -> Path:
        return Path(shutil.copytree(RECORDED / name, tmp_path / name))

    return copy


def fault_of(directory: Path) -> Fault:
    fault = check_structure(directory)
    assert fault is not None
    return fault


@pytest.mark.parametrize("name", FORMATS)
def test_what_frameworks_saved_has_no_fault(name: str) -> None:
    assert check_structure(RECORDED / name) is None


TRUNCATED = {
    "torch/state.pt": "is truncated",
    "torch/state.npz": "is truncated",
    "safetensors/model.safetensors": "truncated",
    "dcp/.metadata": "is truncated or damaged",
    "dcp/__0_0.distcp": "is truncated",
    "dcp/__1_0.distcp": "is truncated",
    "hf/model-00003-of-00006.safetensors": "truncated",
    "hf/model.safetensors.index.json": "cannot be parsed",
    "orbax/default/manifest.ocdbt": "is truncated or damaged",
    "orbax/default/_METADATA": "cannot be parsed",
    "orbax/_CHECKPOINT_METADATA": "cannot be parsed",
}


@pytest.mark.parametrize("file", TRUNCATED)
def test_each_truncation_is_found_without_a_digest(tree: Callable[[str], Path], file: str) -> None:
    name, _, path = file.partition("/")
    directory = tree(name)
    size = (directory / path).stat().st_size
    draw = random.Random(SEED)
    # One byte less may be a line's end only. An empty .bin, and a pickle of the old kind, may be anything.
    for cut in {size - 2, size - 22, 4, *(draw.randrange(4, size - 1) for _ in range(40))}:
        written(directory, {path: (RECORDED / file).read_bytes()[:cut]})
        fault = fault_of(directory)
        assert (fault.file, TRUNCATED[file] in fault.what) == (path, True), (cut, fault)


MISSING = {
    "dcp/.metadata": ".metadata",
    "dcp/__0_0.distcp": "__0_0.distcp",
    "dcp/__1_0.distcp": "__1_0.distcp",
    "hf/model-00003-of-00006.safetensors": "model-00003-of-00006.safetensors",
    "hf/model-00006-of-00006.safetensors": "model-00006-of-00006.safetensors",
    "orbax/default/manifest.ocdbt": "default/manifest.ocdbt",
}


@pytest.mark.parametrize("file", MISSING)
def test_a_file_that_others_refer_to_and_is_missing_is_named(tree: Callable[[str], Path], file: str) -> None:
    name, _, path = file.partition("/")
    directory = tree(name)
    (directory / path).unlink()
    fault = fault_of(directory)
    assert (fault.file, fault.what) == (MISSING[file], "is missing")


# ---- zip


def test_a_zip_file_with_a_part_missing_in_the_middle_is_found(tmp_path: Path) -> None:
    content = torch_file(8, 1000)
    assert check_structure(written(tmp_path, {"a.pt": content})) is None
    for cut in (1, 512, 4096):
        written(tmp_path, {"a.pt": content[:2000] + content[2000 + cut :]})
        assert fault_of(tmp_path).what == "lacks data"
    written(tmp_path, {"a.pt": content[:2000] + bytes(512) + content[2000:]})
    assert fault_of(tmp_path).what == "is damaged"


def test_a_zip_directory_that_does_not_fit_its_members_is_found(tmp_path: Path) -> None:
    content = torch_file(8, 1000)
    begin = content.index(b"PK\1\2")
    for at, value in ((20, b"\xff\xff\0\0"), (42, b"\x07\0\0\0"), (28, b"\xff\0"), (0, b"XX")):
        damaged = bytearray(content)
        damaged[begin + at : begin + at + len(value)] = value
        assert fault_of(written(tmp_path, {"a.ckpt": bytes(damaged)})).what == "is damaged"


def test_a_zip_file_that_lost_its_beginning_or_is_empty_is_found(tmp_path: Path) -> None:
    content = torch_file()
    assert fault_of(written(tmp_path, {"a.pth": bytes(512) + content[512:]})).what == "is damaged"
    assert fault_of(written(tmp_path, {"a.pth": b""})).what == "is empty"
    assert fault_of(written(tmp_path, {"a.pth": content, "b.npz": b"text"})).file == "b.npz"


def test_a_zip_file_with_a_comment_and_wide_offsets_is_good(tmp_path: Path) -> None:
    with zipfile.ZipFile(tmp_path / "a.pt", "w") as archive:
        with archive.open("data", "w", force_zip64=True) as member:
            member.write(bytes(1000))
        archive.comment = b"with PK\5\6 inside, and " + bytes(5000)
    assert check_structure(tmp_path) is None


@pytest.mark.parametrize("lost", [0, 1, 4096])
def test_a_torch_file_of_more_than_4_gb_is_judged_by_its_wide_offsets(tmp_path: Path, lost: int) -> None:
    end = (RECORDED / "torch-4.4-gb" / "end").read_bytes()
    with open(tmp_path / "state.pt", "wb") as file:
        file.write(b"PK\3\4")
        file.seek(4_400_001_963 - len(end) - lost)  # sparse
        file.write(end)
    assert (check_structure(tmp_path) is None) == (not lost)


@pytest.mark.parametrize("name", ["a.pt", "pytorch_model.bin"])
def test_a_pickle_of_the_old_kind_and_other_data_are_left_alone(tmp_path: Path, name: str) -> None:
    for content in ((RECORDED / "torch" / "legacy.pt").read_bytes(), b"any data " * 9, b"x"):
        assert check_structure(written(tmp_path, {name: content, "raw.bin": bytes(3000), "none.bin": b""})) is None


# ---- safetensors


def safetensors(header: object, data: int) -> bytes:
    text = json.dumps(header).encode()
    return len(text).to_bytes(8, "little") + text + bytes(data)


def tensor(begin: int, end: int, dtype: str = "U8", shape: list[int] | None = None) -> dict[str, object]:
    return {"dtype": dtype, "shape": [end - begin] if shape is None else shape, "data_offsets": [begin, end]}


SAFETENSORS = {
    "a gap": safetensors({"a": tensor(0, 4), "b": tensor(6, 8)}, 8),
    "an overlap": safetensors({"a": tensor(0, 4), "b": tensor(3, 8)}, 8),
    "too few bytes": safetensors({"a": tensor(0, 4)}, 3),
    "too many bytes": safetensors({"a": tensor(0, 4)}, 5),
    "another shape": safetensors({"a": tensor(0, 8, "F32", [3])}, 8),
    "no offsets": safetensors({"a": {"dtype": "U8", "shape": []}}, 8),
    "offsets that are no numbers": safetensors({"a": tensor(0, 4) | {"data_offsets": ["0", 4]}}, 4),
    "a list": safetensors([1], 8),
    "no JSON": (4).to_bytes(8, "little") + b"{{{{",
    "a header longer than the file": (2**40).to_bytes(8, "little") + b"{}",
    "no header": b"",
}


@pytest.mark.parametrize("what", SAFETENSORS)
def test_a_header_that_does_not_close_the_file_is_found(tmp_path: Path, what: str) -> None:
    assert fault_of(written(tmp_path, {"m.safetensors": SAFETENSORS[what]})).file == "m.safetensors"


def test_empty_tensors_unknown_types_and_metadata_are_good(tmp_path: Path) -> None:
    header = {
        "__metadata__": {"format": "pt"},
        "a": tensor(0, 0), "b": tensor(0, 3, "F4", [6]), "c": tensor(3, 3), "d": tensor(3, 5),
    }  # fmt: skip
    assert check_structure(written(tmp_path, {"m.safetensors": safetensors(header, 5)})) is None


# ---- Hugging Face


def test_swapped_shards_of_an_index_are_found_by_their_tensors(tree: Callable[[str], Path]) -> None:
    directory = tree("hf")
    one, other = (directory / f"model-0000{number}-of-00006.safetensors" for number in (3, 4))
    assert one.stat().st_size == other.stat().st_size
    aside = one.rename(directory / "aside")
    other.rename(one)
    aside.rename(other)
    fault = fault_of(directory)
    assert (fault.file, fault.what) == (one.name, "has other tensors")
    assert "mlp.gate_proj" in fault.expected
    assert "mlp.up_proj" in fault.found


def test_shards_of_pickles_are_counted(tmp_path: Path) -> None:
    shards = {f"pytorch_model-0000{number}-of-00003.bin": torch_file() for number in (1, 2, 3)}
    index = json.dumps({"weight_map": {f"w{number}": name for number, name in enumerate(shards)}})
    written(tmp_path, shards | {"pytorch_model.bin.index.json": index})
    assert check_structure(tmp_path) is None
    (tmp_path / "pytorch_model-00003-of-00003.bin").unlink()
    assert fault_of(tmp_path).file == "pytorch_model-00003-of-00003.bin"
    (tmp_path / "pytorch_model.bin.index.json").unlink()
    assert fault_of(tmp_path).file == "pytorch_model-00003-of-00003.bin"


@pytest.mark.parametrize("text", ["", '{"log_history": [', "{}", '{"weight_map": 3}'])
def test_an_index_or_a_state_that_is_cut_off_is_found(tmp_path: Path, text: str) -> None:
    written(tmp_path, {"checkpoint/model.safetensors.index.json": text})
    assert fault_of(tmp_path).file == "checkpoint/model.safetensors.index.json"
    shutil.rmtree(tmp_path / "checkpoint")
    written(tmp_path, {"trainer_state.json": text})
    assert (check_structure(tmp_path) is None) == text.endswith("}")


# ---- DCP


def test_the_metadata_of_dcp_is_read_without_unpickling() -> None:
    wanted, found, ends = read_metadata((RECORDED / "dcp" / ".metadata").read_bytes())
    assert wanted == found == {"w": 2, "b": 1, "step": 1}
    assert ends == {"__0_0.distcp": 1641, "__1_0.distcp": 4479}


def test_code_in_the_metadata_is_not_run(tree: Callable[[str], Path]) -> None:
    directory = tree("dcp")
    trap = directory / "trap"
    content = (RECORDED / "dcp" / ".metadata").read_bytes()
    code = f"cos\nmkdir\n(V{trap}\ntR0".encode()  # mkdir(trap), popped
    (directory / ".metadata").write_bytes(content[:2] + code + content[2:])
    check_structure(directory)
    assert not trap.exists()


def test_a_shard_that_is_shorter_than_its_metadata_says_is_found(tree: Callable[[str], Path]) -> None:
    directory = tree("dcp")
    content = (directory / "__1_0.distcp").read_bytes()
    end = content.index(b"PK\5\6") + 22  # of the first tensor: a complete zip file
    (directory / "__1_0.distcp").write_bytes(content[:end])
    assert fault_of(directory) == Fault("__1_0.distcp", "4,479 bytes by .metadata", f"{end:,} bytes", "is truncated")


def test_an_empty_shard_and_an_empty_metadata_are_found(tree: Callable[[str], Path]) -> None:
    directory = tree("dcp")
    os.truncate(directory / ".metadata", 0)
    assert fault_of(directory).file == ".metadata"
    os.truncate(directory / "__0_0.distcp", 0)
    assert fault_of(directory).file == "__0_0.distcp"


def test_shards_that_are_no_zip_files_are_good(tmp_path: Path) -> None:
    content = (RECORDED / "dcp" / ".metadata").read_bytes()
    written(tmp_path, {".metadata": content, "__0_0.distcp": b"\x28\xb5\x2f\xfd" * 411, "__1_0.distcp": b"z" * 4479})
    assert check_structure(tmp_path) is None


def test_a_metadata_file_of_something_else_is_left_alone(tmp_path: Path) -> None:
    assert check_structure(written(tmp_path, {".metadata": "author = me\n"})) is None


# ---- DeepSpeed and Megatron: trees made after their layout


@pytest.mark.parametrize(("patterns", "model"), [(ZERO, True), (ZERO3, False), ([], True)])
def test_each_missing_rank_of_deepspeed_is_named(tmp_path: Path, patterns: list[str], model: bool) -> None:
    directory = deepspeed(tmp_path, patterns, model=model)
    assert check_structure(directory) is None
    for path in sorted(directory.glob("global_step500/*")):
        is_last_of_its_kind = not patterns and "_01_" in path.name
        content = path.read_bytes()
        path.unlink()
        fault = check_structure(directory)
        assert fault == (None if is_last_of_its_kind else fault)
        if not is_last_of_its_kind:
            assert fault is not None
            assert (fault.file, fault.what) == (path.relative_to(directory).as_posix(), "is missing")
        path.write_bytes(content)


def test_a_latest_file_of_deepspeed_that_names_nothing_is_found(tmp_path: Path) -> None:
    directory = deepspeed(tmp_path, ZERO, model=True)
    written(directory, {"latest": "global_step600\n"})
    assert fault_of(directory).file == "global_step600"
    shutil.rmtree(directory / "global_step500")
    assert fault_of(directory).file == "global_step600"
    assert check_structure(written(directory, {"latest": "step 7 of my own"})) is None


MEGATRON = {
    "tensor": [f"mp_rank_{tensor:02d}" for tensor in range(4)],
    "tensor and pipeline": [f"mp_rank_{tensor:02d}_{stage:03d}" for tensor in range(2) for stage in range(4)],
    "experts over tensor ranks": [f"mp_rank_{expert % 2:02d}_{expert:03d}" for expert in range(4)],
    "all three": [f"mp_rank_{t:02d}_{p:03d}_{e:03d}" for t in range(2) for p in range(2) for e in range(2)],
}


@pytest.mark.parametrize("layout", MEGATRON)
def test_a_missing_rank_of_megatron_is_found(tmp_path: Path, layout: str) -> None:
    ranks = MEGATRON[layout]
    files = {f"iter_0000500/{rank}/model_optim_rng.pt": torch_file() for rank in ranks}
    written(tmp_path, files | {"latest_checkpointed_iteration.txt": "500"})
    assert check_structure(tmp_path) is None
    for rank in ranks[:-1]:
        path = tmp_path / "iter_0000500" / rank / "model_optim_rng.pt"
        path.unlink()
        fault = fault_of(tmp_path)
        if layout != "experts over tensor ranks":  # there, names alone do not say which
            assert fault.file == path.relative_to(tmp_path).as_posix()
        path.write_bytes(torch_file())


def test_a_tracker_of_megatron_that_names_nothing_is_found(tmp_path: Path) -> None:
    for text, missing in {"600\n": "iter_0000600", "release": "release"}.items():
        written(tmp_path, {"latest_checkpointed_iteration.txt": text, "iter_0000500/common.pt": torch_file()})
        assert fault_of(tmp_path).file == missing


@pytest.mark.parametrize("missing", [".metadata", "common.pt", "__0_0.distcp"])
def test_a_torch_dist_tree_of_megatron_is_one_of_dcp(tree: Callable[[str], Path], missing: str) -> None:
    metadata = {"sharded_backend": "torch_dist", "sharded_backend_version": 1}
    directory = written(tree("dcp"), {"metadata.json": json.dumps(metadata)})
    assert check_structure(directory) is None  # of 2026, without common.pt
    written(directory, {"metadata.json": json.dumps(metadata | {"common_backend": "torch"}), "common.pt": torch_file()})
    assert check_structure(directory) is None
    (directory / missing).unlink()
    assert fault_of(directory).file == missing


# ---- Orbax


def test_an_item_of_orbax_that_is_missing_is_named(tree: Callable[[str], Path]) -> None:
    directory = tree("orbax")
    shutil.rmtree(directory / "default")
    assert fault_of(directory) == Fault("default", "an item by _CHECKPOINT_METADATA", "none", "is missing")


def test_a_save_of_orbax_that_did_not_finish_is_found(tree: Callable[[str], Path]) -> None:
    directory = tree("orbax")
    metadata = json.loads((directory / "_CHECKPOINT_METADATA").read_text())
    written(directory, {"_CHECKPOINT_METADATA": json.dumps(metadata | {"commit_timestamp_nsecs": None})})
    assert fault_of(directory).what == "is of a save that did not finish"
    (directory / "_CHECKPOINT_METADATA").unlink()
    (directory / "default").rename(directory / "default.orbax-checkpoint-tmp-7")
    assert fault_of(directory).what == "is of a save that did not finish"


# ---- all


def test_random_damage_raises_nothing(tmp_path: Path) -> None:
    draw = random.Random(SEED)
    for name in FORMATS:
        files = {
            path.relative_to(RECORDED / name).as_posix(): path.read_bytes()
            for path in (RECORDED / name).rglob("*") if path.is_file()
        }  # fmt: skip
        written(tmp_path / name, files)
        for _ in range(100):
            victim = draw.choice(sorted(files))
            content = bytearray(files[victim])
            for _ in range(draw.choice((1, 1, 4, 64))):
                content[draw.randrange(len(content))] = draw.randrange(256)
            written(tmp_path / name, {victim: bytes(content)})
            fault = check_structure(tmp_path / name)
            assert fault is None or str(fault)
            written(tmp_path / name, {victim: files[victim]})


def test_a_checkpoint_without_any_known_format_has_no_fault(tmp_path: Path) -> None:
    assert check_structure(written(tmp_path, {"weights.dat": "x", "deep/er/a.json": "not JSON"})) is None
    assert check_content(Content(tmp_path, {})) is None


@pytest.mark.parametrize(
    ("found", "gap"),
    [(set(), None), ({(0,)}, None), ({(1,)}, (0,)), ({(0, 0), (0, 1), (1, 1)}, (1, 0)), ({(10**9, 10**9)}, (0, 0))],
)
def test_the_first_gap(found: set[tuple[int, ...]], gap: tuple[int, ...] | None) -> None:
    assert first_gap(found) == gap
