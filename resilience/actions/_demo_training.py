"""The demo's training: a small neural character model of Python's own standard library, with real checkpoints.

Run as a program, on the standard library alone; nothing imports it. It is what a user's `train.py` has to be: it
resumes from its last checkpoint, saves from time to time, and looks at its switch files once per step. Every number it
computes depends on the step alone, so that an interrupted run must end with exactly the loss of one that was not.

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
import socket
import sys
import sysconfig
import time
from operator import mul
from pathlib import Path
from typing import Any

CONTEXT, EMBEDDING, HIDDEN, BATCH = 3, 6, 20, 16
LEARNING_RATE = 0.06
SOURCES = ("argparse.py", "difflib.py", "statistics.py", "textwrap.py")
KEPT_CHECKPOINTS = 2
STOPPED_ON_PURPOSE = 75

Matrix = list[list[float]]
Model = dict[str, Matrix]


def read_text() -> list[str]:
    """The characters to learn: lower case, anything rare as a blank."""
    folder = Path(sysconfig.get_paths()["stdlib"])
    text = "".join((folder / name).read_text(encoding="utf-8").lower() for name in SOURCES)
    kept = set("abcdefghijklmnopqrstuvwxyz_().,:='\n ")
    return [character if character in kept else " " for character in text]


def new_model(vocabulary: int) -> Model:
    """Small random weights, always the same."""
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
    """Given the last characters, return (inputs, hidden activations, probabilities of the next)."""
    inputs = [value for character in context for value in model["embedding"][character]] + [1.0]
    hidden = [math.tanh(sum(map(mul, row, inputs))) for row in model["hidden"]] + [1.0]
    scores = [sum(map(mul, row, hidden)) for row in model["output"]]
    top = max(scores)
    exponentials = [math.exp(score - top) for score in scores]
    total = sum(exponentials)
    return inputs, hidden, [value / total for value in exponentials]


def train_step(model: Model, data: list[int], step: int) -> float:
    """One step of SGD; return the mean loss in nats. Which examples it sees depends on the step alone."""
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
    """Mean loss in nats over a fixed sample."""
    positions = random.Random(0).sample(range(CONTEXT, len(data)), 600)
    losses = (-math.log(forward(model, data[p - CONTEXT : p])[2][data[p]]) for p in positions)
    return math.fsum(losses) / len(positions)


def save(folder: Path, step: int, model: Model) -> float:
    """Write a checkpoint that is whole or not there, drop old ones, and return how many seconds it took.

    JSON keeps floats exactly: Python writes the shortest text that reads back to the same number.
    """
    start = time.monotonic()
    temporary = folder / f".step-{step:06d}.tmp"
    with open(temporary, "w", encoding="utf-8") as file:
        json.dump({"step": step, "model": model}, file)
        file.flush()
        os.fsync(file.fileno())
    temporary.rename(folder / f"step-{step:06d}.json")
    for old in sorted(folder.glob("step-*.json"))[:-KEPT_CHECKPOINTS]:
        old.unlink()
    return time.monotonic() - start


def load(folder: Path) -> tuple[int, Model] | None:
    """The newest checkpoint, or None."""
    for path in sorted(folder.glob("step-*.json"), reverse=True):
        document = json.loads(path.read_text(encoding="utf-8"))
        return int(document["step"]), document["model"]
    return None


class Reporter:
    """Tells the run directory how far the training is, where there is one."""

    def __init__(self) -> None:
        run_dir = os.environ.get("RESIL_RUN_DIR", "")
        self.job = os.environ.get("RESIL_JOB_ID") or os.environ.get("SLURM_JOB_ID", "0")
        self.attempt = int(os.environ.get("RESIL_ATTEMPT", "0"))
        self.run_dir = Path(run_dir) if run_dir else None

    def event(self, name: str, **facts: Any) -> None:
        """Add a line to the run's journal."""
        if self.run_dir is None:
            return
        record = {"event": name, "time": time.time(), "attempt": self.attempt, **facts}
        with open(self.run_dir / "journal" / f"{self.job}.0.jsonl", "a", encoding="utf-8") as file:
            file.write(json.dumps(record) + "\n")

    def beat(self, step: int) -> None:
        """Show the step that was reached."""
        if self.run_dir is None:
            return
        path = self.run_dir / "beats" / f"{self.job}.{socket.gethostname()}"
        temporary = path.with_name(f".{path.name}.tmp")
        temporary.write_text(f"step = {step}\nattempt = {self.attempt}\ntime = {time.time():.3f}\n", encoding="utf-8")
        temporary.rename(path)

    def must_stop(self) -> str:
        """Why to stop now, or an empty text."""
        if self.run_dir is None:
            return ""
        if (self.run_dir / "switches" / f"stop.{self.job}").exists():
            return "the time is nearly over"
        return "kill switch" if (self.run_dir / "switches" / "kill").is_file() else ""


def inject(fault: str, step: int) -> None:
    """Fail as trainings fail: by an exception, or by a SIGKILL out of nowhere."""
    print(f"step {step}: injected {fault}", flush=True)
    if fault == "crash":
        raise RuntimeError(f"injected: CUDA error at step {step}")
    os.kill(os.getpid(), signal.SIGKILL)


def main() -> int:
    """Train to the end, or until told to stop. Return the exit code."""
    parser = argparse.ArgumentParser()
    parser.add_argument("folder", type=Path)
    parser.add_argument("--steps", type=int, required=True)
    parser.add_argument("--save-every", type=int, required=True)
    parser.add_argument("--pace", type=float, default=0.0, help="seconds that a step takes at least")
    parser.add_argument("--faults", default="{}", help='{"1": ["crash", 90]}: by attempt')
    options = parser.parse_args()
    options.folder.mkdir(parents=True, exist_ok=True)
    text = read_text()
    characters = sorted(set(text))
    data = [characters.index(character) for character in text]
    found = load(options.folder)
    step, model = found if found is not None else (0, new_model(len(characters)))
    reporter = Reporter()
    fault, fault_step = json.loads(options.faults).get(str(reporter.attempt), ["", -1])
    reporter.event("resume", step=step)
    print(f"starting at step {step} of {options.steps}", flush=True)
    while step < options.steps:
        began = time.monotonic()
        loss = train_step(model, data, step)
        step += 1
        reporter.beat(step)
        if step % 20 == 0:
            print(f"step {step} loss {loss:.4f}", flush=True)
        if step == fault_step:
            inject(fault, step)
        why = reporter.must_stop()
        if step % options.save_every == 0 or step == options.steps or why:
            reporter.event("save", step=step, seconds=save(options.folder, step, model))
        if why:
            print(f"stopping at step {step}: {why}; saved", flush=True)
            return STOPPED_ON_PURPOSE
        time.sleep(max(0.0, options.pace - (time.monotonic() - began)))
    final = evaluate(model, data)
    reporter.event("final", step=step, loss=final)
    (options.folder / "final-loss").write_text(repr(final) + "\n", encoding="utf-8")
    print(f"finished: final loss {final!r}", flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
