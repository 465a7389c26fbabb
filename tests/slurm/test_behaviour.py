"""What this product believes about SLURM, as claims that a real one confirms: arrays, dependencies, requeue, rights.

Each claim is a reason for something in the product. What needs slurmctld's 30 s tick is in test_behaviour_limits.py.
"""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.lab.slurm.cluster import Cluster
from tests.lab.slurm.host import release
from tests.lab.slurm.processes import Process, text_of, until

SLEEP = "#!/bin/bash\nsleep 300\n"
DEAF = "#!/bin/bash\ntrap '' TERM\necho $$ > {name}.pid\nwhile :; do sleep 0.2; done\n"
# The successor of a deaf job: is the other's process still there?
LOOK = "#!/bin/bash\nif kill -0 $(cat {name}.pid); then echo overlap; else echo alone; fi > {name}.seen\n"
DENIED = "Access/permission denied"


def exits(code: int, after_s: float = 2) -> str:
    return f"#!/bin/bash\nsleep {after_s}\nexit {code}\n"


def reasons(cluster: Cluster, job: str) -> set[str]:
    return set(cluster.squeue("%r", "-j", job))


# ---- two attempts of a run at the same time ---------------------------------------------------------------------


def test_one_at_a_time_arrays_and_singletons_overlap_and_afterany_does_not(cluster: Cluster, alice: str) -> None:
    """The successor starts as soon as the predecessor is COMPLETING, up to KillWait before its processes are gone."""
    home = cluster.home(alice)
    both = "#!/bin/bash\nif [ $SLURM_ARRAY_TASK_ID = 1 ]; then\n{}\nelse\n{}\nfi\n"
    array = cluster.sbatch(both.format(DEAF.format(name="array"), LOOK.format(name="array")), "--array=1-2%1")
    single = cluster.sbatch(DEAF.format(name="single"), "-J", "single")
    cluster.sbatch(LOOK.format(name="single"), "-J", "single", "--dependency=singleton")
    chain = cluster.sbatch(DEAF.format(name="chain"))
    cluster.sbatch(LOOK.format(name="chain"), f"--dependency=afterany:{chain}")
    names = ("array", "single", "chain")
    for name in names:
        text_of(home / f"{name}.pid")

    cluster.run(["scancel", f"{array}_1", single, chain], alice, check=True)

    seen = {name: text_of(home / f"{name}.seen").strip() for name in names}
    assert seen == {"array": "overlap", "single": "overlap", "chain": "alone"}


# ---- dependencies -----------------------------------------------------------------------------------------------


def test_every_type_of_dependency(cluster: Cluster, alice: str) -> None:
    good, bad = cluster.sbatch(exits(0)), cluster.sbatch(exits(3))
    pair = cluster.sbatch("#!/bin/bash\nsleep 2\nexit $((SLURM_ARRAY_TASK_ID - 1))\n", "--array=1-2")
    slow = cluster.sbatch(SLEEP)

    def depends(how: str, *options: str) -> str:
        return cluster.sbatch(exits(0, 0), f"--dependency={how}", *options)

    met = {how: depends(how) for how in (
        f"afterok:{good}", f"afternotok:{bad}", f"afterany:{good}:{bad}", f"after:{slow}", f"{bad}",
        f"afterok:{bad}?afterok:{good}",
        f"after{'ok' if release() < (24, 0) else 'any'}:999999",  # 24.11 refuses afterok
    )}  # fmt: skip
    never = {how: depends(how) for how in (f"afterok:{bad}", f"afternotok:{good}", f"afterok:{pair}")}
    killed = depends(f"afterok:{bad}", "--kill-on-invalid-dep=yes")
    waiting = depends(f"afterany:{slow}")
    correlated = depends(f"aftercorr:{pair}", "--array=1-2")

    for how, job in met.items():
        assert cluster.wait_for(job, "COMPLETED") == "COMPLETED", how
    for how, job in never.items():
        until(lambda job=job: reasons(cluster, job) == {"DependencyNeverSatisfied"}, how)  # type: ignore[misc]
        assert cluster.job_state(job) == "PENDING", f"{how} stays for ever"
    assert cluster.wait_for(killed, "CANCELLED") == "CANCELLED"
    assert cluster.wait_for(f"{correlated}_1", "COMPLETED") == "COMPLETED"
    until(lambda: "DependencyNeverSatisfied" in reasons(cluster, f"{correlated}_2"), "task 2 never to be")
    assert (cluster.job_state(waiting), reasons(cluster, waiting)) == ("PENDING", {"Dependency"})
    assert cluster.squeue("%E", "-j", waiting) == [f"afterany:{slow}(unfulfilled)"]


def test_a_dependency_that_makes_no_sense_is_refused_and_uses_up_a_job_id(cluster: Cluster, alice: str) -> None:
    before = int(cluster.sbatch(exits(0, 0)))
    for how in ("bogus:15", "afterany:", "afterany:abc"):
        refused = cluster.run(["sbatch", f"--dependency={how}"], alice, input=SLEEP)
        assert refused.returncode == 1
        assert refused.stderr == "sbatch: error: Batch job submission failed: Job dependency problem\n"
    assert int(cluster.sbatch(exits(0, 0))) > before + 1


# ---- arrays -----------------------------------------------------------------------------------------------------


def test_a_failed_task_does_not_stop_its_array_and_ids_have_two_forms(cluster: Cluster) -> None:
    script = "#!/bin/bash\necho $SLURM_JOB_ID $SLURM_ARRAY_JOB_ID $SLURM_ARRAY_TASK_ID\nexit 1\n"
    array = cluster.sbatch(script, "--array=1-3%1", "-o", "%a.out")
    assert cluster.wait_for(array, "FAILED") == "FAILED"
    lines = [(cluster.home(cluster.users[0]) / f"{n}.out").read_text().split() for n in (1, 2, 3)]
    assert [line[1:] for line in lines] == [[array, "1"], [array, "2"], [array, "3"]]
    raw = [int(line[0]) for line in lines]
    assert raw[2] == int(array), "the last task to start has the array's own id"
    assert len(set(raw)) == 3


def test_an_array_beyond_the_largest_index_is_refused(cluster: Cluster, alice: str) -> None:
    refused = cluster.run(["sbatch", "--array=1001"], alice, input=SLEEP)
    assert (refused.returncode, refused.stdout) == (1, "")
    assert "Invalid job array specification" in refused.stderr


# ---- requeue ----------------------------------------------------------------------------------------------------


def test_a_requeued_job_counts_its_restarts_and_truncates_its_output_unless_told(cluster: Cluster, alice: str) -> None:
    script = "#!/bin/bash\necho restarts=${SLURM_RESTART_COUNT-unset}\nsleep 300\n"
    keeping = cluster.sbatch(script, "-o", "append.out", "--open-mode=append")
    losing = cluster.sbatch(script, "-o", "truncate.out")
    append, truncate = (cluster.home(alice) / name for name in ("append.out", "truncate.out"))
    assert [text_of(file) for file in (append, truncate)] == ["restarts=unset\n"] * 2

    for job in (keeping, losing):
        cluster.run(["scontrol", "requeue", job], alice, check=True)
        cluster.wait_for(job, "PENDING")
        until(lambda job=job: reasons(cluster, job) == {"BeginTime"}, "its old credential to expire")  # type: ignore[misc]
        # StartTime=now would not wait, and sometimes the node refuses: "Job credential revoked", and the job is FAILED.

    kept = text_of(append, "restarts=1\n").splitlines()
    assert (kept[0], kept[-1]) == ("restarts=unset", "restarts=1")
    assert text_of(truncate, "restarts=1\n") == "restarts=1\n"


def test_requeue_is_refused_for_a_pending_or_unknown_job(cluster: Cluster, alice: str) -> None:
    held = cluster.sbatch(SLEEP, "--hold")
    assert "Job is pending execution" in cluster.run(["scontrol", "requeue", held], alice).stderr
    assert "Invalid job id" in cluster.run(["scontrol", "requeue", "99999"], alice).stderr


# ---- rights -----------------------------------------------------------------------------------------------------


def test_only_the_owner_may_cancel_hold_requeue_and_change(cluster: Cluster, alice: str, bob: str) -> None:
    job = cluster.sbatch(SLEEP, "--begin=now+1hour")
    for argv, said in (
        (["scancel", job], DENIED), (["scontrol", "requeue", job], DENIED),
        (["scontrol", "hold", job], "Invalid user id"),
        (["scontrol", "update", f"jobid={job}", "priority=1"], "Invalid user id"),
    ):  # fmt: skip
        refused = cluster.run(argv, bob)
        assert refused.returncode != 0, argv
        assert said in refused.stderr, argv

    cluster.run(["scontrol", "hold", job], alice, check=True)
    assert reasons(cluster, job) == {"JobHeldUser"}
    cluster.run(["scontrol", "release", job], alice, check=True)
    until(lambda: reasons(cluster, job) == {"BeginTime"}, "release")
    cluster.run(["scancel", job], alice, check=True)
    assert cluster.wait_for(job, "CANCELLED") == "CANCELLED"


def test_cancelling_what_is_unknown_or_finished_is_silent_success(cluster: Cluster, alice: str) -> None:
    done = cluster.sbatch(exits(0, 0))
    cluster.wait_for(done, "COMPLETED")
    for job in ("999999", done):
        answer = cluster.run(["scancel", job], alice)
        assert (answer.returncode, answer.stdout, answer.stderr) == (0, "", "")


# ---- nodes ------------------------------------------------------------------------------------------------------


def test_a_drained_node_finishes_its_job_and_takes_no_other(cluster: Cluster, alice: str) -> None:
    running = cluster.sbatch(exits(0, 4), "-w", "n2")
    cluster.wait_for(running, "RUNNING")
    refused = cluster.run(["scontrol", "update", "nodename=n2", "state=drain", "reason=x"], alice)
    assert (refused.returncode, refused.stderr) == (1, "slurm_update error: Invalid user id\n")

    cluster.drain("n2", "bad GPU: XID 79")
    assert cluster.node_states()["n2"] == "draining"
    waiting = cluster.sbatch(exits(0, 0), "-w", "n2")
    assert cluster.wait_for(running, "COMPLETED") == "COMPLETED"
    until(lambda: cluster.node_states()["n2"] == "drained", "the node to be drained")
    until(lambda: any("ReqNodeNotAvail" in r for r in reasons(cluster, waiting)), "the reason")
    listed = cluster.run(["sinfo", "-R", "-h", "-o", "%N|%E"], alice, check=True).stdout
    assert listed == "n2|bad GPU: XID 79\n"

    cluster.resume("n2")
    assert cluster.wait_for(waiting, "COMPLETED") == "COMPLETED"


def test_jobs_in_a_closed_partition_are_accepted_and_wait(cluster: Cluster) -> None:
    job = cluster.sbatch(SLEEP, "-p", "closed")
    until(lambda: reasons(cluster, job) == {"PartitionDown"}, "the reason")


# ---- the controller ---------------------------------------------------------------------------------------------


def test_a_dead_controller_leaves_jobs_running_and_clients_say_so(cluster: Cluster, alice: str) -> None:
    job = cluster.sbatch(DEAF.format(name="lives"))
    cluster.wait_for(job, "RUNNING")
    process = Process.of(int(text_of(cluster.home(alice) / "lives.pid")))
    cluster.terminate_controller()

    down = cluster.run(["squeue", "-h"], alice)
    assert (down.returncode, down.stdout) == (1, "")
    assert "Unable to contact slurm controller (connect failure)" in down.stderr
    empty = cluster.run(["squeue", "--json"], alice)
    if empty.returncode == 0:  # SLURM 22.05: success, no jobs, and the error where few look
        assert json.loads(empty.stdout)["jobs"] == []
        assert json.loads(empty.stdout)["errors"] != []
    assert process
    assert process.alive

    cluster.start_controller()
    assert cluster.job_state(job) == "RUNNING"
    assert process.alive


def test_sbatch_may_fail_and_yet_submit_while_the_controller_hangs(cluster: Cluster, alice: str) -> None:
    cluster.stop_controller()
    failed = cluster.run(["sbatch", "-J", "ghost", "--hold"], alice, input=SLEEP)
    listing = cluster.run(["squeue", "-h"], alice)
    cluster.continue_controller()

    assert (failed.returncode, failed.stdout) == (1, "")
    assert "Socket timed out on send/recv operation" in failed.stderr
    assert (listing.returncode, listing.stdout) == (1, "")
    until(lambda: "ghost" in cluster.squeue("%j"), "the job that was not submitted")


def test_a_missing_working_directory_or_output_is_no_error_at_submission(cluster: Cluster, tmp_path: Path) -> None:
    elsewhere = cluster.sbatch("#!/bin/bash\npwd\n", "-D", "/nonexistent", "-o", f"{cluster.shared}/%j.out")
    assert cluster.wait_for(elsewhere, "COMPLETED") == "COMPLETED"
    assert (cluster.shared / f"{elsewhere}.out").read_text().splitlines()[-1] == "/tmp"
    mute = cluster.sbatch("#!/bin/bash\necho hello\n", "-o", "/nonexistent/out")
    assert cluster.wait_for(mute, "FAILED") == "FAILED"


@pytest.mark.parametrize(("code", "shown"), [(1, "1:0"), (130, "130:0"), (255, "255:0")])
def test_scontrol_tells_exit_codes_truly(cluster: Cluster, code: int, shown: str) -> None:
    job = cluster.sbatch(exits(code, 0))
    cluster.wait_for(job, "FAILED")
    assert f"ExitCode={shown}" in cluster.run(["scontrol", "show", "job", job]).stdout.split()
