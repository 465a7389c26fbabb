"""The arrays of a PyTorch training for the guard's watch for silent data corruption: `guard.sdc(TorchState(...))`.

See docs/how-to/guard-against-silent-corruption.md.
"""

from __future__ import annotations

import copy
import hashlib
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

import torch

PLAUSIBLE = 1e6
"""A buffer with larger values before any step is a constant, such as a mask of infinities, and has no bounds."""


class Captured(NamedTuple):
    """A copy of the state before a step, in the memory of the host.

    Attributes:
        tensors: of parameters, buffers and the optimizer, by what they are of.
        rest: what else is in the optimizer's state of each parameter, such as a count of steps that is a number.
        groups: the optimizer's groups without their parameters: learning rates.
        also: the states of the other objects.
        trained: of each parameter of the model, whether it has a gradient.
        gradients: of each parameter of the optimizer, if no update has come since the copy before: they accumulate.
        generators: of torch: of the CPU, and of each CUDA device in use.
    """

    tensors: dict[tuple[str, int, str], torch.Tensor]
    rest: list[dict[str, Any]]
    groups: list[dict[str, Any]]
    also: list[Any]
    trained: list[bool]
    gradients: list[torch.Tensor | None]
    generators: tuple[torch.Tensor, list[torch.Tensor]]


class TorchState:
    """A model, its optimizer, and what else changes in a step.

        sdc = guard.sdc(TorchState(model, optimizer, also=[scheduler, scaler]))

    Watched are parameters, gradients, optimizer moments and floating-point buffers, such as the running variances of
    BatchNorm: this rank's own shards. They are checked in a hook that runs before `optimizer.step()`. On a CUDA device
    this waits once for the device.
    """

    def __init__(self, model: torch.nn.Module, optimizer: torch.optim.Optimizer, *, also: Sequence[Any] = ()) -> None:
        """`also`: what else the step function changes: objects with `state_dict` and `load_state_dict`, such as a
        learning rate scheduler or a GradScaler, and `torch.Generator`s."""
        self._model, self._optimizer, self._also = model, optimizer, tuple(also)
        self._zeros: dict[torch.device, torch.Tensor] = {}
        self._parameters: list[torch.nn.Parameter] = []
        self._parameter_names: list[str] = []
        self._more: list[tuple[str, torch.nn.Parameter]] = []  # of the optimizer alone
        self._has_updated = True  # since the last copy
        self._buffers: dict[str, bool] = {}  # whether it has bounds: not a mask of infinities
        self._find_parameters()

    # ---- the guard's protocol ---------------------------------------------------------------------------------

    def attach(self, check: Callable[[], None]) -> None:
        """See `State` in resilience/guard/sdc/watch.py."""

        def hook(*_: object) -> None:
            self._has_updated = True
            check()

        self._optimizer.register_step_pre_hook(hook)

    def layout(self) -> object:
        """Return which parameters there are, and which are trained."""
        groups = [tuple(map(id, group["params"])) for group in self._optimizer.param_groups]
        return groups, [one.requires_grad for one in self._model.parameters()]

    @torch.no_grad()
    def largest(self, *, gradients: bool) -> tuple[Sequence[str], Sequence[float]]:
        """Return the names of all watched tensors and their largest absolute values."""
        self._find_parameters()
        names: list[str] = []
        tensors: list[torch.Tensor] = []
        for name, tensor in self._watched(gradients=gradients):
            if tensor.numel():
                names.append(name)
                tensors.append(tensor)
        return names, _largest(tensors)

    @torch.no_grad()
    def capture(self, old: Any) -> Captured:
        """Return a copy of the state."""
        self._find_parameters()
        self._find_buffers()
        tensors = dict(self._state())
        kept: dict[tuple[str, int, str], torch.Tensor] = old.tensors if isinstance(old, Captured) else {}
        targets, sources, copies = [], [], {}
        for key, tensor in tensors.items():
            buffer = kept.get(key)
            if buffer is None or buffer.shape != tensor.shape or buffer.dtype != tensor.dtype:
                # Pinned memory, so that the copies overlap, and only one of them waits for the device.
                pinned = tensor.device.type == "cuda"
                buffer = torch.empty(tensor.shape, dtype=tensor.dtype, device="cpu", pin_memory=pinned)
            copies[key] = buffer
            targets.append(buffer)
            sources.append(tensor)
        torch._foreach_copy_(targets, sources, non_blocking=True)
        if any(tensor.device.type != "cpu" for tensor in sources):
            torch.cuda.synchronize()
        state, kept_gradients = self._optimizer.state, not self._has_updated
        self._has_updated = False
        return Captured(
            copies,
            [copy.deepcopy({k: v for k, v in state.get(p, {}).items() if not _is_tensor(v)}) for p in self._parameters],
            [copy.deepcopy({k: v for k, v in g.items() if k != "params"}) for g in self._optimizer.param_groups],
            [_state_of(one) for one in self._also],
            [one.requires_grad for one in self._model.parameters()],
            [p.grad.clone() if kept_gradients and p.grad is not None else None for p in self._parameters],
            (torch.get_rng_state(), torch.cuda.get_rng_state_all() if torch.cuda.is_initialized() else []),
        )

    @torch.no_grad()
    def restore(self, captured: Captured) -> None:
        """Set the state and the gradients, and remove what the step has added to the optimizer: it adds it anew."""
        for added in self._optimizer.param_groups[len(captured.groups) :]:
            for parameter in added["params"]:
                self._optimizer.state.pop(parameter, None)
        del self._optimizer.param_groups[len(captured.groups) :]
        self._find_parameters()
        now = dict(self._state())
        for key, saved in captured.tensors.items():
            place, number, name = key
            tensor = now.get(key)
            if tensor is not None and tensor.shape == saved.shape and tensor.dtype == saved.dtype:
                tensor.copy_(saved)
            elif place == "optimizer":
                parameter = self._parameters[number]
                self._optimizer.state[parameter][name] = saved.to(parameter.device, copy=True)
        for number, (parameter, rest) in enumerate(zip(self._parameters, captured.rest, strict=True)):
            state = self._optimizer.state.get(parameter)
            if state is None:
                continue
            for name in [one for one in state if ("optimizer", number, one) not in captured.tensors]:
                del state[name]
            state.update(copy.deepcopy(rest))
            if not state:  # the optimizer makes its state in its first step
                del self._optimizer.state[parameter]
        for group, saved_group in zip(self._optimizer.param_groups, captured.groups, strict=True):
            group.update(copy.deepcopy(saved_group))
        for one, saved_state in zip(self._also, captured.also, strict=True):
            if isinstance(one, torch.Generator):
                one.set_state(saved_state)
                continue
            one.load_state_dict(copy.deepcopy(saved_state))
            unfinished = getattr(one, "_per_optimizer_states", None)  # of a GradScaler: gradients it has unscaled
            if unfinished is not None:
                unfinished.clear()
        for parameter, is_trained in zip(self._model.parameters(), captured.trained, strict=True):
            parameter.requires_grad_(is_trained)
            parameter.grad = None
        for parameter, gradient in zip(self._parameters, captured.gradients, strict=True):
            parameter.grad = None if gradient is None else gradient.clone()
        self._has_updated = False
        torch.set_rng_state(captured.generators[0])
        if captured.generators[1]:
            torch.cuda.set_rng_state_all(captured.generators[1])

    @torch.no_grad()
    def digest(self, *, gradients: bool) -> str:
        """Return a digest of parameters and optimizer state, and with `gradients` of gradients and buffers as well.

        Of each tensor the sum of its bits, as integers: the order of a sum of integers does not matter, so it is
        computed where the tensor is, and equal on every device. One flipped bit always changes it.
        """
        found = [tensor for (place, _, _), tensor in self._state() if gradients or place != "buffer"]
        if gradients:
            found += [_dense(one.grad) for one in self._parameters if one.grad is not None]
        sums = _bit_sums([tensor for tensor in found if tensor.numel()])
        return hashlib.blake2b(repr(sums).encode(), digest_size=8).hexdigest()

    # ---- tensors ----------------------------------------------------------------------------------------------

    def _watched(self, *, gradients: bool) -> Iterator[tuple[str, torch.Tensor]]:
        """Yield the tensors with bounds. A gradient that is missing in this step counts as zero, so that the list stays
        the same, and so do those that are infinite and are skipped by a GradScaler: no fault."""
        is_skipped = not gradients or self._is_skipped()
        scale = getattr(self._optimizer, "grad_scale", None)  # a fused optimizer divides by it in its update
        for name, parameter in zip(self._parameter_names, self._parameters, strict=True):
            gradient = None if parameter.grad is None or is_skipped else _dense(parameter.grad)
            if gradient is None or not gradient.numel():
                gradient = self._zero(parameter.device)
            yield f"the gradient of {name}", gradient if scale is None else gradient / scale
            if _has_bounds(parameter):
                yield f"the parameter {name}", _local(parameter.data)
            for kind, value in self._optimizer.state.get(parameter, {}).items():
                if kind != "step" and _is_tensor(value) and _has_bounds(value):
                    yield f"{kind} of {name}", _local(value)
        for name, buffer in self._model.named_buffers():
            if self._buffers.get(name):
                yield f"the buffer {name}", _local(buffer)

    def _is_skipped(self) -> bool:
        """Return whether a GradScaler has found infinite gradients: it will skip this update."""
        for one in self._also:
            of_mine = getattr(one, "_per_optimizer_states", {}).get(id(self._optimizer), {})
            if any(float(found) for found in of_mine.get("found_inf_per_device", {}).values()):
                return True
        return False

    def _find_parameters(self) -> None:
        """Find the parameters of the optimizer: a training may add some later."""
        parameters = [one for group in self._optimizer.param_groups for one in group["params"]]
        if list(map(id, parameters)) == list(map(id, self._parameters)):
            return
        named = {id(parameter): name for name, parameter in self._model.named_parameters()}
        self._parameters = parameters
        self._parameter_names = [named.get(id(one), f"parameter {number}") for number, one in enumerate(parameters)]
        self._more = [one for one in zip(self._parameter_names, parameters, strict=True) if id(one[1]) not in named]

    def _find_buffers(self) -> None:
        """Find out which buffers have bounds: those with plausible values when first seen, before a step."""
        for name, buffer in self._model.named_buffers():
            if name not in self._buffers:
                has = _has_bounds(buffer) and bool(buffer.numel()) and not buffer.is_meta
                self._buffers[name] = has and bool(_largest([_local(buffer)])[0] <= PLAUSIBLE)

    def _zero(self, device: torch.device) -> torch.Tensor:
        return self._zeros.setdefault(device, torch.zeros(1, device=device))

    def _state(self) -> Iterator[tuple[tuple[str, int, str], torch.Tensor]]:
        """Yield all tensors that a step changes, in an order that is the same on every rank."""
        for name, parameter in (*self._model.named_parameters(), *self._more):
            yield ("parameter", 0, name), _local(parameter.data)
        for number, parameter in enumerate(self._parameters):
            for kind, value in self._optimizer.state.get(parameter, {}).items():
                if _is_tensor(value):
                    yield ("optimizer", number, kind), _local(value)
        for name, buffer in self._model.named_buffers():
            yield ("buffer", 0, name), _local(buffer)


def _state_of(one: Any) -> Any:
    return one.get_state() if isinstance(one, torch.Generator) else copy.deepcopy(one.state_dict())


def _is_tensor(value: object) -> bool:
    return isinstance(value, torch.Tensor)


def _has_bounds(tensor: torch.Tensor) -> bool:
    return bool(tensor.is_floating_point() or tensor.is_complex())


def _dense(gradient: torch.Tensor) -> torch.Tensor:
    """Return the values of a gradient: those that a sparse one has."""
    return gradient._values() if gradient.is_sparse else _local(gradient)


def _local(tensor: torch.Tensor) -> torch.Tensor:
    """Return this rank's shard of a DTensor, or the tensor itself."""
    to_local = getattr(tensor, "to_local", None)
    return to_local() if to_local is not None else tensor


def _largest(tensors: Sequence[torch.Tensor]) -> list[float]:
    """Return the largest absolute value of each tensor, NaN if it has one; waits once for each device."""
    found: list[torch.Tensor] = []
    for tensor in tensors:
        if tensor.is_complex():
            tensor = torch.view_as_real(tensor.resolve_conj())
        elif tensor.element_size() == 1:  # of 8 bits
            tensor = tensor.to(torch.float32)
        least, most = torch.aminmax(tensor.detach())  # both are NaN if there is one; one pass, no copy
        found.append(torch.maximum(least.abs(), most.abs()).to(torch.float32))
    return _on_host(found, torch.float32)


def _bit_sums(tensors: Sequence[torch.Tensor]) -> list[int]:
    """Return the sum of the bits of each tensor, as integers of its width, modulo 2^64."""
    kinds = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}
    sums = []
    for tensor in tensors:
        whole = tensor.detach().contiguous().reshape(-1)
        if whole.is_complex():
            whole = torch.view_as_real(whole.resolve_conj()).reshape(-1)
        sums.append(whole.view(kinds[whole.element_size()]).sum(dtype=torch.int64))
    return _on_host(sums, torch.int64)


def _on_host(found: Sequence[torch.Tensor], kind: torch.dtype) -> list[Any]:
    """Return scalars as numbers, with one copy from each device."""
    by_device: dict[torch.device, list[int]] = {}
    for number, one in enumerate(found):
        by_device.setdefault(one.device, []).append(number)
    numbers: list[Any] = [None] * len(found)
    for mine in by_device.values():
        values = torch.stack([found[number].to(kind) for number in mine]).tolist()
        for number, value in zip(mine, values, strict=True):
            numbers[number] = value
    return numbers
