"""Rank, world size, node, run and job of this process, read from the environment. Pure."""

from __future__ import annotations

from dataclasses import dataclass

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence


@dataclass(slots=True, kw_only=True)
class RankInfo:
    """Rank, node, run and job of this process.

    Attributes:
        rank: of this process, from 0.
        world: number of ranks.
        local_rank: the rank's number on its node; -1 if unknown.
        nodes: number of nodes; 0 if unknown.
        node: number of this node among them, from 0; -1 if unknown.
        run: name of the run, or an empty text.
        run_dir: path of the run directory; empty without one.
        job_id: SLURM's raw job id, or "0".
        attempt: number of the attempt, 0 outside a job of a template.
        restart: SLURM_RESTART_COUNT.
        end_time: when the job ends, in seconds since the epoch; None if unknown or without a limit.
        lead_s: how long before the end SLURM signals the batch shell; 0 if unknown.
        host: name of the node, by SLURM.
        launch_id: identifier that all ranks of this launch share, and no other launch has.
        notes: warnings about the environment, as sentences.
    """

    rank: int = 0
    world: int = 1
    local_rank: int = -1
    nodes: int = 0
    node: int = -1
    run: str = ""
    run_dir: str = ""
    job_id: str = "0"
    attempt: int = 0
    restart: int = 0
    end_time: float | None = None
    lead_s: float = 0.0
    host: str = "localhost"
    launch_id: str = ""
    notes: tuple[str, ...] = ()

    @property
    def is_first(self) -> bool:
        """Return whether this is rank 0, the only rank that reads shared files."""
        return self.rank == 0

    @property
    def is_first_of_node(self) -> bool:
        """Return whether this rank monitors the resources of its node."""
        return self.local_rank <= 0

    @property
    def is_one_node(self) -> bool:
        """Return whether all ranks are known to be on this node."""
        return self.world == 1 or self.nodes == 1


_FIRST_SPECIAL_STEP = 0xFFFFFFF0

# Variables by source, in order of precedence: (rank, world, local rank, nodes, name of the source, node). torchrun's
# group is the workers of one agent, of which each node has one (torch.distributed.elastic, "Environment Variables").
_SOURCES = (
    ("RANK", "WORLD_SIZE", "LOCAL_RANK", "GROUP_WORLD_SIZE", "torch", "GROUP_RANK"),
    ("OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE", "OMPI_COMM_WORLD_LOCAL_RANK", "", "Open MPI", ""),
    ("PMI_RANK", "PMI_SIZE", "MPI_LOCALRANKID", "", "PMI", ""),
    ("SLURM_PROCID", "SLURM_STEP_NUM_TASKS", "SLURM_LOCALID", "SLURM_STEP_NUM_NODES", "srun", "SLURM_NODEID"),
)


def find_rank_info(environ: Mapping[str, str], host: str) -> RankInfo:
    """Given the environment and the host's name, return the rank, node, run and job of this process.

    torch's RANK and WORLD_SIZE take precedence, because the training itself uses them. MPI's come before srun's: mpirun
    starts its daemons with srun, one per node. SLURM_PROCID counts only inside a step: the batch shell has one too,
    although it is not a task.
    """
    notes: list[str] = []
    found = [
        (source, rank, world)
        for source in _SOURCES
        if (source[4] != "srun" or _is_step(environ))
        for rank, world in [_rank_and_world(environ, source, notes)]
        if world
    ]
    place = RankInfo(notes=(), host=environ.get("SLURMD_NODENAME") or host)
    if found:
        _, place.rank, place.world = found[0]
        # A source that agrees may know more: srun sets PMI's two variables as well, and users set torch's.
        agreeing = [source for source, rank, world in found if (rank, world) == (place.rank, place.world)]
        local_ranks = [_number(environ.get(source[2], ""), -1) for source in agreeing]
        place.local_rank = next((local_rank for local_rank in local_ranks if local_rank >= 0), -1)
        place.nodes = max(_number(environ.get(source[3], ""), 0) for source in agreeing)
        nodes = [_number(environ.get(source[5], ""), -1) for source in agreeing]
        place.node = next((node for node in nodes if 0 <= node < place.nodes), -1)
        local_world = _number(environ.get("LOCAL_WORLD_SIZE", ""), 0)
        if local_world == place.world:
            place.nodes = 1
        _compare(found, environ, notes)
    if place.world == 1:
        place.nodes, place.local_rank = 1, 0
    if place.nodes == 1:
        place.node = 0
    place.run = environ.get("RESIL_RUN", "")
    place.run_dir = environ.get("RESIL_RUN_DIR", "")
    if place.run_dir and not place.run_dir.startswith("/"):
        notes.append(f"RESIL_RUN_DIR={place.run_dir!r} is not an absolute path; the guard runs without a run directory")
        place.run_dir = ""
    place.job_id = environ.get("RESIL_JOB_ID") or environ.get("SLURM_JOB_ID") or "0"
    if not place.job_id.isalnum():
        place.job_id = "0"
    place.attempt = _number(environ.get("RESIL_ATTEMPT", ""), 0)
    place.restart = _number(environ.get("RESIL_RESTART_COUNT") or environ.get("SLURM_RESTART_COUNT") or "", 0)
    end = _number(environ.get("RESIL_END_TIME") or environ.get("SLURM_JOB_END_TIME") or "", 0)
    place.end_time = float(end) if end else None
    place.lead_s = float(_number(environ.get("RESIL_SIGNAL_LEAD_S", ""), 0))
    place.launch_id = _launch_id(environ, place)
    place.notes = tuple(notes)
    return place


def _is_step(environ: Mapping[str, str]) -> bool:
    """Return whether srun started this process: SLURM_STEP_ID is set, and not to a special step.

    The batch shell of 26.05 has -5. As unsigned numbers the special steps (batch, extern, interactive, pending:
    slurm.h) are the largest of 32 bits.
    """
    step = _number(environ.get("SLURM_STEP_ID", ""), _FIRST_SPECIAL_STEP)
    return step < _FIRST_SPECIAL_STEP and "SLURM_STEP_NUM_TASKS" in environ


def _rank_and_world(environ: Mapping[str, str], source: tuple[str, ...], notes: list[str]) -> tuple[int, int]:
    rank_text, world_text = environ.get(source[0]), environ.get(source[1])
    if rank_text is None and world_text is None:
        return 0, 0
    rank, world = _number(rank_text or "", -1), _number(world_text or "", 0)
    if not 0 <= rank < world:
        if source[4] == "torch" or rank_text is not None:
            shown = f"{source[0]}={rank_text!r} and {source[1]}={world_text!r}"
            notes.append(f"{shown} are not a valid rank and world size; ignored")
        return 0, 0
    return rank, world


def _compare(found: Sequence[tuple[tuple[str, ...], int, int]], environ: Mapping[str, str], notes: list[str]) -> None:
    """Note each source that disagrees with the first, unless it is a launcher's srun task, one per node."""
    if "TORCHELASTIC_RUN_ID" in environ or "ACCELERATE_MIXED_PRECISION" in environ:
        return
    (first, rank, world), *others = found
    for source, other_rank, other_world in others:
        is_launcher = source[4] == "srun" and other_world <= _number(environ.get("SLURM_STEP_NUM_NODES", ""), 0)
        if (other_rank, other_world) != (rank, world) and not is_launcher:
            notes.append(
                f"{first[0]}={rank} of {first[1]}={world} disagrees with {source[4]}'s {source[0]}={other_rank} of "
                f"{source[1]}={other_world}; the guard uses {first[0]} and {first[1]}, as the training does"
            )


def _launch_id(environ: Mapping[str, str], place: RankInfo) -> str:
    """Return an identifier shared by all ranks of this launch, and different for another launch in the same job, a
    requeue, or a restart by torchrun.

    The step identifies a launch only if it contains all ranks: srun may be called once per node, and mpirun forks the
    ranks of the first node without a step. Otherwise the rendezvous address of torch or MPI identifies the launch.
    """
    parts = [place.job_id, str(place.restart)]
    if _holds_all_ranks(environ, place.world):
        parts.append(environ["SLURM_STEP_ID"])
    else:
        parts += [environ.get(name, "") for name in ("MASTER_ADDR", "MASTER_PORT", "PMIX_NAMESPACE")]
    parts += [environ.get(name, "") for name in ("TORCHELASTIC_RUN_ID", "TORCHELASTIC_RESTART_COUNT")]
    return "-".join("".join(character for character in part if character.isalnum())[:40] for part in parts).rstrip("-")


def _holds_all_ranks(environ: Mapping[str, str], world: int) -> bool:
    """Return whether the srun step of this process contains all ranks: as its tasks, or below one launcher per node."""
    if not _is_step(environ):
        return False
    tasks = _number(environ.get("SLURM_STEP_NUM_TASKS", ""), 0)
    nodes = _number(environ.get("SLURM_STEP_NUM_NODES", ""), 0)
    return world in (tasks, nodes * _number(environ.get("LOCAL_WORLD_SIZE", ""), 0))


def _number(text: str, otherwise: int) -> int:
    text = text.strip()
    return int(text) if text.isascii() and text.isdigit() and len(text) < 19 else otherwise
