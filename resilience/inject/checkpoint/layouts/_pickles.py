"""Pickles of PyTorch read as plain data: the tensors in them, by name, and where their bytes are.

Every class and function that a pickle names becomes a placeholder of ours, which only keeps its arguments: nothing is
imported and nothing of a framework runs, so a hostile file does no harm, and PyTorch need not be installed.
`torch.load(weights_only=True)` would need it, read each tensor into memory, and not say where its bytes were.
"""

from __future__ import annotations

import io
import pickle
from collections.abc import Iterator
from typing import Any, NamedTuple


class Placeholder:
    """Stands for an object of any class: its arguments, its state and its items, and nothing else."""

    module = name = ""

    def __new__(cls, *arguments: Any, **named: Any) -> Placeholder:
        one = super().__new__(cls)
        one.arguments = arguments
        one.state = None
        one.items = []
        one.pairs = {}
        return one

    def __init__(self, *arguments: Any, **named: Any) -> None:
        self.arguments: tuple[Any, ...]
        self.state: Any
        self.items: list[Any]
        self.pairs: dict[Any, Any]

    def __setstate__(self, state: Any) -> None:
        self.state = state

    def append(self, item: Any) -> None:
        self.items.append(item)

    def extend(self, items: Any) -> None:
        self.items.extend(items)

    def add(self, item: Any) -> None:
        self.items.append(item)

    def __setitem__(self, key: Any, value: Any) -> None:
        self.pairs[key] = value

    def __call__(self, *arguments: Any) -> Placeholder:
        return Placeholder(self, *arguments)

    def get(self, name: str) -> Any:
        """Return an attribute that the pickle set; None without it."""
        state = self.state
        if isinstance(state, tuple) and len(state) == 2:  # of slots
            state = {**(state[0] or {}), **(state[1] or {})}
        return state.get(name) if isinstance(state, dict) else None


class Storage(NamedTuple):
    """The bytes of one or more tensors: type as the class is called, key of the member `data/KEY`."""

    type_name: str
    key: str


class Tensor(NamedTuple):
    """A tensor: its name among others, its storage, and how it lies there; all counted in elements."""

    name: str
    storage: Storage
    type_name: str
    offset: int
    shape: tuple[int, ...]
    strides: tuple[int, ...]


class _Reader(pickle.Unpickler):
    def find_class(self, module: str, name: str) -> Any:
        return type(name.rpartition(".")[2], (Placeholder,), {"module": module, "name": name})

    def persistent_load(self, pid: Any) -> Any:
        if isinstance(pid, tuple) and len(pid) >= 3 and pid[0] == "storage":
            return Storage(getattr(pid[1], "name", str(pid[1])), str(pid[2]))
        return Placeholder(pid)


def read_pickle(text: bytes) -> Any:
    """Return what is in a pickle: dicts, lists, numbers, texts, Storage and Placeholder. Raise ValueError."""
    try:
        return _Reader(io.BytesIO(text)).load()
    except Exception as error:  # pickle raises whatever its bytes bring about
        raise ValueError(f"its pickle cannot be read: {error or type(error).__name__}") from None


def name_of(value: Any) -> str:
    """Return the name of a class or constant of a pickle: `float8_e4m3fn` of `torch.float8_e4m3fn`."""
    return str(getattr(value, "name", "")).rpartition(".")[2]


def tensors(root: Any) -> Iterator[Tensor]:
    """Yield the tensors in what `read_pickle` returned, with names such as `optimizer/state/0/exp_avg`."""
    seen: set[int] = set()
    left: list[tuple[str, Any]] = [("", root)]
    while left:
        name, value = left.pop()
        if isinstance(value, Placeholder) and (found := _tensor(name or "tensor", value)) is not None:
            yield found
            continue
        if id(value) in seen or isinstance(value, str | bytes | int | float | type(None) | Storage):
            continue
        if isinstance(value, dict | list | tuple | Placeholder):
            seen.add(id(value))
            left += [(f"{name}/{key}" if name else key, inner) for key, inner in _inside(value)]


def _inside(value: Any) -> Iterator[tuple[str, Any]]:
    if isinstance(value, dict):
        yield from ((str(key), inner) for key, inner in value.items())
    elif isinstance(value, list | tuple):
        yield from ((str(number), inner) for number, inner in enumerate(value))
    else:
        yield from _inside(value.pairs)
        yield from _inside(value.items)
        if isinstance(value.state, dict | tuple):
            yield from _inside(value.state)
        for number, inner in enumerate(value.arguments):
            if isinstance(inner, dict | list | tuple):  # an OrderedDict that was made of pairs
                yield from _inside(inner)
            elif isinstance(inner, Placeholder):
                yield (str(number) if len(value.arguments) > 1 else "data"), inner


def _tensor(name: str, value: Placeholder) -> Tensor | None:
    """Return the tensor that a placeholder stands for; None if it is none.

    `torch._utils._rebuild_tensor_v2(storage, offset, size, stride, requires_grad, hooks)`; v3 has the type as its
    argument 6, its storage is untyped; `_rebuild_parameter(tensor, requires_grad, hooks)`. PyTorch 2.13.
    """
    function, arguments = value.name, value.arguments
    if function.startswith("_rebuild_parameter") and arguments and isinstance(arguments[0], Placeholder):
        return _tensor(name, arguments[0])
    if (
        not function.startswith(("_rebuild_tensor", "_rebuild_qtensor"))
        or len(arguments) < 4
        or not isinstance(arguments[0], Storage)
    ):
        return None
    storage, offset, shape, strides = arguments[:4]
    shape, strides = sizes(shape), sizes(strides)
    if not isinstance(offset, int) or shape is None or strides is None or len(shape) != len(strides):
        return None
    typed = name_of(arguments[6]) if function.endswith("v3") and len(arguments) > 6 else ""
    return Tensor(name, storage, typed or storage.type_name, offset, shape, strides)


def sizes(value: Any) -> tuple[int, ...] | None:
    """Return a shape; None if it is none. `torch.Size` is a placeholder around a tuple."""
    if isinstance(value, Placeholder):
        value = value.arguments[0] if value.arguments else ()
    is_shape = isinstance(value, tuple | list) and all(isinstance(one, int) and one >= 0 for one in value)
    return tuple(value) if is_shape else None
