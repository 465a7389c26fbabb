"""A child that nobody waits for."""

from __future__ import annotations

import os
import time
from pathlib import Path

from resilience.system.detached import start_detached

PATIENCE_S = 30.0


def test_nobody_waits_for_it_and_its_end_can_be_noticed(tmp_path: Path) -> None:
    go = tmp_path / "go"

    def work() -> None:
        while not go.exists():
            time.sleep(0.01)
        (tmp_path / "done").write_text("yes")

    child = start_detached(work, PATIENCE_S)
    assert not child.is_over()
    go.touch()
    assert child.wait(PATIENCE_S) and child.is_over()
    assert (tmp_path / "done").read_text() == "yes"


def test_one_that_hangs_is_killed_at_its_limit() -> None:
    child = start_detached(lambda: time.sleep(3600), 0.2)
    assert child.wait(PATIENCE_S)


def test_it_is_no_child_of_ours(tmp_path: Path) -> None:
    def work() -> None:
        (tmp_path / "parent").write_text(str(os.getppid()))

    assert start_detached(work, PATIENCE_S).wait(PATIENCE_S)
    assert int((tmp_path / "parent").read_text()) != os.getpid()


def test_it_has_nothing_of_ours_open_but_what_it_shall_keep(tmp_path: Path) -> None:
    reading, writing = os.pipe()
    kept, held = os.pipe()

    def work() -> None:
        (tmp_path / "open").write_text(" ".join(path.name for path in Path("/proc/self/fd").iterdir()))

    child = start_detached(work, PATIENCE_S, keep=kept)
    os.close(writing)
    assert os.read(reading, 1) == b"", "the other end is open nowhere else"
    assert child.wait(PATIENCE_S)
    opened = (tmp_path / "open").read_text().split()
    assert str(kept) in opened and str(held) not in opened
    for descriptor in (reading, kept, held):
        os.close(descriptor)


def test_whatever_it_raises_is_lost_and_harms_nobody() -> None:
    def work() -> None:
        raise SystemExit(3)

    assert start_detached(work, PATIENCE_S).wait(PATIENCE_S)
