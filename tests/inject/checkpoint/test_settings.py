"""Settings of an alteration: what contradicts is refused in words, and a table is read with its types."""

from __future__ import annotations

import tomllib
from typing import Any

import pytest

from resilience.errors import UsageError
from resilience.inject.checkpoint.settings import AlterationSettings, components, read_settings

REFUSED: list[tuple[dict[str, Any], str]] = [
    ({"probability": 1.5}, "probability = 1.5 is no probability"),
    ({"probability": -0.1}, "probability = -0.1 is no probability"),
    ({"probability": float("nan")}, "is no probability"),
    ({"attempts": 0}, "is no count"),
    ({"attempts": 1.5}, "is no count"),
    ({"attempts": float("nan")}, "is no count"),
    ({"attempts": 10**9}, "is no count"),
    ({"type": "percentage", "attempts": 0}, "is no percentage"),
    ({"type": "percentage", "attempts": 101}, "is no percentage"),
    ({"type": "percent"}, "type = 'percent' is unknown"),
    ({"precision": "8"}, "precision = '8' is unknown"),
    ({"bit_mask": "102"}, "changes no bit"),
    ({"bit_mask": "000"}, "changes no bit"),
    ({"mode": "bit-mask"}, "changes no bit"),
    ({"bit_mask": "1" * 17, "precision": "16"}, "has 17 bits, and the precision 16"),
    ({"bit_mask": "1" * 65}, "has 65 bits, and the precision 64"),
    ({"mode": "scaling-factor"}, "needs a finite scaling_factor"),
    ({"scaling_factor": float("inf")}, "needs a finite scaling_factor"),
    ({"bit_mask": "1", "scaling_factor": 2.0}, "only the mode scaling-factor has scaling_factor, and"),
    ({"bit_mask": "1", "first_bit": 2}, "only the mode bit-range has first_bit, last_bit"),
    ({"mode": "bit-range", "scaling_factor": 2.0}, "only the mode scaling-factor has"),
    ({"first_bit": 5, "last_bit": 4}, "the range of bits 5 to 4 is empty"),
    ({"last_bit": 64}, "there is no bit 64 in 64 bits"),
    ({"first_bit": 16, "precision": "16"}, "there is no bit 16 in 16 bits"),
    ({"burst": 0}, "burst = 0 changes no bit"),
    ({"locations": ("a",), "random_locations": True}, "exclude each other"),
    ({"locations": ("/",)}, "a location is empty"),
]


@pytest.mark.parametrize(("given", "words"), REFUSED)
def test_what_makes_no_sense_is_refused_in_words(given: dict[str, Any], words: str) -> None:
    with pytest.raises(UsageError) as told:
        AlterationSettings(**given)
    assert words in told.value.message and told.value.hint


@pytest.mark.parametrize(
    ("given", "mode"),
    [({}, "bit-range"), ({"bit_mask": "101"}, "bit-mask"), ({"scaling_factor": 0.0}, "scaling-factor"),
     ({"last_bit": 3, "mode": "bit-range"}, "bit-range"), ({"first_bit": 3, "last_bit": 3}, "bit-range")],
)  # fmt: skip
def test_the_mode_is_that_of_the_option_that_is_given(given: dict[str, Any], mode: str) -> None:
    assert AlterationSettings(**given).chosen_mode == mode


def test_a_table_is_read_and_the_command_line_is_over_it() -> None:
    table = tomllib.loads(
        'attempts = 10\nprecision = 32\nbit-mask = "0101"\nlocations = ["a/b", "c"]\nallow_nan = true\nseed = 7\n'
    )
    found = read_settings(table, "flips.toml", {"seed": 8, "allow_nan": False, "locations": (), "weight": None})
    expected = AlterationSettings(attempts=10, precision="32", bit_mask="0101", locations=("a/b", "c"), allow_nan=True)
    assert (found.seed, found.allow_nan, found.locations) == (8, True, ("a/b", "c"))
    assert (found.attempts, found.precision, found.bit_mask) == (10, expected.precision, expected.bit_mask)


@pytest.mark.parametrize(
    ("text", "words", "hint"),
    [
        ("probabilty = 0.5", "unknown key 'probabilty' in flips.toml", "did you mean probability?"),
        ("float_precision = 32", "unknown key 'float_precision' in flips.toml", "did you mean precision?"),
        ("attempts = true", "attempts = True in flips.toml must be a number", ""),
        ("seed = 1.5", "must be a whole number", "seed = 1"),
        ("seed = inf", "must be a whole number", "seed = 1"),
        ("allow_nan = 1", "must be true or false", ""),
        ("locations = 3", "must be a list of texts", "locations ="),
        ("first_bit = 1\nfirst-bit = 2", "first_bit is given twice", ""),
        ("probability = 2", "probability = 2 is no probability (flips.toml)", "0 to 1"),
        ("first_bit = -1", "the range of bits -1", ""),
    ],
)
def test_a_table_with_a_mistake_is_refused_with_the_nearest_name(text: str, words: str, hint: str) -> None:
    with pytest.raises(UsageError) as told:
        read_settings(tomllib.loads(text), "flips.toml", {})
    assert words in told.value.message and hint in told.value.hint


def test_a_name_has_components() -> None:
    assert components("/layer1.0/conv.weight") == ("layer1", "0", "conv", "weight") and components("/") == ()
