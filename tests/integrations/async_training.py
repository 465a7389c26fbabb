"""Trainings with asynchronous saves, as in docs/how-to/guard-in-*.md.

    async_training.py FORM FOLDER     FORM is one of FORMS; checkpoints go to FOLDER/checkpoints

It goes on from the newest checkpoint, and trains until it is stopped. With SAVE_S each save lasts that long, beside the
training.
"""

from __future__ import annotations

import json
import os
import shutil
import sys
import tempfile
import threading
import time
from pathlib import Path
from typing import Any

from resilience.guard import TrainingGuard
from resilience.integrations.checkpoint_files import checkpoint_path, move_into_place, newest_checkpoint, remove_older

FORM, FOLDER = sys.argv[1], Path(sys.argv[2])
CHECKPOINTS = FOLDER / "checkpoints"
SAVE_S = float(os.environ.get("SAVE_S", "0"))


def note(event: str, step: int) -> None:
    """Write into this rank's diary."""
    with open(Path(os.environ["RESIL_RUN_DIR"]).parent / "rank0.jsonl", "a") as diary:
        diary.write(json.dumps({"event": event, "step": step, "pid": os.getpid(), "time": time.time()}) + "\n")


# ---- PyTorch and Accelerate: torch.distributed.checkpoint -----------------------------------------------------------


def slow_writer(path: Path) -> Any:
    """Write to the file system, slowly."""
    from tests.integrations.slow_writer import SlowWriter

    return SlowWriter(path, SAVE_S)


def pytorch(kind: str) -> int:
    """docs/how-to/guard-in-pytorch.md."""
    import torch
    import torch.distributed as dist
    import torch.distributed.checkpoint as dcp
    from torch.distributed.checkpoint.state_dict_saver import AsyncCheckpointerType

    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory() as meeting:
        dist.init_process_group("gloo", init_method=f"file://{meeting}/store", rank=0, world_size=1)
    model = torch.nn.Linear(1, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
    step = 0

    def state() -> dict[str, Any]:
        return {"model": model.state_dict(), "steps": torch.tensor(step)}

    def save(saving: Any, label: str) -> None:
        path = checkpoint_path(CHECKPOINTS, step, label)
        part = path.with_suffix(".part")
        written = dcp.async_save(
            state(), storage_writer=slow_writer(part), async_checkpointer_type=AsyncCheckpointerType(kind)
        )

        def in_place() -> bool:  # called once the save before it has succeeded
            if dist.get_rank() == 0:
                move_into_place(part, path)
                remove_older(CHECKPOINTS, keep=2)
            return True

        saving.until(written, in_place)

    with TrainingGuard.from_env() as guard:
        if newest := newest_checkpoint(CHECKPOINTS):
            loaded = state()
            dcp.load(loaded, checkpoint_id=newest)
            model.load_state_dict(loaded["model"])
            step = int(loaded["steps"])
            guard.resumed(step)
        note("begins", step)
        while True:
            model(torch.ones(1, 1)).sum().backward()
            optimizer.step()
            time.sleep(0.005)
            step += 1
            note("step", step)
            decision = guard.step()
            if decision.save:
                with guard.saving() as saving:
                    save(saving, decision.label)
            if decision.stop:
                break
    dist.destroy_process_group()
    return guard.exit_code


def accelerate() -> int:
    """docs/how-to/guard-in-accelerate.md."""
    import torch
    import torch.distributed.checkpoint as dcp
    from accelerate import Accelerator
    from torch.distributed.checkpoint.state_dict import get_state_dict, set_state_dict

    accelerator = Accelerator(cpu=True)
    model = torch.nn.Linear(1, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
    model, optimizer = accelerator.prepare(model, optimizer)
    step = 0

    def state() -> dict[str, Any]:
        weights, moments = get_state_dict(model, optimizer)
        return {"model": weights, "optimizer": moments, "step": torch.tensor(step)}

    def save(label: str) -> Any:
        path = checkpoint_path(CHECKPOINTS, step, label)
        part = path.with_suffix(".part")
        written = dcp.async_save(state(), storage_writer=slow_writer(part))

        def in_place() -> bool:
            if accelerator.is_main_process:
                move_into_place(part, path)
                remove_older(CHECKPOINTS, keep=2)
            return True

        return written, in_place

    with TrainingGuard.from_env() as guard:
        if newest := newest_checkpoint(CHECKPOINTS):
            loaded = state()
            dcp.load(loaded, checkpoint_id=newest)
            set_state_dict(model, optimizer, model_state_dict=loaded["model"], optim_state_dict=loaded["optimizer"])
            step = int(loaded["step"])
            guard.resumed(step)
        note("begins", step)
        while True:
            accelerator.backward(model(torch.ones(1, 1)).sum())
            optimizer.step()
            optimizer.zero_grad()
            time.sleep(0.005)
            step += 1
            note("step", step)
            decision = guard.step()
            if decision.save:
                with guard.saving() as saving:
                    saving.until(*save(decision.label))
            if decision.stop:
                break
    return guard.exit_code


# ---- Lightning ------------------------------------------------------------------------------------------------------


def lightning() -> int:
    """docs/how-to/guard-in-lightning.md."""
    import torch
    from lightning.pytorch import LightningModule, Trainer
    from lightning.pytorch.plugins import AsyncCheckpointIO, TorchCheckpointIO

    from resilience.integrations.lightning import ResilCallback

    class Slow(TorchCheckpointIO):
        def save_checkpoint(self, *arguments: Any, **keywords: Any) -> None:
            time.sleep(SAVE_S)
            super().save_checkpoint(*arguments, **keywords)

    class Model(LightningModule):
        def __init__(self) -> None:
            super().__init__()
            self.layer = torch.nn.Linear(1, 1)

        def on_train_start(self) -> None:
            note("begins", self.global_step)

        def training_step(self, batch: Any, batch_idx: int) -> Any:
            time.sleep(0.005)
            note("step", self.global_step + 1)
            return self.layer(batch).sum()

        def configure_optimizers(self) -> Any:
            return torch.optim.SGD(self.parameters(), lr=1e-3)

    callback = ResilCallback(CHECKPOINTS)
    trainer = Trainer(
        accelerator="cpu",
        max_steps=10**6,
        callbacks=[callback],
        plugins=[AsyncCheckpointIO(Slow())],
        default_root_dir=FOLDER,
        enable_progress_bar=False,
        enable_checkpointing=False,
        enable_model_summary=False,
        logger=False,
    )
    data = torch.utils.data.DataLoader(torch.ones(100_000, 1))
    trainer.fit(Model(), data, ckpt_path=newest_checkpoint(CHECKPOINTS))
    return callback.exit_code


# ---- transformers ---------------------------------------------------------------------------------------------------


def transformers() -> int:
    """docs/how-to/guard-in-transformers.md."""
    import torch
    from transformers import Trainer, TrainingArguments

    from resilience.integrations.transformers import ResilCallback

    class Data(torch.utils.data.Dataset[dict[str, torch.Tensor]]):
        def __len__(self) -> int:
            return 100_000

        def __getitem__(self, index: int) -> dict[str, torch.Tensor]:
            return {"x": torch.ones(1)}

    class Model(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer = torch.nn.Linear(1, 1)

        def forward(self, x: Any) -> dict[str, Any]:
            time.sleep(0.005)
            note("step", trainer.state.global_step + 1)
            return {"loss": self.layer(x).sum()}

    callback = ResilCallback()

    class BackgroundTrainer(Trainer):
        def _save_checkpoint(self, model: Any, trial: Any) -> None:
            super()._save_checkpoint(model, trial)  # to the node's local disk
            if self.args.should_save:
                step = self.state.global_step
                copy = threading.Thread(target=keep, args=(Path(str(self.args.output_dir), f"checkpoint-{step}"), step))
                copy.start()
                callback.until(copy)

    def keep(written: Path, step: int) -> None:
        time.sleep(SAVE_S)
        path = checkpoint_path(CHECKPOINTS, step)
        shutil.copytree(written, path.with_suffix(".part"), dirs_exist_ok=True)
        move_into_place(path.with_suffix(".part"), path)
        remove_older(CHECKPOINTS, keep=2)

    if callback.should_stop_early():
        return callback.exit_code
    with tempfile.TemporaryDirectory() as local:
        arguments = TrainingArguments(
            output_dir=local,
            max_steps=10**6,
            use_cpu=True,
            report_to=[],
            disable_tqdm=True,
            per_device_train_batch_size=1,
            save_strategy="no",
            save_total_limit=2,
        )
        trainer = BackgroundTrainer(Model(), arguments, train_dataset=Data(), callbacks=[callback])
        newest = newest_checkpoint(CHECKPOINTS)
        note("begins", int(newest[-13:-5]) if newest else 0)
        trainer.train(resume_from_checkpoint=newest)
        return callback.exit_code


# ---- JAX ------------------------------------------------------------------------------------------------------------


def jax() -> int:
    """docs/how-to/guard-in-jax.md."""
    import jax.numpy as jnp
    import orbax.checkpoint as ocp

    options = ocp.CheckpointManagerOptions(max_to_keep=2, create=True)
    with ocp.CheckpointManager(CHECKPOINTS, options=options) as manager, TrainingGuard.from_env() as guard:
        state, step = {"weight": jnp.ones(1000), "step": 0}, 0
        if (newest := manager.latest_step()) is not None:
            state = manager.restore(newest, args=ocp.args.StandardRestore(state))
            step = newest
            guard.resumed(step)
        note("begins", step)
        while True:
            state = {"weight": state["weight"] * 0.99, "step": step + 1}
            step += 1
            time.sleep(0.005)
            note("step", step)
            decision = guard.step()
            if decision.save:
                with guard.saving() as saving:
                    manager.save(step, args=ocp.args.StandardSave(state), force=True)
                    saving.until(manager)
            if decision.stop:
                break
    return guard.exit_code


FORMS = {
    "pytorch-thread": lambda: pytorch("thread"),
    "pytorch-process": lambda: pytorch("process"),
    "accelerate": accelerate,
    "lightning": lightning,
    "transformers": transformers,
    "jax": jax,
}

if __name__ == "__main__":
    sys.exit(FORMS[FORM]())
