"""For PyTorch loops: reads the loss for the guard without waiting for the device.

Nothing else is needed: the guard's agreement works with and without a process group. See
docs/how-to/guard-in-pytorch.md.
"""

from __future__ import annotations

import torch


class LossTap:
    """Reads a loss on a device some steps late, without waiting for the device: `guard.step(loss=tap(loss))`.

    `loss.item()` waits until the device has finished all queued work, so the host can no longer run ahead. The tap
    queues a copy of the loss into pinned memory on the stream, and reads the copy once it is complete, usually at the
    next step. A loss is skipped while a copy is in progress.
    """

    def __init__(self) -> None:
        self._pinned: torch.Tensor | None = None
        self._arrived: torch.cuda.Event | None = None
        self._is_copying = False

    def __call__(self, loss: torch.Tensor | float) -> float | None:
        """Given the loss of this step, return the newest complete copy, or None if there is no new one.

        A number or a CPU tensor is returned at once. Raise ValueError if the tensor has several elements.
        """
        if not isinstance(loss, torch.Tensor):
            return float(loss)
        if loss.numel() != 1:
            raise ValueError(f"the loss has {loss.numel()} elements; reduce it to one number, such as loss.mean()")
        loss = loss.detach()
        if loss.device.type != "cuda":  # other devices have no event that can be queried without waiting
            return float(loss.item()) if loss.device.type == "cpu" else None
        value = self._take()
        if not self._is_copying:
            self._send(loss)
        return value

    def _take(self) -> float | None:
        if not self._is_copying or self._pinned is None or self._arrived is None or not self._arrived.query():
            return None
        self._is_copying = False
        return float(self._pinned.item())

    def _send(self, loss: torch.Tensor) -> None:
        if self._pinned is None or self._arrived is None:
            self._pinned = torch.empty((), dtype=torch.float32, pin_memory=True)
            self._arrived = torch.cuda.Event()
        self._pinned.copy_(loss.reshape(()), non_blocking=True)
        self._arrived.record(torch.cuda.current_stream(loss.device))
        self._is_copying = True
