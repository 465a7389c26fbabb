"""What is read of the scheduler, its entries and ignored files, and what is said of them."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from pathlib import Path

import pytest

from resilience.cron.checks.cron import CHECK, SCHEDULER, CronCheckSettings, CronReading, read_scheduler
from resilience.cron.drivers import DriverState
from resilience.cron.health import Health
from resilience.cron.records import Heartbeat, Installation, Outcome, RunRecord
from resilience.cron.state_directory import CronDirectory
from resilience.errors import StateDirectoryError
from resilience.finding import Finding, Verdict
from resilience.job import Liveness
from resilience.settings.cron_settings import CronSettings
from resilience.watch.reading import Timed
from resilience.watch.watchdogs import context_of
from tests.cron.records import put_run
from tests.lab.fakes import NOW, make_project
from tests.system.people import NOBODY, acting_as, needs_root, open_the_way

SETTINGS = CronCheckSettings()
BACKUP = "cron.hourly/backup"
ALIVE = DriverState(Liveness.ALIVE, "our line is in the crontab", NOW + 30)


class Directory(CronDirectory):
    """The state directory of a project."""

    def __init__(self, directory: Path) -> None:
        self.project = make_project(directory)
        super().__init__(self.project.loaded.state_dir)

    def ticked(self, driver: str = "foreground", ago_s: float = 30.0, **fields: object) -> None:
        given = {"alive_since": NOW - 86400, "ticks": 10, "host": "n1", "driver": driver, **fields}
        self.beat(Heartbeat(time=NOW - ago_s, expected=NOW - ago_s + 60, **given))  # type: ignore[arg-type]

    def installed(self, driver: str = "crontab", ago_s: float = 600.0) -> None:
        self.install(
            Installation(driver=driver, token="t", time=NOW - ago_s, by="ada", host="n1", project="/p", python="/py")
        )

    def ran(self, slot: int, outcome: Outcome, name: str = BACKUP, **fields: object) -> None:
        fields = {"time": float(slot + 5), **fields}
        self.record(name.replace("/", "+"), RunRecord(name=name, slot=slot, outcome=outcome, **fields))  # type: ignore[arg-type]

    def read(
        self, settings: CronCheckSettings = SETTINGS, before: Mapping[str, CronReading] | None = None
    ) -> dict[str, CronReading]:
        """What the watchdog reads."""
        context = context_of(self.project)
        (target,) = CHECK.targets(settings, context)
        known = {subject: Timed(NOW, reading) for subject, reading in (before or {}).items()}
        return dict(CHECK.probe(target, settings, context, known))

    def found(self, subject: str = SCHEDULER, settings: CronCheckSettings = SETTINGS) -> Finding:
        (finding,) = findings(self.read(settings)[subject], subject, settings)
        return finding


def findings(
    reading: CronReading, subject: str = SCHEDULER, settings: CronCheckSettings = SETTINGS
) -> tuple[Finding, ...]:
    return tuple(CHECK.judge(subject, [Timed(NOW, reading)], settings, NOW))


@pytest.fixture
def directory(tmp_path: Path) -> Directory:
    return Directory(tmp_path)


# ---- the scheduler


def test_without_any_installation_there_is_nothing_to_check(directory: Directory) -> None:
    assert directory.read() == {} and directory.read(CronCheckSettings(entries=("x",))) == {}


def test_a_scheduler_that_ticks_is_well_and_says_since_when(directory: Directory) -> None:
    directory.ticked()
    finding = directory.found()
    assert finding.verdict is Verdict.OK
    assert "30 s ago (foreground on n1)" in finding.summary


@pytest.mark.parametrize(
    ("silent_s", "verdict"),
    [(60, Verdict.OK), (239, Verdict.OK), (241, Verdict.WARNING), (509, Verdict.WARNING), (511, Verdict.CRITICAL),
     (86400, Verdict.CRITICAL)],
)  # fmt: skip
def test_a_late_scheduler_is_a_warning_and_a_dead_one_critical_with_the_command_to_run(
    directory: Directory, silent_s: float, verdict: Verdict
) -> None:
    directory.ticked(ago_s=silent_s)
    finding = directory.found()
    assert finding.verdict is verdict
    assert verdict is Verdict.OK or (finding.fault == "late" and "resil cron" in finding.advice), "one incident"


def test_patience_is_the_watchdogs_or_else_the_schedulers_own(directory: Directory) -> None:
    directory.ticked(ago_s=400, patience_s=3600.0)
    assert directory.found().verdict is Verdict.OK
    assert directory.found(settings=CronCheckSettings(late_s=30)).verdict is Verdict.CRITICAL


def test_a_stop_is_ok_with_its_author(directory: Directory) -> None:
    directory.ticked(ago_s=86400)
    directory.stop("ada", "maintenance", NOW - 7200)
    finding = directory.found()
    assert finding.verdict is Verdict.OK
    assert all(part in finding.summary for part in ("stopped", "ada", "maintenance", "2 h"))


def test_no_tick_of_an_uninstalled_driver_is_expected(directory: Directory) -> None:
    directory.ticked("crontab", ago_s=86400)
    assert directory.found().verdict is Verdict.OK and "nothing is installed" in directory.found().summary
    directory.ticked("foreground", ago_s=86400)
    assert directory.found().verdict is Verdict.CRITICAL
    assert directory.mark_last("elsewhere", 1) is None, "another's scheduler"
    assert directory.mark_last() is not None
    assert directory.found().verdict is Verdict.OK, "ended on purpose"


@pytest.mark.parametrize("content", ["", "{", "[]", '{"time": "x"}', '{"time": null, "expected": 1}', None])
def test_a_damaged_heartbeat_is_unknown_never_dead_and_never_well(directory: Directory, content: str | None) -> None:
    directory.path.mkdir(parents=True)
    if content is None:
        (directory.path / "heartbeat").mkdir()
    else:
        (directory.path / "heartbeat").write_text(content)
    assert (directory.found().verdict, directory.found().fault) == (Verdict.UNKNOWN, "damaged")


def test_a_heartbeat_from_the_future_shows_a_wrong_clock(directory: Directory) -> None:
    directory.ticked(ago_s=-100)
    assert directory.found().verdict is Verdict.OK
    directory.ticked(ago_s=-3600)
    finding = directory.found()
    assert (finding.verdict, finding.fault) == (Verdict.WARNING, "clock") and "n1" in finding.summary


def test_an_error_in_the_tick_is_reported_beside_its_lateness(directory: Directory) -> None:
    directory.ticked(trouble="no successor: QOSMaxSubmitJobPerUserLimit")
    finding = directory.found()
    assert (finding.verdict, finding.fault) == (Verdict.WARNING, "trouble") and "QOSMax" in finding.summary
    directory.ticked(ago_s=300, trouble="no successor")
    assert {one.fault for one in findings(directory.read()[SCHEDULER])} == {"late", "trouble"}


def test_a_problem_of_the_job_chain_belongs_to_the_scheduler_and_to_no_entry(directory: Directory) -> None:
    directory.installed("slurm")
    directory.ticked("slurm")
    noted = directory.path / "driver" / "trouble"
    noted.parent.mkdir()
    noted.write_text("a successor of the scheduler's job is missing: QOSMaxSubmitJob\n")
    os.utime(noted, (NOW - 100, NOW - 100))
    seen = directory.read()
    assert set(seen) == {SCHEDULER} and "QOSMaxSubmitJob" in seen[SCHEDULER].trouble
    os.utime(noted, (NOW - 86400, NOW - 86400))
    assert not directory.read()[SCHEDULER].trouble, "of an earlier installation"
    noted.unlink()
    assert not directory.read()[SCHEDULER].trouble


@needs_root
def test_an_unreadable_directory_is_an_error_and_not_empty(directory: Directory) -> None:
    directory.ticked()
    (directory.path / "heartbeat").chmod(0o600)
    directory.path.chmod(0o755)
    open_the_way(directory.path / "heartbeat")
    with acting_as(NOBODY), pytest.raises(StateDirectoryError):
        read_scheduler(directory, CronSettings(), NOW)


def test_the_watchdog_asks_the_driver_and_a_controller_that_hangs_leaves_the_heartbeat(directory: Directory) -> None:
    directory.installed()
    directory.ticked("crontab")
    gone = DriverState(Liveness.GONE, "our line was disabled by scancel", hint="restore it: resil cron install")
    for state, health in ((ALIVE, Health.ALIVE), (gone, Health.DEAD), (ALIVE._replace(next_tick=NOW + 3600),
                          Health.LATE), (DriverState(Liveness.UNKNOWN, "no answer"), Health.ALIVE)):  # fmt: skip
        reading = read_scheduler(directory, CronSettings(), NOW, ask=lambda _, state=state: state)  # type: ignore[misc]
        assert reading is not None and reading.judgement is not None and reading.judgement.health is health


# ---- entries


@pytest.mark.parametrize("outcome", [Outcome.FAILED, Outcome.TIMEOUT, Outcome.REFUSED, Outcome.CUT_SHORT])
def test_an_entry_whose_last_run_failed_is_a_warning_with_what_it_wrote(directory: Directory, outcome: Outcome) -> None:
    directory.ticked()
    directory.ran(100, outcome, exit_code=3, summary="disk full", output="100.txt", host="n1")
    output = directory.path / "output" / "cron.hourly+backup" / "100.txt"
    output.parent.mkdir(parents=True)
    output.write_text("".join(f"line {n} {'x' * 500}\n" for n in range(1000)))
    finding = directory.found(BACKUP)
    assert (finding.verdict, finding.fault) == (Verdict.WARNING, "failed") and "disk full" in finding.summary
    assert finding.advice == f"resil cron logs {BACKUP}" and "on n1" in finding.summary
    tail = finding.evidence
    assert tail[-1].startswith("line 999") and len(tail) <= 15 and all(len(line) <= 300 for line in tail)


def test_an_output_that_is_a_link_or_gone_is_no_evidence_and_no_error(directory: Directory, tmp_path: Path) -> None:
    directory.ticked()
    directory.ran(100, Outcome.FAILED, output="100.txt")
    assert directory.found(BACKUP).evidence == ()
    output = directory.path / "output" / "cron.hourly+backup" / "100.txt"
    output.parent.mkdir(parents=True)
    (tmp_path / "secret").write_text("secret\n")
    output.symlink_to(tmp_path / "secret")
    assert directory.found(BACKUP).evidence == ()


def test_a_run_that_its_scheduler_ended_is_told_as_that(directory: Directory) -> None:
    directory.ticked()
    directory.ran(100, Outcome.CUT_SHORT, summary="ended because its scheduler was stopped")
    summary = directory.found(BACKUP).summary
    assert summary.startswith("was cut short ") and summary.endswith(": ended because its scheduler was stopped")
    assert "died" not in summary


def test_failures_in_a_row_are_counted_back_to_the_last_good_run_and_three_are_critical(directory: Directory) -> None:
    directory.ticked()
    for slot, outcome in enumerate((Outcome.FAILED, Outcome.DONE, Outcome.TIMEOUT, Outcome.CUT_SHORT), start=1):
        directory.ran(slot, outcome)
    assert directory.read()[BACKUP].failures == 2 and directory.found(BACKUP).verdict is Verdict.WARNING
    directory.ran(5, Outcome.REFUSED)
    assert directory.found(BACKUP).verdict is Verdict.CRITICAL
    assert directory.found(BACKUP, CronCheckSettings(crit_failures=0)).verdict is Verdict.WARNING


def test_of_an_entry_the_last_run_that_ended_counts(directory: Directory) -> None:
    directory.ticked()
    directory.ran(100, Outcome.FAILED, exit_code=2, summary="no space")
    run = put_run(directory, "cron.hourly+backup", 200, at=201.0)
    reading = directory.read()[BACKUP]
    assert reading.last is not None and (reading.last.slot, reading.running_since) == (100, 201.0)
    directory.book.drop(run)
    directory.ran(200, Outcome.DONE, exit_code=0)
    reading = directory.read()[BACKUP]
    assert reading.last is not None and (reading.last.slot, reading.failures, reading.running_since) == (200, 0, 0.0)


@pytest.mark.parametrize(("skips", "verdict"), [(2, Verdict.OK), (3, Verdict.WARNING), (30, Verdict.WARNING)])
def test_three_skips_in_a_row_past_the_run_that_lasts_are_reported(
    directory: Directory, skips: int, verdict: Verdict
) -> None:
    directory.ticked()
    directory.ran(1, Outcome.DONE)
    put_run(directory, "cron.hourly+backup", 2, at=NOW - 7200)
    directory.ran(3, Outcome.SKIPPED, count=skips - 1)
    directory.ran(9, Outcome.SKIPPED)
    finding = directory.found(BACKUP)
    assert finding.verdict is verdict
    if verdict is Verdict.WARNING:
        assert finding.fault == "skipped" and f"{skips} slots" in finding.summary and "for 2 h" in finding.summary
    directory.ran(12, Outcome.DONE)
    assert directory.read()[BACKUP].skips == 0


def test_an_entry_that_ran_well_or_not_yet_is_well_with_its_missed_slots(directory: Directory) -> None:
    directory.ticked()
    directory.ran(1, Outcome.DONE)
    directory.ran(4, Outcome.MISSED, count=3)
    directory.ran(5, Outcome.DONE)
    assert directory.found(BACKUP).verdict is Verdict.OK and "3 slots missed" in directory.found(BACKUP).summary
    directory.ran(6, Outcome.SUBMITTED, job_id="88")
    assert "missed" not in directory.found(BACKUP).summary and "as job 88" in directory.found(BACKUP).summary
    assert findings(CronReading(), BACKUP)[0].verdict is Verdict.OK


def test_an_entry_that_left_the_table_is_over(directory: Directory) -> None:
    directory.ticked()
    directory.ran(100, Outcome.FAILED)
    (directory.path / "table.json").write_text(json.dumps({"entries": ["cron.daily/other"], "ignored": []}))
    assert "no longer in the table" in directory.found(BACKUP).summary


def test_files_ignored_by_mistake_are_reported_with_a_fix_and_so_is_their_end(directory: Directory) -> None:
    directory.ticked()
    place, why, fix = "cron/cron.hourly/x", "everybody may write there", "chmod o-w"
    (directory.path / "table.json").write_text(json.dumps({"entries": [], "ignored": [[place, why, fix]]}))
    finding = directory.found(place)
    assert (finding.verdict, finding.fault, finding.advice) == (Verdict.WARNING, "ignored", fix)
    assert why in finding.summary
    seen = directory.read()
    (directory.path / "table.json").write_text(json.dumps({"entries": [], "ignored": []}))
    assert directory.read(before=seen)[place].nothing


def test_only_the_named_entries_are_checked(directory: Directory) -> None:
    directory.ticked()
    directory.ran(100, Outcome.DONE)
    directory.ran(100, Outcome.DONE, name="crontab/sync")
    assert set(directory.read(CronCheckSettings(entries=("sync",)))) == {"crontab/sync"}
    assert set(directory.read(CronCheckSettings(entries=("cron.hourly/*",)))) == {BACKUP}


def test_a_reading_survives_the_store(directory: Directory) -> None:
    from resilience.records import from_record, to_record

    directory.ticked()
    directory.ran(100, Outcome.FAILED, exit_code=2)
    for subject, reading in directory.read().items():
        stored = from_record(CronReading, json.loads(json.dumps(to_record(reading))))
        assert findings(stored, subject) == findings(reading, subject)
