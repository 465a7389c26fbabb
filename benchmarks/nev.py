"""How many trainings show NaN or extreme values (N-EV) after they resume from an altered checkpoint.

Small nets are trained, and saved; `resil inject checkpoint` alters 250 copies of each save, each with another seed, and
each copy trains on. All copies of a net train at once, as one array. `python -m benchmarks.nev PICTURE.svg` draws them.
"""

from __future__ import annotations

import json
import math
import struct
import sys
from collections.abc import Mapping, Sequence
from html import escape
from itertools import pairwise, product
from pathlib import Path
from typing import Any, NamedTuple

from benchmarks.measure import BenchmarkError, Claim, Options, Report
from resilience.inject.checkpoint.alter import ALTERED, choose_places, look, write
from resilience.inject.checkpoint.settings import AlterationSettings

TRAININGS, QUICK_TRAININGS = 250, 25
FLIPS, PRECISIONS = (1, 10, 100, 1000), (16, 32, 64)
NETS = {
    "two hidden layers of 24": (16, 24, 24, 4),
    "one hidden layer of 48": (16, 48, 4),
    "four hidden layers of 16": (16, 16, 16, 16, 16, 4),
}
"""The sizes of the layers: 1,108, 1,012 and 1,156 weights and biases, in 6, 4 and 10 locations."""
BEFORE, AFTER, BATCH, RATE, MOMENTUM = 400, 30, 64, 0.1, 0.9
EXTREME = 1e3
"""Of the magnitude of a weight or a loss. Those of an unaltered training stay below 2."""
Z95 = 1.959964
WIDTH, HEIGHT, LEFT, RIGHT, TOP, BOTTOM = 720, 400, 60, 20, 74, 56


class Cell(NamedTuple):
    """One cell: of `trainings` of a net with `flips` bits of `precision`, `hits` showed NaN or extreme values."""

    net: str
    precision: int
    flips: int
    first_bit: int
    hits: int
    trainings: int


def run(options: Options) -> Report:
    """Fill both tables: any bit but the sign, and any but the sign and the highest of the exponent."""
    cells = measure(options.scratch, QUICK_TRAININGS if options.quick else TRAININGS)
    spared = [one for one in cells if one.first_bit == 2]
    worst = max(one.hits for one in spared)
    claims = (Claim("trainings with NaN or extreme values, the exponent's highest bit spared", worst, 0, "of a cell"),)
    return Report("share of trainings with NaN or extreme values", (), tuple(lines(cells)), claims)


# ---- training -------------------------------------------------------------------------------------------------------


def measure(scratch: Path, trainings: int) -> list[Cell]:
    """Train, save, alter, train on. Raise BenchmarkError if numpy is missing, or the net learns nothing."""
    try:
        import numpy
    except ModuleNotFoundError:
        raise BenchmarkError("nev needs numpy") from None
    cells: list[Cell] = []
    for (name, sizes), precision in product(NETS.items(), PRECISIONS):
        net = Net(numpy, numpy.dtype(f"f{precision // 8}"), sizes)
        start = net.fresh()
        first = net.train(start, BEFORE, 0)
        if not first[-1].max() < 0.5 * first[0].max() or net.extreme(start).any():
            raise BenchmarkError(f"{name}, {precision} bits, learns nothing: loss {first[0]} to {first[-1]}")
        if net.resumed([{key: value[0] for key, value in start.items()}]):
            raise BenchmarkError(f"{name}, {precision} bits, is extreme without an alteration")
        path = scratch / f"{precision}.safetensors"
        path.write_bytes(saved({key: value[0] for key, value in start.items()}, precision))
        for first_bit in (1, 2):
            for flips in FLIPS:
                seed = 1000 * len(cells)  # no two cells share random numbers
                copies = [_altered(path, flips, first_bit, seed + number) for number in range(trainings)]
                hits = net.resumed([loaded(numpy, copy) for copy in copies])
                cells.append(Cell(name, precision, flips, first_bit, int(hits), trainings))
    return cells


def _altered(path: Path, flips: int, first_bit: int, seed: int) -> bytes:
    """Alter a copy with the code of `resil inject checkpoint`, and return its bytes."""
    settings = AlterationSettings(attempts=flips, first_bit=first_bit, locations=("model",))
    places = choose_places(path, path.with_name("copy.safetensors"), None, in_place=False, word=ALTERED)
    write(places, look(places.source, settings, seed, None, []), settings)
    try:
        return places.output.read_bytes()
    finally:
        places.output.unlink()


def saved(arrays: Mapping[str, Any], precision: int) -> bytes:
    """Return arrays as a file of safetensors."""
    header, data = {}, b""
    for name, value in arrays.items():
        raw = value.tobytes()
        offsets = [len(data), len(data) + len(raw)]
        header[name] = {"dtype": f"F{precision}", "shape": list(value.shape), "data_offsets": offsets}
        data += raw
    text = json.dumps(header).encode()
    return struct.pack("<Q", len(text)) + text + data


def loaded(numpy: Any, content: bytes) -> dict[str, Any]:
    """Return the arrays of a file of safetensors."""
    (length,) = struct.unpack("<Q", content[:8])
    found = {}
    for name, one in json.loads(content[8 : 8 + length]).items():
        begin, end = (8 + length + offset for offset in one["data_offsets"])
        found[name] = numpy.frombuffer(content[begin:end], f"f{one['dtype'][1:]}".replace("16", "2").replace("32", "4")
                                       .replace("64", "8")).reshape(one["shape"])  # fmt: skip
    return found


class Net:
    """Many nets of hidden layers (tanh) that learn four classes by SGD with momentum, each step at once.

    Half precision is that of accelerators: products add up in single precision, and every result is rounded.
    """

    def __init__(self, numpy: Any, dtype: Any, sizes: Sequence[int]) -> None:
        self.np, self.dtype, self.sizes = numpy, dtype, sizes
        self.wide = numpy.dtype("f4") if dtype.itemsize == 2 else dtype
        random = numpy.random.default_rng(1)
        centres = random.normal(0, 1, (self.sizes[-1], self.sizes[0]))
        self.labels = random.integers(0, self.sizes[-1], 4096)
        self.inputs = (centres[self.labels] + random.normal(0, 1.2, (4096, self.sizes[0]))).astype(dtype)

    def fresh(self) -> dict[str, Any]:
        """Return one net with random weights, and its momentum."""
        random = self.np.random.default_rng(2)
        arrays = {}
        for number, (inputs, outputs) in enumerate(pairwise(self.sizes)):
            arrays[f"model.{number}.weight"] = random.normal(0, inputs**-0.5, (1, inputs, outputs))
            arrays[f"model.{number}.bias"] = random.normal(0, 0.05, (1, 1, outputs))
        arrays |= {name.replace("model", "momentum"): 0 * value for name, value in arrays.items()}
        return {name: value.astype(self.dtype) for name, value in arrays.items()}

    def train(self, arrays: dict[str, Any], steps: int, begin: int, seen: Any = None) -> list[Any]:
        """Train all nets in place; return the losses of each step. `seen` collects which were ever extreme."""
        np, losses = self.np, []
        layers = range(len(self.sizes) - 1)
        with np.errstate(all="ignore"):
            for step in range(begin, begin + steps):
                rows = np.random.default_rng(step).integers(0, len(self.inputs), BATCH)
                activations = [self.inputs[rows][None]]
                for number in layers:
                    z = self._times(activations[-1], arrays[f"model.{number}.weight"]) + arrays[f"model.{number}.bias"]
                    activations.append(np.tanh(z).astype(self.dtype) if number < layers[-1] else z.astype(self.dtype))
                logits = activations[-1].astype(self.wide)
                shifted = logits - logits.max(-1, keepdims=True)
                shares = np.exp(shifted) / np.exp(shifted).sum(-1, keepdims=True)
                truth = np.eye(self.sizes[-1], dtype=self.wide)[self.labels[rows]]
                losses.append(-(np.log((shares * truth).sum(-1) + 1e-30)).mean(-1))
                gradient = ((shares - truth) / BATCH).astype(self.dtype)
                for number in reversed(layers):
                    weight = arrays[f"model.{number}.weight"]
                    below = activations[number]
                    slopes = {"weight": self._times(below.swapaxes(-1, -2), gradient),
                              "bias": gradient.sum(-2, keepdims=True)}  # fmt: skip
                    if number:
                        back = self._times(gradient, weight.swapaxes(-1, -2))
                        gradient = (back * (1 - below.astype(self.wide) ** 2)).astype(self.dtype)
                    for name, slope in slopes.items():
                        momentum = arrays[f"momentum.{number}.{name}"]
                        momentum[...] = (MOMENTUM * momentum + slope).astype(self.dtype)
                        arrays[f"model.{number}.{name}"][...] -= (RATE * momentum).astype(self.dtype)
                if seen is not None:
                    seen |= self.extreme(arrays) | ~(np.abs(losses[-1]) <= EXTREME)
        return losses

    def _times(self, one: Any, other: Any) -> Any:
        return (one.astype(self.wide) @ other.astype(self.wide)).astype(self.dtype)

    def extreme(self, arrays: Mapping[str, Any]) -> Any:
        """Return of each net whether a weight is not finite, or extreme."""
        found = False
        for name, value in arrays.items():
            if name.startswith("model"):
                found |= ~(self.np.abs(value) <= EXTREME).all(axis=(1, 2))
        return found

    def resumed(self, copies: Sequence[Mapping[str, Any]]) -> int:
        """Train on from each copy, and return how many showed NaN or extreme values."""
        arrays = {name: self.np.stack([copy[name] for copy in copies]) for name in copies[0]}
        seen = self.np.zeros(len(copies), bool)
        self.train(arrays, AFTER, BEFORE, seen)
        return int(seen.sum())


# ---- what was found -------------------------------------------------------------------------------------------------


def wilson(hits: int, count: int) -> tuple[float, float]:
    """Return the 95 % interval of a share, by Wilson's score."""
    share, z2 = hits / count, Z95**2
    middle = (share + z2 / (2 * count)) / (1 + z2 / count)
    half = Z95 * math.sqrt(share * (1 - share) / count + z2 / (4 * count**2)) / (1 + z2 / count)
    return max(0.0, middle - half), min(1.0, middle + half)


def fitted(cells: Sequence[Cell]) -> float:
    """Return the p of 1-(1-p)^n that is the likeliest for the cells of one precision; 0 without any hit."""
    if not any(one.hits for one in cells):
        return 0.0

    def loss(log_p: float) -> float:
        p, total = math.exp(log_p), 0.0
        for one in cells:
            share = -math.expm1(one.flips * math.log1p(-p))
            total -= one.hits * math.log(max(share, 1e-300)) + (one.trainings - one.hits) * one.flips * math.log1p(-p)
        return total

    low, high = math.log(1e-7), math.log(0.9)
    for _ in range(200):
        left, right = low + (high - low) / 3, high - (high - low) / 3
        low, high = (low, right) if loss(left) < loss(right) else (left, high)
    return math.exp((low + high) / 2)


_BITS = ((1, "any bit but the sign"), (2, "the exponent's highest bit spared, too"))


def lines(cells: Sequence[Cell]) -> list[str]:
    """Return what was found as sentences, for the report of `python -m benchmarks`."""
    found = []
    for net, (first_bit, name), precision in product(NETS, _BITS, PRECISIONS):
        row = [one for one in cells if (one.net, one.precision, one.first_bit) == (net, precision, first_bit)]
        shown = "; ".join(f"{one.flips:,} flips {_share(one)}" for one in row)
        p = fitted(row)
        curve = ", ".join(f"{-math.expm1(one.flips * math.log1p(-p)):.1%}" for one in row)
        found.append(f"{net}, {name}, {precision} bits: {shown}; fitted p = {p:.4f}, which gives {curve}")
    return found


def _share(one: Cell) -> str:
    low, high = wilson(one.hits, one.trainings)
    return f"{one.hits / one.trainings:.1%} ({low:.1%}-{high:.1%})"


def render(cells: Sequence[Cell]) -> str:
    """Return the tables as SVG: for each net shares with intervals and the fitted curves, each number as text, too."""
    title = "Trainings with NaN or extreme values after resuming from an altered checkpoint"
    whole = len(NETS) * HEIGHT
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{WIDTH}" height="{whole}" viewBox="0 0 {WIDTH} {whole}" '
        'font-family="sans-serif" font-size="12" role="img">',
        f"<title>{escape(title)}</title><desc>{escape('. '.join(lines(cells)))}</desc>",
        f'<rect width="{WIDTH}" height="{whole}" rx="6" fill="#ffffff"/>',
    ]
    for number, net in enumerate(NETS):
        parts += [f'<g transform="translate(0 {number * HEIGHT})">', *_panel(net, cells), "</g>"]
    return "\n".join([*parts, "</svg>", ""])


def _panel(net: str, cells: Sequence[Cell]) -> list[str]:
    colours = {16: "#b35900", 32: "#1565c0", 64: "#2e7d32"}
    width, height = WIDTH - LEFT - RIGHT, HEIGHT - TOP - BOTTOM

    def x(flips: float) -> float:
        return LEFT + math.log10(flips) / 3 * width

    def y(share: float) -> float:
        return TOP + (1 - share) * height

    parts = [
        f'<text x="14" y="24" font-size="15" font-weight="bold">NaN or extreme values after flipped bits: {net}</text>',
        '<text x="14" y="44" fill="#59636e">dots: share of 250 trainings, 95 % by Wilson; curves: 1-(1-p)^n; '
        "rings: the exponent's highest bit spared</text>",
    ]
    for number in range(5):
        share = number / 4
        parts.append(
            f'<line stroke="#d1d9e0" x1="{LEFT}" y1="{y(share):.1f}" x2="{WIDTH - RIGHT}" y2="{y(share):.1f}"/>'
            f'<text fill="#59636e" x="{LEFT - 16}" y="{y(share) + 4:.1f}" text-anchor="end">{share:.0%}</text>'
        )
    parts += [f'<text x="{x(n):.1f}" y="{HEIGHT - 32}" text-anchor="middle">{n:,}</text>' for n in FLIPS]
    parts.append(f'<text x="{LEFT + width / 2}" y="{HEIGHT - 10}" text-anchor="middle">flipped bits</text>')
    for place, precision in enumerate(PRECISIONS):
        colour, shift = colours[precision], 7 * (place - 1)
        mine = [one for one in cells if (one.net, one.precision) == (net, precision)]
        p = fitted([one for one in mine if one.first_bit == 1])
        steps = [10 ** (3 * i / 60) for i in range(61)]
        points = " ".join(f"{x(n):.1f},{y(-math.expm1(n * math.log1p(-p))):.1f}" for n in steps)
        parts.append(f'<polyline fill="none" stroke="{colour}" stroke-width="1.5" points="{points}"/>')
        parts.append(f'<text x="{WIDTH - 150}" y="{TOP + 150 + 18 * place}" fill="{colour}">'
                     f"{precision} bits, p = {p:.4f}</text>")  # fmt: skip
        for one in mine:
            low, high = wilson(one.hits, one.trainings)
            at, style = (
                x(one.flips) + shift,
                f'fill="{colour}"' if one.first_bit == 1 else f'fill="none" stroke="{colour}"',
            )
            parts.append(f'<line stroke="{colour}" x1="{at:.1f}" x2="{at:.1f}" y1="{y(low):.1f}" y2="{y(high):.1f}"/>')
            parts.append(f'<circle cx="{at:.1f}" cy="{y(one.hits / one.trainings):.1f}" r="3.5" {style}>'
                         f"<title>{precision} bits, {one.flips:,} flips: {_share(one)}</title></circle>")  # fmt: skip
    return parts


if __name__ == "__main__":
    import tempfile

    with tempfile.TemporaryDirectory() as scratch:
        measured = measure(Path(scratch), TRAININGS)
    print("\n".join(lines(measured)))
    Path(sys.argv[1]).write_text(render(measured))
