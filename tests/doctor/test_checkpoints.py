"""`resil doctor` looks at the directory of checkpoints: writable, of this run, one file system, with room."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path

import pytest

from resilience.base.mounts import Mount
from resilience.checkpoints.directory import StoreDirectory
from resilience.doctor import checkpoints, diagnosis
from resilience.doctor.checkpoints import diagnose_checkpoints
from resilience.runs.project import Project
from tests.checkpoints.trees import RECORDED, commit_tree
from tests.lab.fakes import FakeScheduler, make_project

SETTINGS = '[run]\nname = "gpt"\n[checkpoints]\npath = "all/{run}"\n'


@pytest.fixture
def project(tmp_path: Path) -> Project:
    return make_project(tmp_path, FakeScheduler(name="local"), SETTINGS)


def path_of(project: Project) -> Path:
    return project.loaded.project / "all" / "gpt"


def said(project: Project) -> list[str]:
    return [f"{found.verdict.value} {found.text}" for found in diagnose_checkpoints(project)]


def with_a_checkpoint(project: Project, run: str = "gpt") -> StoreDirectory:
    store = StoreDirectory.create(path_of(project), run)
    commit_tree(store, 100, RECORDED / "safetensors")
    return store


def test_without_a_path_nothing_is_said(tmp_path: Path) -> None:
    assert said(make_project(tmp_path)) == []


def test_a_directory_that_is_made_later_and_one_that_is_used(project: Project) -> None:
    path, parent = path_of(project), project.loaded.project
    assert said(project) == [f"OK wrote a file in {parent} and removed it; {path} is made at the first save"]
    path.mkdir(parents=True)
    assert said(project) == [f"OK wrote a file in {path} and removed it; it holds no checkpoints yet"]
    with_a_checkpoint(project)
    (found,) = said(project)
    assert found.startswith(f"OK {path} holds 1 checkpoint; ") and not path.with_name("bert").exists()


def test_a_file_in_its_place_another_run_and_a_damaged_record(project: Project) -> None:
    path_of(project).parent.write_text("")
    (found,) = said(project)
    assert found.startswith("CRITICAL cannot write in ")
    path_of(project).parent.unlink()
    store = with_a_checkpoint(project, "bert")
    assert said(project) == [f"WARNING {store.path} holds the checkpoints of the run bert, not of gpt"]
    (store.own / "store.json").write_text("{")
    (found,) = said(project)
    assert found.startswith("CRITICAL") and "store.json is damaged" in found


def test_no_room_for_what_retention_keeps(project: Project, monkeypatch: pytest.MonkeyPatch) -> None:
    store = with_a_checkpoint(project)
    size, inodes = store.checkpoints()[0].manifest().size_bytes, store.checkpoints()[0].manifest().inodes
    there = os.statvfs(store.path)

    def statvfs(free_bytes: int, free_inodes: int) -> list[str]:
        fields: Sequence[int] = (1, 1, there.f_blocks, free_bytes, free_bytes, there.f_files, 0, free_inodes, 0, 255)
        monkeypatch.setattr(os, "statvfs", lambda _: os.statvfs_result(fields))
        return [one.partition(" ")[0] for one in said(project)]

    assert statvfs(2 * size, 2 * inodes) == ["OK"], "two more: `latest = 2`, and one in flight"
    assert statvfs(2 * size - 1, 2 * inodes) == ["WARNING"]
    assert statvfs(2 * size - 1, 2 * inodes - 1) == ["WARNING", "WARNING"]


def test_a_part_of_it_on_another_file_system_is_critical(project: Project) -> None:
    store = with_a_checkpoint(project)
    (store.path / ".bad").symlink_to("/proc")
    (found,) = said(project)
    assert found.startswith(f"CRITICAL {store.path}/.bad is on another file system than {store.path}")


def test_a_disk_of_this_node_is_a_warning_where_jobs_run_elsewhere(
    project: Project, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(checkpoints, "mount_of", lambda *_: Mount("/scratch", "ext4", "/dev/sda1", ("rw",)))
    assert len(said(project)) == 1
    other = make_project(tmp_path, FakeScheduler(name="slurm"), SETTINGS)
    assert said(other)[1].startswith(f"WARNING {path_of(project)} is on ext4 at /scratch, which is probably local")


def test_a_file_system_that_hangs_is_critical_at_the_deadline(
    project: Project, monkeypatch: pytest.MonkeyPatch
) -> None:
    import time

    monkeypatch.setattr(checkpoints, "try_to_write", lambda _: time.sleep(600))
    monkeypatch.setattr(checkpoints, "WRITE_S", 0.3)
    assert said(project) == [f"CRITICAL {path_of(project)}: the file system did not respond within 0.3 s"]
    assert diagnosis.WRITE_S == 10.0
