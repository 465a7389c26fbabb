"""Saves that fail, in the journal of rank 0's guard: what people hear of them, and when that is over."""

from __future__ import annotations

import os
import shutil
from concurrent.futures import Future
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from resilience.records import from_record
from resilience.runs.attempts import LastSave, last_save
from resilience.runs.run_files import ATTEMPTS_WITHOUT_SAVE, TAIL_BYTES
from resilience.system.files import parse_lines
from resilience.watch.checks._log import runs as look_runs
from resilience.watch.checks._log.reading import LogReading
from resilience.watch.checks._log.runs import failed_save, still_failed
from resilience.watch.checks.log import CHECK
from tests.fakes import NOW, FakeClock
from tests.guard.guards import wait_until
from tests.watch.checks.log.test_losses import guarded, line, nan, start, write
from tests.watch.checks.log.test_runs import HOUR, MINUTE, Run, told
from tests.watch.checks.log.watcher import LogWatcher

FULL = "OSError(28, 'No space left on device')"


def save(step: int, **more: Any) -> bytes:
    return begun(step, **more) + line("save", step, **{"at": step + 1, "seconds": 1.0, **more})


def begun(step: int, **more: Any) -> bytes:
    return line("save_begin", step, **{"at": step, **more}) + line("save_staged", step, **{"at": step, **more})


def failed(step: int, **more: Any) -> bytes:
    return begun(step, **more) + line("save_failed", step, **{"at": step + 1, "error": FULL, **more})


SAYS = f"the save of step 80 failed: {FULL}"
DURABLE = "; the newest durable one is of step 40, 2 h ago"
NONE = "; there is no durable one yet"
WAITS = f"the save of step 80 in attempt 1 failed: {FULL}; attempt 2 has not saved yet"
TABLE: dict[str, tuple[bytes, str]] = {
    "nothing": (b"", ""),
    "saves that are durable": (start() + save(40) + save(80), ""),
    "one that failed": (start() + save(40) + failed(80), SAYS + DURABLE),
    "the first one": (start() + failed(80), SAYS + NONE),
    "one in the background after another": (start() + save(40) + failed(60) + failed(80), SAYS + DURABLE),
    "one that failed, and the next is on its way": (start() + save(40) + failed(80) + begun(90), SAYS + DURABLE),
    "one that the next has made good": (start() + save(40) + failed(80) + save(90), ""),
    "one that is on its way": (start() + save(40) + begun(80), ""),
    "one that was cut off by the end of its attempt": (start() + begun(80) + start(attempt=2), ""),
    "one that failed, and an attempt that has only begun": (
        start() + save(40) + failed(80) + start(40, attempt=2), WAITS + DURABLE
    ),
    "one that failed, and an attempt whose save is on its way": (
        start() + save(40) + failed(80) + start(40, attempt=2) + begun(80, attempt=2), WAITS + DURABLE
    ),
    "one that failed, and an attempt that has saved": (
        start() + save(40) + failed(80) + start(40, attempt=2) + save(60, attempt=2), ""
    ),
    "lines that are damaged": (
        start() + save(40) + b'[1]\nnull\n{"event":"save"}\n{"event":"save","step":"90"}\n\xff\n'
        + failed(80) + b'{"event":"save","ste',
        SAYS + DURABLE,
    ),
    "a reason that nobody would print": (
        start() + failed(80, error="no \x1b[31m\n room").replace(b'"attempt":1', b'"attempt":"x"'),
        "the save of step 80 failed: no [31m room" + NONE
    ),
    "no reason, and a clock that is ahead": (
        start() + line("save", 40, at=3 * HOUR) + line("save_failed", 80, at=3 * HOUR),
        "the save of step 80 failed; the newest durable one is of step 40, just now",
    ),
}  # fmt: skip


def read(raw: bytes) -> LastSave | None:
    return last_save(parse_lines(raw.splitlines()))


@pytest.mark.parametrize("case", TABLE)
def test_what_the_journal_tells_is_what_people_hear(case: str) -> None:
    raw, expected = TABLE[case]
    save = still_failed(read(raw), None)
    reading = LogReading(run="gpt", attempt=1 + (b'"attempt":2' in raw), save=() if save is None else tuple_of(save))
    said = list(failed_save(reading, NOW + 1000 + 41 + 2 * HOUR))
    assert [(verdict.value, fault, text) for verdict, fault, text, _ in said] == (
        [("CRITICAL", "save-failed", expected)] if expected else []
    )
    assert all("resil watch fs" in advice and "resil logs gpt" in advice for *_, advice in said)


def tuple_of(save: LastSave) -> tuple[Any, ...]:
    return tuple(getattr(save, name) for name in LastSave.__slots__)


FAILED = read(start() + save(40) + failed(80))
KNOWN: dict[str, tuple[bytes, bool]] = {
    "nothing could be read": (b"", True),
    "only an older attempt could be read": (start(attempt=0) + save(20, attempt=0), True),
    "only an older attempt, of which a save had failed": (start(attempt=0) + failed(20, attempt=0), True),
    "a later save is durable": (save(90), False),
    "an attempt on a node whose clock is behind has saved": (save(60, attempt=2, at=-5000), False),
    "an attempt has not saved yet": (start(attempt=2), True),
}


@pytest.mark.parametrize("case", KNOWN)
def test_what_is_known_of_a_failure_lasts_until_a_later_save_is_durable(case: str) -> None:
    raw, lasts = KNOWN[case]
    assert still_failed(read(raw), FAILED) == (FAILED if lasts else None)


def test_of_another_failure_the_durable_save_is_told_that_the_journal_does_not_show_any_more() -> None:
    newest = still_failed(read(failed(120)), FAILED)
    assert newest is not None and (newest.step, newest.failed_step) == (40, 120)


# ---- in a run directory


@pytest.fixture
def clock() -> FakeClock:
    return FakeClock(NOW + 2000)


@pytest.fixture
def run(tmp_path: Path, clock: FakeClock) -> Run:
    one = Run(tmp_path, clock)
    one.attempt(1, 101)
    return one


@pytest.fixture
def watchdog(tmp_path: Path, clock: FakeClock) -> LogWatcher:
    return LogWatcher(tmp_path, clock=clock)


def test_a_failure_is_told_until_a_save_is_durable(watchdog: LogWatcher, run: Run) -> None:
    write(run, 101, start() + save(40))
    assert told(watchdog.one()) == ("OK", "")
    for step in (80, 120):
        write(run, 101, failed(step))
        finding = watchdog.one()
        assert told(finding) == ("CRITICAL", "save-failed") and (finding.subject, finding.run) == ("gpt", "gpt")
        assert finding.summary == (
            f"the save of step {step} failed: {FULL}; the newest durable one is of step 40, 15 min ago"
        )
    write(run, 101, save(160))
    assert told(watchdog.one()) == ("OK", "")


def test_a_failure_that_was_made_good_before_the_look_is_none(watchdog: LogWatcher, run: Run) -> None:
    write(run, 101, start() + failed(80) + save(90))
    assert told(watchdog.one()) == ("OK", "")


def test_a_failure_outlasts_its_attempt_until_a_later_one_has_saved(
    watchdog: LogWatcher, run: Run, clock: FakeClock
) -> None:
    write(run, 101, start() + save(40))
    watchdog.look()
    write(run, 101, failed(80))
    run.end(1, "exited")
    finding = watchdog.one()
    assert told(finding) == ("CRITICAL", "save-failed")
    assert finding.summary.endswith("; job 101 is over: exited with 1")
    for attempt in (2, 3):  # and the second ends before it has saved
        run.attempt(attempt, 100 + attempt)
        assert f"in attempt 1 failed: {FULL}; attempt {attempt} has not saved yet" in watchdog.one().summary
        write(run, 100 + attempt, start(40, attempt=attempt) + begun(80, attempt=attempt))
        clock.sleep(MINUTE)
        assert f"attempt {attempt} has not saved yet; the newest durable one is of step 40" in watchdog.one().summary
        assert told(LogWatcher(watchdog.scene.project, clock=clock).one())[1] == "save-failed"  # nothing is remembered
        run.end(attempt, "terminated")
    run.attempt(4, 104)
    write(run, 104, start(40, attempt=4) + save(80, attempt=4))
    assert told(watchdog.one()) == ("OK", "")


def test_a_save_that_the_end_of_its_attempt_cut_off_is_no_failure(watchdog: LogWatcher, run: Run) -> None:
    write(run, 101, start() + save(40) + begun(80))
    run.end(1, "lost")
    assert told(watchdog.one()) == ("OK", "")


def test_a_requeued_job_has_one_journal_for_its_attempts(watchdog: LogWatcher, run: Run) -> None:
    write(run, 101, start() + failed(80))
    run.attempt(2, 101)
    write(run, 101, start(attempt=2))
    assert "attempt 2 has not saved yet; there is no durable one yet" in watchdog.one().summary
    write(run, 101, save(20, attempt=2))
    assert told(watchdog.one()) == ("OK", "")


def test_a_finished_run_has_no_fault(watchdog: LogWatcher, run: Run) -> None:
    write(run, 101, start() + failed(80))
    assert told(watchdog.one()) == ("CRITICAL", "save-failed")
    (run.path / "finished").write_text("attempt = 1\n")
    os.utime(run.path / "finished", (watchdog.clock.now(), watchdog.clock.now()))
    assert told(watchdog.one()) == ("OK", "")


def test_what_failed_long_ago_is_not_said_to_be_over_unless_the_run_was_removed(
    watchdog: LogWatcher, run: Run, clock: FakeClock
) -> None:
    write(run, 101, start() + failed(80))
    run.end(1, "exited")
    watchdog.look()
    clock.sleep(48 * HOUR)
    assert watchdog.look() == []
    assert told(LogWatcher(watchdog.scene.project, "gpt", clock=clock).one()) == ("CRITICAL", "save-failed")
    shutil.rmtree(run.path)
    assert told(watchdog.one()) == ("OK", "")
    assert watchdog.look() == []


def test_a_failed_save_is_told_besides_what_else_is_wrong(watchdog: LogWatcher, run: Run, clock: FakeClock) -> None:
    run.beat(101, {0: (80, 0.0, "train")})
    write(run, 101, start() + failed(80) + nan(90))
    watchdog.look()
    clock.sleep(5 * HOUR)
    assert {finding.fault for finding in watchdog.look()} == {"save-failed", "loss-nonfinite", "silent"}


def test_without_attempts_the_newest_jobs_guard_is_heard(tmp_path: Path, clock: FakeClock) -> None:
    run = Run(tmp_path, clock)
    watchdog = LogWatcher(tmp_path, clock=clock)
    run.beat(7, {0: (80, 0.0, "train")}, attempt=0)
    write(run, 7, start(attempt=0) + failed(80, attempt=0))
    assert watchdog.one().summary == SAYS + NONE
    clock.sleep(MINUTE)
    run.beat(8, {0: (40, 0.0, "train")}, attempt=0)
    write(run, 8, start(attempt=0, at=500.0))
    assert watchdog.one().summary == SAYS + NONE
    write(run, 8, save(80, attempt=0, at=510.0))
    assert told(watchdog.one()) == ("OK", "")


# ---- what is read


def test_a_failure_that_the_end_of_a_long_journal_does_not_show_any_more_lasts(watchdog: LogWatcher, run: Run) -> None:
    write(run, 101, start() + failed(80))
    assert told(watchdog.one()) == ("CRITICAL", "save-failed")
    with open(run.path / "journal" / "101.0.jsonl", "ab") as file:
        file.write(line("phase", 90, phase="eval") * (TAIL_BYTES // 50))
    assert watchdog.one().summary == SAYS + NONE
    write(run, 101, save(100))
    assert told(watchdog.one()) == ("OK", "")


def test_a_durable_save_of_long_ago_is_found_or_not_denied(watchdog: LogWatcher, run: Run) -> None:
    write(run, 101, start() + save(40))
    for number in range(2, 9):
        run.end(number - 1, "exited")
        run.attempt(number, 100 + number)
        write(run, 100 + number, start(40, attempt=number) + failed(80, attempt=number))
    assert "; the newest durable one is of step 40," in watchdog.one().summary
    for number in range(9, 2 + ATTEMPTS_WITHOUT_SAVE):
        run.end(number - 1, "exited")
        run.attempt(number, 100 + number)
        write(run, 100 + number, start(40, attempt=number) + failed(80, attempt=number))
    watchdog.memory.clear()  # a watchdog that begins only now
    assert watchdog.one().summary.endswith("; no durable one in the newest journals")


def test_a_journal_that_cannot_be_read_is_no_verdict_and_ends_no_fault(watchdog: LogWatcher, run: Run) -> None:
    path = run.path / "journal" / "101.0.jsonl"
    path.mkdir()
    assert told(watchdog.one()) == ("OK", "")
    path.rmdir()
    write(run, 101, start() + save(40) + failed(80))
    assert told(watchdog.one()) == ("CRITICAL", "save-failed")
    for place in (path, path.parent):
        aside = place.with_name("aside")
        place.rename(aside)
        place.touch() if place == path.parent else os.mkfifo(place)
        assert watchdog.one().summary.startswith(f"{SAYS}; the newest durable one is of step 40,")
        place.unlink()
        aside.rename(place)


def test_a_run_that_cannot_be_looked_at_is_unknown_and_ends_no_fault(watchdog: LogWatcher, run: Run) -> None:
    write(run, 101, start() + failed(80))
    watchdog.look()
    (run.path / "journal" / "101.0.jsonl").unlink()
    attempts = run.path / "attempts"
    attempts.rename(run.path / "aside")
    attempts.symlink_to("attempts")  # cannot be listed: ELOOP
    assert told(watchdog.one()) == ("UNKNOWN", "not-read")
    attempts.unlink()
    (run.path / "aside").rename(attempts)
    assert watchdog.one().summary == SAYS + NONE


def test_a_reading_of_an_older_or_a_newer_version_is_understood() -> None:
    older = from_record(CHECK.Reading, {"run": "gpt", "losses": []})
    newer = from_record(CHECK.Reading, {"run": "gpt", "save": [1, 2, "three"]})
    assert [*failed_save(older, NOW), *failed_save(newer, NOW)] == []


def test_a_training_that_saves_well_costs_no_look_at_the_attempts(
    watchdog: LogWatcher, run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    write(run, 101, start() + save(40))
    watchdog.look()
    monkeypatch.setattr(look_runs, "newest_save", lambda *_: pytest.fail("looked for the newest save"))
    write(run, 101, save(80))
    assert told(watchdog.one()) == ("OK", "")


def is_in(path: Path, word: bytes) -> bool:
    return path.exists() and word in path.read_bytes()


def test_what_a_real_guard_writes_of_a_save_in_the_background_is_understood(tmp_path: Path, run: Run) -> None:
    watchdog = LogWatcher(tmp_path)
    journal = run.path / "journal" / "101.0.jsonl"
    with guarded(run, 1) as guard:
        for error in (None, OSError(28, "No space left on device")):
            guard.step()
            future: Future[None] = Future()
            with guard.saving() as saving:
                saving.until(future)
            assert told(watchdog.one()) == ("OK", "")
            future.set_result(None) if error is None else future.set_exception(error)
            word = b'"save"' if error is None else b'"save_failed"'
            wait_until(partial(is_in, journal, word))
        finding = watchdog.one()
        assert told(finding) == ("CRITICAL", "save-failed") and "newest durable one is of step 1, " in finding.summary
        guard.step()
        with guard.saving():
            pass
        wait_until(lambda: journal.read_bytes().count(b'"event":"save"') == 2)
        assert told(watchdog.one()) == ("OK", "")
