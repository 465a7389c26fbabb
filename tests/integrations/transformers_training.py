"""A training with the Trainer of transformers and the callback, as a user writes it.

transformers_training.py FOLDER STEPS [KEY=VALUE ...]     further words are training arguments, in JSON
"""

from __future__ import annotations

import json
import os
import sys
import time
from pathlib import Path
from typing import Any

import torch
from transformers import Trainer, TrainingArguments

from resilience.integrations.transformers import ResilCallback, newest_checkpoint

FOLDER = Path(sys.argv[1])


def note(**what: object) -> None:
    """Write into this rank's diary."""
    with open(FOLDER / f"rank{os.environ.get('RANK', '0')}.jsonl", "a") as diary:
        diary.write(json.dumps({"pid": os.getpid(), "time": time.time(), **what}) + "\n")


class Data(torch.utils.data.Dataset[dict[str, torch.Tensor]]):
    """Numbers that identify the batch."""

    def __len__(self) -> int:
        return 4000

    def __getitem__(self, index: int) -> dict[str, torch.Tensor]:
        return {"x": torch.tensor([float(index)])}


class Model(torch.nn.Module):
    """One linear layer."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = torch.nn.Linear(1, 1)
        self.calls = 0

    def forward(self, x: Any) -> dict[str, Any]:
        if self.training:
            self.calls += 1
            note(event="step", step=self.calls, first=int(x[0, 0]))
            time.sleep(0.005)
            if self.calls == int(os.environ.get("FAIL_AT", "-1")):
                raise RuntimeError("as asked")
        else:
            note(event="evaluation")
            time.sleep(float(os.environ.get("EVALUATION_S", "0")))
        return {"loss": self.layer(x / 4000).square().mean()}


def main(steps: int, more: dict[str, Any]) -> int:
    """Train; return the exit code."""
    torch.set_num_threads(1)
    torch.manual_seed(0)
    arguments = TrainingArguments(
        output_dir=str(FOLDER / "checkpoints"),
        max_steps=steps,
        use_cpu=True,
        report_to=[],
        disable_tqdm=True,
        per_device_train_batch_size=2,
        **{"save_strategy": "no", "logging_steps": 5} | more,
    )
    callback = ResilCallback()
    if callback.should_stop_early():
        note(event="not_started")
        return callback.exit_code
    trainer = Trainer(Model(), arguments, train_dataset=Data(), eval_dataset=Data(), callbacks=[callback])
    trainer.train(resume_from_checkpoint=newest_checkpoint(FOLDER / "checkpoints"))
    note(event="stop", step=trainer.state.global_step, exit_code=callback.exit_code)
    return callback.exit_code


if __name__ == "__main__":
    words = dict(word.split("=", 1) for word in sys.argv[3:])
    sys.exit(main(int(sys.argv[2]), {key: json.loads(value) for key, value in words.items()}))
