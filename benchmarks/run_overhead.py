"""What `resil run` costs a command: its processor time beside it, its memory, its start, and output at full speed."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path

from benchmarks._peers import REPOSITORY
from benchmarks.measure import Claim, Options, Program, Report, Row, interleave, interpreter_environment

MOST_PERCENT, MOST_MIB = 1.0, 20.0
LINES_PER_S = 100
COMMAND = """
import sys, time
until = time.monotonic() + float(sys.argv[1])
step = 0
while time.monotonic() < until:
    step += 1
    print(f"iteration {step}/1000000 | loss 2.1{step:06d} | lr 1e-4 | 41.2 s/step", flush=True)
    time.sleep(1 / float(sys.argv[2]))
"""


def run(options: Options) -> Report:
    """Time it in a run directory, with heartbeats each 10 s as in a job."""
    run_dir = options.scratch / "gpt"
    (run_dir / "switches").mkdir(parents=True)
    env = interpreter_environment(
        PYTHONPATH=str(REPOSITORY), HOME=str(options.scratch), RESIL_RUN="gpt", RESIL_RUN_DIR=str(run_dir)
    )
    resil = [sys.executable, "-m", "resilience", "run", "--"]
    flood = ["/bin/sh", "-c", f"head -c {2**26 if options.quick else 2**29} /dev/zero"]
    programs = {
        "bare": Program(["/bin/true"], env),
        "python": Program([sys.executable, "-c", "pass"], env),
        "start": Program([*resil, "true"], env),
        "flood": Program(flood, env),
        "supervised flood": Program([*resil, *flood], env),
    }
    taken = interleave(programs, max(5, options.samples // 3))
    percent, peak = _beside(resil, env, 8.0 if options.quick else 40.0)
    bare = _peak([sys.executable, "-c", "input()"], env)
    rows = (
        Row("resil run -- true", taken["start"], "python -c pass", taken["python"]),
        Row("output at full speed", taken["supervised flood"], "without a supervisor, to /dev/null", taken["flood"]),
    )
    claims = (
        Claim(f"processor time beside a command that prints {LINES_PER_S} steps/s", percent, MOST_PERCENT, "%"),
        Claim("memory over a bare interpreter", (peak - bare) / 2**20, MOST_MIB, "MiB"),
    )
    return Report("a supervised command", rows, claims=claims)


def _beside(resil: list[str], env: dict[str, str], seconds: float) -> tuple[float, int]:
    """Return the processor time of the supervisor's two processes in percent of the time after its start, and their
    memory: pages that both share count once."""
    words = [*resil, sys.executable, "-c", COMMAND, str(seconds), str(LINES_PER_S)]
    with subprocess.Popen(words, env=env, stdout=subprocess.DEVNULL) as process:
        time.sleep(1.5)
        records, _ = map(int, Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text().split())
        began, first = time.monotonic(), _cpu_s(process.pid) + _cpu_s(records)
        time.sleep(seconds - 3.0)
        used_s, took_s = _cpu_s(process.pid) + _cpu_s(records) - first, time.monotonic() - began
        own = _sizes(f"/proc/{records}/smaps_rollup", "Private_Clean", "Private_Dirty")
        peak = _sizes(f"/proc/{process.pid}/status", "VmHWM") + own
    return 100 * used_s / took_s, peak


def _peak(words: list[str], env: dict[str, str]) -> int:
    with subprocess.Popen(words, env=env, stdin=subprocess.PIPE) as process:
        time.sleep(1.0)
        peak = _sizes(f"/proc/{process.pid}/status", "VmHWM")
        process.communicate(b"\n")
    return peak


def _cpu_s(pid: int) -> float:
    """Return the processor time of a process without its children, in seconds: utime and stime, proc_pid_stat(5)."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def _sizes(path: str, *names: str) -> int:
    """Return the sum of sizes in a file of /proc in bytes."""
    lines = [line.split() for line in Path(path).read_text().splitlines()]
    return sum(int(words[1]) * 1024 for words in lines if words[0].rstrip(":") in names)
