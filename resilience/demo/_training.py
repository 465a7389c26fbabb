"""The demo's training: a small neural character model of Python's own standard library, with real checkpoints.

Run as a program, with the standard library only; never imported. A model for a user's `train.py`: it resumes from its
newest good checkpoint, saves at intervals, and calls the guard once per step. All results depend on the step alone, so
an interrupted run must end with exactly the loss of an uninterrupted one.

The model is Bengio et al., "A Neural Probabilistic Language Model" (JMLR 2003), section 2, without its direct
connections: the embeddings of the last characters, one tanh layer, a softmax over the next character; plain SGD.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import random
import signal
import sys
import sysconfig
import time
from operator import mul
from pathlib import Path
from typing import Any

if __name__ == "__main__":  # import the package, not modules beside this file
    sys.path[0] = str(Path(__file__).resolve().parents[2])
from resilience.checkpoints import Store
from resilience.guard import TrainingGuard
from resilience.guard.memory.limits import MemoryLimits

CONTEXT, EMBEDDING, HIDDEN, BATCH = 3, 6, 20, 16
LEARNING_RATE = 0.06
SOURCES = ("argparse.py", "difflib.py", "statistics.py", "textwrap.py")
STORE, FINAL_LOSS = "checkpoints", "final-loss"
"""In the training's directory."""
CHECKPOINT_FILE = "model.json"
LEAK_BYTES, MOST_LEAKED_BYTES, LEAK_ROOM_BYTES = 8 * 2**20, 2**30, 160 * 2**20
"""Growth of the leak per step, its limit, and the memory that the guard lets the training use."""

Matrix = list[list[float]]
Model = dict[str, Matrix]


def read_text() -> list[str]:
    """Return the characters to learn: lower case, rare ones as blanks."""
    directory = Path(sysconfig.get_paths()["stdlib"])
    text = "".join((directory / name).read_text(encoding="utf-8").lower() for name in SOURCES)
    kept = set("abcdefghijklmnopqrstuvwxyz_().,:='\n ")
    return [character if character in kept else " " for character in text]


def new_model(vocabulary: int) -> Model:
    """Return small random weights from a fixed seed."""
    source = random.Random(1)

    def matrix(rows: int, columns: int) -> Matrix:
        scale = 1 / math.sqrt(columns)
        return [[source.uniform(-scale, scale) for _ in range(columns)] for _ in range(rows)]

    return {
        "embedding": matrix(vocabulary, EMBEDDING),
        "hidden": matrix(HIDDEN, CONTEXT * EMBEDDING + 1),
        "output": matrix(vocabulary, HIDDEN + 1),
    }


def forward(model: Model, context: list[int]) -> tuple[list[float], list[float], list[float]]:
    """Return (inputs, hidden activations, probabilities of the next character) for the last characters."""
    inputs = [value for character in context for value in model["embedding"][character]] + [1.0]
    hidden = [math.tanh(sum(map(mul, row, inputs))) for row in model["hidden"]] + [1.0]
    scores = [sum(map(mul, row, hidden)) for row in model["output"]]
    top = max(scores)
    exponentials = [math.exp(score - top) for score in scores]
    total = sum(exponentials)
    return inputs, hidden, [value / total for value in exponentials]


def train_step(model: Model, data: list[int], step: int) -> float:
    """Make one step of SGD; return the mean loss in nats. The examples depend on the step alone."""
    source = random.Random(step)
    rate, loss = LEARNING_RATE, 0.0
    for _ in range(BATCH):
        position = source.randrange(CONTEXT, len(data))
        context, target = data[position - CONTEXT : position], data[position]
        inputs, hidden, probabilities = forward(model, context)
        loss -= math.log(probabilities[target])
        probabilities[target] -= 1.0
        back = [0.0] * HIDDEN
        for row, error in zip(model["output"], probabilities, strict=True):
            for i in range(HIDDEN):
                back[i] += error * row[i]
                row[i] -= rate * error * hidden[i]
            row[HIDDEN] -= rate * error
        errors = [b * (1 - h * h) for b, h in zip(back, hidden, strict=False)]
        gradient = [0.0] * len(inputs)
        for row, error in zip(model["hidden"], errors, strict=True):
            for i, value in enumerate(inputs):
                gradient[i] += error * row[i]
                row[i] -= rate * error * value
        for slot, character in enumerate(context):
            for i in range(EMBEDDING):
                model["embedding"][character][i] -= rate * gradient[slot * EMBEDDING + i]
    return loss / BATCH


def evaluate(model: Model, data: list[int]) -> float:
    """Return the mean loss in nats over a fixed sample."""
    positions = random.Random(0).sample(range(CONTEXT, len(data)), 600)
    losses = (-math.log(forward(model, data[p - CONTEXT : p])[2][data[p]]) for p in positions)
    return math.fsum(losses) / len(positions)


def save(directory: Path, step: int, model: Model) -> None:
    """Write the files of a checkpoint into an empty directory.

    JSON keeps floats exactly: Python writes the shortest text that reads back to the same number.
    """
    with open(directory / CHECKPOINT_FILE, "w", encoding="utf-8") as file:
        json.dump({"step": step, "model": model}, file)


def load(directory: Path) -> tuple[int, Model]:
    """Return what `save` has written."""
    document = json.loads((directory / CHECKPOINT_FILE).read_text(encoding="utf-8"))
    return int(document["step"]), document["model"]


def free_bytes() -> int:
    """Return the free memory below the smallest limit, as the guard measures it."""
    return min((reading.free_bytes for reading in MemoryLimits().read(time.monotonic())), default=0)


class Fault:
    """Injects a failure: an exception, a SIGKILL, a memory leak, or a hang."""

    def __init__(self, kind: str, step: int) -> None:
        self._kind, self._step = kind, step
        self._leaked: list[bytes] = []

    def limits(self) -> dict[str, Any]:
        """Return settings of the guard that simulate a machine with little memory, to keep a leak short."""
        return {"host_memory_free_bytes": max(0, free_bytes() - LEAK_ROOM_BYTES)} if self._kind == "leak" else {}

    def inject(self, step: int) -> None:
        """Fail, if the step has come."""
        if not self._kind or step < self._step:
            return
        if not self._leaked:
            print(f"step {step}: injected {self._kind}", flush=True)
        if self._kind == "crash":
            raise RuntimeError(f"injected: CUDA error at step {step}")
        if self._kind == "hang":
            while True:
                time.sleep(1.0)
        if self._kind == "kill":
            os.kill(os.getpid(), signal.SIGKILL)
        if len(self._leaked) * LEAK_BYTES < MOST_LEAKED_BYTES:
            self._leaked.append(b"1" * LEAK_BYTES)


def main() -> int:
    """Train to the end, or until requested to stop. Return the exit code."""
    parser = argparse.ArgumentParser()
    parser.add_argument("directory", type=Path)
    parser.add_argument("--steps", type=int, required=True)
    parser.add_argument("--save-every", type=int, required=True)
    parser.add_argument("--pace", type=float, default=0.0, help="minimum seconds per step")
    parser.add_argument("--faults", default="{}", help='{"1": ["crash", 90]}: by attempt')
    options = parser.parse_args()
    options.directory.mkdir(parents=True, exist_ok=True)
    text = read_text()
    characters = sorted(set(text))
    data = [characters.index(character) for character in text]
    step, model = 0, new_model(len(characters))
    store = Store(options.directory / STORE)
    fault = Fault(*json.loads(options.faults).get(os.environ.get("RESIL_ATTEMPT", ""), ("", -1)))
    with TrainingGuard.from_env(store=store, **fault.limits()) as guard:
        if guard.should_stop_early():
            return guard.exit_code
        if checkpoint := store.latest():
            step, model = load(checkpoint.path)
        guard.resumed(step)
        print(f"starting at step {step} of {options.steps}", flush=True)
        while step < options.steps:
            began = time.monotonic()
            loss = train_step(model, data, step)
            step += 1
            if step % 20 == 0:
                print(f"step {step} loss {loss:.4f}", flush=True)
            decision = guard.step(loss=loss)
            fault.inject(step)
            if decision.save or step % options.save_every == 0 or step == options.steps:
                with guard.saving() as part:
                    save(part.path, step, model)
            if decision.stop:
                return guard.exit_code
            time.sleep(max(0.0, options.pace - (time.monotonic() - began)))
        with guard.phase("eval"):
            final = evaluate(model, data)
        (options.directory / FINAL_LOSS).write_text(repr(final) + "\n", encoding="utf-8")
        print(f"finished: final loss {final!r}", flush=True)
        guard.finished()
        return guard.exit_code


if __name__ == "__main__":
    sys.exit(main())
