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
        has_infinity: False for float8_e4m3fn, whose only special value is NaN.
    """

    name: str
    kind: str
    width: int
    exponent_bits: int = 0
    has_infinity: bool = True

    @property
    def size(self) -> int:
        """Return how many bytes a number takes."""
        return max(1, self.width // 8)

    @property
    def has_sign(self) -> bool:
        """Return whether bit 0 is a sign."""
        return self.kind in ("float", "int")

    @property
    def mantissa_bits(self) -> int:
        """Return how many bits follow the exponent."""
        return self.width - 1 - self.exponent_bits


TYPES = {
    one.name: one
    for one in (
        NumberType("float64", "float", 64, 11),
        NumberType("float32", "float", 32, 8),
        NumberType("float16", "float", 16, 5),
        NumberType("bfloat16", "float", 16, 8),
        NumberType("float8_e5m2", "float", 8, 5),
        NumberType("float8_e4m3fn", "float", 8, 4, has_infinity=False),
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
    magnitude = bits & ~(1 << (kind.width - 1))
    if not kind.has_infinity:
        return magnitude != (1 << (kind.width - 1)) - 1
    return magnitude >> kind.mantissa_bits != (1 << kind.exponent_bits) - 1


def decode(bits: int, kind: NumberType) -> float:
    """Return the value that bits stand for."""
    if kind.kind != "float":
        negative = kind.kind == "int" and bits >> (kind.width - 1)
        return bits - (1 << kind.width) if negative else bits
    sign = -1.0 if bits >> (kind.width - 1) else 1.0
    mantissa = bits & ((1 << kind.mantissa_bits) - 1)
    exponent = (bits >> kind.mantissa_bits) & ((1 << kind.exponent_bits) - 1)
    if not is_finite(bits, kind):
        return sign * math.inf if kind.has_infinity and not mantissa else math.nan
    if exponent:
        mantissa |= 1 << kind.mantissa_bits
    return sign * math.ldexp(mantissa, max(exponent, 1) - _bias(kind) - kind.mantissa_bits)


def encode(value: float, kind: NumberType) -> int:
    """Return the bits of the nearest number of a type; of two, the even one.

    Beyond the largest: infinity; the largest where a type has none, as PyTorch 2.13 converts, and of an integer.
    """
    if kind.kind != "float":
        return _encode_integer(value, kind)
    sign = 1 << (kind.width - 1) if math.copysign(1.0, value) < 0 else 0
    infinity = ((1 << kind.exponent_bits) - 1) << kind.mantissa_bits
    nan = infinity | (1 << (kind.mantissa_bits - 1) if kind.has_infinity else (1 << kind.mantissa_bits) - 1)
    if math.isnan(value):
        return sign | nan
    past_largest = infinity if kind.has_infinity else nan - 1
    if math.isinf(value):
        return sign | past_largest
    least = 1 - _bias(kind)
    exponent = max(math.frexp(value)[1] - 1, least) if value else least
    bits = round(math.ldexp(abs(value), kind.mantissa_bits - exponent)) + ((exponent - least) << kind.mantissa_bits)
    return sign | min(bits, past_largest)


def _encode_integer(value: float, kind: NumberType) -> int:
    low = -(1 << (kind.width - 1)) if kind.kind == "int" else 0
    high = (1 << (kind.width - (kind.kind == "int"))) - 1
    if isinstance(value, float) and not math.isfinite(value):
        number = 0 if math.isnan(value) else high if value > 0 else low
    else:
        number = min(max(round(value), low), high)
    return number & ((1 << kind.width) - 1)


def _bias(kind: NumberType) -> int:
    return (1 << (kind.exponent_bits - 1)) - 1


def show_bits(bits: int, kind: NumberType) -> str:
    """Return bits as text, a float's sign, exponent and mantissa apart: `0 01111011 10011001100110011001101`."""
    text = f"{bits:0{kind.width}b}"
    if kind.kind != "float":
        return text
    return f"{text[0]} {text[1 : 1 + kind.exponent_bits]} {text[1 + kind.exponent_bits :]}"


def show_value(bits: int, kind: NumberType) -> str:
    """Return the value of bits for people."""
    value = decode(bits, kind)
    if kind.kind == "bool":
        return "true" if value else "false"
    if kind.kind != "float":
        return str(value)
    return repr(value) if kind.width == 64 else f"{value:.{9 if kind.width == 32 else 5}g}"
