"""The SLURM_* variables that a job of the embedded scheduler sees. Pure. Source: sbatch(1), OUTPUT ENVIRONMENT."""

from __future__ import annotations

from collections.abc import Mapping

from resilience.schedulers._local.records import Entry, Task

CLUSTER = "local"


def job_variables(
    entry: Entry, task: Task, environment: Mapping[str, str], *, spool: str, host: str, cpus_on_node: int
) -> dict[str, str]:
    """The whole environment of a job: what it was submitted with, and what a scheduler says about it.

    SLURM_RESTART_COUNT is unset in the first run; SLURM_JOB_END_TIME is unset when there is no limit.
    """
    raw = str(task.raw)
    variables = {
        "SLURM_JOB_ID": raw,
        "SLURM_JOBID": raw,
        "SLURM_JOB_NAME": entry.name,
        "SLURM_JOB_USER": entry.user,
        "SLURM_JOB_PARTITION": CLUSTER,
        "SLURM_CLUSTER_NAME": CLUSTER,
        "SLURM_SUBMIT_DIR": entry.submit_dir,
        "SLURM_SUBMIT_HOST": host,
        "SLURM_JOB_NODELIST": host,
        "SLURM_NODELIST": host,
        "SLURMD_NODENAME": host,
        "SLURM_JOB_NUM_NODES": "1",
        "SLURM_NNODES": "1",
        "SLURM_NTASKS": str(entry.ntasks),
        "SLURM_NPROCS": str(entry.ntasks),
        "SLURM_TASKS_PER_NODE": str(entry.ntasks),
        "SLURM_CPUS_ON_NODE": str(min(entry.cpus, cpus_on_node)),
        "SLURM_JOB_CPUS_PER_NODE": str(min(entry.cpus, cpus_on_node)),
        "SLURM_NODEID": "0",
        "SLURM_PROCID": "0",
        "SLURM_LOCALID": "0",
        "SLURM_GTIDS": "0",
        "SLURM_JOB_START_TIME": str(int(task.start or 0)),
        "RESIL_SCHEDULER": CLUSTER,
        "RESIL_LOCAL_SPOOL": spool,
    }
    if task.deadline is not None:
        variables["SLURM_JOB_END_TIME"] = str(int(task.deadline))
    if entry.cpus_per_task is not None:
        variables["SLURM_CPUS_PER_TASK"] = str(entry.cpus_per_task)
    if task.restarts:
        variables["SLURM_RESTART_COUNT"] = str(task.restarts)
    if entry.indices is not None and task.index is not None:
        variables |= {
            "SLURM_ARRAY_JOB_ID": str(entry.id),
            "SLURM_ARRAY_TASK_ID": str(task.index),
            "SLURM_ARRAY_TASK_COUNT": str(len(entry.indices)),
            "SLURM_ARRAY_TASK_MIN": str(entry.indices[0]),
            "SLURM_ARRAY_TASK_MAX": str(entry.indices[-1]),
            "SLURM_ARRAY_TASK_STEP": str(entry.step),
        }
    path = environment.get("PATH", "/usr/local/bin:/usr/bin:/bin")
    return {**environment, **variables, "PATH": f"{spool}/bin:{path}"}
