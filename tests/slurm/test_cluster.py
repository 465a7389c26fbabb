"""The test cluster keeps its own promises: side by side, with real users, and gone without a trace."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tests.lab.slurm import host
from tests.lab.slurm.cluster import Cluster
from tests.lab.slurm.processes import PATIENCE_S, Process, belonging, cgroups, text_of, until

# A job that does all it can to get away: no environment, its own session, another directory, deaf to SIGTERM.
RUNAWAY = """\
#!/bin/bash
env -i setsid /bin/bash -c 'cd /; trap "" TERM HUP; echo $$ > {pids}/runaway; while :; do sleep 1; done' &
trap "" TERM
echo $$ > {pids}/batch
while :; do sleep 1; done
"""

# Run in a pytest of its own; it boots a cluster, starts the job and then ends in the given way.
INNER = """
import time
from pathlib import Path
from tests.lab.slurm.cluster import Cluster
from tests.lab.slurm.processes import text_of

def test_that_ends_badly():
    pids = Path({pids!r})
    cluster = Cluster(nodes=2, proctrack={proctrack!r})
    cluster.start()
    cluster.run(["sbatch"], input={job!r}, check=True)
    text_of(pids / "runaway")
    text_of(pids / "batch")
    (pids / "keeper").write_text(str(cluster.keeper_pid))
    (pids / "root").write_text(f"{{cluster.root}}\\n")
    {end}
"""


def inner_pytest(directory: Path, proctrack: str, end: str) -> subprocess.Popen[bytes]:
    job = RUNAWAY.format(pids=directory)
    text = INNER.format(pids=str(directory), proctrack=proctrack, job=job, end=end)
    (directory / "test_inner.py").write_text(text)
    options = ["-q", "-p", "no:cacheprovider", f"--basetemp={directory}/base"]
    return subprocess.Popen(
        [sys.executable, "-m", "pytest", *options, "test_inner.py"],
        cwd=directory, env=os.environ | {"PYTHONPATH": str(host.REPOSITORY)},
        stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, start_new_session=True,
    )  # fmt: skip


def processes_of(directory: Path) -> list[Process]:
    text_of(directory / "root")
    found = [Process.of(int((directory / name).read_text())) for name in ("batch", "runaway", "keeper")]
    return [process for process in found if process is not None]


def assert_no_trace(directory: Path, processes: list[Process]) -> None:
    root = Path((directory / "root").read_text().strip())
    until(lambda: not any(process.alive for process in processes), f"{processes} to be gone")
    until(lambda: not root.exists(), f"{root} to be removed")
    assert belonging(root) == set()
    assert cgroups(root.name) == []


def test_two_clusters_boot_side_by_side() -> None:
    with Cluster(nodes=2) as one, Cluster(nodes=2) as other:
        jobs = [c.sbatch("#!/bin/bash\ntrue\n") for c in (one, other)]
        for cluster, job in zip((one, other), jobs, strict=True):
            assert cluster.wait_for(job, "COMPLETED") == "COMPLETED"
        one_root = one.root
        one.stop()
        assert not one_root.exists()
        assert other.node_states() == {"n1": "idle", "n2": "idle"}, "the other cluster is untouched"


@pytest.mark.parametrize("proctrack", ["cgroup", "linuxproc"])
def test_nothing_is_left_when_a_test_fails(tmp_path: Path, proctrack: str) -> None:
    if host.choose_proctrack("auto") == "linuxproc" and proctrack == "cgroup":
        pytest.skip("this machine has no freezer cgroup of version 1")
    inner = inner_pytest(tmp_path, proctrack, end="assert False")
    processes = processes_of(tmp_path)
    assert inner.wait(PATIENCE_S) == 1
    assert_no_trace(tmp_path, processes)


@pytest.mark.parametrize("proctrack", ["cgroup", "linuxproc"])
def test_nothing_is_left_when_pytest_is_killed(tmp_path: Path, proctrack: str) -> None:
    if host.choose_proctrack("auto") == "linuxproc" and proctrack == "cgroup":
        pytest.skip("this machine has no freezer cgroup of version 1")
    inner = inner_pytest(tmp_path, proctrack, end="time.sleep(100)")
    processes = processes_of(tmp_path)
    assert len(processes) == 3
    inner.send_signal(signal.SIGKILL)
    inner.wait()
    assert_no_trace(tmp_path, processes)


def test_stop_cleans_up_even_when_the_keeper_was_killed() -> None:
    with Cluster(nodes=1) as cluster:
        job = cluster.sbatch("#!/bin/bash\ntrap '' TERM\nwhile :; do sleep 1; done\n")
        cluster.wait_for(job, "RUNNING")
        daemon = cluster.daemon("slurmctld")
        os.kill(cluster.keeper_pid, signal.SIGKILL)
        until(lambda: not daemon.alive, "the daemons to follow the keeper")
    assert not cluster.root.exists()
    assert belonging(cluster.root) == set()
    assert cgroups(cluster.root.name) == []


def test_the_next_cluster_sweeps_up_after_tests_killed_with_their_keeper(tmp_path: Path) -> None:
    inner = inner_pytest(tmp_path, "auto", end="time.sleep(100)")
    processes = processes_of(tmp_path)
    os.kill(int((tmp_path / "keeper").read_text()), signal.SIGKILL)
    inner.kill()
    inner.wait()
    root = Path((tmp_path / "root").read_text().strip())
    assert root.exists()

    with Cluster(nodes=1):
        assert not root.exists()
        assert belonging(root) == set()
    left = [process for process in processes if process.alive]
    for process in left:
        process.send(signal.SIGKILL)
    # Without cgroups, nothing tells whose a process is that dropped its environment, directory and parents.
    assert len(left) == (0 if host.choose_proctrack("auto") == "cgroup" else 1)


def test_start_and_stop_may_be_called_twice() -> None:
    cluster = Cluster(nodes=1)
    cluster.stop()
    cluster.start()
    root = cluster.root
    cluster.start()
    assert cluster.root == root
    cluster.stop()
    cluster.stop()
    assert not root.exists()


def test_users_are_real_and_cannot_touch_each_others_jobs(cluster: Cluster, alice: str, bob: str) -> None:
    job = cluster.sbatch("#!/bin/bash\nid -un; echo $HOME; sleep 100\n", "-o", "mine.out", "-J", "mine", user=alice)
    cluster.wait_for(job, "RUNNING")

    refused = cluster.run(["scancel", job], user=bob)

    assert refused.returncode == 210
    assert refused.stderr == f"scancel: error: Kill job error on job id {job}: Access/permission denied\n"
    assert cluster.job_state(job) == "RUNNING"
    out = cluster.home(alice) / "mine.out"
    assert text_of(out, f"{cluster.home(alice)}\n") == f"{alice}\n{cluster.home(alice)}\n"
    assert cluster.run(["cat", out], user=bob).returncode != 0


def test_users_have_an_interpreter_that_imports_the_product(cluster: Cluster, bob: str) -> None:
    done = cluster.run(["python", "-c", "import resilience, getpass; print(getpass.getuser())"], user=bob)
    assert (done.stdout, done.stderr) == (f"{bob}\n", "")


def test_a_command_that_takes_too_long_is_killed_with_its_children(cluster: Cluster) -> None:
    with pytest.raises(subprocess.TimeoutExpired):
        cluster.run(["sh", "-c", "sleep 1234.5 & sleep 1234.5"], timeout=0.2)
    assert not [p for p in cluster.processes() if b"1234.5" in Path(f"/proc/{p}/cmdline").read_bytes()]


def test_reset_undoes_every_fault(cluster: Cluster) -> None:
    cluster.sbatch("#!/bin/bash\ntrap '' TERM\nsleep 100\n", "--array=1-4", "-N1", "--exclusive")
    cluster.drain("n1", "broken")
    cluster.hang_slurmd("n2")
    cluster.fail_node("n3")
    cluster.run(["scontrol", "update", "partitionname=main", "state=drain"], check=True)
    cluster.kill_controller()

    cluster.reset()

    assert cluster.node_states() == dict.fromkeys(cluster.nodes, "idle")
    assert cluster.run(["squeue", "-h"], check=True).stdout == ""
    assert cluster.wait_for(cluster.sbatch("#!/bin/bash\ntrue\n"), "COMPLETED") == "COMPLETED"


def test_a_failed_node_takes_its_jobs_along_and_no_other(cluster: Cluster) -> None:
    script = "#!/bin/bash\ntrap '' TERM\necho $$ > $HOME/$SLURMD_NODENAME.pid\nwhile :; do sleep 0.2; done\n"
    for node in ("n1", "n2"):
        cluster.sbatch(script, "-w", node)
    one, other = (Process.of(int(text_of(cluster.home(cluster.users[0]) / f"{node}.pid"))) for node in ("n1", "n2"))
    assert one
    assert other

    cluster.fail_node("n1")

    assert not one.alive
    assert other.alive
    assert not cluster.daemon("n1").alive
