"""A training with Accelerate and the guard, as docs/how-to/guard-in-accelerate.md has it.

accelerate_training.py FOLDER STEPS
"""

from __future__ import annotations

import json
import os
import sys
import time
from pathlib import Path

import torch
from accelerate import Accelerator

from resilience.checkpoints import Store
from resilience.guard import TrainingGuard


def main(directory: Path, last: int) -> int:
    """Train; return the exit code."""
    torch.set_num_threads(1)
    torch.manual_seed(0)
    accelerator = Accelerator(cpu=True)
    model = torch.nn.Linear(1, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
    data = torch.utils.data.DataLoader([torch.tensor([float(index)]) for index in range(4000)], batch_size=1)
    model, optimizer, data = accelerator.prepare(model, optimizer, data)

    def note(**what: object) -> None:
        with open(directory / f"rank{accelerator.process_index}.jsonl", "a") as diary:
            diary.write(json.dumps({"pid": os.getpid(), "time": time.time(), **what}) + "\n")

    store = Store(directory / "checkpoints")
    with TrainingGuard.from_env(store=store) as guard:
        if guard.should_stop_early():
            return guard.exit_code
        if checkpoint := store.latest():
            accelerator.load_state(str(checkpoint.path))
            guard.resumed(checkpoint.step)
        for batch in accelerator.skip_first_batches(data, guard.count):
            if guard.count == last:
                break
            note(event="step", step=guard.count, batch=int(batch[0, 0]))
            time.sleep(0.005)
            accelerator.backward(model(batch / 4000).square().mean())
            optimizer.step()
            optimizer.zero_grad()
            decision = guard.step()
            if decision.save:
                with guard.saving() as part:
                    accelerator.save_state(str(part.path))
            if decision.stop:
                break
    note(event="stop", step=guard.count, exit_code=guard.exit_code)
    accelerator.end_training()
    return guard.exit_code


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1]), int(sys.argv[2])))
