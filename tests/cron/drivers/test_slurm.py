"""The chain of jobs where no SLURM is: the embedded scheduler's queue makes the ticks."""

from __future__ import annotations

import re
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest

from resilience.cron.drivers._slurm.keeper import token_in
from resilience.cron.drivers.slurm import DRIVER, _judge
from resilience.cron.install import install, uninstall
from resilience.cron.records import Outcome, RunRecord
from resilience.cron.state_directory import CronDirectory
from resilience.errors import SchedulerError
from resilience.job import Job, JobId, JobState, Liveness
from resilience.runs.context import Context
from resilience.runs.project import Project
from resilience.settings.cron_settings import CronSettings
from resilience.settings.load import load
from resilience.system.ports import System
from tests.cron.drivers.test_slurm_keeper import INSTALLED, Queue
from tests.lab.fakes import DOWN, NOW, make_system
from tests.lab.waiting import until
from tests.schedulers import spooled
from tests.schedulers.spooled import Lab

SETTINGS = """\
[scheduler]
name = "local"
[cron]
backend = "slurm"
mode = "{mode}"
tick_s = 1
pulse_s = 2
time_limit_s = 120
jitter_s = 0
[cron.sbatch]
mem = ""
"""


@dataclass
class Site:
    lab: Lab
    mode: str

    def __post_init__(self) -> None:
        self.directory = self.lab.directory / self.mode
        (self.directory / "cron").mkdir(parents=True)
        (self.directory / "cron" / "crontab").write_text("@every 1s /bin/true # resil: name=beat catch_up=none\n")
        (self.directory / "resil.toml").write_text(SETTINGS.format(mode=self.mode))

    @property
    def project(self) -> Project:
        system = System(environ=self.lab.environ, cwd=self.directory)
        return Project(system, load(system))

    @property
    def cron(self) -> CronDirectory:
        return CronDirectory(self.directory / ".resil")

    def ran(self) -> list[RunRecord]:
        return [run for run in self.cron.history("crontab+beat") if run.outcome is Outcome.DONE]

    def alive(self) -> list[Job]:
        jobs = self.project.scheduler().jobs()
        return sorted((job for job in jobs if token_in(job) is not None), key=lambda job: job.id)

    def ticks_on(self) -> None:
        before = max((run.slot for run in self.ran()), default=0)
        until(lambda: max((run.slot for run in self.ran()), default=0) > before + 1, timeout_s=60, what="ticks")


@pytest.fixture
def lab(tmp_path: Path) -> Iterator[Lab]:
    with spooled.lab(tmp_path) as lab:
        yield lab


@pytest.fixture(params=["daemon", "pulse"])
def site(lab: Lab, request: pytest.FixtureRequest) -> Iterator[Site]:
    site = Site(lab, request.param)
    install(site.project)
    yield site
    uninstall(site.project, force=True)


def test_the_chain_ticks_survives_a_cancel_is_revived_and_stops(site: Site) -> None:
    site.ticks_on()
    until(lambda: len([job for job in site.alive() if job.state.is_waiting]) == 2, timeout_s=60, what="two successors")
    assert install(site.project).lines == (), "it is there already"
    if site.mode == "daemon":
        running = next(job for job in site.alive() if not job.state.is_waiting)
        site.project.scheduler().cancel([running.id])
        site.ticks_on()
    site.project.scheduler().cancel([job.id for job in site.alive() if job.state.is_waiting])
    site.project.scheduler().cancel([job.id for job in site.alive()])
    revive = ["/bin/bash", str(site.cron.path / "revive.bash")]

    def revived() -> bool:
        code = subprocess.run(revive, env={"PATH": "/bin"}, stdout=subprocess.DEVNULL, timeout=60).returncode
        assert code in (0, 10)
        return bool(site.alive())

    until(revived, timeout_s=60, what="a job again")
    site.ticks_on()
    uninstall(site.project)
    assert not [job for job in site.alive() if job.state.is_waiting]
    until(lambda: not site.alive(), timeout_s=60, what="the last job to leave")


def test_a_second_project_of_the_same_user_has_its_own_chain(lab: Lab) -> None:
    sites = [Site(lab, "daemon"), Site(lab, "pulse")]
    for site in sites:
        install(site.project)
    try:
        for site in sites:
            site.ticks_on()
        uninstall(sites[0].project)
        sites[1].ticks_on()
    finally:
        for site in sites:
            uninstall(site.project, force=True)


# ---- what the queue says about it ---------------------------------------------------------------------------------


def job(number: int, token: str, state: JobState, reason: str = "None") -> Job:
    comment = f"resil:.cron:{INSTALLED.token}-{token}"
    return Job(id=JobId(number), raw_id=number, name="x", state=state, reason=reason, comment=comment)


RUNS = replace(job(88, "d0.1", JobState.RUNNING), nodes="n1", end_time=NOW + 3600)
CASES = {
    "well": (
        (RUNS, job(89, "d88.1", JobState.PENDING), job(90, "d88.2", JobState.PENDING)),
        "ALIVE",
        "jobs 89, 90 are queued",
    ),
    "no successor": ((RUNS,), "ALIVE", "no job is queued behind it"),
    "gone": ((), "GONE", "broken"),
    "ending": ((job(88, "d0.1", JobState.COMPLETING),), "GONE", "broken"),
    "held": ((job(89, "d0.1", JobState.PENDING, "JobHeldUser"),), "ALIVE", "held by its owner"),
    "never": ((job(89, "d0.1", JobState.PENDING, "PartitionTimeLimit"),), "ALIVE", "more time than the partition"),
}


@pytest.mark.parametrize("case", CASES)
def test_the_state_of_the_chain_is_described(case: str) -> None:
    jobs, liveness, words = CASES[case]
    state = _judge(jobs, INSTALLED, CronSettings(), NOW)
    assert (str(state.liveness), words in state.summary) == (liveness, True), state.summary


def test_an_end_on_another_day_is_shown_with_its_date() -> None:
    tomorrow = replace(RUNS, end_time=NOW + 86_400)
    assert re.search(r"until \d{4}-\d\d-\d\d \d\d:\d\d", _judge((tomorrow,), INSTALLED, CronSettings(), NOW).summary)


def context(tmp_path: Path, queue: Queue) -> Context:
    return Context(make_system(tmp_path), tmp_path, tmp_path / ".resil", "x", "", lambda *_, **__: queue)


def test_a_queue_that_does_not_answer_is_unknown_and_not_available(tmp_path: Path) -> None:
    there = context(tmp_path, Queue(trouble=DOWN))
    assert DRIVER.state(INSTALLED, CronSettings(), there).liveness is Liveness.UNKNOWN
    assert not DRIVER.availability(there).is_available


def test_an_operator_sees_the_owners_jobs_and_never_concludes_dead_from_none(tmp_path: Path) -> None:
    theirs = replace(INSTALLED, by="bob")
    queue = Queue()
    there = context(tmp_path, queue)
    assert DRIVER.state(theirs, CronSettings(), there).liveness is Liveness.UNKNOWN
    queue.records = [replace(RUNS, name=f"resil-cron-{INSTALLED.token[:8]}", user="bob")]
    assert DRIVER.state(theirs, CronSettings(), there).liveness is Liveness.ALIVE


def test_a_refused_first_job_leaves_nothing_half_done(tmp_path: Path) -> None:
    there = context(tmp_path, Queue(refusals={1: SchedulerError("sbatch: no", hint="ask")}))
    CronDirectory(tmp_path / ".resil").install(INSTALLED)
    with pytest.raises(SchedulerError, match="could not be queued: sbatch: no"):
        DRIVER.install(INSTALLED, CronSettings(), there)
    assert not (tmp_path / ".resil" / ".cron" / "revive.bash").exists()


def test_a_refused_second_job_is_reported_and_the_chain_starts(tmp_path: Path) -> None:
    queue = Queue(refusals={2: SchedulerError("sbatch: QOSMaxSubmitJobPerUserLimit")})
    CronDirectory(tmp_path / ".resil").install(INSTALLED)
    done = DRIVER.install(INSTALLED, CronSettings(), context(tmp_path, queue))
    assert any("QOSMaxSubmit" in line for line in done)
    assert any("queued job 101" in line for line in done)


def test_a_job_that_slurm_accepts_but_cannot_start_is_refused(tmp_path: Path) -> None:
    """EnforcePartLimits=NO, SLURM's default: a time limit beyond the partition's is accepted, and pends for ever."""

    class Taker(Queue):
        def jobs(self, **wishes: Any) -> tuple[Job, ...]:
            found = super().jobs(**wishes)
            return tuple(replace(job, reason="PartitionTimeLimit") for job in found)

    queue = Taker()
    CronDirectory(tmp_path / ".resil").install(INSTALLED)
    with pytest.raises(SchedulerError, match="cannot start it") as refused:
        DRIVER.install(INSTALLED, CronSettings(), context(tmp_path, queue))
    assert "time_limit_s" in refused.value.hint
    assert not [job for job in queue.records if job.state.is_alive]


def test_a_dry_run_shows_the_script_and_the_commands_and_changes_nothing(tmp_path: Path) -> None:
    queue = Queue()
    steps = DRIVER.plan(INSTALLED, CronSettings(), context(tmp_path, queue))
    assert "#!/bin/bash" in steps[0].text
    assert "--dependency=singleton" in steps[-1].text
    assert not queue.submissions
    assert not (tmp_path / ".resil").exists()
