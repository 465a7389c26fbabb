"""Trainings with asynchronous saves into a store.

    async_training.py FORM FOLDER     FORM is one of FORMS; checkpoints go to FOLDER/checkpoints

It goes on from the newest checkpoint, and trains until it is stopped. With SAVE_S each save lasts that long, beside the
training.
"""

from __future__ import annotations

import json
import os
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from resilience.checkpoints import Store
from resilience.guard import TrainingGuard

FORM, FOLDER = sys.argv[1], Path(sys.argv[2])
STORE = Store(FOLDER / "checkpoints")
SAVE_S = float(os.environ.get("SAVE_S", "0"))


def note(event: str, step: int) -> None:
    """Write into this rank's diary."""
    with open(Path(os.environ["RESIL_RUN_DIR"]).parent / "rank0.jsonl", "a") as diary:
        diary.write(json.dumps({"event": event, "step": step, "pid": os.getpid(), "time": time.time()}) + "\n")


# ---- PyTorch: torch.distributed.checkpoint --------------------------------------------------------------------------


def slow_writer(path: Path) -> Any:
    """Write to the file system, slowly."""
    from tests.integrations.slow_writer import SlowWriter

    return SlowWriter(path, SAVE_S)


def pytorch(kind: str) -> int:
    """docs/how-to/guard-in-dcp.md."""
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

    def save(path: Path) -> Any:
        kind_of = AsyncCheckpointerType(kind)
        return dcp.async_save(state(), storage_writer=slow_writer(path), async_checkpointer_type=kind_of)

    with TrainingGuard.from_env(store=STORE) as guard:
        if checkpoint := STORE.latest():
            loaded = state()
            dcp.load(loaded, checkpoint_id=checkpoint.path)
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
                with guard.saving() as part:
                    part.until(save(part.path))
            if decision.stop:
                break
    dist.destroy_process_group()
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

    callback = ResilCallback(store=STORE)
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
    trainer.fit(Model(), data, ckpt_path=callback.latest_path())
    return callback.exit_code


# ---- JAX ------------------------------------------------------------------------------------------------------------


def jax() -> int:
    """docs/how-to/guard-in-jax.md."""
    import jax.numpy as jnp
    import orbax.checkpoint as ocp

    checkpointer = ocp.StandardCheckpointer()
    with TrainingGuard.from_env(store=STORE) as guard:
        state, step = {"weight": jnp.ones(1000)}, 0
        if checkpoint := STORE.latest():
            state, step = checkpointer.restore(checkpoint.path / "state", state), checkpoint.step
            guard.resumed(step)
        note("begins", step)
        while True:
            state = {"weight": state["weight"] * 0.99}
            step += 1
            time.sleep(0.005)
            note("step", step)
            decision = guard.step()
            if decision.save:
                with guard.saving() as part:
                    checkpointer.save(part.path / "state", state)
                    part.until(checkpointer)
            if decision.stop:
                break
    return guard.exit_code


FORMS = {
    "pytorch-thread": lambda: pytorch("thread"),
    "pytorch-process": lambda: pytorch("process"),
    "lightning": lightning,
    "jax": jax,
}

if __name__ == "__main__":
    sys.exit(FORMS[FORM]())
