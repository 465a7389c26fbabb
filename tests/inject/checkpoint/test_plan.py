"""Which numbers change: only in the chosen locations, as often as was asked for, in any number of dimensions."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from resilience.errors import UsageError
from resilience.inject.checkpoint.layouts import Location, Piece
from resilience.inject.checkpoint.number_types import TYPES, encode, is_finite
from resilience.inject.checkpoint.plan import Alteration, Plan, mapped, parse_mapping, plan, replay
from resilience.inject.checkpoint.settings import AlterationSettings
from tests.inject.checkpoint.test_bits import chi_square_p


def location(name: str, kind: str = "float32", shape: Sequence[int] = (10,)) -> Location:
    return Location(name, TYPES.get(kind), kind, tuple(shape))


MODEL = [
    location("conv1.bias", shape=(4,)), location("conv1.weight", shape=(4, 3, 3, 3)),
    location("conv10.weight", shape=(2, 2)), location("deep", shape=(2, 1, 3, 2, 2, 2)),
    location("empty", shape=(0, 3)), location("half", "float16"), location("mask", "bool", (3,)),
    location("names", "text"), location("steps", "int64", ()),
]  # fmt: skip


def half(one: Location, index: Sequence[int]) -> int:
    """Each number is 0.5, or 5."""
    assert one.type is not None
    return encode(0.5 if one.type.kind == "float" else 5, one.type) & ((1 << one.type.width) - 1)


def planned(seed: int = 1, **given: Any) -> Plan:
    return plan(MODEL, AlterationSettings(**given), half, seed)


@settings(max_examples=50)
@given(st.integers(), st.integers(1, 30), st.floats(0, 1), st.sampled_from(["dataset", "element"]))
def test_attempts_are_used_up_by_the_probability(seed: int, attempts: int, probability: float, weight: str) -> None:
    found = planned(seed, attempts=attempts, probability=probability, weight=weight)
    successes = len(found.alterations) + found.unchanged + found.gave_up
    assert found.missed + successes == found.attempts == attempts
    assert len(found.changes) <= successes
    assert {one.location for one in found.alterations} <= {one.name for one in MODEL} - {"empty", "mask", "names"}


@pytest.mark.parametrize(("probability", "altered"), [(0.0, 0), (1.0, 50)])
def test_no_probability_alters_nothing_and_certainty_each_time(probability: float, altered: int) -> None:
    assert len(planned(attempts=50, probability=probability).alterations) == altered


def test_a_percentage_is_one_of_the_chosen_locations_alone() -> None:
    assert planned(type="percentage", attempts=25, locations=("conv1",)).attempts == 28  # of 4 + 108
    assert planned(type="percentage", attempts=100, locations=("conv10",)).attempts == 4
    assert planned(type="percentage", attempts=0.5, locations=("conv1",)).attempts == 1
    with pytest.raises(UsageError, match="are 0 attempts"):
        planned(type="percentage", attempts=0.1, locations=("conv1",))


@pytest.mark.parametrize(
    ("wanted", "reached"),
    [
        (("conv1",), {"conv1.bias", "conv1.weight"}),
        (("/conv1/",), {"conv1.bias", "conv1.weight"}),
        (("conv1/weight", "half"), {"conv1.weight", "half"}),
        (("mask",), {"mask"}),
        ((), {"conv1.bias", "conv1.weight", "conv10.weight", "deep", "half", "steps"}),
    ],
)
def test_a_location_is_matched_by_whole_components(wanted: tuple[str, ...], reached: set[str]) -> None:
    assert {one.location for one in planned(attempts=200, locations=wanted).alterations} == reached


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ({"locations": ("conv",)}, "no location is conv or below it"),
        ({"locations": ("half", "conv2.weight")}, "no location is conv2.weight or below it"),
        ({"locations": ("names",)}, "names has no bits to change"),
        ({"locations": ("half", "names")}, "names has no bits to change"),
        ({"locations": ("empty",)}, "empty is empty"),
        ({"locations": ("half",), "bit_mask": "1" * 17}, "has 17 bits, and half has numbers of 16 bits"),
        ({"bit_mask": "1" * 17}, "has 17 bits, and half has numbers of 16 bits"),
        ({"locations": ("half",), "last_bit": 16}, "there is no bit 16: half"),
        ({"locations": ("half",), "burst": 16}, "a burst of 16 bits is more than the 15 of the range"),
        ({"locations": ("mask",), "first_bit": 1}, "there is no bit 1: mask has numbers of 1 bit"),
    ],
)
def test_what_does_not_fit_the_checkpoint_is_refused_in_words(given: dict[str, Any], words: str) -> None:
    with pytest.raises(UsageError) as told:
        planned(**given)
    assert words in told.value.message and told.value.hint


def test_a_checkpoint_without_arrays_is_refused() -> None:
    with pytest.raises(UsageError, match="has no arrays"):
        plan([], AlterationSettings(), half, 1)


def test_each_location_is_as_likely_as_another_or_each_number_is() -> None:
    names = ("conv1.bias", "conv1.weight", "deep")
    by_dataset = Counter(one.location for one in planned(attempts=3000, locations=names).alterations)
    assert chi_square_p(list(by_dataset.values())) > 0.01
    found = planned(attempts=3000, locations=names, weight="element")
    by_element = Counter(one.location for one in found.alterations)
    assert by_element["conv1.weight"] / 3000 == pytest.approx(108 / 160, abs=0.03)
    elements = Counter((one.location, one.index) for one in found.alterations)
    assert len(elements) == 160 and chi_square_p(list(elements.values())) > 0.01


def test_each_element_of_six_dimensions_is_reached() -> None:
    found = {one.index for one in planned(attempts=1500, locations=("deep",)).alterations}
    assert len(found) == 48 and all(len(index) == 6 for index in found)


@pytest.mark.parametrize("mode", [{}, {"bit_mask": "11"}, {"burst": 3}, {"scaling_factor": 1e30}])
def test_without_permission_no_change_gives_nan_or_infinity(mode: dict[str, Any]) -> None:
    def nearly(one: Location, index: Sequence[int]) -> int:
        return encode(1.5, one.type) if one.type is not None else 0

    chosen = AlterationSettings(attempts=300, locations=("conv1", "half"), **mode)
    found = plan(MODEL, chosen, nearly, 5)
    assert found.alterations and all(
        is_finite(one.bits, one.location.type) for one in found.changes if one.location.type
    )


def test_a_bit_that_always_gives_nan_ends_the_attempt() -> None:
    def one_and_a_half(one: Location, index: Sequence[int]) -> int:
        return encode(1.5, one.type) if one.type is not None else 0

    critical = AlterationSettings(attempts=5, first_bit=1, last_bit=1, locations=("conv1",))
    found = plan(MODEL, critical, one_and_a_half, 1)
    assert (found.gave_up, found.alterations) == (5, ())


def test_the_same_number_may_be_hit_twice_and_back_is_no_change() -> None:
    found = plan([location("x", shape=())], AlterationSettings(attempts=2, first_bit=9, last_bit=9), half, 1)
    first, second = found.alterations
    assert first.after == second.before and second.after == first.before and found.changes == ()


def test_two_names_of_the_same_bytes_are_one_number() -> None:
    tied = [
        Location(name, TYPES["float32"], "float32", (1,), (Piece((0,), (1,), 64, (4,)),)) for name in ("head", "tokens")
    ]
    found = plan(tied, AlterationSettings(attempts=20, first_bit=31, last_bit=31), half, 2)
    assert {one.location for one in found.alterations} == {"head", "tokens"}
    assert all(one.after == other.before for one, other in zip(found.alterations, found.alterations[1:], strict=False))


def test_a_forced_precision_is_told_to_lose_bits_and_counts_what_did_not_change() -> None:
    found = planned(attempts=400, locations=("conv1",), precision="64")
    assert found.warnings == ("numbers of float32 change as float64 and are converted back, which loses bits",)
    assert found.unchanged > 100 and all(one.before != one.after for one in found.alterations)
    assert planned(locations=("conv1",), precision="32").warnings == ()


def test_the_same_seed_gives_the_same_alterations() -> None:
    assert planned(3, attempts=20) == planned(3, attempts=20) != planned(4, attempts=20)


# ---- replay ---------------------------------------------------------------------------------------------------------


def test_a_replay_hits_the_same_elements_and_bits_elsewhere() -> None:
    drawn = planned(attempts=30, locations=("conv1",), burst=2).alterations

    def other(one: Location, index: Sequence[int]) -> int:
        return encode(-0.03, one.type) if one.type is not None else 0

    again = replay(MODEL, drawn, [], other, allow_nan=True).alterations
    assert [(one.location, one.index, one.bits) for one in again] == [
        (one.location, one.index, one.bits) for one in drawn
    ]
    assert all(one.before ^ one.after == two.before ^ two.after for one, two in zip(again, drawn, strict=True))


def test_a_replay_follows_names_and_axes_of_another_framework() -> None:
    keras = [location("net/conv/kernel", shape=(3, 3, 2, 4))]
    torch = [location("conv.weight", shape=(4, 2, 3, 3))]
    drawn = plan(keras, AlterationSettings(attempts=10), half, 1).alterations
    rules = [parse_mapping("net/conv/kernel=conv.weight:3,2,0,1")]
    for old, new in zip(drawn, replay(torch, drawn, rules, half, allow_nan=True).alterations, strict=True):
        y, x, channel, out = old.index
        assert (new.location, new.index, new.bits) == ("conv.weight", (out, channel, y, x), old.bits)


@pytest.mark.parametrize(
    ("rule", "name", "result"),
    [
        ("a=b", "a/x", "b/x"), ("a=b", "ab/x", "ab/x"), ("model=", "model.conv.weight", "conv/weight"),
        ("=model", "conv.weight", "model/conv/weight"), ("a.b=c.d", "a/b/x", "c/d/x"), ("a=b=c", "a", "b=c"),
    ],
)  # fmt: skip
def test_a_mapping_replaces_the_beginning_of_a_name(rule: str, name: str, result: str) -> None:
    assert mapped(name, (1, 2), [parse_mapping(rule)]) == (result, (1, 2))


@pytest.mark.parametrize("text", ["a", "=", "/=.", "a=b:0,0", "a=b:1,2"])
def test_a_text_that_maps_nothing_is_refused(text: str) -> None:
    with pytest.raises(UsageError, match="maps no location"):
        parse_mapping(text)


def one(name: str, index: tuple[int, ...] = (0,), kind: str = "float32", bit: int = 5) -> Alteration:
    return Alteration(name, index, kind, kind, (bit,), None, 0, 1)


@pytest.mark.parametrize(
    ("recorded", "words", "hint"),
    [
        (one("conv3.weight", (0, 0, 0, 0)), "no location is conv3.weight", "--map conv3.weight=NAME"),
        (one("names"), "names has no bits to change", "--list"),
        (one("half", (10,)), "half has the shape [10], and the sequence changes [10]", "--map half="),
        (one("half", (1, 1)), "half has the shape [10], and the sequence changes [1, 1]", "--map half="),
        (one("half", (1,), "int64"), "half is float16, and the sequence changes int64", "map another one"),
    ],
)
def test_a_replay_that_does_not_fit_is_refused_in_words(recorded: Alteration, words: str, hint: str) -> None:
    with pytest.raises(UsageError) as told:
        replay(MODEL, [recorded], [], half, allow_nan=True)
    assert words in told.value.message and hint in told.value.hint


def test_a_replay_on_another_type_flips_in_the_recorded_one_and_says_so() -> None:
    found = replay(MODEL, [one("half", bit=9)], [], half, allow_nan=False)
    (again,) = found.alterations
    assert (again.type, again.flip_type, again.after) == ("float16", "float32", encode(0.75, TYPES["float16"]))
    assert "numbers of float16 change as float32" in found.warnings[0]
    assert replay(MODEL, [one("half", bit=1)], [], half, allow_nan=False).gave_up == 1
