"""What is said of a scheduler, of its entries, and of what is ignored."""

from __future__ import annotations

from dataclasses import replace

import pytest

from resilience.cron.checks._cron.judging import judge
from resilience.cron.checks._cron.reading import CronCheckSettings, CronReading
from resilience.finding import Finding, Verdict

NOW = 1_800_000_000.0
ALIVE = CronReading(
    time=NOW - 30, expected=NOW + 30, alive_since=NOW - 86400, ticks=1440, driver="crontab", host="login1",
    is_installed=True, awake_since=NOW - 1e6,
)  # fmt: skip
FAILED = CronReading(
    kind="entry", outcome="failed", slot=int(NOW) - 600, ended=NOW - 590, exit_code=3, failures=1,
    summary="disk full", ran_on="n1", tail=("No space left on device",),
)  # fmt: skip


def one(reading: CronReading, settings: CronCheckSettings | None = None, subject: str = "scheduler") -> Finding:
    (finding,) = judge(subject, reading, settings or CronCheckSettings(), NOW)
    return finding


def silent_for(seconds: float, pause_s: float = 60.0) -> CronReading:
    return replace(ALIVE, time=NOW - seconds, expected=NOW - seconds + pause_s)


def test_a_scheduler_that_ticks_is_well_and_says_since_when() -> None:
    finding = one(ALIVE)
    assert finding.verdict is Verdict.OK and "30 s ago" in finding.summary and "crontab on login1" in finding.summary


@pytest.mark.parametrize(
    ("silent_s", "verdict"),
    [(60, Verdict.OK), (239, Verdict.OK), (241, Verdict.WARNING), (509, Verdict.WARNING), (511, Verdict.CRITICAL),
     (86400, Verdict.CRITICAL)],
)  # fmt: skip
def test_a_late_scheduler_is_a_warning_and_a_dead_one_critical(silent_s: float, verdict: Verdict) -> None:
    assert one(silent_for(silent_s)).verdict is verdict


def test_late_and_dead_are_one_incident_with_the_command_to_run() -> None:
    late, dead = one(silent_for(300)), one(silent_for(5000))
    assert late.fault == dead.fault == "late"
    assert "resil cron status" in late.advice and "resil cron install" in dead.advice


def test_the_scheduler_s_own_patience_counts_and_that_of_the_settings_wins() -> None:
    patient = replace(silent_for(400), patience_s=3600.0)
    assert one(patient).verdict is Verdict.OK
    assert one(patient, CronCheckSettings(late_s=30)).verdict is Verdict.CRITICAL


def test_a_stopped_scheduler_is_ok_and_names_the_user() -> None:
    finding = one(replace(silent_for(86400), stopped="stopped by ada 2 h ago (maintenance)"))
    assert finding.verdict is Verdict.OK and "ada" in finding.summary


def test_one_that_was_uninstalled_is_nothing_to_worry_about() -> None:
    assert one(replace(silent_for(86400), nothing="it was uninstalled")).verdict is Verdict.OK


def test_a_damaged_sign_of_life_is_unknown_never_dead_and_never_well() -> None:
    finding = one(CronReading(damaged="heartbeat is damaged: no JSON"))
    assert finding.verdict is Verdict.UNKNOWN and finding.fault == "damaged"


def test_a_sign_of_life_from_the_future_shows_a_wrong_clock() -> None:
    assert one(replace(ALIVE, time=NOW + 100, expected=NOW + 160)).verdict is Verdict.OK
    finding = one(replace(ALIVE, time=NOW + 3600, expected=NOW + 3660))
    assert finding.verdict is Verdict.WARNING and finding.fault == "clock" and "login1" in finding.summary


def test_an_error_in_the_tick_itself_is_reported() -> None:
    finding = one(replace(ALIVE, trouble="no successor could be queued: QOSMaxSubmitJobPerUserLimit"))
    assert finding.verdict is Verdict.WARNING and finding.fault == "trouble" and "QOSMax" in finding.summary


def test_a_late_scheduler_with_an_error_reports_both() -> None:
    findings = judge("scheduler", replace(silent_for(300), trouble="no successor"), CronCheckSettings(), NOW)
    assert {finding.fault for finding in findings} == {"late", "trouble"}


def test_a_whole_cluster_that_has_just_come_back_raises_no_alarm() -> None:
    finding = one(replace(silent_for(86400), awake_since=NOW - 40))
    assert finding.verdict is Verdict.OK and "waiting for the next tick" in finding.summary
    assert one(replace(silent_for(86400), awake_since=NOW - 400)).verdict is Verdict.CRITICAL


def test_one_that_was_installed_and_never_ticked_is_late_as_well() -> None:
    finding = one(CronReading(time=NOW - 900, expected=NOW - 840, driver="slurm", is_installed=True))
    assert finding.verdict is Verdict.CRITICAL and "no tick yet" in finding.summary


@pytest.mark.parametrize("outcome", ["failed", "timeout", "refused", "cut short"])
def test_an_entry_whose_last_run_failed_is_a_warning_with_what_it_wrote(outcome: str) -> None:
    finding = one(replace(FAILED, outcome=outcome), subject="cron.hourly/backup")
    assert finding.verdict is Verdict.WARNING and finding.fault == "failed"
    assert finding.evidence == ("No space left on device",) and "disk full" in finding.summary
    assert finding.advice == "resil cron logs cron.hourly/backup"


def test_three_failures_in_a_row_are_critical_unless_that_is_switched_off() -> None:
    three = replace(FAILED, failures=3)
    assert one(three).verdict is Verdict.CRITICAL
    assert one(three, CronCheckSettings(crit_failures=0)).verdict is Verdict.WARNING


@pytest.mark.parametrize(("skips", "verdict"), [(2, Verdict.OK), (3, Verdict.WARNING), (30, Verdict.WARNING)])
def test_three_skips_in_a_row_are_reported(skips: int, verdict: Verdict) -> None:
    reading = CronReading(kind="entry", outcome="done", ended=NOW - 60, skips=skips, running_since=NOW - 7200)
    finding = one(reading, subject="crontab/sync")
    assert finding.verdict is verdict
    if verdict is Verdict.WARNING:
        assert finding.fault == "skipped" and f"{skips} slots" in finding.summary


def test_an_entry_that_ran_well_or_not_yet_is_well() -> None:
    assert one(CronReading(kind="entry")).verdict is Verdict.OK
    done = one(CronReading(kind="entry", outcome="done", ended=NOW - 60, missed=4))
    assert done.verdict is Verdict.OK and "4 slots missed" in done.summary
    assert "as job 88" in one(CronReading(kind="entry", outcome="submitted", ended=NOW - 60, job_id="88")).summary


def test_files_ignored_by_mistake_are_reported_with_a_fix() -> None:
    reading = CronReading(kind="ignored", summary="the directory is writable by everybody", hint="chmod o-w cron")
    finding = one(reading, subject="cron/cron.hourly/backup")
    assert (finding.verdict, finding.fault, finding.advice) == (Verdict.WARNING, "ignored", "chmod o-w cron")
