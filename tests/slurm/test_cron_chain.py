"""The scheduler's chain of jobs on a real SLURM: days in fast time, and everything that broke the scripts before it.

slurmctld looks at time limits every 30 s and gives a silent node up after some 15 s. So the stories of this file begin
at once, each in a project of its own, on a cluster of its own, and each test waits for its own.
"""

from __future__ import annotations

import contextlib
import shutil
import subprocess
import time
from collections.abc import Iterator
from dataclasses import dataclass, field

import pytest

from resilience.cron.records import Outcome
from tests.cron.records import running
from tests.lab.slurm import accounting, host
from tests.lab.slurm.cluster import Cluster
from tests.lab.slurm.cron_site import Site
from tests.lab.slurm.processes import PATIENCE_S, until

HEALTHY, DOOMED = "n[1-3]", "n[4-5]"
SLOW = "@every 4s /bin/true # resil: name=beat catch_up=none\n"
QUICK = 180
"""Seconds of a daemon's time limit, which make it look after its successors every 9 s."""

# Stands before SLURM's own sbatch on the PATH of a project: it waits at a gate, or refuses, when the test says so.
SBATCH = """\
#!/bin/sh
here=$(dirname "$0")
if test -e "$here/closed"; then
  echo 'sbatch: error: Batch job submission failed: Access/permission denied' >&2
  exit 1
fi
if test -e "$here/gate"; then
  touch "$here/at-gate"
  while test -e "$here/gate"; do sleep 0.05; done
fi
exec {sbatch} "$@"
"""


@dataclass
class Stories:
    cluster: Cluster
    sites: dict[str, Site] = field(default_factory=dict)

    def begin(
        self, name: str, user: int = 0, *, wrapped: bool = False, exclude: str = DOOMED, **wishes: object
    ) -> Site:
        site = Site(self.cluster, name, self.cluster.users[user], sbatch=f'exclude = "{exclude}"', **wishes)  # type: ignore[arg-type]
        site.make()
        if wrapped:
            site.write("bin/sbatch", SBATCH.format(sbatch=shutil.which("sbatch", path=host.PATH)))
            self.cluster.run(["chmod", "755", site.directory / "bin" / "sbatch"], site.user, check=True)
            site.env = {"PATH": f"{site.directory}/bin:{self.cluster.env['PATH']}"}
        self.sites[name] = site
        return site

    def whole(self, name: str) -> Site:
        """Wait until one job of the chain runs and two wait."""
        site = self.sites[name]
        try:
            until(site.is_whole, f"the chain of {name} to be whole", every_s=0.2)
        except TimeoutError as error:
            raise TimeoutError(f"{error}\n{site.rows()}\n{site.log()}") from None
        return site

    def cancel_waiting(self, name: str) -> None:
        site = self.sites[name]
        self.cluster.run(["scancel", *(row.id for row in site.waiting())], site.user, check=True)

    def break_them(self) -> None:
        """Do at once what takes long to be felt."""
        self.cluster.fail_node(self.whole("killed").running()[0].node)
        (self.whole("wrapped").directory / "bin" / "closed").touch()
        self.cancel_waiting("wrapped")
        self.whole("limited")
        if not ACCOUNTING:
            self.limit("MaxSubmitJobs=2")
            self.cancel_waiting("limited")
        (job,) = self.whole("requeued by force").running()
        self.cluster.run(["scontrol", "update", f"jobid={job.id}", "requeue=1"], check=True)
        self.cluster.run(["scontrol", "requeue", job.id], check=True)

    def limit(self, words: str) -> None:
        self.cluster.run(["sacctmgr", "-i", "modify", "user", self.sites["limited"].user, "set", words], check=True)


ACCOUNTING = Cluster.requirements(dbd=True)


@pytest.fixture(scope="module")
def stories() -> Iterator[Stories]:
    with Cluster(nodes=5, dbd=not ACCOUNTING, extra="" if ACCOUNTING else "AccountingStorageEnforce=limits") as cluster:
        stories = Stories(cluster)
        every = "@every 2s /bin/true # resil: name=beat catch_up=all<=1000\n"  # a busy machine may pass over one
        stories.begin("daemon day", limit_s=60, crontab=every)
        stories.begin("pulse day", mode="pulse", crontab="@every 3s /bin/true # resil: name=beat catch_up=none\n")
        stories.begin("twice", crontab=SLOW)
        stories.begin("cancelled", crontab=SLOW + "@every 5s /bin/sleep 300 # resil: name=long\n")
        stories.begin("killed", exclude=HEALTHY, crontab=SLOW)
        stories.begin("requeued", crontab=SLOW)
        stories.begin("requeued by force", crontab=SLOW)
        stories.begin("wrapped", wrapped=True, limit_s=QUICK, crontab=SLOW)
        stories.begin("limited", user=1, limit_s=QUICK, crontab=SLOW)
        stories.begin("empty", crontab="", mode="pulse")
        with (cluster.root / "installs").open("w+") as said:
            installs = [
                cluster.popen(
                    ["resil", "cron", "install", "--backend", "slurm"], site.user, site.directory, env=site.env,
                              stdout=said, stderr=said)
                for site in (*stories.sites.values(), stories.sites["twice"])
            ]  # fmt: skip
            codes = [process.wait(PATIENCE_S) for process in installs]
            assert set(codes) == {0}, (cluster.root / "installs").read_text()
        stories.break_them()
        yield stories


def not_too_many(site: Site) -> None:
    """A late pulse queues those of the next slots first, and then cancels those whose slots are past."""
    until(lambda: len(site.waiting()) <= 2, f"no more than two to wait in {site.name}", every_s=0.1)


def test_two_who_install_at_once_get_one_chain(stories: Stories) -> None:
    site = stories.whole("twice")
    done = site.install()
    assert "queued" not in done
    until(lambda: site.kinds() == ["s", "h"], "a spare and a head", every_s=0.2)
    assert [row.state for row in site.rows() if row.state != "CANCELLED"] == ["RUNNING", "PENDING", "PENDING"]


def test_a_cancelled_scheduler_ends_what_it_runs_and_the_next_one_goes_on(stories: Stories) -> None:
    site = stories.whole("cancelled")
    until(lambda: "long" in {run.key.rpartition("+")[2] for run in running(site.cron)}, "a long run", every_s=0.1)
    long = next(run for run in running(site.cron) if run.key.endswith("long"))
    (old,) = site.running()
    stories.cluster.run(["scancel", old.id], site.user, check=True)
    until(lambda: bool(site.running()) and site.running()[0].id != old.id, "the next job", every_s=0.1)

    def ends() -> list[Outcome]:
        return [run.outcome for run in site.runs("crontab+long") if run.slot == long.slot]

    until(lambda: bool(ends()), "its end to be recorded", every_s=0.1)
    assert ends()[-1].is_failure
    site.ticks_on()
    stories.whole("cancelled")
    site.each_slot_ran_once()


def test_root_cannot_requeue_it_into_a_second_one(stories: Stories) -> None:
    site = stories.whole("requeued")
    (old,) = site.running()
    done = stories.cluster.run(["scontrol", "requeue", old.id])
    assert done.returncode != 0
    assert "disabled" in done.stdout + done.stderr
    site.ticks_on()
    assert [row.id for row in site.running()] == [old.id]


def test_a_site_that_requeues_it_all_the_same_neither_doubles_nor_ends_the_chain(stories: Stories) -> None:
    """Some rewrite what jobs ask for. A requeued job keeps its id and is the first of the chain again: `singleton`
    holds the others until it has run. SLURM lets it begin 11 s later here, 121 s with its defaults."""
    site = stories.sites["requeued by force"]
    old = site.rows()[0]
    site.ticks_on()
    assert [row.id for row in stories.whole(site.name).running()] == [old.id]
    assert "Restarts=1" in stories.cluster.run(["scontrol", "show", "job", old.id]).stdout
    site.each_slot_ran_once()


def test_two_schedulers_at_one_table_run_each_slot_once(stories: Stories) -> None:
    """The chain, and somebody's own in the foreground."""
    site = stories.whole("requeued")
    other = stories.cluster.popen(
        ["resil", "cron", "run"], site.user, site.directory, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
    )
    try:
        for _ in range(2):
            site.ticks_on()
    finally:
        other.terminate()
        other.wait(PATIENCE_S)
    site.each_slot_ran_once()


def test_where_sbatch_refuses_the_chain_tells_and_is_whole_again_later(stories: Stories) -> None:
    """Such a site lets no job submit jobs."""
    site = stories.sites["wrapped"]
    until(lambda: bool(site.trouble()), "the refusal", every_s=0.1)
    assert "jobs apparently cannot submit jobs here" in site.trouble()
    assert "Access/permission denied" in site.trouble()
    assert "--backend foreground" in site.trouble(), "another way is offered"
    assert "jobs apparently cannot submit jobs here" in site.resil("watch", "cron").stdout
    site.ticks_on("the scheduler to tick without successors")
    (site.directory / "bin" / "closed").unlink()
    stories.whole("wrapped")
    until(lambda: not site.trouble(), "the end of the trouble to be told", every_s=0.1)


@pytest.mark.skipif(bool(ACCOUNTING), reason=f"no SLURM accounting: {'; '.join(ACCOUNTING)}; {accounting.HOW_TO_GET}")
def test_a_submit_limit_that_is_reached_is_told_and_does_not_end_the_chain(stories: Stories) -> None:
    site = stories.sites["limited"]
    until(lambda: "Limit" in site.trouble(), "the limit to be told", every_s=0.1)
    until(lambda: len(site.waiting()) == 1, "one successor all the same", every_s=0.1)
    stories.limit("MaxSubmitJobs=-1")
    stories.whole("limited")
    until(lambda: not site.trouble(), "the end of the trouble to be told", every_s=0.1)


def test_a_killed_node_takes_one_job_and_not_the_chain(stories: Stories) -> None:
    site = stories.sites["killed"]
    old = site.rows()[0]
    until(lambda: bool(site.running()) and site.running()[0].id != old.id, "SLURM to give the node up", every_s=0.2)
    site.ticks_on()
    assert {row.id: row.state for row in site.rows()}[old.id] == "NODE_FAIL"
    stories.whole("killed")
    site.each_slot_ran_once()


def test_an_empty_cron_directory_submits_nothing_but_the_chain(stories: Stories) -> None:
    """Not a literal `*.slurm`, and no error each time."""
    site = stories.sites["empty"]
    until(lambda: len([row for row in site.rows() if row.state == "COMPLETED"]) >= 2, "two pulses", every_s=0.2)
    assert site.resil("cron", "list").returncode == 0
    assert not site.trouble()
    assert "error" not in site.log()


def test_a_day_of_a_daemon_has_all_its_slots_once_through_its_hand_overs(stories: Stories) -> None:
    site = stories.sites["daemon day"]
    until(lambda: len([row for row in site.rows() if row.state == "COMPLETED"]) >= 1, "a hand-over", every_s=0.2)
    site.ticks_on()
    stories.whole("daemon day")
    site.each_slot_ran_once()
    assert not site.gaps(), "through the hand-over"
    begun = {row.state for row in site.rows() if row.node}
    assert begun <= {"COMPLETED", "RUNNING", "COMPLETING"}, "none was killed"


def test_a_day_of_pulses_stays_on_its_slots(stories: Stories) -> None:
    site = stories.sites["pulse day"]
    until(lambda: len([row for row in site.rows() if row.state == "COMPLETED"]) >= 8, "eight pulses", every_s=0.2)
    site.each_slot_ran_once()
    assert {run.slot % 3 for run in site.runs()} == {0}
    begun = [row for row in site.rows() if row.state in ("COMPLETED", "RUNNING")]
    slots = [row.comment.rpartition("-p")[2] for row in begun]
    assert len(set(slots)) == len(slots), "one pulse for each slot"
    not_too_many(site)


def test_a_hung_controller_that_took_the_successor_gets_it_once(stories: Stories) -> None:
    """Sbatch times out, and its job is there when slurmctld goes on. All other chains look meanwhile, too."""
    cluster, site = stories.cluster, stories.whole("wrapped")
    gate = site.directory / "bin" / "gate"
    gate.touch()
    cluster.run(["scancel", site.waiting()[-1].id], site.user, check=True)
    until((site.directory / "bin" / "at-gate").exists, "sbatch at the gate")
    cluster.stop_controller()
    try:
        gate.unlink()
        before = max(run.slot for run in site.runs())
        time.sleep(8)  # longer than MessageTimeout: sbatch gives up
        until(lambda: max(run.slot for run in site.runs()) > before, "ticks that come meanwhile", every_s=0.1)
    finally:
        cluster.continue_controller()
    cluster.wait_served()
    stories.whole("wrapped")
    for name, other in stories.sites.items():
        assert len(other.running()) <= 2, name
        not_too_many(other)
    until(lambda: site.kinds() == ["s", "h"], "one spare and one head", every_s=0.2)


def test_a_controller_that_restarts_with_its_state_finds_the_chains_as_they_were(stories: Stories) -> None:
    cluster = stories.cluster
    before = {row.id for row in stories.whole("requeued").rows()}
    cluster.terminate_controller()
    cluster.start_controller()
    site = stories.whole("requeued")
    site.ticks_on()
    assert {row.id for row in site.rows()} == before


def test_stop_cancels_what_waits_and_no_job_comes_again(stories: Stories) -> None:
    for name in ("requeued", "pulse day"):
        site = stories.sites[name]
        assert site.resil("cron", "stop").returncode == 0
        assert not site.waiting()
        until(lambda site=site: not site.running(), "the running one to leave", every_s=0.1)  # type: ignore[misc]
        count = len(site.rows())
        time.sleep(4)
        assert len(site.rows()) == count
        assert not site.waiting()
    site = stories.sites["requeued"]
    site.install()
    site.ticks_on("the scheduler to go on after install")
    assert site.resil("cron", "uninstall").returncode == 0
    with contextlib.suppress(FileNotFoundError):
        until(lambda: not site.running(), "the running one to leave", every_s=0.1)
