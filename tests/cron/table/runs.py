"""Real runs for tests: a project, a scheduler's hand, and looks at what is left of them on this machine."""

from __future__ import annotations

import itertools
import os
import signal
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from resilience.cron.book import State
from resilience.cron.records import Entry, EntryOptions, Ignored, Kind, Outcome, RunRecord
from resilience.cron.state_directory import CronDirectory
from resilience.cron.table import watched_run
from resilience.cron.table.output import output_directory
from resilience.cron.table.supervisor import Supervised
from resilience.cron.table.watched_run import Setup, longest_s
from resilience.errors import StateDirectoryError
from resilience.settings.cron_settings import CronSettings
from resilience.system.ports import SystemClock

PATIENCE_S = 60.0
"""No test waits longer for what must come."""

SLOT = 1_800_000_000


class Runs:
    """A project with its scheduler.

    Attributes:
        project: its directory.
        directory: its cron directory in the state directory.
        supervised: its runs.
    """

    def __init__(self, project: Path, state: Path | None = None, *, group: str = "", **options: Any) -> None:
        self.project = project
        self.directory = CronDirectory(state or project / "state", group)
        self.environ = {"PATH": "/usr/local/bin:/usr/bin:/bin", "HOME": str(project)}
        self.refused: Ignored | None = None
        self._numbers = itertools.count(1)
        settings = CronSettings(**{"output_bytes": 65536.0, **options})
        made = Setup(
            self.directory,
            settings,
            project,
            self._environment,
            lambda _: self.refused,
            SystemClock(),
            os.uname().nodename,
        )
        self.supervised = Supervised(made)

    def _environment(self, entry: Entry, slot: int) -> Mapping[str, str]:
        return {**self.environ, **entry.environment}

    def start(self, entry: Entry, slot: int = SLOT) -> RunRecord:
        """Begin a run."""
        key = f"{entry.key}#{next(self._numbers)}"  # a slot may be run again
        limit_s = longest_s(entry.options.timeout_s)
        try:
            run = self.directory.book.claim(key, slot, {"name": entry.name}, time.time, limit_s=limit_s)
        except StateDirectoryError:
            run = None
        record = self.supervised.start(entry, slot, run)
        if run is not None and record.outcome is not Outcome.RUNNING:
            self.directory.book.drop(run)
        return record

    def ends(self, count: int = 1) -> tuple[RunRecord, ...]:
        """The next ends."""
        found: tuple[RunRecord, ...] = ()
        until = time.monotonic() + PATIENCE_S
        while len(found) < count and time.monotonic() < until:
            found += self.supervised.wait(1.0)
        assert len(found) == count, found
        return found

    def run(self, *argv: str, slot: int = SLOT, **options: Any) -> RunRecord:
        """Run something to its end."""
        self.start(entry(*argv, **options), slot)
        return self.ends()[0]

    def sh(self, script: str, *, slot: int = SLOT, **options: Any) -> RunRecord:
        """Run a shell's words to their end."""
        return self.run("/bin/sh", "-c", script, slot=slot, **options)

    def words(self, record: RunRecord) -> bytes:
        """What is kept of a run's output."""
        if not record.output:
            return b""
        return (output_directory(self.directory, record.name.replace("/", "+")) / record.output).read_bytes()

    def history(self, name: str = "crontab/it") -> tuple[RunRecord, ...]:
        """What became of its slots."""
        return self.directory.history(name.replace("/", "+"))

    def left(self, word: str) -> list[int]:
        """The living processes of this project's runs whose command line has a word."""
        found = []
        for path in Path("/proc").iterdir():
            with suppress(OSError):
                if path.name.isdigit() and word in (path / "cmdline").read_text(errors="replace"):
                    found += (
                        [int(path.name)]
                        if f"HOME={self.project}\0" in (path / "environ").read_text(errors="replace")
                        else []
                    )
        return found

    def active(self) -> list[str]:
        """The runs that have not ended."""
        return [f"{run.entry_key}@{run.slot}" for run in self.directory.book.active() if run.state is State.RUNNING]


def entry(*argv: str, name: str = "crontab/it", environment: Mapping[str, str] | None = None, **options: Any) -> Entry:
    """A line of a crontab."""
    return Entry(
        name=name, place="cron/crontab:1", schedule="@hourly", kind=Kind.RUN, argv=argv,
        environment=environment or {}, options=EntryOptions(**options),
    )  # fmt: skip


@pytest.fixture
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    """Grown patience cut short: a second for what takes ten. Supervisors inherit it."""
    monkeypatch.setattr(watched_run, "KILL_AFTER_S", 1.0)
    monkeypatch.setattr(watched_run, "LINGER_S", 0.3)
    monkeypatch.setattr(watched_run, "SECOND_S", 0.05)


@pytest.fixture
def runs(tmp_path: Path, quick: None) -> Iterator[Runs]:
    """A project, of whose runs nothing is left at the end: no process, no zombie, no descriptor."""
    before, children = len(list(Path("/proc/self/fd").iterdir())), children_of_ours()
    made = Runs(tmp_path)
    yield made
    made.supervised.end_all(0.0)
    until_true(lambda: made.supervised.poll() == () and children_of_ours() <= children, "no child of ours is left")
    assert len(list(Path("/proc/self/fd").iterdir())) <= before


def children_of_ours() -> set[int]:
    """The children that this process has, zombies included."""
    found: set[int] = set()
    for task in Path("/proc/self/task").iterdir():
        with suppress(OSError):
            found |= {int(word) for word in (task / "children").read_text().split()}
    return found


def until_true(condition: Callable[[], bool], what: str) -> None:
    """Wait until something is so."""
    until = time.monotonic() + PATIENCE_S
    while not condition():
        assert time.monotonic() < until, f"it never came: {what}"
        time.sleep(0.01)


def wait_for(path: Path) -> str:
    """Wait for a file with something in it; return that."""
    until_true(lambda: path.exists() and path.stat().st_size > 0, f"{path}")
    return path.read_text()


def kill(pid: int, number: int = signal.SIGKILL) -> None:
    """Send a signal."""
    os.kill(pid, number)
