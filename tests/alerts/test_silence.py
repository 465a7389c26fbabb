"""What a silence covers, and that it always ends."""

from __future__ import annotations

import json
from typing import Any

import pytest

from resilience.alerts.incident import Silence, silence_from_json, silence_to_json
from resilience.errors import UsageError

FS = {"check": "fs", "subject": "/scratch", "run": "gpt", "fault": "space", "episode": "3f9a1c04"}


@pytest.mark.parametrize(
    ("given", "covers"),
    [
        ({"check": "fs"}, True),
        ({"check": "job"}, False),
        ({"check": "*"}, True),
        ({"subject": "/scr*"}, True),
        ({"subject": "/scr"}, False),
        ({"run": "g?t"}, True),
        ({"run": "bert"}, False),
        ({"fault": "space"}, True),
        ({"check": "fs", "subject": "/home"}, False),
        ({"check": "fs", "subject": "/scratch", "run": "gpt"}, True),
        ({"episode": "3f9a"}, True),
        ({"episode": "3f9b"}, False),
    ],
)
def test_a_silence_covers_what_all_of_it_matches(given: dict[str, Any], covers: bool) -> None:
    assert Silence(id="1", until=1.0, **given).covers(**FS) is covers


def test_a_subject_with_brackets_in_its_name_is_itself() -> None:
    silence = Silence(id="1", until=1.0, subject="/logs/[main]")
    assert silence.covers(check="log", subject="/logs/[main]")
    assert silence.covers(check="log", subject="/logs/m")


def test_a_silence_that_says_nothing_is_refused_instead_of_silencing_everything() -> None:
    with pytest.raises(UsageError) as refused:
        Silence(id="1", until=1.0)
    assert "--check '*'" in refused.value.hint


@pytest.mark.parametrize("until", [5.0, 4.0, float("inf"), float("nan")])
def test_a_silence_ends_and_later_than_it_begins(until: float) -> None:
    with pytest.raises(UsageError):
        Silence(id="1", since=5.0, until=until, check="fs")


def test_a_silence_ends_at_its_end() -> None:
    silence = Silence(id="1", until=10.0, check="fs")
    assert not silence.is_over(9.9)
    assert silence.is_over(10.0)


def test_every_field_survives_json() -> None:
    silence = Silence(
        id="12ab34cd", until=10.0, since=1.0, by="ada", why="move",
        check="fs", subject="/s", run="r", fault="f", episode="3",
    )  # fmt: skip
    assert silence_from_json(json.loads(json.dumps(silence_to_json(silence))) | {"later": 1}) == silence


@pytest.mark.parametrize("harm", [{"until": None}, {"until": "soon"}, {"check": 3}, {"check": ""}, {"since": 99.0}])
def test_what_is_no_silence_is_refused(harm: dict[str, Any]) -> None:
    record = silence_to_json(Silence(id="1", until=10.0, check="fs"))
    with pytest.raises((KeyError, TypeError, ValueError)):
        silence_from_json(record | harm)
