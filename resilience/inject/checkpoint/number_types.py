"""Types of numbers as bits: widths, exponents, and what the bits mean. Pure, exact, without numpy.

Bit 0 is the leftmost one: the sign of a float or a signed integer. Of a float, the exponent follows, bit 1 its highest.
"""

from __future__ import annotations

import math
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class NumberType:
    """One type of numbers.

    Attributes:
        name: as PyTorch and numpy call it.
        kind: `float`, `int`, `uint` or `bool`.
        width: number of bits that can be flipped. Of the byte of a truth value, that is the last one alone.
        exponent_bits: of a float.
        flavour: of a float without infinity, as in its name: `fn`, whose NaN is all ones; `fnuz`, whose NaN takes the
            place of -0; `fnu`, whose NaN is all ones too, without sign, mantissa and zero. Empty: of IEEE 754.
    """

    name: str
    kind: str
    width: int
    exponent_bits: int = 0
    flavour: str = ""

    @property
    def size(self) -> int:
        """Return how many bytes a number takes."""
        return max(1, self.width // 8)

    @property
    def has_sign(self) -> bool:
        """Return whether bit 0 is a sign."""
        return self.kind in ("float", "int") and self.flavour != "fnu"

    @property
    def mantissa_bits(self) -> int:
        """Return how many bits follow the exponent."""
        return self.width - self.has_sign - self.exponent_bits

    @property
    def bias(self) -> int:
        """Return what is subtracted from the exponent of a float."""
        return (1 << (self.exponent_bits - 1)) - 1 + (self.flavour == "fnuz")

    @property
    def nan(self) -> int:
        """Return the bits of a NaN."""
        if self.flavour:
            return 1 << (self.width - 1) if self.flavour == "fnuz" else (1 << (self.width - self.has_sign)) - 1
        return (((1 << self.exponent_bits + 1) - 1) << self.mantissa_bits) >> 1


TYPES = {
    one.name: one
    for one in (
        NumberType("float64", "float", 64, 11),
        NumberType("float32", "float", 32, 8),
        NumberType("float16", "float", 16, 5),
        NumberType("bfloat16", "float", 16, 8),
        NumberType("float8_e5m2", "float", 8, 5),
        NumberType("float8_e5m2fnuz", "float", 8, 5, "fnuz"),
        NumberType("float8_e4m3fn", "float", 8, 4, "fn"),
        NumberType("float8_e4m3fnuz", "float", 8, 4, "fnuz"),
        NumberType("float8_e8m0fnu", "float", 8, 8, "fnu"),
        *(NumberType(f"int{width}", "int", width) for width in (8, 16, 32, 64)),
        *(NumberType(f"uint{width}", "uint", width) for width in (8, 16, 32, 64)),
        NumberType("bool", "bool", 1),
    )
}
"""By name."""


def is_finite(bits: int, kind: NumberType) -> bool:
    """Return whether a number is neither NaN nor infinite."""
    if kind.kind != "float":
        return True
    if kind.flavour:
        return kind.nan not in (bits, bits & ((1 << (kind.width - 1)) - 1))
    return bits >> kind.mantissa_bits & ((1 << kind.exponent_bits) - 1) != (1 << kind.exponent_bits) - 1


def decode(bits: int, kind: NumberType) -> float:
    """Return the value that bits stand for."""
    if kind.kind != "float":
        negative = kind.kind == "int" and bits >> (kind.width - 1)
        return bits - (1 << kind.width) if negative else bits
    sign = -1.0 if kind.has_sign and bits >> (kind.width - 1) else 1.0
    mantissa = bits & ((1 << kind.mantissa_bits) - 1)
    exponent = (bits >> kind.mantissa_bits) & ((1 << kind.exponent_bits) - 1)
    if not is_finite(bits, kind):
        return math.nan if mantissa or kind.flavour else sign * math.inf
    if exponent or not kind.mantissa_bits:
        mantissa |= 1 << kind.mantissa_bits
    exponent = max(exponent, 1) if kind.mantissa_bits else exponent
    return sign * math.ldexp(mantissa, exponent - kind.bias - kind.mantissa_bits)


def encode(value: float, kind: NumberType) -> int:
    """Return the bits of the nearest number of a type; of two, the even one.

    Beyond the largest: infinity; where a type has none, NaN, but with `fn` the largest, as PyTorch 2.13 converts; the
    largest of an integer. A sign is lost where a type has none.
    """
    if kind.kind != "float":
        return _encode_integer(value, kind)
    sign = 1 << (kind.width - 1) if kind.has_sign and math.copysign(1.0, value) < 0 else 0
    past_largest = {"": ((1 << kind.exponent_bits) - 1) << kind.mantissa_bits, "fn": kind.nan - 1}.get(
        kind.flavour, kind.nan
    )
    if not math.isfinite(value):
        return sign | (kind.nan if math.isnan(value) else past_largest)
    least = 1 - kind.bias
    exponent = max(math.frexp(value)[1] - 1, least) if value else least
    bits = round(math.ldexp(abs(value), kind.mantissa_bits - exponent)) + ((exponent - least) << kind.mantissa_bits)
    if not bits and kind.flavour == "fnuz":
        return 0
    return sign | min(bits, past_largest)


def _encode_integer(value: float, kind: NumberType) -> int:
    low = -(1 << (kind.width - 1)) if kind.kind == "int" else 0
    high = (1 << (kind.width - (kind.kind == "int"))) - 1
    if isinstance(value, float) and not math.isfinite(value):
        number = 0 if math.isnan(value) else high if value > 0 else low
    else:
        number = min(max(round(value), low), high)
    return number & ((1 << kind.width) - 1)


def show_bits(bits: int, kind: NumberType) -> str:
    """Return bits as text, a float's sign, exponent and mantissa apart: `0 01111011 10011001100110011001101`."""
    text = f"{bits:0{kind.width}b}"
    if kind.kind != "float":
        return text
    parts = text[: kind.has_sign], text[kind.has_sign :][: kind.exponent_bits], text[kind.width - kind.mantissa_bits :]
    return " ".join(filter(None, parts))


def show_value(bits: int, kind: NumberType) -> str:
    """Return the value of bits for people."""
    value = decode(bits, kind)
    if kind.kind == "bool":
        return "true" if value else "false"
    if kind.kind != "float":
        return str(value)
    return repr(value) if kind.width == 64 else f"{value:.{9 if kind.width == 32 else 5}g}"
