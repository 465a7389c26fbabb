"""What once cost hours of silence at a hand-over of the scheduler's chain, on a real SLURM."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from resilience.quantities import parse_slurm_time_s
from tests.lab.slurm.cluster import Cluster
from tests.lab.slurm.cron_site import Site
from tests.lab.slurm.processes import until

SLOW = "@every 2s /bin/true # resil: name=beat catch_up=none\n"
LONG = "@every 2s /bin/sleep 60 # resil: name=long\n"
DAY_S = 86400
QUICK = 180


@pytest.fixture(scope="module")
def cluster() -> Iterator[Cluster]:
    with Cluster(nodes=2) as cluster:
        yield cluster


def whole(site: Site) -> None:
    until(lambda: bool(site.running()) and site.kinds() == ["s", "h"], f"{site.name} to be whole", every_s=0.2)


def test_a_maintenance_tomorrow_does_not_hold_the_scheduler_until_it_is_over(cluster: Cluster) -> None:
    """SLURM starts no job that would run into a reservation; it may shorten this one instead."""
    words = ["reservationname=maintenance", "starttime=now+5hours", "duration=120", "users=root", "nodes=ALL",
             "flags=maint"]  # fmt: skip
    cluster.run(["scontrol", "create", *words], check=True)
    try:
        site = Site(cluster, "maintained", cluster.users[0], limit_s=DAY_S, crontab=SLOW).make()
        site.install()
        until(lambda: bool(site.running()), "the first job", every_s=0.2)
        site.ticks_on()
        (limit,) = cluster.squeue("%l", "-j", site.running()[0].id)
        assert 0 < (parse_slurm_time_s(limit) or 0) < 5 * 3600
        whole(site)
        assert site.resil("cron", "uninstall").returncode == 0
    finally:
        cluster.run(["scontrol", "delete", "reservationname=maintenance"], check=True)


def test_changed_options_reach_the_running_job_too_and_no_slot_is_lost(cluster: Cluster) -> None:
    site = Site(cluster, "changed", cluster.users[0], limit_s=QUICK, crontab=SLOW).make()
    site.install()
    whole(site)
    site.ticks_on()
    (old,), waited = site.running(), {row.id for row in site.waiting()}
    text = (site.directory / "resil.toml").read_text()
    site.write("resil.toml", text.replace('mem = "500M"', 'mem = "500M"\npartition = "short"'))
    assert "cancelled surplus" in site.install()
    until(lambda: old.id not in {row.id for row in site.running()}, "the old one to leave", every_s=0.2)
    site.ticks_on()
    whole(site)
    alive = [row.id for row in (*site.running(), *site.waiting())]
    assert {cluster.squeue("%P", "-j", number)[0] for number in alive} == {"short"}
    assert not waited & set(alive)
    site.each_slot_ran_once()
    assert not site.gaps()
    assert site.resil("cron", "uninstall").returncode == 0


def test_scancel_of_all_ones_jobs_stops_the_scheduler_and_it_is_told(cluster: Cluster) -> None:
    site = Site(cluster, "all", cluster.users[1], limit_s=QUICK, crontab=SLOW + LONG).make()
    site.install()
    whole(site)
    site.ticks_on()
    cluster.run(["scancel", "-u", site.user], site.user, check=True)
    until(lambda: site.cron.stopped() is not None, "the stop", every_s=0.2)
    until(lambda: not site.running(), "the job to leave", every_s=0.2)
    assert not site.waiting()
    status = site.resil("cron", "status")
    assert status.returncode == 1 and "its running and waiting jobs were cancelled together (scancel)" in status.stdout
    assert "cancelled together" in site.resil("watch", "cron").stdout
    site.install()
    site.ticks_on()


def test_a_lost_spare_is_queued_before_anything_slow_is_ended(cluster: Cluster) -> None:
    """A run that ignores SIGTERM has until KillWait: the chain does not depend on what runs."""
    stubborn = "@every 2s /bin/sh -c 'trap \"\" TERM; sleep 60' # resil: name=long\n"
    site = Site(cluster, "lost", cluster.users[0], limit_s=QUICK, crontab=SLOW + stubborn).make()
    site.install()
    whole(site)
    until(lambda: "long" in site.resil("cron", "list").stdout and bool(site.runs("crontab+long")), "the run")
    (old,) = site.running()
    spare, _ = site.waiting()
    cluster.run(["scancel", spare.id], site.user, check=True)
    cluster.run(["scancel", old.id], site.user, check=True)
    until(lambda: bool(site.running()) and site.running()[0].id != old.id, "another to run", every_s=0.2)
    assert site.cron.stopped() is None
    site.ticks_on()
    whole(site)
    site.each_slot_ran_once()
    assert site.resil("cron", "uninstall").returncode == 0


def test_a_state_directory_that_nodes_never_see_is_an_error_of_install(cluster: Cluster) -> None:
    spaces = {Path(f"/proc/{cluster.daemon(node).pid}/ns/mnt").readlink() for node in cluster.nodes}
    if Path("/proc/self/ns/mnt").readlink() in spaces:
        pytest.skip(f"the nodes share the mounts of this machine (proctrack/{cluster.proctrack})")
    site = Site(cluster, "unseen", cluster.users[0], limit_s=QUICK, crontab=SLOW).make()
    local = cluster.root / "local"
    local.mkdir(mode=0o777)
    local.chmod(0o777)
    for node in cluster.nodes:  # each has a disk of its own there
        inside = ["nsenter", f"--target={cluster.daemon(node).pid}", "--mount"]
        subprocess.run([*inside, "mount", "-t", "tmpfs", "resil-test", str(local)], check=True, timeout=30)
    site.write("resil.toml", f'[run]\nstate_dir = "{local}/state"\n' + (site.directory / "resil.toml").read_text())
    done = site.resil("cron", "install", "--backend", "slurm")
    assert done.returncode == 1, done.stdout
    assert f"{local}/state/.cron is missing or does not respond on n" in done.stderr
    assert "state_dir" in done.stderr
    assert not (local / "state" / ".cron" / "driver.json").exists()
    left = cluster.squeue("%T %j", "-u", site.user)
    assert not [line for line in left if line.startswith("PENDING") and "resil-cron" in line]


def test_a_waiting_job_of_an_earlier_release_makes_way_for_one_of_this(cluster: Cluster) -> None:
    """SLURM keeps a copy of its script, which does not keep the chain: Python did that."""
    site = Site(cluster, "upgraded", cluster.users[0], limit_s=QUICK, crontab=SLOW).make()
    site.install()
    path = site.state / "driver" / "job.bash"
    text = path.read_text()
    old = text.replace(' --end "$end"', "").replace("\n  keep_on </dev/null &", "\n  sleep 100 &")
    old = old.replace("\ndigest=", "\ndigest=0000#")
    cluster.run(["tee", path], site.user, input=old, check=True)
    site.cancel()
    site.cron.unstop()
    assert site.revive().returncode == 10
    until(lambda: path.read_text() == text, "the script to be replaced", every_s=0.2)
    whole(site)
    site.ticks_on()
    assert not [row for row in (*site.running(), *site.waiting()) if ".0000" in row.comment]
    site.each_slot_ran_once()
    assert site.resil("cron", "uninstall").returncode == 0
