"""What an entry wrote is found by slot or by count, and does not steer the terminal of whoever reads it."""

from __future__ import annotations

import threading
import time
from pathlib import Path

import pytest

from resilience.cron.logs import find_logs, find_slot, follow, read_text, without_escapes
from resilience.cron.project import CronProject, open_cron
from resilience.cron.records import Outcome, RunRecord
from resilience.errors import StateDirectoryError, UsageError
from resilience.job import JobState
from tests.lab.fakes import NOW, FakeScheduler, a_job, make_project

SLOT = int(NOW) - int(NOW) % 3600


@pytest.fixture
def fake() -> FakeScheduler:
    return FakeScheduler()


@pytest.fixture
def cron(tmp_path: Path, fake: FakeScheduler) -> CronProject:
    return open_cron(make_project(tmp_path, fake))


def record(cron: CronProject, slot: int = SLOT, outcome: Outcome = Outcome.DONE, **given: object) -> RunRecord:
    run = RunRecord(name="cron.hourly/backup", slot=slot, outcome=outcome, time=slot + 2.0, **given)  # type: ignore[arg-type]
    cron.state.record("cron.hourly+backup", run)
    return run


def output(cron: CronProject, name: str, text: str) -> Path:
    path = cron.state.path / "output" / "cron.hourly+backup" / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    return path


def test_the_newest_output_and_the_newest_few(cron: CronProject) -> None:
    for number in range(3):
        record(cron, SLOT + number * 3600, output=f"{number}.txt")
        output(cron, f"{number}.txt", f"run {number}\n")
    record(cron, SLOT + 9 * 3600, Outcome.SKIPPED)
    (newest,) = find_logs(cron, "backup")
    assert newest.path is not None and read_text(newest.path)[0] == "run 2\n", "a slot that was skipped wrote nothing"
    assert [log.run.slot for log in find_logs(cron, "backup", last=2)] == [SLOT + 3600, SLOT + 7200]


@pytest.mark.parametrize("form", ["%Y-%m-%dT%H:%M", "%Y-%m-%d %H:%M:%S", "%H:%M", "%d %b %H:%M"])
def test_a_slot_may_be_typed_as_displayed(form: str) -> None:
    runs = [RunRecord(name="x", slot=slot, outcome=Outcome.DONE, time=NOW) for slot in (SLOT - 7200, SLOT - 60)]
    typed = time.strftime(form, time.localtime(SLOT - 7200))
    assert find_slot(runs, typed, NOW).slot == SLOT - 7200
    assert find_slot(runs, str(SLOT - 60), NOW).slot == SLOT - 60


def test_of_several_days_the_newest_slot_of_that_time_is_meant() -> None:
    runs = [RunRecord(name="x", slot=SLOT - day * 86400, outcome=Outcome.DONE, time=NOW) for day in (2, 1)]
    assert find_slot(runs, time.strftime("%H:%M", time.localtime(SLOT)), NOW).slot == SLOT - 86400


def test_a_slot_in_which_nothing_ran_is_answered_with_those_that_did(cron: CronProject) -> None:
    record(cron)
    with pytest.raises(UsageError, match="no run in slot") as raised:
        find_logs(cron, "backup", slot="03:33")
    assert "last slots:" in raised.value.hint


def test_a_run_without_output_says_why(cron: CronProject) -> None:
    record(cron)
    record(cron, SLOT + 60, output="gone.txt")
    record(cron, SLOT + 120, Outcome.RUNNING)
    silent, removed, running = find_logs(cron, "backup", last=3)
    assert (silent.path, silent.reason) == (None, "no output")
    assert removed.path is None and "removed" in removed.reason
    assert running.reason == "no output yet"


def test_the_output_of_a_job_is_its_own_file(cron: CronProject, tmp_path: Path) -> None:
    (tmp_path / "slurm-88.out").write_text("from the node\n")
    record(cron, outcome=Outcome.SUBMITTED, job_id="88", output=str(tmp_path / "slurm-88.out"))
    (log,) = find_logs(cron, "backup")
    assert log.path is not None and read_text(log.path)[0] == "from the node\n"


def test_of_a_long_output_the_end_is_read(tmp_path: Path) -> None:
    (tmp_path / "long").write_bytes(b"a" * 1000 + b"the end")
    assert read_text(tmp_path / "long", 7) == ("the end", 1007, 1000)


def test_a_fifo_instead_of_an_output_blocks_nothing(tmp_path: Path) -> None:
    import os

    os.mkfifo(tmp_path / "fifo")
    with pytest.raises(StateDirectoryError, match="not a regular file"):
        read_text(tmp_path / "fifo")


@pytest.mark.parametrize(
    ("written", "shown"),
    [
        ("plain\n", "plain\n"),
        ("\x1b[31mred\x1b[0m\n", "red\n"),
        ("\x1b]0;a title\x07text", "text"),
        ("\x1b]52;c;ZXZpbA==\x1b\\text", "text"),
        ("\x1b[2J\x1b[Hcleared", "cleared"),
        ("10%\r20%\r100%\n", "100%\n"),
        ("dos\r\nends\r\n", "dos\nends\n"),
        ("a\tb", "a       b"),
        ("bell\x07 \x9b31m", "bell? ?31m"),
        ("half an escape \x1b", "half an escape ?"),
        ("Grüße, 你好", "Grüße, 你好"),
    ],
)
def test_displayed_output_contains_no_control_sequences(written: str, shown: str) -> None:
    assert without_escapes(written) == shown


def test_following_ends_with_the_run_and_has_all_of_it(tmp_path: Path) -> None:
    from dataclasses import replace

    from resilience.system.ports import SystemClock

    project = make_project(tmp_path)
    cron = open_cron(replace(project, system=replace(project.system, clock=SystemClock())))
    record(cron, outcome=Outcome.RUNNING, output=f"{SLOT}.txt")
    path = output(cron, f"{SLOT}.txt", "begin\n")
    (log,) = find_logs(cron, "backup")

    def write() -> None:
        for number in range(3):
            time.sleep(0.2)
            with path.open("a") as file:
                file.write(f"line {number}\n")
        record(cron, outcome=Outcome.DONE, output=f"{SLOT}.txt")

    writer = threading.Thread(target=write)
    writer.start()
    text, position, _ = read_text(path)
    text += "".join(follow(cron, log, position))
    writer.join()
    assert text == "begin\nline 0\nline 1\nline 2\n"


def test_following_a_job_ends_when_it_is_gone_and_not_when_the_queue_is_silent(
    cron: CronProject, fake: FakeScheduler, tmp_path: Path
) -> None:
    from resilience.errors import SchedulerUnavailable

    path = tmp_path / "slurm-88.out"
    path.write_text("")
    record(cron, outcome=Outcome.SUBMITTED, job_id="88", output=str(path))
    fake.records.append(a_job(88, JobState.RUNNING))
    fake.trouble = SchedulerUnavailable("squeue did not answer")
    (log,) = find_logs(cron, "backup")
    naps: list[float] = []

    def at_sleep(seconds: float) -> None:
        naps.append(seconds)
        if len(naps) == 100:
            path.write_text("late words\n")
        if len(naps) == 150:
            fake.trouble = None
            fake.records[0] = a_job(88, JobState.COMPLETED)

    cron.project.system.clock.at_sleep = at_sleep  # type: ignore[attr-defined]
    assert "".join(follow(cron, log, 0)) == "late words\n"
    assert len(naps) >= 150
