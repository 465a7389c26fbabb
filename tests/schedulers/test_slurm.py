"""The client's logic, with recorded answers: what is asked, and what an answer is worth."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from functools import partial

import pytest
from hypothesis import given
from hypothesis import strategies as st

from resilience.errors import NoSuchJob, NotSupported, ProbeError, SchedulerError, SchedulerUnavailable
from resilience.job import ExitCode, JobId, JobState, JobUpdate, Liveness
from resilience.plugins import Family
from resilience.schedulers.slurm import SCHEDULER
from resilience.system.process import DeadlineExceeded, OutputTooLarge, ProgramMissing
from tests.lab.fakes import FakeClock
from tests.schedulers.answers import Answer, FakeRunner, Say, in_seconds, queue, recorded, row

DEAD = Answer("", "slurm_load_jobs error: Unable to contact slurm controller (connect failure)\n", 1, takes_s=9)
HUNG = Answer("", "slurm_load_jobs error: Socket timed out on send/recv operation\n", 1, takes_s=10)
KILLED = Answer(takes_s=60, error=DeadlineExceeded("squeue did not end within 60 s", transient=True))
NO_ACCOUNTING = Answer("", "Slurm accounting storage is disabled\n", 1)
UP = Answer("Slurmctld(primary) at vm is UP\n")
DOWN = Answer("Slurmctld(primary) at vm is DOWN\n", "", 1)
OLD_DOWN = Answer("Slurmctld(primary) at vm is DOWN\n", "", 0)
CONFIG = Answer("Configuration data as of 1795168500\nBOOT_TIME = 1795100000\nSLURM_VERSION = 22.05.8\n")
HEALTHY: dict[str, Say | list[Say]] = {
    "scontrol ping": UP,
    "scontrol show config": CONFIG,
    "scontrol --version": Answer("slurm-wlm 22.05.8\n"),
    "sacct": NO_ACCOUNTING,
}
JOB = JobId(12)
OTHER = row(JobArrayID="7")
ELSE = queue(OTHER)


def client(answers: dict[str, Say | list[Say]], deadline_s: float = 60.0) -> tuple[SCHEDULER, FakeRunner]:
    runner = FakeRunner(HEALTHY | answers)
    return SCHEDULER(clock=runner.clock, runner=runner, environ={}, deadline_s=deadline_s), runner


def liveness(answers: dict[str, Say | list[Say]], job: JobId = JOB) -> Liveness:
    return client(answers)[0].presence(job).liveness


def sacct_row(job: str = "12", state: str = "FAILED", code: str = "2:0", end: str = "1795168520", raw: str = "") -> str:
    columns = [job, raw or job.partition("_")[0], state, code, "1795168400", "1795168410", end, "60", "1", "n1"]
    return "".join(f"{c}\x1f" for c in [*columns, "alice", "main", "lab", "normal", "None", 'na|me "q"']) + "\n"


def test_the_plugin_is_found_by_the_name_of_its_file() -> None:
    assert Family("schedulers", "SCHEDULER").load("slurm") is SCHEDULER
    assert client({})[0].name == "slurm"


# ---- jobs ---------------------------------------------------------------------------------------------------------


def test_my_jobs_are_one_query_without_the_ended_ones() -> None:
    scheduler, runner = client({"squeue": queue(OTHER, row(JobArrayID="12", State="TIMEOUT"))})
    assert [job.id for job in scheduler.jobs()] == [JobId(7)]
    assert [job.id for job in scheduler.jobs(finished=True)] == [JobId(7), JobId(12)]
    assert len(runner.calls) == 2


def test_names_are_matched_exactly_commas_and_all() -> None:
    scheduler, _ = client({"squeue": queue(row(Name="a,b"), row(JobArrayID="13", Name="a"))})
    assert [job.id for job in scheduler.jobs(names=["a,b"])] == [JobId(12)]


def test_a_user_that_does_not_exist_is_an_error_although_squeue_ends_with_0() -> None:
    scheduler, _ = client({"squeue": Answer("", "squeue: error: Invalid user: nosuch\n", 0)})
    with pytest.raises(SchedulerError, match="no such user") as caught:
        scheduler.jobs(users=["nosuch"])
    assert not isinstance(caught.value, SchedulerUnavailable)


def test_noise_of_others_on_standard_error_does_not_spoil_whole_rows() -> None:
    scheduler, _ = client({"squeue": Answer(f"{OTHER}\n", "ld.so: object 'x' cannot be preloaded: ignored.\n")})
    assert [job.id for job in scheduler.jobs()] == [JobId(7)]


@pytest.mark.parametrize(
    "answer", [DEAD, HUNG, KILLED, Answer("garbage\n"), Answer("", "", 1), Answer(OTHER[:-5] + "\n")]
)
def test_a_queue_that_cannot_be_read_is_unavailable_never_empty(answer: Answer) -> None:
    with pytest.raises(SchedulerUnavailable) as caught:
        client({"squeue": answer})[0].jobs()
    assert caught.value.transient and caught.value.hint


# ---- presence -----------------------------------------------------------------------------------------------------


def test_a_row_proves_alive() -> None:
    presence = client({"squeue": queue(OTHER, row(JobArrayID="12"))})[0].presence(JobId(12))
    assert presence.liveness is Liveness.ALIVE and presence.job is not None and "RUNNING" in presence.reason


WAITING_TASKS = queue(row(JobArrayID="12_[4-6%1]", JobID="12", ArrayTaskID="4-6%1", State="PENDING"))
CUT_TASKS = queue(row(JobArrayID="12_[4-6...]", JobID="12", ArrayTaskID="4-6...", State="PENDING"))
HIDES = Answer(CONFIG.stdout + "PrivateData = jobs,usage\n")
RUNS = Answer(sacct_row(state="RUNNING", end="Unknown"))
REQUEUED = Answer(sacct_row(state="NODE_FAIL") + sacct_row(state="PENDING", end="Unknown"))


@pytest.mark.parametrize(
    ("expected", "job", "answers"),
    [
        *(
            (Liveness.ALIVE, JOB, {"squeue": queue(row(JobArrayID="12", State=state))})
            for state in ("COMPLETING", "PENDING", "SUSPENDED", "CONFIGURING", "REQUEUED", "SOMETHING_NEW")
        ),
        pytest.param(Liveness.ALIVE, JobId(12), {"squeue": WAITING_TASKS}, id="waiting array"),
        pytest.param(Liveness.ALIVE, JobId(12, 5), {"squeue": WAITING_TASKS}, id="waiting task"),
        pytest.param(Liveness.GONE, JobId(12, 9), {"squeue": WAITING_TASKS}, id="no task of the array"),
        pytest.param(Liveness.UNKNOWN, JobId(12, 9), {"squeue": CUT_TASKS}, id="the tasks were cut"),
        pytest.param(Liveness.ALIVE, JOB, {"squeue": [ELSE, ELSE, queue(row(JobArrayID="12"))]}, id="in the recheck"),
        # After a controller lost its last seconds, such a job's processes live on as orphans.
        pytest.param(Liveness.UNKNOWN, JOB, {"squeue": ELSE, "sacct": RUNS}, id="running in accounting"),
        pytest.param(Liveness.UNKNOWN, JOB, {"squeue": ELSE, "sacct": REQUEUED}, id="requeued in accounting"),
        pytest.param(Liveness.UNKNOWN, JOB, {"squeue": ELSE, "scontrol show config": HIDES}, id="others' are hidden"),
        pytest.param(
            Liveness.GONE,
            JOB,
            {"squeue": ELSE, "scontrol show config": HIDES, "sacct": Answer(sacct_row())},
            id="hidden, and ended in accounting",
        ),
    ],
)
def test_liveness_of_a_job(expected: Liveness, job: JobId, answers: dict[str, Say | list[Say]]) -> None:
    assert liveness(answers, job) is expected


def test_a_final_row_proves_gone() -> None:
    presence = client({"squeue": queue(row(JobArrayID="12", State="NODE_FAIL"))})[0].presence(JobId(12))
    assert presence.liveness is Liveness.GONE and "NODE_FAIL" in presence.reason


def test_a_colleagues_job_is_seen_in_the_second_query() -> None:
    scheduler, runner = client({"squeue": [ELSE, queue(row(JobArrayID="12", UserName="bob"))]})
    assert scheduler.presence(JobId(12)).liveness is Liveness.ALIVE
    assert "--me" in runner.calls[0] and "--me" not in runner.calls[1]


def test_no_row_is_gone_only_after_a_ping_and_a_second_look_some_time_later() -> None:
    scheduler, runner = client({"squeue": ELSE})
    began = runner.clock.time
    presence = scheduler.presence(JobId(12))
    assert presence.liveness is Liveness.GONE and "two queries" in presence.reason
    assert [call[:2] for call in runner.calls[2:]] == [
        ("sacct", "--noheader"), ("scontrol", "show"), ("scontrol", "ping"), ("squeue", "--all"),
    ]  # fmt: skip
    assert runner.clock.time - began >= 2


def test_an_empty_queue_may_be_a_fact_but_only_confirmed() -> None:
    assert liveness({"squeue": Answer("")}) is Liveness.GONE
    for ping in (DOWN, OLD_DOWN, Answer(""), KILLED):
        assert liveness({"squeue": Answer(""), "scontrol ping": ping}) is Liveness.UNKNOWN


@pytest.mark.parametrize(
    "answer",
    [
        DEAD,
        HUNG,
        KILLED,
        Answer("", "slurm_load_jobs error: RPC limit exceeded\n", 1),
        Answer("", "squeue: error: RPC limit exceeded, will retry\n", 0),
        Answer("Welcome\n"),
        Answer(f"Welcome\n{OTHER}\n"),
        Answer(f"{OTHER}\nlast login: today\n"),
        Answer("JOBID PARTITION NAME\n"),
        Answer(OTHER.replace("\x1f", "|") + "\n"),
        Answer(OTHER[:-10]),
        Answer(f"{OTHER}\n", "", 1),
        Answer('{"jobs": [], "errors": []}\n'),
        Answer("\n"),
        Answer("\x00\n"),
        Answer("", "", 139),
        Answer("", "squeue: error: Invalid job format specification: Name\n", 0),
        Answer(error=ProbeError("no more processes")),
        Answer(error=OutputTooLarge("too much")),
        Answer(error=ProgramMissing("no squeue")),
    ],
)
@pytest.mark.parametrize("when", [0, 1, 2])
def test_anything_else_is_unknown_whenever_it_happens(answer: Answer, when: int) -> None:
    presence = client({"squeue": [*([ELSE] * when), answer]})[0].presence(JobId(12))
    assert presence.liveness is Liveness.UNKNOWN and presence.reason


def test_presence_does_not_raise_even_when_the_runner_is_broken() -> None:
    class Broken:
        def run(self, *_: object, **__: object) -> object:
            raise RuntimeError("broken")

        stream = run

    scheduler = SCHEDULER(clock=FakeClock(), runner=Broken(), environ={})  # type: ignore[arg-type]
    assert scheduler.presence(JobId(12)).liveness is Liveness.UNKNOWN


def test_accounting_confirms_an_end_at_once() -> None:
    scheduler, runner = client({"squeue": ELSE, "sacct": Answer(sacct_row())})
    presence = scheduler.presence(JobId(12))
    assert presence.liveness is Liveness.GONE and "sacct" in presence.reason
    assert len(runner.asked("squeue")) == 2


def test_a_node_failure_in_accounting_may_be_followed_by_another_run() -> None:
    """sacct shows NODE_FAIL as the last record while the requeued job waits."""
    failed = Answer(sacct_row(state="NODE_FAIL", code="0:0"))
    scheduler, runner = client({"squeue": ELSE, "sacct": failed})
    assert scheduler.presence(JOB).liveness is Liveness.GONE
    assert len(runner.asked("squeue")) == 3  # not on accounting's word alone
    assert liveness({"squeue": ELSE, "sacct": failed, "scontrol show config": HIDES}) is Liveness.UNKNOWN


def test_a_controller_that_just_started_is_given_time_to_hear_from_the_nodes() -> None:
    young = Answer("Configuration data as of 1795168500\nBOOT_TIME = 1795168498\nSLURM_VERSION = 22.05.8\n")
    scheduler, runner = client({"squeue": ELSE, "scontrol show config": young})
    began = runner.clock.time
    assert scheduler.presence(JobId(12)).liveness is Liveness.GONE
    assert runner.clock.time - began >= 8
    hasty, _ = client({"squeue": ELSE, "scontrol show config": young}, deadline_s=4)
    assert hasty.presence(JobId(12)).liveness is Liveness.UNKNOWN


@given(st.text(max_size=200), st.integers(-15, 255), st.sampled_from(["", "oops\n", "squeue: error: x\n"]))
def test_no_garbage_ever_reads_as_gone_or_alive(stdout: str, returncode: int, stderr: str) -> None:
    answer = Answer(stdout, stderr, returncode)
    if stdout in {"", "\n"} and returncode == 0:
        return
    assert liveness({"squeue": answer}) is Liveness.UNKNOWN


@given(st.integers(1, 10**6))
def test_a_queue_cut_in_the_middle_never_reads_as_gone(cut: int) -> None:
    text = queue(*(row(JobArrayID=str(n)) for n in range(20, 25)), row(JobArrayID="12")).stdout
    part = text[: 1 + cut % (len(text) - 3)]
    if not part.endswith(("\x1e", "\n")):
        assert liveness({"squeue": Answer(part)}) is Liveness.UNKNOWN


def test_every_method_ends_within_its_deadline() -> None:
    slow = Answer(takes_s=1000, error=DeadlineExceeded("x did not end", transient=True))
    for deadline_s in (5.0, 60.0):
        scheduler, runner = client({"squeue": slow, "scontrol": slow, "sacct": slow, "sinfo": slow}, deadline_s)
        calls: tuple[Callable[[], object], ...] = (
            partial(scheduler.presence, JOB),
            scheduler.jobs,
            partial(scheduler.history, [JOB]),
            scheduler.nodes,
            partial(scheduler.hold, JOB),
        )
        for call in calls:
            began = runner.clock.time
            with contextlib.suppress(SchedulerUnavailable):
                call()
            assert runner.clock.time - began <= deadline_s + 0.1


NO_CLIENT = Answer(error=ProgramMissing("cannot run squeue: No such file or directory"))
NO_DATABASE = Answer("", "sacct: error: Problem talking to the database: Connection refused\n", 1)
NO_REQUEUE = Answer("", "Requested operation is presently disabled for job 2\n", 1)
BAD_TIME = Answer("", "Invalid time specification (pos=0): 1795180000\n", 0)  # scontrol ends with 0 all the same
DENIED = Answer("", "Access/permission denied for job 65\n", 1)
GARBLED = Answer("", "Unexpected message received for job 15\n", 1)


@pytest.mark.parametrize(
    ("command", "answer", "call", "kind", "words"),
    [
        ("squeue", NO_CLIENT, lambda s: s.jobs(), SchedulerUnavailable, "squeue is not installed"),
        ("squeue", NO_CLIENT, lambda s: s.jobs(), SchedulerUnavailable, "--scheduler local"),
        ("sacct", NO_ACCOUNTING, lambda s: s.history([JOB]), NotSupported, "accounting is off on this cluster"),
        ("sacct", NO_DATABASE, lambda s: s.history([JOB]), SchedulerUnavailable, ""),
        ("scontrol requeue", NO_REQUEUE, lambda s: s.requeue(JobId(2, 1)), SchedulerError, "--no-requeue"),
        ("scontrol update", BAD_TIME, lambda s: s.update(JOB, JobUpdate(end_time=1.0)), SchedulerError, ""),
        ("scontrol update", DENIED, lambda s: s.update(JOB, JobUpdate(time_limit_s=72)), SchedulerError, "lengthen"),
        ("scontrol update", GARBLED, lambda s: s.update(JOB, JobUpdate(exclude="n")), SchedulerUnavailable, ""),
    ],
)
def test_a_failure_is_raised_with_its_cause_and_a_hint(
    command: str, answer: Answer, call: Callable[[SCHEDULER], object], kind: type[SchedulerError], words: str
) -> None:
    with pytest.raises(kind) as caught:
        call(client({command: answer})[0])
    assert words in f"{caught.value.message} {caught.value.hint}"


# ---- one job ------------------------------------------------------------------------------------------------------


def test_a_job_in_detail_is_read_from_text() -> None:
    text = in_seconds(recorded("22.05", "scontrol_jobs.txt"))
    scheduler, runner = client({"scontrol --oneliner show": Answer(text)})
    job = scheduler.job(JobId(5))
    assert job.exit_code == ExitCode(255) and job.state is JobState.FAILED
    assert not runner.asked("scontrol", "--json")
    assert scheduler.job(JobId(16)).is_array_record  # of an array, the waiting tasks' record
    assert scheduler.job(JobId(16, 3)).state is JobState.RUNNING
    assert scheduler.job(JobId(16, 7)).is_array_record
    assert scheduler.job(JobId(30)).id == JobId(16, 3)  # a raw id


@pytest.mark.parametrize("release", ["24.11", "26.05"])
def test_a_newer_release_is_asked_for_json(release: str) -> None:
    version: dict[str, Say | list[Say]] = {"scontrol --version": Answer(f"slurm-wlm {release}.5\n")}
    document = Answer(recorded(release, "scontrol_jobs.json"))
    scheduler, runner = client(version | {"scontrol --json show": document})
    assert scheduler.job(JobId(5)).exit_code is not None
    assert not runner.asked("scontrol", "--oneliner")


def test_an_empty_json_answer_is_the_down_controllers_and_not_gone() -> None:
    """24.11 and 26.05 answer rc 0 with empty jobs and empty errors when the controller is down."""
    answers: dict[str, Say | list[Say]] = {
        "scontrol --version": Answer("slurm-wlm 24.11.5\n"),
        "scontrol --json show": Answer('{"jobs": [], "errors": [], "warnings": []}'),
        "scontrol --oneliner show": DEAD,
    }
    with pytest.raises(SchedulerUnavailable) as caught:
        client(answers)[0].job(JobId(5))
    assert not isinstance(caught.value, NoSuchJob)


@pytest.mark.parametrize(
    "answer",
    [Answer("", "slurm_load_jobs error: Invalid job id specified\n", 1), Answer("Job 3_9 not found\n", "", 1)],
)
def test_an_unknown_job_is_no_such_job(answer: Answer) -> None:
    with pytest.raises(NoSuchJob):
        client({"scontrol --oneliner show": answer})[0].job(JobId(3, 9))


# ---- history ------------------------------------------------------------------------------------------------------


def test_exit_codes_that_sacct_lost_are_taken_from_the_controller_while_it_remembers() -> None:
    answers: dict[str, Say | list[Say]] = {
        "sacct": Answer(sacct_row(code="127:0") + sacct_row("13", code="0:0") + sacct_row("14", code="2:0")),
        "squeue": queue(row(JobArrayID="12", State="FAILED", exit_code="65280")),
    }
    jobs = {job.id.array: job for job in client(answers)[0].history([JobId(12), JobId(13), JobId(14)])}
    assert jobs[12].exit_code == ExitCode(255)
    assert jobs[13].exit_code is None  # FAILED with 0:0 cannot be
    assert jobs[14].exit_code == ExitCode(2)
    scheduler, runner = client({})
    assert scheduler.history([]) == () and not runner.calls


def test_a_release_that_tells_the_truth_is_not_doubted() -> None:
    answers: dict[str, Say | list[Say]] = {
        "scontrol --version": Answer("slurm-wlm 26.05.5\n"), "sacct": Answer(sacct_row(code="255:0"))
    }  # fmt: skip
    scheduler, runner = client(answers)
    assert scheduler.history([JobId(12)])[0].exit_code == ExitCode(255)
    assert not runner.asked("squeue")


# ---- controlling --------------------------------------------------------------------------------------------------


def test_cancelling_what_has_ended_is_no_error() -> None:
    unknown = Answer("", "scancel: error: Kill job error on job id 9: Invalid job id specified\n", 1)
    scheduler, runner = client({"scancel": unknown})
    scheduler.cancel([JobId(9), JobId(4, 1)], pending_only=True)
    assert runner.calls == [("scancel", "--state=PENDING", "4_1", "9")]
    scheduler.cancel([])
    assert len(runner.calls) == 1


@pytest.mark.parametrize(
    ("stderr", "returncode", "kind"),
    [
        ("scancel: error: Kill job error on job id 1: Access/permission denied\n", 210, SchedulerError),
        ("scancel: error: Kill job error on job id 1: Socket timed out on send/recv operation\n", 140,
         SchedulerUnavailable),
        ("scancel: error: Kill job error on job id 1: Unable to contact slurm controller (connect failure)\n", 8,
         SchedulerUnavailable),
        ("", 1, SchedulerUnavailable),
    ],
)  # fmt: skip
def test_a_cancel_that_failed_is_told(stderr: str, returncode: int, kind: type[Exception]) -> None:
    with pytest.raises(kind) as caught:
        client({"scancel": Answer("", stderr, returncode)})[0].cancel([JobId(1)])
    assert type(caught.value) is kind


SHOWN = in_seconds(recorded("22.05", "scontrol_jobs.txt"))


def test_a_whole_array_is_not_requeued() -> None:
    scheduler, runner = client({"scontrol --oneliner show": Answer(SHOWN)})
    with pytest.raises(SchedulerError, match="including finished ones") as caught:
        scheduler.requeue(JobId(16))
    assert "16_1" in caught.value.hint and not runner.asked("scontrol", "requeue")


def test_the_raw_id_of_a_task_is_resolved_and_a_plain_job_is_itself() -> None:
    only = next(line for line in SHOWN.splitlines() if line.startswith("JobId=30 "))
    scheduler, runner = client({"scontrol --oneliner show": Answer(only + "\n"), "scontrol requeue": Answer()})
    scheduler.requeue(JobId(30))
    assert runner.calls[-1] == ("scontrol", "requeue", "16_3")
    plain = SHOWN.splitlines()[0]
    scheduler, runner = client({"scontrol --oneliner show": Answer(plain + "\n"), "scontrol requeuehold": Answer()})
    scheduler.requeue(JobId(1), hold=True)
    assert runner.calls[-1] == ("scontrol", "requeuehold", "1")


WAITING = next(line for line in SHOWN.splitlines() if "ArrayTaskId=5,7,9%2" in line) + "\n"


def test_a_throttle_that_finished_tasks_complain_about_is_verified() -> None:
    said = Answer("", "16_1: Job has already finished\n", 1)
    answers: dict[str, Say | list[Say]] = {"scontrol update": said, "scontrol --oneliner show": Answer(WAITING)}
    client(answers)[0].update(JobId(16, 1), JobUpdate(array_throttle=2))  # it says ArrayTaskThrottle=2
    with pytest.raises(SchedulerError):
        client(answers)[0].update(JobId(16), JobUpdate(array_throttle=3))


def test_nodes_and_configuration_of_a_recorded_cluster() -> None:
    answers: dict[str, Say | list[Say]] = {
        "sinfo": Answer(recorded("22.05", "sinfo_client.txt")),
        "scontrol show config": Answer(recorded("22.05", "scontrol_config.txt")),
        "scontrol --all --oneliner": Answer(recorded("22.05", "scontrol_partitions.txt")),
    }
    scheduler, _ = client(answers)
    assert [node.name for node in scheduler.nodes()] == ["n1", "n2", "n3", "n4"]
    assert scheduler.config().version == "22.05.8"
    with pytest.raises(SchedulerUnavailable):
        client({"sinfo": Answer("", "slurm_load_partitions: Unable to contact slurm controller\n", 1)})[0].nodes()
