"""Checkpoints for tests: copies of what frameworks saved, committed into a store."""

from __future__ import annotations

import io
import shutil
import zipfile
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

from resilience.checkpoints.digest import digest_file, list_files
from resilience.checkpoints.directory import Checkpoint, StoreDirectory
from resilience.checkpoints.formats import Content, Fault, check_content
from resilience.checkpoints.manifest import FileEntry, Manifest, new_token, to_text
from resilience.checkpoints.names import OWN, SEALS, committed_name, seal_name

RECORDED = Path(__file__).parents[1] / "recorded" / "checkpoints"
FORMATS = ("dcp", "hf", "orbax", "safetensors", "torch")


def check_structure(directory: Path) -> Fault | None:
    """Return the first fault that a format finds in a directory."""
    return check_content(Content(directory, list_files(directory).sizes))


def written(directory: Path, files: Mapping[str, str | bytes]) -> Path:
    for name, content in files.items():
        path = directory / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content.encode() if isinstance(content, str) else content)
    return directory


def torch_file(members: int = 2, size: int = 100) -> bytes:
    """Return a small file with the members of `torch.save`."""
    file = io.BytesIO()
    with zipfile.ZipFile(file, "w", zipfile.ZIP_STORED) as archive:
        archive.writestr("archive/data.pkl", b"\x80\x02}q\0.")
        for number in range(members):
            archive.writestr(f"archive/data/{number}", bytes(size))
    return file.getvalue()


ZERO = ["bf16_zero_pp_rank_{dp}_mp_rank_{mp:02d}_optim_states.pt"]
ZERO3 = ["zero_pp_rank_{dp}_mp_rank_{mp:02d}_optim_states.pt", "zero_pp_rank_{dp}_mp_rank_{mp:02d}_model_states.pt"]


def deepspeed(directory: Path, patterns: list[str], *, model: bool) -> Path:
    names = {pattern.format(dp=dp, mp=mp) for pattern in patterns for dp in range(3) for mp in range(2)}
    names |= {f"mp_rank_{mp:02d}_model_states.pt" for mp in range(2)} if model else set()
    return written(directory, {f"global_step500/{name}": torch_file() for name in names} | {"latest": "global_step500"})


def source_of(name: str, directory: Path) -> Path:
    """Return a recorded checkpoint, or one made in `directory` after the layout of its framework."""
    if name == "deepspeed":
        return deepspeed(directory, ZERO, model=True)
    if name == "megatron":
        ranks = [f"iter_0000500/mp_rank_{rank:02d}/model_optim_rng.pt" for rank in range(4)]
        files = {path: torch_file(2, 64 + number) for number, path in enumerate(ranks)}
        return written(directory, files | {"latest_checkpointed_iteration.txt": "500"})
    return RECORDED / name


def manifest_of(path: Path, step: int, algorithm: str = "crc32") -> Manifest:
    """Return the manifest of a file or a directory as it is."""
    listing = list_files(path)
    entries = (FileEntry(name, *digest_file(path / name if name else path, algorithm)) for name in listing.sizes)
    return Manifest(
        token=new_token(),
        step=step,
        algorithm=algorithm,
        files=tuple(sorted(entries)),
        directories=len(listing.directories),
    )


def commit_tree(store: StoreDirectory, step: int, source: Path) -> Checkpoint:
    """Copy a directory into the store, and commit it."""
    checkpoint = Checkpoint(store.path, committed_name(step), step)
    shutil.copytree(source, checkpoint.path)
    (checkpoint.path / OWN).mkdir(exist_ok=True)
    rewrite(checkpoint, manifest_of(checkpoint.path, step))
    return checkpoint


def seal_tree(store: StoreDirectory, step: int, source: Path, name: str) -> Checkpoint:
    """Copy a file or a directory into the store under a name of its own, and seal it."""
    target = store.path / name
    if source.is_dir():
        shutil.copytree(source, target)
    else:
        shutil.copy(source, target)
    checkpoint = Checkpoint(store.path, name, step, seal_name(step, name))
    (store.own / SEALS).mkdir(parents=True, exist_ok=True)
    rewrite(checkpoint, manifest_of(target, step))
    return checkpoint


def rewrite(checkpoint: Checkpoint, manifest: Manifest) -> None:
    """Write a checkpoint's manifest."""
    checkpoint.manifest_path.write_text(to_text(manifest))


def with_algorithm(checkpoint: Checkpoint, algorithm: str) -> None:
    """Let a checkpoint's manifest name another algorithm."""
    rewrite(checkpoint, replace(checkpoint.manifest(), algorithm=algorithm))
