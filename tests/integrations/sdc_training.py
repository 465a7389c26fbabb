"""A data-parallel training over gloo whose steps are watched: `sdc_training.py FAULTS WORLD`.

FAULTS is JSON: by rank, a list of the step, what to damage there (`gradient`, `moment`, or `weight`, after the update),
and the value. The ranks are forked, so that torch is imported once. Writes what was found, and the digests at the end,
to rankN.jsonl.
"""

from __future__ import annotations

import json
import multiprocessing
import os
import sys
import time
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

from resilience.guard import TrainingGuard
from resilience.integrations.sdc import TorchState

STEPS = 60


def main() -> int:
    """Train."""
    torch.manual_seed(5)
    torch.set_num_threads(1)
    model = torch.nn.parallel.DistributedDataParallel(torch.nn.Sequential(torch.nn.Linear(6, 8), torch.nn.Linear(8, 1)))
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    state = TorchState(model, optimizer)
    rank = dist.get_rank()
    faults: dict[str, Any] = json.loads(sys.argv[1])
    left = list(faults.get(str(rank), []))

    def damage(kind: str, step: int) -> None:
        if left and left[0][:2] == [step, kind]:
            value = float(left.pop(0)[2])
            parameter = next(iter(model.parameters()))
            with torch.no_grad():
                if kind == "gradient":
                    parameter.grad[0, 0] = value
                elif kind == "moment":
                    optimizer.state[parameter]["exp_avg"][0, 0] = value
                else:
                    parameter[0, 0] = value

    with TrainingGuard.from_env(sdc=True, sdc_replicas_every=10) as guard:
        sdc = guard.sdc(state)

        def step(batch: torch.Tensor) -> None:
            optimizer.zero_grad()
            damage("moment", sdc.step)
            (model(batch) - batch[:, :1]).square().mean().backward()
            damage("gradient", sdc.step)
            optimizer.step()
            damage("weight", sdc.step)

        decision = None
        for number in range(1, STEPS + 1):
            sdc.run(step, torch.randn(8, 6, generator=torch.Generator().manual_seed(2 * number + rank)))
            decision = guard.step()
            if decision.stop:
                break
            if sdc.found and sdc.found[-1].verdict == "replica":
                time.sleep(0.05)  # the decision comes some steps later
        digest = state.digest(gradients=False)
        told = {"event": "end", "found": [[one.verdict, one.step, one.why] for one in sdc.found], "digest": digest}
        told |= {"stop": bool(decision and decision.stop), "is_on": sdc.is_on}
        Path(f"rank{rank}.jsonl").write_text(json.dumps(told) + "\n")
    return guard.exit_code


def run_rank(rank: int, world: int) -> None:
    """Be one rank."""
    os.environ |= {"RANK": str(rank), "WORLD_SIZE": str(world), "LOCAL_RANK": str(rank), "LOCAL_WORLD_SIZE": str(world)}
    dist.init_process_group("gloo", init_method=f"file://{Path('store').absolute()}", rank=rank, world_size=world)
    code = main()
    dist.destroy_process_group()
    sys.exit(code)


if __name__ == "__main__":
    count = int(sys.argv[2])
    ranks = [multiprocessing.get_context("fork").Process(target=run_rank, args=(one, count)) for one in range(count)]
    for process in ranks:
        process.start()
    for process in ranks:
        process.join()
    sys.exit(max(process.exitcode or 0 for process in ranks))
