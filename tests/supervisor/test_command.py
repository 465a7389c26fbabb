"""Exit codes, signals and output of a supervised command are those of the command. Real processes, real signals."""

from __future__ import annotations

import fcntl
import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from resilience.base.processes import is_alive
from resilience.supervisor.tee import LONGEST_S, Newest, Tee
from tests.lab.waiting import until
from tests.supervisor.stage import Stage, child_of, handler, read_line, state_of

PASSED_ON = ["TERM", "INT", "HUP", "QUIT", "USR1", "USR2"]


@pytest.mark.parametrize("has_run", [True, False])
@pytest.mark.parametrize(
    ("script", "code"),
    [("exit 0", 0), ("exit 75", 75), ("exit 255", 255), ("kill -KILL $$", 137), ("kill -SEGV $$", 139)],
)
def test_the_exit_code_is_the_commands_own(stage: Stage, script: str, code: int, has_run: bool) -> None:
    stage.has_run = has_run
    found, _, err = stage.finish("sh", "-c", f"ulimit -c 0; {script}")
    assert (found if found >= 0 else 128 - found, err) == (code, b"")


@pytest.mark.parametrize("has_run", [True, False])
def test_a_command_that_cannot_be_started_has_the_exit_code_of_a_shell(stage: Stage, has_run: bool) -> None:
    stage.has_run = has_run
    plain = stage.path / "plain.txt"
    plain.write_text("text\n")
    for program, expected in (("no-such-program", 127), ("./nothing/here", 127), ("./plain.txt", 126), ("/", 126)):
        code, out, err = stage.finish(program)
        assert (code, out) == (expected, b"") and err.startswith(f"resil: cannot start {program}: ".encode())
    if has_run:
        assert [(one.exit_code, str(one.end)) for one in stage.attempts()][:2] == [(127, "exited")] * 2
        assert stage.file("attempts/0001.end")["launched"] is False


@pytest.mark.parametrize("has_run", [True, False])
def test_a_script_without_an_interpreter_is_run_by_the_shell(stage: Stage, has_run: bool) -> None:
    stage.has_run = has_run
    script = stage.path / "train"
    script.write_text('echo "$1"; exit 3\n')
    script.chmod(0o755)
    assert stage.finish("./train", "--lr 1")[:2] == (3, b"--lr 1\n")


@pytest.mark.parametrize("name", PASSED_ON)
def test_a_signal_is_forwarded_and_the_exit_code_kept(stage: Stage, name: str) -> None:
    with stage.start(*handler(name)) as process:
        assert read_line(process) == b"ready"
        process.send_signal(getattr(signal, f"SIG{name}"))
        assert read_line(process) == f"SIG{name}".encode()
        assert process.wait(20) == 7
    assert stage.attempts()[0].exit_code == 7


def test_a_command_that_handles_no_signal_dies_of_it(stage: Stage) -> None:
    with stage.start("sleep", "100") as process:
        stage.launched(process)
        process.terminate()
        assert process.wait(20) == 143
    (attempt,) = stage.attempts()
    assert (str(attempt.end), attempt.exit_code, attempt.why) == ("terminated", 143, "SIGTERM")


def test_a_signal_that_the_caller_ignores_stays_ignored(stage: Stage) -> None:
    words = ["sh", "-c", 'trap "" HUP; exec "$0" -m resilience run -- sh -c "kill -HUP \\$\\$; exit 5"', sys.executable]
    done = subprocess.run(words, env=stage.full_environment, cwd=stage.path, timeout=60)
    assert done.returncode == 5


def test_a_supervisor_that_is_suspended_suspends_its_command(stage: Stage) -> None:
    with stage.start("sleep", "100", process_group=0) as process:
        child = stage.launched(process)
        process.send_signal(signal.SIGTSTP)
        until(lambda: (state_of(process.pid), state_of(child)) == ("T", "T"))
        process.send_signal(signal.SIGCONT)
        until(lambda: (state_of(process.pid), state_of(child)) == ("S", "S"))
        process.terminate()
        assert process.wait(20) == 143


def test_a_command_that_cannot_be_suspended_keeps_its_supervisor(stage: Stage) -> None:
    """The kernel discards SIGTSTP where no shell could continue the process: an orphaned group, termios(3)."""
    with stage.start("sleep", "100", start_new_session=True) as process:
        stage.launched(process)
        process.send_signal(signal.SIGTSTP)
        process.terminate()
        assert process.wait(20) == 143


def test_a_stopped_command_ends_as_slurm_ends_it(stage: Stage) -> None:
    """SLURM sends SIGCONT with every SIGTERM."""
    with stage.start("sleep", "100") as process:
        child = stage.launched(process)
        os.kill(child, signal.SIGSTOP)
        until(lambda: state_of(child) == "T")
        until(lambda: any(one.get("phase") == "stopped" for one in stage.beats().get("rank", {}).values()))
        process.terminate()
        process.send_signal(signal.SIGCONT)
        assert process.wait(20) == 143


def test_a_killed_supervisor_leaves_no_command_behind(stage: Stage) -> None:
    """A launcher such as torchrun kills its workers, and starts others on the same GPU."""
    with stage.start(*handler("TERM")) as process:
        assert read_line(process) == b"ready"
        child = child_of(process)
        process.kill()
        assert process.wait(20) == -signal.SIGKILL
        until(lambda: not is_alive(child))


COUNT = """
import signal, sys, time
got = []
signal.signal(signal.SIGINT, lambda number, frame: got.append(number))
print("ready", flush=True)
while not got:
    time.sleep(0.05)
time.sleep(0.5)
sys.exit(10 + len(got))
"""
IN_TERMINAL = "import fcntl, os, sys, termios as t; fcntl.ioctl(0, t.TIOCSCTTY, 0); os.execv(sys.argv[1], sys.argv[1:])"


def test_ctrl_c_reaches_the_command_once(stage: Stage) -> None:
    """The terminal sends it to the whole process group, so it is not forwarded."""
    ours, theirs = os.openpty()
    words = [sys.executable, "-m", "resilience", "run", "--", sys.executable, "-S", "-c", COUNT]
    with subprocess.Popen(
        [sys.executable, "-c", IN_TERMINAL, *words], env=stage.full_environment, stdin=theirs, stdout=theirs,
        stderr=theirs, start_new_session=True,
    ) as process:  # fmt: skip
        os.close(theirs)
        seen = b""
        while b"ready" not in seen:
            seen += os.read(ours, 1024)
        os.write(ours, b"\x03")
        assert process.wait(20) == 11
    os.close(ours)


BEFORE = """
import os, signal, sys
from resilience.supervisor import supervisor
original = supervisor._find_run
def find(*arguments):
    os.kill(os.getpid(), signal.{name})
    return original(*arguments)
supervisor._find_run = find
sys.exit(supervisor.run_command(supervisor.RunOptions(("sh", "-c", "echo started"))))
"""


def test_a_signal_before_the_start_ends_what_has_not_started(stage: Stage) -> None:
    words = [sys.executable, "-c", BEFORE.format(name="SIGTERM")]
    done = subprocess.run(words, env=stage.full_environment, capture_output=True, timeout=60)
    assert (done.returncode, done.stdout) == (143, b"")
    assert str(stage.attempts()[0].end) == "terminated" and stage.file("attempts/0001.end")["launched"] is False
    words = [sys.executable, "-c", BEFORE.format(name="SIGCONT")]
    assert subprocess.run(words, env=stage.full_environment, capture_output=True, timeout=60).stdout == b"started\n"


# ---- output


def test_output_is_the_same_byte_for_byte(stage: Stage) -> None:
    raw = bytes(range(256)) * 4096 + b"no line end"
    (stage.path / "raw").write_bytes(raw)
    code, out, err = stage.finish("sh", "-c", "cat raw; cat raw raw >&2")
    found = code, len(out), len(err), hash(out), hash(err)  # a diff of megabytes takes minutes
    assert found == (0, len(raw), 2 * len(raw), hash(raw), hash(raw + raw))


def test_two_streams_in_one_file_keep_their_order(stage: Stage) -> None:
    script = "for i in $(seq 300); do echo out $i; echo err $i >&2; done"
    _, out, _ = stage.finish("sh", "-c", script, stderr=subprocess.STDOUT)
    expected = [f"{name} {number}" for number in range(1, 301) for name in ("out", "err")]
    assert out.decode().splitlines() == expected


def test_the_input_is_the_commands_own(stage: Stage) -> None:
    assert stage.finish("cat", input=b"from a file\n")[:2] == (0, b"from a file\n")


def test_a_line_without_an_end_costs_no_memory(stage: Stage) -> None:
    size = 2**30 if "RESIL_SOAK" in os.environ else 2**26
    words = ["-m", "resilience", "run", "--", "sh", "-c", f"head -c {size} /dev/zero | tr '\\0' x"]
    with stage.start_program(*words, stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        seen = sum(len(process.stdout.read(2**20)) for _ in range(size // 2**20 - 1))
        peak = re.search(r"VmHWM:\s*(\d+) kB", Path(f"/proc/{process.pid}/status").read_text())
        seen += len(process.stdout.read())
        assert process.wait(20) == 0
    assert seen == size and peak is not None and int(peak[1]) < 40 * 1024
    (log,) = (stage.run.path / "logs").iterdir()
    assert 0 < log.stat().st_size < 3 * 2**20


def test_a_closed_reader_is_the_commands_own_sigpipe(stage: Stage) -> None:
    with stage.start("yes") as process:
        assert process.stdout is not None
        assert process.stdout.read(2) == b"y\n"
        process.stdout.close()
        assert process.wait(20) == 141


def test_a_closed_or_full_stdout_does_not_end_the_command(stage: Stage) -> None:
    words = ["sh", "-c", 'exec "$0" -m resilience run -- sh -c "echo lost; exit 4" >&-', sys.executable]
    assert subprocess.run(words, env=stage.full_environment, timeout=60).returncode == 4
    with open("/dev/full", "wb") as full:
        code, _, err = stage.finish("sh", "-c", "echo lost; echo lost again; exit 4", stdout=full)
    assert code == 4 and err == b"resil: warning: output was lost: No space left on device\n"


def test_a_slow_reader_gets_everything(stage: Stage) -> None:
    with stage.start("sh", "-c", "yes | head -c 90000") as process:
        until(lambda: '"launch"' in journal_of(stage))
        until(lambda: state_of(process.pid) == "S" and len(children(process.pid)) == 1)  # the one that keeps records
        time.sleep(0.3)
        assert process.poll() is None and process.stdout is not None
        assert len(process.stdout.read()) == 90_000
        assert process.wait(20) == 0


def journal_of(stage: Stage) -> str:
    path = stage.run.path / "journal" / "0.batch.jsonl"
    return path.read_text() if path.exists() else ""


def children(pid: int) -> list[str]:
    return Path(f"/proc/{pid}/task/{pid}/children").read_text().split()


def test_a_grandchild_that_holds_the_pipe_does_not_hold_the_supervisor(stage: Stage) -> None:
    began = time.monotonic()
    code, out, err = stage.finish("sh", "-c", "sleep 100 & echo $!; exit 6", stdin=subprocess.DEVNULL)
    os.kill(int(out), signal.SIGKILL)
    assert code == 6 and time.monotonic() - began < 15
    assert err.startswith(b"resil: processes that the command has left behind hold its output")


def test_a_grandchild_that_goes_on_printing_is_cut_off() -> None:
    with open(os.devnull, "wb") as nowhere:
        copy = Tee((nowhere.fileno(),), newest := Newest())
        with subprocess.Popen(["yes"], stdout=copy.write_end) as process:
            copy.start()
            until(lambda: newest.take()[1])
            began = time.monotonic()
            copy.drain(began)
            assert not copy.is_over(began + LONGEST_S - 1)
            until(lambda: copy.is_over(began + LONGEST_S + 1))
            assert process.wait(20) == -signal.SIGPIPE
    assert copy.is_held


def test_what_the_command_has_written_is_copied_however_slow_the_reader() -> None:
    reader, writer = os.pipe()
    fcntl.fcntl(writer, fcntl.F_SETPIPE_SZ, 4096)
    copy = Tee((writer,), Newest())
    subprocess.run(["head", "-c", "60000", "/dev/zero"], stdout=copy.write_end, check=True)
    copy.start()
    began = time.monotonic()
    copy.drain(began)
    copy.join(0.2)
    assert not copy.is_over(began + 100 * LONGEST_S)
    seen = 0
    while seen < 60_000:
        seen += len(os.read(reader, 4096))
    copy.join(20)
    assert copy.is_over(began) and not copy.is_held
    os.close(reader)
    os.close(writer)


# ---- where there is nothing to supervise


def test_without_a_run_the_process_becomes_the_command(stage: Stage) -> None:
    stage.has_run = False
    with stage.start("sh", "-c", "echo $$; kill -USR1 $$") as process:
        assert int(read_line(process)) == process.pid
        assert process.wait(20) == -signal.SIGUSR1


def test_a_supervisor_below_a_supervisor_leaves_the_records_to_that(stage: Stage) -> None:
    inner = (
        sys.executable,
        "-m",
        "resilience",
        "run",
        "--stop",
        "USR1",
        "--",
        "sh",
        "-c",
        "echo $RESIL_ATTEMPT; exit 7",
    )
    code, out, err = stage.finish(*inner)
    assert (code, out, err) == (7, b"1\n", b"")
    assert len(stage.attempts()) == 1


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("--stop", "USR3", "--", "true"), "there is no signal of this name"),
        (("--stop", "KILL", "--", "true"), "no command can handle SIGKILL"),
        (("--stop", "", "--", "true"), "--stop has an empty value"),
        (("--lead", "5min", "--", "true"), "--lead needs --stop"),
        (("--run", "a b", "--", "true"), "a b"),
        (("--no-such", "--", "true"), "--no-such"),
        ((), "COMMAND"),
    ],
)
def test_wrong_options_are_refused_before_anything_starts(stage: Stage, words: tuple[str, ...], said: str) -> None:
    stage.has_run = False
    done = subprocess.run(
        [sys.executable, "-m", "resilience", "run", *words], env=stage.full_environment, cwd=stage.path,
        capture_output=True, text=True, timeout=60,
    )  # fmt: skip
    assert done.returncode == 2 and said in done.stderr, done


def test_options_of_the_command_are_the_commands(stage: Stage) -> None:
    assert stage.finish("echo", "--stop", "--help", "", "--", "x")[1] == b"--stop --help  -- x\n"


def test_newest_output_is_bounded() -> None:
    newest = Newest(most_bytes=100)
    for number in range(1000):
        newest.add(b"%09d\n" % number)
    left_out, kept = newest.take()
    assert left_out + len(kept) == 10_000 and 100 <= len(kept) < 120 and kept.endswith(b"000000999\n")
    assert newest.take() == (0, b"")
