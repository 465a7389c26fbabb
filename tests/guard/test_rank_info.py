"""Rank and world size, from the environments of torchrun, srun, batch shells, MPI and users' scripts."""

from __future__ import annotations

import pytest

from resilience.guard.rank_info import RankInfo, find_rank_info

JOB = {"SLURM_JOB_ID": "4711", "SLURMD_NODENAME": "n1"}
BATCH = JOB | {"SLURM_PROCID": "0", "SLURM_NTASKS": "8", "SLURM_NPROCS": "8", "SLURM_LOCALID": "0", "SLURM_NODEID": "0"}


def in_step(rank: int, world: int, nodes: int = 1, step: int = 0, **more: str) -> dict[str, str]:
    """Return the environment of a task of srun."""
    per_node = max(1, world // nodes)
    return {
        **JOB,
        "SLURM_STEP_ID": str(step),
        "SLURM_STEP_NUM_TASKS": str(world),
        "SLURM_STEP_NUM_NODES": str(nodes),
        "SLURM_PROCID": str(rank),
        "SLURM_LOCALID": str(rank % per_node),
        **more,
    }


def torchrun(
    rank: int, world: int, local_world: int, restart: int = 0, port: int = 29500, nodes: int = 0
) -> dict[str, str]:
    """Return the environment of a worker of torchrun; without `nodes`, of a launcher that sets a part of it."""
    group = {"GROUP_RANK": str(rank // local_world), "GROUP_WORLD_SIZE": str(nodes)} if nodes else {}
    return {
        **group,
        "RANK": str(rank),
        "WORLD_SIZE": str(world),
        "LOCAL_RANK": str(rank % local_world),
        "LOCAL_WORLD_SIZE": str(local_world),
        "MASTER_ADDR": "n1",
        "MASTER_PORT": str(port),
        "TORCHELASTIC_RUN_ID": "none",
        "TORCHELASTIC_RESTART_COUNT": str(restart),
    }


def place(environ: dict[str, str]) -> RankInfo:
    return find_rank_info(environ, "here")


def test_without_variables_there_is_a_single_process() -> None:
    alone = place({})
    assert (alone.rank, alone.world, alone.local_rank, alone.nodes) == (0, 1, 0, 1)
    assert (alone.job_id, alone.host, alone.run_dir, alone.notes) == ("0", "here", "", ())
    assert alone.is_first and alone.is_first_of_node and alone.is_one_node


def test_torchrun_on_one_node() -> None:
    worker = place(torchrun(3, 4, 4))
    assert (worker.rank, worker.world, worker.local_rank, worker.nodes) == (3, 4, 3, 1)
    assert not worker.is_first and not worker.is_first_of_node and worker.is_one_node and worker.notes == ()


def test_srun_on_two_nodes() -> None:
    task = place(in_step(5, 8, nodes=2))
    assert (task.rank, task.world, task.local_rank, task.nodes) == (5, 8, 1, 2)
    assert task.host == "n1" and task.job_id == "4711" and task.notes == () and not task.is_one_node


@pytest.mark.parametrize(
    ("environ", "expected"),
    [
        (in_step(5, 8, nodes=2, SLURM_NODEID="1"), (1, 2)),
        (in_step(5, 8, nodes=2, SLURM_NODEID="2"), (-1, 2)),
        (in_step(5, 8, nodes=2), (-1, 2)),
        (torchrun(5, 8, 4, nodes=2), (1, 2)),
        (in_step(0, 2, nodes=2, SLURM_NODEID="0") | torchrun(5, 8, 4, nodes=2), (1, 2)),
        (torchrun(3, 4, 4, nodes=1), (0, 1)),
        (torchrun(3, 4, 4), (0, 1)),
        (torchrun(5, 8, 4), (-1, 0)),
        ({}, (0, 1)),
    ],
)  # fmt: skip
def test_each_rank_knows_its_node_among_the_nodes_where_the_launcher_says_so(
    environ: dict[str, str], expected: tuple[int, int]
) -> None:
    found = place(environ)
    assert (found.node, found.nodes) == expected


def test_the_batch_shell_is_not_a_task_although_it_has_a_rank() -> None:
    shell = place(BATCH)
    assert (shell.rank, shell.world, shell.notes) == (0, 1, ())


@pytest.mark.parametrize("step", ["-5", "4294967291", "4294967290", "batch", "", "9" * 30])
def test_a_special_step_is_no_step_of_srun(step: str) -> None:
    found = place(BATCH | {"SLURM_STEP_ID": step, "SLURM_STEP_NUM_TASKS": "8"})
    assert (found.rank, found.world) == (0, 1)


def test_torchrun_below_srun_takes_precedence_without_a_note() -> None:
    worker = place(in_step(1, 2, nodes=2) | torchrun(5, 8, 4))
    assert (worker.rank, worker.world, worker.local_rank, worker.notes) == (5, 8, 1, ())


def test_rank_set_from_procid_agrees() -> None:
    task = place(in_step(5, 8, nodes=2) | {"RANK": "5", "WORLD_SIZE": "8", "LOCAL_RANK": "1"})
    assert (task.rank, task.world, task.notes) == (5, 8, ())


def test_ranks_that_disagree_with_slurm_are_used_with_a_note() -> None:
    """`SLURM_PROCID` expanded too early, in the batch shell: every rank says 0."""
    task = place(in_step(5, 8, nodes=2) | {"RANK": "0", "WORLD_SIZE": "8"})
    assert (task.rank, task.world) == (0, 8)
    (note,) = task.notes
    for shown in ("RANK=0", "WORLD_SIZE=8", "SLURM_PROCID=5", "SLURM_STEP_NUM_TASKS=8", "srun"):
        assert shown in note


@pytest.mark.parametrize(
    ("rank", "world"),
    [("x", "4"), ("4", "4"), ("-1", "4"), ("0", "0"), ("0", ""), ("", "4"), ("0", "9" * 40), ("٣", "4")],
)
def test_an_invalid_rank_is_ignored_with_a_note(rank: str, world: str) -> None:
    task = place(in_step(5, 8, nodes=2) | {"RANK": rank, "WORLD_SIZE": world})
    assert (task.rank, task.world) == (5, 8)  # from srun
    assert any("RANK=" in note and "ignored" in note for note in task.notes)


def test_a_rank_without_a_world_size_is_ignored() -> None:
    found = place({"RANK": "1"})
    assert (found.rank, found.world) == (0, 1) and found.notes


def test_mpi_is_understood() -> None:
    mpi = {"OMPI_COMM_WORLD_RANK": "2", "OMPI_COMM_WORLD_SIZE": "4", "OMPI_COMM_WORLD_LOCAL_RANK": "1"}
    found = place(mpi)
    assert (found.rank, found.world, found.local_rank) == (2, 4, 1)
    found = place({"PMI_RANK": "3", "PMI_SIZE": "4", "MPI_LOCALRANKID": "0"})
    assert (found.rank, found.world, found.local_rank, found.is_first_of_node) == (3, 4, 0, True)


def test_mpi_below_its_own_daemons_takes_precedence_over_srun() -> None:
    """mpirun starts a daemon per node with srun, and the ranks inherit the daemon's step."""
    found = place(in_step(0, 1) | {"OMPI_COMM_WORLD_RANK": "3", "OMPI_COMM_WORLD_SIZE": "4"})
    assert (found.rank, found.world, found.notes) == (3, 4, ())


def test_srun_with_pmi2_knows_nodes_and_local_ranks() -> None:
    """with `MpiDefault=pmi2`, srun sets PMI's variables for every program."""
    found = place(in_step(5, 8, nodes=2) | {"PMI_RANK": "5", "PMI_SIZE": "8"})
    assert (found.rank, found.world, found.local_rank, found.nodes, found.notes) == (5, 8, 1, 2, ())


def test_the_exports_of_the_template_are_read() -> None:
    found = place(
        BATCH
        | {
            "RESIL_RUN": "gpt",
            "RESIL_RUN_DIR": "/state/gpt",
            "RESIL_JOB_ID": "4712",
            "RESIL_ATTEMPT": "3",
            "RESIL_END_TIME": "1800000000",
            "RESIL_SIGNAL_LEAD_S": "300",
            "SLURM_RESTART_COUNT": "2",
        }
    )
    assert (found.run, found.run_dir, found.job_id, found.attempt) == ("gpt", "/state/gpt", "4712", 3)
    assert (found.end_time, found.lead_s, found.restart) == (1_800_000_000.0, 300.0, 2)


@pytest.mark.parametrize(
    "environ",
    [
        {"RESIL_RUN_DIR": "state/gpt"},
        {"RESIL_ATTEMPT": "-1", "RESIL_END_TIME": "soon", "RESIL_SIGNAL_LEAD_S": "1e9", "RESIL_JOB_ID": "../../etc"},
        {"SLURM_JOB_END_TIME": "UNLIMITED", "SLURM_JOB_ID": ""},
    ],
)
def test_nonsense_in_the_environment_is_no_error(environ: dict[str, str]) -> None:
    found = place(environ)
    assert (found.run_dir, found.job_id, found.attempt, found.end_time, found.lead_s) == ("", "0", 0, None, 0.0)


def meetings(*environs: dict[str, str]) -> set[str]:
    return {place(environ).launch_id for environ in environs}


@pytest.mark.parametrize(
    "ranks",
    [
        [in_step(rank, 8, nodes=2) for rank in range(8)],
        [in_step(rank // 4, 2, nodes=2) | torchrun(rank, 8, 4) for rank in range(8)],
        # One srun per node, as in many scripts: two steps, one training.
        [in_step(0, 1, step=rank // 4) | torchrun(rank, 8, 4) for rank in range(8)],
        # mpirun forks the ranks of the first node in the batch shell, and starts its daemon on the second with srun.
        [
            (BATCH if rank < 2 else in_step(0, 1))
            | {"OMPI_COMM_WORLD_RANK": str(rank), "OMPI_COMM_WORLD_SIZE": "4", "PMIX_NAMESPACE": "prterun-n1-77@1"}
            for rank in range(4)
        ],
        [torchrun(rank, 4, 4) for rank in range(4)],
    ],
    ids=["srun", "torchrun below one srun", "torchrun below an srun for each node", "mpirun", "torchrun"],
)
def test_all_ranks_of_a_launch_have_the_same_launch_id(ranks: list[dict[str, str]]) -> None:
    (word,) = meetings(*ranks)
    assert word and "/" not in word and len(word) < 255


def test_no_two_launches_have_the_same_launch_id() -> None:
    launches = [
        in_step(0, 4),
        in_step(0, 4, step=1),  # a second srun in the job
        in_step(0, 4, SLURM_RESTART_COUNT="1"),  # the requeue
        in_step(0, 4) | {"SLURM_JOB_ID": "4712"},
        BATCH | torchrun(0, 4, 4),
        BATCH | torchrun(0, 4, 4, port=29501),
        BATCH | torchrun(0, 4, 4, restart=1),  # torchrun restarts all its workers
        torchrun(0, 4, 4),
        torchrun(0, 4, 4, port=29501),  # two trainings on one workstation
    ]
    assert len(meetings(*launches)) == len(launches)


def test_the_launch_id_is_a_plain_file_name_for_any_environment() -> None:
    environ = torchrun(0, 4, 4) | {"TORCHELASTIC_RUN_ID": "../../etc/" + "x" * 500, "MASTER_ADDR": "fe80::1%eth0/\0"}
    word = place(environ).launch_id
    assert "/" not in word and "." not in word and "\0" not in word and len(word) < 255
