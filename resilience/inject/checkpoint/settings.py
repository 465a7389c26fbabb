"""What is altered in a checkpoint, and how: keys of a TOML file, and options of `resil inject checkpoint`. Pure."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Any

from resilience.errors import UsageError
from resilience.messages import suggest

MODES = ("bit-range", "bit-mask", "scaling-factor")
MOST_ATTEMPTS = 1_000_000
"""Each is one read of the file, and one line of the sequence."""


@dataclass(frozen=True, slots=True)
class AlterationSettings:
    """How a checkpoint is altered.

    Attributes:
        attempts: how many times an alteration is tried; with the type `percentage`, in percent of the numbers in the
            chosen locations.
        type: `count` or `percentage`.
        probability: of each attempt to alter a number, from 0 to 1.
        precision: of floats while their bits change: 16, 32 or 64; `auto` is each tensor's own. With another one than
            its own, a number is converted there and back.
        mode: `bit-range`, `bit-mask` or `scaling-factor`; empty: that of the option which is given.
        first_bit, last_bit: the range, both included. Bit 0 is the sign, bit 1 the highest of the exponent. None: all
            bits but a sign.
        burst: different bits of a number that change in one attempt.
        allow_sign_change: add bit 0 to a range that begins later.
        bit_mask: bits that change, such as `101101`; where in the number is random.
        scaling_factor: that a number is multiplied by.
        allow_nan: whether the file may get NaN and infinities.
        locations: names or beginnings of names, in whole components: `conv1` is not `conv10`. None: everywhere.
        random_locations: everywhere.
        weight: `dataset`: each location is as likely as another; `element`: each number.
        integers: `native`: the bits of their own width; `shortest`: one bit of the shortest binary form of the absolute
            value, as the original does.
        seed: of the random numbers; None: a new one.
    """

    attempts: float = 1
    type: str = "count"
    probability: float = 1.0
    precision: str = "auto"
    mode: str = ""
    first_bit: int | None = None
    last_bit: int | None = None
    burst: int = 1
    allow_sign_change: bool = False
    bit_mask: str = ""
    scaling_factor: float | None = None
    allow_nan: bool = False
    locations: tuple[str, ...] = ()
    random_locations: bool = False
    weight: str = "dataset"
    integers: str = "native"
    seed: int | None = None

    def __post_init__(self) -> None:
        for name, words in _WORDS.items():
            if getattr(self, name) not in words:
                raise UsageError(
                    f"{name} = {getattr(self, name)!r} is unknown", hint=suggest(getattr(self, name), words[-3:])
                )
        if not 0 <= self.probability <= 1:  # NaN included
            raise UsageError(
                f"probability = {self.probability:.15g} is no probability",
                hint="a number from 0 to 1: probability = 0.5",
            )
        _check_attempts(self)
        _check_mode(self)
        if self.locations and self.random_locations:
            raise UsageError("locations and random_locations exclude each other", hint="give one of them")
        if any(not components(name) for name in self.locations):
            raise UsageError("a location is empty", hint="without locations, all are chosen from")

    @property
    def chosen_mode(self) -> str:
        """Return the mode: the one that is set, else that of the option which is given."""
        if self.mode:
            return self.mode
        return "bit-mask" if self.bit_mask else "scaling-factor" if self.scaling_factor is not None else "bit-range"


_WORDS = {
    "type": ("count", "percentage"),
    "precision": ("auto", "16", "32", "64"),
    "mode": ("", *MODES),
    "weight": ("dataset", "element"),
    "integers": ("native", "shortest"),
}


def _check_attempts(one: AlterationSettings) -> None:
    if one.type == "percentage":
        if not 0 < one.attempts <= 100:
            raise UsageError(
                f"attempts = {one.attempts:g} is no percentage", hint="more than 0 and at most 100: attempts = 0.1"
            )
    elif not (1 <= one.attempts <= MOST_ATTEMPTS and one.attempts == int(one.attempts)):
        raise UsageError(
            f"attempts = {one.attempts:.15g} is no count",
            hint=f"a whole number from 1 to {MOST_ATTEMPTS:,}; or type = percentage",
        )


def _check_mode(one: AlterationSettings) -> None:
    mode = one.chosen_mode
    ranged = one.first_bit is not None or one.last_bit is not None or one.burst != 1 or one.allow_sign_change
    for of, is_given, names in (
        ("bit-range", ranged, "first_bit, last_bit, burst and allow_sign_change"),
        ("bit-mask", bool(one.bit_mask), "bit_mask"),
        ("scaling-factor", one.scaling_factor is not None, "scaling_factor"),
    ):
        if is_given and of != mode:
            raise UsageError(f"only the mode {of} has {names}, and the mode is {mode}", hint="give what one mode needs")
    if mode == "bit-mask" and (set(one.bit_mask) - {"0", "1"} or "1" not in one.bit_mask):
        raise UsageError(f"bit_mask = {one.bit_mask!r} changes no bit", hint="ones and zeros: bit_mask = 101101")
    if mode == "scaling-factor" and (one.scaling_factor is None or not math.isfinite(one.scaling_factor)):
        raise UsageError("the mode scaling-factor needs a finite scaling_factor", hint="scaling_factor = 1000")
    if one.burst < 1:
        raise UsageError(f"burst = {one.burst} changes no bit", hint="burst = 1")
    first, last = one.first_bit or 0, one.last_bit if one.last_bit is not None else 63
    if not 0 <= first <= last:
        raise UsageError(
            f"the range of bits {first} to {last} is empty", hint="first_bit = 1 and last_bit = 8 is float32's exponent"
        )
    width = 64 if one.precision == "auto" else int(one.precision)
    if (one.last_bit is not None and last >= width) or first >= width:
        raise UsageError(f"there is no bit {max(first, one.last_bit or 0)} in {width} bits", hint="bit 0 is the sign")
    if len(one.bit_mask) > width:
        raise UsageError(
            f"the mask {one.bit_mask} has {len(one.bit_mask)} bits, and the precision {width}", hint="a shorter mask"
        )


def components(name: str) -> tuple[str, ...]:
    """Return the components of a location's name, which `/` and `.` separate: `/layer1/conv.weight` has three."""
    return tuple(filter(None, name.replace(".", "/").split("/")))


def _given(options: Mapping[str, Any]) -> dict[str, Any]:
    """Return the options that are given: a flag that is not set says nothing."""
    return {name: value for name, value in options.items() if value is not False and value not in (None, ())}


def read_settings(table: Mapping[str, Any], where: str, given: Mapping[str, Any]) -> AlterationSettings:
    """Return the settings of a TOML table, and over them those of the command line. `where` is shown in errors.

    Keys may have `-` for `_`. Raise UsageError for an unknown key, with the nearest, and for a wrong value.
    """
    known = {one.name: str(one.type) for one in fields(AlterationSettings)}
    values: dict[str, Any] = {}
    for key, value in table.items():
        name = key.replace("-", "_")
        if name not in known:
            raise UsageError(f"unknown key {key!r} in {where}", hint=suggest(name, known))
        if name in values:
            raise UsageError(f"{name} is given twice in {where}", hint="once with - and once with _")
        try:
            values[name] = _convert(known[name], value)
        except ValueError as error:
            raise UsageError(f"{key} = {value!r} in {where} must be {error}", hint=_EXAMPLES.get(name, "")) from None
    try:
        return AlterationSettings(**values | _given(given))
    except UsageError as error:
        raise UsageError(error.message + (f" ({where})" if table else ""), hint=error.hint) from None


_EXAMPLES = {"locations": 'locations = ["layer1", "fc.weight"]', "bit_mask": 'bit_mask = "101101"', "seed": "seed = 1"}


def _convert(kind: str, value: Any) -> Any:
    if kind == "bool":
        if not isinstance(value, bool):
            raise ValueError("true or false")
        return value
    if kind.startswith("tuple"):
        names = [value] if isinstance(value, str) else value
        if not isinstance(names, list) or not all(isinstance(one, str) for one in names):
            raise ValueError("a list of texts")
        return tuple(names)
    if kind.startswith("str"):
        if isinstance(value, bool) or not isinstance(value, str | int):
            raise ValueError("a text")
        return str(value)  # precision = 32, bit_mask = 101101
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise ValueError("a number")
    if kind.startswith("int"):
        if not math.isfinite(value) or value != int(value):
            raise ValueError("a whole number")
        return int(value)
    return float(value)
