"""One rank of the agreement's benchmark: real gloo, real guards, real switch file. Rank 0 prints the figures as JSON.

`python _guard_ranks.py RANK WORLD PORT RUN_DIRECTORY ROUNDS`; all ranks are started by `guard_agreement.py`.
"""

from __future__ import annotations

import json
import os
import random
import sys
import time
import warnings
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

warnings.filterwarnings("ignore")

import torch  # noqa: E402
import torch.distributed as dist  # noqa: E402

from resilience.guard import Request, TrainingGuard  # noqa: E402

STEP_S = 0.005
TIGHT_CALLS, LOOP_STEPS = 300, 150
POLL_S = 0.5

committed: list[float] = []


class Wisher:
    """A trigger that stands for memory, a signal, a switch: it wishes when it is told to."""

    name = "bench"

    def poll(self) -> None:
        """Nothing by itself: the loop wishes directly, to time the agreement alone."""

    def done(self, outcome: str) -> None:
        """Nothing follows."""


def note_commits(gate: Any, hear: Callable[[Any], None], place: Any) -> Any:
    """The usual agreement, with the moment of each commit noted on rank 0."""
    from resilience.guard.agreement.rendezvous import rendezvous
    from resilience.guard.recorder import Recorder
    from resilience.guard.settings import GuardSettings

    def hear_and_note(heard: Any) -> None:
        if heard.kind == "committed":
            committed.append(time.monotonic())
        hear(heard)

    return rendezvous(gate, hear_and_note, place, GuardSettings(), None, Recorder(place))


def main() -> None:
    """Run all parts in lock-step with the other ranks."""
    rank, world, port, run, rounds = (int(sys.argv[1]), int(sys.argv[2]), sys.argv[3], sys.argv[4], int(sys.argv[5]))
    os.environ |= {"RANK": str(rank), "LOCAL_RANK": str(rank), "WORLD_SIZE": str(world)}
    os.environ |= {"LOCAL_WORLD_SIZE": str(world), "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port}
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    found: dict[str, Any] = {"tight": _tight(rank, run), "loop": _loop(run)}
    found["wish"] = _wishes(rank, world, run, rounds)
    found["switch"] = [_switch(rank, run, turn) for turn in range(max(3, rounds // 10))]
    if rank == 0:
        print(json.dumps(found))
    dist.barrier()
    sys.stdout.flush()
    os._exit(0)


def _environ(run: str, job: str) -> dict[str, str]:
    kept = {key: value for key, value in os.environ.items() if not key.startswith(("RESIL_", "SLURM"))}
    return kept | {"RESIL_RUN": "bench", "RESIL_RUN_DIR": run, "RESIL_JOB_ID": job, "RESIL_ATTEMPT": "1"}


def _guard(run: str, job: str, **options: Any) -> TrainingGuard:
    settings: dict[str, Any] = {"walltime": False, "gpu_memory": "off", "force_exit": "off", **options}
    guard = TrainingGuard.from_env(_environ(run, job), say=lambda text: None, **settings)
    guard.start()
    guard.should_stop_early()  # all ranks have met
    return guard


def _all_reduce(value: torch.Tensor) -> int:
    """What guards with a collective do in every step: everybody's flag, and wait for it."""
    dist.all_reduce(value)
    return int(value.item())


def _tight(rank: int, run: str) -> dict[str, list[float]]:
    """One call after the other, in turn, ranks in step."""
    guard, flag = _guard(run, "1"), torch.zeros(1, dtype=torch.int32)
    taken: dict[str, list[float]] = {"all_reduce": [], "step": []}
    for _ in range(10):
        dist.barrier()
        began = time.perf_counter()
        for _ in range(TIGHT_CALLS):
            _all_reduce(flag)
        taken["all_reduce"].append((time.perf_counter() - began) / TIGHT_CALLS)
        dist.barrier()
        began = time.perf_counter()
        for _ in range(TIGHT_CALLS * 100):
            guard.step()
        taken["step"].append((time.perf_counter() - began) / TIGHT_CALLS / 100)
    guard.close()
    return taken


def _loop(run: str) -> dict[str, list[float]]:
    """A step of 5 ms with a gradient's all-reduce, then one look: how long the look takes, cold."""
    guard, gradient, flag = _guard(run, "2"), torch.zeros(1), torch.zeros(1, dtype=torch.int32)
    looks: dict[str, Callable[[], object]] = {
        "nothing": lambda: None,
        "step": guard.step,
        "all_reduce": lambda: _all_reduce(flag),
    }
    for name, make in (("accelerate", _accelerate), ("lightning", _lightning)):
        try:
            looks[name] = make()
        except ImportError:
            continue
    taken: dict[str, list[float]] = {name: [] for name in looks}
    for step in range(LOOP_STEPS * len(looks)):
        name = list(looks)[step // 10 % len(looks)]
        time.sleep(STEP_S)
        dist.all_reduce(gradient)
        began = time.perf_counter()
        looks[name]()
        taken[name].append(time.perf_counter() - began)
    dist.barrier()
    guard.close()
    return taken


def _accelerate() -> Callable[[], object]:
    from accelerate import Accelerator

    accelerator = Accelerator(cpu=True)
    return lambda: accelerator.check_trigger()


def _lightning() -> Callable[[], object]:
    from lightning.pytorch.loops.training_epoch_loop import _TrainingEpochLoop

    trainer = SimpleNamespace(received_sigterm=False, strategy=SimpleNamespace(root_device=torch.device("cpu")))
    loop: Any = SimpleNamespace(trainer=trainer)
    return lambda: _TrainingEpochLoop._broadcast_sigterm_tensor(loop)


def _wishes(rank: int, world: int, run: str, rounds: int) -> dict[str, list[float]]:
    """A wish of any rank: until rank 0 has committed, and how many steps later all ranks save."""
    committed.clear()
    guard = TrainingGuard.from_env(
        _environ(run, "3"),
        say=lambda text: None,
        agreement=note_commits,
        walltime=False,
        gpu_memory="off",
        host_memory=False,
        force_exit="off",
    )
    guard.start()
    guard.should_stop_early()
    gradient, dice = torch.zeros(1), random.Random(world)
    taken: dict[str, list[float]] = {"commit_s": [], "steps": []}
    for turn in range(rounds):
        wisher, after = dice.randrange(world), dice.randrange(3)
        wished = torch.zeros(1, dtype=torch.float64)
        for step in range(200):
            time.sleep(STEP_S)
            dist.all_reduce(gradient)
            if step == after and rank == wisher:
                wished[0] = time.monotonic()
                agreement: Any = guard._runtime.agreement  # type: ignore[union-attr]
                agreement.request(Request("bench", f"round {turn}", stop=False))
            if guard.step().save:
                with guard.saving():
                    pass
                taken["steps"].append(float(step - after))
                break
        dist.all_reduce(wished)
        if rank == 0:
            taken["commit_s"].append(committed[turn] - float(wished[0]))
    dist.barrier()
    guard.close()
    return taken


def _switch(rank: int, run: str, turn: int) -> dict[str, float]:
    """From touching the kill switch until the last rank has stopped, in seconds and steps."""
    guard = _guard(run, str(100 + turn), poll_s=POLL_S, host_memory=False)
    gradient, kill = torch.zeros(1), os.path.join(run, "switches", "kill")  # noqa: PTH118
    times = torch.zeros(2, dtype=torch.float64)
    touch_at = 20 + random.Random(turn).randrange(100)
    for step in range(5000):
        time.sleep(STEP_S)
        dist.all_reduce(gradient)
        if rank == 0 and step == touch_at:
            with open(kill, "w"):
                pass
            times[0] = time.monotonic()
        decision = guard.step()
        if decision.stop:
            times[1] = time.monotonic()
            break
    dist.all_reduce(times, op=dist.ReduceOp.MAX)
    guard.close()
    if rank == 0:
        os.unlink(kill)  # noqa: PTH108
    dist.barrier()
    return {"seconds": float(times[1] - times[0]), "poll_s": POLL_S, "step_s": STEP_S}


if __name__ == "__main__":
    main()
