"""The embedded scheduler, with a real daemon, real processes and a spool of its own for each test."""

from __future__ import annotations

import fcntl
import itertools
import os
import re
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from resilience.base.files import STALE_S
from resilience.errors import SchedulerError, SchedulerUnavailable, UsageError
from resilience.job import ExitCode, JobId, JobState, JobUpdate, Liveness
from resilience.schedulers._local.processes import start_ticks
from resilience.schedulers._local.spool import Spool
from resilience.schedulers.local import LocalScheduler, daemon_environment
from resilience.system.ports import SystemClock
from resilience.system.process import ProcessRunner
from tests.lab.waiting import until
from tests.schedulers.spooled import Lab, lab

IMPORTS = """
import os, signal, threading
from resilience.submission import Submission
from resilience.schedulers.local import LocalScheduler as S
from resilience.system.ports import SystemClock as C
from resilience.system.process import ProcessRunner as R
"""


@pytest.fixture
def local(tmp_path: Path) -> Iterator[Lab]:
    with lab(tmp_path) as opened:
        yield opened


def test_a_job_runs_and_its_output_and_exit_code_are_kept(local: Lab) -> None:
    job = local.end_of("echo hello; exit 3")
    assert (job.state, job.exit_code, local.output(job)) == (JobState.FAILED, ExitCode(3), "hello\n")
    assert Path(job.stdout).name == f"slurm-{job.raw_id}.out"


def test_a_submission_wakes_the_daemon_instead_of_waiting_for_its_next_look(local: Lab) -> None:
    local.submit("true", hold=None)
    local.kill_daemon()
    with open(local.spool / "daemon.lock") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)  # in the daemon's place
        fifo = os.open(local.spool / "wake", os.O_RDONLY | os.O_NONBLOCK)
        try:
            local.submit("true", hold=None)
            assert os.read(fifo, 1) == b"x"
        finally:
            os.close(fifo)


def test_the_daemon_finds_the_package_of_who_starts_it_though_it_is_not_installed() -> None:
    first = daemon_environment({"PYTHONPATH": "/else"})["PYTHONPATH"].split(":")[0]
    assert Path(first, "resilience", "schedulers", "_local", "daemon.py").is_file()


def test_the_submitting_shell_may_die(local: Lab) -> None:
    submission = local.submission("sleep 0.5; echo alive")
    code = f"{IMPORTS}\nS(clock=C(), runner=R(), environ=dict(os.environ)).submit({submission!r})\nos.killpg(0, 9)\n"
    subprocess.run(
        [sys.executable, "-c", code],
        env={**local.environ, "PYTHONPATH": str(Path.cwd())},
        start_new_session=True,
        check=False,
    )
    (found,) = local.scheduler.find(submission.token)
    assert local.output(local.ended(found.id)[0]) == "alive\n"


def test_the_killed_daemon_costs_no_job_its_exit_code(local: Lab) -> None:
    running = local.submit("sleep 1; exit 42")
    until(lambda: local.one(running).state is JobState.RUNNING)
    first = local.daemon_pid()
    local.kill_daemon()
    job = local.ended(running)[0]
    assert (job.exit_code, job.restarts) == (ExitCode(42), 0)
    assert local.daemon_pid() not in (0, first)


def test_the_queue_goes_on_after_the_daemon_was_killed_though_nobody_calls(local: Lab) -> None:
    array = local.submit("echo $SLURM_ARRAY_TASK_ID >> order; sleep 0.3", array="1-3%1")
    until(lambda: (local.work / "order").exists())
    local.kill_daemon()
    until(lambda: (local.work / "order").read_text().split() == ["1", "2", "3"])
    assert {job.restarts for job in local.ended(array)} == {0}


def test_a_lost_job_says_so_before_it_runs_again_and_is_requeued_with_its_count(local: Lab) -> None:
    job_id = local.submit("echo run ${SLURM_RESTART_COUNT-first}; sleep 1", open_mode="append")
    local.says(job_id, "first")
    local.lose(job_id.array)
    (seen,) = local.scheduler.jobs()
    assert (seen.id, seen.state, seen.reason, seen.restarts) == (job_id, JobState.PENDING, "NodeDown", 1)
    until(lambda: local.scheduler.job(job_id).state is JobState.RUNNING)
    assert local.scheduler.job(job_id).restarts == 1
    job = local.ended(job_id)[0]
    assert (job.state, job.restarts, local.output(job)) == (JobState.COMPLETED, 1, "run first\nrun 1\n")
    assert [job.restarts for job in local.scheduler.jobs(finished=True)] == [1]


def test_a_lost_task_says_so_while_the_array_goes_on(local: Lab) -> None:
    array = local.submit("echo up; sleep 30", array="1-3%1")
    first = JobId(array.array, 1)
    until(lambda: local.scheduler.job(first).state is JobState.RUNNING)
    local.says(first, "up")
    local.lose(local.one(first).raw_id)
    seen = {job.id: job.reason for job in local.scheduler.jobs() if job.state is JobState.PENDING}
    assert seen[first] == "NodeDown" and "NodeDown" not in [seen[other] for other in seen if other != first]


def test_a_lost_job_that_may_not_be_requeued_is_a_node_failure(local: Lab) -> None:
    job_id = local.submit("echo up; sleep 30", no_requeue=None)
    local.says(job_id, "up")
    local.lose(job_id.array)
    assert local.ended(job_id)[0].state is JobState.NODE_FAIL


def test_after_a_reboot_running_jobs_are_requeued_and_queued_ones_are_still_there(local: Lab) -> None:
    job_id = local.submit("echo run ${SLURM_RESTART_COUNT-first}; sleep ${SLURM_RESTART_COUNT-60}", open_mode="append")
    waiting = local.submit("echo after", hold=None)
    local.says(job_id, "first")
    local.lose(job_id.array)
    path = local.spool / "jobs" / str(job_id) / "task.json"
    # The pid may belong to somebody else after a reboot: to this test.
    text = re.sub(r'"supervisor":\d+', f'"supervisor":{os.getpid()}', path.read_text())
    text = re.sub(r'"supervisor_ticks":\d+', f'"supervisor_ticks":{start_ticks(os.getpid())}', text)
    path.write_text(re.sub(r'"boot":"[^"]*"', '"boot":"an-earlier-boot"', text))
    assert local.ended(job_id)[0].restarts == 1
    local.scheduler.release(waiting)
    assert local.output(local.ended(waiting)[0]) == "after\n"


def test_what_a_lost_job_left_running_is_ended_before_it_runs_again(local: Lab) -> None:
    job_id = local.submit("echo up; setsid sleep 60 & sleep 60", no_requeue=None)
    local.says(job_id, "up")
    until(lambda: len(local.processes(job_id)) >= 2)
    os.kill(local.watcher_pid(job_id.array), signal.SIGKILL)
    assert local.ended(job_id)[0].state is JobState.NODE_FAIL
    assert local.processes(job_id) == []


def test_a_process_that_detached_itself_ends_with_its_job(local: Lab) -> None:
    job = local.end_of("(setsid nohup sleep 60 >/dev/null 2>&1 &) ; sleep 0.2")
    assert job.state is JobState.COMPLETED
    assert local.processes(job.id) == []


def test_clients_that_race_start_one_daemon_and_one_job_per_token(local: Lab) -> None:
    submission = local.submission("sleep 0.5")
    ids: list[JobId] = []

    def submit() -> None:
        ids.append(local.scheduler.submit(submission).id)

    threads = [threading.Thread(target=submit) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(ids) == 8 and len(set(ids)) == 1
    local.ended(ids[0])
    assert len(local.scheduler.jobs(finished=True)) == 1
    names = subprocess.run(
        ["pgrep", "-f", f"_local.daemon {local.spool}$"], capture_output=True, text=True, check=False
    )
    assert names.stdout.split() == [str(local.daemon_pid())]


def test_the_daemon_leaves_when_its_spool_is_removed_though_a_directory_of_that_name_is_there(local: Lab) -> None:
    """Somebody who was about to lock the queue has made a file in the directory while it was being removed."""
    local.end_of("true")
    pid = local.daemon_pid()
    assert pid
    local.spool.rename(local.spool.with_name("removed"))
    local.spool.mkdir()
    shutil.rmtree(local.spool.with_name("removed"))
    (local.spool / "lock").touch()
    until(lambda: not Path(f"/proc/{pid}").exists())


def test_the_daemon_leaves_when_nothing_is_left_to_do(tmp_path: Path) -> None:
    with lab(tmp_path, RESIL_LOCAL_IDLE_S="0.5") as local:
        local.end_of("true")
        pid = local.daemon_pid()
        until(lambda: not start_ticks(pid), timeout_s=5)
        assert local.end_of("true").state is JobState.COMPLETED


@pytest.mark.parametrize(("throttle", "most"), [("%1", 1), ("%2", 2), ("", 4)])
def test_no_more_tasks_run_at_once_than_the_throttle_allows(local: Lab, throttle: str, most: int) -> None:
    jobs = local.ended(local.submit("sleep 0.2", array=f"1-4{throttle}"))
    times = [(job.start_time or 0.0, job.end_time or 0.0) for job in jobs]
    overlap = max(sum(start <= moment < end for start, end in times) for moment, _ in times)
    assert overlap <= most


def test_jobs_too_large_wait_for_resources_and_others_share_the_cpus(tmp_path: Path) -> None:
    with lab(tmp_path, RESIL_LOCAL_CPUS="2") as local:
        huge = local.submit("true", cpus_per_task="3")
        first = local.submit("sleep 0.5", ntasks="2")
        second = local.submit("true")
        assert local.scheduler.job(huge).reason == "Resources"
        started = [local.ended(job)[0].start_time or 0.0 for job in (first, second)]
        assert started[1] - started[0] > 0.4


@pytest.mark.parametrize(
    ("kind", "code", "state"),
    [
        ("afterok", 0, JobState.COMPLETED),
        ("afterok", 1, JobState.CANCELLED),
        ("afternotok", 1, JobState.COMPLETED),
        ("afternotok", 0, JobState.CANCELLED),
        ("afterany", 1, JobState.COMPLETED),
        ("after", 1, JobState.COMPLETED),
    ],
)
def test_dependencies_are_met_or_cannot_be(local: Lab, kind: str, code: int, state: JobState) -> None:
    first = local.submit(f"sleep 0.2; exit {code}")
    second = local.submit("true", dependency=f"{kind}:{first}", kill_on_invalid_dep="yes")
    assert local.ended(second)[0].state is state
    before, after = local.one(first), local.one(second)
    if kind != "after" and state is JobState.COMPLETED:
        assert (after.start_time or 0) >= (before.end_time or 0)


def test_aftercorr_goes_task_by_task(local: Lab) -> None:
    first = local.submit("[ $SLURM_ARRAY_TASK_ID = 1 ] && sleep 30; exit 0", array="1-2")
    second = local.submit("true", array="1-2", dependency=f"aftercorr:{first}")
    until(lambda: local.scheduler.job(JobId(second.array, 2)).state is JobState.COMPLETED)
    assert local.scheduler.job(JobId(second.array, 1)).state is JobState.PENDING


def test_singletons_of_one_name_follow_each_other(local: Lab) -> None:
    ids = [local.submit("sleep 0.2", job_name="same", dependency="singleton") for _ in range(3)]
    jobs = [local.ended(job_id)[0] for job_id in ids]
    assert all((b.start_time or 0) >= (a.end_time or 0) for a, b in itertools.pairwise(jobs))


@pytest.mark.parametrize("options", [{"dependency": "afterok:999"}, {"array": "1-2000"}, {"jobname": "x"}])
def test_a_refused_submission_leaves_nothing(local: Lab, options: dict[str, str]) -> None:
    with pytest.raises((SchedulerError, UsageError)):
        local.submit("true", **options)
    assert local.scheduler.jobs(finished=True) == ()
    assert not list(local.spool.glob("jobs/*")) and not list(local.spool.glob("incoming/*"))


def test_the_batch_signal_reaches_the_batch_shell_alone(local: Lab) -> None:
    body = "trap 'echo shell; exit 7' USR1; srun bash -c 'trap \"echo step\" USR1; sleep 30' & wait"
    job = local.end_of(body, time="0:03", signal="B:USR1@2")
    assert job.exit_code == ExitCode(7)
    assert (job.end_time or 0) - (job.start_time or 0) < 2
    assert local.output(job).startswith("shell\n") and "step" not in local.output(job).split()


def test_without_b_the_signal_reaches_the_tasks_of_srun_alone(local: Lab) -> None:
    body = "trap 'echo shell' USR1; srun bash -c 'trap \"echo step\" USR1; sleep 1.5 & wait; wait'; echo $?"
    assert local.run(body, time="0:03", signal="USR1@2") == "step\n0\n"


def test_without_b_a_program_straight_below_the_shell_gets_nothing_as_on_clusters(local: Lab) -> None:
    assert local.run("bash -c 'trap \"echo got\" USR1; sleep 1.3'; echo end", time="0:02", signal="USR1@1") == "end\n"


def test_at_the_limit_comes_sigterm_then_sigkill(local: Lab) -> None:
    body = "trap 'echo term' TERM; (trap '' TERM; while :; do sleep 0.1; done) & while :; do wait; done"
    job = local.end_of(body, time="0:01")
    assert (job.state, job.exit_code) == (JobState.TIMEOUT, ExitCode(0, 9))
    assert "term" in local.output(job) and "DUE TO TIME LIMIT ***" in local.output(job)
    assert local.processes(job.id) == []


def test_a_requeued_job_counts_its_restarts(local: Lab) -> None:
    body = (
        "echo run ${SLURM_RESTART_COUNT-first}\n"
        "if [ ${SLURM_RESTART_COUNT:-0} -lt 2 ]; then scontrol requeue $SLURM_JOB_ID; sleep 30; fi"
    )
    job = local.end_of(body, open_mode="append")
    assert job.restarts == 2
    assert [line for line in local.output(job).splitlines() if line.startswith("run")] == [
        "run first",
        "run 1",
        "run 2",
    ]


def test_a_requeued_jobs_output_starts_afresh_unless_it_is_appended(local: Lab) -> None:
    job_id = local.submit("echo run ${SLURM_RESTART_COUNT-first}")
    local.ended(job_id)
    local.scheduler.requeue(job_id)
    until(lambda: local.one(job_id).restarts == 1)
    assert local.output(local.ended(job_id)[0]) == "run 1\n"


def test_a_waiting_job_is_not_requeued(local: Lab) -> None:
    with pytest.raises(SchedulerError, match="pending execution"):
        local.scheduler.requeue(local.submit("true", hold=None))


def test_requeue_with_hold_waits_for_release(local: Lab) -> None:
    job_id = local.end_of("true").id
    local.scheduler.requeue(job_id, hold=True)
    job = local.scheduler.job(job_id)
    assert (job.state, job.reason) == (JobState.PENDING, "job requeued in held state")
    local.scheduler.release(job_id)
    assert local.ended(job_id)[0].restarts == 1


def test_output_patterns_and_separate_errors(local: Lab) -> None:
    array = local.submit("echo out; echo err >&2", array="3", output="%x-%A_%4a-%u.o", error="e.%j", job_name="a b")
    (job,) = local.ended(array)
    assert Path(job.stdout).name == f"a b-{array}_0003-{job.user}.o"
    assert ((local.work / f"e.{job.raw_id}").read_text(), local.output(job)) == ("err\n", "out\n")


@pytest.mark.parametrize("name", ["p %j x", "q %% x", "100%"])
def test_a_percent_sign_in_the_working_directory_is_no_pattern(local: Lab, name: str) -> None:
    directory = local.work / name
    directory.mkdir()
    job = local.ended(local.scheduler.submit(replace(local.submission("pwd -P"), directory=str(directory))).id)[0]
    assert local.output(job) == f"{directory.resolve()}\n"
    assert Path(job.stdout) == directory / f"slurm-{job.raw_id}.out"


def test_a_missing_output_directory_fails_the_job_as_in_slurm(local: Lab) -> None:
    job = local.end_of("true", output="no/such/directory/x")
    assert (job.state, job.reason, job.exit_code) == (JobState.FAILED, "JobLaunchFailure", ExitCode(0, 53))


@pytest.mark.parametrize(
    ("export", "said"),
    [
        (None, "a=1 b=2 c="),
        ("a,c='x,y'", "a=1 b= c=x,y"),
        ("NIL", "a= b= c="),
    ],
)
def test_export_decides_what_the_job_inherits(local: Lab, export: str | None, said: str) -> None:
    local.environ |= {"a": "1", "b": "2"}
    options = {} if export is None else {"export": export}
    assert local.run("echo a=$a b=$b c=$c", **options) == said + "\n"


def test_the_variables_a_training_reads(local: Lab) -> None:
    local.environ["SLURM_ARRAY_TASK_ID"] = "99"  # of a job around us: not ours
    (local.work / "elsewhere").mkdir()
    text = local.run("env", time="10", cpus_per_task="2", job_name="it", chdir="elsewhere")
    seen = dict(line.split("=", 1) for line in text.splitlines() if line.startswith(("SLURM", "RESIL")))
    assert seen["SLURM_JOB_NAME"] == "it" and seen["SLURM_CPUS_PER_TASK"] == "2"
    assert int(seen["SLURM_JOB_END_TIME"]) - int(seen["SLURM_JOB_START_TIME"]) == 600
    assert seen["SLURM_SUBMIT_DIR"] == str(local.work) and seen["RESIL_SCHEDULER"] == "local"
    assert "SLURM_ARRAY_TASK_ID" not in seen and "SLURM_RESTART_COUNT" not in seen


def test_a_job_does_not_start_before_its_begin_time(local: Lab) -> None:
    later = local.submit("true", begin="now+2")
    assert local.scheduler.job(later).reason == "BeginTime"
    job = local.ended(later)[0]
    assert 2 <= (job.start_time or 0) - (job.submit_time or 0) < 2.5


def test_cancel_ends_what_runs_and_what_waits(local: Lab) -> None:
    array = local.submit("sleep 30", array="1-3%1")
    until(lambda: local.scheduler.job(JobId(array.array, 1)).state is JobState.RUNNING)
    local.scheduler.cancel([JobId(array.array, 2)])
    local.scheduler.cancel([array], pending_only=True)
    assert [job.state.value for job in local.scheduler.history([array])] == ["RUNNING", "CANCELLED", "CANCELLED"]
    local.scheduler.cancel([array, JobId(999)])
    assert {job.state for job in local.ended(array)} == {JobState.CANCELLED}
    local.scheduler.cancel([array])


def test_a_bash_script_can_cancel_and_see_states_by_files_alone(local: Lab) -> None:
    array = local.submit("sleep 30", array="1-2%1")
    first, second = (local.spool / "jobs" / str(array.array + place) for place in (1, 2))
    until(lambda: (first / "state").read_text().strip() == "RUNNING")
    assert (second / "state").read_text() == "PENDING\n"
    assert (second / "comment").read_text().startswith("resil:run:")
    for directory in (second, first):
        (directory / "cancel").touch()
        began = time.monotonic()
        until(lambda directory=directory: (directory / "state").read_text() == "CANCELLED\n")  # type: ignore[misc]
        assert time.monotonic() - began < 15


@pytest.mark.parametrize("whole", [True, False], ids=["the array's file", "a file per task"])
def test_no_task_starts_once_its_cancel_file_is_there(local: Lab, whole: bool) -> None:
    files = '"$RESIL_LOCAL_SPOOL/jobs/$SLURM_ARRAY_JOB_ID/cancel"'
    if not whole:
        files = '$(for id in {3..12}; do echo "$RESIL_LOCAL_SPOOL/jobs/$((SLURM_ARRAY_JOB_ID + id))/cancel"; done)'
    body = f"echo $SLURM_ARRAY_TASK_ID >> started\n[ $SLURM_ARRAY_TASK_ID = 2 ] && touch {files}\nexit 1"
    jobs = local.ended(local.submit(body, array="1-12%1"))
    assert (local.work / "started").read_text().split() == ["1", "2"]
    assert [job.state for job in jobs] == [JobState.FAILED] * 2 + [JobState.CANCELLED] * 10


def test_a_moved_end_is_exact_and_a_dependency_can_be_cleared(local: Lab) -> None:
    first = local.submit("sleep 30")
    waiting = local.submit("true", dependency=f"afterany:{first}")
    until(lambda: local.one(first).state is JobState.RUNNING)
    now = time.time()
    local.scheduler.update(first, JobUpdate(end_time=now + 1))
    local.scheduler.update(waiting, JobUpdate(dependency=""))
    job = local.ended(first)[0]
    assert job.state is JobState.TIMEOUT and (job.end_time or 0) - now < 2
    assert local.ended(waiting)[0].state is JobState.COMPLETED


def test_signal_reaches_who_scancel_would_reach(local: Lab) -> None:
    body = (
        "trap 'echo shell' USR1\n"
        "bash -c 'trap \"echo below\" USR1; echo up; while :; do sleep 0.1; done' &\n"
        "srun bash -c 'trap \"echo step\" USR1; echo up; while :; do sleep 0.1; done' &\n"
        "while :; do wait; done"
    )
    job_id = local.submit(body)
    until(lambda: local.output(local.one(job_id)).count("up") == 2)
    until(lambda: list((local.spool / "jobs" / str(job_id) / "steps").glob("pids.*")))
    seen = []
    for batch, full in ((False, False), (True, False), (False, True)):
        before = local.output(local.one(job_id))
        local.scheduler.signal(job_id, "USR1", batch=batch, full=full)
        time.sleep(0.6)
        new = local.output(local.one(job_id)).removeprefix(before).split()
        seen.append(sorted({"shell", "below", "step"}.intersection(new)))
    assert seen == [["step"], ["shell"], ["below", "shell", "step"]]


def test_srun_runs_as_many_copies_as_asked_and_returns_the_highest_code(local: Lab) -> None:
    text = local.run(
        "srun -l --mpi=none -n3 bash -c 'echo $SLURM_PROCID/$SLURM_NTASKS; exit $SLURM_PROCID'; echo rc $?"
    )
    assert {"0/3", "1/3", "2/3"} <= set(text.split()) and text.endswith("rc 2\n")


def test_the_stand_ins_answer_what_scripts_ask(local: Lab) -> None:
    body = (
        "scontrol show hostnames; squeue -h -j $SLURM_JOB_ID -o '%A %T %j %k'; scontrol show job $SLURM_JOB_ID\n"
        "inner=$(sbatch --parsable --hold -J inner $0); squeue -h -t PD --me -o '%i %r'\n"
        "scancel $inner; squeue -h | wc -l"
    )
    job = local.end_of(body, time="5", job_name="asker")
    lines = local.output(job).splitlines()
    assert lines[1] == f"{job.raw_id} RUNNING asker {job.comment}"
    assert any("TimeLimit=00:05:00" in line for line in lines) and lines[-2:] == [f"{job.raw_id + 1} JobHeldUser", "1"]


def test_a_daemon_that_a_job_starts_outlives_it(local: Lab) -> None:
    job_id = local.submit("echo up; sleep 0.7; sbatch --parsable inner.sh; sleep 0.3")
    (local.work / "inner.sh").write_text("#!/bin/bash\nsleep 1; echo inner > done\n")
    local.says(job_id, "up")
    local.kill_daemon()
    assert local.ended(job_id)[0].state is JobState.COMPLETED
    until(lambda: (local.work / "done").exists())


def test_options_without_meaning_here_are_named_once(local: Lab) -> None:
    submission = local.submission("#SBATCH --gres=gpu:8 -p long\ntrue", "-A", "acct", partition="short")
    notes = local.scheduler.submit(submission).notes
    assert notes == ("ignored here: --gres, --partition, --account",)


def test_the_script_is_the_one_that_was_submitted(local: Lab) -> None:
    submission = local.submission("echo old", hold=None)
    job_id = local.scheduler.submit(submission).id
    Path(submission.script).write_text("#!/bin/bash\necho new\n")
    local.scheduler.release(job_id)
    assert local.output(local.ended(job_id)[0]) == "old\n"


def test_an_unreadable_spool_is_unknown_not_empty(local: Lab) -> None:
    job_id = local.submit("true", hold=None)
    local.scheduler.cancel([job_id])
    (local.spool / "active").rename(local.spool / "gone")
    (local.spool / "active").write_text("not a directory")
    with pytest.raises(SchedulerUnavailable):
        local.scheduler.jobs()
    assert local.scheduler.presence(job_id).liveness is Liveness.UNKNOWN
    (local.spool / "active").unlink()
    (local.spool / "gone").rename(local.spool / "active")
    assert local.scheduler.presence(job_id).liveness is Liveness.GONE


def test_a_spool_that_is_not_there_says_nothing_about_a_job(local: Lab) -> None:
    assert local.scheduler.jobs() == () and local.scheduler.find("t") == ()
    assert local.scheduler.presence(JobId(5)).liveness is Liveness.UNKNOWN


def test_a_damaged_record_is_set_aside_and_the_others_go_on(local: Lab) -> None:
    bad = local.submission("true", hold=None)
    bad_id = local.scheduler.submit(bad).id
    good = local.submit("true", hold=None)
    local.kill_daemon()
    path = local.spool / "jobs" / str(bad_id) / "submission.json"
    path.write_text('{"half')
    assert [job.id for job in local.scheduler.jobs()] == [good]
    assert path.with_name("submission.json.bad").exists()
    assert local.scheduler.presence(bad_id).liveness is Liveness.UNKNOWN
    with pytest.raises(SchedulerUnavailable, match="has been renamed"):
        local.scheduler.submit(bad)


def test_a_client_killed_while_submitting_leaves_no_half_a_job(local: Lab) -> None:
    first = local.submit("true")
    local.ended(first)
    submission = local.submission("true", array="1-400")
    code = (
        f"{IMPORTS}\n"
        "s = S(clock=C(), runner=R(), environ=dict(os.environ))\n"
        "threading.Timer(DELAY, os.kill, (os.getpid(), signal.SIGKILL)).start()\n"
        f"s.submit({submission!r})\n"
    )
    environ = {**local.environ, "PYTHONPATH": str(Path.cwd())}
    for delay in (0.001, 0.005, 0.01, 0.02, 0.04):
        subprocess.run([sys.executable, "-c", code.replace("DELAY", str(delay))], env=environ, check=False)
    job_id = local.scheduler.submit(submission).id
    assert {job.state for job in local.ended(job_id, 60)} == {JobState.COMPLETED}
    assert len({job.id.array for job in local.scheduler.jobs(finished=True)}) == 2
    assert not list(local.spool.glob("incoming/*"))


def test_a_test_names_when_a_job_would_start_and_the_history_of_unknown_jobs_is_empty(local: Lab) -> None:
    assert "start now" in local.scheduler.test(local.submission("true"))
    local.submit("true", hold=None)
    assert "JobHeldUser" in local.scheduler.test(local.submission("true", hold=None))
    assert local.scheduler.history([]) == () and local.scheduler.history([JobId(77)]) == ()
    assert local.scheduler.config().kill_wait_s == 1


def test_the_spool_is_private(local: Lab) -> None:
    local.submit("true", hold=None)
    assert local.spool.stat().st_mode & 0o777 == 0o700
    modes = {path.stat().st_mode & 0o077 for path in local.spool.rglob("*")}
    assert modes == {0}


def test_a_spool_with_live_jobs_of_another_machine_is_left_alone(local: Lab) -> None:
    job_id = local.submit("true", hold=None)
    (local.spool / "machine").write_text("another\n")
    assert local.scheduler.presence(job_id).liveness is Liveness.UNKNOWN
    with pytest.raises(SchedulerUnavailable, match="another host"):
        local.submit("true")


def test_what_ended_long_ago_is_forgotten_unless_somebody_waits_for_it(local: Lab) -> None:
    old = local.submission("true")
    old_id = local.scheduler.submit(old).id
    needed = local.end_of("false")
    local.ended(old_id)
    local.submit("true", dependency=f"afterok:{needed.id}")
    spool = Spool(local.spool)
    with spool.locked(5):
        spool.prune(time.time() + 6 * 86400, {needed.id.array})
        assert spool.entry(old_id.array) is not None
        spool.prune(time.time() + 8 * 86400, {needed.id.array})
    assert local.scheduler.find(old.token) == ()
    assert local.scheduler.presence(old_id).liveness is Liveness.GONE
    assert local.scheduler.job(needed.id).state is JobState.FAILED


def test_half_written_files_of_crashed_clients_do_not_pile_up(local: Lab) -> None:
    local.submit("true", hold=None)
    left = local.spool / ".next-id.123456.123456.tmp"
    left.touch()
    os.utime(left, (time.time() - 2 * STALE_S,) * 2)
    announced = local.spool / "incoming" / ".7.0123456789ab.tmp"
    announced.touch()
    local.submit("true", hold=None)
    assert not left.exists() and not announced.exists()


def test_a_record_that_cannot_be_written_is_told_as_a_spool_that_cannot_be_used(local: Lab) -> None:
    job_id = local.submit("true", hold=None)
    (local.spool / "jobs" / str(job_id) / "task.json").mkdir(mode=0o700)
    with pytest.raises(SchedulerUnavailable, match="spool cannot be used"), Spool(local.spool).locked(5):
        entry = Spool(local.spool).entry(job_id.array)
        assert entry is not None
        Spool(local.spool).save(entry, entry.fresh(job_id.array))


def test_a_full_disk_loses_no_exit_and_no_job(local: Lab) -> None:
    job_id = local.submit("echo up; sleep 0.5; exit 9")
    local.says(job_id, "up")
    directory = local.spool / "jobs" / str(job_id)
    (directory / "exit.json").mkdir()  # as good as a full disk: nothing can be put in its place
    time.sleep(1)
    assert local.scheduler.presence(job_id).liveness is Liveness.ALIVE
    (directory / "exit.json").rmdir()
    assert local.ended(job_id)[0].exit_code == ExitCode(9)


def test_a_client_that_hangs_with_the_lock_is_unknown_and_does_not_stop_looking(local: Lab) -> None:
    job_id = local.submit("true", hold=None)
    quick = LocalScheduler(clock=SystemClock(), runner=ProcessRunner(), environ=local.environ, deadline_s=0.2)
    with Spool(local.spool).locked(5):
        with pytest.raises(SchedulerUnavailable, match="locked"):
            quick.release(job_id)
        assert quick.presence(job_id).liveness is Liveness.ALIVE


def test_killing_the_daemon_again_and_again_runs_every_task_exactly_once(local: Lab) -> None:
    array = local.submit("echo $SLURM_ARRAY_TASK_ID >> log; sleep 0.03", array="0-39%4")
    for delay in (0.05, 0.1, 0.02, 0.3, 0.15, 0.01, 0.2):
        time.sleep(delay)
        if pid := local.daemon_pid():
            os.kill(pid, signal.SIGKILL)
        local.scheduler.jobs()
    assert {(job.state, job.restarts) for job in local.ended(array)} == {(JobState.COMPLETED, 0)}
    assert sorted(int(word) for word in (local.work / "log").read_text().split()) == list(range(40))
