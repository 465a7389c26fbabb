"""Killed and resumed, a training ends with the same weights, bit for bit, and has seen each sample once per epoch."""

from __future__ import annotations

import os
import random
import signal
import time
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from resilience.checkpoints import Store
from resilience.checkpoints.random_state import (
    ResumableSampler,
    random_state,
    read_random_state,
    restore_random_state,
    write_random_state,
)
from resilience.errors import CheckpointError
from resilience.guard import TrainingGuard
from tests.integrations.launched import needs

pytestmark = [
    needs("torch", "numpy"),
    pytest.mark.filterwarnings("ignore:Failed to initialize NumPy:UserWarning"),
]

SAMPLES, BATCH, EPOCHS = 48, 4, 2
STEPS = SAMPLES // BATCH * EPOCHS


def train(path: Path, kill_at: int, workers: int) -> None:
    """Train from the newest checkpoint, with a save every five steps; kill this process after step `kill_at`."""
    import numpy
    import torch

    torch.set_num_threads(1)
    torch.manual_seed(0)
    random.seed(0)
    numpy.random.seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(8, 16), torch.nn.Dropout(0.3), torch.nn.Linear(16, 1))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9)
    data = torch.randn(SAMPLES, 8, generator=torch.Generator().manual_seed(1))
    sampler = ResumableSampler(SAMPLES, seed=7)
    loader = torch.utils.data.DataLoader(
        range(SAMPLES), batch_size=BATCH, sampler=sampler, num_workers=workers,
        generator=torch.Generator(),  # it draws a seed where an epoch begins, or resumes
    )  # fmt: skip
    seen = torch.zeros(SAMPLES, dtype=torch.int64)
    store = Store(path / "ckpt")
    with TrainingGuard.from_env({}, store=store, host_memory=False, gpu_memory="off", signals=()) as guard:
        if checkpoint := store.latest():
            state = torch.load(checkpoint.path / "state.pt")
            model.load_state_dict(state["model"])
            optimizer.load_state_dict(state["optimizer"])
            seen = state["seen"]
            read_random_state(checkpoint.path / "random.json", sampler)
            guard.resumed(checkpoint.step)
        for epoch in range(sampler.epoch, EPOCHS):
            sampler.set_epoch(epoch)
            for indices in loader:
                noise = torch.tensor(numpy.random.normal(size=(len(indices), 8)), dtype=torch.float32)
                loss = model(data[indices] + noise * random.random()).square().mean()
                optimizer.zero_grad()
                loss.backward()
                optimizer.step()
                seen[indices] += 1
                sampler.trained(len(indices))
                guard.step()
                if guard.count % 5 == 0 or guard.count == STEPS:
                    with guard.saving() as part:
                        state = {"model": model.state_dict(), "optimizer": optimizer.state_dict(), "seen": seen}
                        torch.save(state, part.path / "state.pt")
                        write_random_state(part.path / "random.json", sampler)
                if guard.count == kill_at:
                    os.kill(os.getpid(), signal.SIGKILL)


def run(path: Path, kill_at: int, workers: int) -> int:
    """Train in a process of its own, forked because importing torch takes seconds; return its exit status."""
    pid = os.fork()
    if pid == 0:
        try:
            os.setsid()
            train(path, kill_at, workers)
            os._exit(0)
        except BaseException:  # of the child: it must not go on with the tests
            import traceback

            (path / "error").write_text(traceback.format_exc())
        finally:
            os._exit(1)
    deadline = time.monotonic() + 60
    while (ended := os.waitpid(pid, os.WNOHANG))[0] == 0 and time.monotonic() < deadline:
        time.sleep(0.02)
    with suppress(ProcessLookupError):
        os.killpg(pid, signal.SIGKILL)  # the workers of the loader
    return os.waitstatus_to_exitcode(ended[1] if ended[0] else os.waitpid(pid, 0)[1])


def final(path: Path) -> dict[str, Any]:
    """Return the state of the newest checkpoint."""
    import torch

    checkpoint = Store(path / "ckpt").latest()
    assert checkpoint is not None, (path / "error").read_text()
    assert checkpoint.step == STEPS
    found: dict[str, Any] = torch.load(checkpoint.path / "state.pt")
    return found


def test_killed_and_resumed_a_training_ends_with_the_same_weights_and_each_sample_seen_once(tmp_path: Path) -> None:
    import torch

    torch.set_num_threads(1)  # before the fork: a pool of threads does not survive it
    torch.optim.SGD([torch.zeros(1, requires_grad=True)], lr=0.1).step()  # imports what every fork would import anew
    whole, killed = tmp_path / "whole", tmp_path / "killed"
    whole.mkdir()
    killed.mkdir()
    assert run(whole, 0, workers=0) == 0, (whole / "error").read_text()
    for kill_at in (7, 13, 16):  # in both epochs; what is in flight is lost, and so is what was prefetched
        assert run(killed, kill_at, workers=2) == -signal.SIGKILL, (killed / "error").read_text()
    assert run(killed, 0, workers=2) == 0, (killed / "error").read_text()
    expected, found = final(whole), final(killed)
    assert found["seen"].tolist() == expected["seen"].tolist() == [EPOCHS] * SAMPLES
    for name, weights in expected["model"].items():
        assert weights.isfinite().all() and torch.equal(found["model"][name], weights), name


def test_generators_of_numpy_and_torch_go_on_with_the_same_numbers(tmp_path: Path) -> None:
    import numpy
    import torch

    state = random_state()
    expected = [torch.rand(3).tolist(), numpy.random.random(3).tolist(), random.random()]
    torch.manual_seed(5)
    numpy.random.seed(5)
    restore_random_state(state)
    assert [torch.rand(3).tolist(), numpy.random.random(3).tolist(), random.random()] == expected


@pytest.mark.parametrize("name", ["torch", "numpy"])
def test_a_damaged_state_of_a_generator_is_refused_in_words(name: str) -> None:
    state = random_state()
    state[name] = state[name][:-8]
    with pytest.raises(CheckpointError, match="the random state cannot be restored"):
        restore_random_state(state)


def test_a_write_takes_the_state_and_changes_nothing(tmp_path: Path) -> None:
    import torch

    torch.manual_seed(3)
    expected = torch.rand(2).tolist()
    torch.manual_seed(3)
    write_random_state(tmp_path / "random.json")
    assert torch.rand(2).tolist() == expected
