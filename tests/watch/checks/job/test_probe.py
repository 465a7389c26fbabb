"""The probe of the job watchdog: subjects, number of queries, and confirmation of missing jobs."""

from __future__ import annotations

import os
from collections.abc import Collection
from dataclasses import replace
from typing import Any

import pytest

from resilience.cluster import ClusterConfig
from resilience.errors import NotSupported, SettingsError
from resilience.finding import Verdict
from resilience.job import ExitCode, Job, JobId, JobState, Liveness, Presence
from resilience.runs.submissions import Intent, Outcome, record_intent, record_result
from resilience.settings.sections import SchedulerSettings
from resilience.submission import make_comment
from resilience.watch.checks._job.settings import JobSettings
from resilience.watch.checks.job import CHECK
from resilience.watch.watchdogs import context_of
from tests.lab.fakes import DOWN, ME, NOW, FakeScheduler, a_job
from tests.watch.checks.job.stage import CRITICAL, HOUR, OK, QUEUE, UNKNOWN, WARNING, Stage, running


class Forgetful(FakeScheduler):
    """A scheduler with an empty queue; `answer` is its response for an id, `past` that of accounting."""

    answer = Presence(Liveness.UNKNOWN, "the queue was empty, and no second source confirms it")
    past: tuple[Job, ...] | None = None

    def presence(self, job_id: JobId, *, mine: bool = False) -> Presence:
        self.calls.append("presence")
        return self.answer

    def history(self, job_ids: Collection[JobId]) -> tuple[Job, ...]:
        self.calls.append("history")
        if self.past is None:
            raise NotSupported("there is no accounting here")
        return self.past


@pytest.fixture
def forgetful(stage: Stage) -> Stage:
    return Stage(stage.directory, Forgetful())


# ---- who is watched ---------------------------------------------------------------------------------------------


def test_without_configuration_all_runs_of_the_directory_are_watched_by_one_query(stage: Stage) -> None:
    for number, run in enumerate(("gpt", "llama", "t5"), start=1):
        stage.run(run, number)
        stage.job(number, run=run, **running())

    assert stage.verdicts() == {"gpt": OK, "llama": OK, "t5": OK, QUEUE: OK}
    assert stage.queue.calls == ["jobs"]


def test_a_directory_without_runs_is_ok_without_a_query(stage: Stage) -> None:
    (finding,) = stage.tick()
    assert finding.verdict is OK and "no run" in finding.summary and "resil submit" in finding.advice
    assert stage.queue.calls == []


def test_several_names_and_patterns_are_found_by_one_query(stage: Stage) -> None:
    for number, name in enumerate(("gpt", "tr11-a", "tr11-b", "other"), start=1):
        stage.add(a_job(number, name=name, **running()))

    verdicts = stage.verdicts(names=("gpt", "tr11-*", "/^oth/"))
    assert list(verdicts) == ["gpt", "tr11-*", "/^oth/", QUEUE] and set(verdicts.values()) == {OK}
    assert stage.queue.calls == ["jobs"]


def test_another_users_jobs_are_watched_on_request(stage: Stage) -> None:
    stage.add(a_job(1, user="bob", **running()))

    assert stage.faults("gpt of bob", names=("gpt",), users=("bob",)) == {"": OK}
    assert stage.faults("gpt of anyone", names=("gpt",), users=("*",)) == {"": OK}
    assert stage.faults("gpt", names=("gpt",)) == {"not-queued": CRITICAL}


def test_runs_of_several_users_in_one_state_directory_share_one_query(stage: Stage) -> None:
    stage.run("gpt", 1)
    stage.run("llama", 2, by="nobody")
    stage.job(1, **running())
    stage.job(2, run="llama", user="nobody", **running())

    assert {finding.verdict for finding in stage.tick()} == {OK}
    assert stage.queue.calls == ["jobs"]


def test_a_run_is_known_by_its_token_and_not_by_its_name(stage: Stage) -> None:
    """Two projects or two users may use the same run name."""
    stage.run("gpt", 1)
    stage.add(a_job(8, name="gpt", comment=make_comment("gpt", "of-another-project"), **running()))

    assert stage.finding().fault == "not-queued"


BAD = [
    {"names": ("/(/",)},
    {"names": ("",)},
    {"names": ("gpt",), "users": ("",)},
    {"names": ("gpt",), "users": ("a b",)},
    {"names": ("gpt",), "users": ("a,b",)},
    {"names": ("gpt",), "users": ("--all",)},
    {"names": ("gpt",), "users": ("*", "bob")},
    {"users": ("bob",)},
    {"names": ("gpt",), "clusters": ("a,b",)},
    {"names": ("gpt",), "clusters": ("all",)},
    {"clusters": ("alpha",)},
    {"require": "alive"},
    {"deadline_s": 0.0},
]


@pytest.mark.parametrize("settings", BAD)
def test_invalid_settings_are_rejected_before_any_query(stage: Stage, settings: dict[str, Any]) -> None:
    with pytest.raises(SettingsError):
        stage.tick(**settings)
    assert stage.queue.calls == []


def test_an_empty_set_of_users_is_the_present_user(stage: Stage) -> None:
    """`squeue --user=` without a name is malformed: a group without members must not disable the watchdog."""
    stage.add(a_job(1, **running()))
    assert stage.finding(names=("gpt",), users=()).verdict is OK


# ---- nothing there ----------------------------------------------------------------------------------------------


def test_a_run_whose_job_ended_is_critical_at_once_when_a_row_says_so(stage: Stage) -> None:
    stage.run("gpt", 7)
    stage.job(7, JobState.FAILED, end_time=NOW - 5, exit_code=ExitCode(1))

    finding = stage.expect("CRITICAL not-queued", "job 7 ended: FAILED")
    assert "resil submit --run gpt" in finding.advice and finding.run == "gpt"
    assert stage.queue.calls == ["jobs"]


def test_one_unconfirmed_empty_response_is_unknown(forgetful: Stage) -> None:
    forgetful.run("gpt", 7)

    forgetful.expect("UNKNOWN not-queued", "no second source confirms it")


def test_a_second_source_that_knows_the_job_is_gone_settles_it(
    forgetful: Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    forgetful.run("gpt", 7)
    monkeypatch.setattr(Forgetful, "answer", Presence(Liveness.GONE, "two queries, and accounting says FAILED"))
    finding = forgetful.expect("CRITICAL not-queued")
    assert any("two queries" in line for line in finding.looked)


@pytest.mark.parametrize(
    ("token", "expected"), [("gpt-7", "OK"), ("somebody-else", "CRITICAL not-queued")], ids=["its own", "given anew"]
)
def test_a_job_that_a_second_source_finds_is_the_run_by_its_token_not_by_its_id(
    forgetful: Stage, monkeypatch: pytest.MonkeyPatch, token: str, expected: str
) -> None:
    forgetful.run("gpt", 7)
    job = a_job(7, comment=make_comment("gpt", token), **running())
    monkeypatch.setattr(Forgetful, "answer", Presence(Liveness.ALIVE, "a row proves it", job))
    forgetful.expect(expected)


def test_only_a_few_of_many_missing_runs_are_looked_up_and_the_others_share_one_query(forgetful: Stage) -> None:
    for number in range(1, 21):
        forgetful.run(f"run{number:02d}", number)
    assert isinstance(forgetful.queue, Forgetful)
    forgetful.queue.past = tuple(a_job(number, JobState.FAILED, end_time=NOW) for number in range(1, 21))

    verdicts = {f.subject: f.verdict for f in forgetful.tick() if f.subject != QUEUE}

    assert sorted(forgetful.queue.calls) == ["history", "jobs", *["presence"] * 3]
    assert list(verdicts.values()).count(CRITICAL) == 17 and list(verdicts.values()).count(UNKNOWN) == 3


def test_without_accounting_the_next_tick_is_the_second_query(forgetful: Stage) -> None:
    for number in range(1, 6):
        forgetful.run(f"run{number}", number)

    first = forgetful.finding("run5")
    forgetful.wait(60)
    second = forgetful.finding("run5")

    assert (first.verdict, second.verdict) == (UNKNOWN, CRITICAL)
    assert first.fault == second.fault == "not-queued", "one incident, that became worse"


def test_a_name_that_was_never_seen_is_critical_after_two_queries_of_the_queue(stage: Stage) -> None:
    stage.expect("CRITICAL not-queued", subject="nosuch", names=("nosuch",))
    assert stage.queue.calls == ["jobs", "jobs"]


def test_a_name_that_the_second_query_finds_is_alive(stage: Stage) -> None:
    stage.clock.at_sleep = lambda _: stage.add(a_job(1, **running()))
    stage.expect("OK", names=("gpt",))


def test_a_second_query_without_a_response_proves_nothing(stage: Stage) -> None:
    stage.clock.at_sleep = lambda _: setattr(stage.queue, "trouble", DOWN)
    assert stage.finding(names=("gpt",)).verdict is UNKNOWN


def test_a_cluster_that_hides_others_jobs_leaves_them_unknown(stage: Stage) -> None:
    stage.queue.answers = ClusterConfig("slurm", raw={"PrivateData": "accounts,jobs"})
    finding = stage.finding("gpt of bob", names=("gpt",), users=("bob",))
    assert finding.verdict is UNKNOWN and "PrivateData" in finding.summary


def test_a_finished_run_is_ok_and_is_dropped_after_a_day(stage: Stage) -> None:
    stage.finish(stage.run("gpt", 7))
    stage.expect("OK", "finished")
    stage.wait(25 * HOUR)
    assert [f.subject for f in stage.tick()] == [QUEUE]


def test_a_run_killed_on_purpose_is_ok_with_user_and_reason(stage: Stage) -> None:
    directory = stage.run("gpt", 7)
    stage.kill(directory, why="the loss is NaN", when=NOW - HOUR)

    stage.expect("OK", f"{ME} set the kill switch 1 h ago: the loss is NaN")
    assert stage.queue.calls == ["jobs"], "no confirmation is needed"


@pytest.mark.skipif(os.getuid() != 0, reason="only root can make a file of another user")
def test_a_rejected_kill_switch_excuses_nothing(stage: Stage) -> None:
    directory = stage.run("gpt", 7)
    stage.kill(directory)
    os.chown(directory.path / "switches" / "kill", 65534, 65534)
    os.chown(directory.path, 65533, 65533)
    assert stage.finding().fault == "not-queued"


def test_a_submission_in_progress_is_no_dead_run(stage: Stage) -> None:
    directory = stage.run("gpt", 7)
    stage.job(7, JobState.FAILED, end_time=NOW - 5)
    record_intent(directory, Intent("new", "fake", "", (), NOW - 3, by=ME))

    stage.expect("UNKNOWN not-queued", "began 3 s ago")


def test_a_run_without_any_job_is_reported_as_such(stage: Stage) -> None:
    directory = stage.run("gpt")
    record_intent(directory, Intent("aa", "fake", "", (), NOW - HOUR, by=ME))
    record_result(directory, "aa", Outcome.REFUSED, NOW - HOUR)
    stage.expect("CRITICAL not-queued", "no job was ever submitted")


@pytest.mark.parametrize(
    ("tail", "verdict"),
    [
        (b"", CRITICAL),
        (b'{"event": "intent", "tok', UNKNOWN),
        (b"\0" * 400, UNKNOWN),
        (b'garbage\n{"event": "note"}\n', UNKNOWN),
        (b'garbage\n{"event": "intent", "token": "gpt-7", "time": 1, "by": ""}\n', CRITICAL),
    ],
)
def test_a_run_with_a_damaged_journal_is_unknown_not_dead(stage: Stage, tail: bytes, verdict: Verdict) -> None:
    directory = stage.run("gpt", 7)
    stage.job(7, JobState.FAILED, end_time=NOW - 5)
    with open(directory.path / "submissions.jsonl", "ab") as file:
        file.write(tail)
    finding = stage.finding()
    assert finding.verdict is verdict
    assert ("submissions.jsonl is damaged" in finding.summary) == (verdict is UNKNOWN)


@pytest.mark.parametrize("loss", ["missing", "fifo", "empty"])
def test_a_run_that_has_lost_its_journal_is_no_dead_run(stage: Stage, loss: str) -> None:
    directory = stage.run("gpt", 7)
    journal = directory.path / "submissions.jsonl"
    journal.unlink()
    if loss == "fifo":
        os.mkfifo(journal)
    elif loss == "empty":
        journal.touch()
    (directory.path / "scripts" / "aa.sbatch").touch()
    assert stage.finding().verdict is UNKNOWN


def test_a_run_without_its_run_file_is_still_watched(stage: Stage) -> None:
    directory = stage.run("gpt", 7)
    (directory.path / "run.toml").unlink()
    stage.job(7, JobState.FAILED, end_time=NOW - 5)
    assert stage.finding().verdict is CRITICAL


@pytest.mark.parametrize("state", [JobState.NODE_FAIL, JobState.PREEMPTED, JobState.BOOT_FAIL])
def test_a_job_that_slurm_may_requeue_is_looked_up_again(forgetful: Stage, state: JobState) -> None:
    forgetful.run("gpt", 7)
    forgetful.job(7, state, end_time=NOW - 1)
    assert forgetful.finding().verdict is UNKNOWN


def test_a_sign_of_life_contradicts_a_queue_that_shows_nothing(forgetful: Stage) -> None:
    directory = forgetful.run("gpt", 7)
    forgetful.attempt(directory, 1, NOW - HOUR)
    beat = directory.path / "attempts" / "0001.beat"
    beat.write_text("")
    os.utime(beat, (NOW - 4, NOW - 4))
    forgetful.expect("UNKNOWN not-queued", "heartbeat 4 s ago")


# ---- no answer --------------------------------------------------------------------------------------------------


def test_a_scheduler_that_does_not_respond_is_one_unknown_and_no_run_is_reported_dead(stage: Stage) -> None:
    for number, run in enumerate(("gpt", "llama"), start=1):
        stage.run(run, number)
    stage.queue.trouble = DOWN
    finding = stage.expect("UNKNOWN unreachable", "squeue did not answer in 30 s", "not dead", subject=QUEUE)
    assert len(stage.tick()) == 1
    assert any("gpt, llama" in line for line in finding.evidence)


def test_an_unresponsive_scheduler_becomes_critical_after_the_configured_time_and_is_resolved(stage: Stage) -> None:
    stage.run("gpt", 1)
    stage.job(1, **running())
    verdicts = []
    for minute in range(7):
        stage.queue.trouble = DOWN if minute < 6 else None
        verdicts.append(stage.finding(QUEUE, unknown_critical_after_s=240.0).verdict)
        stage.wait(60)
    assert verdicts == [UNKNOWN, UNKNOWN, UNKNOWN, UNKNOWN, CRITICAL, CRITICAL, OK]
    stage.queue.trouble = DOWN
    assert stage.finding(QUEUE, unknown_critical_after_s=240.0).verdict is UNKNOWN, (
        "a new silence counts from its start"
    )


def test_a_run_whose_files_cannot_be_read_is_unknown_and_hides_no_other(stage: Stage) -> None:
    bad = stage.run("bad", 1)
    (bad.path / "submissions.jsonl").unlink()
    (bad.path / "submissions.jsonl").mkdir()
    stage.run("gpt", 2)
    stage.job(2, **running())

    verdicts = {f.subject: (f.verdict, f.fault) for f in stage.tick()}

    assert verdicts["bad"] == (UNKNOWN, "unreadable") and verdicts["gpt"] == (OK, "")


def test_a_run_of_another_scheduler_is_queried_there(stage: Stage) -> None:
    other = FakeScheduler(name="other")
    stage.project._clients["other"] = other
    stage.run("gpt", 1)
    stage.run("old", 2, scheduler="other")
    stage.job(1, **running())
    other.records.append(a_job(2, comment=make_comment("old", "old-2"), **running()))
    stage.queue.trouble = DOWN

    assert stage.verdicts() == {QUEUE: UNKNOWN, "old": OK, "queue of other": OK}


def test_a_run_of_a_removed_scheduler_is_unknown(stage: Stage) -> None:
    stage.run("gpt", 1, scheduler="pbs")
    assert stage.verdicts() == {"queue of pbs": UNKNOWN}


def test_an_expression_that_takes_for_ever_is_unknown_and_hides_no_other_name(stage: Stage) -> None:
    stage.add(a_job(1, name="a" * 70 + "!", **running()), a_job(2, **running()))
    assert stage.verdicts(names=("/^(a+)+$/", "gpt")) == {"/^(a+)+$/": UNKNOWN, "gpt": OK, QUEUE: OK}


# ---- the watchdog's own job -------------------------------------------------------------------------------------


def inside(stage: Stage, **variables: str) -> Stage:
    names = {"SLURM_JOB_ID": "50", "SLURM_JOB_NAME": "gpt", **variables}
    return Stage(stage.directory, stage.queue, environ=names)


SCRIPT = "/cron/slurm-status.slurm"
INSIDE: dict[str, tuple[list[Job], dict[str, str], dict[str, Verdict]]] = {
    # The published slurm-status.slurm has the watched name as its own: it finds itself RUNNING and never alerts.
    "in a job of the watched name, it does not find itself": (
        [a_job(50, **running())], {}, {"own-name": WARNING, "not-queued": CRITICAL}),
    "of the watched name, it still sees the training beside itself": (
        [a_job(50, **running()), a_job(51, command="/train.sbatch", **running())], {}, {"own-name": WARNING, "": OK}),
    # A watchdog that queues itself again each hour runs the same script under the same name.
    "its own successor is not the training": (
        [a_job(50, command=SCRIPT, **running()), a_job(51, JobState.PENDING, command=SCRIPT, reason="BeginTime")], {},
        {"own-name": WARNING, "not-queued": CRITICAL}),
    "a task of an array, it leaves out the array": (
        [a_job(49, task=1, **running(raw_id=50)), a_job(49, JobState.PENDING, tasks="2-9%1")],
        {"SLURM_ARRAY_JOB_ID": "49"}, {"own-name": WARNING, "not-queued": CRITICAL}),
    "with a name of its own, it is left out in silence": (
        [a_job(50, name="watch", **running()), a_job(51, **running())], {"SLURM_JOB_NAME": "watch"}, {"": OK}),
}  # fmt: skip


@pytest.mark.parametrize("claim", INSIDE)
def test_a_watchdog_that_runs_in_a_job(stage: Stage, claim: str) -> None:
    jobs, variables, expected = INSIDE[claim]
    stage.add(*jobs)
    assert inside(stage, **variables).faults("gp*", names=("gp*",)) == expected
    assert inside(stage, **variables).faults(names=("gpt",)) == expected


def test_numbers_of_a_slurm_job_mean_nothing_to_the_embedded_scheduler(stage: Stage) -> None:
    local = FakeScheduler(name="local", records=[a_job(50, **running())])
    assert inside(Stage(stage.directory, local)).faults(names=("gpt",)) == {"": OK}
    again = inside(Stage(stage.directory, local), RESIL_SCHEDULER="local").faults(names=("gpt",))
    assert again["not-queued"] is CRITICAL


def test_a_watchdog_that_runs_inside_a_run_counts_that_run_as_alive(stage: Stage) -> None:
    """A run is identified by its token, so no other job can be mistaken for it; a false alert would be worse."""
    stage.run("gpt", 50)
    stage.job(50, **running())
    assert inside(stage).faults() == {"": OK}


# ---- several clusters -------------------------------------------------------------------------------------------


def test_the_same_name_is_queried_on_each_cluster_and_an_unresponsive_one_hides_no_other(
    stage: Stage,
) -> None:
    for cluster in ("alpha", "beta", "gamma"):
        stage.project._clients[f"fake@{cluster}"] = FakeScheduler()
    alpha, beta, gamma = (stage.project._clients[f"fake@{name}"] for name in ("alpha", "beta", "gamma"))
    assert isinstance(alpha, FakeScheduler) and isinstance(gamma, FakeScheduler)
    alpha.records.append(a_job(1, **running()))
    gamma.trouble = DOWN

    assert stage.verdicts(names=("gpt",), clusters=("alpha", "beta", "gamma")) == {
        "gpt on alpha": OK, "queue of fake alpha": OK, "gpt on beta": CRITICAL, "queue of fake beta": OK,
        "queue of fake gamma": UNKNOWN,
    }  # fmt: skip
    assert stage.queue.calls == [] and isinstance(beta, FakeScheduler) and beta.calls == ["jobs", "jobs"]


def test_clusters_are_passed_to_slurm_as_its_clients_expect(stage: Stage) -> None:
    from resilience.schedulers.slurm import Slurm

    client = stage.project.scheduler("slurm", cluster="alpha")
    assert isinstance(client, Slurm) and client._client.environ["SLURM_CLUSTERS"] == "alpha"
    assert stage.project.scheduler("slurm", cluster="beta") is not client


def test_numbers_of_a_job_mean_nothing_to_another_cluster(stage: Stage) -> None:
    other = inside(stage, SLURM_CLUSTER_NAME="alpha")
    other.project._clients["fake@beta"] = FakeScheduler(records=[a_job(50, **running())])
    assert other.verdicts(names=("gpt",), clusters=("beta",))["gpt on beta"] is OK


# ---- names ------------------------------------------------------------------------------------------------------

NAMES = ["tr11-176B-ml-" + "x" * 90, "a b  c", "a|b|c", "two\nlines", "caf\udce9", "größe", "'quoted'", "%j", "-x"]


@pytest.mark.parametrize("name", NAMES)
def test_a_name_may_be_anything(stage: Stage, name: str) -> None:
    stage.add(a_job(1, name=name, **running()))
    found = stage.tick(names=(f"={name}",))
    assert [f.verdict for f in found] == [OK, OK]
    assert all(line.isprintable() for f in found for line in (f.subject, f.summary, *f.evidence, *f.looked))


def test_array_tasks_count_one_by_one_and_heterogeneous_jobs_once(stage: Stage) -> None:
    stage.queue.records += [
        a_job(10, task=3, **running(raw_id=13)),
        a_job(10, JobState.PENDING, tasks="4-9%1", task_count=6, reason="JobArrayTaskLimit"),
        a_job(20, JobState.PENDING, raw_id=20, reason="Priority"),
        a_job(20, JobState.PENDING, raw_id=21, reason="Priority"),  # a component of 20
    ]
    finding = stage.finding(names=("gpt",))
    figures = {figure.label: figure.value for figure in finding.figures}
    assert (figures["running"], figures["queued"]) == (1, 7)
    assert "job 10_3" in finding.summary


def test_the_explanation_has_the_age_of_the_query(stage: Stage) -> None:
    stage.run("gpt", 1)
    stage.job(1, **running())
    stage.tick()
    reading = stage.memory["gpt"]
    (finding,) = CHECK.judge("gpt", (reading,), CHECK.Settings(), NOW + 90)
    text = "\n".join(finding.looked)
    assert "one query of the fake queue for jobs of the current user" in text and "1 min 30 s old" in text
    assert "by the tokens in its journal" in text


class Slow(FakeScheduler):
    """A scheduler that responds after a minute."""

    clock: Any = None

    def jobs(self, **wishes: Any) -> tuple[Job, ...]:
        self.clock.sleep(60)
        return super().jobs(**wishes)


def test_no_time_left_is_unknown(stage: Stage) -> None:
    queue = Slow()
    slow = Stage(stage.directory, queue)
    queue.clock = slow.clock
    slow.run("gpt", 1)
    finding = slow.finding(deadline_s=70.0)
    assert finding.verdict is UNKNOWN and "no time left" in finding.summary


@pytest.mark.parametrize(
    ("own_s", "schedulers_s", "seconds"), [(75, 60, 75), (75, 240, 255), (5, 60, 75), (90, 60, 90)]
)
def test_the_probe_deadline_exceeds_the_schedulers(
    stage: Stage, own_s: float, schedulers_s: float, seconds: float
) -> None:
    context = context_of(stage.project)._replace(scheduler_deadline_s=schedulers_s)
    assert [target.deadline_s for target in CHECK.targets(JobSettings(deadline_s=own_s), context)] == [seconds]


def test_a_longer_scheduler_timeout_in_the_settings_is_respected(stage: Stage) -> None:
    settings = replace(stage.project.loaded.settings, scheduler=SchedulerSettings(deadline_s=600.0))
    project = replace(stage.project, loaded=stage.project.loaded._replace(settings=settings))
    assert [target.deadline_s for target in CHECK.targets(JobSettings(), context_of(project))] == [615.0]


def test_a_renamed_job_is_not_found_under_its_old_name(stage: Stage) -> None:
    stage.add(a_job(1, **running()))
    stage.tick(names=("gpt",))
    stage.queue.records[0] = replace(stage.queue.records[0], name="renamed")
    assert stage.finding(names=("gpt",)).verdict is CRITICAL
