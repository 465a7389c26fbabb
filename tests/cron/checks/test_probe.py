"""What is read of the scheduler and its entries."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from resilience.cron.checks._cron.probe import read_cron, read_scheduler
from resilience.cron.checks._cron.reading import SCHEDULER, CronCheckSettings, CronReading
from resilience.cron.records import Heartbeat, Installation, Outcome, RunRecord
from resilience.cron.state_directory import CronDirectory
from resilience.errors import StateDirectoryError
from resilience.watch.reading import Timed
from tests.system.people import NOBODY, acting_as, needs_root, open_the_way

NOW = 1_800_000_000.0
SETTINGS = CronCheckSettings()


@pytest.fixture
def directory(tmp_path: Path) -> CronDirectory:
    return CronDirectory(tmp_path)


def beat(directory: CronDirectory, driver: str = "foreground", ago_s: float = 30.0) -> None:
    time = NOW - ago_s
    directory.beat(Heartbeat(time=time, expected=time + 60, alive_since=time - 600, ticks=10, driver=driver, host="n1"))


def install(directory: CronDirectory, driver: str = "crontab", ago_s: float = 600.0) -> None:
    directory.install(
        Installation(driver=driver, token="t", time=NOW - ago_s, by="ada", host="n1", project="/p", python="/py")
    )


def ran(
    directory: CronDirectory, slot: int, outcome: Outcome, name: str = "cron.hourly/backup", **fields: object
) -> None:
    run = RunRecord(name=name, slot=slot, outcome=outcome, time=float(slot + 5), **fields)  # type: ignore[arg-type]
    directory.record(name.replace("/", "+"), run)


def entry(directory: CronDirectory, name: str = "cron.hourly/backup") -> CronReading:
    return read_cron(directory, SETTINGS, {}, NOW)[name]


def test_without_any_installation_there_is_nothing_to_check(directory: CronDirectory) -> None:
    assert read_cron(directory, SETTINGS, {}, NOW) == {}


def test_a_tick_is_shown_with_all_its_output(directory: CronDirectory) -> None:
    beat(directory)
    reading = read_cron(directory, SETTINGS, {}, NOW)[SCHEDULER]
    assert (reading.time, reading.ticks, reading.driver, reading.host) == (NOW - 30, 10, "foreground", "n1")


def test_one_that_never_ticked_is_judged_from_its_installation_on(
    directory: CronDirectory,
) -> None:
    install(directory, ago_s=600)
    reading = read_cron(directory, SETTINGS, {}, NOW)[SCHEDULER]
    assert (reading.time, reading.ticks, reading.is_installed) == (NOW - 600, 0, True)


def test_a_reinstalled_scheduler_is_not_late_by_its_old_heartbeat(directory: CronDirectory) -> None:
    beat(directory, "crontab", ago_s=86400)
    install(directory, ago_s=10)
    assert read_cron(directory, SETTINGS, {}, NOW)[SCHEDULER].time == NOW - 10


def test_a_stop_is_seen_with_its_author(directory: CronDirectory) -> None:
    beat(directory)
    directory.stop("ada", "maintenance", NOW - 7200)
    said = read_cron(directory, SETTINGS, {}, NOW)[SCHEDULER].stopped
    assert "ada" in said and "maintenance" in said and "2 h" in said


def test_no_tick_of_an_uninstalled_driver_is_expected(directory: CronDirectory) -> None:
    beat(directory, "crontab", ago_s=86400)
    assert "uninstalled" in read_cron(directory, SETTINGS, {}, NOW)[SCHEDULER].nothing
    beat(directory, "foreground", ago_s=86400)
    assert not read_cron(directory, SETTINGS, {}, NOW)[SCHEDULER].nothing
    assert directory.mark_last("elsewhere", 1) is None, "another's scheduler"
    assert not read_cron(directory, SETTINGS, {}, NOW)[SCHEDULER].nothing
    assert directory.mark_last() is not None
    assert "ended on purpose" in read_cron(directory, SETTINGS, {}, NOW)[SCHEDULER].nothing


@pytest.mark.parametrize("content", ["", "{", "[]", '{"time": "x"}', '{"time": null, "expected": 1}'])
def test_a_damaged_sign_of_life_is_seen_as_that(directory: CronDirectory, content: str) -> None:
    beat(directory)
    (directory.path / "heartbeat").write_text(content)
    assert read_cron(directory, SETTINGS, {}, NOW)[SCHEDULER].damaged


def test_a_problem_of_the_job_chain_belongs_to_the_scheduler_and_to_no_entry(
    directory: CronDirectory,
) -> None:
    install(directory, "slurm", ago_s=600)
    beat(directory, "slurm")
    noted = directory.path / "driver" / "trouble"
    noted.parent.mkdir()
    noted.write_text("a successor of the scheduler's job is missing: QOSMaxSubmitJob\n")
    os.utime(noted, (NOW - 100, NOW - 100))
    seen = read_cron(directory, SETTINGS, {}, NOW)
    assert set(seen) == {SCHEDULER} and "QOSMaxSubmitJob" in seen[SCHEDULER].trouble
    os.utime(noted, (NOW - 700, NOW - 700))
    assert not read_cron(directory, SETTINGS, {}, NOW)[SCHEDULER].trouble, "of an earlier installation"
    noted.unlink()
    assert not read_cron(directory, SETTINGS, {}, NOW)[SCHEDULER].trouble


def test_a_directory_in_its_place_is_damage_as_well(directory: CronDirectory) -> None:
    (directory.path / "heartbeat").mkdir(parents=True)
    assert read_cron(directory, SETTINGS, {}, NOW)[SCHEDULER].damaged


@needs_root
def test_an_unreadable_directory_is_an_error_and_not_empty(directory: CronDirectory) -> None:
    beat(directory)
    (directory.path / "heartbeat").chmod(0o600)
    directory.path.chmod(0o755)
    open_the_way(directory.path / "heartbeat")
    with acting_as(NOBODY), pytest.raises(StateDirectoryError):
        read_cron(directory, SETTINGS, {}, NOW)


def test_a_node_suspended_since_the_last_check_has_just_woken_up(directory: CronDirectory) -> None:
    beat(directory)
    first = read_scheduler(directory, NOW)
    assert first is not None and first.boot
    slept = CronReading(slept_s=first.slept_s - 3600, boot=first.boot, awake_since=first.awake_since)
    again = read_scheduler(directory, NOW, slept)
    assert again is not None and again.awake_since == NOW
    still = read_scheduler(directory, NOW + 60, again)
    assert still is not None and still.awake_since == NOW, "it is remembered when it woke up"


def test_of_an_entry_the_last_run_that_ended_counts(directory: CronDirectory) -> None:
    beat(directory)
    ran(directory, 100, Outcome.FAILED, exit_code=2, summary="no space")
    ran(directory, 200, Outcome.RUNNING, started=201.0)
    reading = entry(directory)
    assert (reading.outcome, reading.exit_code, reading.running_since) == ("failed", 2, 201.0)
    ran(directory, 200, Outcome.DONE, exit_code=0)
    assert (entry(directory).outcome, entry(directory).failures, entry(directory).running_since) == ("done", 0, 0.0)


def test_failures_in_a_row_are_counted_back_to_the_last_good_run(directory: CronDirectory) -> None:
    beat(directory)
    for slot, outcome in enumerate(
        (Outcome.FAILED, Outcome.DONE, Outcome.TIMEOUT, Outcome.CUT_SHORT, Outcome.REFUSED), start=1
    ):
        ran(directory, slot, outcome)
    assert entry(directory).failures == 3


def test_skips_in_a_row_are_counted_past_the_run_that_lasts(directory: CronDirectory) -> None:
    beat(directory)
    ran(directory, 1, Outcome.DONE)
    ran(directory, 2, Outcome.RUNNING, started=2.0)
    ran(directory, 3, Outcome.SKIPPED, count=2)
    ran(directory, 5, Outcome.SKIPPED)
    assert entry(directory).skips == 3
    ran(directory, 6, Outcome.DONE)
    assert entry(directory).skips == 0


def test_missed_slots_before_the_last_run_are_counted(directory: CronDirectory) -> None:
    beat(directory)
    ran(directory, 1, Outcome.DONE)
    ran(directory, 4, Outcome.MISSED, count=3)
    ran(directory, 5, Outcome.DONE)
    assert entry(directory).missed == 3
    ran(directory, 6, Outcome.DONE)
    assert entry(directory).missed == 0


def test_the_end_of_a_failed_runs_output_is_evidence(directory: CronDirectory) -> None:
    beat(directory)
    ran(directory, 100, Outcome.FAILED, output="100.txt")
    output = directory.path / "output" / "cron.hourly+backup" / "100.txt"
    output.parent.mkdir(parents=True)
    output.write_text("".join(f"line {n} {'x' * 500}\n" for n in range(1000)))
    tail = entry(directory).tail
    assert tail[-1].startswith("line 999") and len(tail) <= 15 and all(len(line) <= 300 for line in tail)


def test_an_output_that_is_a_link_or_gone_is_no_evidence_and_no_error(directory: CronDirectory, tmp_path: Path) -> None:
    beat(directory)
    ran(directory, 100, Outcome.FAILED, output="100.txt")
    assert entry(directory).tail == ()
    output = directory.path / "output" / "cron.hourly+backup" / "100.txt"
    output.parent.mkdir(parents=True)
    (tmp_path / "secret").write_text("secret\n")
    output.symlink_to(tmp_path / "secret")
    assert entry(directory).tail == ()


def test_an_entry_that_left_the_table_is_over(directory: CronDirectory) -> None:
    beat(directory)
    ran(directory, 100, Outcome.FAILED)
    (directory.path / "table.json").write_text(json.dumps({"entries": ["cron.daily/other"], "ignored": []}))
    assert "no longer in the table" in entry(directory).nothing


def test_files_ignored_by_mistake_are_reported_and_so_is_their_end(directory: CronDirectory) -> None:
    beat(directory)
    ignored = [["cron/cron.hourly/x", "everybody may write there", "chmod o-w"]]
    (directory.path / "table.json").write_text(json.dumps({"entries": [], "ignored": ignored}))
    seen = read_cron(directory, SETTINGS, {}, NOW)
    assert seen["cron/cron.hourly/x"].summary == "everybody may write there"
    (directory.path / "table.json").write_text(json.dumps({"entries": [], "ignored": []}))
    before = {subject: Timed(NOW, reading) for subject, reading in seen.items()}
    assert read_cron(directory, SETTINGS, before, NOW)["cron/cron.hourly/x"].nothing


def test_only_the_named_entries_are_checked(directory: CronDirectory) -> None:
    beat(directory)
    ran(directory, 100, Outcome.DONE)
    ran(directory, 100, Outcome.DONE, name="crontab/sync")
    assert set(read_cron(directory, CronCheckSettings(entries=("sync",)), {}, NOW)) == {"crontab/sync"}
    assert set(read_cron(directory, CronCheckSettings(entries=("cron.hourly/*",)), {}, NOW)) == {"cron.hourly/backup"}
