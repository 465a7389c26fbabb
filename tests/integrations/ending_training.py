"""A training with the guard that ends in a way of its choice, in each form that a loop may have. No framework.

ending_training.py FOLDER FORM [FAULT]     FORM: with, without, short; FAULT: see `FAULTS`, on rank $FAULT_RANK

Each rank keeps its checkpoint, the number of its last step, in FOLDER. It saves at step 2 by itself; from step 5 on the
fault may come. Without a fault it trains to step 12 and finishes. Ranks begin together.
"""

from __future__ import annotations

import contextlib
import os
import signal
import sys
import time
from collections.abc import Iterator
from pathlib import Path

from resilience.guard import TrainingGuard

FOLDER, FORM, FAULT = Path(sys.argv[1]), sys.argv[2], "".join(sys.argv[3:])
RANK = int(os.environ.get("RANK") or os.environ.get("SLURM_PROCID") or 0)
WORLD = int(os.environ.get("WORLD_SIZE") or 1)
IS_FAULTY = int(os.environ.get("FAULT_RANK", "0")) == RANK
FAULTS = ("step raises", "sys.exit(3)", "SIGINT")
AT_THE_STOP = ("kill", "SIGTERM in the save", "save raises", "save hangs", "disk full")
"""Further faults, which occur in the save that the kill switch requests."""
CHECKPOINT = FOLDER / f"checkpoint.{RANK}"
guard = TrainingGuard.from_env(poll_s=0.05, beat_s=0.5, skew_steps=0, host_memory=False, walltime=False)
step = int(CHECKPOINT.read_text().split()[0]) if CHECKPOINT.exists() else 0
first = step


def note(text: str) -> None:
    with open(FOLDER / f"diary.{RANK}", "a") as diary:
        diary.write(f"{time.time():.3f} {text}\n")


def save() -> None:
    """Write the file atomically."""
    size = 0
    if FAULT in AT_THE_STOP and guard.decided is not None and IS_FAULTY:
        note(f"fault {FAULT}")
        if FAULT == "save raises":
            raise OSError(5, "as asked")
        if FAULT == "save hangs":
            time.sleep(1000)
        if FAULT == "SIGTERM in the save":
            os.kill(os.getpid(), signal.SIGTERM)
            time.sleep(0.3)
        size = 10**6 if FAULT == "disk full" else 0
    part = CHECKPOINT.with_suffix(f".part{RANK}")
    try:
        with open(part, "w") as file:
            file.write(f"{step} {'x' * size}")
            file.flush()
            os.fsync(file.fileno())
        part.rename(CHECKPOINT)
    except OSError:
        with contextlib.suppress(OSError):
            part.unlink()
        raise
    note(f"saved {step}")


def train_step() -> None:
    global step
    time.sleep(0.02)
    step += 1
    if step == 2 and first == 0:
        with guard.saving():
            save()
    if not FAULT or step < 5:
        return
    if FAULT in AT_THE_STOP:
        (Path(os.environ["RESIL_RUN_DIR"]) / "switches" / "kill").touch()
    elif IS_FAULTY:
        note(f"fault {FAULT}")
        if FAULT == "step raises":
            raise RuntimeError("as asked")
        if FAULT == "sys.exit(3)":
            sys.exit(3)
        os.kill(os.getpid(), signal.SIGINT)


def batches() -> Iterator[int]:
    """Return once every rank has the decision before the start."""
    note("trains")
    while min(map(begun, range(WORLD))) < begun(RANK):
        time.sleep(0.02)
    yield from range(step, 100_000 if FAULT else 12)


def begun(rank: int) -> int:
    diary = FOLDER / f"diary.{rank}"
    return diary.read_text().count("trains\n") if diary.exists() else 0


def loop() -> None:
    if guard.should_stop_early():
        sys.exit(guard.exit_code)
    guard.resumed(step)
    note(f"begins {step}")
    for _ in batches():
        train_step()
        decision = guard.step()
        if decision.save and FORM == "with":
            with guard.saving():
                save()
        elif decision.save:
            save()  # the guard does not get the outcome
        if decision.stop:
            break
    else:
        guard.finished()


if FORM == "with":
    with guard:
        loop()
elif FORM == "without":
    guard.start()
    loop()
else:
    guard.start()
    guard.resumed(step)
    note(f"begins {step}")
    for _ in guard.steps(batches(), save=save):
        train_step()
    guard.finished()
code = guard.exit_code
note(f"exits with {code}")
sys.exit(code)
