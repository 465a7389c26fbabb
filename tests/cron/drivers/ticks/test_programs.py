"""Who edits a person's table is alone at it, and never waits for ever to be."""

from __future__ import annotations

import fcntl
import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from resilience.cron.drivers import ProgramFailed, ProgramUnavailable
from resilience.cron.drivers._ticks import programs
from resilience.cron.drivers._ticks.programs import (
    LOCK_S,
    change,
    error_of,
    run_program,
)
from resilience.errors import ResilError
from resilience.runs.context import Context
from resilience.system.process import Completed
from tests.cron.drivers.site import Site


class Table:
    """A table in memory."""

    name = f"test-table-{os.getpid()}"

    def __init__(self, table: str | None = None) -> None:
        self.table, self.writes = table, 0

    def read(self, context: Context) -> str | None:
        return self.table

    def write(self, table: str, context: Context) -> None:
        self.table, self.writes = table, self.writes + 1

    def remove(self, context: Context) -> None:
        self.table = None


@pytest.fixture(autouse=True)
def no_lock_file_stays() -> Iterator[None]:
    yield
    Path("/tmp", f"resil-{os.getuid()}", f"{Table.name}.lock").unlink(missing_ok=True)


def lock_of(context: Context) -> Path:
    return Path("/tmp", f"resil-{context.system.host.uid}", f"{Table.name}.lock")


def test_an_unchanged_table_is_not_written(tmp_path: Path) -> None:
    table = Table("a\n")
    assert not change(table, lambda text: text, Site(tmp_path).context())
    assert table.writes == 0


def test_a_table_of_which_nothing_is_left_is_removed(tmp_path: Path) -> None:
    table = Table("ours\n")
    assert change(table, lambda text: text.replace("ours\n", ""), Site(tmp_path).context())
    assert table.table is None and table.writes == 0


def test_the_lock_is_given_back_whatever_happens(tmp_path: Path) -> None:
    context = Site(tmp_path).context()

    def fail(_: str) -> str:
        with open(lock_of(context)) as lock, pytest.raises(BlockingIOError):
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        raise ResilError("no")

    with pytest.raises(ResilError, match="no"):
        change(Table("a\n"), fail, context)
    with open(lock_of(context)) as lock:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)


def test_a_lock_that_is_never_given_back_is_waited_for_and_then_done_without(tmp_path: Path) -> None:
    context = Site(tmp_path).context()
    table = Table("a\n")
    change(table, lambda text: text, context)
    with open(lock_of(context)) as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        assert change(table, lambda text: text if text.startswith("b") else f"b\n{text}", context)
    assert table.table == "b\na\n"
    assert context.system.clock.monotonic() >= LOCK_S


def test_without_a_lock_file_it_continues(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(programs, "own_directory", lambda path: None)
    table = Table("a\n")
    assert change(table, lambda text: text if text.startswith("b") else f"b\n{text}", Site(tmp_path).context())


def test_no_descriptor_is_left_behind(tmp_path: Path) -> None:
    context = Site(tmp_path).context()
    change(Table("a\n"), lambda text: text, context)
    before = len(list(Path("/proc/self/fd").iterdir()))
    for _ in range(5):
        change(Table("a\n"), lambda text: text, context)
    assert len(list(Path("/proc/self/fd").iterdir())) == before


def test_a_program_that_is_missing_will_be_missing_tomorrow_and_one_that_hangs_may_not(tmp_path: Path) -> None:
    site = Site(tmp_path)
    with pytest.raises(ProgramUnavailable):
        run_program(site.context(), ["no-such-program"])
    site.write_program("slow", "exec sleep 1000\n")
    with pytest.raises(ProgramFailed) as caught:
        run_program(site.context(), ["slow"], timeout_s=0.2)
    assert caught.value.transient and not isinstance(caught.value, ProgramUnavailable)


def test_a_program_speaks_plain_english(tmp_path: Path) -> None:
    site = Site(tmp_path)
    site.write_program("speak", 'echo "$LC_ALL"\n')
    context = site.context()
    assert run_program(context, ["speak"]).stdout == "C\n"


def test_the_error_of_a_program_fits_in_a_line() -> None:
    assert error_of(Completed(("x",), 1, "out\n", " a \n\n b\n")) == "a; b"
    assert error_of(Completed(("x",), 1, "out\n", "")) == "out"
    assert error_of(Completed(("x",), 3, "", "")) == "exit code 3, no output"
    assert len(error_of(Completed(("x",), 1, "", "y" * 10_000))) == 300
