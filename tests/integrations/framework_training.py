"""A training with a framework's own callback or recipe that ends in a way of its choice.

framework_training.py FOLDER FORM [FAULT]     FORM: see `FORMS`; FAULT as in ending_training.py, on rank $FAULT_RANK

Checkpoints are the framework's own, in FOLDER/checkpoints. It saves at step 2, or at the first step after that at which
a save switch is seen; from step 5 on the fault may come. Without a fault it trains to step 12 and finishes.
"""

from __future__ import annotations

import os
import signal
import sys
import time
from pathlib import Path
from typing import Any

import torch

from resilience.integrations.checkpoint_files import checkpoint_path, move_into_place, newest_checkpoint, remove_older
from tests.lab.disks import fill

FOLDER, FORM, FAULT = Path(sys.argv[1]), sys.argv[2], "".join(sys.argv[3:])
CHECKPOINTS = FOLDER / "checkpoints"
RANK = int(os.environ.get("RANK") or os.environ.get("SLURM_PROCID") or os.environ.get("LOCAL_RANK") or 0)
IS_FAULTY = int(os.environ.get("FAULT_RANK", "0")) == RANK
AT_THE_STOP = ("kill", "SIGTERM in the save", "save raises", "save hangs", "disk full")
SETTINGS: dict[str, Any] = {"poll_s": 0.05, "beat_s": 0.5, "host_memory": False, "walltime": False}
STEPS = 100_000 if FAULT else 12
SWITCHES = Path(os.environ["RESIL_RUN_DIR"]) / "switches"
torch.set_num_threads(1)


def note(text: str) -> None:
    with open(FOLDER / f"diary.{RANK}", "a") as diary:
        diary.write(f"{time.time():.3f} {text}\n")


def fault_in_the_save() -> None:
    """Raise the fault, in the framework's save that the switch has requested."""
    if FAULT not in AT_THE_STOP or not (SWITCHES / "kill").exists() or not IS_FAULTY:
        return
    note(f"fault {FAULT}")
    if FAULT == "save raises":
        raise OSError(5, "as asked")
    if FAULT == "save hangs":
        time.sleep(1000)
    if FAULT == "SIGTERM in the save":
        os.kill(os.getpid(), signal.SIGTERM)
        time.sleep(0.3)
    if FAULT == "disk full":
        fill(FOLDER)


def fault_after(step: int) -> None:
    """Called in each step: `step` steps are done."""
    time.sleep(0.02)
    if step == 1 and RANK == 0:
        (SWITCHES / "save").touch()
    if not FAULT or step < 5 or (SWITCHES / "save").exists():
        return
    if FAULT in AT_THE_STOP:
        (SWITCHES / "kill").touch()
    elif IS_FAULTY:
        note(f"fault {FAULT}")
        if FAULT == "step raises":
            raise RuntimeError("as asked")
        if FAULT == "sys.exit(3)":
            sys.exit(3)
        os.kill(os.getpid(), signal.SIGINT)
        time.sleep(1)


def lightning() -> int:
    """docs/how-to/guard-in-lightning.md."""
    from lightning.pytorch import LightningModule, Trainer
    from lightning.pytorch.plugins import TorchCheckpointIO

    from resilience.integrations.lightning import ResilCallback

    class Faulty(TorchCheckpointIO):
        def save_checkpoint(self, *arguments: Any, **keywords: Any) -> None:
            fault_in_the_save()
            super().save_checkpoint(*arguments, **keywords)

    class Model(LightningModule):
        def __init__(self) -> None:
            super().__init__()
            self.layer = torch.nn.Linear(1, 1)

        def on_train_start(self) -> None:
            note(f"begins {self.global_step}")

        def training_step(self, batch: Any, batch_idx: int) -> Any:
            fault_after(self.global_step)
            return self.layer(batch).sum()

        def configure_optimizers(self) -> Any:
            return torch.optim.SGD(self.parameters(), lr=1e-3)

    callback = ResilCallback(CHECKPOINTS, **SETTINGS)
    world = int(os.environ.get("WORLD_SIZE", "1"))
    trainer = Trainer(
        accelerator="cpu",
        devices=world,
        strategy="ddp" if world > 1 else "auto",
        max_steps=STEPS,
        callbacks=[callback],
        plugins=[Faulty()],
        default_root_dir=FOLDER,
        enable_progress_bar=False,
        enable_checkpointing=False,
        enable_model_summary=False,
        logger=False,
    )
    data = torch.utils.data.DataLoader(torch.ones(200_000, 1))
    trainer.fit(Model(), data, ckpt_path=newest_checkpoint(CHECKPOINTS))
    if not FAULT:
        assert callback.guard is not None
        callback.guard.finished()
    return callback.exit_code


def transformers() -> int:
    """docs/how-to/guard-in-transformers.md."""
    from transformers import Trainer, TrainingArguments

    from resilience.integrations.transformers import ResilCallback, newest_checkpoint

    class Data(torch.utils.data.Dataset[dict[str, torch.Tensor]]):
        def __len__(self) -> int:
            return 200_000

        def __getitem__(self, index: int) -> dict[str, torch.Tensor]:
            return {"x": torch.ones(1)}

    class Model(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer = torch.nn.Linear(1, 1)

        def forward(self, x: Any) -> dict[str, Any]:
            fault_after(trainer.state.global_step)
            return {"loss": self.layer(x).sum()}

    class Faulty(Trainer):
        def _save(self, *arguments: Any, **keywords: Any) -> None:
            fault_in_the_save()
            super()._save(*arguments, **keywords)

    callback = ResilCallback(**SETTINGS)
    if callback.should_stop_early():
        return callback.exit_code
    arguments = TrainingArguments(
        output_dir=str(CHECKPOINTS),
        max_steps=STEPS,
        use_cpu=True,
        report_to=[],
        disable_tqdm=True,
        per_device_train_batch_size=1,
        save_strategy="no",
    )
    trainer = Faulty(Model(), arguments, train_dataset=Data(), callbacks=[callback])
    last = newest_checkpoint(CHECKPOINTS)
    note(f"begins {int(last.rpartition('-')[2]) if last else 0}")
    trainer.train(resume_from_checkpoint=last)
    if not FAULT:
        callback.guard.finished()
    return callback.exit_code


def accelerate() -> int:
    """docs/how-to/guard-in-accelerate.md."""
    from accelerate import Accelerator

    from resilience.guard import TrainingGuard

    accelerator = Accelerator(cpu=True)
    model = torch.nn.Linear(1, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
    model, optimizer = accelerator.prepare(model, optimizer)
    step = 0

    def save(label: str) -> None:
        fault_in_the_save()
        path = checkpoint_path(CHECKPOINTS, step, label)
        part = path.with_suffix(".part")
        accelerator.save_state(str(part))
        accelerator.wait_for_everyone()
        if accelerator.is_main_process:
            move_into_place(part, path)
            remove_older(CHECKPOINTS, keep=2)

    with TrainingGuard.from_env(**SETTINGS) as guard:
        if guard.should_stop_early():
            return guard.exit_code
        if newest := newest_checkpoint(CHECKPOINTS):
            accelerator.load_state(newest)
            step = int(newest[-13:-5])
            guard.resumed(step)
        note(f"begins {step}")
        while step < STEPS:
            fault_after(step)
            accelerator.backward(model(torch.ones(1, 1)).sum())
            optimizer.step()
            optimizer.zero_grad()
            step += 1
            decision = guard.step()
            if decision.save:
                with guard.saving():
                    save(decision.label)
            if decision.stop:
                break
        else:
            guard.finished()
    accelerator.end_training()
    return guard.exit_code


FORMS = {"lightning": lightning, "transformers": transformers, "accelerate": accelerate}

if __name__ == "__main__":
    code = FORMS[FORM]()
    note(f"exits with {code}")
    sys.exit(code)
