"""Heartbeat, journal and `finished` from the training's own process, whatever becomes of the run directory."""

from __future__ import annotations

import json
import os
import shutil
import stat
import subprocess
import sys
import threading
import time
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from resilience.guard import TrainingGuard
from resilience.guard.heartbeat import writer as writer_module
from resilience.guard.heartbeat.beat import SharedProgress
from resilience.guard.heartbeat.run_directory import RunDirectoryWriter
from resilience.guard.heartbeat.writer import HeartbeatWriter, finished_text, start_writer
from resilience.guard.rank_info import RankInfo
from resilience.guard.recorder import MAX_EVENTS, Recorder
from resilience.guard.settings import GuardSettings
from tests.guard.guards import QUIET, make_run
from tests.guard.ranks import REPOSITORY, Node
from tests.lab.disks import fill, make_read_only, needs_fuse, small_disk
from tests.lab.hung import hung_directory, release
from tests.lab.waiting import until


class Alone:
    """One process with its mirror, and what was said."""

    def __init__(self, run: Path | str, **settings: Any) -> None:
        self.said: list[str] = []
        self.place = RankInfo(run_dir=str(run), job_id="12", attempt=3, host="n1", local_rank=0, nodes=1)
        self.recorder = Recorder(self.place, self.said.append)
        self.slot = SharedProgress()
        self.writer = start_writer(self.place, GuardSettings(**{"beat_s": 0.05, **settings}), self.slot, self.recorder)

    def lines(self) -> list[dict[str, Any]]:
        path = Path(self.place.run_dir) / "journal" / "12.0.jsonl"
        return [json.loads(line) for line in path.read_text().splitlines()]

    def work(self, event: str, **fields: Any) -> None:
        """One event, and one turn of the thread that tends the writer."""
        self.recorder.event(event, **fields)
        self.writer.work()

    def events(self) -> list[str]:
        return [line["event"] for line in self.lines()]

    def beat(self) -> dict[str, Any]:
        return tomllib.loads((Path(self.place.run_dir) / "beats" / "12.n1").read_text())


@pytest.fixture
def alone(run: Path) -> Iterator[Alone]:
    one = Alone(run)
    yield one
    one.writer.stop(5.0)


def test_one_process_alone_writes_its_beat_and_its_journal_itself(alone: Alone) -> None:
    alone.slot.words[0] = 41200
    alone.slot.set_phase("eval")
    alone.work("start", step=0)
    told = alone.beat()
    assert (told["attempt"], told["host"], told["step"]) == (3, "n1", 41200)
    assert told["rank"]["0"] == {
        "pid": os.getpid(), "step": 41200, "advanced": told["rank"]["0"]["advanced"], "phase": "eval",
    }  # fmt: skip
    assert abs(told["time"] - time.time()) < 60
    assert alone.events() == ["start"]
    assert alone.writer.locate is None


def test_one_process_alone_writes_its_stacks_when_they_are_requested(alone: Alone, run: Path) -> None:
    alone.writer.work()
    file = run / "journal" / "12.0.stacks"
    assert not file.exists()
    for times in (1, 2):
        (run / "switches" / "stacks.12").unlink(missing_ok=True)
        (run / "switches" / "stacks.12").touch()
        for _ in range(2):  # once for each request
            time.sleep(0.06)
            alone.writer.work()
        assert file.read_text().count(f" n1 pid {os.getpid()}: stacks, as requested\n") == times
    assert " in test_one_process_alone_writes_its_stacks_when_they_are_requested\n" in file.read_text()


def test_the_beat_is_written_by_time_and_not_at_every_look(run: Path) -> None:
    one = Alone(run, beat_s=1000.0)
    one.writer.work()
    one.slot.words[0] = 5
    one.writer.work()
    assert one.beat()["step"] == 0
    one.writer.stop(5.0)
    assert one.beat()["step"] == 5  # the last words


def test_the_first_steps_are_written_at_once(run: Path) -> None:
    one = Alone(run, beat_s=1000.0)
    one.writer.work()
    assert not one.writer.hurry(), "no step yet"
    for step in (1, 2):
        one.slot.words[0] = step
        assert one.writer.hurry()
        one.writer.work()
        assert one.beat()["step"] == step
        assert not one.writer.hurry(), "nothing new"
    one.writer.stop(5.0)
    one.slot.words[0] = 3
    assert not one.writer.hurry()


def test_off_means_no_beat_but_still_a_journal(run: Path) -> None:
    one = Alone(run, mirror="off")
    one.work("start")
    one.writer.stop(5.0)
    assert not list((run / "beats").iterdir())
    assert one.events() == ["start"]


def test_without_a_run_directory_nothing_is_written_and_nothing_said(tmp_path: Path) -> None:
    one = Alone("")
    one.recorder.event("start")
    for action in (one.writer.work, one.writer.write_finished, one.writer.check_responsive):
        action()
    one.writer.stop(5.0)
    assert one.said == []


def test_a_run_directory_made_by_hand_gets_the_directories_it_lacks(tmp_path: Path) -> None:
    one = Alone(tmp_path)
    one.recorder.event("start")
    one.writer.stop(5.0)
    assert one.beat()["step"] == 0 and one.events() == ["start"]


def test_a_full_disk_costs_one_warning_and_no_event(tmp_path: Path) -> None:
    with small_disk(tmp_path / "demo") as run:
        one = Alone(make_run(run))
        one.work("start")
        ballast = fill(run)
        for step in range(200):
            one.recorder.event("save", step=step, text="x" * 100)
            one.slot.words[0] = step
            one.writer.work()
        assert len(one.said) == 1 and "No space left" in one.said[0] and "the training continues" in one.said[0]
        assert len(one.lines()) < 40  # what fitted into the last block
        ballast.unlink()
        one.writer.work()
        assert [line["step"] for line in one.lines() if line["event"] == "save"] == list(range(200))
        one.writer.stop(5.0)
        assert one.beat()["step"] == 199


def test_a_read_only_disk_costs_one_warning_and_no_event(tmp_path: Path) -> None:
    with small_disk(tmp_path / "demo") as run:
        one = Alone(make_run(run))
        make_read_only(run, True)
        for _ in range(5):
            one.work("save")
        assert len(one.said) == 1 and "Read-only file system" in one.said[0]
        make_read_only(run, False)
        one.writer.stop(5.0)
        assert one.events() == ["save", "warning", "save", "save", "save", "save"]


def test_a_run_directory_that_disappears_and_comes_back_costs_one_warning(alone: Alone, tmp_path: Path) -> None:
    run = tmp_path / "demo"
    alone.writer.work()
    shutil.rmtree(run)
    for step in range(3):
        alone.work("save", step=step)
    assert not run.exists()
    assert len(alone.said) == 1 and "No such file" in alone.said[0]
    make_run(run)
    alone.writer.work()
    assert [line.get("step") for line in alone.lines() if line["event"] == "save"] == [0, 1, 2]


def test_events_that_nobody_can_write_are_bounded_and_their_loss_is_reported(alone: Alone, tmp_path: Path) -> None:
    shutil.rmtree(tmp_path / "demo")
    for _ in range(3):
        for number in range(MAX_EVENTS):
            alone.work("phase", number=number)
    make_run(tmp_path / "demo")
    alone.writer.work()
    alone.writer.work()
    told = alone.lines()
    assert len(told) == MAX_EVENTS + 1
    assert told[-1]["event"] == "dropped" and told[-1]["count"] == 2 * MAX_EVENTS + 1  # the one warning was among them


@needs_fuse
def test_a_dead_file_system_holds_neither_the_training_nor_its_end(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(writer_module, "FINISHED_S", 0.3)
    with hung_directory(tmp_path / "hung") as run:
        one = Alone(run)
        one.recorder.event("start")
        began = time.monotonic()
        threading.Thread(target=one.writer.work, daemon=True).start()
        until(one.writer._one_at_a_time.locked)
        one.writer.write_finished()
        one.writer.work()  # another thread hangs in it: this one is not drawn in
        one.writer.stop(0.2)
        assert time.monotonic() - began < 30.0
        assert "could not be marked as finished" in one.said[0] and "no response within 0.3 s" in one.said[0]
        release(run)


def test_a_look_that_does_not_come_back_is_reported_once(alone: Alone) -> None:
    alone.writer.check_responsive()
    alone.writer.work()
    alone.writer.check_responsive()
    assert alone.said == []
    alone.writer._worked_at -= 1000.0
    alone.writer.check_responsive()
    alone.writer.check_responsive()
    assert len(alone.said) == 1 and "has not responded" in alone.said[0]


def test_only_rank_0_is_expected_to_look_at_the_run_directory(tmp_path: Path) -> None:
    place = RankInfo(rank=1, world=2, run_dir=str(tmp_path))
    recorder = Recorder(place)
    other = HeartbeatWriter(place, GuardSettings(), SharedProgress(), recorder)
    other._worked_at -= 1000.0
    other.check_responsive()
    other.stop(1.0)
    assert recorder.take() == []


def test_in_a_thread_the_time_of_the_beat_stands_still_while_the_gil_is_held(node: Node) -> None:
    rank = node.start(0, world=1, mirror="thread")
    until(lambda: node.beats())
    rank.begin("ctypes.PyDLL(None).sleep(1000)")
    time.sleep(0.5)
    before = node.beats()["time"]
    time.sleep(0.5)
    assert node.beats()["time"] == before
    assert node.mirrors() == []


def test_a_process_beside_one_rank_can_be_had(node: Node) -> None:
    node.start(0, world=1, mirror="process")
    until(lambda: node.beats())
    assert len(node.mirrors()) == 1


def test_ranks_without_a_run_directory_start_no_process() -> None:
    place = RankInfo(world=4, local_rank=0)
    made = start_writer(place, GuardSettings(), SharedProgress(), Recorder(place))
    assert made.locate is None
    made.stop(1.0)


# ---- finished -------------------------------------------------------------------------------------------------


def test_finished_is_written_as_the_batch_shell_writes_it(alone: Alone, tmp_path: Path) -> None:
    alone.writer.write_finished()
    path = tmp_path / "demo" / "finished"
    told = tomllib.loads(path.read_text())
    assert told == {"attempt": 3, "time": told["time"], "job": "12"}
    assert abs(told["time"] - time.time()) < 60
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert alone.said == []


@pytest.mark.parametrize(
    ("environ", "label"),
    [
        ({}, "1235"),
        ({"SLURM_ARRAY_JOB_ID": "1233", "SLURM_ARRAY_TASK_ID": "2"}, "1233_2"),
        ({"SLURM_ARRAY_JOB_ID": "1233"}, "1235"),
        ({"SLURM_ARRAY_JOB_ID": '1"\n', "SLURM_ARRAY_TASK_ID": "2"}, "1235"),
    ],
)
def test_finished_names_the_job_as_people_do(environ: dict[str, str], label: str) -> None:
    place = RankInfo(job_id="1235", attempt=3)
    assert finished_text(place, environ, 1795171582.9) == f'attempt = 3\ntime = 1795171582\njob = "{label}"\n'


def test_finished_that_could_not_be_written_is_named_and_tried_again(tmp_path: Path) -> None:
    with small_disk(tmp_path / "demo") as run:
        one = Alone(make_run(run))
        make_read_only(run, True)
        one.writer.write_finished()
        assert "could not be marked as finished" in one.said[0] and "Read-only" in one.said[0]
        make_read_only(run, False)
        one.writer.stop(5.0)
        assert (run / "finished").exists()


def test_finished_is_on_the_disk_before_the_training_goes_on(alone: Alone, monkeypatch: pytest.MonkeyPatch) -> None:
    synced: list[str] = []
    real = os.fsync

    def note(descriptor: int) -> None:
        synced.append(Path(f"/proc/self/fd/{descriptor}").readlink().name)
        real(descriptor)

    monkeypatch.setattr(os, "fsync", note)
    alone.writer.write_finished()
    assert len(synced) == 2 and synced[0].startswith(".finished.") and synced[1] == "demo"


# ---- the whole guard ------------------------------------------------------------------------------------------

_TRAINING = """
import ctypes, sys, time
ctypes.CDLL(None).prctl(1, 9)  # PR_SET_PDEATHSIG: strace that is killed leaves its tracee behind
from resilience.guard import TrainingGuard
with TrainingGuard.from_env(poll_s=0.05, beat_s=0.1, host_memory=False, gpu_memory="off", walltime=False,
                            skew_steps=0) as guard:
    early = guard.should_stop_early()
    for step in range(100000):
        decision = guard.step()
        if decision.save:
            with guard.saving():
                pass
        if decision.stop:
            break
        time.sleep(0.005)
    else:
        sys.exit(9)
sys.exit(guard.exit_code)
"""


def test_ranks_other_than_0_never_touch_the_run_directory(tmp_path: Path) -> None:
    if shutil.which("strace") is None:
        pytest.skip("needs strace (apt-get install strace)")
    run = make_run(tmp_path / "demo")
    log = tmp_path / "strace.log"
    environ = os.environ | {
        "WORLD_SIZE": "2", "LOCAL_WORLD_SIZE": "2", "RESIL_RUN_DIR": str(run), "RESIL_ATTEMPT": "3",
        "RESIL_JOB_ID": "12", "PYTHONDONTWRITEBYTECODE": "1", "SLURMD_NODENAME": "n1",
    }  # fmt: skip
    environ.pop("SLURM_JOB_ID", None)
    ranks, said = [], [tmp_path / "stderr.0", tmp_path / "stderr.1"]
    for rank, wrap in enumerate([[], ["strace", "-f", "-o", str(log)]]):
        with open(said[rank], "w") as stderr:
            command = [*wrap, sys.executable, "-c", _TRAINING]
            mine = environ | {"RANK": str(rank), "LOCAL_RANK": str(rank)}
            ranks.append(subprocess.Popen(command, env=mine, cwd=REPOSITORY, stderr=stderr))
    try:
        until(lambda: (run / "beats" / "12.n1").exists(), timeout_s=60.0)
        until(lambda: tomllib.loads((run / "beats" / "12.n1").read_text()).get("rank", {}).get("1"), timeout_s=60.0)
        (run / "switches" / "kill").write_text('who = "bob"\n')
        for process in ranks:
            process.wait(60)
    finally:
        for process in ranks:
            process.kill()
            process.wait()
    assert [process.returncode for process in ranks] == [75, 75], [path.read_text() for path in said]
    calls = log.read_text().splitlines()
    assert any("connect(" in line and "resil-mirror" in line for line in calls)
    assert [line for line in calls if f'"{run}' in line and "execve(" not in line] == []
    told = tomllib.loads((run / "beats" / "12.n1").read_text())
    assert told["rank"]["0"]["step"] == told["rank"]["1"]["step"] > 0
    assert {"start", "decision", "save_begin", "save", "end"} <= {
        json.loads(line)["event"] for line in (run / "journal" / "12.0.jsonl").read_text().splitlines()
    }


@needs_fuse
def test_a_run_directory_on_a_dead_file_system_slows_no_step_and_not_the_end(tmp_path: Path) -> None:
    with hung_directory(tmp_path / "hung") as run:
        said: list[str] = []
        guard = TrainingGuard.from_env({"RESIL_RUN_DIR": str(run), "RESIL_ATTEMPT": "3"}, say=said.append, **QUIET)
        with guard:
            slowest_s, began = 0.0, time.monotonic()
            for step in range(3000):
                before = time.perf_counter()
                assert not guard.step()
                if step % 100 == 0:
                    with guard.saving(), guard.phase("eval"):
                        pass
                slowest_s = max(slowest_s, time.perf_counter() - before)
            assert time.monotonic() - began < 30.0 and slowest_s < 10.0
            began = time.monotonic()
        assert time.monotonic() - began < 45.0
        release(run)


def test_a_mirror_never_raises_into_the_thread_that_tends_it(alone: Alone, monkeypatch: pytest.MonkeyPatch) -> None:
    def fails(self: RunDirectoryWriter) -> bool:
        raise OSError(116, "Stale file handle")

    monkeypatch.setattr(RunDirectoryWriter, "_write_lines", fails)
    alone.writer.work()
    assert "Stale file handle" in alone.said[0]
