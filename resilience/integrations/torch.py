"""For PyTorch loops: reads the loss without waiting for the device, and checks gradients and optimizer moments.

Nothing else is needed: the guard's agreement works with and without a process group. See
docs/how-to/guard-in-pytorch.md.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator

import torch

from resilience.guard import Request
from resilience.guard.decision import EXIT_ERROR, BuiltInTrigger


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


class StateCheck(BuiltInTrigger):
    """A trigger that stops the training when gradients, optimizer moments or buffers of this rank are abnormal.

        check = StateCheck(model, optimizer)
        with TrainingGuard.from_env(triggers=[check]) as guard:
            ...
                loss.backward()
                check(guard.count + 1)
                optimizer.step()

    A silent data corruption shows there before it shows in the loss: a moment of 1e9 and more, of either sign, or NaN
    (He et al., ISCA 2023, whose check was one-sided and passed NaN). A tensor is abnormal if its largest absolute value
    is NaN, above `ceiling`, or above `times` its largest one in the last `window` normal checks; values up to 1 are
    always normal. Each rank checks its own shards, without a collective. On a CUDA device the check waits for nothing,
    and its result is read at a later step.
    """

    name = "state"
    look_again_s = 1.0

    def __init__(
        self,
        model: torch.nn.Module,
        optimizer: torch.optim.Optimizer,
        *,
        every: int = 100,
        gradients: bool = True,
        times: float = 100.0,
        ceiling: float = 1e6,
        window: int = 10,
    ) -> None:
        """Check after every `every` steps. Set `gradients=False` with a loss scaler, unless it has unscaled them."""
        self._model, self._optimizer = model, optimizer
        self._every, self._gradients = max(1, every), gradients
        self._times, self._ceiling = times, ceiling
        self._recent: deque[torch.Tensor] = deque(maxlen=max(1, window))
        self._names: tuple[str, ...] = ()
        self._tap = LossTap()
        self._checked: tuple[int, torch.Tensor, torch.Tensor] | None = None  # step, largest values, limits
        self._normal_step = 0
        self._request: Request | None = None
        self._has_found = False  # the first fault is the cause of those that follow

    @torch.no_grad()
    def __call__(self, step: int) -> None:
        """Check the state during step `step`, after the backward pass; only every `every` steps."""
        if self._checked is not None:
            self._read(self._tap._take())
        if step % self._every or self._checked is not None or self._has_found:
            return
        found = [
            (name, tensor)
            for name, tensor in self._tensors()
            if tensor.numel() and not tensor.is_sparse and not tensor.is_meta
        ]
        if not found:
            return
        names = tuple(name for name, _ in found)
        if names != self._names:  # the optimizer has made its state, or parameters are frozen
            self._names = names
            self._recent.clear()
        largest = _largest([tensor for _, tensor in found])
        limits = torch.full_like(largest, self._ceiling)
        if len(self._recent) == self._recent.maxlen:
            limits = (self._times * torch.stack(tuple(self._recent)).amax(0)).clamp(1.0, self._ceiling)
        is_normal = largest <= limits  # false for NaN
        self._recent.append(torch.where(is_normal, largest, torch.zeros_like(largest)))
        self._checked = step, largest, limits
        self._read(self._tap((~is_normal).sum()))

    def poll(self) -> Request | None:
        """Return the request to stop, once. Called by the guard."""
        request, self._request = self._request, None
        return request

    def _tensors(self) -> Iterator[tuple[str, torch.Tensor]]:
        for name, parameter in self._model.named_parameters():
            if self._gradients and parameter.grad is not None:
                yield f"the gradient of {name}", _local(parameter.grad)
            for kind, value in self._optimizer.state.get(parameter, {}).items():
                if kind != "step" and isinstance(value, torch.Tensor) and value.is_floating_point():
                    yield f"{kind} of {name}", _local(value)
        for name, value in self._model.named_buffers():
            if value.is_floating_point():
                yield f"the buffer {name}", _local(value)

    def _read(self, abnormal: float | None) -> None:
        """Handle the number of abnormal tensors of the last check; None if it is not known yet."""
        if abnormal is None or self._checked is None:
            return
        (step, largest, limits), self._checked = self._checked, None
        if not abnormal:
            self._normal_step = step
            return
        self._has_found = True
        values = zip(self._names, largest.tolist(), limits.tolist(), strict=True)
        wrong = [(name, value, limit) for name, value, limit in values if not value <= limit]
        name, value, limit = wrong[0]
        others = f", and {len(wrong) - 1} others" if len(wrong) > 1 else ""
        why = f"{_where()}{name} is abnormal{others}: {value:.3g}, at most {limit:.3g} is normal, at step {step}"
        self._request = Request(
            self.name, why, save=False, discard=True, exit_code=EXIT_ERROR, step=step, since=self._normal_step
        )


def _where() -> str:
    dist = torch.distributed
    return f"rank {dist.get_rank()}: " if dist.is_available() and dist.is_initialized() else ""


def _local(tensor: torch.Tensor) -> torch.Tensor:
    """Return this rank's shard of a DTensor, or the tensor itself."""
    to_local = getattr(tensor, "to_local", None)
    return to_local() if to_local is not None else tensor


def _largest(tensors: list[torch.Tensor]) -> torch.Tensor:
    """Return the largest absolute value of each tensor, NaN if it has one."""
    device = tensors[0].device
    found = []
    for tensor in tensors:
        least, most = torch.aminmax(tensor.detach())  # both are NaN if there is one; one pass, no copy
        found.append(torch.maximum(least.abs(), most.abs()).to(device, torch.float32))
    return torch.stack(found)
