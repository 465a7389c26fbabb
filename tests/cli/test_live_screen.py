"""The terminal of `resil top` is as before whatever ends the screen, and is refused in words where it cannot be one."""

from __future__ import annotations

import os
import pty
import re
import signal
import subprocess
import sys
import termios
from collections.abc import Callable
from pathlib import Path

import pytest

from resilience.cli.output import width_of
from resilience.cli.top.screen import text_of
from tests.cli.test_terminal import on_a_terminal, read_until, resize
from tests.lab.waiting import until

REPOSITORY = Path(__file__).parents[2]
LEFT = r"\x1b\[\?25h\x1b\[\?1049l"


def a_run(directory: Path, name: str = "gpt") -> None:
    (directory / ".resil" / name / "switches").mkdir(parents=True)
    (directory / ".resil" / name / "submissions.jsonl").touch()


def worker_of(pid: int) -> int:
    """Return the only child that is left: others opened the project."""

    def children() -> list[int]:
        found = [int(one) for one in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]
        return [one for one in found if not is_gone(one)]

    until(lambda: len(children()) == 1, "one child")
    return children()[0]


def is_gone(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] in "ZX"
    except OSError:
        return True


def test_keys_work_and_the_terminal_is_as_before(tmp_path: Path) -> None:
    a_run(tmp_path)
    with on_a_terminal(tmp_path, "top") as (terminal, pid):
        before = termios.tcgetattr(terminal)
        shown = read_until(terminal, r"gpt.*q.*quit")
        assert "\x1b[?1049h" in shown and not re.search(r"\x1b\[\d+m", shown), "NO_COLOR is set"
        assert termios.tcgetattr(terminal) != before
        worker = worker_of(pid)
        for key, answer in ((b"?", r"sends no heartbeat"), (b"?", r"gpt"), (b"s", r"save switch set"),
                            (b"k", r"stop gpt after a save\?"), (b"n", r"nothing was done"),
                            (b"ky", r"stop gpt"), (b"n", r"nothing was done"), (b"k", r"stop gpt"),
                            (b"y", r"kill switch set"), (b"a", r"no incident")):  # fmt: skip
            os.write(terminal, key)
            read_until(terminal, answer)
        assert {path.name for path in (tmp_path / ".resil" / "gpt" / "switches").iterdir()} == {"save", "kill"}
        os.write(terminal, b"q")
        read_until(terminal, LEFT)
        until(lambda: termios.tcgetattr(terminal) == before, "the terminal as before")
        until(lambda: is_gone(worker) and is_gone(pid), "the end of both processes")


@pytest.mark.parametrize(
    "end", [lambda pid, worker: os.kill(pid, signal.SIGTERM), lambda pid, worker: os.kill(pid, signal.SIGINT),
            lambda pid, worker: os.kill(pid, signal.SIGHUP), lambda pid, worker: os.kill(worker, signal.SIGKILL)],
    ids=["SIGTERM", "SIGINT", "SIGHUP", "dead worker"],
)  # fmt: skip
def test_the_terminal_is_restored_after_a_signal_and_after_an_error(
    tmp_path: Path, end: Callable[[int, int], None]
) -> None:
    a_run(tmp_path)
    with on_a_terminal(tmp_path, "top") as (terminal, pid):
        before = termios.tcgetattr(terminal)
        read_until(terminal, r"gpt.*quit")
        worker = worker_of(pid)
        end(pid, worker)
        rest = read_until(terminal, LEFT)
        until(lambda: termios.tcgetattr(terminal) == before, "the terminal as before")
        until(lambda: is_gone(worker) and is_gone(pid), "the end of both processes")
        assert "Traceback" not in rest


def test_a_worker_that_hangs_does_not_hold_the_keys(tmp_path: Path) -> None:
    a_run(tmp_path)
    with on_a_terminal(tmp_path, "top") as (terminal, pid):
        read_until(terminal, r"gpt.*quit")
        worker = worker_of(pid)
        os.kill(worker, signal.SIGSTOP)
        os.write(terminal, b"?")
        read_until(terminal, r"this help")
        read_until(terminal, r"NO NEW DATA FOR")
        os.write(terminal, b"q")
        read_until(terminal, LEFT)
        until(lambda: is_gone(worker) and is_gone(pid), "the end of both processes")


def test_it_follows_the_size_of_the_terminal_and_what_is_the_same_is_not_drawn_again(tmp_path: Path) -> None:
    a_run(tmp_path)
    with on_a_terminal(tmp_path, "top", columns=120, rows=30) as (terminal, _):
        read_until(terminal, r"gpt.*quit")
        resize(terminal, 50, 9)
        small = read_until(terminal, r"\x1b\[2J.*quit").rpartition("\x1b[2J")[2]
        rows = re.findall(r"\x1b\[(\d+);1H([^\x1b]*)", small)
        assert max(int(row) for row, _ in rows) <= 9 and max(width_of(text) for _, text in rows) <= 50
        resize(terminal, 20, 3)
        read_until(terminal, r"enlarge the ter")
        os.write(terminal, b"q")
        read_until(terminal, LEFT)


def test_ctrl_z_gives_the_terminal_back_until_it_continues(tmp_path: Path) -> None:
    a_run(tmp_path)
    with on_a_terminal(tmp_path, "top") as (terminal, pid):
        before = termios.tcgetattr(terminal)
        read_until(terminal, r"gpt.*quit")
        os.kill(pid, signal.SIGTSTP)
        read_until(terminal, LEFT)
        until(lambda: Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "T", "the stop")
        assert termios.tcgetattr(terminal) == before
        os.killpg(pid, signal.SIGCONT)
        read_until(terminal, r"\x1b\[\?1049h.*gpt.*quit")
        os.write(terminal, b"q")
        read_until(terminal, LEFT)


def test_a_terminal_that_goes_away_without_a_signal_ends_it(tmp_path: Path) -> None:
    a_run(tmp_path)
    mine, theirs = pty.openpty()
    env = os.environ | {"PYTHONPATH": str(REPOSITORY), "HOME": str(tmp_path), "TERM": "xterm"}
    process = subprocess.Popen([sys.executable, "-m", "resilience", "top"], stdin=theirs, stdout=theirs,
                               stderr=subprocess.PIPE, text=True, env=env, cwd=tmp_path)  # fmt: skip
    os.close(theirs)
    read_until(mine, r"quit")
    os.close(mine)
    assert "internal error" not in process.communicate(timeout=60)[1]
    assert process.returncode == 128 + signal.SIGHUP


def test_colours_are_left_out_if_asked(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys.stdout, "isatty", lambda: True)
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.delenv("NO_COLOR", raising=False)
    assert text_of([(("bad", "red"), (" and well", ""))]) == ["\x1b[31mbad\x1b[0m and well"]
    monkeypatch.setenv("NO_COLOR", "1")
    assert text_of([(("bad", "red"), (" and well", ""))]) == ["bad and well"]


def resil(directory: Path, *words: str, **variables: str) -> subprocess.CompletedProcess[str]:
    env = {key: value for key, value in os.environ.items() if not key.startswith(("RESIL_", "SLURM", "XDG_"))}
    env |= {"HOME": str(directory), "PYTHONPATH": str(REPOSITORY), "RESIL_SCHEDULER__NAME": "local"}
    env |= {"RESIL_LOCAL_SPOOL": str(directory / "spool"), **variables}
    command = [sys.executable, "-m", "resilience", *words]
    return subprocess.run(command, cwd=directory, env=env, capture_output=True, text=True, timeout=120)


def test_without_a_terminal_there_is_one_frame_as_text_and_the_live_screen_is_refused(tmp_path: Path) -> None:
    a_run(tmp_path)
    done = resil(tmp_path, "top", "--once")
    assert done.returncode == 0 and "\x1b" not in done.stdout and "gpt" in done.stdout
    assert resil(tmp_path, "top", "--once", PYTHONIOENCODING="ascii").stdout.isascii()
    done = resil(tmp_path, "top")
    assert done.returncode == 2 and "no terminal" in done.stderr and "resil top --once" in done.stderr
    done = resil(tmp_path, "top", "nope", "--once")
    assert done.returncode == 2 and "there is no run 'nope'" in done.stderr


def test_a_dumb_terminal_is_refused_in_words(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    code = "import os, sys; os.environ['TERM'] = 'dumb'; from resilience.cli.entry import run; sys.exit(run(['top']))"
    mine, theirs = pty.openpty()
    env = os.environ | {"PYTHONPATH": str(REPOSITORY), "HOME": str(tmp_path)}
    process = subprocess.Popen(
        [sys.executable, "-c", code], stdin=theirs, stdout=theirs, stderr=theirs, env=env, cwd=tmp_path
    )
    os.close(theirs)
    said = read_until(mine, r"try: [^\n]*\n")
    assert "TERM is dumb" in said and "resil top --once" in said and "\x1b" not in said
    assert process.wait(60) == 2
    os.close(mine)
