"""Three answers about a job, and no short cut from them to a yes or a no."""

from __future__ import annotations

from dataclasses import FrozenInstanceError

import pytest

from resilience.job import Liveness, Presence


def test_there_are_three_answers_and_unknown_is_one() -> None:
    assert {answer.value for answer in Liveness} == {"ALIVE", "GONE", "UNKNOWN"}


def test_an_answer_needs_its_reason() -> None:
    with pytest.raises(TypeError):
        Presence(Liveness.UNKNOWN)  # type: ignore[call-arg]


def test_unknown_cannot_be_turned_into_gone_later() -> None:
    presence = Presence(Liveness.UNKNOWN, "squeue did not answer")
    with pytest.raises(FrozenInstanceError):
        presence.liveness = Liveness.GONE  # type: ignore[misc]
