"""Trainers that the log watchdog is not tuned with: do not read their results while changing it."""

from __future__ import annotations

from tests.watch.trainers.background import MEMORY
from tests.watch.trainers.day import Now, Trainer


class Marian(Trainer):
    """Marian NMT."""

    step_s, log_every = 0.31, 500
    start_s = (10.0, 60.0)
    eval_every, eval_s, save_every, save_s = 10_000, 420.0, 10_000, 25.0
    background = (MEMORY,)

    def step(self, now: Now) -> str:
        return (
            f"[{now.clock()}] Ep. 1 : Up. {now.step} : Sen. {812 * now.step:,} : Cost {now.loss:.8f} : Time"
            f" {500 * now.step_s:.2f}s : 41220.12 words/s : gNorm {now.norm:.4f}\n"
        )

    def ends_eval(self, now: Now) -> str:
        return f"[{now.clock()}] [valid] Ep. 1 : Up. {now.step} : cross-entropy : {30 * now.loss:.4f} : new best\n"


TRAINERS: tuple[type[Trainer], ...] = (Marian,)
