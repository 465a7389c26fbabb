"""What `resil top` costs beside a run whose heartbeats change: CPU of both processes, system calls per screen."""

from __future__ import annotations

import fcntl
import os
import pty
import re
import select
import shutil
import signal
import struct
import subprocess
import sys
import termios
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from benchmarks._peers import REPOSITORY
from benchmarks.measure import BenchmarkError, Claim, Options, Report, interpreter_environment

MOST_PERCENT = 1.0
EVERY_S = 2.0
SETTINGS = '[run]\nname = "gpt"\n[scheduler]\nname = "local"\n'
SIZES = {"8 ranks": (1, 8), "1,024 ranks": (128, 8)}
START_S = 12.0
"""What the start costs is over by then."""
NONE = float("nan")


def run(options: Options) -> Report:
    """Watch a small and a large run for a while, on a terminal of 80 columns."""
    seconds = 10.0 if options.quick else 120.0
    claims = []
    for name, (nodes, ranks) in SIZES.items():
        directory = options.scratch / name.replace(" ", "")
        write_run(directory, nodes, ranks)
        with on_terminal(directory) as (pid, terminal):
            pass_time(directory, nodes, ranks, terminal, START_S)
            begun, before = time.monotonic(), cpu_s(pid)
            looks = pass_time(directory, nodes, ranks, terminal, seconds)
            percent = 100 * (cpu_s(pid) - before) / (time.monotonic() - begun)
            claims.append(Claim(f"CPU of both processes, {name}", percent, MOST_PERCENT, "% of a core"))
            claims.append(Claim(f"screens drawn, {name}", looks, NONE, f"in {seconds:g} s"))
            if shutil.which("strace"):
                calls = system_calls(directory, nodes, ranks, pid, terminal, seconds)
                claims.append(Claim(f"system calls per screen, {name}", calls, NONE, "calls"))
    return Report(
        "a live screen", claims=tuple(claims),
        notes=("every heartbeat is rewritten each 10 s, as guards do", "the log grows by a line a second",
               "80 columns, 24 rows; the worker pauses so long that looks, and heartbeats, take 0.5 % of a core each"),
    )  # fmt: skip


def write_run(directory: Path, nodes: int, ranks: int) -> None:
    """Write a run with one attempt that trains, as its guards and batch shell do."""
    state = directory / ".resil" / "gpt"
    for name in ("switches", "beats", "attempts", "journal", "logs", "learned"):
        (state / name).mkdir(parents=True)
    (directory / "resil.toml").write_text(SETTINGS)
    now = time.time()
    (state / "submissions.jsonl").write_text("")
    (state / "attempts" / "0001").write_text(
        f'number = 1\njob_id = 12\nlabel = "12"\nhost = "n0"\npid = 4\nstart = {now}\n'
    )
    (state / "attempts" / "0001.beat").touch()
    (state / "learned" / "0.json").write_text(
        '{"attempt": 1, "cadence": {"interval_s": 600}, "host_memory": {"trend": null}}'
    )
    write_beats(directory, nodes, ranks, 0)


def write_beats(directory: Path, nodes: int, ranks: int, step: int) -> None:
    """Write all heartbeats of a run, each with 24 windows per rank."""
    now = time.time()
    windows = [[64 * number, 64, 64, 60, 18, 70.4] for number in range(1, 25)]
    for node in range(nodes):
        text = f'attempt = 1\nhost = "n{node}"\ntime = {now}\nstep = {step}\n'
        for rank in range(node * ranks, (node + 1) * ranks):
            text += f'[rank.{rank}]\npid = 7\nstep = {step}\nadvanced = {now}\nphase = "train"\nwindows = {windows}\n'
        path = directory / ".resil" / "gpt" / "beats" / f"12.n{node}"
        path.with_name(".new").write_text(text)
        path.with_name(".new").rename(path)


def pass_time(directory: Path, nodes: int, ranks: int, terminal: int, seconds: float) -> int:
    """Let the run go on, and read what the screen draws; return how often it drew."""
    until, beat, drawn, step = time.monotonic() + seconds, 0.0, 0, 0
    log = directory / ".resil" / "gpt" / "logs" / "gpt-12.out"
    while (now := time.monotonic()) < until:
        if now >= beat:
            beat = now + 10
            step += 20
            write_beats(directory, nodes, ranks, step)
        with log.open("a") as file:
            file.write(f"step {step} loss 1.25\n")
        end = now + 1
        while (left_s := end - time.monotonic()) > 0:
            if select.select([terminal], [], [], left_s)[0]:
                os.read(terminal, 65536)
                drawn += 1
    return drawn


def system_calls(directory: Path, nodes: int, ranks: int, pid: int, terminal: int, seconds: float) -> float:
    """Count system calls by strace(1); return them per screen."""
    targets = [word for one in (pid, *children(pid)) for word in ("-p", str(one))]
    summary = directory / "strace"
    tracer = subprocess.Popen(["strace", "-f", "-c", "-o", str(summary), *targets], stderr=subprocess.DEVNULL)
    try:
        looks = pass_time(directory, nodes, ranks, terminal, seconds)
    finally:
        tracer.send_signal(signal.SIGINT)
        tracer.wait(30)
    total = re.search(r"([0-9]+)(?: +[0-9]+)? +total$", summary.read_text(), re.MULTILINE)
    if total is None or not looks:
        raise BenchmarkError("strace counted nothing: it may not attach here")
    return int(total[1]) / looks


def children(pid: int) -> list[int]:
    """Return the children of a process."""
    return [int(one) for one in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]


def cpu_s(pid: int) -> float:
    """Return the CPU seconds of a process, its children, and all that they have waited for."""
    total = 0.0
    for one in (pid, *children(pid)):
        fields = Path(f"/proc/{one}/stat").read_text().rpartition(")")[2].split()
        total += sum(map(int, fields[11:15])) / os.sysconf("SC_CLK_TCK")
    return total


@contextmanager
def on_terminal(directory: Path) -> Iterator[tuple[int, int]]:
    """Run `resil top` on a terminal of its own; yield its process and the terminal."""
    home = str(directory)
    env = interpreter_environment(
        HOME=home, XDG_CACHE_HOME=home, RESIL_LOCAL_SPOOL=str(directory / "spool"), TERM="xterm",
        PYTHONPATH=str(REPOSITORY),
    )  # fmt: skip
    mine, theirs = pty.openpty()
    fcntl.ioctl(mine, termios.TIOCSWINSZ, struct.pack("HHHH", 24, 80, 0, 0))
    command = [sys.executable, "-m", "resilience", "top"]
    process = subprocess.Popen(
        command, stdin=theirs, stdout=theirs, stderr=theirs, env=env, cwd=directory, start_new_session=True
    )
    os.close(theirs)
    try:
        yield process.pid, mine
    finally:
        process.terminate()
        with suppress(OSError):
            while select.select([mine], [], [], 5.0)[0] and os.read(mine, 65536):
                pass
        process.wait(30)
        os.close(mine)
