"""Trains small networks under the watch for silent data corruption, with and without injected values; prints JSON.

python _sdc_nets.py clean NET STEPS      clean steps, and how many were called abnormal
python _sdc_nets.py inject NET COUNT     values from 1e17 to 1e38 of both signs, NaN and infinity
python _sdc_nets.py below NET COUNT      values of a few times the largest one of the tensor
python _sdc_nets.py cost SAMPLES         seconds of steps with and without the watch
"""

from __future__ import annotations

import contextlib
import copy
import json
import math
import random
import sys
import time
from collections import Counter
from collections.abc import Callable
from typing import Any

import torch

from resilience.guard import TrainingGuard
from resilience.integrations.sdc import TorchState

NETS = ("mlp", "cnn", "transformer")
PLACES = ("gradient", "late gradient", "moment", "weight", "variance")
"""A late gradient is damaged between the check and the update."""
QUIET: dict[str, Any] = {"host_memory": False, "gpu_memory": "off", "walltime": False, "signals": (), "say": print}


def silent(text: str) -> None:
    """Print nothing."""


class Net:
    """A network, its optimizer and its schedule. The batch of a step depends on the step alone."""

    def __init__(self, name: str, *, on: bool = True, width: int = 0) -> None:
        torch.manual_seed(1)
        self.name, self.number = name, 0
        self.inject: Callable[[str], None] = lambda when: None
        nn = torch.nn
        if name == "mlp":  # Adam; the learning rate jumps
            self.model: torch.nn.Module = nn.Sequential(nn.Linear(8, 24), nn.Tanh(), nn.Dropout(0.1), nn.Linear(24, 1))
            self.optimizer: torch.optim.Optimizer = torch.optim.Adam(self.model.parameters(), lr=1e-3)
            self.schedule: Any = torch.optim.lr_scheduler.MultiStepLR(self.optimizer, [200, 2000, 10000], gamma=3.0)
        elif name == "cnn":  # BatchNorm, SGD with momentum, warm restarts
            layers = (nn.Conv2d(1, 6, 3), nn.BatchNorm2d(6), nn.ReLU(), nn.Flatten(), nn.Linear(6 * 36, 10))
            self.model = nn.Sequential(*layers)
            self.optimizer = torch.optim.SGD(self.model.parameters(), lr=0.05, momentum=0.9, weight_decay=1e-4)
            self.schedule = torch.optim.lr_scheduler.CosineAnnealingWarmRestarts(self.optimizer, 500)
        else:  # AdamW, warm-up and cosine, clipped gradients
            width = width or 16
            layer = nn.TransformerEncoderLayer(width, 2, 2 * width, dropout=0.1, batch_first=True, norm_first=True)
            self.model = nn.ModuleDict(
                {"embedding": nn.Embedding(24, width), "body": nn.TransformerEncoder(layer, 1 if width == 16 else 4,
                 enable_nested_tensor=False), "head": nn.Linear(width, 24)}
            )  # fmt: skip
            self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=3e-3)
            rate = lambda step: min(step / 200, 0.5 + 0.5 * math.cos(step / 4000))  # noqa: E731
            self.schedule = torch.optim.lr_scheduler.LambdaLR(self.optimizer, rate)
        self.guard = TrainingGuard.from_env({}, sdc=on, **{**QUIET, "say": silent})
        self.guard.start()
        self.sdc = self.guard.sdc(TorchState(self.model, self.optimizer, also=[self.schedule]))
        self.optimizer.register_step_pre_hook(lambda *_: self.inject("late gradient"))

    def batch(self, size: int = 8) -> tuple[torch.Tensor, torch.Tensor]:
        """Return the data of the next step."""
        self.number += 1
        source = torch.Generator().manual_seed(self.number)
        if self.name == "mlp":
            x = torch.randn(2 * size, 8, generator=source)
            return x, x[:, :1].sin() + x[:, 1:2]
        if self.name == "cnn":
            label = torch.randint(10, (size,), generator=source)
            return torch.randn(size, 1, 8, 8, generator=source) + label[:, None, None, None] / 5, label
        start = torch.randint(24, (size, 1), generator=source)
        text = (start + torch.arange(9) * (1 + start % 3)) % 24
        return text[:, :-1], text[:, 1:]

    def step(self, batch: tuple[torch.Tensor, torch.Tensor]) -> float:
        """One whole step, which may be called again."""
        self.inject("before")
        x, y = batch
        self.optimizer.zero_grad()
        if self.name == "transformer":
            model: Any = self.model
            loss = torch.nn.functional.cross_entropy(model["head"](model["body"](model["embedding"](x))).mT, y)
        elif self.name == "cnn":
            loss = torch.nn.functional.cross_entropy(self.model(x), y)
        else:
            loss = (self.model(x) - y).square().mean()
        loss.backward()
        self.inject("gradient")
        if self.name == "transformer":
            self.sdc.check()
            torch.nn.utils.clip_grad_norm_(self.model.parameters(), 1.0)
        self.optimizer.step()
        self.schedule.step()
        self.inject("after")
        return float(loss.detach())

    def train(self, steps: int) -> None:
        """Do steps."""
        for _ in range(steps):
            self.sdc.run(self.step, self.batch())
            self.guard.step()

    def targets(self, place: str) -> list[torch.Tensor]:
        """Return the tensors of a kind."""
        parameters = list(self.model.parameters())
        if place.endswith("gradient"):
            return [one.grad for one in parameters if one.grad is not None]
        if place == "weight":
            return [one.data for one in parameters]
        if place == "variance":
            return [value for name, value in self.model.named_buffers() if name.endswith("running_var")]
        return [
            value
            for state in self.optimizer.state.values()
            for kind, value in state.items()
            if kind != "step" and isinstance(value, torch.Tensor)
        ]


def clean(name: str, steps: int) -> dict[str, Any]:
    """Train without faults."""
    net = Net(name)
    net.train(steps)
    return {"steps": net.guard.count, "found": [one.why for one in net.sdc.found], "on": net.sdc.is_on}


def inject(name: str, count: int, *, below: bool = False) -> dict[str, Any]:
    """Inject values at random steps, and compare what is left with the same training without them."""
    source = random.Random(f"{name} {below}")
    net, twin = Net(name), Net.__new__(Net)
    net.train(60)  # armed
    results: Counter[str] = Counter()
    lost: list[str] = []
    pending: list[tuple[str, str, float]] = []
    injected_at = 0

    def put(when: str) -> None:
        nonlocal injected_at
        if pending and when == pending[0][0]:
            _, place, value = pending.pop()
            tensor = source.choice(net.targets(place))
            flat = tensor.view(-1)
            if below:
                value *= max(1e-30, float(tensor.abs().max()))
            flat[source.randrange(len(flat))] = value
            injected_at = net.sdc.step

    net.inject = put
    places = [one for one in PLACES if net.targets(one)]
    for number in range(count):
        place = places[number % len(places)]
        kind = number // len(places) % 10
        if below:
            size = (2.0, 20.0, 150.0, 1e4)[number // len(places) % 4]
            value, label = source.choice((-1, 1)) * size, f"{place} {size:g} times"
        else:
            value = {0: math.nan, 1: math.inf, 2: -math.inf}.get(
                kind, source.choice((-1, 1)) * 10 ** source.uniform(17, 38)
            )
            label = place
        saved = _copy(net) if below else None
        net.train(source.randrange(2, 6))
        before = len(net.sdc.found)
        moment = place if place.endswith("gradient") else source.choice(("before", "after"))
        pending.append((moment, place, value))
        net.train(3)
        caught = len(net.sdc.found) > before
        delay = net.sdc.found[-1].step - injected_at if caught else -1
        told = "not caught" if not caught else "later" if delay > 1 else ("at once", "at the next step")[delay]
        results[f"{label} {told}"] += 1
        if not caught:
            lost.append(f"{label} {value:g}")
        net.sdc._transients.clear()  # type: ignore[union-attr]  # each trial is a training of its own
        net.sdc._is_stopping = False  # type: ignore[union-attr]
        if saved is not None:
            _restore(net, saved)
    steps, digest = net.guard.count, net.sdc._state.digest(gradients=False)  # type: ignore[union-attr]
    net.guard.close()
    same = None
    if not below:
        twin = Net(name, on=False)
        twin.train(steps)
        same = TorchState(twin.model, twin.optimizer).digest(gradients=False) == digest
        twin.guard.close()
    return {"results": results, "lost": lost, "same": same, "steps": steps}


def _copy(net: Net) -> Any:
    """Copy the state, and the bounds: what was not found must not widen those of the next trial."""
    return net.sdc._state.capture(None), copy.deepcopy(net.sdc._bounds)  # type: ignore[union-attr]


def _restore(net: Net, saved: Any) -> None:
    net.sdc._state.restore(saved[0])  # type: ignore[union-attr]
    net.sdc._bounds = saved[1]  # type: ignore[union-attr]


def cost(samples: int) -> dict[str, Any]:
    """Time steps with and without the watch, in turn."""
    found: dict[str, Any] = {}
    for label, name, width, size in (
        ("mlp", "mlp", 0, 8), ("cnn", "cnn", 0, 8), ("transformer", "transformer", 0, 8),
        ("larger transformer, 128 tokens", "transformer", 256, 16),
        ("larger transformer, 2,048 tokens", "transformer", 256, 256),
    ):  # fmt: skip
        nets = {}
        for on in (True, False):
            nets[on] = Net(name, on=on, width=width)
            nets[on].guard.close()  # one at a time; the watch goes on
        rounds = 3 if width == 256 else 30
        taken: dict[bool, list[float]] = {True: [], False: []}
        for sample in range(samples + 1):
            for on, net in nets.items():
                began = time.perf_counter()
                for _ in range(rounds):
                    net.sdc.run(net.step, net.batch(size))
                    net.guard.count += 1
                if sample:
                    taken[on].append((time.perf_counter() - began) / rounds)
        parameters = sum(one.numel() for one in nets[True].model.parameters())
        found[label] = {"with": taken[True], "without": taken[False], "parameters": parameters}
    return found


def main() -> None:
    """Do what the command line says."""
    torch.set_num_threads(1)
    what, *rest = sys.argv[1:]
    if what == "cost":
        print(json.dumps(cost(int(rest[0]))))
        return
    name, number = rest[0], int(rest[1])
    with contextlib.suppress(BrokenPipeError):
        found = clean(name, number) if what == "clean" else inject(name, number, below=what == "below")
        print(json.dumps(found))


if __name__ == "__main__":
    main()
