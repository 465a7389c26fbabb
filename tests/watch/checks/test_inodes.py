"""`resil watch inodes` on real file systems: one whose inodes run out while there is room, and one without a limit."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from resilience.errors import SettingsError
from resilience.finding import Verdict
from tests.fakes import FakeClock
from tests.watch.checks.filesystem.watching import a_project, a_tick, mounted, refused, the_finding


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[Path]:
    """A tmpfs of 4 MiB that takes 99 files: its root is one of its 100 inodes."""
    with mounted(tmp_path / "disk", "size=4m,nr_inodes=100") as folder:
        yield folder


def make_files(folder: Path, count: int) -> None:
    for number in range(count):
        (folder / f"file{number}").touch()


def test_few_files_are_ok_with_figures_for_graphs(tmp_path: Path, disk: Path) -> None:
    make_files(disk, 9)
    found = the_finding(a_project(tmp_path), "inodes", disk)
    assert found.verdict is Verdict.OK
    (figure,) = found.figures
    assert (figure.label, figure.value, figure.unit, figure.maximum) == ("inodes", 10, "", 100)
    assert (figure.warn, figure.crit) == (85, 95)


def test_used_up_inodes_are_critical_where_there_is_room(tmp_path: Path, disk: Path) -> None:
    make_files(disk, 99)
    with pytest.raises(OSError, match="No space left"):
        (disk / "one more").touch()
    project = a_project(tmp_path)
    found = the_finding(project, "inodes", disk)
    assert (found.verdict, found.fault) == (Verdict.CRITICAL, "inodes")
    assert "100% of 100 inodes used, 0 free (statvfs, just now); it is full" in found.summary
    assert the_finding(project, "fs", disk).verdict is Verdict.OK


@pytest.mark.parametrize(
    ("settings", "verdict"),
    [
        ({}, Verdict.WARNING),
        ({"warn_percent": "90"}, Verdict.OK),  # exactly at it
        ({"warn_free": "10"}, Verdict.OK),
        ({"warn_free": "11"}, Verdict.WARNING),
        ({"warn_free": "30", "crit_free": "20"}, Verdict.CRITICAL),
        ({"crit_percent": "89"}, Verdict.CRITICAL),
        ({"warn_free": "5", "warn_percent": "80"}, Verdict.WARNING),  # any that is crossed counts
        ({"usable_percent": "90%"}, Verdict.CRITICAL),
    ],
)
def test_nine_tenths_are_judged_by_what_was_asked_for(
    tmp_path: Path, disk: Path, settings: dict[str, str], verdict: Verdict
) -> None:
    make_files(disk, 89)
    assert the_finding(a_project(tmp_path), "inodes", disk, **settings).verdict is verdict


def test_a_mount_that_reports_no_inodes_has_no_inode_limit(tmp_path: Path) -> None:
    with mounted(tmp_path / "disk", "size=1m,nr_inodes=0") as folder:
        make_files(folder, 50)
        found = the_finding(a_project(tmp_path), "inodes", folder)
    assert found.verdict is Verdict.OK and "no inode limit" in found.summary


def test_with_no_configuration_the_same_places_are_looked_at(tmp_path: Path, disk: Path) -> None:
    project = a_project(tmp_path, environ={"SCRATCH": str(disk)})
    assert set(a_tick(project, "inodes")) == set(a_tick(project, "fs"))


def test_a_path_that_does_not_exist_is_missing_here_as_well(tmp_path: Path, disk: Path) -> None:
    assert the_finding(a_project(tmp_path), "inodes", disk / "no").fault == "missing"


def test_files_that_grow_in_number_tell_when_they_run_out(tmp_path: Path) -> None:
    clock = FakeClock()
    project = a_project(tmp_path, clock=clock)
    with mounted(tmp_path / "disk", "size=4m,nr_inodes=1000") as folder:
        for tick in range(20):
            for number in range(20):
                (folder / f"{tick}-{number}").touch()
            (found,) = a_tick(project, "inodes", paths=(str(folder),))[f"login1:{folder}"]
            clock.time += 600
    assert (found.verdict, found.fault) == (Verdict.CRITICAL, "runway")
    assert found.summary == "5 hours left at 2,880 inodes a day: 599 free"


def test_the_next_checkpoints_files_are_counted(tmp_path: Path, disk: Path) -> None:
    settings = {"checkpoints": str(disk), "checkpoint_files": "150"}
    found = the_finding(a_project(tmp_path), "inodes", disk, **settings)
    assert found.fault == "checkpoint"
    assert found.summary == "the next checkpoint does not fit: it takes 150 inodes, and 99 are free"


def test_a_sites_command_tells_files_in_thousands(tmp_path: Path, disk: Path) -> None:
    program = tmp_path / "idrquota"
    program.write_text("#!/bin/sh\necho 'WORK 4.5 TiB of 5 TiB, 450k of 500k inodes'\n")
    program.chmod(0o755)
    found = the_finding(
        a_project(tmp_path), "inodes", disk, command=(str(program),), used_regex=r"(\d+k) of", limit_regex=r"of (\d+k)"
    )
    assert found.verdict is Verdict.WARNING and "90% of 500,000 inodes used, 50,000 free" in found.summary


def test_du_counts_inodes_when_it_is_asked_for(tmp_path: Path, disk: Path) -> None:
    (disk / "mine").mkdir()
    make_files(disk / "mine", 9)
    found = the_finding(a_project(tmp_path), "inodes", disk / "mine", du=True, du_limit="10")
    assert found.verdict is Verdict.CRITICAL and "100% of 10 inodes used" in found.summary


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"warn_percent": "120%"}, "warn_percent = '120%'"),
        ({"warn_free": "-1"}, "warn_free = -1"),
        ({"warn_free": "1", "crit_free": "2"}, "warn_free = 1 is less than crit_free = 2"),
        ({"warn_free": "10%"}, "warn_free = '10%'"),
        ({"checkpoint_files": "-3"}, "checkpoint_files = -3"),
        ({"du": True}, "set du_limit"),
        ({"limit_regex": "["}, "limit_regex is set, and there is no command"),
    ],
)
def test_settings_that_cannot_be_meant_are_refused_by_the_name_of_the_key(
    tmp_path: Path, settings: dict[str, object], words: str
) -> None:
    try:
        text = refused(a_project(tmp_path), "inodes", **settings)
    except SettingsError as error:
        text = f"{error.message}; {error.hint}"
    assert words in text


def test_what_it_says_agrees_with_df(tmp_path: Path, disk: Path) -> None:
    make_files(disk, 33)
    (figure,) = the_finding(a_project(tmp_path), "inodes", disk).figures
    row = subprocess.run(["df", "--output=iused,itotal", disk], capture_output=True, text=True).stdout.split("\n")[1]
    assert [figure.value, figure.maximum] == [float(word) for word in row.split()]
