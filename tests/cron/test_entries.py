"""What runs when and right now, in words that people use, and names that they type."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest

from resilience.cron.entries import (
    coming,
    due_now,
    find_name,
    histories,
    known_names,
    lateness_s,
    list_entries,
    next_runs,
    row_of,
    runs_of,
    took_s,
)
from resilience.cron.project import CronProject, open_cron
from resilience.cron.records import Entry, Kind, Outcome, RunRecord
from resilience.errors import UsageError
from tests.cron.records import FAR, put_run, take
from tests.lab.fakes import NOW, make_project

HOUR = 3600
SLOT = int(NOW // HOUR * HOUR)


def entry(name: str = "crontab/backup", schedule: str = "@hourly", **given: object) -> Entry:
    return Entry(
        **{
            "name": name,
            "place": "cron/crontab:1",
            "schedule": schedule,
            "kind": Kind.RUN,
            "argv": ("/bin/true",),
            **given,
        }  # type: ignore[arg-type]
    )


def run(slot: int = SLOT, outcome: Outcome = Outcome.DONE, **given: object) -> RunRecord:
    return RunRecord(**{"name": "crontab/backup", "slot": slot, "outcome": outcome, "time": slot + 5.0, **given})  # type: ignore[arg-type]


@pytest.fixture
def cron(tmp_path: Path) -> CronProject:
    """A project with one line and one drop-in."""
    made = open_cron(make_project(tmp_path))
    (made.directory / "cron.hourly").mkdir(parents=True, mode=0o755)
    (made.directory / "cron.hourly").chmod(0o755)
    made.directory.chmod(0o755)
    made.directory.parent.chmod(0o755)
    drop_in = made.directory / "cron.hourly" / "backup"
    drop_in.write_text("#!/bin/sh\ntrue\n")
    drop_in.chmod(0o755)
    (made.directory / "crontab").write_text("*/5 * * * *  /bin/true  # resil: name=probe timeout=2m\n")
    (made.directory / "crontab").chmod(0o644)
    return made


# ---- rows


def test_the_next_runs_come_in_order_and_few_entries_show_several() -> None:
    entries = [entry("crontab/a", "*/20 * * * *"), entry("crontab/b", "@hourly"), entry("crontab/c", "@reboot")]
    found = coming(entries, SLOT + 1.0)
    assert [slot - SLOT for slot, _ in found] == [1200, 2400, 3600, 3600, 4800]
    many = [entry(f"crontab/{n}", "* * * * *") for n in range(7)]
    assert len({name for _, name in coming(many, float(SLOT))}) == 5, "five entries, not five times the first"
    assert next_runs(entry(schedule="@reboot"), NOW, 3) == ()


def test_missed_and_skipped_slots_of_a_week_are_counted() -> None:
    runs = [
        run(SLOT - 30 * 86400, Outcome.FAILED),
        run(SLOT - 3 * HOUR, Outcome.MISSED, count=4),
        run(SLOT - 2 * HOUR, Outcome.SKIPPED),
        run(SLOT - HOUR, Outcome.TIMEOUT),
        run(SLOT, Outcome.DONE),
    ]
    row = row_of(entry(), runs, NOW)
    assert (row.missed, row.skipped, row.failed) == (4, 1, 1)
    assert row.last is not None and row.last.outcome is Outcome.DONE


def test_a_password_in_a_command_is_not_shown() -> None:
    row = row_of(entry(argv=("curl", "https://ada:hunter22@example.org/x")), [], NOW)
    assert "hunter22" not in row.command and "example.org" in row.command


def test_how_late_and_how_long() -> None:
    ended = run(started=SLOT + 2.0)
    assert lateness_s(ended) == 2.0 and took_s(ended) == 3.0
    assert lateness_s(run(outcome=Outcome.MISSED)) is None and took_s(run(outcome=Outcome.MISSED)) is None
    running = run(outcome=Outcome.RUNNING, started=SLOT + 2.0)
    assert took_s(running) is None and took_s(running, SLOT + 12.0) == 10.0
    assert took_s(run(outcome=Outcome.SUBMITTED, started=SLOT + 2.0)) is None, "how long its job takes is not known"


def test_the_listing_has_lines_and_drop_ins_with_results(cron: CronProject) -> None:
    cron.state.record("crontab+probe", run(name="crontab/probe"))
    found = list_entries(cron)
    rows = {row.entry.name: row for row in found.rows}
    assert set(rows) == {"crontab/probe", "cron.hourly/backup"}
    assert rows["crontab/probe"].options == {"timeout": "2m"} and rows["crontab/probe"].last is not None
    assert rows["crontab/probe"].next == SLOT + (NOW - SLOT) // 300 * 300 + 300
    assert rows["cron.hourly/backup"].command == "" and rows["cron.hourly/backup"].words == "every hour"


def test_due_slots_are_listed_without_claiming_them(cron: CronProject) -> None:
    assert due_now(cron) == (), "an entry that was never seen has no past"
    take(cron.state, "crontab+probe", SLOT - 600, {}, NOW)
    for _ in range(2):
        (one,) = due_now(cron)
        assert one.entry.name == "crontab/probe"


# ---- names


NAMES = ("cron.hourly/backup", "cron.daily/backup", "cron.daily/clean.slurm", "crontab/probe")


@pytest.mark.parametrize(
    ("typed", "name"),
    [
        ("cron.hourly/backup", "cron.hourly/backup"),
        ("cron/cron.hourly/backup", "cron.hourly/backup"),
        ("probe", "crontab/probe"),
        ("clean.slurm", "cron.daily/clean.slurm"),
        ("clean", "cron.daily/clean.slurm"),
    ],
)
def test_a_name_may_be_typed_short_where_only_one_has_it(typed: str, name: str) -> None:
    assert find_name(NAMES, typed) == name


def test_a_name_that_several_have_is_not_guessed() -> None:
    with pytest.raises(UsageError, match=r"cron.daily/backup, cron.hourly/backup"):
        find_name(NAMES, "backup")


@pytest.mark.parametrize(("typed", "near"), [("prob", "crontab/probe"), ("cron.hourly/bakup", "cron.hourly/backup")])
def test_an_unknown_name_is_answered_with_the_nearest(typed: str, near: str) -> None:
    with pytest.raises(UsageError) as raised:
        find_name(NAMES, typed)
    assert raised.value.hint == f"did you mean {near}?"


def test_an_entry_that_is_gone_has_its_history_still(cron: CronProject) -> None:
    cron.state.record("cron.daily+old", run(name="cron.daily/old"))
    assert "cron.daily/old" in known_names(cron)
    assert [one.name for one in histories(cron, "old")] == ["cron.daily/old"]


def test_histories_of_all_are_in_order_of_their_slots_and_the_newest_stay(cron: CronProject) -> None:
    for number in range(5):
        cron.state.record("crontab+probe", run(SLOT + number * 60, name="crontab/probe"))
    cron.state.record("cron.hourly+backup", run(SLOT + 90, name="cron.hourly/backup"))
    found = histories(cron, last=4)
    assert [(one.name, one.slot - SLOT) for one in found] == [
        ("cron.hourly/backup", 90), ("crontab/probe", 120), ("crontab/probe", 180), ("crontab/probe", 240),
    ]  # fmt: skip
    assert len(histories(cron, "probe", 2)) == 2


# ---- active runs

KEY = "cron.hourly+backup"


def mark(cron: CronProject, slot: int = int(NOW), **given: Any) -> None:
    put_run(cron.state, KEY, slot, at=slot + 1.0, **given)


def record(cron: CronProject, slot: int, outcome: Outcome) -> None:
    cron.state.record(KEY, RunRecord(name="cron.hourly/backup", slot=slot, outcome=outcome, time=slot + 2.0))


def test_an_active_run_comes_after_finished_ones(cron: CronProject) -> None:
    record(cron, int(NOW) - 3600, Outcome.DONE)
    mark(cron)
    (directory := cron.state.path / "output" / KEY).mkdir(parents=True)
    for name in (f"{int(NOW)}.txt", f"{int(NOW)}-2.txt", f"{int(NOW) - 3600}.txt"):
        (directory / name).touch()
    ended, running = runs_of(cron, KEY)
    assert (ended.outcome, running.outcome) == (Outcome.DONE, Outcome.RUNNING)
    assert running.started == int(NOW) + 1.0 and running.pid == os.getpid() and running.output == f"{int(NOW)}-2.txt"


def test_a_run_whose_supervisor_died_is_cut_short_before_any_tick_says_so(cron: CronProject) -> None:
    mark(cron, ticks=1)
    (run,) = runs_of(cron, KEY)
    assert run.outcome is Outcome.CUT_SHORT and "has ended" in run.summary


@pytest.mark.parametrize(("limit_s", "outcome"), [(NOW - int(NOW) + 600.0, Outcome.RUNNING), (1.0, Outcome.CUT_SHORT)])
def test_a_run_on_another_host_is_believed_while_its_time_lasts(
    cron: CronProject, limit_s: float, outcome: Outcome
) -> None:
    mark(cron, int(NOW) - 300, machine_id=FAR, host="n17", limit_s=limit_s)
    assert runs_of(cron, KEY)[0].outcome is outcome


def test_an_end_that_could_not_be_filed_is_read_from_the_record(cron: CronProject) -> None:
    end = RunRecord(name="cron.hourly/backup", slot=int(NOW), outcome=Outcome.FAILED, time=NOW, exit_code=3)
    mark(cron, end=end.to_json())
    assert runs_of(cron, KEY) == (end,)
