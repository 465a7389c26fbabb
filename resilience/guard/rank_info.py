"""Where this process stands: which rank of how many, on which node, in which run. Pure: read from the environment."""

from __future__ import annotations

from dataclasses import dataclass

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence


@dataclass(slots=True, kw_only=True)
class RankInfo:
    """What the environment says.

    Attributes:
        rank: of this process, from 0.
        world: how many ranks there are.
        local_rank: the number of this rank on its node; -1 when nothing tells.
        nodes: how many nodes the ranks are on; 0 when nothing tells.
        run: name of the run, or an empty text.
        run_dir: path of the run directory, or an empty text when the guard stands alone.
        job_id: SLURM's raw job id, or "0".
        attempt: number of the attempt, 0 outside a job of a template.
        restart: SLURM_RESTART_COUNT.
        end_time: when the job ends, in seconds since the epoch; None when that is not known or never.
        lead_s: how long before the end the batch shell is told; 0 when nothing tells.
        host: name of the node, as SLURM calls it.
        meeting: a word that all ranks of this launch share, and no other launch does.
        notes: what is odd about the environment, as sentences.
    """

    rank: int = 0
    world: int = 1
    local_rank: int = -1
    nodes: int = 0
    run: str = ""
    run_dir: str = ""
    job_id: str = "0"
    attempt: int = 0
    restart: int = 0
    end_time: float | None = None
    lead_s: float = 0.0
    host: str = "localhost"
    meeting: str = ""
    notes: tuple[str, ...] = ()

    @property
    def is_first(self) -> bool:
        """Whether this is rank 0, which alone looks at shared files."""
        return self.rank == 0

    @property
    def is_first_of_node(self) -> bool:
        """Whether this rank looks at what belongs to its whole node."""
        return self.local_rank <= 0

    @property
    def is_one_node(self) -> bool:
        """Whether all ranks are known to be on this node."""
        return self.world == 1 or self.nodes == 1


_FIRST_SPECIAL_STEP = 0xFFFFFFF0

# Who tells rank and world, in the order of trust: (rank, world, local rank, nodes, what it is).
_TELLERS = (
    ("RANK", "WORLD_SIZE", "LOCAL_RANK", "", "torch"),
    ("OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE", "OMPI_COMM_WORLD_LOCAL_RANK", "", "Open MPI"),
    ("PMI_RANK", "PMI_SIZE", "MPI_LOCALRANKID", "", "PMI"),
    ("SLURM_PROCID", "SLURM_STEP_NUM_TASKS", "SLURM_LOCALID", "SLURM_STEP_NUM_NODES", "srun"),
)


def find_rank_info(environ: Mapping[str, str], host: str) -> RankInfo:
    """Given the environment and the host's name, return where this process stands.

    torch's RANK and WORLD_SIZE win, because they are what the training itself goes by. MPI's come before srun's: what
    mpirun starts with srun are its daemons, one per node. SLURM_PROCID is believed only inside a step: the batch shell
    has one as well, although it is no task.
    """
    notes: list[str] = []
    told = [
        (teller, rank, world)
        for teller in _TELLERS
        if (teller[4] != "srun" or _is_step(environ))
        for rank, world in [_rank_and_world(environ, teller, notes)]
        if world
    ]
    place = RankInfo(notes=(), host=environ.get("SLURMD_NODENAME") or host)
    if told:
        _, place.rank, place.world = told[0]
        # Whoever says the same may know more: srun sets PMI's two variables as well, and people set torch's.
        agreeing = [teller for teller, *place_told in told if place_told == [place.rank, place.world]]
        local_ranks = [_number(environ.get(teller[2], ""), -1) for teller in agreeing]
        place.local_rank = next((local_rank for local_rank in local_ranks if local_rank >= 0), -1)
        place.nodes = max(_number(environ.get(teller[3], ""), 0) for teller in agreeing)
        local_world = _number(environ.get("LOCAL_WORLD_SIZE", ""), 0)
        if local_world == place.world:
            place.nodes = 1
        _compare(told, environ, notes)
    if place.world == 1:
        place.nodes, place.local_rank = 1, 0
    place.run = environ.get("RESIL_RUN", "")
    place.run_dir = environ.get("RESIL_RUN_DIR", "")
    if place.run_dir and not place.run_dir.startswith("/"):
        notes.append(f"RESIL_RUN_DIR={place.run_dir!r} is no absolute path: the guard does without a run directory")
        place.run_dir = ""
    place.job_id = environ.get("RESIL_JOB_ID") or environ.get("SLURM_JOB_ID") or "0"
    if not place.job_id.isalnum():
        place.job_id = "0"
    place.attempt = _number(environ.get("RESIL_ATTEMPT", ""), 0)
    place.restart = _number(environ.get("RESIL_RESTART_COUNT") or environ.get("SLURM_RESTART_COUNT") or "", 0)
    end = _number(environ.get("RESIL_END_TIME") or environ.get("SLURM_JOB_END_TIME") or "", 0)
    place.end_time = float(end) if end else None
    place.lead_s = float(_number(environ.get("RESIL_SIGNAL_LEAD_S", ""), 0))
    place.meeting = _meeting(environ, place)
    place.notes = tuple(notes)
    return place


def _is_step(environ: Mapping[str, str]) -> bool:
    """Whether srun started us: SLURM_STEP_ID is there and is no special step.

    26.05 gives the batch shell -5. As unsigned numbers the special steps (batch, extern, interactive, pending: slurm.h)
    are the last of 32 bits.
    """
    step = _number(environ.get("SLURM_STEP_ID", ""), _FIRST_SPECIAL_STEP)
    return step < _FIRST_SPECIAL_STEP and "SLURM_STEP_NUM_TASKS" in environ


def _rank_and_world(environ: Mapping[str, str], teller: tuple[str, ...], notes: list[str]) -> tuple[int, int]:
    rank_text, world_text = environ.get(teller[0]), environ.get(teller[1])
    if rank_text is None and world_text is None:
        return 0, 0
    rank, world = _number(rank_text or "", -1), _number(world_text or "", 0)
    if not 0 <= rank < world:
        if teller[4] == "torch" or rank_text is not None:
            shown = f"{teller[0]}={rank_text!r} and {teller[1]}={world_text!r}"
            notes.append(f"{shown} are no rank and number of ranks; they are passed over")
        return 0, 0
    return rank, world


def _compare(told: Sequence[tuple[tuple[str, ...], int, int]], environ: Mapping[str, str], notes: list[str]) -> None:
    """torchrun and its kind are one task of srun on each node: that is no contradiction. Anything else is odd."""
    if "TORCHELASTIC_RUN_ID" in environ or "ACCELERATE_MIXED_PRECISION" in environ:
        return
    (first, rank, world), *others = told
    for teller, other_rank, other_world in others:
        is_launcher = teller[4] == "srun" and other_world <= _number(environ.get("SLURM_STEP_NUM_NODES", ""), 0)
        if (other_rank, other_world) != (rank, world) and not is_launcher:
            notes.append(
                f"{first[0]}={rank} of {first[1]}={world} disagrees with {teller[4]}'s {teller[0]}={other_rank} of "
                f"{teller[1]}={other_world}; the guard goes by {first[0]} and {first[1]}, as the training does"
            )


def _meeting(environ: Mapping[str, str], place: RankInfo) -> str:
    """Two launches in one job, a requeue, and torchrun's own restarts must not meet each other; all ranks of one must.

    The step tells launches apart, but only where one step holds all ranks: srun may have been called once per node, and
    mpirun forks the ranks of the first node without a step. Then it is the place where torch or MPI meets.
    """
    parts = [place.job_id, str(place.restart)]
    if _holds_all_ranks(environ, place.world):
        parts.append(environ["SLURM_STEP_ID"])
    else:
        parts += [environ.get(name, "") for name in ("MASTER_ADDR", "MASTER_PORT", "PMIX_NAMESPACE")]
    parts += [environ.get(name, "") for name in ("TORCHELASTIC_RUN_ID", "TORCHELASTIC_RESTART_COUNT")]
    return "-".join("".join(character for character in part if character.isalnum())[:40] for part in parts).rstrip("-")


def _holds_all_ranks(environ: Mapping[str, str], world: int) -> bool:
    """Whether the step of srun that we are in holds all ranks: as its tasks, or below one launcher per node."""
    if not _is_step(environ):
        return False
    tasks = _number(environ.get("SLURM_STEP_NUM_TASKS", ""), 0)
    nodes = _number(environ.get("SLURM_STEP_NUM_NODES", ""), 0)
    return world in (tasks, nodes * _number(environ.get("LOCAL_WORLD_SIZE", ""), 0))


def _number(text: str, otherwise: int) -> int:
    text = text.strip()
    return int(text) if text.isascii() and text.isdigit() and len(text) < 19 else otherwise
