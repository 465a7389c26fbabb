"""The training of `resil demo --sdc`: a small network whose ranks hold equal parameters, with injected corruptions.

Run as a program, with the standard library only; never imported. Every rank trains on the same data, so that all hold
the same parameters, as the replicas of a data-parallel training do after their all-reduce. All results depend on the
step alone, so that a training which survived a corruption must end with exactly the loss of one without.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import math
import random
import struct
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

if __name__ == "__main__":  # import the package, not modules beside this file
    sys.path[0] = str(Path(__file__).resolve().parents[2])
from resilience.checkpoints import Store
from resilience.guard import TrainingGuard

INPUTS, HIDDEN, BATCH = 4, 8, 8
RATE, MOMENTUM = 0.02, 0.9
CHECKPOINT_FILE = "model.json"
STORE, FINAL_LOSS = "checkpoints", "final-loss"
"""In the training's directory; the loss of each rank has its number behind."""

Arrays = dict[str, list[float]]
Batch = list[tuple[list[float], float]]


class Model:
    """A network with one hidden layer, trained by gradient descent with momentum, as the guard's watch sees it."""

    def __init__(self) -> None:
        source = random.Random(1)
        sizes = {"hidden weight": HIDDEN * (INPUTS + 1), "output weight": HIDDEN + 1}
        self.arrays: Arrays = {name: [source.gauss(0, 0.5) for _ in range(size)] for name, size in sizes.items()}
        self.arrays |= {f"momentum of {name}": [0.0] * size for name, size in sizes.items()}
        self.gradients: Arrays = {}

    def loss(self, batch: Batch, gradients: bool = False) -> float:
        """Return the mean squared error over a batch, and keep its gradients if asked to."""
        hidden_w, output_w = self.arrays["hidden weight"], self.arrays["output weight"]
        found = {"hidden weight": [0.0] * len(hidden_w), "output weight": [0.0] * len(output_w)}
        total = 0.0
        for inputs, target in batch:
            rows = [hidden_w[i * (INPUTS + 1) : (i + 1) * (INPUTS + 1)] for i in range(HIDDEN)]
            hidden = [math.tanh(sum(w * x for w, x in zip(row, [*inputs, 1.0], strict=True))) for row in rows]
            error = sum(w * h for w, h in zip(output_w, [*hidden, 1.0], strict=True)) - target
            total += error * error / len(batch)
            for i, h in enumerate([*hidden, 1.0]):
                found["output weight"][i] += 2 * error * h / len(batch)
            for i, h in enumerate(hidden):
                back = 2 * error * output_w[i] * (1 - h * h) / len(batch)
                for j, x in enumerate([*inputs, 1.0]):
                    found["hidden weight"][i * (INPUTS + 1) + j] += back * x
        if gradients:
            self.gradients = found
        return total

    def update(self) -> None:
        """Apply the gradients."""
        for name, gradient in self.gradients.items():
            weight, momentum = self.arrays[name], self.arrays[f"momentum of {name}"]
            for i, value in enumerate(gradient):
                momentum[i] = MOMENTUM * momentum[i] + value
                weight[i] -= RATE * momentum[i]

    # ---- the guard's protocol: `State` in resilience/guard/sdc/watch.py ------------------------------------------

    def attach(self, check: Callable[[], None]) -> None:
        """The training calls `sdc.check()` before its update."""

    def largest(self, *, gradients: bool) -> tuple[Sequence[str], Sequence[float]]:
        """Return the largest absolute value of each array, NaN if it has one."""
        named = self.arrays | {f"the gradient of {name}": values for name, values in self.gradients.items()}
        return tuple(named), [
            max(map(abs, values)) if math.isfinite(sum(values)) else math.nan for values in named.values()
        ]

    def layout(self) -> object:
        """All arrays are trained, from the first step to the last."""

    def capture(self, old: object) -> Arrays:
        """Return a copy of weights and momentum."""
        return {name: list(values) for name, values in self.arrays.items()}

    def restore(self, captured: Arrays) -> None:
        """Set them."""
        self.arrays = {name: list(values) for name, values in captured.items()}

    def digest(self, *, gradients: bool) -> str:
        """Return a digest of all bits."""
        found = hashlib.blake2b(digest_size=8)
        for values in (self.arrays | (self.gradients if gradients else {})).values():
            found.update(struct.pack(f"<{len(values)}d", *values))
        return found.hexdigest()


def batch_of(step: int, size: int = BATCH) -> Batch:
    """Return the data of a step."""
    source = random.Random(step)
    rows = [[source.uniform(-1, 1) for _ in range(INPUTS)] for _ in range(size)]
    return [(row, math.sin(2 * row[0]) + row[1] * row[2]) for row in rows]


def flip_low_bit(values: list[float], index: int) -> None:
    """Flip a bit of a number such that it stays plausible: its relative change is 2^-20."""
    (bits,) = struct.unpack("<q", struct.pack("<d", values[index]))
    (values[index],) = struct.unpack("<d", struct.pack("<q", bits ^ 1 << 32))


def load(path: Path) -> tuple[int, Arrays]:
    """Return the step and the arrays of a checkpoint."""
    document = json.loads((path / CHECKPOINT_FILE).read_text(encoding="utf-8"))
    return int(document["step"]), document["arrays"]


def main() -> int:
    """Train to the end, or until requested to stop. Return the exit code."""
    parser = argparse.ArgumentParser()
    parser.add_argument("directory", type=Path)
    parser.add_argument("--steps", type=int, required=True)
    parser.add_argument("--save-every", type=int, required=True)
    parser.add_argument("--until", type=int, default=10**9, help="stop after this step, as at the end of a job")
    parser.add_argument("--gradient", type=int, default=0, help="at this step a gradient is extreme, once")
    parser.add_argument("--weight", default="", help="RANK:STEP: after this step a bit of a weight flips, once")
    options = parser.parse_args()
    model, step = Model(), 0
    store = Store(options.directory / STORE)
    pending: list[Any] = [("gradient", 0, options.gradient)] if options.gradient else []
    if options.weight:
        pending.append(("weight", *map(int, options.weight.split(":"))))
    with TrainingGuard.from_env(store=store, sdc=True, sdc_replicas_every=10) as guard:
        if guard.should_stop_early():
            return guard.exit_code
        after = guard.resumed_after
        # Replicas differed: what was saved after they were last equal may be wrong.
        if checkpoint := store.latest(up_to=None if after is None else after.since):
            step, model.arrays = load(checkpoint.path)
        guard.resumed(step)
        sdc = guard.sdc(model)

        def inject(kind: str) -> None:
            if (kind, guard.place.rank, sdc.step) in pending:
                pending.clear()
                if kind == "gradient":
                    model.gradients["hidden weight"][3] = -1e30
                else:
                    flip_low_bit(model.arrays["output weight"], 2)

        def train_step(batch: Batch) -> float:
            loss = model.loss(batch, gradients=True)
            inject("gradient")
            sdc.check()
            model.update()
            inject("weight")
            return loss

        while step < min(options.steps, options.until):
            loss = sdc.run(train_step, batch_of(step))
            step += 1
            decision = guard.step(loss=loss)
            if not decision.stop and step % options.save_every == 0:
                with guard.saving() as part:
                    if guard.place.is_first:
                        document = {"step": step, "arrays": model.arrays}
                        (part.path / CHECKPOINT_FILE).write_text(json.dumps(document), encoding="utf-8")
            if decision.stop:
                return guard.exit_code
        if step >= options.steps:
            final = model.loss(batch_of(-1, 200))
            (options.directory / f"{FINAL_LOSS}.{guard.place.rank}").write_text(repr(final) + "\n", encoding="utf-8")
            guard.finished()
        return guard.exit_code


if __name__ == "__main__":
    sys.exit(main())
