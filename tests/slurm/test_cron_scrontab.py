"""The backend scrontab on a real SLURM that has one (RESIL_TEST_SLURM: 24.11)."""

from __future__ import annotations

import shutil

import pytest

from tests.lab.slurm import host
from tests.lab.slurm.cluster import Cluster
from tests.lab.slurm.cron_site import Site
from tests.lab.slurm.processes import until

pytestmark = pytest.mark.skipif(
    shutil.which("scrontab", path=host.PATH) is None, reason="this SLURM has no scrontab: set RESIL_TEST_SLURM"
)


def test_install_takes_scrontab_in_its_default_mode_and_a_cancelled_entry_has_one_answer() -> None:
    with Cluster(nodes=1, extra="ScronParameters=enable") as cluster:
        site = Site(cluster, "scron", cluster.users[0]).make()
        text = (site.directory / "resil.toml").read_text()
        site.write("resil.toml", text.replace('backend = "slurm"', 'backend = "auto"'))
        done = site.resil("cron", "install")
        assert done.returncode == 0, done.stderr
        assert "wrote an entry to the scrontab" in done.stdout
        until(lambda: bool(site.runs()), "the first run: at the next full minute", every_s=0.5)
        assert site.resil("cron", "status").returncode == 0
        cluster.run(["scancel", *cluster.squeue("%A")], site.user, check=True)
        until(lambda: "is disabled: its job was cancelled" in site.resil("cron", "status").stdout, "the entry to go")
        status, watch = site.resil("cron", "status"), site.resil("watch", "cron")
        assert status.returncode == 1 and status.stdout.startswith("cron  dead")
        assert watch.returncode == 2 and "is disabled: its job was cancelled" in watch.stdout
        assert site.resil("cron", "install").returncode == 0
        assert site.resil("cron", "uninstall").returncode == 0
