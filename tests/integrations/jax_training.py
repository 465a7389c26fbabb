"""A training with JAX and the guard, as docs/how-to/guard-in-jax.md has it.

jax_training.py FOLDER STEPS
"""

from __future__ import annotations

import json
import os
import sys
import time
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np

from resilience.guard import TrainingGuard


@jax.jit
def train_step(weight: jax.Array, batch: jax.Array) -> tuple[jax.Array, jax.Array]:
    """One step of gradient descent."""
    loss, slope = jax.value_and_grad(lambda w: jnp.mean((w * batch) ** 2))(weight)
    return weight - 0.01 * slope, loss


def main(directory: Path, last: int) -> int:
    """Train; return the exit code."""
    checkpoint = directory / "checkpoint.npz"
    weight, step = jnp.ones(()), 0
    with TrainingGuard.from_env() as guard:
        if guard.should_stop_early():
            return guard.exit_code
        if checkpoint.exists():
            with np.load(checkpoint) as saved:
                weight, step = jnp.asarray(saved["weight"]), int(saved["step"])
            guard.resumed(step)
        with open(directory / "rank0.jsonl", "a") as diary:
            before = None  # the loss of the step before: done by now, so reading it waits for nothing
            while step < last:
                diary.write(json.dumps({"pid": os.getpid(), "event": "step", "step": step}) + "\n")
                diary.flush()
                weight, loss = train_step(weight, jnp.full(4, step % 7, dtype=jnp.float32))
                step += 1
                time.sleep(0.002)
                decision = guard.step(loss=None if before is None else float(before))
                before = loss
                if decision.save:
                    with guard.saving():
                        part = checkpoint.with_suffix(".part.npz")
                        np.savez(part, weight=np.asarray(weight), step=step)
                        part.replace(checkpoint)
                if decision.stop:
                    break
            diary.write(json.dumps({"pid": os.getpid(), "event": "stop", "step": step}) + "\n")
    return guard.exit_code


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1]), int(sys.argv[2])))
