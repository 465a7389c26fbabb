"""`resil watch inodes` on real file systems: out of inodes with free space left, and without an inode limit."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from resilience.finding import Verdict
from tests.watch.checks.filesystem.watching import Watching, a_program, mounted
from tests.watch.checks.outcome import outcome


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[Path]:
    """Mount a tmpfs of 4 MiB for 99 files: its root is one of its 100 inodes."""
    with mounted(tmp_path / "disk", "size=4m,nr_inodes=100") as directory:
        yield directory


@pytest.fixture
def inodes(tmp_path: Path) -> Watching:
    return Watching(tmp_path, "inodes")


def make_files(directory: Path, count: int) -> None:
    for number in range(count):
        (directory / f"file{number}").touch()


def test_few_files_are_ok_with_figures_for_graphs(inodes: Watching, disk: Path) -> None:
    make_files(disk, 9)
    found = inodes.finding(disk)
    assert found.verdict is Verdict.OK
    (figure,) = found.figures
    assert (figure.label, figure.value, figure.unit, figure.maximum) == ("inodes", 10, "", 100)
    assert (figure.warn, figure.crit) == (85, 95)


def test_used_up_inodes_are_critical_where_there_is_room(inodes: Watching, disk: Path) -> None:
    make_files(disk, 99)
    with pytest.raises(OSError, match="No space left"):
        (disk / "one more").touch()
    words = "100% of 100 inodes used, 0 free (statvfs, just now); it is full"
    inodes.expect("CRITICAL inodes", disk, words)
    Watching(inodes.directory).expect("OK", disk)


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
def test_nine_tenths_are_judged_by_the_requested_thresholds(
    inodes: Watching, disk: Path, settings: dict[str, str], verdict: Verdict
) -> None:
    make_files(disk, 89)
    assert inodes.finding(disk, **settings).verdict is verdict


def test_a_mount_that_reports_no_inodes_has_no_inode_limit(tmp_path: Path, inodes: Watching) -> None:
    with mounted(tmp_path / "disk", "size=1m,nr_inodes=0") as directory:
        make_files(directory, 50)
        inodes.expect("OK", directory, "no inode limit")


def test_with_no_configuration_the_same_places_are_probed(tmp_path: Path, disk: Path) -> None:
    fs, inodes = (Watching(tmp_path, kind, environ={"SCRATCH": str(disk)}) for kind in ("fs", "inodes"))
    assert set(inodes.tick()) == set(fs.tick())


def test_a_path_that_does_not_exist_is_missing_here_as_well(inodes: Watching, disk: Path) -> None:
    inodes.expect("CRITICAL missing", disk / "no")


def test_growing_inode_usage_yields_a_runway(tmp_path: Path, inodes: Watching) -> None:
    with mounted(tmp_path / "disk", "size=4m,nr_inodes=1000") as directory:
        for tick in range(20):
            for number in range(20):
                (directory / f"{tick}-{number}").touch()
            found = inodes.finding(directory)
            inodes.clock.time += 600
    assert (outcome(found), found.summary) == ("CRITICAL runway", "5 hours left at 2,880 inodes a day: 599 free")


def test_the_next_checkpoints_files_are_counted(inodes: Watching, disk: Path) -> None:
    found = inodes.finding(disk, checkpoints=str(disk), checkpoint_files="150")
    assert found.fault == "checkpoint"
    assert found.summary == "the next checkpoint does not fit: it takes 150 inodes, and 99 are free"


def test_a_sites_command_reports_files_in_thousands(inodes: Watching, disk: Path) -> None:
    program = a_program(inodes.directory, "idrquota", "echo 'WORK 4.5 TiB of 5 TiB, 450k of 500k inodes'")
    settings = {"command": (program,), "used_regex": r"(\d+k) of", "limit_regex": r"of (\d+k)"}
    inodes.expect("WARNING inodes", disk, "90% of 500,000 inodes used, 50,000 free", **settings)


def test_du_counts_inodes_if_configured(inodes: Watching, disk: Path) -> None:
    (disk / "mine").mkdir()
    make_files(disk / "mine", 9)
    inodes.expect("CRITICAL inodes", disk / "mine", "100% of 10 inodes used", du=True, du_limit="10")


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"warn_percent": "120%"}, "warn_percent = '120%'"),
        ({"warn_free": "-1"}, "warn_free = -1"),
        ({"warn_free": "1", "crit_free": "2"}, "warn_free = 1 is less than crit_free = 2"),
        ({"warn_free": "10%"}, "warn_free = '10%'"),
        ({"checkpoint_files": "-3"}, "checkpoint_files = -3"),
        ({"du": True}, "set du_limit"),
        ({"limit_regex": "["}, "limit_regex is set without command"),
    ],
)
def test_invalid_settings_are_rejected_with_the_name_of_the_key(
    inodes: Watching, settings: dict[str, object], words: str
) -> None:
    assert words in inodes.refused(**settings)


def test_the_figures_agree_with_df(inodes: Watching, disk: Path) -> None:
    make_files(disk, 33)
    (figure,) = inodes.finding(disk).figures
    row = subprocess.run(["df", "--output=iused,itotal", disk], capture_output=True, text=True).stdout.split("\n")[1]
    assert [figure.value, figure.maximum] == [float(word) for word in row.split()]
