"""The chain of jobs where no SLURM is: the embedded scheduler's queue makes the ticks."""

from __future__ import annotations

import json
import re
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest

from resilience.cron.drivers import availability_of, state_of
from resilience.cron.drivers._slurm.keeper import ChainJob
from resilience.cron.drivers.slurm import DRIVER, judge_chain
from resilience.cron.install import install, uninstall
from resilience.cron.records import Outcome, RunRecord
from resilience.cron.state_directory import CronDirectory
from resilience.errors import SchedulerError
from resilience.job import Job, JobState, Liveness
from resilience.runs.project import Project
from resilience.settings.cron_settings import CronSettings
from resilience.settings.load import load
from resilience.system.ports import System
from tests.cron.drivers.site import Site as Machine
from tests.cron.drivers.site import an_installation
from tests.cron.drivers.slurm_programs import REFUSED
from tests.lab.fakes import NOW
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
time_limit_s = 1200
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
        return sorted((job for job in jobs if "resil:.cron:" in job.comment), key=lambda job: job.id)

    def ticks_on(self) -> None:
        before = max((run.slot for run in self.ran()), default=0)
        until(lambda: max((run.slot for run in self.ran()), default=0) > before + 1, timeout_s=60, what="ticks")

    def is_whole(self) -> None:
        """Wait for two successors: pulses, or a spare and a head that is newer."""

        def kinds() -> list[str]:
            waiting = [job for job in self.alive() if job.state.is_waiting]
            return [job.comment.partition("-")[2][0] for job in sorted(waiting, key=lambda job: job.id)]

        until(lambda: kinds() in (["s", "h"], ["p", "p"]), timeout_s=60, what="two successors")


@pytest.fixture
def lab(tmp_path: Path) -> Iterator[Lab]:
    with spooled.lab(tmp_path) as lab:
        lab.environ["RESIL_LOCAL_KILL_WAIT_S"] = "20"  # the last word of a job takes a few seconds, as on a cluster
        yield lab


@pytest.fixture(params=["daemon", "pulse"])
def site(lab: Lab, request: pytest.FixtureRequest) -> Iterator[Site]:
    site = Site(lab, request.param)
    install(site.project)
    yield site
    uninstall(site.project, force=True)


def test_the_chain_ticks_survives_a_cancel_is_revived_and_stops(site: Site) -> None:
    site.ticks_on()
    site.is_whole()
    # A pulse may have begun since, and its successor is missing for a moment.
    until(
        lambda: not any("queued" in line for line in install(site.project).lines),
        "install to find it whole",
        timeout_s=60,
    )
    if site.mode == "daemon":
        running = next(job for job in site.alive() if not job.state.is_waiting)
        site.project.scheduler().cancel([running.id])
        site.ticks_on()
        site.is_whole()
    site.project.scheduler().cancel([job.id for job in site.alive() if job.state.is_waiting])
    site.project.scheduler().cancel([job.id for job in site.alive()])
    if site.mode == "daemon":
        until(lambda: site.cron.stopped() is not None, timeout_s=60, what="the stop that this means")
        until(lambda: not site.alive(), timeout_s=60, what="the last job to leave")
    revive = ["/bin/bash", str(site.cron.path / "revive.bash")]

    def revived() -> bool:
        site.cron.unstop()  # a pulse may have run, too
        done = subprocess.run(revive, env={"PATH": "/bin"}, stdout=subprocess.PIPE, text=True, timeout=60)
        # A pulse that was cancelled may say only now that it was stopped.
        assert done.returncode in (0, 10) or "the scheduler was stopped" in done.stdout, done.stdout
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


def job(number: int, kind: str, state: str, **fields: Any) -> ChainJob:
    usual: dict[str, Any] = {"begin": 0, "start": None, "end": None, "node": "", "reason": "None", "trouble": ""}
    return ChainJob(number, JobState(state), kind, **(usual | fields))


RUNS = job(88, "s", "RUNNING", node="n1", start=NOW - 3600, end=NOW + 3600)
SPARE = job(89, "s", "PENDING", reason="Dependency")
HEAD = job(90, "h", "PENDING", begin=int(NOW) + 600, reason="BeginTime", start=NOW + 900)
LATER = job(91, "s", "PENDING", begin=int(NOW) + 7200, reason="BeginTime")
CASES: dict[str, tuple[tuple[ChainJob, ...], str, str, float | None]] = {
    "well": ((RUNS, SPARE, HEAD), "ALIVE", "jobs 89, 90 are queued behind it", 0),
    "two run": ((RUNS, job(90, "h", "RUNNING", node="n2"), SPARE), "ALIVE", "job 90 runs on n2", 0),
    "no successor": ((RUNS,), "ALIVE", "no job is queued behind it", 0),
    "gone": ((), "GONE", "broken", None),
    "ending": ((job(88, "s", "COMPLETING"),), "GONE", "broken", None),
    "ended in trouble": ((job(88, "d", "FAILED", trouble="/state is missing"),), "GONE", "job 88 failed: /state", None),
    "in an hour": ((HEAD._replace(start=None, begin=int(NOW) + 3600), LATER), "ALIVE", "the next one begins at", 3600),
    "the spare waits for the first job": (
        (HEAD._replace(kind="s", begin=0, reason="Priority"), SPARE._replace(id=91)), "ALIVE", "(SLURM's estimate)", 900
    ),
    "the spare is about to begin": ((SPARE, HEAD), "ALIVE", "jobs 89, 90 are queued", 0),
    "SLURM says when": ((HEAD, LATER), "ALIVE", "(SLURM's estimate)", 900),
    "after a failure": (
        (job(88, "d", "FAILED", trouble="it ended with code 1"), HEAD, LATER), "ALIVE", "job 88 failed: it ended", 900
    ),
    "held": ((job(89, "s", "PENDING", reason="JobHeldUser"),), "ALIVE", "held by its owner", 0),
    "never": ((job(89, "s", "PENDING", reason="PartitionTimeLimit"),), "ALIVE", "more time than the partition", 0),
}  # fmt: skip


@pytest.mark.parametrize("case", CASES)
def test_the_state_of_the_chain_is_described(case: str) -> None:
    jobs, liveness, words, next_in = CASES[case]
    state = judge_chain(jobs, is_daemon=True, now=NOW)
    assert (str(state.liveness), words in state.summary) == (liveness, True), state.summary
    assert state.next_tick == (None if next_in is None else NOW + next_in)


def test_a_chain_that_waits_for_its_turn_says_what_may_begin_earlier() -> None:
    state = judge_chain((HEAD._replace(reason="Priority"),), is_daemon=True, now=NOW)
    assert "time_limit_s" in state.hint


def test_an_end_on_another_day_is_shown_with_its_date() -> None:
    tomorrow = RUNS._replace(end=NOW + 86_400)
    summary = judge_chain((tomorrow,), is_daemon=True, now=NOW).summary
    assert re.search(r"until \d\d [A-Z][a-z]+ \d\d:\d\d", summary)


# ---- install --------------------------------------------------------------------------------------------------------


@pytest.fixture
def machine(tmp_path: Path) -> Machine:
    machine = Machine(tmp_path)
    machine.directory_of().install(an_installation(machine.context(), "slurm", mode="daemon"))
    return machine


USUAL = CronSettings()


def installed(machine: Machine, settings: CronSettings = USUAL) -> list[str]:
    context = machine.context()
    return list(DRIVER.install(an_installation(context, "slurm", mode=settings.mode), settings, context))


def test_a_queue_that_does_not_answer_is_unknown_and_not_available(machine: Machine) -> None:
    machine.stop_controller()
    installation = an_installation(machine.context(), "slurm", mode="daemon")
    assert state_of(DRIVER, installation, CronSettings(), machine.context()).liveness is Liveness.UNKNOWN
    assert not availability_of(DRIVER, machine.context()).is_available


def test_an_operator_sees_the_owners_jobs_and_never_concludes_dead_from_none(machine: Machine) -> None:
    theirs = replace(an_installation(machine.context(), "slurm", mode="daemon"), by="bob")
    assert state_of(DRIVER, theirs, CronSettings(), machine.context()).liveness is Liveness.UNKNOWN
    machine.slurm.queue(f"88|RUNNING|1|2|n1|None|resil:.cron:{theirs.token}-s0.1")
    assert state_of(DRIVER, theirs, CronSettings(), machine.context()).liveness is Liveness.ALIVE
    assert "-u bob" in machine.slurm.calls("squeue")[-1]


def test_a_refused_first_job_leaves_nothing_half_done(machine: Machine) -> None:
    machine.slurm.fault("sbatch", REFUSED)
    with pytest.raises(SchedulerError, match=r"could not be queued: sbatch: .*accounting/QOS policy"):
        installed(machine)
    assert not (machine.directory_of().path / "revive.bash").exists()


def test_a_refused_second_job_is_reported_and_the_chain_starts(machine: Machine) -> None:
    machine.slurm.fault("sbatch", f"if [[ -e submitted ]]; then {REFUSED}; fi")
    done = installed(machine)
    assert any("accounting/QOS policy" in line for line in done)
    assert any("queued job 101" in line for line in done)


def test_a_job_that_slurm_accepts_but_cannot_start_is_refused(machine: Machine) -> None:
    """EnforcePartLimits=NO, SLURM's default: a time limit beyond an account's is accepted, and pends for ever."""
    machine.slurm.fault("sbatch", "REASON=PartitionTimeLimit")
    with pytest.raises(SchedulerError, match="cannot start it") as refused:
        installed(machine)
    assert "time_limit_s" in refused.value.hint
    assert not machine.slurm.alive()


def test_a_pending_first_job_is_told_with_slurms_estimate(machine: Machine) -> None:
    start = int(NOW) + 1800
    machine.slurm.fault("squeue", f"sed -i 's/|PENDING|N.A|/|PENDING|{start}|/' queue")
    (said,) = [line for line in installed(machine) if "is pending" in line]
    assert said.startswith(
        "job 101 is pending: others are before it in the queue (Priority); SLURM expects it to begin"
    )


@pytest.mark.parametrize(
    ("fault", "said"),
    [
        ("sed -i 's/|PENDING|/|FAILED|/; s/s0[.]\\w*$/& failed: .resil is missing on n1/' queue", "is missing on n1"),
        ("sed -i 's/|PENDING|/|TIMEOUT|/' queue", "it ended as TIMEOUT without a tick"),
    ],
)
def test_a_first_job_that_dies_is_an_error_with_the_reason(machine: Machine, fault: str, said: str) -> None:
    """A state directory that nodes never see: the job tells SLURM, in its comment."""
    machine.slurm.fault("squeue", fault)
    with pytest.raises(SchedulerError, match=f"first job 101.* failed: .*{said}") as refused:
        installed(machine)
    assert "state_dir" in refused.value.hint
    assert not machine.slurm.alive() and not (machine.directory_of().path / "revive.bash").exists()


def test_the_first_tick_is_proved(machine: Machine) -> None:
    beat = json.dumps({"time": NOW, "expected": NOW + 60, "alive_since": NOW, "job_id": "101", "host": "n1"})
    machine.slurm.fault("squeue", f"echo '{beat}' >{machine.directory_of().path}/heartbeat")
    assert "job 101 ticks on n1" in installed(machine)


@pytest.mark.parametrize(
    ("limits", "minutes"),
    [
        ("partition main*|1:00:00\npartition long|infinite\n", "60"),
        ("partition main*|infinite\n", "1440"),
        ("partition main|5\npartition other*|2-00:00:00\n", "1440"),
    ],
)
def test_a_time_limit_above_the_partitions_is_clamped_and_said(machine: Machine, limits: str, minutes: str) -> None:
    (machine.slurm.directory / "limits").write_text(limits)
    done = installed(machine)
    assert f"--time={minutes}" in machine.slurm.submitted[0]
    assert any("the partition allows 1 h" in line for line in done) is (minutes == "60")
    assert installed(machine) == [], "and the same again is no change"


def test_the_partition_of_the_jobs_counts(machine: Machine) -> None:
    (machine.slurm.directory / "limits").write_text("partition main*|infinite\npartition short|10:00\n")
    installed(machine, CronSettings(sbatch={"partition": "short"}))
    assert "--time=10" in machine.slurm.submitted[0]


def test_changed_options_replace_what_waits(machine: Machine) -> None:
    installed(machine)
    done = installed(machine, CronSettings(sbatch={"partition": "short"}))
    assert any("cancelled surplus jobs 101, 102" in line for line in done)
    assert machine.slurm.alive() == [103, 104]


def test_a_chain_that_install_made_whole_is_in_no_trouble_any_more(machine: Machine) -> None:
    installed(machine)
    noted = machine.directory_of().path / "driver" / "trouble"
    noted.write_text("the scheduler ended with code 127\n")
    machine.slurm.change(101, state="FAILED")
    machine.slurm.fault("sbatch", REFUSED)
    assert installed(machine) and noted.exists()
    machine.slurm.mend("sbatch")
    installed(machine)
    assert not noted.exists()


def test_a_dry_run_shows_the_script_and_the_commands_and_changes_nothing(machine: Machine) -> None:
    before = machine.snapshot()
    steps = DRIVER.plan(an_installation(machine.context(), "slurm", mode="daemon"), CronSettings(), machine.context())
    assert "#!/bin/bash" in steps[0].text
    assert "--dependency=singleton" in steps[-1].text
    assert not machine.slurm.submitted and machine.snapshot() == before
