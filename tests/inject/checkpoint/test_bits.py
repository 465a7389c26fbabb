"""Bits that change: as many as were asked for, each as likely as another, at any seed."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from itertools import pairwise
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from resilience.inject.checkpoint.bits import changed, draws, flip_type, pool
from resilience.inject.checkpoint.number_types import TYPES, decode, encode, is_finite
from resilience.inject.checkpoint.settings import AlterationSettings

FLOATS = sorted(name for name, kind in TYPES.items() if kind.kind == "float")
MASKS = ("10000000", "01000000", "10110101", "11000000", "11101101")
"""Five masks of 8 bits, which have 1, 1, 1, 2 and 2 ones at the offsets where they reach bit 1."""


def first(settings: AlterationSettings, kind: str, bits: int, random: Random) -> tuple[int, ...]:
    return next(draws(settings, TYPES[kind], bits, random))


@given(st.sampled_from(FLOATS), st.integers(0, 2**64 - 1), st.integers(1, 8), st.integers())
def test_as_many_bits_differ_as_the_burst_has(name: str, bits: int, burst: int, seed: int) -> None:
    kind = TYPES[name]
    bits &= (1 << kind.width) - 1
    settings = AlterationSettings(burst=min(burst, kind.width - 1))
    places = first(settings, name, bits, Random(seed))
    after = changed(bits, kind, name, places, None)
    assert after is not None and (after ^ bits).bit_count() == settings.burst == len(set(places))
    assert 0 not in places or not kind.has_sign


@given(st.sampled_from(FLOATS), st.text("01", min_size=1, max_size=8), st.integers(0, 2**64 - 1), st.integers())
def test_a_mask_changes_its_ones_within_the_number(name: str, mask: str, bits: int, seed: int) -> None:
    kind = TYPES[name]
    if "1" not in mask:
        mask += "1"
    mask = mask[-kind.width :]
    bits &= (1 << kind.width) - 1
    places = first(AlterationSettings(bit_mask=mask), name, bits, Random(seed))
    after = changed(bits, kind, name, places, None)
    assert after is not None and f"{after ^ bits:b}".rstrip("0") == mask.strip("0")


@pytest.mark.parametrize("width", [16, 32, 64])
def test_the_critical_bit_is_hit_by_as_many_offsets_as_the_mask_has_ones_there(width: int) -> None:
    hits = []
    for mask in MASKS:
        settings = AlterationSettings(bit_mask=mask, precision=str(width))
        offsets = list(draws(settings, TYPES[f"float{width}"], 0, Random(1)))
        assert len(offsets) == len(set(offsets)) == width - 7
        hits.append(sum(1 in places for places in offsets))
    assert hits == [1, 1, 1, 2, 2]  # of 57, of 25, of 9


def chi_square_p(counts: Sequence[int]) -> float:
    """P of the chi-square test that all are equally likely, by the approximation of Wilson and Hilferty."""
    mean, degrees = sum(counts) / len(counts), len(counts) - 1
    chi = sum((count - mean) ** 2 / mean for count in counts)
    z = ((chi / degrees) ** (1 / 3) - (1 - 2 / (9 * degrees))) / math.sqrt(2 / (9 * degrees))
    return 0.5 * math.erfc(z / math.sqrt(2))


@pytest.mark.parametrize(
    ("settings", "choices"),
    [
        (AlterationSettings(first_bit=1, last_bit=31), 31),
        (AlterationSettings(first_bit=3, last_bit=7, allow_sign_change=True), 6),
        (AlterationSettings(first_bit=0, last_bit=31, burst=4), 32),
        (AlterationSettings(bit_mask="101101"), 27),
    ],
)
def test_each_possible_bit_is_as_likely_as_another(settings: AlterationSettings, choices: int) -> None:
    random, hits = Random(7), Counter[int]()
    for _ in range(4000):
        places = first(settings, "float32", 0, random)
        hits.update(places[:1] if settings.bit_mask else places)
    assert len(hits) == choices and chi_square_p(list(hits.values())) > 0.01


def test_the_chi_square_test_itself_finds_a_preferred_bit() -> None:
    assert chi_square_p([100] * 30 + [180]) < 0.001


@pytest.mark.parametrize(
    ("kind", "settings", "expected"),
    [
        ("float32", AlterationSettings(), range(1, 32)),
        ("int8", AlterationSettings(), range(1, 8)),
        ("uint8", AlterationSettings(), range(8)),
        ("bool", AlterationSettings(), range(1)),
        ("float16", AlterationSettings(first_bit=1, last_bit=5, allow_sign_change=True), range(6)),
        ("float16", AlterationSettings(first_bit=15, last_bit=15), range(15, 16)),
    ],
)
def test_a_range_includes_both_ends_and_the_sign_only_if_asked(
    kind: str, settings: AlterationSettings, expected: range
) -> None:
    assert pool(settings, TYPES[kind]) == tuple(expected)


def test_a_range_of_one_bit_that_always_gives_nan_ends() -> None:
    one = encode(1.5, TYPES["float32"])
    (places,) = draws(AlterationSettings(first_bit=1, last_bit=1), TYPES["float32"], one, Random(1))
    assert math.isnan(decode(changed(one, TYPES["float32"], "float32", places, None) or 0, TYPES["float32"]))


@given(st.integers(-128, 127), st.integers())
def test_the_shortest_form_of_an_integer_keeps_sign_and_length(value: int, seed: int) -> None:
    kind = TYPES["int8"]
    settings = AlterationSettings(integers="shortest")
    assert flip_type(settings, kind) == "shortest"
    places = first(settings, "int8", encode(value, kind), Random(seed))
    after = changed(encode(value, kind), kind, "shortest", places, None)
    length = max(1, abs(value).bit_length())
    if after is None:
        assert value == -128
        return
    number = int(decode(after, kind))
    assert abs(number) ^ abs(value) == 1 << (length - 1 - places[0]) and number * value >= 0


@pytest.mark.parametrize(
    ("kind", "value", "factor", "expected"),
    [("float32", 0.5, 1000.0, 500.0), ("float16", 60.0, 1e4, math.inf), ("int8", 100, 2.0, 127), ("int8", -3, 1.5, -4),
     ("int64", 2**60 + 1, 2.0, 2**61 + 2), ("uint8", 3, -1.0, 0)],
)  # fmt: skip
def test_scaling_multiplies_the_value(kind: str, value: float, factor: float, expected: float) -> None:
    after = changed(encode(value, TYPES[kind]), TYPES[kind], kind, (), factor)
    assert after is not None and decode(after, TYPES[kind]) == expected


def altered(stored: str, settings: AlterationSettings, draws_: int) -> list[tuple[int, int, tuple[int, ...]]]:
    random, kind = Random(11), TYPES[stored]
    found = []
    for _ in range(draws_):
        bits = encode(random.gauss(0, 0.05), kind)
        places = first(settings, stored, bits, random)
        found.append((bits, changed(bits, kind, flip_type(settings, kind), places, None) or 0, places))
    return found


def test_flips_in_double_precision_are_lost_in_float32_as_the_arithmetic_says() -> None:
    """28 of 63 bits of the double lie below the mantissa of the float; those that round up change it."""
    settings = AlterationSettings(first_bit=0, precision="64")
    found = altered("float32", settings, 8000)
    unchanged = sum(before == after for before, after, _ in found) / len(found)
    infinite = sum(not is_finite(after, TYPES["float32"]) for _, after, _ in found) / len(found)
    assert unchanged == pytest.approx(0.445, abs=0.02) and infinite == pytest.approx(1 / 64, abs=0.005)


def test_native_flips_always_change_the_number_and_bit_1_makes_it_extreme() -> None:
    found = altered("float32", AlterationSettings(first_bit=0), 8000)
    assert all(before != after for before, after, _ in found)
    extreme = [places for _, after, places in found if abs(decode(after, TYPES["float32"])) > 1e3]
    assert set(extreme) == {(1,)} and len(extreme) / len(found) == pytest.approx(1 / 32, abs=0.006)
    half = altered("float16", AlterationSettings(first_bit=1, last_bit=1), 2000)
    values = sorted(abs(decode(after, TYPES["float16"])) for _, after, _ in half)
    assert sum(value > 1e3 for value in values) / len(values) == pytest.approx(0.76, abs=0.04)
    assert values[1000] == pytest.approx(2178, rel=0.1) and values[-1] < 3e4


def test_a_seed_gives_the_same_draws() -> None:
    one, other = (list(draws(AlterationSettings(), TYPES["float32"], 0, Random(3))) for _ in range(2))
    assert one == other and any(left != right for left, right in pairwise(one))
    assert first(AlterationSettings(), "float32", 0, Random(3)) == (8,)  # on each version of Python
