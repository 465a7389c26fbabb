"""Paths to probe are resolved without touching file systems that may hang."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from resilience.base.mounts import Mount, resolve_local_links
from resilience.errors import UsageError
from resilience.watch.places import Place, by_mount, named_places, needed_places

ROOT = Mount("/", "ext4", "/dev/sda1")
SHM = Mount("/dev/shm", "tmpfs", "tmpfs")
TMP = Mount("/tmp", "tmpfs", "tmpfs")
LUSTRE = Mount("/lustre", "lustre", "10.0.0.1@o2ib:/fs")
HOME = Mount("/home", "nfs4", "filer:/home")
AGAIN = Mount("/mnt/home", "nfs4", "filer:/home")
PROC = Mount("/proc", "proc", "proc")
MOUNTS = (ROOT, PROC, SHM, TMP, LUSTRE, HOME, AGAIN)


def places(*paths: str) -> list[Place]:
    return [Place(path) for path in paths]


def points(*paths: str) -> dict[str, list[str]]:
    return {point: [p.path for p in group] for point, group in by_mount(places(*paths), MOUNTS).items()}


def test_paths_of_one_file_system_are_one_group() -> None:
    assert points("/lustre/a", "/lustre/b", "/home/alice", "/tmp", "/dev/shm", "/opt") == {
        "/lustre": ["/lustre/a", "/lustre/b"], "/home": ["/home/alice"], "/tmp": ["/tmp"], "/dev/shm": ["/dev/shm"],
        "/": ["/opt"],
    }  # fmt: skip


def test_an_export_that_is_mounted_twice_is_one_and_two_tmpfs_are_two() -> None:
    assert points("/home/alice", "/mnt/home/alice") == {"/home": ["/home/alice", "/mnt/home/alice"]}
    assert set(points("/tmp/x", "/dev/shm/x")) == {"/tmp", "/dev/shm"}


def test_pseudo_file_systems_are_skipped() -> None:
    assert points("/proc/1") == {}


def test_a_path_with_the_same_prefix_is_another_file_system() -> None:
    assert set(points("/lustre2/a")) == {"/"}


def test_links_on_the_root_file_system_are_followed_and_none_beyond(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    links = {"/scratch": "/lustre/scratch", "/labs": "scratch/../scratch/lab", "/tmp/loop": "loop", "/opt": "srv/opt"}
    asked: list[str] = []

    def readlink(path: str) -> str:
        asked.append(path)
        if path not in links:
            raise OSError(22, "Invalid argument")
        return links[path]

    monkeypatch.setattr(os, "readlink", readlink)
    assert resolve_local_links("/scratch/alice/./x", MOUNTS) == "/lustre/scratch/alice/./x"
    assert resolve_local_links("/labs/x", MOUNTS).startswith("/lustre/scratch")
    assert resolve_local_links("/opt/x", MOUNTS) == "/srv/opt/x"
    assert resolve_local_links("/tmp/loop/x", MOUNTS) == "/tmp/loop/x"
    assert resolve_local_links("/home/alice/link", MOUNTS) == "/home/alice/link"
    assert resolve_local_links("/", MOUNTS) == "/"
    assert not [path for path in asked if path.startswith(("/lustre/", "/home/"))]


def test_everything_that_a_training_needs_is_found_once() -> None:
    environ = {
        "SCRATCH": "/lustre/scratch/alice/", "WORK": "/lustre/labs/six", "CCCSCRATCHDIR": "/lustre/scratch/alice",
        "STORE": "", "DATA": "data", "PROJECT": "gpt", "PUBLIC": "/", "FAST": "/a\0b", "OTHER": "/elsewhere",
    }  # fmt: skip
    found = needed_places(
        project=Path("/home/alice/gpt"), state_dir=Path("/home/alice/gpt/.resil"), home=Path("/home/alice"),
        environ=environ, checkpoints="/lustre/ckpt",
    )  # fmt: skip
    assert [(place.path, place.role) for place in found] == [
        ("/home/alice/gpt", "project directory"), ("/lustre/ckpt", "checkpoints"),
        ("/home/alice/gpt/.resil", "state directory"), ("/lustre/scratch/alice", "$SCRATCH"),
        ("/lustre/labs/six", "$WORK"), ("/home/alice", "home"), ("/dev/shm", "/dev/shm"), ("/tmp", "/tmp"),
    ]  # fmt: skip
    assert [place.role for place in found if place.is_needed] == ["project directory", "checkpoints", "state directory"]


def named(*paths: str, **environ: str) -> list[str]:
    return [p.path for p in named_places(paths, base=Path("/p"), home=Path("/home/alice"), environ=environ)]


def test_paths_are_absolute_and_unique() -> None:
    assert named("data", "./data/", "/p/data", "~", "~/x", "../q", SCRATCH="/s") == [
        "/p/data", "/home/alice", "/home/alice/x", "/q"
    ]  # fmt: skip
    assert named("$SCRATCH/a", "${SCRATCH}b", SCRATCH="/s") == ["/s/a", "/sb"]


@pytest.mark.parametrize("path", ["", " ", "\t", "a\0", "$UNSET", "${UNSET}/x", "~no-such-user-here"])
def test_invalid_paths_are_rejected(path: str) -> None:
    with pytest.raises(UsageError):
        named(path)


def test_unusual_names_are_paths() -> None:
    assert named("a b", "é", "-x", "new\nline", "#") == ["/p/a b", "/p/é", "/p/-x", "/p/new\nline", "/p/#"]
