"""Faults of the loss and of saves in a guard's journal: how long they persist, whatever else is wrong."""

from __future__ import annotations

import os

import pytest

from tests.watch.checks.log.training_run import (
    NOTHING,
    Run,
    begins,
    failed,
    follow,
    is_removed,
    journals,
    nan,
    save,
    start,
)
from tests.watch.checks.log.watcher import HOUR, LogWatcher
from tests.watch.checks.outcome import outcome

NONFINITE, SAVE_FAILED = "CRITICAL loss-nonfinite", "CRITICAL save-failed"
RECORDS = {
    NONFINITE: (start() + nan(12), "the loss is NaN since step 12"),
    SAVE_FAILED: (start() + save(1) + failed(80), "the newest durable save is of step 1,"),
}
of_the_loss_or_of_a_save = pytest.mark.parametrize("fault", RECORDS)


@of_the_loss_or_of_a_save
def test_a_finished_run_has_no_fault(watchdog: LogWatcher, run: Run, fault: str) -> None:
    follow(watchdog, run, [(0, journals(RECORDS[fault][0]), fault), (0, Run.finish, "OK")])


@of_the_loss_or_of_a_save
def test_the_fault_of_a_removed_run_is_resolved(watchdog: LogWatcher, run: Run, fault: str) -> None:
    story = [(0, journals(RECORDS[fault][0]), fault), (0, is_removed, "OK"), (0, None, NOTHING)]
    follow(watchdog, run, story)


@of_the_loss_or_of_a_save
def test_an_old_fault_persists_unless_the_run_is_removed_or_continues(
    watchdog: LogWatcher, run: Run, fault: str
) -> None:
    run.journal(101, RECORDS[fault][0])
    run.end(1, "exited")
    follow(watchdog, run, [(0, None, fault), (48 * HOUR, None, NOTHING)])
    assert watchdog.anew("gpt").outcome() == fault
    if fault == NONFINITE:
        follow(watchdog, run, [(0, (begins(2), journals(start(10, attempt=2) + save(13, attempt=2), 102)), "OK")])
    else:
        follow(watchdog, run, [(0, is_removed, "OK"), (0, None, NOTHING)])


def test_each_fault_is_reported_beside_others(watchdog: LogWatcher, run: Run) -> None:
    run.beat(101, {0: (80, 0.0, "train")})
    run.journal(101, start() + failed(80) + nan(90))
    watchdog.findings()
    watchdog.clock.sleep(5 * HOUR)
    assert {outcome(finding) for finding in watchdog.findings()} == {SAVE_FAILED, NONFINITE, "CRITICAL no-progress"}


@of_the_loss_or_of_a_save
def test_an_unreadable_journal_yields_no_verdict_and_resolves_no_fault(
    watchdog: LogWatcher, run: Run, fault: str
) -> None:
    raw, words = RECORDS[fault]
    path = run.journal(101)
    path.mkdir()
    assert watchdog.outcome() == "OK"
    path.rmdir()
    run.journal(101, raw)
    assert watchdog.outcome() == fault
    for place in (path, path.parent):
        aside = place.with_name("aside")
        place.rename(aside)
        place.touch() if place == path.parent else os.mkfifo(place)
        follow(watchdog, run, [(0, None, fault, words)])
        place.unlink()
        aside.rename(place)


@of_the_loss_or_of_a_save
def test_a_run_with_unreadable_attempts_is_unknown_and_its_fault_persists(
    watchdog: LogWatcher, run: Run, fault: str
) -> None:
    raw, words = RECORDS[fault]
    run.journal(101, raw)
    watchdog.findings()
    run.journal(101).unlink()  # only the stored reading still has it
    run.attempts.rename(run.path / "aside")
    run.attempts.symlink_to("attempts")  # cannot be listed: ELOOP
    assert watchdog.outcome() == "UNKNOWN not-read"
    run.attempts.unlink()
    (run.path / "aside").rename(run.attempts)
    follow(watchdog, run, [(0, None, fault, words)])
