"""A value becomes what its field is, or is refused with the field's name and an example."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import pytest

from resilience.errors import SettingsError
from resilience.settings.convert import convert_table, convert_value


@dataclass(frozen=True, kw_only=True)
class Owner:
    wait_s: float = 1.0
    quota_bytes: int = 0
    used_percent: float = 90.0
    count: int = 1
    name: str = ""
    lines: tuple[str, ...] = ()
    is_on: bool = True
    maybe: bool | None = None
    word: str | None = None


def convert(**table: Any) -> dict[str, Any]:
    return convert_table(Owner, table, lambda key: f"[owner] (here.toml: {key})")


GOOD: list[tuple[str, object, object]] = [
    ("wait_s", "10m", 600.0),
    ("wait_s", 600, 600.0),
    ("wait_s", 0.5, 0.5),
    ("wait_s", "600", 600.0),
    ("quota_bytes", "40TiB", 40 * 2**40),
    ("quota_bytes", 4096, 4096),
    ("quota_bytes", "4096", 4096),
    ("used_percent", "85%", 85.0),
    ("used_percent", 85, 85.0),
    ("used_percent", 0, 0.0),
    ("used_percent", "100%", 100.0),
    ("used_percent", "0.5%", 0.5),
    ("count", 3, 3),
    ("count", " -3 ", -3),
    ("name", "gpt", "gpt"),
    ("name", 10, "10"),
    ("lines", ["a", "b"], ("a", "b")),
    ("lines", "a", ("a",)),
    ("is_on", False, False),
    ("is_on", "Yes", True),
    ("is_on", "off", False),
    ("maybe", None, None),
    ("maybe", "1", True),
    ("word", None, None),
    ("word", "x", "x"),
]


@pytest.mark.parametrize(("name", "written", "meant"), GOOD)
def test_a_value_is_read_as_its_field_means_it(name: str, written: object, meant: object) -> None:
    value = convert(**{name: written})[name]
    assert (value, type(value)) == (meant, type(meant))


BAD: list[tuple[str, object, str]] = [
    ("wait_s", "soon", "not a duration"),
    ("wait_s", -1, "a duration such as"),
    ("wait_s", float("nan"), "a duration such as"),
    ("wait_s", float("inf"), "a duration such as"),
    ("wait_s", True, "a duration such as"),
    ("wait_s", [1], "a duration such as"),
    ("wait_s", "\u0661m", "not a duration"),
    ("quota_bytes", "many", "not a size"),
    ("quota_bytes", -1, "not a size"),
    ("used_percent", 0.85, "a fraction"),
    ("used_percent", 1, "a fraction"),
    ("used_percent", "0.85", "a fraction"),
    ("used_percent", 101, "between 0% and 100%"),
    ("count", 1.5, "a whole number"),
    ("count", True, "a whole number"),
    ("count", "--3", "a whole number"),
    ("count", "\u00b2", "a whole number"),
    ("count", "9" * 5000, "a whole number"),
    ("name", 1.5, "must be a text"),
    ("name", True, "must be a text"),
    ("name", ["a"], "must be a text"),
    ("lines", [1], "a list of texts"),
    ("lines", 1, "a list of texts"),
    ("is_on", 1, "true or false"),
    ("is_on", "maybe", "true or false"),
    ("maybe", "", "true or false"),
]


@pytest.mark.parametrize(("name", "written", "why"), BAD)
def test_a_value_of_the_wrong_kind_is_refused_with_its_place(name: str, written: object, why: str) -> None:
    with pytest.raises(SettingsError) as caught:
        convert(**{name: written})
    assert why in caught.value.message + caught.value.hint
    assert name in caught.value.message and "here.toml" in caught.value.message


def test_a_fraction_is_answered_with_the_percentage_that_was_meant() -> None:
    with pytest.raises(SettingsError) as caught:
        convert(used_percent=0.85)
    assert caught.value.hint == "write 85%"


def test_an_unknown_key_is_answered_with_the_nearest_one_or_with_all() -> None:
    with pytest.raises(SettingsError) as near:
        convert(used_precent=5)
    assert near.value.hint == "did you mean used_percent?"
    with pytest.raises(SettingsError) as far:
        convert(zzzz=5)
    assert "it may have: count, is_on" in far.value.hint


def test_one_value_can_be_converted_by_itself() -> None:
    assert convert_value("wait_s", "2m", float, "--wait") == 120.0
