"""A history is bounded, and no line of anybody is lost over it."""

from __future__ import annotations

import fcntl
import subprocess
import sys
from pathlib import Path

import pytest

from resilience.cron.records import Outcome, RunRecord
from resilience.cron.state_directory import CronDirectory
from resilience.cron.table import history
from resilience.cron.table.history import KEPT_LINES, MOST_LINES, add, shorten
from resilience.system.files import write_atomic

KEY = "cron.hourly+backup"


def a_run(slot: int, outcome: Outcome = Outcome.DONE, summary: str = "") -> RunRecord:
    """What became of a slot."""
    return RunRecord(name="cron.hourly/backup", slot=slot, outcome=outcome, time=float(slot), summary=summary)


def test_a_short_history_is_left_as_it_is(tmp_path: Path) -> None:
    directory = CronDirectory(tmp_path)
    assert shorten(directory, KEY) == 0
    add(directory, KEY, a_run(1))
    assert shorten(directory, KEY) == 0
    assert directory.history(KEY) == (a_run(1),)


def test_of_a_long_one_the_newest_ends_are_kept_and_damage_goes(tmp_path: Path) -> None:
    directory = CronDirectory(tmp_path)
    for slot in range(1, MOST_LINES // 2 + 2):
        directory.record(KEY, a_run(slot, Outcome.RUNNING))
        directory.record(KEY, a_run(slot))
    directory.record(KEY, a_run(9000, Outcome.RUNNING))
    path = directory.path / "history" / f"{KEY}.jsonl"
    with path.open("ab") as file:
        file.write(b'{"half a li\n')
    assert shorten(directory, KEY) > 0
    kept = directory.history(KEY)
    assert len(kept) == KEPT_LINES
    assert kept[-1] == a_run(9000, Outcome.RUNNING)
    assert all(run.outcome is Outcome.DONE for run in kept[:-1])
    assert kept[-2].slot == MOST_LINES // 2 + 1
    assert path.stat().st_mode & 0o777 == 0o600
    assert list(path.parent.iterdir()) == [path]


def test_a_line_appended_during_a_rewrite_stays(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    directory = CronDirectory(tmp_path)
    for slot in range(60):
        add(directory, KEY, a_run(slot))
    path = directory.path / "history" / f"{KEY}.jsonl"

    def write(target: Path, content: bytes, *, mode: int) -> None:
        directory.record(KEY, a_run(1000))  # by somebody who knows nothing of this
        write_atomic(target, content, mode=mode)

    monkeypatch.setattr(history, "write_atomic", write)
    assert shorten(directory, KEY, most=50, kept=10) == 50
    assert [run.slot for run in directory.history(KEY)] == [*range(50, 60), 1000]
    assert path.exists()


def test_a_line_appended_to_the_old_file_by_a_slow_writer_is_added_again(tmp_path: Path) -> None:
    class Slow(CronDirectory):
        """Between the opening of the file and the writing into it, the file is replaced."""

        def record(self, key: str, run: RunRecord) -> None:
            super().record(key, run)
            if run.slot == 3 and not any(known.slot == 2 for known in self.history(key)):
                (self.path / "history" / f"{key}.jsonl").unlink()
                super().record(key, a_run(2))

    directory = Slow(tmp_path)
    for slot in (1, 3):
        add(directory, KEY, a_run(slot))
    assert [run.slot for run in directory.history(KEY)] == [2, 3]


def test_only_one_rewrites_it_at_a_time(tmp_path: Path) -> None:
    directory = CronDirectory(tmp_path)
    for slot in range(60):
        add(directory, KEY, a_run(slot))
    with (directory.path / "history" / f"{KEY}.jsonl").open("rb") as other:
        fcntl.flock(other, fcntl.LOCK_EX)
        assert shorten(directory, KEY, most=50, kept=10) == 0
    assert shorten(directory, KEY, most=50, kept=10) == 50


_WRITER = """
import sys
from pathlib import Path
from resilience.cron.table.history import add, shorten
from resilience.cron.records import Outcome, RunRecord
from resilience.cron.state_directory import CronDirectory
directory, first = CronDirectory(Path(sys.argv[1])), int(sys.argv[2])
for slot in range(first, first + 300):
    add(directory, "k", RunRecord(name="k", slot=slot, outcome=Outcome.DONE, time=1.0))
    shorten(directory, "k", most=700, kept=650)
"""


def test_three_that_write_and_shorten_at_once_lose_nothing_that_is_to_be_kept(tmp_path: Path) -> None:
    writers = [
        subprocess.Popen([sys.executable, "-c", _WRITER, str(tmp_path), str(first)], cwd=Path(__file__).parents[3])
        for first in (1000, 2000, 3000)
    ]
    assert [writer.wait(timeout=120) for writer in writers] == [0, 0, 0]
    directory = CronDirectory(tmp_path)
    lines = (directory.path / "history" / "k.jsonl").read_bytes().splitlines()
    kept = {run.slot for run in directory.history("k")}
    assert 600 <= len(kept) <= len(lines) <= 900
    for first in (1000, 2000, 3000):  # the newest of each writer: none is missing in between
        own = sorted(slot for slot in kept if first <= slot < first + 300)
        assert own[-1] == first + 299
        assert own[-50:] == list(range(first + 250, first + 300))
