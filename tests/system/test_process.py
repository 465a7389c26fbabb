"""Programs are run with deadlines that hold, whatever the program does."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Generator, Iterator
from pathlib import Path
from typing import cast

import pytest

from resilience.errors import DeliveryError, ProbeError
from resilience.system import process as process_module
from resilience.system.process import (
    CommandFailed,
    Completed,
    Conversation,
    DeadlineExceeded,
    OutputTooLarge,
    ProcessRunner,
    ProgramMissing,
    run_with_input,
    said_by,
)
from tests.lab.descriptors import count_descriptors
from tests.lab.fakes import make_system
from tests.lab.hung import hung_directory, release
from tests.lab.waiting import until

RUNNER = ProcessRunner()
SLACK_S = 15.0
"""What a loaded machine may add; every program here would run for a minute."""


def shell(script: str, timeout_s: float = 20, stdin: str = "") -> tuple[int, str, str]:
    done = RUNNER.run(["/bin/sh", "-c", script], timeout_s=timeout_s, stdin=stdin)
    return done.returncode, done.stdout, done.stderr


def is_gone(pid: int) -> bool:
    """Whether a process has ended; a zombie that its new parent has not collected yet counts."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] in "ZX"
    except (FileNotFoundError, ProcessLookupError):
        return True


def test_code_output_and_errors_come_back_apart() -> None:
    assert shell("echo out; echo err >&2; exit 3") == (3, "out\n", "err\n")


def test_a_signal_is_a_negative_code() -> None:
    assert shell("kill -9 $$")[0] == -signal.SIGKILL


def test_arguments_arrive_as_they_are_and_never_meet_a_shell() -> None:
    words = ["$(id)", "a b", "*", ";", "'", "\n", "\udcff"]
    done = RUNNER.run(["printf", "%s|", *words], timeout_s=20)
    assert done.stdout == "".join(f"{word}|" for word in words)


def test_the_environment_is_the_given_one_alone() -> None:
    done = RUNNER.run(["/usr/bin/env"], timeout_s=20, env={"ONLY": "this"})
    assert done.stdout == "ONLY=this\n"


def test_it_starts_in_the_given_directory(tmp_path: Path) -> None:
    assert RUNNER.run(["pwd"], timeout_s=20, cwd=str(tmp_path)).stdout.strip() == str(tmp_path.resolve())


def test_bytes_that_are_no_text_survive_the_round_trip() -> None:
    done = RUNNER.run(["printf", "a\\377\\000b"], timeout_s=20)
    assert done.stdout.encode("utf-8", "surrogateescape") == b"a\xff\x00b"


def test_a_program_gets_an_empty_input_rather_than_our_terminal() -> None:
    assert shell("cat; echo end") == (0, "end\n", "")


# ---- what cannot be started


def test_a_missing_program_is_named() -> None:
    with pytest.raises(ProgramMissing, match="no-such-program"):
        RUNNER.run(["no-such-program"], timeout_s=5)


@pytest.mark.parametrize(("mode", "content"), [(0o644, "#!/bin/sh\n"), (0o755, "\x00\x01"), (0o755, "#!/no/such\n")])
def test_a_file_that_is_no_program_is_named(tmp_path: Path, mode: int, content: str) -> None:
    path = tmp_path / "program"
    path.write_text(content)
    path.chmod(mode)
    with pytest.raises(ProgramMissing, match="program"):
        RUNNER.run([str(path)], timeout_s=5)


def test_a_missing_directory_is_not_taken_for_a_missing_program() -> None:
    with pytest.raises(ProbeError, match="/no/such/directory") as caught:
        RUNNER.run(["true"], timeout_s=5, cwd="/no/such/directory")
    assert not isinstance(caught.value, ProgramMissing)


@pytest.mark.parametrize("argument", ["a\x00b", "x" * 2**22])
def test_an_argument_the_kernel_does_not_take_is_a_plain_error(argument: str) -> None:
    with pytest.raises(ProbeError) as caught:
        RUNNER.run(["true", argument], timeout_s=5)
    assert not caught.value.transient


# ---- deadlines


def test_a_program_deaf_to_sigterm_ends_at_the_deadline() -> None:
    start = time.monotonic()
    with pytest.raises(DeadlineExceeded, match=r"0\.3 s") as caught:
        shell("trap '' TERM INT HUP; while :; do sleep 60; done", timeout_s=0.3)
    assert 0.3 <= time.monotonic() - start < 0.3 + SLACK_S
    assert caught.value.transient


def test_the_deadline_reaches_what_the_program_started(tmp_path: Path) -> None:
    pid_file = tmp_path / "pid"
    with pytest.raises(DeadlineExceeded):
        shell(f"sleep 60 & echo $! > {pid_file}; wait", timeout_s=0.5)
    until(lambda: is_gone(int(pid_file.read_text())))


def test_a_program_that_ended_is_not_held_up_by_what_it_left_in_the_background(tmp_path: Path) -> None:
    pid_file = tmp_path / "pid"
    start = time.monotonic()
    assert shell(f"echo answer; sleep 60 & echo $! > {pid_file}; exit 4") == (4, "answer\n", "")
    assert time.monotonic() - start < process_module.PIPE_GRACE_S + SLACK_S
    pid = int(pid_file.read_text())
    assert not is_gone(pid), "what a program leaves in the background on purpose lives on"
    os.kill(pid, signal.SIGKILL)


def test_a_slow_reader_still_gets_all_that_an_ended_program_wrote(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(process_module, "PIPE_GRACE_S", 0.05)
    monkeypatch.setattr(process_module, "_CHUNK_BYTES", 4096)
    lines: list[str] = []
    for line in RUNNER.stream(["/bin/sh", "-c", "seq 8000"], timeout_s=20):
        if len(lines) in (0, 2000, 4000):
            time.sleep(0.2)  # the program has long ended when we read on
        lines.append(line)
    assert lines == [str(number) for number in range(1, 8001)]


def test_a_program_that_closed_its_output_and_stays_ends_at_the_deadline() -> None:
    with pytest.raises(DeadlineExceeded):
        shell("exec >&- 2>&-; sleep 60", timeout_s=0.3)


@pytest.fixture
def hung(tmp_path: Path) -> Iterator[Path]:
    with hung_directory(tmp_path / "hung") as directory:
        yield directory


def state_of(pid: int) -> str:
    return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]


def test_a_program_in_uninterruptible_sleep_is_abandoned_and_collected_later(hung: Path) -> None:
    before = list(process_module._abandoned)
    start = time.monotonic()
    with pytest.raises(DeadlineExceeded):
        RUNNER.run(["stat", str(hung / "file")], timeout_s=0.5)
    assert time.monotonic() - start < 0.5 + process_module.REAP_GRACE_S + SLACK_S
    (stuck,) = [process for process in process_module._abandoned if process not in before]
    assert state_of(stuck.pid) == "D"

    release(hung)

    def collected() -> bool:
        RUNNER.run(["true"], timeout_s=5)
        return stuck not in process_module._abandoned

    until(collected)
    assert not Path(f"/proc/{stuck.pid}").exists()


@pytest.mark.parametrize("where", ["directory", "program"])
def test_a_start_that_hangs_has_the_same_deadline(hung: Path, where: str) -> None:
    start = time.monotonic()
    with pytest.raises(DeadlineExceeded, match="could not be started"):
        if where == "directory":
            RUNNER.run(["true"], timeout_s=0.5, cwd=str(hung / "directory"))
        else:
            RUNNER.run([str(hung / "program")], timeout_s=0.5)
    assert time.monotonic() - start < 0.5 + SLACK_S
    assert shell("echo fine") == (0, "fine\n", ""), "and the next program runs"


def test_a_process_with_a_hung_child_can_still_end(hung: Path) -> None:
    script = (
        "import sys\nfrom resilience.system.process import ProcessRunner, DeadlineExceeded\n"
        "for argv, cwd in ((['stat', sys.argv[1] + '/x'], None), (['true'], sys.argv[1] + '/y')):\n"
        "    try:\n        ProcessRunner().run(argv, timeout_s=0.2, cwd=cwd)\n"
        "    except DeadlineExceeded:\n        print('late')\n"
    )
    child = subprocess.Popen(
        [sys.executable, "-c", script, str(hung)], cwd=Path(__file__).parents[2], stdout=subprocess.PIPE
    )
    assert child.wait(timeout=10) == 0
    assert child.stdout is not None
    with child.stdout as output:
        # A line each; the hung children hold no end of this pipe, so it closes.
        assert output.readline() + output.readline() == b"late\nlate\n"


# ---- much output, much input


def test_a_flood_of_output_is_stopped(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(process_module, "OUTPUT_LIMIT_BYTES", 2**20)
    with pytest.raises(OutputTooLarge, match="yes"):
        RUNNER.run(["yes"], timeout_s=20)


def test_a_line_without_an_end_is_stopped(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(process_module, "LINE_LIMIT_BYTES", 2**20)
    with pytest.raises(OutputTooLarge, match="line"):
        for _ in RUNNER.stream(["cat", "/dev/zero"], timeout_s=20):
            pass


def test_a_program_that_writes_much_before_it_reads_does_not_lock_us() -> None:
    done = RUNNER.run(["/bin/sh", "-c", "head -c 400000 /dev/zero; wc -c"], timeout_s=20, stdin="x" * 2**20)
    assert done.stdout.lstrip("\x00").strip() == str(2**20)
    assert done.stdout.count("\x00") == 400_000


def test_a_program_that_does_not_read_its_input_gives_its_own_answer() -> None:
    assert shell("exec <&-; echo no thanks; exit 5", stdin="x" * 2**20) == (5, "no thanks\n", "")


def test_a_program_that_never_reads_its_input_ends_at_the_deadline() -> None:
    with pytest.raises(DeadlineExceeded):
        shell("sleep 60", timeout_s=0.3, stdin="x" * 2**20)


def test_input_is_fed_to_a_program_that_has_closed_its_output(tmp_path: Path) -> None:
    copy = tmp_path / "copy"
    code, _, _ = shell(f"exec >&- 2>&-; cat > {copy}", stdin="x" * 2**20)
    assert (code, copy.stat().st_size) == (0, 2**20)


# ---- streams


def stream(script: str, timeout_s: float = 20) -> Iterator[str]:
    return RUNNER.stream(["/bin/sh", "-c", script], timeout_s=timeout_s)


def test_lines_come_without_their_newline_and_the_last_may_lack_one() -> None:
    assert list(stream("printf 'a\\n\\nb\\r\\nc'")) == ["a", "", "b\r", "c"]
    assert list(stream("printf 'a\\n'")) == ["a"]
    assert list(stream("true")) == []


def test_lines_come_while_the_program_still_runs(tmp_path: Path) -> None:
    go_on = tmp_path / "go-on"
    lines = stream(f"echo first; while [ ! -e {go_on} ]; do sleep 0.01; done; echo second")
    assert next(lines) == "first"
    go_on.touch()
    assert list(lines) == ["second"]


def test_a_long_line_arrives_whole() -> None:
    (line,) = stream("head -c 3000000 /dev/zero | tr '\\0' x; echo")
    assert line == "x" * 3_000_000


def test_a_failed_stream_ends_with_its_code_and_words() -> None:
    seen = []
    with pytest.raises(CommandFailed, match="slurmctld") as caught:
        for line in stream("echo partial; echo slurmctld down >&2; exit 1"):
            seen.append(line)
    assert seen == ["partial"]
    assert (caught.value.completed.returncode, caught.value.completed.stderr) == (1, "slurmctld down\n")


def test_words_on_standard_error_spoil_a_stream_that_ended_well() -> None:
    with pytest.raises(CommandFailed, match="ended with 0: hm"):
        list(stream("echo hm >&2"))


def test_a_stream_has_a_deadline_too() -> None:
    lines = stream("echo first; sleep 60", timeout_s=0.4)
    assert next(lines) == "first"
    with pytest.raises(DeadlineExceeded):
        next(lines)


def test_a_stream_closed_early_kills_its_program() -> None:
    lines = cast(Generator[str], stream("echo $$; exec sleep 60"))
    pid = int(next(lines))
    assert not is_gone(pid)
    lines.close()
    until(lambda: is_gone(pid))


# ---- leaks


def children() -> set[str]:
    """The children of this process, zombies included, by the thread that started each."""
    return {pid for task in Path("/proc/self/task").iterdir() for pid in (task / "children").read_text().split()}


def test_two_hundred_calls_leave_no_zombie_no_descriptor_no_thread() -> None:
    def once(number: int) -> None:
        if number % 50 == 0:
            with pytest.raises(DeadlineExceeded):
                RUNNER.run(["sleep", "60"], timeout_s=0.05)
        elif number % 3 == 0:
            next(RUNNER.stream(["yes"], timeout_s=5))
        elif number % 7 == 0:
            with pytest.raises(ProgramMissing):
                RUNNER.run(["no-such-program"], timeout_s=5)
        else:
            RUNNER.run(["cat"], timeout_s=5, stdin="x")

    once(1)
    descriptors, threads = count_descriptors(), threading.active_count()
    before = children()  # of this worker: it may have booted a cluster for other tests
    for number in range(200):
        once(number)
    assert count_descriptors() <= descriptors
    until(lambda: threading.active_count() == threads)
    until(lambda: children() <= before)


def test_all_of_the_input_is_there_before_the_program_starts_even_if_we_are_killed_then() -> None:
    assert shell("stat -L -c %s /dev/stdin", stdin="x" * 2**20) == (0, f"{2**20}\n", "")


# ---- programs that take a message on standard input


def given(directory: Path, script: str, text: str = "", timeout_s: float = 5) -> Completed:
    environment = {"PATH": "/usr/bin:/bin"}
    argv = ["/bin/sh", "-c", script]
    return run_with_input(argv, text, make_system(directory).runner.run, timeout_s=timeout_s, environment=environment)


@pytest.mark.parametrize("code", [1, 69, 71, 75, 126, 127, 64, 65, 67, 77, 78])
def test_sysexits_say_whether_to_try_again(tmp_path: Path, code: int) -> None:
    with pytest.raises(DeliveryError) as caught:
        given(tmp_path, f"echo first >&2; echo 'it is\x1b[2J so' >&2; exit {code}")
    assert caught.value.transient is (code not in (64, 65, 67, 77, 78))
    assert f"/bin/sh ended with {code}" in caught.value.message and "it is?[2J so" in caught.value.message


def test_a_late_program_is_transient_and_may_have_done_its_work(tmp_path: Path) -> None:
    with pytest.raises(DeliveryError) as caught:
        given(tmp_path, "sleep 60", timeout_s=0.2)
    assert caught.value.transient and "may have completed before" in caught.value.hint


def test_the_last_line_of_the_errors_is_quoted() -> None:
    assert said_by(Completed(("x",), 1, "out\n", "one\ntwo\n\n")) == "two"
    assert said_by(Completed(("x",), 1, "out\n", "")) == "out"
    assert said_by(Completed(("x",), 1, "", "")) == ""


# ---- a program that reads and writes lines --------------------------------------------------------------------------


def test_lines_go_both_ways_and_the_program_ends_with_the_conversation() -> None:
    echo = 'echo $$; while read -r line; do echo "got $line"; echo "bad $line" >&2; done; sleep 60'
    with Conversation(["/bin/sh", "-c", echo], timeout_s=SLACK_S) as program:
        pid = int(next(program.hear(SLACK_S)))
        for word in ("one", "two"):
            program.say(word)
            assert next(program.hear(SLACK_S)) == f"got {word}"
        began = time.monotonic()
        assert list(program.hear(0.2)) == [] and time.monotonic() - began < SLACK_S
        assert program.errors == "bad one\nbad two"
    with pytest.raises(ProcessLookupError):
        os.kill(pid, 0)


def test_a_line_longer_than_a_pipe_arrives_and_a_program_that_does_not_read_delays_nobody(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    with Conversation(["/bin/sh", "-c", "head -n 1 | wc -c"], timeout_s=SLACK_S) as program:
        program.say("x" * 2**20)
        assert next(program.hear(SLACK_S)).strip() == str(2**20 + 1)
    monkeypatch.setattr("resilience.system.process.SAY_S", 0.1)
    with Conversation(["/bin/sleep", "600"], timeout_s=SLACK_S) as program:
        program.say("x" * 2**20)


def test_a_program_that_ends_ends_the_hearing_and_does_not_mind_what_is_said() -> None:
    with Conversation(["/bin/sh", "-c", "echo part; printf rest"], timeout_s=SLACK_S) as program:
        assert list(program.hear(SLACK_S)) == ["part"], "the rest is no line"
        program.say("x" * 1000)
    with pytest.raises(ProgramMissing):
        Conversation(["/no/such/program"], timeout_s=SLACK_S)
