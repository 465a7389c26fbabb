"""Several missed slots are made up for one after the other, oldest first; a line runs as cron would run it."""

from __future__ import annotations

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
    for number in range(3):
        done = context.tick(late + 60 * number + 1)
        assert [(record.slot, record.outcome) for record in done.ended] == [(late - (2 - number) * HOUR, Outcome.DONE)]
        assert [record.count for record in done.skipped] == ([2] if number == 0 else [])  # two are too old
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
