"""Failed saves in the journal of rank 0's guard: their findings, and when they are resolved."""

from __future__ import annotations

from concurrent.futures import Future
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from resilience.records import from_record
from resilience.runs.attempts import LastSave, last_save
from resilience.runs.run_files import ATTEMPTS_WITHOUT_SAVE, TAIL_BYTES
from resilience.system.files import parse_lines
from resilience.watch.checks._log import runs as runs_module
from resilience.watch.checks._log.reading import LogReading
from resilience.watch.checks._log.runs import failed_save, still_failed
from resilience.watch.checks.log import CHECK
from tests.lab.fakes import NOW, FakeClock
from tests.lab.waiting import until
from tests.watch.checks.log.training_run import (
    FULL,
    Run,
    Story,
    beats,
    begins,
    begun,
    ends,
    failed,
    follow,
    journals,
    line,
    save,
    start,
)
from tests.watch.checks.log.watcher import HOUR, MINUTE, LogWatcher
from tests.watch.checks.outcome import outcome

SAYS = f"the save of step 80 failed: {FULL}"
DURABLE = "; the newest durable save is of step 40, 2 h ago"
NONE = "; there is no durable save yet"
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
    "an unprintable reason": (
        start() + failed(80, error="no \x1b[31m\n room").replace(b'"attempt":1', b'"attempt":"x"'),
        "the save of step 80 failed: no [31m room" + NONE
    ),
    "no reason, and a clock that is ahead": (
        start() + line("save", 40, at=3 * HOUR) + line("save_failed", 80, at=3 * HOUR),
        "the save of step 80 failed; the newest durable save is of step 40, just now",
    ),
}  # fmt: skip


def read(raw: bytes) -> LastSave | None:
    return last_save(parse_lines(raw.splitlines()))


@pytest.mark.parametrize("case", TABLE)
def test_the_journal_yields_this_fault(case: str) -> None:
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
def test_a_failure_persists_until_a_later_save_is_durable(case: str) -> None:
    raw, lasts = KNOWN[case]
    assert still_failed(read(raw), FAILED) == (FAILED if lasts else None)


def test_another_failure_names_the_durable_save_that_is_no_longer_in_the_journal() -> None:
    newest = still_failed(read(failed(120)), FAILED)
    assert newest is not None and (newest.step, newest.failed_step) == (40, 120)


# ---- in a run directory


@pytest.fixture
def clock() -> FakeClock:
    return FakeClock(NOW + 2000)


SAVE_FAILED = "CRITICAL save-failed"
STORIES: dict[str, Story] = {
    "a failure lasts until a save is durable": [
        (0, journals(start() + save(40)), "OK"),
        *((0, journals(failed(step)), SAVE_FAILED,
           f"says: the save of step {step} failed: {FULL}; the newest durable save is of step 40, 15 min ago\n")
          for step in (80, 120)),
        (0, journals(save(160)), "OK")],
    "a failure that was made good before the tick is none": [(0, journals(start() + failed(80) + save(90)), "OK")],
    "a save that the end of its attempt cut off is no failure": [
        (0, (journals(start() + save(40) + begun(80)), ends(1, "lost")), "OK")],
    "a requeued job has one journal for its attempts": [
        (0, (journals(start() + failed(80)), begins(2, 101), journals(start(attempt=2))), SAVE_FAILED,
         "attempt 2 has not saved yet; there is no durable save yet"),
        (0, journals(save(20, attempt=2)), "OK")],
    "a failure that the end of a long journal does not show any more lasts": [
        (0, journals(start() + failed(80)), SAVE_FAILED),
        (0, journals(line("phase", 90, phase="eval") * (TAIL_BYTES // 50)), SAVE_FAILED, f"says: {SAYS}{NONE}\n"),
        (0, journals(save(100)), "OK")],
}  # fmt: skip


@pytest.mark.parametrize("claim", STORIES)
def test_a_run_with_a_failed_save(watchdog: LogWatcher, run: Run, claim: str) -> None:
    follow(watchdog, run, STORIES[claim])


def test_a_failure_outlasts_its_attempt_until_a_later_one_has_saved(watchdog: LogWatcher, run: Run) -> None:
    over = (journals(failed(80)), ends(1))
    follow(watchdog, run, [
        (0, journals(start() + save(40)), "OK"), (0, over, SAVE_FAILED, "; job 101 is over: exited, exit code 1\n"),
    ])  # fmt: skip
    for attempt in (2, 3):  # and the second ends before it has saved
        waits = f"attempt {attempt} has not saved yet"
        saving = journals(start(40, attempt=attempt) + begun(80, attempt=attempt), 100 + attempt)
        follow(watchdog, run, [
            (0, begins(attempt), SAVE_FAILED, f"in attempt 1 failed: {FULL}; {waits}"),
            (0, saving, SAVE_FAILED), (MINUTE, None, SAVE_FAILED, f"{waits}; the newest durable save is of step 40"),
        ])  # fmt: skip
        assert watchdog.anew().outcome() == SAVE_FAILED
        run.end(attempt, "terminated")
    follow(watchdog, run, [(0, (begins(4), journals(start(40, attempt=4) + save(80, attempt=4), 104)), "OK")])


def test_without_attempts_the_newest_jobs_journal_is_read(watchdog: LogWatcher, clock: FakeClock) -> None:
    says = f"says: {SAYS}{NONE}\n"
    first = (beats({0: (80, 0.0, "train")}, 7, attempt=0), journals(start(attempt=0) + failed(80, attempt=0), 7))
    second = (beats({0: (40, 0.0, "train")}, 8, attempt=0), journals(start(attempt=0, at=500.0), 8))
    saved = journals(save(80, attempt=0, at=510.0), 8)
    story = [(0, first, SAVE_FAILED, says), (MINUTE, second, SAVE_FAILED, says), (0, saved, "OK")]
    follow(watchdog, Run(watchdog.directory, clock), story)


# ---- what is read


def test_an_old_durable_save_is_found_or_reported_as_unknown(watchdog: LogWatcher, run: Run) -> None:
    def fail(first: int, last: int) -> None:
        for attempt in range(first, last + 1):
            run.end(attempt - 1, "exited")
            run.attempt(attempt)
            run.journal(100 + attempt, start(40, attempt=attempt) + failed(80, attempt=attempt))

    run.journal(101, start() + save(40))
    fail(2, 8)
    assert "; the newest durable save is of step 40," in watchdog.finding().summary
    fail(9, 1 + ATTEMPTS_WITHOUT_SAVE)
    watchdog.memory.clear()  # a watchdog that begins only now
    assert watchdog.finding().summary.endswith("; no durable save in the newest journals")


def test_readings_of_older_and_newer_versions_are_accepted() -> None:
    older = from_record(CHECK.Reading, {"run": "gpt", "losses": []})
    newer = from_record(CHECK.Reading, {"run": "gpt", "save": [1, 2, "three"]})
    assert [*failed_save(older, NOW), *failed_save(newer, NOW)] == []


def test_attempts_are_not_read_while_saves_succeed(
    watchdog: LogWatcher, run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    run.journal(101, start() + save(40))
    watchdog.findings()
    monkeypatch.setattr(runs_module, "newest_save", lambda *_: pytest.fail("searched for the newest save"))
    run.journal(101, save(80))
    assert watchdog.outcome() == "OK"


def is_in(path: Path, word: bytes) -> bool:
    return path.exists() and word in path.read_bytes()


def test_background_save_events_of_a_real_guard_are_parsed(tmp_path: Path, run: Run) -> None:
    watchdog, journal = LogWatcher(tmp_path), run.journal(101)
    with run.guard(1) as guard:
        for error in (None, OSError(28, "No space left on device")):
            guard.step()
            future: Future[None] = Future()
            with guard.saving() as saving:
                saving.until(future)
            assert watchdog.outcome() == "OK"
            future.set_result(None) if error is None else future.set_exception(error)
            word = b'"save"' if error is None else b'"save_failed"'
            until(partial(is_in, journal, word))
        finding = watchdog.finding()
        assert outcome(finding) == SAVE_FAILED and "newest durable save is of step 1, " in finding.summary
        guard.step()
        with guard.saving():
            pass
        until(lambda: journal.read_bytes().count(b'"event":"save"') == 2)
        assert watchdog.outcome() == "OK"


def test_a_failed_save_is_one_incident_although_the_guard_warns_of_it_in_the_runs_log(
    watchdog: LogWatcher, run: Run
) -> None:
    run.attempt(1)
    run.log(101, f"step 80\nresil: warning: the save of step 80 failed: {FULL}\n")
    run.journal(101, start() + save(40) + failed(80))
    assert {finding.fault for finding in watchdog.findings() if finding.subject == "gpt"} == {"save-failed"}
    run.log(101, "OSError: [Errno 28] No space left on device\n")
    assert "failing" in {finding.fault for finding in watchdog.findings()}, "what the training itself prints counts"
