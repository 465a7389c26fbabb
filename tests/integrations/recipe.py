"""Runs recipes of docs/how-to/guard-in-*.md as printed: killed in the second save, then started anew.

    recipe.py FOLDER FORM...          FORMs of one framework, which is imported once: each attempt is a fork

An attempt notes in FOLDER/FORM/diary.jsonl each step, with a weight before it. The first one saves after step 4, and is
killed while it saves after step 10; the second one goes on from step 4, and stops after step 10.
"""

from __future__ import annotations

import json
import os
import re
import signal
import sys
import tempfile
import time
from collections.abc import Callable, Iterable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from tests.integrations.launched import REPOSITORY

STEPS, SAVED, STOPPED = 12, 4, 10
LIMIT_S = 100.0
SCRIPTS = (f"test:save@{SAVED},save@{STOPPED}", f"test:stop@{STOPPED}")
HEADING = re.compile(r"^## (.*)$", re.MULTILINE)
BLOCK = re.compile(r"^```python\n(.*?)^```", re.MULTILINE | re.DOTALL)


@dataclass(frozen=True)
class Form:
    """A recipe: the blocks of a page, and what they find around them.

    Attributes:
        page: `guard-in-<page>.md`.
        around: returns the names that the page leaves to its reader; gets `note` and whether to kill in a save.
        headings: sections whose first block precedes that of the top of the page, of this or of the page `beside`.
        beside: `guard-in-<beside>.md`.
        replace: words to be replaced in the block, for a variant that the page tells in its text.
        settings: of [checkpoints].
    """

    page: str
    around: Callable[[Callable[..., None], Callable[..., None]], dict[str, Any]]
    headings: tuple[str, ...] = ()
    replace: tuple[str, str] = ("", "")
    settings: tuple[tuple[str, str], ...] = ()
    beside: str = ""


def code_of(form: Form) -> str:
    """Return the blocks of a page that make its recipe."""
    pages = [page for page in (form.page, form.beside) if page]
    text = "\n".join((REPOSITORY / f"docs/how-to/guard-in-{page}.md").read_text() for page in pages)
    top, *rest = HEADING.split(text)
    sections = dict(zip(rest[::2], rest[1::2], strict=True))
    blocks = [found[1] for part in (*(sections[one] for one in form.headings), top) if (found := BLOCK.search(part))]
    assert len(blocks) == len(form.headings) + 1
    return "\n".join(blocks).replace(*form.replace)


def killed_after(owner: Any, name: str, kill: Callable[..., None], at: int = 2) -> None:
    """Kill this process when a function of the framework's save returns for the second time: not all is written."""
    original, calls = getattr(owner, name), 0

    def counted(*arguments: Any, **keywords: Any) -> Any:
        nonlocal calls
        result = original(*arguments, **keywords)
        calls += 1
        if calls == at:
            kill()
        return result

    setattr(owner, name, counted)


# ---- what each page leaves to its reader ----------------------------------------------------------------------------


def torch_model() -> tuple[Any, Any]:
    import torch

    torch.manual_seed(0)
    model = torch.nn.Linear(1, 1)
    return model, torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9)


def pytorch(owner: str, name: str, at: int = 2) -> Callable[..., dict[str, Any]]:
    def around(note: Callable[..., None], kill: Callable[..., None]) -> dict[str, Any]:
        import importlib

        import torch
        import torch.distributed as dist

        def make_everything() -> Any:
            with tempfile.TemporaryDirectory() as meeting:
                dist.init_process_group("gloo", init_method=f"file://{meeting}/store", rank=0, world_size=1)
            return *torch_model(), lambda step: range(step, STEPS)

        def train_step(model: Any, optimizer: Any, batch: int) -> Any:
            note(batch, model.weight.item())
            loss = model(torch.tensor([batch + 1.0])).square().mean()
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            return loss

        killed_after(importlib.import_module(owner), name, kill, at)
        return {"make_everything": make_everything, "train_step": train_step, "dist": dist}

    return around


def accelerate(note: Callable[..., None], kill: Callable[..., None]) -> dict[str, Any]:
    import torch
    from accelerate import Accelerator

    model, optimizer = torch_model()
    found: dict[str, Any] = {"model": model, "optimizer": optimizer}
    found["loader"] = torch.utils.data.DataLoader([torch.tensor([float(one)]) for one in range(STEPS)])

    def train_step(batch: Any) -> None:
        note(int(batch), model.weight.item())
        found["accelerator"].backward(found["model"](batch + 1).square().mean())
        found["optimizer"].step()
        found["optimizer"].zero_grad()

    killed_after(Accelerator, "save_state", kill)
    return found | {"train_step": train_step, "found": found}


def lightning(note: Callable[..., None], kill: Callable[..., None]) -> dict[str, Any]:
    import torch
    from lightning.pytorch import LightningModule, Trainer

    class Loader(torch.utils.data.DataLoader[Any]):
        """A plain one begins anew after a resume, although Lightning goes on counting batches."""

        first = done = 0

        def __iter__(self) -> Any:
            for self.done, batch in enumerate(super().__iter__(), 1):
                if self.done > self.first:
                    yield batch

        def state_dict(self) -> dict[str, Any]:
            return {"done": self.done}

        def load_state_dict(self, state: dict[str, Any]) -> None:
            self.first = state["done"]

    class Model(LightningModule):
        def __init__(self) -> None:
            super().__init__()
            self.layer, self.optimizer = torch_model()

        def training_step(self, batch: Any, batch_idx: int) -> Any:
            note(self.global_step, self.layer.weight.item())
            return self.layer(batch + 1).square().mean()

        def configure_optimizers(self) -> Any:
            return self.optimizer

    quiet = {"accelerator": "cpu", "logger": False, "enable_progress_bar": False, "enable_model_summary": False}
    with_defaults(Trainer, quiet | {"enable_checkpointing": False, "max_steps": STEPS})
    killed_after(Trainer, "save_checkpoint", kill)
    return {"model": Model(), "data": Loader(torch.arange(float(STEPS)).reshape(-1, 1))}


def transformers(note: Callable[..., None], kill: Callable[..., None]) -> dict[str, Any]:
    import torch
    from transformers import Trainer, TrainingArguments

    class Data(torch.utils.data.Dataset[dict[str, torch.Tensor]]):
        def __len__(self) -> int:
            return STEPS

        def __getitem__(self, index: int) -> dict[str, torch.Tensor]:
            return {"x": torch.tensor([float(index)])}

    class Model(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer, _ = torch_model()
            self.calls = 0

        def forward(self, x: Any) -> dict[str, Any]:
            note(space["trainer"].state.global_step, self.layer.weight.item())
            return {"loss": self.layer(x + 1).square().mean()}

    quiet = {"use_cpu": True, "report_to": [], "disable_tqdm": True, "per_device_train_batch_size": 1}
    with_defaults(TrainingArguments, quiet | {"max_steps": STEPS, "save_strategy": "no"})
    killed_after(Trainer, "_save_rng_state", kill)  # before trainer_state.json: then it is whole, and would be sealed
    space: dict[str, Any] = {"model": Model(), "data": Data()}
    return space | {"found": space}


def with_defaults(owner: Any, defaults: dict[str, Any]) -> None:
    """Give arguments to a framework that the page leaves to its reader: on the CPU, quietly, only a few steps."""
    original = owner.__init__
    owner.__init__ = lambda self, *arguments, **keywords: original(self, *arguments, **(keywords | defaults))


def jax(note: Callable[..., None], kill: Callable[..., None]) -> dict[str, Any]:
    import jax
    import jax.numpy as jnp
    import orbax.checkpoint as ocp

    @jax.jit
    def update(state: Any, batch: Any) -> Any:
        loss, slope = jax.value_and_grad(lambda weight: (weight * (batch + 1)) ** 2)(state["weight"])
        momentum = 0.9 * state["momentum"] + slope
        return {"weight": state["weight"] - 0.001 * momentum, "momentum": momentum}, loss

    def train_step(state: Any, batch: int) -> Any:
        note(batch, float(state["weight"]))
        return update(state, jnp.float32(batch))

    killed_after(ocp.StandardCheckpointer, "save", kill)
    state = {"weight": jnp.ones(()), "momentum": jnp.zeros(())}
    return {"state": state, "train_step": train_step, "batches_from": lambda step: range(step, STEPS)}


def deepspeed(note: Callable[..., None], kill: Callable[..., None]) -> dict[str, Any]:
    """A stand-in that writes the files of DeepSpeed 0.16 with ZeRO (runtime/engine.py, save_checkpoint)."""
    import torch

    class Engine:
        def __init__(self) -> None:
            self.model, self.optimizer = torch_model()
            self.global_steps = 0

        def __call__(self, batch: int) -> Any:
            note(batch, self.model.weight.item())
            return self.model(torch.tensor([batch + 1.0])).square().mean()

        def backward(self, loss: Any) -> None:
            self.optimizer.zero_grad()
            loss.backward()

        def is_gradient_accumulation_boundary(self) -> bool:
            return True

        def step(self) -> None:
            self.optimizer.step()
            self.global_steps += 1

        def save_checkpoint(self, directory: str) -> None:
            tag = f"global_step{self.global_steps}"
            (path := Path(directory, tag)).mkdir()
            state = {"module": self.model.state_dict(), "global_steps": self.global_steps}
            torch.save(state, path / "mp_rank_00_model_states.pt")
            torch.save(self.optimizer.state_dict(), path / "zero_pp_rank_0_mp_rank_00_optim_states.pt")
            Path(directory, "latest").write_text(tag)

        def load_checkpoint(self, directory: str) -> None:
            path = Path(directory, Path(directory, "latest").read_text())
            state = torch.load(path / "mp_rank_00_model_states.pt")
            self.model.load_state_dict(state["module"])
            self.global_steps = state["global_steps"]
            self.optimizer.load_state_dict(torch.load(path / "zero_pp_rank_0_mp_rank_00_optim_states.pt"))

    killed_after(torch, "save", kill, at=3)  # the first file of the second save
    sys.modules["deepspeed"] = SimpleNamespace(initialize=lambda **keywords: (Engine(), None, None, None))  # type: ignore[assignment]
    return {"args": None, "model": None, "data": None, "loader_from": lambda step: range(step, STEPS)}


def megatron(note: Callable[..., None], kill: Callable[..., None]) -> dict[str, Any]:
    """A stand-in that writes the files of Megatron-LM core_r0.12 (megatron/training/checkpointing.py)."""
    import torch

    tracker = "latest_checkpointed_iteration.txt"
    arguments = SimpleNamespace(save=os.environ["RESIL_CHECKPOINTS__PATH"])
    model, optimizer = torch_model()

    def save(iteration: int, *_: Any) -> None:
        (path := Path(arguments.save, f"iter_{iteration:07d}", "mp_rank_00")).mkdir(parents=True, exist_ok=True)
        state = {"model": model.state_dict(), "optimizer": optimizer.state_dict()}
        torch.save(state, path / "model_optim_rng.pt")
        Path(arguments.save, tracker).write_text(str(iteration))

    def pretrain(*_: Any) -> None:
        first = 0
        if "--ckpt-step" in sys.argv:
            first = int(sys.argv[sys.argv.index("--ckpt-step") + 1])
            state = torch.load(Path(arguments.save, f"iter_{first:07d}", "mp_rank_00", "model_optim_rng.pt"))
            model.load_state_dict(state["model"])
            optimizer.load_state_dict(state["optimizer"])
        for iteration in range(first + 1, STEPS + 1):
            note(iteration - 1, model.weight.item())
            optimizer.zero_grad()
            model(torch.tensor([float(iteration)])).square().mean().backward()
            optimizer.step()
            if training.checkpoint_and_decide_exit(model, optimizer, None, iteration, 0, None, None):
                sys.exit()

    killed_after(torch, "save", kill)
    training: Any = SimpleNamespace(checkpoint_and_decide_exit=lambda *_, **__: False, save_checkpoint_and_time=save)
    module: Any = SimpleNamespace(get_args=lambda: arguments, pretrain=pretrain, training=training)
    sys.modules |= {"megatron": SimpleNamespace(training=module), "megatron.training": module}  # type: ignore[dict-item]
    return dict.fromkeys(("datasets_provider", "model_provider", "model_type", "forward_step"))


DCP, ASYNC = "torch.distributed.checkpoint", "Saves in the background"
IN_PROCESS = (
    "dcp.async_save(state(), checkpoint_id=path)",
    'dcp.async_save(state(), checkpoint_id=path, async_checkpointer_type=__import__("torch.distributed.checkpoint.'
    'state_dict_saver", fromlist=["x"]).AsyncCheckpointerType.PROCESS)',
)
MEGATRON = (("PATTERN", "iter_{step:07d}"), ("TRACKER", "latest_checkpointed_iteration.txt"))
FORMS = {
    "torch.save": Form("pytorch", pytorch("torch", "save"), ("torch.save",)),
    "safetensors": Form("pytorch", pytorch("safetensors.torch", "save_file"), ("safetensors",)),
    "dcp": Form("pytorch", pytorch(DCP, "save"), (DCP,), beside="dcp"),
    "dcp in a thread": Form("pytorch", pytorch(DCP, "async_save"), (DCP, ASYNC), beside="dcp"),
    "dcp in a process": Form("pytorch", pytorch(DCP, "async_save"), (DCP, ASYNC), IN_PROCESS, beside="dcp"),
    "deepspeed": Form("deepspeed", deepspeed),
    "megatron": Form("megatron", megatron, settings=MEGATRON),
    "accelerate": Form("accelerate", accelerate),
    "lightning": Form("lightning", lightning),
    "transformers": Form("transformers", transformers, settings=(("PATTERN", "checkpoint-{step}"),)),
    "jax": Form("jax", jax),
}
FRAMEWORKS = {"pytorch": "torch.distributed.checkpoint", "jax": "orbax.checkpoint", "lightning": "lightning.pytorch"}
"""What is imported before the forks."""


def attempt(form: Form, folder: Path, number: int) -> int:
    """Run the recipe in this process; return its exit code."""
    os.environ |= {"RESIL_RUN_DIR": str(folder), "RESIL_RUN": "it", "RESIL_ATTEMPT": str(number)}
    os.environ |= {"RESIL_GUARD": SCRIPTS[number - 1], "RESIL_CHECKPOINTS__PATH": str(folder / "checkpoints")}
    os.environ |= {f"RESIL_CHECKPOINTS__{key}": value for key, value in form.settings}
    os.chdir(folder)

    def note(step: int, weight: float) -> None:
        with open(folder / "diary.jsonl", "a") as diary:
            diary.write(json.dumps({"attempt": number, "step": step, "weight": weight}) + "\n")

    def kill() -> None:
        os.kill(os.getpid(), signal.SIGKILL)

    space = form.around(note, kill if number == 1 else lambda: None)
    names = space.pop("found", space)  # where `around` looks for what the block makes
    names |= space | {"__name__": "__main__"}
    try:
        exec(compile(code_of(form), f"guard-in-{form.page}.md", "exec"), names)
    except SystemExit as end:
        return int(end.code or 0)
    return 0


def run(name: str, folder: Path) -> Iterable[int]:
    """Run both attempts, each in a fork; yield their exit statuses."""
    folder.mkdir()
    for number in range(1, len(SCRIPTS) + 1):
        if (pid := os.fork()) == 0:
            code = 99
            try:
                os.setsid()
                code = attempt(FORMS[name], folder, number)
            except BaseException:
                import traceback

                traceback.print_exc()
            finally:
                sys.stderr.flush()
                os._exit(code)
        deadline = time.monotonic() + LIMIT_S
        while (ended := os.waitpid(pid, os.WNOHANG))[0] == 0 and time.monotonic() < deadline:
            time.sleep(0.02)
        with suppress(ProcessLookupError):
            os.killpg(pid, signal.SIGKILL)
        yield os.waitstatus_to_exitcode(ended[1] if ended[0] else os.waitpid(pid, 0)[1])


if __name__ == "__main__":
    page = FORMS[sys.argv[2]].page
    __import__(FRAMEWORKS.get(page, page if page in ("accelerate", "transformers") else "torch"))
    if page != "jax":
        import torch

        torch.set_num_threads(1)
        torch_model()[1].step()  # imports what every fork would import anew
    codes = {one: list(run(one, Path(sys.argv[1], one))) for one in sys.argv[2:]}
    Path(sys.argv[1], "codes.json").write_text(json.dumps(codes))
