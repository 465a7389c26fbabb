"""A run's directory is private or the group's, and damage in it blinds nobody."""

from __future__ import annotations

import grp
import os
import stat
from collections.abc import Iterator
from pathlib import Path

import pytest

from resilience import layout
from resilience.errors import StateDirectoryError, UsageError
from resilience.runs.run_directory import RunDirectory, find_runs
from tests.system.people import NOBODY, acting_as, needs_root, open_the_way


@pytest.fixture(params=[0o000, 0o077, 0o027], ids=lambda mask: f"umask{mask:03o}")
def umask(request: pytest.FixtureRequest) -> Iterator[int]:
    before = os.umask(request.param)
    yield request.param
    os.umask(before)


@pytest.fixture
def group() -> grp.struct_group:
    """A group that is not our first one."""
    if os.geteuid() == 0:
        return next(entry for entry in grp.getgrall() if entry.gr_gid not in (0, NOBODY))
    others = [gid for gid in os.getgroups() if gid != os.getegid()]
    if not others:
        pytest.skip("giving a run to a group needs root or a second group")
    return grp.getgrgid(others[0])


def mode_of(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


def test_a_run_is_private_by_default_whatever_the_umask(tmp_path: Path, umask: int) -> None:
    run = RunDirectory(tmp_path / "state" / "llama")
    run.create("name = 'llama'\n")
    directories = [tmp_path / "state", run.path, *(run.path / name for name in layout.FOLDERS)]
    assert {mode_of(directory) for directory in directories} == {0o700}
    assert mode_of(run.path / layout.RUN_FILE) == 0o600


def test_a_groups_run_can_be_reached_and_operated_by_the_group(
    tmp_path: Path, umask: int, group: grp.struct_group
) -> None:
    run = RunDirectory(tmp_path / "state" / "llama", group=group.gr_name)
    run.create("name = 'llama'\n")
    directories = [run.path, *(run.path / name for name in layout.FOLDERS)]
    assert {(mode_of(directory), directory.stat().st_gid) for directory in directories} == {(0o2770, group.gr_gid)}
    assert (mode_of(run.path / layout.RUN_FILE), (run.path / layout.RUN_FILE).stat().st_gid) == (0o660, group.gr_gid)
    assert (mode_of(tmp_path / "state"), (tmp_path / "state").stat().st_gid) == (0o2750, group.gr_gid)


def test_an_unknown_group_is_refused_before_anything_is_made(tmp_path: Path) -> None:
    with pytest.raises(StateDirectoryError, match="no group 'no-such-group'"):
        RunDirectory(tmp_path / "llama", group="no-such-group").create("")
    assert not (tmp_path / "llama").exists()


def test_a_creation_that_crashed_before_the_group_got_it_is_finished_by_the_next(
    tmp_path: Path, group: grp.struct_group
) -> None:
    run = RunDirectory(tmp_path / "llama", group=group.gr_name)
    run.path.mkdir()
    run.path.chmod(0o2770)
    run.create("")
    assert {path.stat().st_gid for path in [run.path, *run.path.iterdir()]} == {group.gr_gid}


def test_creating_twice_renews_the_settings_and_keeps_the_rest(tmp_path: Path) -> None:
    run = RunDirectory(tmp_path / "llama")
    run.create("step = 1\n")
    (run.path / layout.SWITCHES / layout.KILL_SWITCH).touch()
    run.path.chmod(0o750)
    run.create("step = 2\n")
    assert run.settings() == {"step": 2}
    assert (run.path / layout.SWITCHES / layout.KILL_SWITCH).exists()
    assert mode_of(run.path) == 0o750, "what its owner changed stays"


@pytest.mark.parametrize("name", [".hidden", "a b", "-flag"])
def test_a_directory_that_cannot_name_a_run_is_refused(tmp_path: Path, name: str) -> None:
    with pytest.raises(UsageError):
        RunDirectory(tmp_path / name).create("")
    assert not (tmp_path / name).exists()


@pytest.mark.parametrize(
    "damage",
    [b"", b"= torn", b"\xff\x00", b"a = " + b"[" * 50_000, b"a = " + b"9" * 5000],
    ids=lambda raw: repr(raw[:9]),
)
def test_damaged_settings_are_empty_settings(tmp_path: Path, damage: bytes) -> None:
    run = RunDirectory(tmp_path / "llama")
    run.create("")
    (run.path / layout.RUN_FILE).write_bytes(damage)
    assert run.settings() == {}


def test_a_run_that_never_was_has_no_settings_and_is_not_finished(tmp_path: Path) -> None:
    run = RunDirectory(tmp_path / "llama")
    assert (run.exists(), run.is_finished(), run.settings()) == (False, False, {})
    with pytest.raises(StateDirectoryError, match="llama"):
        run.stat()


def test_the_training_says_when_it_is_finished(tmp_path: Path) -> None:
    run = RunDirectory(tmp_path / "llama")
    run.create("")
    assert not run.is_finished()
    (run.path / layout.FINISHED).touch()
    assert run.is_finished()


def test_runs_are_found_by_name_and_nothing_else_is_taken_for_one(tmp_path: Path) -> None:
    for name in ("b", "a"):
        RunDirectory(tmp_path / name).create("")
    (tmp_path / "no-run").mkdir()
    (tmp_path / "file").touch()
    (tmp_path / "link").symlink_to(tmp_path / "a")
    assert [run.run for run in find_runs(tmp_path)] == ["a", "b"]
    assert list(find_runs(tmp_path / "missing")) == []


@needs_root
def test_somebody_elses_private_run_hides_no_other_run(tmp_path: Path) -> None:
    open_the_way(tmp_path / "x")
    for name in ("a", "b", "c"):
        RunDirectory(tmp_path / name).create("")
    for name in ("a", "c"):
        os.chown(tmp_path / name, NOBODY, NOBODY)
    with acting_as(NOBODY):
        assert [run.run for run in find_runs(tmp_path)] == ["a", "c"]
        with pytest.raises(StateDirectoryError, match="run b belongs to root and is private"):
            RunDirectory(tmp_path / "b").is_finished()


@needs_root
def test_a_state_directory_we_may_not_list_is_an_error_and_not_empty(tmp_path: Path) -> None:
    open_the_way(tmp_path / "x")
    (tmp_path / "state").mkdir(mode=0o700)
    with acting_as(NOBODY), pytest.raises(StateDirectoryError, match="Permission denied"):
        list(find_runs(tmp_path / "state"))
