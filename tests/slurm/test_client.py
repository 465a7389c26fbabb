"""The SLURM client against a real cluster, as an ordinary user, with a controller that hangs, dies and comes back."""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

from resilience.errors import NoSuchJob, NotSupported, SchedulerError, SchedulerUnavailable, SubmissionUncertain
from resilience.job import ExitCode, Job, JobId, JobState, JobUpdate, Liveness
from resilience.schedulers.slurm import SCHEDULER
from resilience.submission import Submission
from resilience.system.ports import SystemClock
from resilience.system.process import Completed, ProcessRunner
from tests.lab.slurm.as_user import AsUser
from tests.lab.slurm.cluster import Cluster
from tests.lab.slurm.processes import later, until

NAME = 'na|me  "q" é\n\x1f[1m' + "x" * 180
SLEEP = "#!/bin/bash\nexec sleep 300\n"


class Counting(AsUser):
    """Remembers which programs ran."""

    def __init__(self, cluster: Cluster, user: str) -> None:
        super().__init__(cluster, user)
        self.ran: list[str] = []

    def run(self, argv: Sequence[str], **more: Any) -> Completed:
        self.ran.append(argv[0])
        return super().run(argv, **more)


def client(cluster: Cluster, user: str, deadline_s: float = 60.0, **environ: str) -> SCHEDULER:
    return SCHEDULER(
        clock=SystemClock(),
        runner=AsUser(cluster, user),
        environ=cluster.environment(user) | environ,
        deadline_s=deadline_s,
    )


@pytest.fixture
def slurm(cluster: Cluster, alice: str) -> SCHEDULER:
    return client(cluster, alice)


@pytest.fixture
def intend(cluster: Cluster) -> Iterator[Callable[..., Submission]]:
    """Makes submissions of distinct tokens, whose scripts all users can read."""
    count = 0

    def make(text: str = SLEEP, options: dict[str, str | None] | None = None, **more: object) -> Submission:
        nonlocal count
        count += 1
        token = f"t{os.getpid()}x{time.time_ns():x}x{count}"
        directory = cluster.shared / "scripts"
        directory.mkdir(exist_ok=True, mode=0o755)
        script = directory / f"{token}.sbatch"
        script.write_text(text)
        usual: dict[str, str | None] = {"output": "/dev/null"}
        return Submission(
            token, "gpt", str(script), options=usual | (options or {}), directory=str(cluster.shared), **more  # type: ignore[arg-type]
        )  # fmt: skip

    yield make


Intend = Callable[..., Submission]


def wait(slurm: SCHEDULER, job: JobId, *states: JobState) -> Job:
    def there() -> bool:
        return slurm.job(job).state in states

    until(there, f"{job} to be {states}", every_s=0.1)
    return slurm.job(job)


# ---- reading ------------------------------------------------------------------------------------------------------


def test_names_comments_and_array_sets_come_back_whole(slurm: SCHEDULER, intend: Intend) -> None:
    indices = ",".join(str(n) for n in range(0, 999, 3) if n % 7)
    intent = intend(options={"array": f"{indices}%1", "job-name": NAME, "hold": None, "comment": "mine | too"})
    submitted = slurm.submit(intent)
    assert not submitted.recovered
    (job,) = slurm.jobs(names=[NAME])
    assert (job.id, job.name, job.state) == (submitted.id, NAME, JobState.PENDING)
    assert job.comment == f"resil:gpt:{intent.token} mine | too"
    assert job.task_count == len(indices.split(",")) > 200
    detail = slurm.job(submitted.id)
    assert (detail.name, detail.comment, detail.tasks) == (job.name, job.comment, job.tasks)
    assert detail.command.startswith(intent.script)
    assert slurm.presence(JobId(submitted.id.array, 999 - 3)).liveness is Liveness.ALIVE
    assert slurm.presence(JobId(submitted.id.array, 7)).liveness is Liveness.GONE


@pytest.mark.parametrize("zone", ["Asia/Kolkata", "America/St_Johns", "UTC"])
def test_times_do_not_depend_on_the_time_zone(cluster: Cluster, alice: str, intend: Intend, zone: str) -> None:
    slurm = client(cluster, alice, TZ=zone, SLURM_TIME_FORMAT="relative", SQUEUE_FORMAT="%i", SQUEUE_USERS="nobody")
    began = time.time()
    job_id = slurm.submit(intend(options={"time": "60"})).id
    job = wait(slurm, job_id, JobState.RUNNING)
    assert job.start_time is not None and abs(job.start_time - began) < 20
    assert job.end_time == job.start_time + 3600 and job.time_limit_s == 3600
    end = float(round(began + 1200))
    slurm.update(job_id, JobUpdate(end_time=end))
    assert slurm.job(job_id).end_time == end
    (queued,) = slurm.jobs()
    assert queued.end_time == end


def test_exit_codes_above_127_are_right_while_slurm_remembers(slurm: SCHEDULER, intend: Intend) -> None:
    job_id = slurm.submit(intend("#!/bin/bash\nexit 255\n")).id
    job = wait(slurm, job_id, JobState.FAILED)
    assert job.exit_code == ExitCode(255)
    (queued,) = slurm.jobs(finished=True, names=[job.name])
    assert queued.exit_code == ExitCode(255)
    presence = slurm.presence(job_id)
    assert presence.liveness is Liveness.GONE and presence.job is not None


def test_everybodys_jobs_and_somebodys_jobs(cluster: Cluster, slurm: SCHEDULER, alice: str, bob: str) -> None:
    mine = cluster.sbatch(SLEEP, "-o", "/dev/null", user=alice)
    other = cluster.sbatch(SLEEP, "-o", "/dev/null", user=bob)
    assert {str(job.id) for job in slurm.jobs()} == {mine}
    assert {str(job.id) for job in slurm.jobs(users=[bob])} == {other}
    assert {str(job.id) for job in slurm.jobs(users=[])} == {mine, other}
    assert slurm.presence(JobId(int(other))).liveness is Liveness.ALIVE
    with pytest.raises(SchedulerError, match="no such user"):
        slurm.jobs(users=["nosuch"])


def test_components_of_a_heterogeneous_job_are_one_job(cluster: Cluster, slurm: SCHEDULER) -> None:
    job = JobId(
        int(cluster.sbatch("#!/bin/bash\n#SBATCH -n1\n#SBATCH hetjob\n#SBATCH -n1\nsleep 100\n", "-o", "/dev/null"))
    )
    assert {row.id for row in slurm.jobs()} == {job}
    assert {row.raw_id for row in slurm.jobs()} == {job.array, job.array + 1}
    assert slurm.job(job).id == job
    slurm.cancel([job])
    until(lambda: slurm.presence(job).liveness is Liveness.GONE, "the components to end")


def test_nodes_and_configuration(cluster: Cluster, slurm: SCHEDULER) -> None:
    cluster.drain("n2", "ecc: gpu 3 | bad")
    nodes = {node.name: node for node in slurm.nodes()}
    assert list(nodes) == list(cluster.nodes)
    assert nodes["n2"].flags == ("DRAIN",) and nodes["n2"].reason == "ecc: gpu 3 | bad" and not nodes["n2"].is_usable
    assert nodes["n1"].is_usable and set(nodes["n1"].partitions) == {"main", "short", "closed"}
    config = slurm.config()
    assert config.partitions == {"main": "UP", "short": "UP", "closed": "DOWN"} and config.default_partition == "main"
    assert (config.kill_wait_s, config.message_timeout_s, config.max_array_size) == (5, 5, 1001)
    assert config.version[:1] == "2" and config.proctrack == cluster.proctrack


def test_accounting_that_is_off_says_so(slurm: SCHEDULER) -> None:
    with pytest.raises(NotSupported, match="accounting is off"):
        slurm.history([JobId(1)])


@pytest.fixture(scope="module")
def accounted() -> Iterator[Cluster]:
    """A small cluster with a database."""
    if reasons := Cluster.requirements(dbd=True):
        pytest.skip(f"no SLURM accounting: {'; '.join(reasons)}")
    with Cluster(nodes=1, dbd=True) as booted:
        yield booted


def test_history_knows_each_run_its_end_and_its_true_exit_code(accounted: Cluster) -> None:
    alice = accounted.users[0]
    slurm = client(accounted, alice)
    codes = {JobId(int(accounted.sbatch(f"#!/bin/bash\nexit {n}\n", "-o", "/dev/null"))): n for n in (0, 3, 128, 255)}
    array = JobId(int(accounted.sbatch(SLEEP, "--array=1-3%1", "-o", "/dev/null", "-J", 'na|me "q" é')))
    wait(slurm, task := JobId(array.array, 1), JobState.RUNNING)
    slurm.requeue(task, hold=True)

    def ended() -> bool:
        return sum(job.state.is_final for job in slurm.history(codes)) == len(codes)

    until(ended, "the records to arrive", every_s=0.2)
    for job in slurm.history(codes):
        assert job.exit_code == ExitCode(codes[job.id]) and job.end_time is not None and job.user == alice
    until(lambda: len(slurm.history([task])) == 2, "both runs of the requeued task", every_s=0.2)
    first, second = slurm.history([task])
    assert first.state is JobState.REQUEUED and second.state is JobState.PENDING
    assert first.name.startswith("na|me") and first.id == second.id == task
    assert slurm.config().accounting is True
    assert slurm.history([JobId(987654)]) == ()
    slurm.cancel([array])


def test_a_job_that_never_was(slurm: SCHEDULER) -> None:
    with pytest.raises(NoSuchJob):
        slurm.job(JobId(987654))
    assert slurm.presence(JobId(987654)).liveness is Liveness.GONE


# ---- telling ------------------------------------------------------------------------------------------------------


def test_a_task_is_requeued_by_its_id_or_its_raw_id_and_an_array_never_as_a_whole(
    slurm: SCHEDULER, intend: Intend
) -> None:
    array = slurm.submit(intend(options={"array": "1-3%1"})).id
    task = JobId(array.array, 1)
    raw = wait(slurm, task, JobState.RUNNING).raw_id
    with pytest.raises(SchedulerError, match="restarts every task"):
        slurm.requeue(array)
    assert raw != array.array
    slurm.requeue(JobId(raw), hold=True)
    held = wait(slurm, task, JobState.PENDING)
    assert held.restarts == 1 and "held" in held.reason
    slurm.release(task)
    assert "held" not in slurm.job(task).reason


def test_a_job_submitted_without_requeue_says_so(slurm: SCHEDULER, intend: Intend) -> None:
    job = slurm.submit(intend(options={"no-requeue": None})).id
    wait(slurm, job, JobState.RUNNING)
    with pytest.raises(SchedulerError) as caught:
        slurm.requeue(job)
    assert "--no-requeue" in caught.value.hint


def test_waiting_tasks_are_changed_although_others_have_finished(slurm: SCHEDULER, intend: Intend) -> None:
    text = "#!/bin/bash\n[ $SLURM_ARRAY_TASK_ID = 1 ] && exit\nexec sleep 300\n"
    array = slurm.submit(intend(text, {"array": "1-5%1"})).id
    wait(slurm, JobId(array.array, 2), JobState.RUNNING)
    slurm.update(array, JobUpdate(array_throttle=2))
    slurm.update(JobId(array.array, 5), JobUpdate(array_throttle=1))
    assert slurm.job(array).tasks.endswith("%1")
    slurm.update(array, JobUpdate(exclude="n[3-4]"))
    slurm.update(array, JobUpdate(exclude=""))
    with pytest.raises(SchedulerError):
        slurm.update(JobId(array.array, 1), JobUpdate(exclude="n1"))


def test_waiting_jobs_are_held_released_delayed_and_chained(slurm: SCHEDULER, intend: Intend) -> None:
    first = slurm.submit(intend()).id
    second = slurm.submit(intend(options={"begin": "now+1hour"})).id
    slurm.update(second, JobUpdate(dependency=f"afterany:{first}", begin_time=0.0, time_limit_s=7200))
    job = slurm.job(second)
    assert job.dependency.startswith(f"afterany:{first}") and job.time_limit_s == 7200
    slurm.update(second, JobUpdate(dependency=""))
    slurm.hold(second)
    assert slurm.job(second).reason == "JobHeldUser"
    slurm.release(second)
    begin = float(round(time.time()) + 7200)
    slurm.update(second, JobUpdate(begin_time=begin))
    assert slurm.job(second).start_time == begin


def test_cancel_spares_what_has_begun_when_asked_and_minds_nothing_that_has_ended(
    slurm: SCHEDULER, intend: Intend
) -> None:
    array = slurm.submit(intend(options={"array": "1-3%1"})).id
    task = JobId(array.array, 1)
    wait(slurm, task, JobState.RUNNING)
    slurm.cancel([array], pending_only=True)
    assert [job.id for job in slurm.jobs()] == [task]
    slurm.cancel([array, JobId(987654)])
    until(lambda: not slurm.jobs(), "the task to end")
    slurm.cancel([array])


def test_a_signal_reaches_the_batch_shell(cluster: Cluster, slurm: SCHEDULER, intend: Intend) -> None:
    out = cluster.shared / "signalled"
    text = f"#!/bin/bash\ntrap 'echo usr1 >> {out}; exit 3' USR1\necho up > {out}.up\nsleep 300 & wait\n"
    job = slurm.submit(intend(text)).id
    until(lambda: Path(f"{out}.up").exists(), "the script to start")
    slurm.signal(job, "USR1", batch=True)
    assert wait(slurm, job, JobState.FAILED).exit_code == ExitCode(3)
    with pytest.raises(SchedulerError, match="no such signal"):
        slurm.signal(job, "NOSUCH")


def test_other_peoples_jobs_are_refused_with_a_hint(cluster: Cluster, slurm: SCHEDULER, bob: str) -> None:
    job = JobId(int(cluster.sbatch(SLEEP, "-o", "/dev/null", user=bob)))
    calls: list[Callable[[], None]] = [
        lambda: slurm.cancel([job]),
        lambda: slurm.hold(job),
        lambda: slurm.requeue(job),
        lambda: slurm.update(job, JobUpdate(time_limit_s=60)),
    ]
    for call in calls:
        with pytest.raises(SchedulerError, match="another user's") as caught:
            call()
        assert not isinstance(caught.value, SchedulerUnavailable) and caught.value.hint
    assert slurm.presence(job).liveness is Liveness.ALIVE


# ---- submitting ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("options", "words", "hint"),
    [
        ({"partition": "nosuch"}, "no such partition", "sinfo"),
        ({"array": "1-2000"}, "MaxArraySize", "MaxArraySize"),
        ({"dependency": "bogus:1"}, "dependency", "afterany"),
        ({"time": "abc"}, "value is wrong", "--help"),
        ({"signal": "FOO@60"}, "value is wrong", "--help"),
        ({"no-such-option": None}, "not known", "--help"),
        ({"nodelist": "n99"}, "no such node", "sinfo"),
        ({"constraint": "nofeature"}, "feature", "sinfo"),
        ({"mem": "999G"}, "no node", "sinfo"),
        ({"gres": "gpu:1"}, "generic resource", "sinfo"),
        ({"reservation": "nosuch"}, "reservation", "scontrol show reservation"),
    ],
)
def test_a_refusal_says_what_to_try(
    cluster: Cluster, alice: str, intend: Intend, options: dict[str, str | None], words: str, hint: str
) -> None:
    runner = Counting(cluster, alice)
    slurm = SCHEDULER(clock=SystemClock(), runner=runner, environ=cluster.environment(alice))
    with pytest.raises(SchedulerError, match=words) as caught:
        slurm.submit(intend(options=options))
    assert not isinstance(caught.value, SchedulerUnavailable) and hint in caught.value.hint
    assert runner.ran.count("sbatch") == 1, "a refusal is no reason to try again"


@pytest.mark.parametrize("text", ["echo no shebang\n", "#!/bin/bash\r\necho dos\r\n", ""])
def test_a_script_that_is_none_is_refused(slurm: SCHEDULER, intend: Intend, text: str) -> None:
    with pytest.raises(SchedulerError, match="script"):
        slurm.submit(intend(text))


def test_a_test_submits_nothing(slurm: SCHEDULER, intend: Intend) -> None:
    assert "to start at" in slurm.test(intend())
    with pytest.raises(SchedulerError, match="no such partition"):
        slurm.test(intend(options={"partition": "nosuch"}))
    assert not slurm.jobs()


def test_the_same_intent_twice_is_one_job(cluster: Cluster, alice: str, intend: Intend) -> None:
    intent = intend()
    first = client(cluster, alice).submit(intent)
    second = client(cluster, alice).submit(intent)
    assert second.id == first.id and second.recovered and not first.recovered


def test_a_script_named_by_the_token_is_found_where_the_comment_was_overwritten(
    cluster: Cluster, slurm: SCHEDULER, intend: Intend
) -> None:
    submitted = slurm.submit(intent := intend(script_args=("--resume", "now")))
    cluster.run(["scontrol", "update", f"jobid={submitted.id}", "comment=site policy"], check=True)
    assert [job.id for job in slurm.find(intent.token)] == [submitted.id]
    assert slurm.find(f"{intent.token}0") == ()


def test_a_surrounding_job_does_not_leak_into_a_nested_one(cluster: Cluster, alice: str, intend: Intend) -> None:
    out = cluster.shared / "nested"
    outer = {"SLURM_NTASKS": "7", "SLURM_MEM_PER_NODE": "5", "SLURM_MEM_PER_CPU": "6", "SLURM_JOB_ID": "1",
             "SLURM_EXPORT_ENV": "NONE", "SLURM_TIME_FORMAT": "relative", "MINE": "kept"}  # fmt: skip
    text = f"#!/bin/bash\nenv > {out}.part\nmv {out}.part {out}\n"
    submitted = client(cluster, alice, 60.0, **outer).submit(intend(text))
    until(out.exists, "the nested job")
    env = dict(line.split("=", 1) for line in out.read_text().splitlines() if "=" in line)
    assert env["SLURM_JOB_ID"] == str(submitted.id) and env["MINE"] == "kept"
    leaked = {"SLURM_NTASKS", "SLURM_EXPORT_ENV", "SLURM_TIME_FORMAT", "SLURM_BITSTR_LEN", "TZ"} & env.keys()
    assert not leaked and env.get("LC_ALL") == os.environ.get("LC_ALL")


# ---- a controller that hangs, dies and comes back -----------------------------------------------------------------


class StopAtSbatch(Counting):
    """Hangs the controller just before the first sbatch runs, until it has hung for long enough or for ever."""

    def __init__(self, cluster: Cluster, user: str, hang_s: float | None = None) -> None:
        super().__init__(cluster, user)
        self.cluster = cluster
        self.hang_s = hang_s
        self.back = contextlib.ExitStack()

    def run(self, argv: Sequence[str], **more: Any) -> Completed:
        if argv[0] == "sbatch" and "sbatch" not in self.ran:
            self.cluster.stop_controller()
            if self.hang_s is not None:
                self.back.enter_context(later(self.hang_s, self.cluster.continue_controller))
        return super().run(argv, **more)


def submit_into_a_hang(cluster: Cluster, user: str, intent: Submission, resume_after_s: float) -> None:
    """The controller stops just before sbatch speaks to it and goes on later: exactly one job must come of it."""
    runner = StopAtSbatch(cluster, user, resume_after_s)
    slurm = SCHEDULER(clock=SystemClock(), runner=runner, environ=cluster.environment(user))
    with runner.back:
        submitted = slurm.submit(intent)
    cluster.wait_served()  # an sbatch that gave up may still lie in the controller's backlog
    assert {job.id for job in slurm.find(intent.token)} == {submitted.id}


@pytest.mark.parametrize("resume_after_s", [1.0, 5.2, 8.0, 13.0])
def test_a_controller_that_hangs_during_sbatch_makes_exactly_one_job(
    cluster: Cluster, alice: str, intend: Intend, resume_after_s: float
) -> None:
    submit_into_a_hang(cluster, alice, intend(), resume_after_s)


def test_a_controller_that_hangs_before_the_first_look_makes_exactly_one_job(
    cluster: Cluster, alice: str, intend: Intend
) -> None:
    slurm, intent = client(cluster, alice), intend()
    cluster.stop_controller()
    with later(8, cluster.continue_controller) as back:
        submitted = slurm.submit(intent)
        back.join()
    cluster.wait_served()
    assert {job.id for job in slurm.find(intent.token)} == {submitted.id}


def test_a_controller_killed_during_a_submission_makes_exactly_one_job(
    cluster: Cluster, alice: str, intend: Intend
) -> None:
    slurm = client(cluster, alice)
    intent = intend()
    cluster.kill_controller()
    with later(6, cluster.start_controller) as back:
        submitted = slurm.submit(intent)
        back.join()
    cluster.wait_served()
    assert {job.id for job in slurm.find(intent.token)} == {submitted.id}


def test_a_controller_that_stays_away_leaves_a_token_to_look_for(cluster: Cluster, alice: str, intend: Intend) -> None:
    intent = intend()
    runner = StopAtSbatch(cluster, alice)
    slurm = SCHEDULER(
        clock=SystemClock(), runner=runner, environ=cluster.environment(alice), lookup_deadline_s=8
    )  # fmt: skip
    with pytest.raises(SubmissionUncertain, match=intent.token) as caught:
        slurm.submit(intent)
    assert caught.value.hint and runner.ran.count("sbatch") == 1
    cluster.continue_controller()
    cluster.wait_served()  # the order that nobody waits for any more
    again = client(cluster, alice).submit(intent)  # looks first
    assert again.recovered and {job.id for job in slurm.find(intent.token)} == {again.id}


@pytest.mark.soak
@pytest.mark.timeout(3600)
@pytest.mark.skipif(os.environ.get("RESIL_SOAK") != "1", reason="a long campaign: set RESIL_SOAK=1")
def test_fifty_hangs_make_fifty_jobs(cluster: Cluster, alice: str, intend: Intend) -> None:
    for number in range(50):
        submit_into_a_hang(cluster, alice, intend(options={"hold": None}), resume_after_s=0.2 + number * 0.25)


def test_a_hung_controller_is_unknown_and_answers_within_the_deadline(
    cluster: Cluster, alice: str, slurm: SCHEDULER, intend: Intend
) -> None:
    job = slurm.submit(intend()).id
    cluster.stop_controller()
    quick = client(cluster, alice, deadline_s=2)
    for scheduler, why in ((quick, "did not end within"), (slurm, "the controller could not be reached")):
        presence = scheduler.presence(job)
        assert presence.liveness is Liveness.UNKNOWN and why in presence.reason
    with pytest.raises(SchedulerUnavailable):
        quick.jobs()
    with pytest.raises(SchedulerUnavailable):  # the controller takes the order all the same, so not of this job
        quick.cancel([JobId(987654)])
    cluster.continue_controller()
    until(lambda: slurm.presence(job).liveness is Liveness.ALIVE, "the controller to answer")


def test_a_dead_controller_is_unknown_and_a_restarted_one_still_has_the_job(
    cluster: Cluster, slurm: SCHEDULER, intend: Intend
) -> None:
    job = slurm.submit(intend()).id
    wait(slurm, job, JobState.RUNNING)
    cluster.terminate_controller()
    presence = slurm.presence(job)
    assert presence.liveness is Liveness.UNKNOWN and "could not be reached" in presence.reason
    for call in (slurm.jobs, slurm.nodes, slurm.config):
        with pytest.raises(SchedulerUnavailable):
            call()
    cluster.start_controller()
    assert slurm.presence(job).liveness is Liveness.ALIVE


def test_a_slurm_conf_that_is_missing_does_not_outlast_the_deadline(cluster: Cluster, alice: str) -> None:
    slurm = client(cluster, alice, deadline_s=2, SLURM_CONF="/nonexistent/slurm.conf")
    with pytest.raises(SchedulerUnavailable, match="did not end within"):  # squeue itself gives up after 59 s
        slurm.jobs()
    presence = slurm.presence(JobId(1))
    assert presence.liveness is Liveness.UNKNOWN and "did not end within" in presence.reason


def test_a_machine_without_slurm_says_what_to_do() -> None:
    slurm = SCHEDULER(clock=SystemClock(), runner=Nowhere(), environ={})
    with pytest.raises(SchedulerUnavailable, match="not installed") as caught:
        slurm.jobs()
    assert "--scheduler local" in caught.value.hint


class Nowhere(ProcessRunner):
    """Finds no program at all, as on a machine without SLURM."""

    def stream(self, argv: Sequence[str], **more: Any) -> Iterator[str]:
        return super().stream([f"/nonexistent/{argv[0]}", *argv[1:]], **more)
