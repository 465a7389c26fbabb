"""What the breaker does: holds what is queued, once, and releases no job that a user holds."""

from __future__ import annotations

import json
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path

import pytest

from resilience.attempts.acting import act, close_by_hand, open_by_hand, save_and_stop
from resilience.attempts.classify import ASKED_FOR
from resilience.attempts.failure import FailureClass
from resilience.attempts.ledger import read_ledger
from resilience.errors import SchedulerError, SchedulerUnavailable
from resilience.guard.earlier_stops import read_stops
from resilience.job import Job, JobId, JobState
from resilience.runs.breaker_file import breaker_path, closings, last_closed, read_breaker
from resilience.runs.run_directory import RunDirectory
from resilience.runs.submissions import Intent, Outcome, record_intent, record_result
from resilience.runs.switches import policy_of_run, read_switch
from resilience.submission import make_comment
from tests.lab.fakes import DOWN, ME, NOW, FakeClock, FakeScheduler, a_job, make_project

ENABLED = '[run]\nname = "gpt"\ncommand = "python train.py"\n[act]\nenabled = true\n'
DISK = "OSError: [Errno 28] No space left on device\n"
OOM = "slurmstepd: error: Detected 1 oom_kill event in StepId=101.batch. Some of the step tasks have been OOM Killed.\n"
NETWORK = (
    "n7:4711:4800 [3] transport/net_ib.cc:1295 NCCL WARN NET/IB : Got completion from peer 10.1.2.3<4> with status=12\n"
)


class Run:
    """A run with a fake queue."""

    def __init__(self, root: Path, settings: str = ENABLED) -> None:
        self.queue, self.clock = FakeScheduler(), FakeClock()
        self.project = make_project(root, self.queue, settings=settings, clock=self.clock)
        self.directory: RunDirectory = self.project.directory("gpt")
        self.directory.create("")
        record_intent(self.directory, Intent("token", "fake", "train.sh", ("sbatch",), NOW, by=ME))
        record_result(self.directory, "token", Outcome.SUBMITTED, NOW, job_id=JobId(50))

    def fails(
        self, *logs: str, end: str = "exited", ago_s: float = 1.0, save: int | None = None, node: str = ""
    ) -> None:
        """The next attempts, each with the end of its log."""
        for log in logs:
            number = len([*(self.directory.path / "attempts").glob("????")]) + 1
            path, job = self.directory.path / "attempts" / f"{number:04d}", 100 + number
            start = NOW - ago_s - 10
            path.write_text(f'job_id = {job}\nlabel = "{job}"\nrestart = 0\nhost = "n1"\npid = 7\nstart = {start}\n')
            path.with_suffix(".end").write_text(f'end = "{end}"\nexit_code = 1\ntime = {NOW - ago_s}\n')
            (self.directory.path / "logs" / f"gpt-{job}.out").write_text(log)
            if node:
                event = {"event": "attempt_start", "attempt": number, "nodes": node}
                (self.directory.path / "journal" / f"{job}.batch.jsonl").write_text(json.dumps(event) + "\n")
            if save is not None:
                event = {"event": "save", "attempt": number, "step": save}
                (self.directory.path / "journal" / f"{job}.0.jsonl").write_text(json.dumps(event) + "\n")

    def has(self, number: int, state: JobState = JobState.PENDING, **fields: object) -> None:
        self.queue.records.append(a_job(number, state, comment=make_comment("gpt", "token"), **fields))

    def reasons(self) -> dict[str, str]:
        return {str(job.id): job.reason for job in self.queue.records}

    def act(self) -> str:
        return act(self.project, self.directory)


@pytest.fixture
def run(tmp_path: Path) -> Run:
    made = Run(tmp_path)
    made.has(50, tasks="4-10%1", task_count=7, reason="Priority")
    return made


def test_a_cause_that_no_restart_heals_holds_the_queue_at_its_first_attempt(run: Run) -> None:
    run.fails(DISK)
    said = run.act()
    assert "opens: no restart heals it: disk full (attempt 1)" in said and "held job 50" in said
    breaker = read_breaker(run.directory)
    assert breaker is not None and breaker.acting and breaker.retry_at == 0 and "disk full" in breaker.why
    assert run.reasons() == {"50": "JobHeldUser"}
    assert run.act() == "" and run.queue.calls.count("hold") == 1, "done once"


def test_what_a_user_holds_stays_held(run: Run) -> None:
    run.has(60, reason="JobHeldUser")
    run.has(61, reason="Dependency")
    run.queue.records.append(a_job(70, JobState.PENDING, reason="Priority", comment=make_comment("gpt", "of another")))
    run.fails(DISK)
    run.act()
    assert run.reasons() == {"50": "JobHeldUser", "60": "JobHeldUser", "61": "JobHeldUser", "70": "Priority"}
    done = close_by_hand(run.project, run.directory)
    assert done.jobs == (JobId(50), JobId(61)) and not done.error
    assert run.reasons() == {"50": "Priority", "60": "JobHeldUser", "61": "Priority", "70": "Priority"}
    assert read_breaker(run.directory) is None and run.act() == "", "earlier attempts count no more"


def test_what_is_queued_later_is_held_as_well_and_all_of_it_released(run: Run) -> None:
    run.fails(DISK)
    run.act()
    run.has(70, reason="Priority")
    assert "held job 70" in run.act()
    assert close_by_hand(run.project, run.directory).jobs == (JobId(50), JobId(70))


def test_what_is_about_to_be_held_is_written_before(run: Run) -> None:
    run.fails(DISK)
    run.queue.troubles["hold"] = DOWN
    with pytest.raises(SchedulerUnavailable):
        run.act()
    assert breaker_path(run.directory, "breaker.held").read_text() == "50\n"


def test_what_cannot_be_released_is_not_forgotten(run: Run) -> None:
    run.fails(DISK)
    run.act()
    run.queue.troubles["release"] = SchedulerError("Access/permission denied")
    assert close_by_hand(run.project, run.directory).error == "Access/permission denied"
    del run.queue.troubles["release"]
    assert close_by_hand(run.project, run.directory).jobs == (JobId(50),)


def test_a_finished_run_is_left_alone(run: Run) -> None:
    run.fails(DISK)
    (run.directory.path / "finished").write_text("")
    assert run.act() == "" and read_breaker(run.directory) is None and run.queue.calls == []


def test_jobs_that_the_batch_shell_held_by_their_raw_ids_are_released(run: Run) -> None:
    run.queue.records.clear()
    for task, raw in ((4, 64), (5, 65)):
        run.has(50, task=task, raw_id=raw, reason="JobHeldUser")
    breaker_path(run.directory, "breaker.held").write_text("64\n")
    assert close_by_hand(run.project, run.directory).jobs == (JobId(50, 4),)
    assert run.reasons() == {"50_4": "Priority", "50_5": "JobHeldUser"}


def test_without_leave_it_is_only_told(tmp_path: Path) -> None:
    run = Run(tmp_path, ENABLED.replace("true", "false"))
    run.has(50, reason="Priority")
    run.fails(DISK)
    assert "it would hold the queued jobs" in run.act()
    assert "hold" not in run.queue.calls and run.act() == ""


def test_a_batch_shell_that_had_leave_is_helped_although_the_settings_have_changed(tmp_path: Path) -> None:
    run = Run(tmp_path, ENABLED.replace("true", "false"))
    run.has(50, reason="Priority")
    run.fails("", "", "")
    breaker_path(run.directory).write_text('attempt = 3\nburnt = 3\nacting = true\nby = "job 103"\nwhy = "x"\n')
    assert "held job 50" in run.act()
    breaker = read_breaker(run.directory)
    assert breaker is not None and breaker.acting


@pytest.mark.parametrize("end", ["lost", "terminated", "superseded"])
def test_ends_from_outside_open_nothing(run: Run, end: str) -> None:
    run.fails("", "", "", "", "", end=end)
    assert run.act() == "" and read_breaker(run.directory) is None


def test_one_more_may_try_after_the_back_off_where_it_may_heal(run: Run) -> None:
    run.fails(NETWORK, NETWORK, NETWORK)
    run.act()
    breaker = read_breaker(run.directory)
    assert breaker is not None and breaker.retry_at == NOW - 1 + 10
    run.clock.time = breaker.retry_at
    assert "released job 50_4" in run.act()
    assert run.reasons() == {"50_4": "Priority", "50": "JobHeldUser"}
    assert run.act() == "", "one at a time"
    run.queue.records[0] = replace(run.queue.records[0], state=JobState.FAILED)
    run.fails(NETWORK, ago_s=-9)
    run.act()
    breaker = read_breaker(run.directory)
    assert breaker is not None and breaker.retry_at == NOW + 9 + 20 and breaker.burnt == 4
    assert breaker.opened == NOW, "it is the same one"
    assert run.reasons()["50"] == "JobHeldUser"


def test_progress_of_the_one_that_tried_releases_all(run: Run) -> None:
    run.fails(NETWORK, NETWORK, NETWORK)
    run.act()
    run.fails("", end="terminated", save=40)
    assert "is closed" in run.act() and run.reasons() == {"50": "Priority"}
    assert not breaker_path(run.directory, "breaker.held").exists()


def test_each_close_of_a_person_is_remembered(run: Run) -> None:
    run.fails("", "", "")
    close_by_hand(run.project, run.directory)
    run.fails("", "", "")
    for _ in range(2):
        close_by_hand(run.project, run.directory)
    assert closings(run.directory) == (3, 6) and last_closed(run.directory) == 6


def test_an_older_view_than_that_of_the_batch_shell_closes_nothing(run: Run) -> None:
    run.fails("", "")
    breaker_path(run.directory).write_text('attempt = 3\nburnt = 3\nacting = true\nby = "job 103"\nwhy = "x"\n')
    assert run.act() == "" and read_breaker(run.directory) is not None


def test_while_an_attempt_trains_nothing_is_held(run: Run) -> None:
    run.fails(DISK, "")
    (run.directory.path / "attempts" / "0002.end").unlink()
    assert run.act() == "" and "hold" not in run.queue.calls


def test_attempts_that_were_lost_one_after_another_hold_what_is_queued_behind_the_one_that_trains(run: Run) -> None:
    """Their batch shells were killed with them, and hold nothing."""
    run.fails(OOM, OOM, OOM, end="lost")
    run.fails("")
    (run.directory.path / "attempts" / "0004.end").unlink()
    assert "3 attempts in a row without a new checkpoint, the last: host oom (attempt 3)" in run.act()
    assert run.reasons() == {"50": "JobHeldUser"}
    event = {"event": "save", "attempt": 4, "step": 7}
    (run.directory.path / "journal" / "104.0.jsonl").write_text(json.dumps(event) + "\n")
    assert "is closed" in run.act() and run.reasons() == {"50": "Priority"}


def test_without_the_files_of_the_attempts_nothing_changes(run: Run) -> None:
    run.fails(DISK)
    run.act()
    for path in (run.directory.path / "attempts").glob("0*"):
        path.unlink()
    assert run.act() == "" and read_breaker(run.directory) is not None


def test_no_program_closes_what_a_person_opened(run: Run) -> None:
    run.fails("", save=10)
    done = open_by_hand(run.project, run.directory, 'until the "new" data is there')
    assert done.jobs == (JobId(50),) and run.act() == ""
    breaker = read_breaker(run.directory)
    assert breaker is not None and breaker.why == "until the 'new' data is there" and breaker.acting


def test_ten_ticks_at_once_open_it_once(run: Run) -> None:
    run.fails(DISK)
    with ThreadPoolExecutor(10) as pool:
        said = [*pool.map(lambda _: run.act(), range(10))]
    assert sum("opens" in text for text in said) == 1
    assert not [*(run.directory.path / "attempts").glob(".breaker*")]


def test_without_an_answer_of_the_scheduler_the_next_tick_completes_it(run: Run) -> None:
    run.fails(DISK)
    run.queue.trouble = DOWN
    with pytest.raises(SchedulerUnavailable):
        run.act()
    run.queue.trouble = None
    assert "held job 50" in run.act()
    run.queue.trouble = DOWN
    with pytest.raises(SchedulerUnavailable):
        close_by_hand(run.project, run.directory)
    run.queue.trouble = None
    assert close_by_hand(run.project, run.directory).jobs == (JobId(50),)


class Grumbling(FakeScheduler):
    """As SLURM: holds an array, and reports an error because one of its tasks has ended."""

    def hold(self, job_id: JobId) -> None:
        super().hold(job_id)
        raise SchedulerError("50_1-3: Job has already finished")


class Strict(FakeScheduler):
    """A site where jobs may not be held."""

    def hold(self, job_id: JobId) -> None:
        raise SchedulerError("Access/permission denied")


@pytest.mark.parametrize(("kind", "error"), [(Grumbling, ""), (Strict, "Access/permission denied")])
def test_the_queue_tells_whether_a_job_is_held(run: Run, kind: type[FakeScheduler], error: str) -> None:
    records: Sequence[Job] = run.queue.records
    run.project = make_project(run.project.system.cwd.parent, kind(records=[*records]), ENABLED, clock=run.clock)
    done = open_by_hand(run.project, run.directory, "")
    assert done.error == error and bool(done.jobs) is not bool(error)


UNREADABLE = (
    'Traceback (most recent call last):\n  File "/home/ada/train.py", line 9, in <module>\n    torch.load(path)\n'
    "RuntimeError: PytorchStreamReader failed reading zip archive: failed finding central directory\n"
)


def test_the_next_training_is_offered_to_fall_back_from_a_checkpoint_that_is_unreadable(run: Run) -> None:
    run.fails("", end="terminated", save=40)
    run.fails(UNREADABLE)
    assert run.act() == "the next attempt of gpt is offered to fall back from the checkpoint of step 40"
    (stop,) = read_stops((run.directory.path / "learned" / "stops.json").read_bytes())
    assert (stop.step, stop.saved_step, stop.attempt, stop.times) == (40, 40, 2, 1) and "checkpoint" in stop.why
    assert run.act() == "", "once"
    run.fails(UNREADABLE)
    assert "fall back" in run.act()
    (stop,) = read_stops((run.directory.path / "learned" / "stops.json").read_bytes())
    assert (stop.attempt, stop.times) == (3, 2)


@pytest.mark.parametrize(
    ("settings", "save"), [(ENABLED.replace("true", "false"), 40), (ENABLED, None)], ids=["told only", "no checkpoint"]
)
def test_without_leave_or_without_a_checkpoint_nothing_is_offered(
    tmp_path: Path, settings: str, save: int | None
) -> None:
    run = Run(tmp_path, settings)
    run.fails("", end="terminated", save=save)
    run.fails(UNREADABLE)
    assert run.act() == "" and not (run.directory.path / "learned" / "stops.json").exists()


ECC = "RuntimeError: CUDA error: uncorrectable ECC error encountered"


def runs(run: Run, log: str) -> None:
    """The newest attempt still runs."""
    run.fails(log)
    number = len([*(run.directory.path / "attempts").glob("????")])
    (run.directory.path / "attempts" / f"{number:04d}.end").unlink()


@pytest.mark.parametrize("later", ["", "step 41 loss 2.0\nstep 42 loss 2.0\nstep 43 loss 2.0\nstep 44 loss 2.0\n"])
def test_an_attempt_whose_gpu_fails_is_asked_once_to_save_and_stop(run: Run, later: str) -> None:
    runs(run, f"resil: START attempt 1 of gpt\nstep 40 loss 2.0\n{ECC}\n{later}")
    said = save_and_stop(run.project, run.directory)
    assert said.startswith("asked job 101 of gpt to save and stop: its log says: ") and "ECC" in said
    switch = read_switch(run.directory, "stop.101", policy_of_run(run.directory))
    assert switch is not None and switch.honoured and switch.why.startswith("the watchdog asked because of gpu_fault: ")
    assert save_and_stop(run.project, run.directory) == ""
    end = f'end = "stopped"\nexit_code = 75\ntime = {NOW}\nwhy = "{switch.why}"\n'
    (run.directory.path / "attempts" / "0001.end").write_text(end)
    (row,) = read_ledger(run.directory)
    assert row.failure is not None and row.failure.failure is FailureClass.GPU_FAULT, "it counts against its host"


@pytest.mark.parametrize(
    ("log", "settings"),
    [
        ("step 40 loss 2.0\n", ENABLED),
        (f"{ECC}\nresil: START attempt 1 of gpt\nstep 40 loss 2.0\n", ENABLED),
        (f"{NETWORK}\n", ENABLED),
        ("RuntimeError: No CUDA GPUs are available\nusing the CPU instead\n", ENABLED),
        ("NVRM: Xid (PCI:0000:3b:00): 94, pid=4711, name=python3, Contained: SM (0x1). RST: No, D-RST: No\n", ENABLED),
        (f"{ECC}\n", ENABLED + '[act.treatments]\ngpu_fault = "elsewhere"\n'),
    ],
    ids=["healthy", "of an earlier start", "another class", "no GPU", "contained", "set otherwise"],
)
def test_an_attempt_without_such_a_fault_trains_on(tmp_path: Path, log: str, settings: str) -> None:
    run = Run(tmp_path, settings)
    runs(run, log)
    assert save_and_stop(run.project, run.directory) == ""
    assert not [*(run.directory.path / "switches").glob("stop.*")]


def test_without_leave_it_is_told_that_it_would_be_asked(tmp_path: Path) -> None:
    run = Run(tmp_path, ENABLED.replace("true", "false"))
    runs(run, f"{ECC}\n")
    assert "it would ask job 101 to save and stop if [act] were enabled" in save_and_stop(run.project, run.directory)
    assert not [*(run.directory.path / "switches").glob("stop.*")]
    (run.directory.path / "attempts" / "0001.end").write_text('end = "exited"\nexit_code = 1\ntime = 5\n')
    assert save_and_stop(run.project, run.directory) == ""


def test_stops_that_were_asked_for_without_progress_open_the_breaker(run: Run) -> None:
    for number in (1, 2, 3):
        run.fails("", end="stopped")
        path = run.directory.path / "attempts" / f"{number:04d}.end"
        path.write_text(path.read_text() + f'why = "{ASKED_FOR}gpu_fault: the log says: ECC"\n')
    assert "opens: 3 attempts in a row without a new checkpoint, the last: gpu fault" in run.act()
