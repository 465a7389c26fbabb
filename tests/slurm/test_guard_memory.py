"""The guard in a job of a real SLURM that leaks: it is stopped at the job's limit, not killed at it."""

from __future__ import annotations

import json

import pytest

from resilience.guard.memory.cgroup import find_directories
from tests.lab.slurm.cluster import Cluster

MIB = 2**20

# A data loader leaks 1 MiB every 15 ms; the limit is the job's, two or three cgroups above this task's.
TRAINING = """\
import json, subprocess, sys, time
from resilience.guard import TrainingGuard

LEAK = "import time\\nheld = []\\nwhile True:\\n    held.append(bytearray(2**20)); time.sleep(0.015)\\n"
guard = TrainingGuard.from_env(host_memory_percent=60, poll_s=0.1, walltime=False, gpu_memory="off", signals=())
worker = subprocess.Popen([sys.executable, "-c", LEAK])
saves = 0
with guard:
    while worker.poll() is None:
        time.sleep(0.01)
        decision = guard.step()
        if decision.save:
            with guard.saving():
                saves += 1
        if decision.stop:
            break
worker.kill()
with open(sys.argv[1], "w") as file:
    json.dump({"why": decision.why, "saves": saves}, file)
sys.exit(guard.exit_code)
"""


@pytest.mark.parametrize("launcher", ["", "srun "])
def test_a_leaking_job_saves_and_exits_75_before_slurm_kills_it(cluster: Cluster, launcher: str) -> None:
    directories = find_directories()
    if not directories or directories[-1].version != 1:
        pytest.skip("needs the memory controller in cgroup version 1, as the test cluster does")
    name = launcher.strip() or "batch"
    training, report = cluster.shared / f"leak-{name}.py", cluster.shared / f"leak-{name}.json"
    training.write_text(TRAINING)
    script = f"#!/bin/bash\n{launcher}{cluster.python} {training} {report}\n"
    job = cluster.sbatch(script, "--mem=200M", "--ntasks=1", f"--output={cluster.shared}/leak-{name}.out")
    cluster.wait_for(job, "FAILED")
    assert "ExitCode=75:0" in cluster.run(["scontrol", "show", "job", job]).stdout.split()
    told = json.loads(report.read_text())
    assert told["saves"] == 1
    assert "% of the 200 MiB that the job's cgroup /" in told["why"], told
    assert f"/job_{job} allows" in told["why"], told
