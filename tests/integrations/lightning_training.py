"""A Lightning training with the callback, as a user writes it.

lightning_training.py FOLDER STEPS [KEY=VALUE ...]     further words are arguments of the Trainer, in JSON
"""

from __future__ import annotations

import json
import os
import sys
import time
from pathlib import Path
from typing import Any

import lightning.pytorch as lightning
import torch
from torch.utils.data import DataLoader

from resilience.integrations.checkpoint_files import newest_checkpoint
from resilience.integrations.lightning import ResilCallback


class Model(lightning.LightningModule):
    """One linear layer; notes which batches it was trained on and validated with."""

    def __init__(self, directory: Path) -> None:
        super().__init__()
        self.layer = torch.nn.Linear(1, 1)
        self.directory = directory

    def note(self, **what: object) -> None:
        with open(self.directory / f"rank{self.trainer.global_rank}.jsonl", "a") as diary:
            diary.write(json.dumps({"pid": os.getpid(), "time": time.time(), **what}) + "\n")

    def training_step(self, batch: Any, batch_idx: int) -> Any:
        self.note(event="step", step=self.global_step, batch=batch_idx)
        time.sleep(0.005)
        if self.global_step == int(os.environ.get("FAIL_AT", "-1")):
            raise RuntimeError("as asked")
        return self.layer(batch).square().mean()

    def validation_step(self, batch: Any, batch_idx: int) -> None:
        if not self.trainer.sanity_checking:
            self.note(event="validation", step=self.global_step, batch=batch_idx)
            time.sleep(float(os.environ.get("VALIDATION_S", "0")))

    def on_train_end(self) -> None:
        self.note(event="stop", step=self.global_step)

    def configure_optimizers(self) -> Any:
        return torch.optim.SGD(self.parameters(), lr=1e-3)


def main(directory: Path, steps: int, more: dict[str, Any]) -> int:
    """Train; return the exit code."""
    torch.set_num_threads(1)
    callback = ResilCallback(directory / "checkpoints")
    model = Model(directory)
    trainer = lightning.Trainer(
        accelerator="cpu",
        max_steps=steps,
        callbacks=[callback],
        default_root_dir=directory,
        enable_progress_bar=False,
        enable_checkpointing=False,
        enable_model_summary=False,
        logger=False,
        **{"devices": 1, "limit_val_batches": 0} | more,
    )
    data = DataLoader(torch.rand(1000, 1), batch_size=2)
    trainer.fit(model, data, DataLoader(torch.rand(1000, 1)), ckpt_path=newest_checkpoint(directory / "checkpoints"))
    model.note(event="left", step=trainer.global_step, exit_code=callback.exit_code)
    return callback.exit_code


if __name__ == "__main__":
    words = dict(word.split("=", 1) for word in sys.argv[3:])
    sys.exit(main(Path(sys.argv[1]), int(sys.argv[2]), {key: json.loads(value) for key, value in words.items()}))
