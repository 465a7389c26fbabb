"""Several missed slots are made up for one after the other, oldest first; a line runs as cron would run it."""

from __future__ import annotations

from itertools import pairwise
from pathlib import Path

from resilience.cron.records import Outcome
from tests.cron.context import TOP, CronContext

HOUR = 3600


def test_missed_slots_that_run_late_do_not_overlap(tmp_path: Path) -> None:
    context = CronContext(tmp_path)
    context.drop("cron.hourly/a", options="catch_up=all<=3 jitter=0")
    context.tick(TOP - 30)
    context.tick(TOP + 1)
    late = TOP + 5 * HOUR
    done = context.tick(late + 1)
    ended = [late - 2 * HOUR, late - HOUR, late]
    assert [(record.slot, record.outcome) for record in done.ended] == [(slot, Outcome.DONE) for slot in ended]
    assert [record.count for record in done.skipped] == [2]  # two are too old
    starts = [(record.started or 0.0, record.time) for record in context.history("cron.hourly+a")[-3:]]
    assert all(end <= start for (_, end), (start, _) in pairwise(starts))
    assert context.tick(late + 200).started == ()
    assert context.ran() == [TOP, late - 2 * HOUR, late - HOUR, late]


def test_a_line_runs_in_a_shell_with_its_input(tmp_path: Path) -> None:
    context = CronContext(tmp_path)
    line = "* * * * * cd sub && cat | tr a-z A-Z >> $FILE; exit 3%hello%world\\%  # resil: name=x ok=3"
    context.crontab(f"FILE=out\n{line}\n")
    (context.home / "sub").mkdir()
    context.tick(TOP - 30)
    (ended,) = context.tick(TOP + 1).ended
    assert (ended.name, ended.outcome, ended.exit_code) == ("crontab/x", Outcome.DONE, 3)
    assert (context.home / "sub" / "out").read_text() == "HELLO\nWORLD%\n"
