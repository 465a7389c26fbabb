"""A night of a project on a real cluster: its scheduler's node dies, and people hear of the full disk all the same.

Every command is typed by an ordinary user. The disk is a tmpfs that fills up, mounted where the nodes' jobs see it; the
mail goes by SMTP to a server of the test. A day would take too long: the script in `cron.hourly` has its hour behind it
(it is known since yesterday, as the state directory says), and the crontab calls the watchdog, as it is shipped, every
two seconds.
"""

from __future__ import annotations

import json
import os
import subprocess
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from resilience.demo.receivers import Inbox, receivers
from tests.lab.slurm.cluster import Cluster
from tests.lab.slurm.processes import until

DISK_BYTES = 4 * 2**20
SETTINGS = """\
[run]
name = "gpt"
command = "true"
[cron]
tick_s = 1
jitter_s = 0
time_limit_s = "10m"
[watch.fs]
paths = ["{disk}"]
crit_runway_s = 0
warn_runway_s = 0
[alert]
channels = ["email"]
group_s = 0
[channel.email]
to = ["you@example.org"]
host = "127.0.0.1"
port = {port}
"""
SCRIPT = '#!/bin/sh\necho "$RESIL_CRON_ENTRY $RESIL_CRON_SLOT" >>ran\n'
CRONTAB = """\
@every 2s  cron/cron.hourly/count-slots  # resil: name=count
@every 2s  cron/cron.quarter_hourly/watch-fs  # resil: name=watch ok=0-3
"""
DAY_S = 86400


class Disk:
    """A small tmpfs at one place: one in each mount namespace, where the cluster's nodes have their own."""

    def __init__(self, cluster: Cluster, path: Path) -> None:
        self.path = path
        pids = [os.getpid(), *(cluster.daemon(node).pid for node in cluster.nodes)]
        self._pids = list({Path(f"/proc/{pid}/ns/mnt").readlink(): pid for pid in reversed(pids)}.values())

    def everywhere(self, *argv: str, check: bool = True) -> None:
        for pid in self._pids:
            if Path(f"/proc/{pid}/ns/mnt").exists():  # a node that died has none
                inside = ["nsenter", f"--target={pid}", "--mount", *argv]
                subprocess.run(inside, check=check, capture_output=True, timeout=30)

    def fill(self) -> None:
        self.everywhere("dd", "if=/dev/zero", f"of={self.path}/checkpoint.pt", f"bs={DISK_BYTES - 2**16}", "count=1")


@contextmanager
def small_disk(cluster: Cluster, path: Path) -> Iterator[Disk]:
    path.mkdir(mode=0o755)
    disk = Disk(cluster, path)
    disk.everywhere("mount", "-t", "tmpfs", "-o", f"size={DISK_BYTES},mode=755", "resil-test", str(path))
    try:
        yield disk
    finally:
        disk.everywhere("umount", "-l", str(path), check=False)


class Project:
    """Alice's project on the shared file system."""

    def __init__(self, cluster: Cluster, user: str, directory: Path) -> None:
        self.cluster, self.user, self.directory = cluster, user, directory

    def resil(self, *words: str) -> subprocess.CompletedProcess[str]:
        return self.cluster.run(["resil", *words], user=self.user, cwd=self.directory)

    def must(self, *words: str) -> str:
        said = self.resil(*words)
        assert said.returncode == 0, said
        return said.stdout

    def write(self, name: str, text: str, mode: str = "644") -> None:
        self.cluster.run(["tee", str(self.directory / name)], user=self.user, input=text, check=True)
        self.cluster.run(["chmod", mode, str(self.directory / name)], user=self.user, check=True)

    def read(self, name: str) -> dict[str, Any]:
        """A file of the state directory; empty when there is none."""
        try:
            found: dict[str, Any] = json.loads((self.directory / ".resil" / ".cron" / name).read_text())
        except FileNotFoundError:
            return {}
        return found

    def make_due(self, key: str) -> None:
        """As if the entry had been known since yesterday, and nobody had been there since."""
        seen = self.read("seen")
        seen[key][0] -= DAY_S
        self.write(".resil/.cron/seen", json.dumps(seen), "600")

    def history(self, entry: str, outcome: str) -> list[dict[str, Any]]:
        runs: list[dict[str, Any]] = json.loads(self.must("cron", "history", entry, "--json"))["runs"]
        return [run for run in runs if run["outcome"] == outcome]

    def ticking_job(self) -> str:
        return str(self.read("heartbeat").get("job_id", ""))

    def ran(self, entry: str) -> Counter[str]:
        """The slots of an entry that have run, and how often each."""
        path = self.directory / "ran"
        lines = path.read_text().splitlines() if path.exists() else []
        return Counter(line.split()[1] for line in lines if line.split()[0] == entry)

    def queue(self) -> list[str]:
        said = self.cluster.run(["squeue", "-h", "-r", "-o", "%i"], user=self.user, check=True)
        return said.stdout.split()


@pytest.fixture
def inbox() -> Iterator[Inbox]:
    with receivers() as opened:
        yield opened


@pytest.fixture
def project(cluster: Cluster, alice: str) -> Iterator[Project]:
    made = Project(cluster, alice, cluster.shared / "night")
    cluster.run(["mkdir", str(made.directory)], user=alice, check=True)
    yield made
    made.resil("cron", "stop")


def test_a_shipped_batch_script_is_a_small_job_by_hand_and_from_its_directory(
    cluster: Cluster, project: Project
) -> None:
    """The settings say where it goes (the partition `short`), and no copy was edited; by hand sbatch asks the site."""
    project.must("init")
    project.write("resil.toml", '[run]\nname = "gpt"\n[cron]\njitter_s = 0\nsbatch = { partition = "short" }\n')
    script = "cron/slurm/watch-inodes.slurm"
    said = cluster.run(["sbatch", "--parsable", script], user=project.user, cwd=project.directory, check=True)
    by_hand = said.stdout.strip()
    link = project.directory / "cron" / "cron.hourly" / "watch-inodes.slurm"
    cluster.run(["ln", "-s", "../slurm/watch-inodes.slurm", str(link)], user=project.user, check=True)
    project.must("cron", "tick")
    project.make_due("cron.hourly+watch-inodes.slurm")
    project.must("cron", "tick")

    until(lambda: not project.queue(), "both jobs to end", every_s=0.2)
    assert "INODES OK" in (project.directory / f"slurm-{by_hand}.out").read_text()
    (run,) = project.history("cron.hourly/watch-inodes.slurm", "submitted")
    assert "INODES OK" in project.must("cron", "logs", "watch-inodes.slurm")
    for job, partition in ((by_hand, "main"), (str(run["job"]), "short")):
        shown = cluster.run(["scontrol", "show", "job", job], user=project.user, check=True).stdout
        facts = dict(word.split("=", 1) for word in shown.split() if "=" in word)
        assert (facts["JobState"], facts["Partition"]) == ("COMPLETED", partition)
        assert (facts["NumCPUs"], facts["TimeLimit"], facts["Requeue"]) == ("1", "00:10:00", "0")


def test_the_schedulers_node_dies_and_the_full_disk_is_told_all_the_same(
    cluster: Cluster, project: Project, inbox: Inbox, tmp_path: Path
) -> None:
    with small_disk(cluster, cluster.root / "disk") as disk:
        project.must("init")
        project.write("resil.toml", SETTINGS.format(disk=disk.path, port=inbox.smtp_port))
        said = project.must("cron", "install", "--backend", "slurm")
        assert "slurm" in said
        until(lambda: bool(project.ticking_job()), "the first tick")

        # A script dropped into cron.hourly runs, and the shipped watchdog does.
        project.write("cron/cron.hourly/count-slots", SCRIPT, "755")
        until(lambda: "cron.hourly+count-slots" in project.read("seen"), "the script to be seen")
        assert "cron.hourly/count-slots" in project.must("cron", "list")
        project.make_due("cron.hourly+count-slots")
        until(lambda: bool(project.ran("cron.hourly/count-slots")), "the dropped script to run")
        made_up = max(map(int, project.ran("cron.hourly/count-slots")))
        project.write("cron/crontab", CRONTAB)
        until(lambda: bool(project.ran("crontab/count")), "the crontab to run")
        until(lambda: "done: FS OK" in project.must("cron", "history", "watch"), "the watchdog to look", every_s=0.5)

        # Its node dies, and then the disk fills up.
        first = project.ticking_job()
        (node,) = cluster.run(["squeue", "-h", "-j", first, "-o", "%N"], user=project.user, check=True).stdout.split()
        before = len(project.ran("crontab/count"))
        cluster.fail_node(node)
        disk.fill()
        assert inbox.subjects == []
        until(lambda: any("CRITICAL" in subject for subject in inbox.subjects), "the alert")

    # Another job went on, on another node; every slot ran once, and the hour was made up for once.
    second = project.ticking_job()
    said = "\n".join(path.read_text() for path in (project.directory / ".resil" / ".cron" / "driver").glob("*.out"))
    assert int(second) == int(first) + 1, f"the first one that waited must have taken over: {said}"
    assert len(project.ran("crontab/count")) > before
    assert max(project.ran("crontab/count").values()) == 1
    # The next hour may have begun meanwhile: its slot is no second making up.
    assert [n for slot, n in project.ran("cron.hourly/count-slots").items() if int(slot) <= made_up] == [1]
    assert any(str(disk.path) in subject or "disk" in subject for subject in inbox.subjects), inbox.subjects
    project.must("cron", "stop")
    until(lambda: not project.queue(), "the queue to be empty")
