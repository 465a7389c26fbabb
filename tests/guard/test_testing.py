"""The public testing mode: a loop is tested without files, signals or waiting."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from resilience.guard import GuardError, TrainingGuard
from resilience.guard.testing import parse_script, script

LOOP = """\
import sys
from resilience.guard import TrainingGuard
with TrainingGuard.from_env() as guard:
    if guard.should_stop_early():
        sys.exit(guard.exit_code)
    for batch in range(100):
        decision = guard.step()
        if decision.save:
            with guard.saving():
                print("saved", guard.count, decision.label)
        if decision.stop:
            break
sys.exit(guard.exit_code)
"""


def train() -> int:
    with TrainingGuard.from_env() as guard:
        if guard.should_stop_early():
            return guard.exit_code
        for _ in range(100):
            decision = guard.step()
            if decision.save:
                with guard.saving():
                    pass
            if decision.stop:
                break
    return guard.exit_code


def test_a_loop_saves_and_stops_at_the_scripts_steps() -> None:
    with script(save_at=[3], stop_at=5) as record:
        assert train() == 75
    assert record.saved_at == [3, 5]
    assert record.stopped_at == 5
    assert "RESIL_GUARD" not in os.environ


def test_a_loop_that_is_never_stopped_ends_with_0() -> None:
    with script() as record:
        assert train() == 0
    assert (record.saved_at, record.stopped_at) == ([], None)


def test_a_stop_before_the_first_step() -> None:
    with script(stop_at=0, exit_code=1) as record:
        assert train() == 1
    assert record.saved_at == []


def test_a_stop_is_announced_to_polls_in_the_step_before_it() -> None:
    with script(stop_at=2), TrainingGuard.from_env() as guard:
        assert not guard.poll().stop
        guard.step()
        assert guard.poll().stop
        assert guard.step().stop


def test_a_failed_save_is_on_the_record() -> None:
    with script(save_at=[1]) as record, TrainingGuard.from_env() as guard:
        guard.step()
        with pytest.raises(OSError), guard.saving():
            raise OSError("full")
    assert (record.saved_at, record.failed_at) == ([], [1])


def test_another_process_is_scripted_through_its_environment(tmp_path: Path) -> None:
    environ = {**os.environ, "RESIL_GUARD": "test:save@3=nightly,stop@5", "PYTHONPATH": str(Path.cwd())}
    done = subprocess.run([sys.executable, "-c", LOOP], env=environ, capture_output=True, text=True, timeout=60)
    assert done.returncode == 75
    assert done.stdout.splitlines() == ["saved 3 nightly", "saved 5 "]


@pytest.mark.parametrize("text", ["test:save", "test:stop@x", "test:save@3=../etc", "test:go@3", "test:stop@-1"])
def test_an_invalid_script_is_refused_with_an_example(text: str) -> None:
    with pytest.raises(GuardError) as refused:
        parse_script(text)
    assert "test:save@3,stop@5" in refused.value.hint
