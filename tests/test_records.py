"""Values that come back from JSON as they were, and records of other versions."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import pytest

from resilience.finding import Figure, Finding, Verdict
from resilience.records import from_record, to_record


class Part(NamedTuple):
    name: str
    size: float | None = None


@dataclass(frozen=True, slots=True)
class Seen:
    used: int
    words: tuple[str, ...] = ()
    rates: Mapping[str, tuple[float, ...]] | None = None
    parts: tuple[Part, ...] = ()
    best: Part | None = None
    verdict: Verdict = Verdict.OK
    notes: Mapping[str, str] = field(default_factory=dict)


def through_json(value: Any) -> Any:
    return from_record(type(value), json.loads(json.dumps(to_record(value))))


@pytest.mark.parametrize("value", [
    Seen(3),
    Seen(3, ("a", "\u00fc\udcff"), {"x": (1.5, math.inf)}),
    Seen(0, parts=(Part("a"), Part("b", 2.0)), best=Part("c"), verdict=Verdict.CRITICAL, notes={"x": "y"}),
    Finding(subject="/a", verdict=Verdict.WARNING, summary="", figures=(Figure("used", 1.0, warn=2.0),)),
])  # fmt: skip
def test_a_value_comes_back_from_json_as_it_was(value: Any) -> None:
    assert through_json(value) == value


def test_only_what_is_not_as_by_default_is_written() -> None:
    assert to_record(Part("a")) == {"name": "a"}
    assert to_record(Seen(0, best=Part("a"))) == {"used": 0, "best": {"name": "a"}, "notes": {}}


def test_a_record_of_a_later_version_is_read_as_far_as_it_is_known_and_one_of_an_earlier_refused() -> None:
    assert from_record(Seen, {"used": 1, "news": 2}) == Seen(1)
    with pytest.raises(TypeError):
        from_record(Seen, {"words": []})


@pytest.mark.parametrize(
    "record", [[], "text", {"used": 1, "best": 3}, {"used": 1, "parts": 3}, {"used": 1, "parts": ["a"]}]
)
def test_what_is_no_record_is_refused(record: Any) -> None:
    with pytest.raises(TypeError):
        from_record(Seen, record)


def test_an_unknown_word_of_an_enumeration_is_refused() -> None:
    with pytest.raises(ValueError, match="FINE"):
        from_record(Seen, {"used": 1, "verdict": "FINE"})


def test_a_complete_record_has_all_fields_and_is_read_strictly() -> None:
    whole = {"used": 0, "words": [], "rates": None, "parts": [], "best": {"name": "a", "size": None}, "verdict": "OK"}
    value = Seen(0, best=Part("a"))
    assert to_record(value, complete=True) == whole | {"notes": {}}
    part = json.loads(json.dumps(to_record(Part("a", 2), complete=True)))
    assert from_record(Part, part, strict=True) == Part("a", 2.0)


@pytest.mark.parametrize("harm", [{"name": 3}, {"name": None}, {"size": "2"}, {"size": True}, {"size": math.inf},
                                  {"size": math.nan}, {"size": 10**400}])  # fmt: skip
def test_a_strict_reader_refuses_values_of_another_type_and_numbers_that_are_not_finite(harm: dict[str, Any]) -> None:
    with pytest.raises((TypeError, ValueError), match=f"{next(iter(harm))}: "):
        from_record(Part, {"name": "a"} | harm, strict=True)
    if "size" in harm:
        assert from_record(Part, {"name": "a"} | harm, strict=True, lenient=True) == Part("a")
