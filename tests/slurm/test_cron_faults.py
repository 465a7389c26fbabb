"""What takes the whole queue away from the scheduler's chain, or the Python from under it, on a real SLURM."""

from __future__ import annotations

import os
import shutil
import signal
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass, field

import pytest

from tests.lab.slurm.cluster import Cluster
from tests.lab.slurm.cron_site import Site
from tests.lab.slurm.processes import environ, until

SLOW = "@every 4s /bin/true # resil: name=beat catch_up=none\n"
QUICK = 180


@dataclass
class Place:
    cluster: Cluster
    sites: dict[str, Site] = field(default_factory=dict)

    def begin(self, name: str, **wishes: object) -> Site:
        site = Site(self.cluster, name, self.cluster.users[0], limit_s=QUICK, crontab=SLOW, **wishes)  # type: ignore[arg-type]
        self.sites[name] = site.make()
        site.install()
        return site

    def whole(self, name: str) -> Site:
        site = self.sites[name]
        try:
            until(site.is_whole, f"the chain of {name} to be whole", every_s=0.2)
        except TimeoutError as error:
            raise TimeoutError(f"{error}\n{site.rows()}\n{site.log()}") from None
        return site


@pytest.fixture(scope="module")
def place() -> Iterator[Place]:
    with Cluster(nodes=2) as cluster:
        place = Place(cluster)
        place.begin("broken")
        place.begin("closed", sbatch='partition = "short"')
        place.begin("forgotten")
        place.begin("gone")
        place.begin("changed")
        yield place


def test_without_a_working_python_bash_keeps_the_chain_and_python_takes_it_up_again(place: Place) -> None:
    site = place.whole("broken")
    script = site.state / "driver" / "job.bash"
    text = script.read_text()
    place.cluster.run(["tee", script], site.user, input=text.replace("\npython=", "\npython=/nonexistent"), check=True)
    # Everything that waits has the old script: SLURM keeps a copy of its own of each.
    site.cancel()
    assert site.cron.stopped() is not None, "cancelled together: stopped"
    site.cron.unstop()
    revived = site.revive()
    assert revived.returncode == 10, revived.stdout
    until(lambda: "bash keeps the chain: the next job begins in 1 min" in site.log(), "the broken job", every_s=0.1)
    until(lambda: site.kinds() == ["s", "h"], "both to begin later", every_s=0.1)
    assert "the scheduler ended with code 127" in site.trouble()
    status = site.resil("cron", "status").stdout
    assert "failed: the scheduler ended with code 127" in status and "the next one begins at" in status
    place.cluster.run(["tee", script], site.user, input=text, check=True)
    assert "ticks on" in site.install(), "install does not wait for the later ones"
    site.ticks_on()
    place.whole("broken")
    until(lambda: not site.trouble(), "the end of the trouble to be told", every_s=0.1)


def test_after_a_change_of_mode_the_chain_is_of_the_other_kind(place: Place) -> None:
    site = place.whole("changed")
    text = (site.directory / "resil.toml").read_text()
    site.write("resil.toml", text.replace('mode = "daemon"', 'mode = "pulse"'))
    site.install()

    def changed() -> bool:
        kinds = [row.comment.partition("-")[2][0] for row in site.rows() if row.state == "PENDING"]
        return kinds == ["p", "p"] and bool([row for row in site.rows() if "-p" in row.comment and row.node])

    until(changed, "pulses alone", every_s=0.2)
    site.ticks_on()
    site.each_slot_ran_once()


def test_a_partition_that_is_closed_is_told_and_used_again_when_it_opens(place: Place) -> None:
    cluster, site = place.cluster, place.whole("closed")
    try:
        cluster.run(["scontrol", "update", "partitionname=short", "state=inactive"], check=True)
        cluster.run(["scancel", *(row.id for row in site.waiting())], site.user, check=True)
        until(lambda: "artition" in site.trouble(), "the refusal", every_s=0.1)
        site.ticks_on("ticks without successors")
    finally:
        cluster.run(["scontrol", "update", "partitionname=short", "state=up"], check=True)
    place.whole("closed")


def test_a_partition_that_is_down_holds_the_successors_and_loses_none(place: Place) -> None:
    cluster, site = place.cluster, place.whole("closed")
    try:
        cluster.run(["scontrol", "update", "partitionname=short", "state=down"], check=True)
        until(lambda: len(site.running()) == 1, "a hand-over to be over", every_s=0.1)
        cluster.run(["scancel", site.running()[0].id], site.user, check=True)
        until(lambda: not site.running(), "it to end", every_s=0.1)
        until(lambda: len(site.waiting()) == 2, "two that wait", every_s=0.1)
        until(lambda: "partition is down" in site.resil("cron", "status").stdout, "status to say why", every_s=0.5)
    finally:
        cluster.run(["scontrol", "update", "partitionname=short", "state=up"], check=True)
    place.whole("closed").ticks_on()


def test_a_time_limit_above_the_partitions_is_clamped_and_said(place: Place) -> None:
    """SLURM takes such a job, with EnforcePartLimits=NO, and lets it wait for ever."""
    site = Site(place.cluster, "too long", place.cluster.users[0], limit_s=3600, sbatch='partition = "short"').make()
    assert "the partition allows 10 min, less than [cron] time_limit_s (1 h)" in site.install()
    (limit,) = {place.cluster.squeue("%l", "-j", row.id)[0] for row in site.running()}
    assert limit == "10:00"
    assert "no change" in site.install()
    site.resil("cron", "uninstall")


def test_a_project_whose_state_is_taken_away_ends_and_hurts_no_other(place: Place) -> None:
    site = place.whole("gone")
    ids = [row.id for row in site.rows()]
    state = site.directory / ".resil"

    def is_gone() -> bool:
        shutil.rmtree(state, ignore_errors=True)  # the scheduler may be writing into it
        return not state.exists()

    until(is_gone, "the state directory to be gone")
    until(lambda: place.cluster.job_state(ids[0]) != "RUNNING", "the job to leave", every_s=0.2)
    assert not (site.directory / ".resil" / ".cron" / "driver.json").exists()
    place.whole("forgotten").ticks_on()


def test_a_chain_that_the_controller_has_forgotten_is_seen_to_be_dead_and_revived_without_python(place: Place) -> None:
    """By what a training's batch shell runs."""
    cluster, site = place.cluster, place.whole("forgotten")
    name = f"resil-cron-{site.token[:8]}"
    cluster.kill_controller()
    for path in (cluster.root / "state").iterdir():
        if path.is_file():
            path.unlink()
    cluster.start_controller()

    def is_dead() -> bool:
        # slurmctld finds jobs on its nodes that it knows nothing of, and kills them without a warning; but not one
        # whose number it has given to a new job meanwhile. Until then such a job may queue successors.
        if lost := [pid for pid in cluster.processes() if environ(pid).get("SLURM_JOB_NAME") == name]:
            for pid in lost:
                with suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
            return False
        if ids := [row.id for row in site.rows() if row.state in ("PENDING", "RUNNING")]:
            cluster.run(["scancel", *ids], site.user)
            return False
        return site.resil("cron", "status").returncode == 1

    until(is_dead, "the chain to be dead", every_s=0.5)
    assert "broken" in site.resil("cron", "status").stdout
    revived = site.revive()
    assert revived.returncode == 10, revived.stdout
    place.whole("forgotten").ticks_on()
    site.each_slot_ran_once()
