"""A hang is collected once, and acted upon once: after its evidence, if confirmed, and unless the training goes on."""

from __future__ import annotations

import json
import os
import subprocess
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from resilience.errors import SchedulerError, SchedulerUnavailable
from resilience.finding import Finding, Report, Verdict
from resilience.guard.heartbeat.beat import Progress, RankBeat, compose
from resilience.job import JobId
from resilience.ranks import collect
from resilience.ranks.hangs import COOL_DOWN_S, Hang, record_hang
from resilience.runs.run_directory import RunDirectory
from resilience.system.ports import System
from resilience.watch import hangs as module
from resilience.watch.checks._log.reading import CONFIRMED, ON_HANG, LogSettings
from resilience.watch.hangs import act_upon_hang, attend_hangs
from tests.guard.guards import make_run


class Scheduler:
    """Notes what is requeued; refuses with an error."""

    name = "local"

    def __init__(self) -> None:
        self.requeued: list[str] = []
        self.error: Exception | None = None

    def requeue(self, job_id: JobId, *, hold: bool = False) -> None:
        self.requeued.append(str(job_id))
        if self.error is not None:
            raise self.error


class Stage:
    """A run of two ranks on nodes that do not answer; the second one is stopped."""

    def __init__(self, path: Path) -> None:
        self.path = make_run(path / "gpt")
        (self.path / "run.toml").write_text("[guard]\nbeat_s = 0.1\n")
        self.directory = RunDirectory(self.path)
        self.scheduler = Scheduler()
        self.project: Any = SimpleNamespace(
            system=System(environ={"PATH": "/bin"}),
            existing=lambda run: self.directory,
            scheduler=lambda name: self.scheduler,
            scheduler_name=lambda: "local",
            loaded=SimpleNamespace(
                state_dir=path, settings=SimpleNamespace(act=SimpleNamespace(enabled=True)), project=path
            ),
        )
        self.beat()

    def beat(
        self, step: int = 19, phase: str = "train", host: str = "n1", pid: int = 2**22 + 1, state: str = "T"
    ) -> None:
        (self.path / "beats").mkdir(exist_ok=True)
        ranks = {}
        for number in range(2):
            progress = Progress(0.0)
            progress.update((step, 0, phase), time.time())
            ranks[number] = RankBeat(pid, progress)
            ranks[number].signs.state = state if number else "S"
        (self.path / "beats" / f"12.{host}").write_text(compose(3, host, ranks, time.time()))

        (self.path / "attempts" / "0003").write_text('job_id = 12\nlabel = "9_3"\nstart = 1\n')

    def hang(self) -> Hang:
        found = record_hang(self.project, self.directory, "no new step for 5 min")
        assert found is not None
        return found

    def act(self, on_hang: str = "requeue") -> str:
        return act_upon_hang(self.project, self.directory, self.hang(), on_hang)


@pytest.fixture
def stage(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Stage:
    monkeypatch.setattr(collect, "ANSWER_S", 0.1)
    return Stage(tmp_path)


def age(path: Path) -> None:
    for one in path.iterdir():
        os.utime(one, (time.time() - COOL_DOWN_S - 1, time.time() - COOL_DOWN_S - 1))


def test_a_hang_is_collected_once_and_the_next_one_after_a_while(stage: Stage) -> None:
    first = stage.hang()
    assert first.page.name == "0003-19.html" and first.page.exists() and first.message[0] == f"evidence: {first.page}"
    assert first.lines[0] == "no new step for 5 min" and "rank 1 on n1" in "\n".join(first.lines)
    changed = first.page.stat().st_mtime_ns
    assert stage.hang().lines == first.lines and first.page.stat().st_mtime_ns == changed
    stage.beat(step=20)
    assert record_hang(stage.project, stage.directory, "again") is None, "too soon after the other one"
    age(first.page.parent)
    assert stage.hang().page.name == "0003-20.html"


def test_a_collection_that_failed_is_not_repeated_in_each_tick(stage: Stage, monkeypatch: pytest.MonkeyPatch) -> None:
    def fails(*given: object) -> None:
        raise OSError("the disk is full")

    with monkeypatch.context() as patch:
        patch.setattr("resilience.ranks.hangs.collect", fails)
        with pytest.raises(OSError, match="full"):
            stage.hang()
    assert stage.hang().message == ["no new step for 5 min"]
    assert stage.act() == "" and not stage.scheduler.requeued, "nothing acts before the evidence"
    age(stage.path / "hangs")
    assert stage.act() and stage.scheduler.requeued, "whoever collected it was killed: it is collected after a while"


def test_it_acts_once_and_says_what_it_did(stage: Stage) -> None:
    assert stage.act("tell") == ""
    assert stage.act() == stage.act() == "its job was requeued"
    assert stage.scheduler.requeued == ["9_3"], "12 may be the whole array's id"
    record = json.loads((stage.path / "hangs" / "0003-19.acted").read_text())
    assert (record["on_hang"], record["rank"], record["host"]) == ("requeue", 1, "n1")
    assert "stopped by a signal" in record["why"]
    stage.beat(step=20)
    for path in (stage.path / "hangs").glob("*.txt"):
        os.utime(path, (1, 1))
    assert stage.act() == "not acted upon: another hang was, less than 30 min ago"
    age(stage.path / "hangs")
    assert stage.act() == "its job was requeued" and len(stage.scheduler.requeued) == 2


@pytest.mark.parametrize("moves", [{"step": 20}, {"phase": "save"}, {"phase": "eval"}, {"phase": "start"}])
def test_a_training_that_goes_on_meanwhile_is_left_alone(stage: Stage, moves: dict[str, Any]) -> None:
    hang = stage.hang()
    stage.beat(**moves)
    assert act_upon_hang(stage.project, stage.directory, hang, "requeue") == "not acted upon: it goes on"
    assert not stage.scheduler.requeued


def test_a_rank_that_is_awake_again_and_has_made_no_step_yet_is_left_alone(stage: Stage) -> None:
    hang = stage.hang()
    stage.beat(state="R")
    assert "no longer show why" in act_upon_hang(stage.project, stage.directory, hang, "requeue")
    stage.beat()
    assert act_upon_hang(stage.project, stage.directory, hang, "requeue") == "its job was requeued"


def test_without_act_enabled_the_deed_is_only_named(stage: Stage) -> None:
    stage.project.loaded.settings.act.enabled = False
    assert [stage.act(one) for one in ON_HANG[1:]] == [
        "it would be asked to save if [act] were enabled",
        "its launch would be ended, so that the next job goes on if [act] were enabled",
        "its job would be requeued if [act] were enabled",
    ]
    assert not stage.scheduler.requeued


def test_a_scheduler_that_does_not_answer_is_asked_again_and_one_that_refuses_is_not(stage: Stage) -> None:
    stage.scheduler.error = SchedulerUnavailable("slurmctld is down")
    assert stage.act() == "requeue failed: slurmctld is down; the next tick tries again"
    stage.scheduler.error = SchedulerError("it was submitted with --no-requeue")
    assert stage.act() == stage.act() == "requeue failed: it was submitted with --no-requeue"
    assert len(stage.scheduler.requeued) == 2


def test_a_save_is_asked_for_by_the_switch(stage: Stage) -> None:
    assert stage.act("save") == "it was asked to save"
    assert "it hangs at step 19: rank 1 on n1" in (stage.path / "switches" / "save").read_text()


def test_without_slurm_the_ranks_of_this_node_are_ended(stage: Stage) -> None:
    with run_of(stage.path) as rank:
        stage.beat(host=System().host.name, pid=rank.pid)
        assert "ended" in stage.act("restart_step")
        assert rank.wait(10) == -9


def run_of(path: Path) -> subprocess.Popen[bytes]:
    """Start a process of this run."""
    return subprocess.Popen(["sleep", "60"], env={"PATH": os.environ["PATH"], "RESIL_RUN_DIR": str(path)})


def test_a_heartbeat_that_names_other_processes_ends_none(stage: Stage, monkeypatch: pytest.MonkeyPatch) -> None:
    killed: list[int] = []
    monkeypatch.setattr(os, "kill", lambda pid, number: killed.append(pid))
    with run_of(stage.path.parent / "other") as stranger:
        for step, pid in enumerate((0, -1, 1, 2**22 + 1, stranger.pid)):
            stage.beat(step=step, host=System().host.name, pid=pid)
            said = stage.act("restart_step")
            assert "restart_step failed: no process on" in said and not killed, (pid, said)
            age(stage.path / "hangs")
        monkeypatch.undo()
        stranger.kill()


OVER = "Kill job error on job step id 9_3.11: Invalid job id specified"


@pytest.mark.parametrize(
    ("refused", "said", "is_done"),
    [
        ("none", "", True),
        ("9_3.11", OVER, True),
        ("9_3.11", "Kill job error on job step id 9_3.11: Job/step already completing or completed", True),
        ("9_3.*", OVER, False),
        ("9_3.0", "Kill job error on job step id 9_3.0: Access/permission denied", False),
    ],
)
def test_on_slurm_the_steps_of_the_job_are_ended_and_not_its_batch_shell(
    stage: Stage, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, refused: str, said: str, is_done: bool
) -> None:
    """One that has ended since it was listed keeps nobody from the others."""
    monkeypatch.setattr(module, "scheduler_of", lambda intents: "slurm")
    monkeypatch.setenv("PATH", f"{tmp_path}:/bin")
    for name, text in (
        ("squeue", "echo 9_3.batch; echo 9_3.0; echo 9_3.extern; echo 9_3.11"),
        ("scancel", f"echo $@ >>$0.told; case $1 in {refused}) echo 'scancel: error: {said}' >&2; exit 1;; esac"),
    ):
        (tmp_path / name).write_text(f"#!/bin/sh\n{text}\n")
        (tmp_path / name).chmod(0o755)
    assert ("restart_step failed" in stage.act("restart_step")) != is_done
    assert (tmp_path / "scancel.told").read_text().splitlines()[:2] in (["9_3.0", "9_3.11"], ["9_3.0"])


@pytest.mark.parametrize(
    ("verdict", "looked", "acts"),
    [
        (Verdict.CRITICAL, (CONFIRMED,), 1),
        (Verdict.CRITICAL, (), 0),
        (Verdict.WARNING, (CONFIRMED,), 0),
        (Verdict.UNKNOWN, (CONFIRMED,), 0),
    ],
)
def test_only_a_confirmed_hang_is_acted_upon(
    stage: Stage, verdict: Verdict, looked: tuple[str, ...], acts: int
) -> None:
    finding = Finding(subject="gpt", run="gpt", verdict=verdict, fault="no-progress", summary="hangs", looked=looked)
    other = Finding(subject="/scratch", verdict=Verdict.CRITICAL, fault="space", summary="full")
    reports = [
        Report(check="log", findings=(finding, other), time=0.0),
        Report(check="fs", findings=(other,), time=0.0),
    ]
    watchdog: Any = SimpleNamespace(name="log", settings=LogSettings(on_hang="requeue"))
    found, untouched = attend_hangs(stage.project, [watchdog], reports)
    assert untouched is reports[1] and found.findings[1] == other
    done = list((stage.path / "hangs").glob("*.acted")) if (stage.path / "hangs").exists() else []
    assert len(done) == acts
    evidence = found.findings[0].evidence
    assert any(line.startswith("evidence: ") for line in evidence) == (verdict is not Verdict.UNKNOWN)
    assert ("its job was requeued" in evidence) == bool(acts)
