"""What an idle tick of `resil cron` costs, as a whole process, and how many jobs a day its chain submits.

Idle: nothing is due, nothing runs, no dead man's switch. That is what most ticks are: cron starts one every minute. The
system calls are those that strace(1) counts, of the process and its children.

The jobs of a day are computed from the settings. The original is a job that submits itself again every hour and then
each batch script of a directory: 1 + N jobs an hour.
"""

from __future__ import annotations

import shutil
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

from benchmarks.measure import BenchmarkError, Claim, Options, Program, Report, Row, interleave, interpreter_environment
from benchmarks.start_up import installed_command
from resilience.cron.drivers._slurm.script import lead_s
from resilience.runs.init import init
from resilience.settings.cron_settings import CronSettings
from resilience.settings.load import FILE_NAME

PASS, FEW, MANY = "pass", "few", "many"
TARGETS = {FEW: 6.5, MANY: 12.0}
"""Times a bare Python. A tick that finds nothing changed and nothing due does not read the table, however long."""
SETTLED_S = 2.5
"""A tick remembers no table that was written right before it (ticker.py, SETTLED_S)."""
DAY_S = 86400
NAN = float("nan")


def run(options: Options) -> Report:
    """Time ticks of two projects against `python -c pass`, count their system calls, and the jobs of a day."""
    entries = 100 if options.quick else 1000
    home = {"HOME": str(options.scratch), "PATH": "/usr/bin:/bin"}
    few, many = options.scratch / FEW, options.scratch / MANY
    for directory in (few, many):
        init(directory=directory, source=None, force=False)
        (directory / FILE_NAME).write_text('[run]\nname = "gpt"\ncommand = "true"\n')
    shipped = len(list((few / "cron").glob("cron.*/[a-z]*")))
    (many / "cron" / "crontab").write_text("".join(_lines(entries - shipped)))
    resil = installed_command()
    env = interpreter_environment(**home)
    ticks = {
        name: Program([*resil, "cron", "tick"], env | {"RESIL_CONFIG": str(directory / FILE_NAME)})
        for name, directory in ((FEW, few), (MANY, many))
    }
    for name, tick in ticks.items():
        _check(tick, options.scratch / name, entries if name == MANY else shipped)
    bare = Program([sys.executable, "-c", "pass"], env)
    taken = interleave({PASS: bare, **ticks}, options.samples, warm_ups=2)
    sizes = {FEW: f"the {shipped} shipped entries", MANY: f"{entries} entries"}
    rows = tuple(
        Row(f"an idle tick, {sizes[name]}", taken[name], "python -c pass", taken[PASS], target)
        for name, target in TARGETS.items()
    )
    claims, notes = _system_calls({PASS: bare, **ticks}, sizes, options.scratch)
    return Report(
        "a tick of cron without anything to do", rows, notes, (*claims, *_jobs_of_a_day(CronSettings(), shipped))
    )


def _lines(count: int) -> Sequence[str]:
    """Lines of a crontab that are all different, and none due while this runs, unless on New Year's Day."""
    return [
        f"{number % 60} {number // 60 % 24} 1 {1 + number % 2} *  /bin/true {number}  # resil: name=entry{number}\n"
        for number in range(count)
    ]


def _check(tick: Program, directory: Path, entries: int) -> None:
    """Tick twice: the first one sees everything for the first time. Raise BenchmarkError unless it read the table."""
    for _ in range(2):
        time.sleep(SETTLED_S)
        tick()
    beat = (directory / ".resil" / ".cron" / "heartbeat").read_text()
    if f'"entries": {entries}' not in beat:
        raise BenchmarkError(f"the tick saw something else than {entries} entries: {beat}")


def _system_calls(
    programs: Mapping[str, Program], sizes: Mapping[str, str], scratch: Path
) -> tuple[tuple[Claim, ...], tuple[str, ...]]:
    if shutil.which("strace") is None:
        return (), ("without system calls: there is no strace here (scripts/system-packages brings it)",)
    counts = {name: _count_system_calls(program, scratch / f"{name}.strace") for name, program in programs.items()}
    claims = [Claim(f"system calls of an idle tick, {sizes[name]}", counts[name], NAN, "calls") for name in sizes]
    return tuple(claims), (f"`python -c pass` makes {counts[PASS]} system calls",)


def _count_system_calls(program: Program, output: Path) -> int:
    argv = ["strace", "-f", "-c", "-o", str(output), *program.argv]
    done = subprocess.run(argv, env=dict(program.env), capture_output=True, text=True, stdin=subprocess.DEVNULL)
    if done.returncode:
        raise BenchmarkError(f"strace: {done.stderr.strip()[-300:]}")
    # % time, seconds, usecs/call, calls, errors (or nothing), name: strace(1). The sum at the end lacks columns in old
    # releases.
    rows = [line.split() for line in output.read_text().splitlines()]
    return sum(int(row[3]) for row in rows if len(row) >= 5 and row[3].isdigit() and row[-1] != "total")


def _jobs_of_a_day(settings: CronSettings, drop_ins: int) -> tuple[Claim, ...]:
    original = 24.0 * (1 + drop_ins)
    # Each daemon's successor begins a quarter of its limit, at most an hour, before the daemon leaves (scheduler.bash).
    limit = settings.time_limit_s
    daemon = DAY_S / (limit - lead_s(limit) - min(3600, limit / 4))
    pulse = DAY_S / settings.pulse_s
    return (
        Claim(f"jobs a day, the original with {drop_ins} drop-ins (24 x (1 + N))", original, NAN, "jobs"),
        Claim("jobs a day, daemon, whatever N is", daemon, original / 50, "jobs"),
        Claim(f"jobs a day, pulse every {settings.pulse_s:g} s, whatever N is", pulse, original, "jobs"),
    )
