"""Several missed slots are made up for one after the other, oldest first; a line runs as cron would run it."""

from __future__ import annotations

import errno
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from resilience.cron.records import Outcome
from resilience.cron.slots import Slots
from resilience.errors import StateDirectoryError
from tests.cron.context import TOP, CronContext, wait_until

HOUR = 3600


def test_missed_slots_that_run_late_do_not_overlap(tmp_path: Path) -> None:
    context = CronContext(tmp_path)
    context.drop("cron.hourly/a", options="catch_up=all<=3 jitter=0")
    context.tick(TOP - 30)
    context.tick(TOP + 1)
    late = TOP + 5 * HOUR
    done = context.tick(late + 1)
    wait_until(lambda: not context.cron.state.book.active())  # it waits for a while, not for a busy machine
    missed = [late - 2 * HOUR, late - HOUR, late]
    assert [(record.slot, record.outcome) for record in context.history("cron.hourly+a")[-3:]] == [
        (slot, Outcome.DONE) for slot in missed
    ]
    assert [record.count for record in done.skipped] == [2]  # two are too old
    starts = [(record.started or 0.0, record.time) for record in context.history("cron.hourly+a")[-3:]]
    assert all(end <= start for (_, end), (start, _) in pairwise(starts))
    assert context.tick(late + 200).started == ()
    assert context.ran() == [TOP, late - 2 * HOUR, late - HOUR, late]


def test_a_slot_due_during_a_late_run_passes_over_none_that_waits(tmp_path: Path) -> None:
    context = CronContext(tmp_path)
    context.drop("cron.hourly/a", options="catch_up=all<=9", body=": > began; until [ -e go ]; do sleep 0.01; done")
    context.tick(TOP - 30)
    context.tick(TOP + 2 * HOUR + 1, wait=False)
    wait_until(lambda: (context.home / "began").exists())  # an hour later, a run that has not begun would be dead
    context.tick(TOP + 3 * HOUR + 1, wait=False)
    (context.home / "go").touch()
    wait_until(lambda: not context.cron.state.book.active())
    context.tick(TOP + 3 * HOUR + 2)
    assert context.outcomes("cron.hourly+a") == {TOP + hour * HOUR: "done" for hour in range(4)}


@contextmanager
def failing(monkeypatch: pytest.MonkeyPatch, times: int) -> Iterator[None]:
    """Have no room for the next claims, as on a disk that is full for a moment."""
    claim, left = Slots.claim, iter(range(times))

    def refuse(*arguments: Any) -> bool:
        if next(left, None) is not None:
            raise OSError(errno.ENOSPC, "No space left on device")
        return claim(*arguments)

    with monkeypatch.context() as patched:
        patched.setattr(Slots, "claim", refuse)
        yield


@pytest.mark.parametrize("catch_up", ["all<=9", "once"])
def test_a_slot_that_cannot_be_claimed_waits_and_so_do_the_newer_ones(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, catch_up: str
) -> None:
    context = CronContext(tmp_path)
    context.drop("cron.hourly/a", options=f"catch_up={catch_up}")
    context.tick(TOP - 30)
    with failing(monkeypatch, 1), pytest.raises(StateDirectoryError, match="No space left"):
        context.tick(TOP + 2 * HOUR + 1)
    context.tick(TOP + 2 * HOUR + 2)
    wait_until(lambda: not context.cron.state.book.active())
    context.tick(TOP + 2 * HOUR + 3)  # on a busy machine a run may end before the slot after it can be asked for
    found = context.history("cron.hourly+a")
    assert sum(record.count for record in found) == 3 and found[-1].outcome is Outcome.DONE


def test_what_may_be_repeated_runs_on_time_though_an_older_slot_cannot_be_claimed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    context = CronContext(tmp_path)
    context.drop("cron.hourly/a", options="catch_up=all<=9 rerun")
    context.tick(TOP - 30)
    with failing(monkeypatch, 99), pytest.raises(StateDirectoryError, match="No space left"):
        context.tick(TOP + 2 * HOUR + 1)
    assert context.ran() == [TOP + 2 * HOUR]


def test_a_line_runs_in_a_shell_with_its_input(tmp_path: Path) -> None:
    context = CronContext(tmp_path)
    line = "* * * * * cd sub && cat | tr a-z A-Z >> $FILE; exit 3%hello%world\\%  # resil: name=x ok=3"
    context.crontab(f"FILE=out\n{line}\n")
    (context.home / "sub").mkdir()
    context.tick(TOP - 30)
    (ended,) = context.tick(TOP + 1).ended
    assert (ended.name, ended.outcome, ended.exit_code) == ("crontab/x", Outcome.DONE, 3)
    assert (context.home / "sub" / "out").read_text() == "HELLO\nWORLD%\n"
