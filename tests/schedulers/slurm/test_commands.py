"""Argument lists and environments: what is asked, and what cannot change the answer."""

from __future__ import annotations

import pytest

from resilience.errors import UsageError
from resilience.job import JobId, JobUpdate
from resilience.schedulers._slurm import commands, query
from resilience.schedulers._slurm.queue import QUEUE_COLUMNS
from resilience.submission import Submission

SUBMISSION = Submission(
    token="tok",
    run="gpt",
    script="/runs/gpt/scripts/tok.sbatch",
    script_args=("--resume", "a b"),
    options={"array": "1-10%1", "requeue": None, "job-name": "na|me", "N": "2"},
    extra_args=("--exclude=n1",),
)


def test_sbatch_gets_options_extra_arguments_the_script_and_its_arguments_in_this_order() -> None:
    assert commands.submit_command(SUBMISSION) == [
        *[
            "sbatch",
            "--parsable",
            "--comment=resil:gpt:tok",
            "--array=1-10%1",
            "--requeue",
            "--job-name=na|me",
            "-N",
            "2",
        ],
        *("--exclude=n1", "/runs/gpt/scripts/tok.sbatch", "--resume", "a b"),
    ]
    assert commands.submit_command(SUBMISSION, test=True)[1] == "--test-only"


@pytest.mark.parametrize("extra", [("--comment=mine too",), ("--comment", "mine too")])
def test_a_comment_of_ones_own_does_not_hide_the_token(extra: tuple[str, ...]) -> None:
    argv = commands.submit_command(Submission("tok", "gpt", "/s", options={"comment": "first"}, extra_args=extra))
    assert argv == ["sbatch", "--parsable", "--comment=resil:gpt:tok first mine too", "/s"]


def test_variables_that_change_answers_are_taken_out() -> None:
    environ = dict.fromkeys(
        ["SQUEUE_FORMAT", "SQUEUE_FORMAT2", "SQUEUE_SORT", "SQUEUE_STATES", "SQUEUE_USERS", "SINFO_FORMAT",
         "SACCT_FORMAT",
         "SLURM_TIME_FORMAT", "SLURM_BITSTR_LEN", "SCANCEL_INTERACTIVE", "SCONTROL_ALL", "SLURM_JOB_ID", "SLURM_NTASKS",
         "SLURM_MEM_PER_NODE", "SLURM_EXPORT_ENV", "SLURM_RESTART_COUNT", "SLURMD_NODENAME", "SLURM_DEBUG",
         "RESIL_ATTEMPT"],
        "x",
    )  # fmt: skip
    kept = {"SLURM_CONF": "/c", "SLURM_CLUSTERS": "a", "SLURM_JWT": "t", "SBATCH_ACCOUNT": "lab", "PATH": "/bin"}
    assert query.submit_environment(environ | kept, {"MINE": "1"}) == kept | {"MINE": "1"}
    client = query.client_environment(environ | kept | {"TZ": "Asia/Kolkata", "LC_ALL": "de_DE"})
    assert client == kept | {"SLURM_TIME_FORMAT": "%s", "SLURM_BITSTR_LEN": "0", "LC_ALL": "C", "TZ": "UTC0"}


def test_what_is_ours_does_not_leak_into_the_job() -> None:
    own = {"LANG": "en_US.UTF-8", "TZ": "Europe/Berlin"}
    assert query.submit_environment(own) == own


def test_the_queue_is_asked_whole_hidden_partitions_included_and_never_by_job_id() -> None:
    for users in (None, (), ("bob", "alice")):
        argv = query.queue_command(users, finished=True)
        assert "--all" in argv and "--states=all" in argv and not any(word.startswith("-j") for word in argv)
    assert "--me" in query.queue_command(None, finished=False)
    assert "--user=alice,bob" in query.queue_command(("bob", "alice"), finished=False)
    everybody = query.queue_command((), finished=False)
    assert "--me" not in everybody and not any(word.startswith(("--user", "--states")) for word in everybody)


def test_no_column_has_a_width_that_would_cut_it() -> None:
    fields = query.queue_command(None, finished=False)[-1].removeprefix("--Format=").removesuffix("\x1e").split(",")
    assert all(field.endswith(":\x1f") for field in fields) and len(fields) == len(QUEUE_COLUMNS)


def test_times_are_written_in_utc_for_a_client_that_reads_utc() -> None:
    change = JobUpdate(end_time=1795171236.7, begin_time=0.0, time_limit_s=131400, array_throttle=2)
    assert commands.update_command(JobId(4), change) == [
        "scontrol",
        "update",
        "JobId=4",
        "ArrayTaskThrottle=2",
        "EndTime=2026-11-20T10:40:36",
        "TimeLimit=1-12:30:00",
        "StartTime=1970-01-01T00:00:00",
    ]
    cleared = commands.update_command(JobId(4, 1), JobUpdate(exclude="", dependency=""))
    assert cleared[2:] == ["JobId=4_1", "ExcNodeList=", "Dependency="]


def test_a_command_about_nothing_is_never_formed() -> None:
    with pytest.raises(UsageError):
        commands.cancel_command([])
    with pytest.raises(UsageError):
        commands.update_command(JobId(1), JobUpdate())
    with pytest.raises(UsageError):
        commands.signal_command(JobId(1), "USR1; rm")


def test_signals_reach_whom_they_are_meant_for() -> None:
    assert commands.signal_command(JobId(4, 1), "SIGUSR1", batch=True) == ["scancel", "--signal=USR1", "--batch", "4_1"]
    assert commands.signal_command(JobId(4), "usr1", full=True, batch=True) == [
        "scancel",
        "--signal=USR1",
        "--full",
        "4",
    ]
    assert commands.signal_command(JobId(4), "10") == ["scancel", "--signal=10", "4"]


def test_history_asks_for_requeued_runs_and_for_ended_rows() -> None:
    argv = query.history_command([JobId(4, 1), JobId(3)])
    assert "--duplicates" in argv and "--parsable" in argv and argv[-1] == "--jobs=3,4_1"
    assert not any(word.startswith(("-S", "--start", "-s", "--state")) for word in argv)
