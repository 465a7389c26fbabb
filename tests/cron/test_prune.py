"""What is kept for too long goes, what somebody may want stays, and a dry run says the same and removes nothing."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from resilience.cron.project import CronProject, open_cron
from resilience.cron.prune import GONE_S, plan, prune
from resilience.cron.records import Outcome
from resilience.errors import ResilError
from tests.cron.records import DEAD, put_run, running
from tests.lab.fakes import NOW, make_project

OLD = NOW - GONE_S - 3600


@pytest.fixture
def cron(tmp_path: Path) -> CronProject:
    settings = '[run]\nname = "gpt"\ncommand = "x"\n[cron]\nkeep_runs = 3\n'
    made = open_cron(make_project(tmp_path, settings=settings))
    made.directory.mkdir()
    for directory in (made.directory, made.directory.parent):
        directory.chmod(0o755)
    (made.directory / "crontab").write_text("@hourly  true  # resil: name=probe\n")
    (made.directory / "crontab").chmod(0o644)
    made.state.path.mkdir(parents=True, mode=0o700)
    return made


def write(path: Path, when: float = NOW, text: str = "x" * 5000) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    os.utime(path, (when, when))
    return path


def output(cron: CronProject, key: str, name: str, when: float = NOW) -> Path:
    return write(cron.state.path / "output" / key / name, when)


def test_the_newest_outputs_of_each_entry_stay(cron: CronProject) -> None:
    for slot in (9, 10, 100, 1000, 11):
        output(cron, "crontab+probe", f"{slot}.txt")
    dry = prune(cron, dry_run=True)
    assert len(list((cron.state.path / "output" / "crontab+probe").iterdir())) == 5, "a dry run removes nothing"
    done = prune(cron)
    assert [r.path.name for r in done.removals] == [r.path.name for r in dry.removals]
    left = {path.name for path in (cron.state.path / "output" / "crontab+probe").iterdir()}
    assert left == {"11.txt", "100.txt", "1000.txt"}, "the newest by slot, not by name"
    assert all(removal.size_bytes >= 5000 for removal in done.removals)


def test_outputs_of_jobs_go_by_their_age_and_those_of_jobs_under_way_stay(cron: CronProject) -> None:
    for number, job in enumerate((900, 901, 1, 2, 3)):  # the controller lost its state, and counts from 1 again
        output(cron, "crontab+probe", f"{job}.out", NOW - 1000 + number)
    (cron.state.path / "runs").mkdir()
    (cron.state.path / "runs" / "crontab+probe@60@ab@queued@slurm-900").touch()
    prune(cron)
    left = {path.name for path in (cron.state.path / "output" / "crontab+probe").iterdir()}
    assert left == {"900.out", "1.out", "2.out", "3.out"}


def test_an_entry_that_is_gone_for_a_month_leaves_nothing(cron: CronProject) -> None:
    for when, key in ((OLD, "cron.daily+old"), (NOW - 86400, "cron.daily+moved"), (OLD, "crontab+probe")):
        output(cron, key, "5.txt", when)
        write(cron.state.path / "history" / key / "5@5@DONE", when)
        write(cron.state.path / "slots" / f"{key}@5", when)
    done = prune(cron)
    assert {removal.what for removal in done.removals} == {"gone entries"} and len(done.removals) == 3
    remembered = cron.state.keys()
    assert "cron.daily+old" not in remembered, "and its directory is gone as well"
    assert not any((cron.state.path / place / "cron.daily+old").exists() for place in ("output", "history"))
    for key in ("cron.daily+moved", "crontab+probe"):
        assert (cron.state.path / "output" / key / "5.txt").exists(), "back tomorrow, or still in the table"


def test_a_cron_directory_that_is_not_mounted_takes_no_history_with_it(cron: CronProject) -> None:
    write(cron.state.path / "history" / "cron.daily+old.jsonl", OLD)
    (cron.directory / "crontab").unlink()
    cron.directory.rmdir()
    assert prune(cron).removals == ()


def test_a_table_that_cannot_be_read_removes_nothing(cron: CronProject, monkeypatch: pytest.MonkeyPatch) -> None:
    write(cron.state.path / "history" / "cron.daily+old.jsonl", OLD)

    def unreadable(self: CronProject) -> None:
        raise ResilError("it cannot be read")

    monkeypatch.setattr(CronProject, "read_table", unreadable)
    with pytest.raises(ResilError, match="cannot be read"):
        prune(cron)
    assert (cron.state.path / "history" / "cron.daily+old.jsonl").exists()


def test_outputs_of_the_drivers_jobs_are_kept_as_few(cron: CronProject) -> None:
    for number in range(6):
        write(cron.state.path / "driver" / f"job-{number}.out", NOW - 60 * number)
    write(cron.state.path / "driver" / "script", OLD)
    prune(cron)
    assert {path.name for path in (cron.state.path / "driver").iterdir()} == {
        "job-0.out", "job-1.out", "job-2.out", "script",
    }  # fmt: skip


def test_leftovers_of_crashed_writers_are_deleted_and_current_files_stay(cron: CronProject) -> None:
    old = write(cron.state.path / ".heartbeat.0123.tmp", NOW - 2 * 86400)
    new = write(cron.state.path / ".heartbeat.4567.tmp", NOW - 60)
    damaged = write(cron.state.path / "seen.damaged", OLD)
    prune(cron)
    assert not old.exists() and new.exists() and not damaged.exists()


def test_the_state_that_counts_is_never_touched(cron: CronProject) -> None:
    kept = [
        write(cron.state.path / name, OLD, "{}")
        for name in ("heartbeat", "driver.json", "seen", "stop", "jobs/x@1@2@s")
    ]
    prune(cron)
    assert all(path.exists() for path in kept)


def test_the_mark_of_a_dead_run_is_removed_and_the_run_is_reported(cron: CronProject) -> None:
    put_run(cron.state, "crontab+probe", 60, pid=DEAD)
    assert prune(cron, dry_run=True).marks == 1 and len(running(cron.state)) == 1
    assert prune(cron).marks == 1 and running(cron.state) == []
    assert cron.state.history("crontab+probe")[-1].outcome is Outcome.CUT_SHORT


def test_nothing_is_there_to_prune_where_nothing_ever_ran(tmp_path: Path) -> None:
    assert prune(open_cron(make_project(tmp_path))).removals == ()


def test_plan_names_each_file_once(cron: CronProject) -> None:
    for slot in range(10):
        output(cron, "cron.daily+old", f"{slot}.txt", OLD)
    paths = [removal.path for removal in plan(cron, NOW)]
    assert len(paths) == len(set(paths)) == 10
