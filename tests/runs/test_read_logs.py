"""The end of a log is shown whatever the log is made of, and following it goes on through everything."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import pytest

from resilience.errors import ResilError, SchedulerUnavailable, StateDirectoryError
from resilience.job import JobState
from resilience.runs.project import Project
from resilience.runs.read_logs import QUERY_S, TAIL_LIMIT_BYTES, find_log, follow, last_lines
from resilience.runs.run_directory import RunDirectory
from resilience.runs.submissions import Intent, record_intent
from resilience.submission import make_comment
from tests.lab.fakes import DOWN, NOW, FakeClock, FakeScheduler, a_job, make_project

LINES: list[tuple[bytes, int, bytes]] = [
    (b"", 10, b""),
    (b"\n", 10, b"\n"),
    (b"a\nb\nc\n", 2, b"b\nc\n"),
    (b"a\nb\nc", 2, b"b\nc"),
    (b"a\nb\nc\n", 3, b"a\nb\nc\n"),
    (b"a\nb\nc\n", 99, b"a\nb\nc\n"),
    (b"a\nb\nc\n", 0, b""),
    (b"a\n\n\n", 2, b"\n\n"),
    (b"a\r\nb\r\nc\r\n", 2, b"b\r\nc\r\n"),
    (b"a\nstep 1\rstep 2\rstep 3\rb\n", 1, b"step 1\rstep 2\rstep 3\rb\n"),
    (b"a\n\0b\xff\n\x0cc\x1c\n", 2, b"\0b\xff\n\x0cc\x1c\n"),
]


@pytest.mark.parametrize(("content", "count", "shown"), LINES)
def test_the_last_lines_are_those_that_tail_shows(tmp_path: Path, content: bytes, count: int, shown: bytes) -> None:
    path = tmp_path / "x.out"
    path.write_bytes(content)
    assert last_lines(path, count) == (shown, len(content))


def test_many_lines_are_found_in_a_long_log(tmp_path: Path) -> None:
    path = tmp_path / "x.out"
    lines = [b"%d %s\n" % (number, b"x" * (number % 977)) for number in range(2000)]
    path.write_bytes(b"".join(lines))
    for count in (1, 50, 200, 700):
        assert last_lines(path, count)[0] == b"".join(lines[-count:])


def test_of_a_line_of_gigabytes_only_the_end_is_read(tmp_path: Path) -> None:
    path = tmp_path / "x.out"
    path.write_bytes(b"begin\n")
    os.truncate(path, 5 * 2**30)
    with open(path, "ab") as file:
        file.write(b"the end")
    text, position = last_lines(path, 40)
    assert text.endswith(b"the end") and len(text) <= TAIL_LIMIT_BYTES
    assert position == path.stat().st_size


def test_a_log_that_is_no_log_is_an_error_or_empty_and_never_waited_for(tmp_path: Path) -> None:
    with pytest.raises(StateDirectoryError, match="No such file"):
        last_lines(tmp_path / "none", 5)
    with pytest.raises(StateDirectoryError, match="Is a directory"):
        last_lines(tmp_path, 5)
    os.mkfifo(tmp_path / "fifo")
    assert last_lines(tmp_path / "fifo", 5) == (b"", 0)
    assert last_lines(Path("/dev/null"), 5) == (b"", 0)


# ---- which log ----------------------------------------------------------------------------------------------------


def a_run(
    tmp_path: Path, fake: FakeScheduler | None = None, clock: FakeClock | None = None
) -> tuple[Project, RunDirectory]:
    project = make_project(tmp_path, fake, clock=clock or FakeClock())
    directory = project.directory("gpt")
    directory.create("")
    record_intent(directory, Intent("aa", "fake", "/x.sh", (), NOW, by="alice"))
    return project, directory


def own_job(tmp_path: Path, number: int, name: str) -> FakeScheduler:
    return FakeScheduler(
        records=[a_job(number, stdout=str(tmp_path / name), comment=make_comment("gpt", "aa"), submit_time=1.0)]
    )


def test_output_to_dev_null_is_no_log_that_a_job_has_yet_to_write(tmp_path: Path) -> None:
    project, directory = a_run(tmp_path, own_job(tmp_path, 7, "/dev/null"))
    with pytest.raises(ResilError, match="the output of job 7 goes to /dev/null, so run gpt has no log") as caught:
        find_log(project, directory)
    assert "-o" in caught.value.hint


def test_a_rendered_scripts_log_is_found_without_asking_anybody(tmp_path: Path) -> None:
    fake = FakeScheduler(trouble=DOWN)
    project, directory = a_run(tmp_path, fake)
    log = directory.path / "logs" / "gpt-7_1.out"
    log.write_text("x")
    assert find_log(project, directory) == log and fake.calls == []


def test_an_own_scripts_log_is_where_the_scheduler_says(tmp_path: Path) -> None:
    fake = own_job(tmp_path, 7, "slurm-7.out")
    fake.records.append(a_job(8, JobState.PENDING, comment=make_comment("gpt", "aa"), stdout="/later", submit_time=2.0))
    project, directory = a_run(tmp_path, fake)
    with pytest.raises(ResilError, match="has written no log yet") as caught:
        find_log(project, directory)
    assert caught.value.exit_code == 1 and "resil status gpt" in caught.value.hint
    (tmp_path / "slurm-7.out").touch()
    assert find_log(project, directory) == tmp_path / "slurm-7.out"


def test_where_only_a_silent_scheduler_knows_it_is_a_matter_of_trying_again(tmp_path: Path) -> None:
    project, directory = a_run(tmp_path, FakeScheduler(trouble=DOWN))
    with pytest.raises(SchedulerUnavailable, match="did not answer in 30 s") as caught:
        find_log(project, directory)
    assert caught.value.exit_code == 75


# ---- following ----------------------------------------------------------------------------------------------------


def watch(
    tmp_path: Path, *deeds: Callable[[RunDirectory], object], fake: FakeScheduler | None = None, start: int = 0
) -> list[tuple[str, bytes]]:
    """What following shows while the deeds happen, one at each pause; it ends at the pause after the last."""
    clock = FakeClock()
    project, directory = a_run(tmp_path, fake, clock)
    if fake is None:
        write(directory, "a.out", "old\n")
    todo = [*deeds]

    class Over(Exception):
        pass

    def at_sleep(_: float) -> None:
        if not todo:
            raise Over
        todo.pop(0)(directory)

    clock.at_sleep = at_sleep
    seen: list[tuple[str, bytes]] = []
    try:
        for path, chunk in follow(project, directory, find_log(project, directory), start):
            seen.append((path.name, chunk))
    except Over:
        return seen
    raise AssertionError("following never ends by itself")


_clock = iter(range(1_900_000_000, 2_000_000_000))


def write(directory: RunDirectory, name: str, text: str, mode: str = "a") -> None:
    path = directory.path / "logs" / name
    with open(path, mode) as file:
        file.write(text)
    moment = next(_clock)
    os.utime(path, (moment, moment))


def test_what_is_added_is_shown_from_where_the_last_lines_ended(tmp_path: Path) -> None:
    assert watch(
        tmp_path, lambda d: write(d, "a.out", "new\n"), lambda d: None, lambda d: write(d, "a.out", "more"), start=2
    ) == [("a.out", b"d\n"), ("a.out", b"new\n"), ("a.out", b"more")]  # fmt: skip


def test_a_log_that_was_truncated_begins_again(tmp_path: Path) -> None:
    assert watch(tmp_path, lambda d: write(d, "a.out", "2\n", "w"), start=4) == [("a.out", b"2\n")]


def test_a_log_that_was_replaced_goes_on_with_the_new_one(tmp_path: Path) -> None:
    assert watch(
        tmp_path,
        lambda d: (d.path / "logs" / "a.out").unlink(),
        lambda d: write(d, "a.out", "reborn\n"),
        start=4,
    ) == [("a.out", b"reborn\n")]


def test_a_newer_attempts_log_is_taken_up_from_its_beginning(tmp_path: Path) -> None:
    assert watch(
        tmp_path, lambda d: write(d, "b.out", "next\n"), lambda d: write(d, "b.out", "step 2\n"), start=4
    ) == [("b.out", b"next\n"), ("b.out", b"step 2\n")]  # fmt: skip


def test_two_logs_that_are_written_in_turns_are_each_continued_and_never_repeated(tmp_path: Path) -> None:
    """The attempt before lives on for up to KillWait while the next one starts."""
    assert watch(
        tmp_path,
        lambda d: write(d, "b.out", "b1\n"),
        lambda d: write(d, "a.out", "a1\n"),
        lambda d: write(d, "b.out", "b2\n"),
        start=4,
    ) == [("b.out", b"b1\n"), ("a.out", b"a1\n"), ("b.out", b"b2\n")]


def test_a_huge_new_log_comes_in_pieces(tmp_path: Path) -> None:
    seen = watch(tmp_path, lambda d: write(d, "b.out", "x" * 200_000), start=4)
    assert sum(len(chunk) for _, chunk in seen) == 200_000
    assert max(len(chunk) for _, chunk in seen) <= 65536


def test_an_own_scripts_next_job_is_found_by_asking_now_and_then(tmp_path: Path) -> None:
    fake = own_job(tmp_path, 7, "slurm-7.out")
    (tmp_path / "slurm-7.out").write_text("seven\n")
    pauses = int(QUERY_S / 0.5)

    def next_job(_: RunDirectory) -> None:
        (tmp_path / "slurm-8.out").write_text("eight\n")
        comment = make_comment("gpt", "aa")
        fake.records.append(a_job(8, stdout=str(tmp_path / "slurm-8.out"), comment=comment, submit_time=2.0))

    def fall_silent(_: RunDirectory) -> None:
        fake.trouble = DOWN

    nothing: list[Callable[[RunDirectory], object]] = [lambda d: None] * pauses
    seen = watch(tmp_path, next_job, *nothing, fall_silent, *nothing, fake=fake)
    assert seen == [("slurm-7.out", b"seven\n"), ("slurm-8.out", b"eight\n")]
    assert fake.calls.count("jobs") == 3, "once to find it, then every half minute"
