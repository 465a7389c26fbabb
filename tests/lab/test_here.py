"""A probe in the test's own process answers as one in a child does, and a directory that hangs is left to a child."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from resilience.errors import SettingsError, StateDirectoryError
from resilience.system.stuck import ChildProbe, StuckMemory, probe_in_child
from tests.lab.fakes import make_system
from tests.lab.here import probe_here
from tests.lab.hung import hung_directory


def refuse() -> None:
    raise SettingsError("resil.toml is a directory", hint="mv it away")


def refuse_in_another_room() -> None:
    raise StateDirectoryError("it is read-only", hint="mount it", transient=True)


def fail() -> None:
    raise ZeroDivisionError("by 0")


def say() -> list[str]:
    print("out")
    print("err", file=sys.stderr)
    return ["an answer"]


@pytest.mark.parametrize("work", [refuse, refuse_in_another_room, fail, say, dict, lambda: (1, b"2", None)])
def test_a_probe_here_answers_as_one_in_a_child(tmp_path: Path, work: Callable[[], Any]) -> None:
    system = make_system(tmp_path)
    answers = []
    for probe in (probe_here, probe_in_child):
        [(key, answer)] = probe({"a": ChildProbe("x", work, 30.0)}, StuckMemory.of(system), system.clock)
        error = answer.error and (type(answer.error), answer.error.message, answer.error.hint, answer.error.transient)
        answers.append((key, answer._replace(took_s=0.0, error=None), error))
    assert answers[0] == answers[1]


def test_a_directory_that_hangs_is_left_to_a_child(tmp_path: Path) -> None:
    system = make_system(tmp_path)
    with hung_directory(tmp_path / "hung") as directory:
        look = ChildProbe("x", lambda: list(map(str, directory.iterdir())), 0.5)
        [(_, answer)] = probe_here({"a": look}, StuckMemory.of(system), system.clock)
        assert answer.is_overdue and answer.abandoned
