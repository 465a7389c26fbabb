"""Types of numbers: their bits mean what IEEE 754 and the hardware say."""

from __future__ import annotations

import math
import struct

import pytest
from hypothesis import given
from hypothesis import strategies as st

from resilience.inject.checkpoint.number_types import TYPES, decode, encode, is_finite, show_bits, show_value

STRUCT = {"float16": "e", "float32": "f", "float64": "d"}
NARROW = [name for name, kind in TYPES.items() if kind.kind == "float" and kind.width <= 16]


@pytest.mark.parametrize("name", NARROW)
def test_each_number_of_a_narrow_type_is_encoded_as_its_own_bits(name: str) -> None:
    kind = TYPES[name]
    for bits in range(0, 1 << kind.width, 1 if kind.width == 8 else 7):
        value = decode(bits, kind)
        assert math.isfinite(value) == is_finite(bits, kind)
        if not math.isnan(value):
            assert encode(value, kind) == bits


@given(st.sampled_from(sorted(STRUCT)), st.integers(0, 2**64 - 1), st.floats(width=64))
def test_ieee_types_agree_with_struct(name: str, bits: int, value: float) -> None:
    kind, code = TYPES[name], STRUCT[name]
    bits &= (1 << kind.width) - 1
    (expected,) = struct.unpack(f"<{code}", bits.to_bytes(kind.size, "little"))
    assert struct.pack("<d", decode(bits, kind)) == struct.pack("<d", expected) or math.isnan(expected)
    assert is_finite(bits, kind) == math.isfinite(expected)
    try:
        raw = struct.pack(f"<{code}", value)
    except OverflowError:
        raw = struct.pack(f"<{code}", math.copysign(math.inf, value))
    if not math.isnan(value):
        assert encode(value, kind) == int.from_bytes(raw, "little")


@pytest.mark.parametrize(
    ("name", "value", "bits"),
    [
        ("bfloat16", 1.0, 0x3F80), ("bfloat16", 3.4e38, 0x7F80), ("bfloat16", 1.00390625, 0x3F80),
        ("float8_e5m2", 57344.0, 0x7B), ("float8_e5m2", 65536.0, 0x7C), ("float8_e4m3fn", 448.0, 0x7E),
        ("float8_e4m3fn", 480.0, 0x7E), ("float8_e4m3fn", 2**-9, 0x01), ("float8_e4m3fn", -math.inf, 0xFE),
        ("float8_e4m3fnuz", 240.0, 0x7F), ("float8_e4m3fnuz", 1e9, 0x80), ("float8_e4m3fnuz", -0.0, 0),
        ("float8_e5m2fnuz", 57344.0, 0x7F), ("float8_e5m2fnuz", math.inf, 0x80), ("float8_e8m0fnu", 1.5, 0x80),
        ("float8_e8m0fnu", 0.0, 0), ("float8_e8m0fnu", math.inf, 0xFF), ("float32", 2**-149, 1),
        ("float32", math.inf, 0x7F800000), ("float32", -0.0, 0x80000000),
        ("int8", -128, 0x80), ("int8", 300.0, 0x7F), ("uint8", -3, 0), ("int16", math.nan, 0),
        ("int32", -1, 0xFFFFFFFF),
    ],
)  # fmt: skip
def test_limits_and_ties(name: str, value: float, bits: int) -> None:
    assert encode(value, TYPES[name]) == bits


def test_bits_are_shown_as_sign_exponent_and_mantissa() -> None:
    assert show_bits(0x3DCCCCCD, TYPES["float32"]) == "0 01111011 10011001100110011001101"
    assert (
        show_bits(0x7F, TYPES["float8_e8m0fnu"]) == "01111111"
        and show_bits(128, TYPES["float8_e4m3fn"]) == "1 0000 000"
    )
    assert show_bits(5, TYPES["int8"]) == "00000101" and show_value(0xFB, TYPES["int8"]) == "-5"
    assert show_value(0x3DCCCCCD, TYPES["float32"]) == "0.100000001" and show_value(1, TYPES["bool"]) == "true"
