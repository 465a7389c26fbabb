"""Times one check of a transformer's state and one of its training steps; prints every sample as JSON.

`python _state_check.py SIZE SAMPLES`, SIZE is small or full.
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable

import torch

from resilience.integrations.torch import StateCheck


def main() -> None:
    """Take the samples in turn and print them."""
    width, layers, tokens = (128, 2, 256) if sys.argv[1] == "small" else (512, 4, 1024)
    torch.set_num_threads(1)
    torch.manual_seed(0)
    layer = torch.nn.TransformerEncoderLayer(width, 8, 4 * width, batch_first=True, norm_first=True)
    model = torch.nn.TransformerEncoder(layer, layers, enable_nested_tensor=False)
    optimizer = torch.optim.AdamW(model.parameters())
    check = StateCheck(model, optimizer, every=1)
    batch = torch.randn(tokens // 128, 128, width)

    def step() -> None:
        optimizer.zero_grad()
        model(batch).square().mean().backward()
        optimizer.step()

    def finite() -> None:
        for _, tensor in check._tensors():
            assert torch.isfinite(tensor).all()

    step()
    for number in range(12):  # the window is full from here on
        check(number + 1)
    calls: dict[str, Callable[[], None]] = {"step": step, "check": lambda: check(1), "isfinite": finite}
    taken: dict[str, list[float]] = {name: [] for name in calls}
    for _ in range(int(sys.argv[2])):
        for name, call in calls.items():
            began = time.perf_counter()
            call()
            taken[name].append(time.perf_counter() - began)
    assert check.poll() is None
    parameters = sum(one.numel() for one in model.parameters())
    tensors = sum(1 for _ in check._tensors())
    print(json.dumps({**taken, "parameters": parameters, "tensors": tensors, "tokens": tokens}))


if __name__ == "__main__":
    main()
