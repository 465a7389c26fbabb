"""A training without a framework: two lists of numbers, momentum, and noise from Python's global generator."""

from __future__ import annotations

import hashlib
import json
import random
from collections.abc import Callable, Sequence
from typing import Any


class Arrays:
    """The state that the watch sees. `inject` is called in each step before the check.

    Attributes:
        tensors: by name: weights, their momentum and their gradient.
    """

    def __init__(self) -> None:
        self.tensors = {"weight": [0.1] * 4, "momentum": [0.0] * 4, "gradient": [0.0] * 4}
        self.inject: Callable[[int], None] = lambda step: None
        self.after: Callable[[int], None] = lambda step: None
        self.done: list[int] = []

    def step(self, sdc: Any, batch: Sequence[float]) -> float:
        """One step, which may be done again."""
        weight, momentum = self.tensors["weight"], self.tensors["momentum"]
        self.done.append(sdc.step)
        self.tensors["gradient"] = [w - x + random.gauss(0, 0.1) for w, x in zip(weight, batch, strict=True)]
        self.inject(sdc.step)
        sdc.check()
        for i, gradient in enumerate(self.tensors["gradient"]):
            momentum[i] = 0.9 * momentum[i] + gradient
            weight[i] -= 0.01 * momentum[i]
        self.after(sdc.step)
        return sum(weight)

    # ---- the guard's protocol ----------------------------------------------------------------------------------

    def attach(self, check: Callable[[], None]) -> None:
        """The step calls `check` itself."""

    def largest(self, *, gradients: bool) -> tuple[Sequence[str], Sequence[float]]:
        def most(values: list[float]) -> float:
            return float("nan") if any(value != value for value in values) else max(map(abs, values))

        return tuple(self.tensors), [most(values) for values in self.tensors.values()]

    def layout(self) -> object:
        return tuple(self.tensors)

    def capture(self, old: Any) -> Any:
        return {name: list(values) for name, values in self.tensors.items()}

    def restore(self, captured: Any) -> None:
        self.tensors = {name: list(values) for name, values in captured.items()}

    def digest(self, *, gradients: bool) -> str:
        kept = {name: values for name, values in self.tensors.items() if gradients or name != "gradient"}
        return hashlib.blake2b(json.dumps(kept).encode(), digest_size=8).hexdigest()


def batch_of(step: int) -> list[float]:
    """The data of a step."""
    source = random.Random(step)
    return [source.gauss(1, 1) for _ in range(4)]
