"""Abnormal gradients, moments and buffers are found, of either sign and NaN; healthy trainings are left alone."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.guard.guards import make_guard, make_run
from tests.integrations.launched import needs

pytestmark = [
    needs("torch"),
    pytest.mark.filterwarnings("ignore:Failed to initialize NumPy:UserWarning"),  # torch without numpy, at its import
]


class Training:
    """A small training with Adam and BatchNorm."""

    def __init__(self, seed: int = 0, lr: float = 1e-2, **options: Any) -> None:
        import torch

        from resilience.integrations.torch import StateCheck

        torch.manual_seed(seed)
        torch.set_num_threads(1)
        layers = (torch.nn.Linear(8, 16), torch.nn.BatchNorm1d(16), torch.nn.Tanh(), torch.nn.Linear(16, 1))
        self.model = torch.nn.Sequential(*layers)
        self.optimizer: Any = torch.optim.AdamW(self.model.parameters(), lr=lr)
        self.check = StateCheck(self.model, self.optimizer, **options)
        self.step = 0

    def trains(self, steps: int) -> Training:
        import torch

        for _ in range(steps):
            self.step += 1
            batch = torch.randn(32, 8)
            loss = (self.model(batch) - batch[:, :1].sin()).square().mean()
            self.optimizer.zero_grad()
            loss.backward()
            self.check(self.step)
            self.optimizer.step()
        return self

    def state(self) -> Any:
        return self.optimizer.state[self.model[0].weight]

    def why(self) -> str:
        request = self.check.poll()
        return request.why if request is not None else ""


@pytest.mark.parametrize("seed", range(2))
def test_a_healthy_training_is_left_alone(seed: int) -> None:
    training = Training(seed, every=1).trains(600)
    assert not training.why()


RUINS: dict[str, tuple[Callable[[Training], Any], str]] = {
    "a negative moment": (lambda t: t.state()["exp_avg"].view(-1)[3].fill_(-1e17), "exp_avg of 0.weight is abnormal"),
    "a moment that is NaN": (lambda t: t.state()["exp_avg_sq"].view(-1)[3].fill_(float("nan")), "is abnormal, and"),
    "a moment far above its usual": (
        lambda t: t.state()["exp_avg"].view(-1)[3].fill_(5e4),
        "exp_avg of 0.weight is ab",
    ),
    "a weight that ruins the gradients": (lambda t: t.model[3].weight.data.fill_(3e9), "the gradient of"),
    "a moving variance": (lambda t: t.model[1].running_var.fill_(1e20), "the buffer 1.running_var is abnormal"),
}


@pytest.mark.parametrize("case", RUINS)
def test_a_ruined_state_is_found_at_the_next_check(case: str) -> None:
    ruin, expected = RUINS[case]
    training = Training(every=10).trains(200)
    assert not training.why()
    ruin(training)
    training.trains(10)
    request = training.check.poll()
    assert request is not None and expected in request.why
    assert (request.step, request.since, request.discard, request.save, request.exit_code) == (210, 200, True, False, 1)
    assert training.check.poll() is None


def test_gradients_of_a_loss_scaler_can_be_left_out() -> None:
    training = Training(every=1, gradients=False).trains(50)
    training.model[3].bias.grad.fill_(float("inf"))
    training.check(training.step + 1)
    assert not training.why()


def test_a_model_without_gradients_sparse_and_empty_tensors_are_no_fault() -> None:
    import torch

    from resilience.integrations.torch import StateCheck

    model = torch.nn.Module()
    model.register_buffer("nothing", torch.zeros(0))
    model.register_buffer("counts", torch.zeros(3, dtype=torch.int64))
    model.table = torch.nn.Embedding(10, 2, sparse=True)
    optimizer = torch.optim.SparseAdam(model.parameters())
    check = StateCheck(model, optimizer, every=1)
    check(1)
    model.table(torch.tensor([1, 2])).sum().backward()
    check(2)
    assert check.poll() is None


def test_the_guard_stops_without_a_save_and_tells_the_next_attempt(tmp_path: Path) -> None:
    run = make_run(tmp_path / "run")
    training = Training(every=10)
    with make_guard(run, triggers=[training.check], say=lambda text: None) as guard:
        guard.resumed(0)
        while not guard.step().stop:
            training.trains(1)
            if training.step == 200:
                RUINS["a negative moment"][0](training)
    assert guard.exit_code == 1 and guard.decided is not None and not guard.decided.save
    with make_guard(run, say=lambda text: None) as guard:
        after = guard.resumed_after
        assert after is not None and after.step == 210 and "exp_avg of 0.weight" in after.why
        assert guard.skip_steps == set(range(200, 211))
    lines = [json.loads(line) for line in (run / "journal" / "12.0.jsonl").read_text().splitlines()]
    assert [line["step"] for line in lines if line["event"] == "state_ruined"] == [210]
