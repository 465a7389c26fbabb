"""A kill switch on a disk that is full or read-only: an empty file is one, and where not even that fits it is said."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from resilience.errors import StateDirectoryError
from resilience.guard.rank_info import RankInfo
from resilience.guard.recorder import Recorder
from resilience.guard.settings import GuardSettings
from resilience.guard.switch_directory import SwitchDirectory
from resilience.runs.run_directory import RunDirectory
from resilience.runs.switches import read_switch, write_switch
from resilience.switch import OwnerPolicy, Scope, Switch
from tests.lab.disks import fill, make_read_only
from tests.lab.waiting import until
from tests.runs.templates.batch import PYTHON, Batch
from tests.system.people import NOBODY, acting_as, needs_root, open_the_way
from tests.watch.checks.filesystem.watching import mounted

KILL = Switch("kill", "bob", 1.0, "loss is NaN", Scope.ALL)
pytestmark = needs_root


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[Path]:
    with mounted(tmp_path / "disk", "size=256k,nr_inodes=100,mode=755") as directory:
        yield directory


def make_run(disk: Path) -> RunDirectory:
    run = RunDirectory(disk / "llama")
    run.create("")
    return run


def use_up_inodes(disk: Path) -> None:
    for number in range(200):
        try:
            (disk / f"ballast.{number}").touch()
        except OSError:
            return
    raise AssertionError("the disk takes more than its inodes")


def switches(run: RunDirectory) -> list[str]:
    return sorted(path.name for path in (run.path / "switches").iterdir())


def test_on_a_full_disk_the_switch_is_an_empty_file_that_all_obey(disk: Path) -> None:
    run = make_run(disk)
    fill(disk)
    before = os.umask(0o077)
    try:
        path = write_switch(run, KILL)
    finally:
        os.umask(before)
    assert path.stat().st_size == 0 and path.stat().st_mode & 0o777 == 0o644
    assert switches(run) == ["kill"], "and no temporary file is left"
    switch = read_switch(run, "kill", OwnerPolicy.OWNER)
    assert switch is not None and switch.honoured and (switch.why, switch.scope) == ("", Scope.JOB)
    place = RankInfo(run="llama", run_dir=str(run.path))
    assert SwitchDirectory(place, GuardSettings(), Recorder(place, lambda text: None)).read("kill") is not None


def test_a_switch_that_lies_there_on_a_full_disk_stays(disk: Path) -> None:
    run = make_run(disk)
    write_switch(run, Switch("kill", "ada", 1.0, "the first"))
    fill(disk)
    write_switch(run, KILL)
    switch = read_switch(run, "kill", OwnerPolicy.OWNER)
    assert switch is not None and switch.why == "the first"


def test_where_not_even_a_name_fits_the_way_by_the_scheduler_is_named(disk: Path) -> None:
    run = make_run(disk)
    use_up_inodes(disk)
    with pytest.raises(StateDirectoryError, match="No space left on device") as caught:
        write_switch(run, KILL)
    assert f"resil cancel {run.path}" in caught.value.hint
    assert switches(run) == []


def test_on_a_read_only_disk_the_way_by_the_scheduler_is_named(disk: Path) -> None:
    run = make_run(disk)
    make_read_only(disk, True)
    try:
        with pytest.raises(StateDirectoryError, match="Read-only file system") as caught:
            write_switch(run, KILL)
    finally:
        make_read_only(disk, False)
    assert f"resil cancel {run.path}" in caught.value.hint


def test_who_may_not_write_there_hears_who_can_end_it_and_a_save_switch_is_no_reason_to_cancel(disk: Path) -> None:
    run = make_run(disk)
    open_the_way(run.path / "switches" / "x")
    with acting_as(NOBODY), pytest.raises(StateDirectoryError, match="Permission denied") as caught:
        write_switch(run, KILL)
    assert "the owner of the run can end it at once" in caught.value.hint
    with acting_as(NOBODY), pytest.raises(StateDirectoryError) as caught:
        write_switch(run, Switch("save", "bob", 1.0))
    assert "cancel" not in caught.value.hint


TRAINING = """\
import sys, time
from resilience.guard import TrainingGuard

with TrainingGuard.from_env(poll_s=0.1) as guard:
    print("ready", flush=True)
    while not guard.step().stop:
        time.sleep(0.05)
sys.exit(guard.exit_code)
"""
HANGS = "import time; print('ready', flush=True); time.sleep(600)"


@pytest.mark.parametrize(("training", "code"), [(TRAINING, 75), (HANGS, 143)], ids=["guard", "batch shell"])
def test_guard_and_batch_shell_obey_the_empty_switch_on_their_full_disk(
    tmp_path: Path, training: str, code: int
) -> None:
    """Neither journal nor end can be written there, and the training ends all the same."""
    (tmp_path / "training.py").write_text(training)
    with mounted(tmp_path / "disk", "size=512k,mode=755") as directory:
        batch = Batch.make(directory)
        try:
            bound_s = 600 if code == 75 else 1
            command = f"exec {PYTHON} {tmp_path}/training.py"
            script = batch.start(command, guard={"RESIL_GUARD__KILL_TIMEOUT_S": str(bound_s)})
            script.until_says("ready", 60)
            ballast = fill(directory)
            path = write_switch(RunDirectory(batch.run_dir), KILL)
            assert path.read_bytes() == b""
            assert script.wait(60) == code
            until(lambda: not batch.processes(), "nothing to be left")
            ballast.unlink()
            queued = batch.run("touch launched", job=8)
            assert queued.wait() == 75 and "the kill switch was set by" in queued.text
        finally:
            batch.clean_up()
