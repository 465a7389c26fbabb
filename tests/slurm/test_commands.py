"""The command line on a real cluster, as two ordinary users type it."""

from __future__ import annotations

import contextlib
import json
import os
import re
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.lab.slurm import accounting
from tests.lab.slurm.cluster import Cluster
from tests.lab.slurm.host import release
from tests.lab.slurm.processes import Process, descendants, until

SETTINGS = """\
[run]
name = "gpt"
command = {command!r}
{more}
[attempt]
beat_s = 1
[sbatch]
time = "10"
"""


class Desk:
    """One user's project directory on the shared file system, and the commands typed there."""

    def __init__(self, cluster: Cluster, user: str, directory: Path) -> None:
        self.cluster, self.user, self.directory = cluster, user, directory
        cluster.run(["mkdir", "-p", str(directory)], user=user, check=True)

    @property
    def state(self) -> Path:
        return self.directory / ".resil"

    def settings(self, command: str, more: str = "") -> None:
        self.cluster.run(
            ["tee", str(self.directory / "resil.toml")],
            user=self.user,
            input=SETTINGS.format(command=command, more=more),
            check=True,
        )

    def resil(self, *words: str) -> subprocess.CompletedProcess[str]:
        return self.cluster.run(["resil", *words], user=self.user, cwd=self.directory)

    def submit(self, *words: str) -> str:
        said = self.resil("submit", "--parsable", *words)
        assert said.returncode == 0, said.stderr
        return said.stdout.strip()

    def status(self) -> Any:
        said = self.resil("status", "--json", "--fresh")
        return json.loads(said.stdout)["runs"][0]

    def queue(self) -> list[str]:
        """The ids in the queue, pending tasks one by one, ended jobs left out."""
        said = self.cluster.run(["squeue", "-h", "-r", "-o", "%i"], user=self.user, check=True)
        return said.stdout.split()


@pytest.fixture
def desk(cluster: Cluster, alice: str) -> Desk:
    return Desk(cluster, alice, cluster.shared / "alice-project")


REFUSED = {
    "unknown partition": (["--", "--partition=nosuch"], "partition"),
    "unknown node": (["--", "--nodelist=n99"], "node"),
    "unknown feature": (["--", "--constraint=nosuch"], "feature"),
    "unknown reservation": (["--", "--reservation=nosuch"], "reservation"),
    "too much memory": (["--", "--mem=999G"], "emory"),
    "unknown gres": (["--", "--gres=gpu:1"], "gres"),
    "unknown flag": (["--", "--no-such-option"], "no-such-option"),
    "array beyond the limit": (["--array", "2000"], "1001"),
    "impossible dependency": (["--dependency", "afterok:0"], "ependency"),
    "bad begin": (["--begin", "whenever"], "begin"),
}


# Only a cluster with accounting that enforces it knows which exist: others take every word for one.
REFUSED_BY_ACCOUNTING = {
    "unknown account": (["--", "--account=nosuch"], "account"),
    "unknown QOS": (["--", "--qos=nosuch"], "QOS"),
}


@pytest.fixture(scope="module")
def accounted() -> Iterator[Cluster]:
    """A small cluster with a database, for those whom it knows."""
    if reasons := Cluster.requirements(dbd=True):
        pytest.skip(f"no SLURM accounting: {'; '.join(reasons)}; to get it: {accounting.HOW_TO_GET}")
    with Cluster(nodes=1, dbd=True, extra="AccountingStorageEnforce=associations,qos") as booted:
        yield booted


@pytest.mark.parametrize("case", REFUSED)
def test_what_slurm_refuses_is_said_in_words_and_leaves_nothing(desk: Desk, case: str) -> None:
    is_refused(desk, *REFUSED[case])


@pytest.mark.parametrize("case", REFUSED_BY_ACCOUNTING)
def test_what_accounting_refuses_is_said_in_words_and_leaves_nothing(accounted: Cluster, case: str) -> None:
    directory = accounted.shared / case.replace(" ", "-")

    is_refused(Desk(accounted, accounted.users[0], directory), *REFUSED_BY_ACCOUNTING[case])


def is_refused(desk: Desk, words: list[str], message: str) -> None:
    """Submit in vain; the message is in SLURM's or our words, and neither a job nor a file is left."""
    desk.settings("sleep 60")

    said = desk.resil("submit", *words)

    assert said.returncode in (1, 2), said.stderr
    assert message in said.stderr and "try:" in said.stderr
    assert "Traceback" not in said.stderr and said.stdout == ""
    assert desk.queue() == []
    assert not desk.state.exists() or list(desk.state.iterdir()) == []


def test_a_submit_with_the_controller_dead_is_temporary_and_leaves_nothing(desk: Desk, cluster: Cluster) -> None:
    desk.settings("sleep 60")
    cluster.terminate_controller()

    said = desk.resil("submit", "--array", "3")

    assert said.returncode == 75, said.stderr
    assert "controller" in said.stderr or "answer" in said.stderr
    cluster.start_controller()
    again = desk.resil("submit", "--array", "3")
    assert again.returncode == 0, again.stderr  # it looks for the first one, finds none, and queues
    assert len({job.partition("_")[0] for job in desk.queue()}) == 1


def programs(above: int, name: str) -> list[Process]:
    """The living processes of this program below a pid."""
    found = []
    for pid in descendants([above]):
        with contextlib.suppress(OSError):
            if Path(f"/proc/{pid}/comm").read_text().strip() == name and (process := Process.of(pid)):
                found.append(process)
    return found


def test_a_controller_that_hangs_in_the_middle_of_a_submit_gets_exactly_one_job(desk: Desk, cluster: Cluster) -> None:
    desk.settings("sleep 60")
    cluster.stop_controller()
    typed = cluster.popen(
        ["resil", "submit", "--array", "3"],
        user=desk.user,
        cwd=desk.directory,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    until(lambda: bool(programs(typed.pid, "sbatch")), "the first sbatch")
    (first, *_) = programs(typed.pid, "sbatch")
    first.wait_gone()  # it gives up after MessageTimeout
    cluster.continue_controller()
    said, complained = typed.communicate(timeout=120)
    cluster.wait_served()

    if typed.returncode != 0:  # it gave up before the controller came back: the next submit looks first
        assert typed.returncode == 75, complained
        settled = desk.resil("submit", "--array", "3")
        assert settled.returncode in (1, 75), settled.stdout + settled.stderr
    assert len(desk.queue()) == 3, said + complained


def test_status_with_the_controller_dead_shows_what_it_knew_and_never_says_dead(desk: Desk, cluster: Cluster) -> None:
    desk.settings("sleep 60")
    desk.submit("--array", "3")
    until(lambda: desk.status()["headline"] == "running", "the run runs")
    cluster.terminate_controller()

    said = desk.resil("status", "--fresh")

    assert "running" in said.stdout
    assert "did not answer" in said.stdout and "unknown, not dead" in said.stdout
    cluster.start_controller()


def test_a_run_on_slurm_from_submit_to_its_end(desk: Desk) -> None:
    desk.settings("echo step 42")

    job = desk.submit("--array", "4")

    until(lambda: desk.queue() == [], "all four are over")
    run = desk.status()
    assert run["headline"] == "finished"
    assert [attempt["end"] for attempt in run["attempts"]] == ["finished"]
    assert run["jobs"][0]["counts"] == {"COMPLETED": 4} and run["jobs"][0]["job"] == job
    assert "step 42" in desk.resil("logs").stdout


def test_a_second_submit_asks_and_after_auto_queues_behind(desk: Desk) -> None:
    desk.settings("sleep 60")
    first = desk.submit("--array", "2")

    refused = desk.resil("submit", "--array", "2")
    behind = desk.submit("--array", "2", "--after", "auto")

    assert refused.returncode == 1 and "--after auto" in refused.stderr
    shown = desk.cluster.run(["squeue", "-h", "-j", behind, "-o", "%E"], user=desk.user, check=True).stdout
    assert f"afterany:{first}_*" in shown


def test_queueing_behind_a_job_of_somebody_else_that_resil_did_not_submit(
    desk: Desk, cluster: Cluster, bob: str
) -> None:
    other = cluster.sbatch("#!/bin/bash\nsleep 60\n", user=bob)
    desk.settings("sleep 60")

    job = desk.submit("--array", "2", "--after", other)

    shown = cluster.run(["squeue", "-h", "-j", job, "-o", "%E"], user=desk.user, check=True).stdout
    assert f"afterany:{other}" in shown


def test_a_script_of_ones_own_is_submitted_unchanged(desk: Desk, cluster: Cluster) -> None:
    text = "#!/bin/bash\n#SBATCH --job-name=mine\n#SBATCH --time=5\necho $RESIL_RUN > seen\nsleep 60\n"
    cluster.run(["tee", str(desk.directory / "own.sbatch")], user=desk.user, input=text, check=True)
    desk.settings("unused")

    job = desk.submit("own.sbatch", "--run", "other", "--", "--nice=7")

    until(lambda: (desk.directory / "seen").exists() and (desk.directory / "seen").read_text() != "", "it has begun")
    assert (desk.directory / "seen").read_text() == "other\n"
    shown = cluster.run(["scontrol", "show", "job", job], user=desk.user, check=True).stdout
    assert "JobName=mine" in shown and "Nice=7" in shown and re.search(r"Comment=resil:other:\w+", shown)
    kept = cluster.run(["scontrol", "write", "batch_script", job, "-"], user=desk.user, check=True).stdout
    assert text.strip() in kept


def test_test_only_asks_and_queues_nothing(desk: Desk) -> None:
    desk.settings("sleep 60")

    said = desk.resil("submit", "--array", "2", "--test-only")

    assert said.returncode == 0, said.stderr
    assert "to start at" in said.stdout
    assert desk.queue() == [] and not desk.state.exists()


def test_cancel_ends_the_runs_jobs_and_nobody_elses(desk: Desk, cluster: Cluster) -> None:
    desk.settings("sleep 60")
    desk.submit("--array", "3")
    other = cluster.sbatch("#!/bin/bash\nsleep 60\n", user=desk.user)

    said = desk.resil("cancel")

    assert said.returncode == 0, said.stderr
    until(lambda: desk.queue() == [other], "only the other job is left")


def test_a_job_of_somebody_else_cannot_be_cancelled_and_that_is_said(
    desk: Desk, cluster: Cluster, bob: str, in_one_group: str
) -> None:
    desk.settings("sleep 60", more=f'group = "{in_one_group}"')
    desk.submit("--array", "2")
    other = Desk(cluster, bob, cluster.shared / "bob-project")

    said = other.resil("cancel", str(desk.state / "gpt"))

    assert said.returncode == 1, said.stdout + said.stderr
    assert "ermission" in said.stderr or "another user" in said.stderr
    assert len(desk.queue()) == 2


def test_a_colleague_of_the_group_stops_a_sleeping_owners_run(
    desk: Desk, cluster: Cluster, bob: str, in_one_group: str
) -> None:
    """The owner sleeps; the colleague may not signal the job, but may write in its directory."""
    stops = 'for i in $(seq 600); do [ -e "$RESIL_RUN_DIR/switches/kill" ] && exit 75; sleep 0.1; done'
    desk.settings(stops, more=f'group = "{in_one_group}"')
    desk.submit("--array", "4")
    until(lambda: desk.status()["headline"] == "running", "the run runs")
    colleague = Desk(cluster, bob, cluster.shared / "bob-project")

    thrown = colleague.resil("kill", str(desk.state / "gpt"), "--why", "the loss is NaN", "--scope", "all")

    assert thrown.returncode == 0, thrown.stderr
    assert "will not accept" not in thrown.stdout
    until(lambda: desk.queue() == [], "nothing is queued any more")
    run = desk.status()
    assert len(run["attempts"]) == 1 and run["attempts"][0]["exit_code"] == 75
    assert run["switches"][0]["who"] == bob and run["switches"][0]["honoured"]
    assert run["jobs"][0]["counts"]["CANCELLED"] >= 1  # the one that cancels them may not be the first


@pytest.fixture
def in_one_group(cluster: Cluster, alice: str, bob: str) -> str:
    """A Unix group that both users are in."""
    for argv in (["groupadd", "-f", "resil-lab"], *(["usermod", "-aG", "resil-lab", user] for user in (alice, bob))):
        subprocess.run(argv, check=True, capture_output=True)
    return "resil-lab"


def test_doctor_knows_this_cluster(desk: Desk, cluster: Cluster) -> None:
    said = desk.resil("doctor", "--json")

    found = {line["topic"]: line for line in json.loads(said.stdout)["diagnoses"]}
    assert found["scheduler"]["verdict"] == "OK" and "SLURM {}.{:02}".format(*release()) in found["scheduler"]["text"]
    assert found["KillWait"]["text"].startswith("5 s")
    assert cluster.proctrack in found["proctrack"]["text"]
    assert found["MaxArraySize"]["text"].startswith("1001")
    assert found["accounting"]["verdict"] == "OK" and "off" in found["accounting"]["text"]


def test_doctor_with_the_controller_hung_says_unknown_and_ends(desk: Desk, cluster: Cluster) -> None:
    cluster.stop_controller()

    said = desk.resil("doctor", "--json")  # which the test would wait for until its own time-out, did it not end

    cluster.continue_controller()
    found = {line["topic"]: line for line in json.loads(said.stdout)["diagnoses"]}
    assert found["scheduler"]["verdict"] == "UNKNOWN"


@pytest.mark.soak
@pytest.mark.skipif("RESIL_SOAK" not in os.environ, reason="a minute and more of demo (RESIL_SOAK=1, make soak)")
def test_the_demo_on_a_real_cluster_ends_with_exactly_the_same_loss(desk: Desk) -> None:
    said = desk.cluster.run(
        ["resil", "demo", "--scheduler", "slurm", "--json"], user=desk.user, cwd=desk.directory, timeout=400
    )

    assert said.returncode == 0, said.stderr
    told = json.loads(said.stdout)
    assert told["exact"] is True and told["loss"] == told["reference"]
    assert [attempt["exit_code"] for attempt in told["attempts"]] == [1, 137, 75, 75, 75, 0]
    assert [attempt["why"].partition(":")[0] for attempt in told["attempts"][2:]] == [
        *("time limit", "memory", "kill switch", "finished"),
    ]
    assert told["turned_away"] + told["burned"] == 4
    assert list(desk.directory.glob("resil-demo-*")) == []
