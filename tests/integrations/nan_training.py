"""A DistributedDataParallel training whose batch of one step ruins the loss on one rank only.

    nan_training.py FOLDER LAST NAN_AT NAN_RANK

It saves every 10 steps, falls back one checkpoint when a step has stopped it twice, and skips the batches that the
guard offers if `SKIPS` is set. Each rank keeps a diary in FOLDER.
"""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path

import torch
import torch.distributed as dist

from resilience.guard import TrainingGuard


def main(directory: Path, last: int, nan_at: int, nan_rank: int) -> int:
    """Train; return the exit code."""
    torch.set_num_threads(1)
    dist.init_process_group(
        "gloo", init_method=f"file://{directory}/rendezvous{os.environ['RESIL_ATTEMPT']}",
        rank=int(os.environ["RANK"]), world_size=int(os.environ["WORLD_SIZE"]),
    )  # fmt: skip
    rank = dist.get_rank()
    torch.manual_seed(0)
    model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(4, 1))
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)

    def note(**what: object) -> None:
        with open(directory / f"rank{rank}.jsonl", "a") as diary:
            diary.write(json.dumps(what) + "\n")

    with TrainingGuard.from_env() as guard:
        after, skip = guard.resumed_after, guard.skip_steps if "SKIPS" in os.environ else frozenset()
        saved = sorted(int(path.stem) for path in directory.glob("*.pt"))
        if after is not None and after.times > 1:
            saved = [step for step in saved if step < after.saved_step]
        if saved:
            model.load_state_dict(torch.load(directory / f"{saved[-1]}.pt"))
            guard.resumed(saved[-1])
        told = None if after is None else [after.step, after.times, after.saved_step, after.why]
        note(event="start", step=guard.count, told=told, skip=sorted(guard.skip_steps))
        while guard.count < last:
            step = guard.count + 1
            if step in skip:
                guard.step()
                continue
            batch = torch.randn(8, 4, generator=torch.Generator().manual_seed(step * 100 + rank))
            if step == nan_at and rank == nan_rank:
                batch[0, 0] = float("nan")
            loss = model(batch).square().mean()
            optimizer.zero_grad()
            loss.backward()  # the all-reduce: ranks that disagree about the last step, or a skipped one, hang here
            guard.observe(grad_norm=torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0))
            optimizer.step()
            if guard.step(loss=loss.item()).stop:
                note(event="stop", step=guard.count)
                break
            if guard.count % 10 == 0:
                with guard.saving():
                    if rank == 0:
                        torch.save(model.state_dict(), directory / f"{guard.count}.pt")
                    dist.barrier()
        else:
            guard.finished()
    note(event="left", step=guard.count, exit_code=guard.exit_code)
    return guard.exit_code


if __name__ == "__main__":
    code = main(Path(sys.argv[1]), *map(int, sys.argv[2:5]))
    dist.destroy_process_group()
    sys.exit(code)
