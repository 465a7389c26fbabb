"""The `with` blocks around a save and around a phase."""

from __future__ import annotations

from pathlib import Path

import pytest

from resilience.guard import Request
from tests.guard.guards import Wisher, make_guard, make_run, train, wait_until


@pytest.fixture
def run(tmp_path: Path) -> Path:
    return make_run(tmp_path / "demo")


def test_a_save_inside_a_save_is_one_save(run: Path) -> None:
    wisher = Wisher(Request("wisher", "please", stop=False))
    with make_guard(run, triggers=[wisher]) as guard:
        train(guard)
        with guard.saving(), guard.saving():
            assert wisher.heard == []
        wait_until(lambda: wisher.heard == ["saved"])
    text = (run / "journal" / "12.0.jsonl").read_text()
    assert text.count('"event":"save"') == 1


def test_phases_nest_and_return(run: Path) -> None:
    with make_guard(run) as guard:
        guard.step()
        with guard.phase("eval"):
            with guard.saving():
                pass
            guard.phase("generate")
        assert guard._phase == "train"


def test_an_exception_in_a_save_passes_through(run: Path) -> None:
    with make_guard(run) as guard, pytest.raises(OSError, match="disk full"), guard.saving():
        raise OSError("disk full")
    assert '"event":"save_failed"' in (run / "journal" / "12.0.jsonl").read_text()


def test_a_save_that_nobody_asked_for_is_measured_too(run: Path) -> None:
    with make_guard(run) as guard:
        guard.step()
        with guard.saving():
            pass
    assert '"event":"save",' in (run / "journal" / "12.0.jsonl").read_text()
