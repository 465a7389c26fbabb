"""What a terminal shows: tables that fit, live views that follow its size, and no performance data."""

from __future__ import annotations

import fcntl
import os
import pty
import re
import select
import signal
import struct
import subprocess
import sys
import termios
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from resilience.cli import output
from resilience.cli.output import clipped, table, width_of

LONG = "runs/gpt/" + "x" * 60 + "/checkpoints"


@pytest.mark.parametrize(
    ("text", "width", "wanted"),
    [
        ("fits", 4, "fits"),
        ("a sentence is cut at its end", 12, "a sentence…"),
        ("/scratch/ada/runs/gpt/checkpoint-500", 20, "/scratch/…eckpoint-500"[:9] + "…eckpoint-500"[-11:]),
        ("日本語のパス", 7, "日本語…"),
        ("ab", 1, "…"),
    ],
)
def test_a_text_is_clipped_with_an_ellipsis(text: str, width: int, wanted: str) -> None:
    got = clipped(text, width)
    assert width_of(got) <= width
    if "/" not in text:
        assert got == wanted
    else:
        assert got.startswith("/scratch/") and got.endswith("point-500") and "…" in got


@pytest.mark.parametrize("columns", [30, 60, 80, 200])
def test_a_table_fits_the_terminal_and_narrow_columns_stay_whole(monkeypatch: pytest.MonkeyPatch, columns: int) -> None:
    monkeypatch.setattr(output, "_size", lambda: (columns, 24))
    rows = [
        ("OK", "fs", LONG, "91% used, 3.0 TiB left of 40 TiB, and it grows by 1 TiB per day"),
        ("CRITICAL", "job", "gpt", "?"),
    ]
    lines = table(("VERDICT", "WATCHDOG", "SUBJECT", "SUMMARY"), rows)
    assert max(map(width_of, lines)) <= columns
    if columns >= 60:
        assert lines[2].startswith("CRITICAL")
        assert lines[0].split() == ["VERDICT", "WATCHDOG", "SUBJECT", "SUMMARY"]
    assert ("…" in lines[1]) == (columns < 160)


def test_without_a_terminal_nothing_is_clipped() -> None:
    assert LONG * 9 in table(("A",), [(LONG * 9,)])[1]


@contextmanager
def on_a_terminal(directory: Path, *words: str, columns: int = 80, rows: int = 24) -> Iterator[tuple[int, int]]:
    """Run a command on a terminal of its own; yield its file descriptor and the process."""
    (directory / "resil.toml").write_text(
        '[run]\nname = "gpt"\ncommand = "python train.py"\n[scheduler]\nname = "local"\n'
    )
    mine, theirs = pty.openpty()
    resize(mine, columns, rows)
    env = {key: value for key, value in os.environ.items() if not key.startswith(("RESIL_", "SLURM", "XDG_"))}
    env |= {"HOME": str(directory), "TERM": "xterm", "PYTHONPATH": str(Path(__file__).parents[2]), "NO_COLOR": "1"}
    env |= {"RESIL_LOCAL_SPOOL": str(directory / "spool")}
    process = subprocess.Popen(
        [sys.executable, "-m", "resilience", *words],
        stdin=theirs,
        stdout=theirs,
        stderr=theirs,
        env=env,
        cwd=directory,
        start_new_session=True,
        preexec_fn=lambda: fcntl.ioctl(0, termios.TIOCSCTTY, 0),
    )
    os.close(theirs)
    try:
        yield mine, process.pid
    finally:
        process.send_signal(signal.SIGKILL)
        process.wait(20)
        os.close(mine)


def resize(terminal: int, columns: int, rows: int) -> None:
    """Give the terminal a size: the kernel sends SIGWINCH to its foreground process group."""
    fcntl.ioctl(terminal, termios.TIOCSWINSZ, struct.pack("HHHH", rows, columns, 0, 0))


def read_until(terminal: int, pattern: str, within_s: float = 60.0) -> str:
    """Return what was written, as soon as it matches."""
    seen, until = "", time.monotonic() + within_s
    while not re.search(pattern, seen, re.DOTALL):
        assert time.monotonic() < until, seen
        if select.select([terminal], [], [], 0.5)[0]:
            try:
                seen += os.read(terminal, 65536).decode(errors="replace")
            except OSError:  # the command has ended
                assert re.search(pattern, seen, re.DOTALL), seen
                return seen
    return seen


def frame(text: str) -> list[str]:
    """Return the lines of the last view that is whole."""
    views = re.findall(r"\x1b\[H(.*?)\x1b\[J", text, re.DOTALL)
    return [line for line in views[-1].replace("\x1b[K", "").replace("\r", "").split("\n") if line]


@pytest.mark.parametrize(
    "words",
    [("watch", "fs", "/", "/dev/shm", "--every", "1h", "--no-alert"), ("status", "--watch", "--interval", "3600")],
)
def test_a_live_view_fits_the_terminal_and_is_drawn_again_when_that_is_resized(
    tmp_path: Path, words: tuple[str, ...]
) -> None:
    (tmp_path / ".resil" / "gpt" / "switches").mkdir(parents=True)
    (tmp_path / ".resil" / "gpt" / "submissions.jsonl").touch()
    with on_a_terminal(tmp_path, *words, columns=120, rows=30) as (terminal, _):
        first = frame(read_until(terminal, r"\x1b\[J"))
        assert first and max(map(width_of, first)) <= 120
        resize(terminal, 34, 4)
        small = frame(read_until(terminal, r"\x1b\[J"))
        assert max(map(width_of, small)) <= 34
        assert len(small) <= 3
        resize(terminal, 150, 40)
        large = frame(read_until(terminal, r"\x1b\[J"))
        assert [line.split("last at")[0] for line in large] == [line.split("last at")[0] for line in first] or len(
            large
        ) >= len(first)


def test_performance_data_is_for_programs_not_for_terminals(tmp_path: Path) -> None:
    with on_a_terminal(tmp_path, "watch", "fs", "/", "--no-alert") as (terminal, _):
        shown = read_until(terminal, r"\n(OK|WARNING|CRITICAL)[^\n]*\n")
    assert "VERDICT" in shown and "|" not in shown and "'=" not in shown
    command = [sys.executable, "-m", "resilience", "watch", "fs", "/", "--no-alert"]
    env = {**os.environ, "HOME": str(tmp_path), "PYTHONPATH": str(Path(__file__).parents[2])}
    piped = subprocess.run(command, capture_output=True, text=True, cwd=tmp_path, env=env)
    assert re.search(r" \| '.*'=\d", piped.stdout)


def test_lines_of_a_report_are_broken_between_words(tmp_path: Path) -> None:
    for number in range(3):
        (tmp_path / "tree" / f"{'long-name-' * 8}{number}").mkdir(parents=True)
    with on_a_terminal(tmp_path, "watch", "fs", "--top", "tree", columns=50) as (terminal, _):
        shown = read_until(terminal, r"growth: .*earlier\s+one").replace("\r", "")
    text = re.sub(r"\x1b\[K|.*\x1b\[K", "", shown)
    too_long = [line for line in text.split("\n") if width_of(line) > 50]
    assert all(" " not in line.strip() for line in too_long)  # a word alone, such as the path of the tree


@pytest.mark.parametrize(("columns", "is_table"), [(40, False), (90, True), (0, True)])
def test_a_table_of_many_columns_is_printed_as_paragraphs_on_a_narrow_terminal(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], columns: int, is_table: bool
) -> None:
    monkeypatch.setattr(output, "_size", lambda: (columns, 24))
    headers = ("ID", "VERDICT", "WHAT", "SINCE", "NOTIFIED", "ACKNOWLEDGED", "SUMMARY")
    row = (
        "3f9a1c",
        "CRITICAL",
        "fs /scratch space",
        "5 min ago",
        "email, slack",
        "",
        "97% used, 3.0 TiB left of 40 TiB",
    )
    output.print_table(headers, [row])
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) == (2 if is_table else 6)
    if not is_table:
        assert lines[0] == "3f9a1c  CRITICAL" and lines[1] == "  what: fs /scratch space"
        assert max(map(len, lines)) <= 40 and "…" not in "".join(lines)
