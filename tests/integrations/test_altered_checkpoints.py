"""Altered checkpoints load in the frameworks that saved them, with exactly the recorded bits."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from resilience.inject.checkpoint.number_types import TYPES, decode, encode, is_finite
from tests.inject.checkpoint.test_alter import altered
from tests.integrations.launched import needs

pytestmark = needs("torch")
VIEWS = {1: "uint8", 2: "int16", 4: "int32", 8: "int64"}


def state() -> dict[str, Any]:
    import torch

    torch.manual_seed(1)
    return {
        "model": {
            "w": torch.randn(4, 3, 2, 2, 2), "columns": torch.randn(3, 5).t(), "part": torch.randn(10)[2:7],
            "half": torch.randn(6).half(), "brain": torch.randn(6).bfloat16(), "double": torch.randn(3).double(),
            "e4": torch.randn(6).to(torch.float8_e4m3fn), "e4u": torch.randn(6).to(torch.float8_e4m3fnuz),
            "e8": torch.rand(6).to(torch.float8_e8m0fnu), "e5": torch.randn(6).to(torch.float8_e5m2),
            "ids": torch.arange(5), "mask": torch.tensor([True, False]), "one": torch.tensor(0.5),
        },
    }  # fmt: skip


def save_torch(path: Path) -> Callable[[Path], Any]:
    import torch

    more = {"c": torch.randn(3, dtype=torch.complex64), "p": torch.nn.Parameter(torch.ones(3))}
    torch.save(state() | more, path)
    return lambda other: torch.load(other, weights_only=True)


def save_dcp(path: Path) -> Callable[[Path], Any]:
    import torch
    import torch.distributed.checkpoint as dcp

    dcp.save(state(), checkpoint_id=path)

    def load(other: Path) -> Any:
        empty = {"model": {name: torch.zeros_like(value) for name, value in state()["model"].items()}}
        dcp.load(empty, checkpoint_id=other)
        return empty

    return load


def save_safetensors(path: Path) -> Callable[[Path], Any]:
    torch_files = pytest.importorskip("safetensors.torch", reason="needs safetensors")
    torch_files.save_file({name: value.contiguous() for name, value in state()["model"].items()}, path)
    load: Callable[[Path], Any] = torch_files.load_file
    return load


def numbers(value: Any, name: str = "") -> Iterator[tuple[tuple[str, ...], Any]]:
    """Each tensor with the components of its name, as integers of its width."""
    import torch

    if isinstance(value, dict):
        for key, inner in value.items():
            yield from numbers(inner, f"{name}/{key}")
    else:
        value = torch.view_as_real(value) if value.is_complex() else value.detach()
        yield tuple(name.strip("/").split("/")), value.contiguous().view(getattr(torch, VIEWS[value.element_size()]))


@pytest.mark.filterwarnings("ignore:torch.distributed is disabled:UserWarning")
@pytest.mark.parametrize("save", [save_torch, save_dcp, save_safetensors])
def test_the_framework_loads_the_recorded_bits(tmp_path: Path, save: Callable[[Path], Callable[[Path], Any]]) -> None:
    path = tmp_path / "saved"
    load = save(path)
    before = dict(numbers(load(path)))
    places, record = altered(path, attempts=60, seed=2)
    after = dict(numbers(load(places.output)))
    expected = {name: value.clone() for name, value in before.items()}
    for one in record.alterations:
        value = expected[tuple(one.location.replace("model.", "model/").split("/"))]
        width = 8 * value.element_size()
        assert int(value[one.index]) % 2**width == one.before
        value[one.index] = one.after - 2**width if one.after >> (width - 1) and width > 8 else one.after
    assert all(bool((after[name] == value).all()) for name, value in expected.items())
    assert any(bool((after[name] != value).any()) for name, value in before.items())


@pytest.mark.parametrize("name", ["float8_e4m3fn", "float8_e5m2", "bfloat16", "float16"])
def test_narrow_types_are_converted_as_torch_does(name: str) -> None:
    import torch

    values = torch.cat([torch.randn(500) * scale for scale in (1e-3, 1.0, 80.0, 1e5)])
    if name == "float8_e4m3fn":
        values = values.clamp(-448, 448)  # beyond that, versions of torch differ
    stored = values.to(getattr(torch, name)).view(getattr(torch, VIEWS[TYPES[name].size]))
    width = TYPES[name].width
    for value, bits in zip(values.tolist(), stored.tolist(), strict=True):
        assert encode(value, TYPES[name]) == bits % 2**width
    wide = values.to(getattr(torch, name)).float().tolist()
    decoded = [decode(bits % 2**width, TYPES[name]) for bits in stored.tolist()]
    assert all(one == other or (one != one and other != other) for one, other in zip(decoded, wide, strict=True))


@pytest.mark.parametrize("name", [name for name in TYPES if name.startswith("float8")])
def test_each_number_of_8_bits_is_what_torch_says(name: str) -> None:
    import torch

    wide = torch.arange(256, dtype=torch.uint8).view(getattr(torch, name)).float().tolist()
    assert all(decode(bits, TYPES[name]) == value or value != value for bits, value in enumerate(wide))
    assert [is_finite(bits, TYPES[name]) for bits in range(256)] == [math.isfinite(value) for value in wide]
    for value in (0.0, -0.0, 1.0, 1.5, 3.0, 500.0, 6e4, 1e9, math.inf, -math.inf, 1e-40, 3 * 2.0**-128):
        stored = torch.tensor(value).to(getattr(torch, name)).view(torch.uint8).item()
        assert encode(value, TYPES[name]) == stored
