"""A data-parallel training over gloo whose steps are watched: `torchrun sdc_training.py FAULTS`.

FAULTS is JSON: by rank, the step, what to damage there (`gradient`, `moment`, or `weight`, after the update), and the
value. Writes what was found, and the digests at the end, to rankN.jsonl.
"""

from __future__ import annotations

import json
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
    left = [faults[str(rank)]] if str(rank) in faults else []

    def damage(kind: str, step: int) -> None:
        if left and left[0][:2] == [step, kind]:
            value = float(left.pop()[2])
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


if __name__ == "__main__":
    dist.init_process_group("gloo")
    code = main()
    dist.destroy_process_group()
    sys.exit(code)
