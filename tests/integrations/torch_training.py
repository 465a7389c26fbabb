"""A DistributedDataParallel training with the guard, as a user writes it; run by a launcher, one process per rank.

    torch_training.py FOLDER STEPS

It keeps its checkpoint and a diary per rank in FOLDER. The sum over ranks of a weight that each rank counts by its own
steps tells whether a step was lost or done twice.
"""

from __future__ import annotations

import json
import os
import sys
import time
from pathlib import Path

import torch
import torch.distributed as dist

from resilience.guard import TrainingGuard
from resilience.integrations.torch import LossTap


def main(directory: Path, last: int) -> int:
    """Train; return the exit code."""
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    torch.manual_seed(0)
    model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(4, 1))
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
    checkpoint = directory / "checkpoint.pt"
    done: list[int] = []

    def note(**what: object) -> None:
        with open(directory / f"rank{rank}.jsonl", "a") as diary:
            diary.write(json.dumps({"pid": os.getpid(), "time": time.time(), **what}) + "\n")

    def save(label: str) -> None:
        if rank == 0:
            note(event="save_begin", step=done[-1], label=label)
            time.sleep(float(os.environ.get("SAVE_S", "0")))
            state = {"model": model.state_dict(), "optimizer": optimizer.state_dict(), "done": done}
            torch.save(state, checkpoint.with_suffix(".part"))
            checkpoint.with_suffix(".part").replace(checkpoint)
            note(event="saved", step=done[-1])

    tap = LossTap()
    with TrainingGuard.from_env() as guard:
        if guard.should_stop_early():
            note(event="not_started")
            return guard.exit_code
        if checkpoint.exists():
            state = torch.load(checkpoint)
            model.load_state_dict(state["model"])
            optimizer.load_state_dict(state["optimizer"])
            done = state["done"]
            guard.resumed(len(done))
        note(event="start", step=len(done))
        for step in range(len(done) + 1, last + 1):
            batch = torch.randn(8, 4, generator=torch.Generator().manual_seed(step * 100 + rank))
            loss = model(batch).square().mean()
            optimizer.zero_grad()
            loss.backward()  # the all-reduce: ranks that disagree about the last step would hang here
            optimizer.step()
            done.append(step)
            if step % 10 == 1:
                note(event="step", step=step)
            time.sleep(0.002)
            decision = guard.step(loss=tap(loss))
            if decision.save:
                with guard.saving():
                    save(decision.label)
            if decision.stop:
                note(event="stop", step=step, why=decision.why)
                break
    note(event="left", step=len(done), exit_code=guard.exit_code)
    return guard.exit_code


if __name__ == "__main__":
    code = main(Path(sys.argv[1]), int(sys.argv[2]))
    dist.destroy_process_group()
    sys.exit(code)
