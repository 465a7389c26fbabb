"""For PyTorch loops: read the loss for the guard without waiting for the device.

Nothing else is needed: the guard agrees among the ranks by itself, with or without a process group. The recipe is
docs/how-to/guard-in-pytorch.md.
"""

from __future__ import annotations

import torch


class LossTap:
    """Turns a loss on a device into a number some steps late, so that nobody waits: `guard.step(loss=tap(loss))`.

    `loss.item()` waits until the device has done everything that was asked of it, which costs a training its
    run-ahead. The tap copies the loss into pinned memory in the stream's own order, and reads it once the copy has
    arrived, commonly at the next step. A loss that comes while a copy is still on its way is passed over.
    """

    def __init__(self) -> None:
        self._pinned: torch.Tensor | None = None
        self._arrived: torch.cuda.Event | None = None
        self._on_its_way = False

    def __call__(self, loss: torch.Tensor | float) -> float | None:
        """Given the loss of this step, return the newest one that has arrived, or None while there is no new one.

        A number, or a tensor of the CPU, is returned at once. Raise ValueError if the tensor has several elements.
        """
        if not isinstance(loss, torch.Tensor):
            return float(loss)
        if loss.numel() != 1:
            raise ValueError(f"a loss is one number; this tensor has {loss.numel()}: reduce it first, loss.mean()")
        loss = loss.detach()
        if loss.device.type != "cuda":  # other devices have no event that could be asked without waiting
            return float(loss.item()) if loss.device.type == "cpu" else None
        value = self._take()
        if not self._on_its_way:
            self._send(loss)
        return value

    def _take(self) -> float | None:
        if not self._on_its_way or self._pinned is None or self._arrived is None or not self._arrived.query():
            return None
        self._on_its_way = False
        return float(self._pinned.item())

    def _send(self, loss: torch.Tensor) -> None:
        if self._pinned is None or self._arrived is None:
            self._pinned = torch.empty((), dtype=torch.float32, pin_memory=True)
            self._arrived = torch.cuda.Event()
        self._pinned.copy_(loss.reshape(()), non_blocking=True)
        self._arrived.record(torch.cuda.current_stream(loss.device))
        self._on_its_way = True
