"""What every scheduler promises (resilience/system/ports.py, Scheduler): the same claims against each of them.

`local` runs real processes in a spool of its own; `slurm` asks a real cluster (tests/slurm), and is skipped with a
plain reason where none can be booted.
"""

from __future__ import annotations

import itertools
import os
import secrets
import shutil
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TypeVar

import pytest

from resilience.errors import NoSuchJob, NotSupported, SchedulerError, UsageError
from resilience.job import ExitCode, Job, JobId, JobState, JobUpdate, Liveness
from resilience.schedulers import Scheduler
from resilience.submission import Submission
from resilience.system.ports import SystemClock
from tests.lab.slurm.as_user import AsUser
from tests.lab.slurm.cluster import Cluster
from tests.lab.slurm.processes import PATIENCE_S
from tests.lab.waiting import until
from tests.schedulers.spooled import lab
from tests.slurm.conftest import cluster  # noqa: F401 - a fixture

T = TypeVar("T")
ODD_NAME = ('räum | auf "heute" ' + "ü" * 200)[:200]


@dataclass(frozen=True)
class Place:
    """A scheduler under test.

    Attributes:
        directory: where its jobs may read and write.
        patience_s: how long it may take to do what it promised: SLURM looks at many things every 30 seconds.
    """

    scheduler: Scheduler
    directory: Path
    patience_s: float

    def submission(self, body: str, **options: str | None) -> Submission:
        token = secrets.token_hex(6)
        script = self.directory / f"{token}.sh"
        script.write_text(f"#!/bin/bash\n{body}\n")
        script.chmod(0o755)
        named = {"output": "%A_%a.out", "time": "5"} | {key.replace("_", "-"): text for key, text in options.items()}
        return Submission(token, "contract", str(script), options=named, directory=str(self.directory))

    def submit(self, body: str, **options: str | None) -> JobId:
        return self.scheduler.submit(self.submission(body, **options)).id

    def until(self, look: Callable[[], T], what: str = "what was promised") -> T:
        return until(look, what, self.patience_s, every_s=0.1)

    def records(self, job_id: JobId) -> list[Job]:
        """All records of a job or an array, in the order of the tasks."""
        found = [job for job in self.scheduler.jobs(finished=True) if job_id in (job.id, job.id.whole)]
        return sorted(found, key=lambda job: job.id.task or 0)

    def ended(self, job_id: JobId) -> list[Job]:
        def look() -> list[Job]:
            jobs = self.records(job_id)
            return jobs if jobs and all(job.state.is_final for job in jobs) else []

        return self.until(look, f"the end of {job_id}")

    def state(self, job_id: JobId) -> JobState:
        return self.scheduler.job(job_id).state

    def running(self, job_id: JobId) -> None:
        self.until(lambda: self.state(job_id) is JobState.RUNNING, f"{job_id} to run")

    def text(self, name: str) -> str:
        path = self.directory / name
        return path.read_text() if path.exists() else ""


@pytest.fixture(params=["local", pytest.param("slurm", marks=[pytest.mark.slurm, pytest.mark.xdist_group("slurm")])])
def place(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Place]:
    if request.param == "local":
        with lab(tmp_path) as opened:
            yield Place(opened.scheduler, opened.work, 120)
        return
    if reasons := Cluster.requirements():
        pytest.skip(f"no real SLURM: {'; '.join(reasons)}")
    from resilience.schedulers.slurm import SCHEDULER

    booted: Cluster = request.getfixturevalue("cluster")
    booted.reset()
    user = booted.users[0]
    directory = booted.home(user) / "contract"
    directory.mkdir()
    if os.geteuid() == 0:
        shutil.chown(directory, user)
    scheduler = SCHEDULER(
        clock=SystemClock(), runner=AsUser(booted, user), environ=booted.environment(user), deadline_s=60.0
    )
    yield Place(scheduler, directory, PATIENCE_S)
    booted.reset()


def test_the_same_intent_is_one_job_however_often_it_is_submitted(place: Place) -> None:
    submission = place.submission("sleep 60")
    first = place.scheduler.submit(submission)
    again = place.scheduler.submit(submission)
    assert (first.recovered, again.recovered, again.id) == (False, True, first.id)
    assert {job.id.whole for job in place.scheduler.find(submission.token)} == {first.id}
    assert len(place.scheduler.jobs()) == 1


def test_a_job_is_found_by_its_token_after_it_ended(place: Place) -> None:
    submission = place.submission("true")
    job_id = place.scheduler.submit(submission).id
    place.ended(job_id)
    assert [job.id for job in place.scheduler.find(submission.token)] == [job_id]
    assert place.scheduler.find("0" * 12) == ()


def test_the_queue_shows_what_lives_and_with_finished_what_ended(place: Place) -> None:
    done, alive = place.submit("true"), place.submit("sleep 60", job_name="alive")
    place.ended(done)
    assert [job.id for job in place.scheduler.jobs()] == [alive]
    assert {done, alive} <= {job.id for job in place.scheduler.jobs(finished=True)}
    assert place.scheduler.jobs(names=["other"]) == ()
    assert [job.id for job in place.scheduler.jobs(names=["alive"])] == [alive]


def test_a_job_is_alive_until_it_is_gone(place: Place) -> None:
    job_id = place.submit("sleep 60")
    place.running(job_id)
    assert place.scheduler.presence(job_id).liveness is Liveness.ALIVE
    place.scheduler.cancel([job_id])
    place.until(lambda: place.scheduler.presence(job_id).liveness is Liveness.GONE)
    assert place.scheduler.presence(JobId(job_id.array + 500)).liveness is Liveness.GONE


def test_an_unknown_job_is_no_such_job(place: Place) -> None:
    job_id = place.submit("true")
    with pytest.raises(NoSuchJob):
        place.scheduler.job(JobId(job_id.array + 500))


@pytest.mark.parametrize(
    ("body", "state", "code"),
    [
        ("exit 0", JobState.COMPLETED, ExitCode(0)),
        ("exit 3", JobState.FAILED, ExitCode(3)),
        ("exit 255", JobState.FAILED, ExitCode(255)),
        ("kill -9 $$", JobState.FAILED, ExitCode(0, 9)),
        ("kill -TERM $$", JobState.FAILED, ExitCode(0, 15)),
    ],
)
def test_exit_codes_are_true(place: Place, body: str, state: JobState, code: ExitCode) -> None:
    (job,) = place.ended(place.submit(body))
    assert (job.state, job.exit_code) == (state, code)


def test_a_name_with_anything_in_it_and_the_comment_are_kept(place: Place) -> None:
    submission = place.submission("sleep 60", job_name=ODD_NAME)
    job_id = place.scheduler.submit(submission).id
    (job,) = place.scheduler.jobs(names=[ODD_NAME])
    assert (job.id, job.name, job.comment) == (job_id, ODD_NAME, submission.comment)


def test_a_few_jobs_of_many_are_asked_for_by_id_name_and_comment(place: Place) -> None:
    one = place.submit("sleep 60", job_name=ODD_NAME)
    array = place.submit("sleep 60", job_name="array", array="1-3%1")
    asked: dict[str, tuple[int, str]] = {}

    def keep(number: int, name: str, comment: str) -> bool:
        asked[name] = number, comment
        return name == "array"

    kept = place.scheduler.jobs(keep=keep)

    assert {job.id.whole for job in kept} == {array}
    assert {name: number for name, (number, _) in asked.items()} == {ODD_NAME: one.array, "array": array.array}
    assert asked["array"][1] == kept[0].comment != ""


def test_a_waiting_array_is_one_record(place: Place) -> None:
    array = place.submit("sleep 60", array="1-10%1")
    place.until(lambda: len(place.scheduler.jobs()) == 2)
    waiting = next(job for job in place.scheduler.jobs() if job.is_array_record)
    running = next(job for job in place.scheduler.jobs() if not job.is_array_record)
    assert (waiting.id, waiting.tasks, waiting.task_count) == (array, "2-10%1", 9)
    assert (waiting.state, running.id) == (JobState.PENDING, JobId(array.array, 1))
    assert waiting.raw_id == array.array


def test_with_a_throttle_of_one_the_tasks_follow_each_other(place: Place) -> None:
    array = place.submit("echo b$SLURM_ARRAY_TASK_ID >> log; sleep 1; echo e$SLURM_ARRAY_TASK_ID >> log", array="1-3%1")
    jobs = place.ended(array)
    assert place.text("log").split() == ["b1", "e1", "b2", "e2", "b3", "e3"]
    assert [job.id.task for job in jobs] == [1, 2, 3]


def test_a_raised_throttle_lets_more_tasks_run(place: Place) -> None:
    array = place.submit("sleep 60", array="1-5%1")
    place.until(lambda: len(place.scheduler.jobs()) == 2)
    place.scheduler.update(array, JobUpdate(array_throttle=3))
    place.until(lambda: sum(job.state is JobState.RUNNING for job in place.records(array)) == 3)


def test_cancelling_what_waits_leaves_what_runs(place: Place) -> None:
    array = place.submit("sleep 60", array="1-3%1")
    first = JobId(array.array, 1)
    place.running(first)
    place.scheduler.cancel([array], pending_only=True)
    place.until(lambda: [job.id for job in place.scheduler.jobs()] == [first])
    assert place.state(first) is JobState.RUNNING
    place.scheduler.cancel([array])
    assert {job.state for job in place.ended(array)} == {JobState.CANCELLED}
    place.scheduler.cancel([array])  # an ended one is no error


def test_hold_keeps_a_job_from_starting_until_release(place: Place) -> None:
    job_id = place.submit("true", hold=None)
    time.sleep(1)
    job = place.scheduler.job(job_id)
    assert (job.state, job.reason) == (JobState.PENDING, "JobHeldUser")
    place.scheduler.release(job_id)
    assert place.ended(job_id)[0].state is JobState.COMPLETED


def test_a_waiting_job_can_be_held(place: Place) -> None:
    first = place.submit("sleep 1")
    second = place.submit("true", dependency=f"afterany:{first}")
    place.scheduler.hold(second)
    place.ended(first)
    time.sleep(1)
    assert place.state(second) is JobState.PENDING


@pytest.mark.parametrize(("code", "goes"), [(0, True), (1, False)])
def test_afterok_goes_only_after_success(place: Place, code: int, goes: bool) -> None:
    first = place.submit(f"sleep 1; exit {code}")
    second = place.submit("true", dependency=f"afterok:{first}")
    if goes:
        assert place.ended(second)[0].state is JobState.COMPLETED
    else:
        place.until(lambda: place.scheduler.job(second).reason == "DependencyNeverSatisfied")
        assert place.state(second) is JobState.PENDING


def test_afterany_waits_for_the_whole_array(place: Place) -> None:
    array = place.submit("sleep 1; exit 1", array="1-2%1")
    second = place.submit("true", dependency=f"afterany:{array}")
    assert place.scheduler.job(second).dependency.startswith(f"afterany:{array}")
    end = max(job.end_time or 0 for job in place.ended(array))
    assert (place.ended(second)[0].start_time or 0) >= int(end)


def test_a_requeued_task_counts_its_restarts_and_the_array_as_a_whole_is_refused(place: Place) -> None:
    array = place.submit("echo ${SLURM_RESTART_COUNT-first} >> log; sleep 60", array="1-2%1")
    first = JobId(array.array, 1)
    place.until(lambda: place.text("log") == "first\n")
    with pytest.raises(SchedulerError):
        place.scheduler.requeue(array)
    place.scheduler.cancel([JobId(array.array, 2)])
    place.scheduler.requeue(first)
    place.until(lambda: place.text("log") == "first\n1\n")
    assert place.scheduler.job(first).restarts == 1


def test_a_job_that_may_not_be_requeued_is_not(place: Place) -> None:
    job_id = place.submit("sleep 60", no_requeue=None)
    place.running(job_id)
    with pytest.raises(SchedulerError):
        place.scheduler.requeue(job_id)


def test_a_batch_signal_reaches_the_batch_shell(place: Place) -> None:
    job_id = place.submit("trap 'echo got >> log; exit 7' USR1; echo up >> log; sleep 5 & wait")
    place.until(lambda: place.text("log") == "up\n")
    place.scheduler.signal(
        job_id, "USR1", batch=True
    )  # if it comes right before the wait, bash hears it after the sleep
    assert place.ended(job_id)[0].exit_code == ExitCode(7)
    assert place.text("log") == "up\ngot\n"


def test_the_early_signal_reaches_the_batch_shell_before_the_limit(place: Place) -> None:
    # One minute is the shortest limit that every scheduler knows; SLURM looks every 30 seconds.
    job_id = place.submit("trap 'echo got >> log; exit 7' USR1; sleep 300 & wait", time="1", signal="B:USR1@58")
    (job,) = place.ended(job_id)
    assert (job.exit_code, place.text("log")) == (ExitCode(7), "got\n")


def test_a_shortened_job_ends_early(place: Place) -> None:
    job_id = place.submit("sleep 300")
    place.running(job_id)
    place.scheduler.update(job_id, JobUpdate(end_time=time.time() + 2))
    assert place.ended(job_id)[0].state is JobState.TIMEOUT


def test_a_begin_time_can_be_moved(place: Place) -> None:
    job_id = place.submit("true", begin="now+1hour")
    place.until(lambda: place.scheduler.job(job_id).reason == "BeginTime")
    place.scheduler.update(job_id, JobUpdate(begin_time=time.time()))
    assert place.ended(job_id)[0].state is JobState.COMPLETED


def test_nodes_to_avoid_are_avoided_or_refused_but_never_dropped(place: Place) -> None:
    job_id = place.submit("true", hold=None)
    change = JobUpdate(exclude=place.scheduler.nodes()[0].name, time_limit_s=120)
    if place.scheduler.name == "local":
        with pytest.raises(NotSupported, match="only this host"):
            place.scheduler.update(job_id, change)
        assert place.scheduler.job(job_id).time_limit_s == 300  # refused as a whole
    else:
        place.scheduler.update(job_id, change)  # raises where the cluster does not confirm it
        assert place.scheduler.job(job_id).time_limit_s == 120
    place.scheduler.update(job_id, JobUpdate(exclude=""))


@pytest.mark.parametrize(
    "options",
    [
        {"time": "abc"},
        {"array": "1-2000"},
        {"array": "5-1"},
        {"dependency": "bogus:1"},
        {"signal": "FOO@60"},
        {"no-such-option": "1"},
    ],
    ids=lambda options: next(iter(options)),
)
def test_what_is_refused_leaves_nothing(place: Place, options: dict[str, str]) -> None:
    submission = place.submission("true")
    with pytest.raises((SchedulerError, UsageError)):
        place.scheduler.submit(replace(submission, options={**submission.options, **options}))
    assert place.scheduler.find(submission.token) == place.scheduler.jobs() == ()


def test_a_script_without_interpreter_is_refused(place: Place) -> None:
    submission = place.submission("true")
    Path(submission.script).write_text("true\n")
    with pytest.raises(SchedulerError, match="batch script"):
        place.scheduler.submit(submission)


def test_trying_a_submission_queues_nothing(place: Place) -> None:
    submission = place.submission("true")
    assert place.scheduler.test(submission)
    assert place.scheduler.find(submission.token) == place.scheduler.jobs() == ()


def test_what_people_are_shown_names_the_script_and_the_options(place: Place) -> None:
    submission = place.submission("true", array="1-3%1")
    shown = place.scheduler.command_line(submission)
    assert submission.script in shown and "--array=1-3%1" in shown
    assert any(submission.token in word for word in shown)


def test_the_submissions_environment_reaches_the_job(place: Place) -> None:
    submission = replace(place.submission('echo "$WORD" >> log'), environment={"WORD": "a b|c"})
    place.ended(place.scheduler.submit(submission).id)
    assert place.text("log") == "a b|c\n"


def test_a_job_knows_itself(place: Place) -> None:
    array = place.submit("echo $SLURM_ARRAY_JOB_ID $SLURM_ARRAY_TASK_ID $SLURM_JOB_ID >> log", array="4-8:4%1")
    jobs = place.ended(array)
    seen = [tuple(int(word) for word in line.split()) for line in place.text("log").splitlines()]
    assert seen == [(array.array, job.id.task, job.raw_id) for job in jobs]
    assert [job.id.task for job in jobs] == [4, 8]
    assert all(a != b for a, b in itertools.pairwise(job.raw_id for job in jobs))


def test_the_cpu_time_of_a_job_grows_while_it_computes_and_not_while_it_sleeps(place: Place) -> None:
    flag = place.directory / "sleeps"
    busy = f"srun -n 1 bash -c 'while [ ! -e {flag} ]; do :; done; touch {flag}.seen; sleep 300'"
    job = place.submit(busy)
    place.running(job)

    def seconds() -> float:
        try:
            return place.scheduler.cpu_seconds(job)
        except SchedulerError:  # the step has not begun
            return 0.0

    place.until(lambda: seconds() >= 2, "two seconds of CPU time")
    flag.touch()
    place.until(Path(f"{flag}.seen").exists, "the job to sleep")
    before = seconds()
    time.sleep(3)
    assert seconds() <= before + 1
    place.scheduler.cancel([job])
    place.ended(job)


def test_nodes_and_configuration_are_told(place: Place) -> None:
    assert any(node.is_usable for node in place.scheduler.nodes())
    config = place.scheduler.config()
    assert config.scheduler == place.scheduler.name
    assert config.job_requeue is True and config.max_array_size == 1001 and config.kill_wait_s is not None
