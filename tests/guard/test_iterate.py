"""The short form, `for batch in guard.steps(loader, save=...)`."""

from __future__ import annotations

from pathlib import Path

import pytest

from resilience.guard import GuardError, Request, TrainingGuard
from resilience.guard.testing import script
from tests.guard.guards import Wisher, make_guard, make_run


def test_every_batch_is_one_step() -> None:
    with make_guard() as guard:
        assert list(guard.steps("abc")) == ["a", "b", "c"]
        assert guard.count == 3
    assert guard.exit_code == 0


def test_a_save_gets_its_label_and_a_stop_ends_the_loop_and_the_loop_around_it() -> None:
    labels, batches = [], []
    with script(save_at=[2], stop_at=4, label="before-lunch"), TrainingGuard.from_env() as guard:
        for epoch in range(3):
            for batch in guard.steps(range(3), save=lambda label: labels.append(label)):
                batches.append((epoch, batch))
    assert batches == [(0, 0), (0, 1), (0, 2), (1, 0)]
    assert labels == ["before-lunch", ""]
    assert guard.exit_code == 75


def test_a_save_that_takes_no_label_is_called_without(tmp_path: Path) -> None:
    saved = []
    wisher = Wisher(Request("wisher", "please", stop=False, label="x"))
    with make_guard(make_run(tmp_path), triggers=[wisher]) as guard:
        for _ in guard.steps(range(10**9), save=lambda: saved.append(guard.count)):
            if saved:
                break
    assert len(saved) == 1


def test_a_kill_switch_before_the_start_yields_nothing(tmp_path: Path) -> None:
    run = make_run(tmp_path)
    (run / "switches" / "kill").touch()
    with make_guard(run, say=lambda text: None) as guard:
        assert list(guard.steps(range(5))) == []
    assert guard.exit_code == 75


def test_without_anything_to_save_with_the_save_switch_stays_and_a_person_is_told(tmp_path: Path) -> None:
    run, said = make_run(tmp_path), list[str]()
    (run / "switches" / "save").touch()
    with make_guard(run, say=said.append) as guard:
        for _ in guard.steps(range(10**9)):
            if any("save=save_checkpoint" in sentence for sentence in said):
                break
    assert (run / "switches" / "save").exists()


def test_without_anything_to_save_with_a_stop_is_a_stop(tmp_path: Path) -> None:
    with make_guard(make_run(tmp_path), triggers=[Wisher("enough")], say=lambda text: None) as guard:
        for _ in guard.steps(range(10**9)):
            pass
    assert guard.exit_code == 75


def test_what_cannot_be_called_cannot_save() -> None:
    with make_guard() as guard, pytest.raises(GuardError, match="cannot be called"):
        guard.steps("abc", save="checkpoint")  # type: ignore[arg-type]


def test_a_failing_save_passes_through() -> None:
    def save() -> None:
        raise OSError("disk full")

    with script(save_at=[1]) as record, TrainingGuard.from_env() as guard, pytest.raises(OSError, match="disk full"):
        list(guard.steps(range(3), save=save))
    assert record.failed_at == [1]
