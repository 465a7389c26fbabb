"""Replacements of SLURM's commands on the PATH of jobs, with the features that batch scripts use."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import FrameType

from resilience.errors import UsageError
from resilience.schedulers._local.fault import command_exit
from resilience.schedulers._local.options import Syntax, words
from resilience.schedulers._local.processes import slurm_variables, start_ticks
from resilience.system.files import write_atomic

_SRUN = Syntax(
    "srun",
    flags=words(
        "contiguous disable-status exact external hold label multi-prog no-allocate no-kill overcommit overlap "
        "oversubscribe preserve-env pty quiet quit-on-interrupt reboot spread-job unbuffered use-min-nodes verbose "
        "whole exclusive x11 bcast"
    ),
    values=words("ntasks nodes"),
    optional=words("kill-on-bad-exit"),
    short={
        "n": "ntasks", "N": "nodes", "K": "kill-on-bad-exit", "E": "preserve-env", "H": "hold", "k": "no-kill",
        "l": "label", "O": "overcommit", "Q": "quiet", "q": "quit-on-interrupt", "s": "oversubscribe",
        "u": "unbuffered", "v": "verbose", "X": "disable-status", "Z": "no-allocate",
    },
    lenient=True,
)  # fmt: skip
_FORWARDED = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGUSR1, signal.SIGUSR2, signal.SIGCONT)


@dataclass(frozen=True, slots=True)
class Step:
    """A job step.

    Attributes:
        kill_on_bad_exit: end all tasks when one fails.
    """

    command: tuple[str, ...]
    ntasks: int
    kill_on_bad_exit: bool = False


def parse_srun(arguments: Sequence[str], environ: Mapping[str, str]) -> Step:
    """Parse srun's arguments. Raise UsageError, in srun's words, for an unsupported step. Pure."""
    options, rest = _SRUN.parse(arguments)
    given = dict(options)
    if not rest:
        raise UsageError("fatal: No command given to execute.")
    if (given.get("nodes") or "1").partition("-")[0] not in ("1", ""):
        raise UsageError("error: Unable to create step for job: More processors requested than permitted")
    text = given.get("ntasks") or given.get("ntasks-per-node") or environ.get("SLURM_NTASKS") or "1"
    if not text.isdigit() or int(text) == 0:
        raise UsageError(f"error: Invalid numeric value {text!r} for --ntasks.")
    return Step(tuple(rest), int(text), given.get("kill-on-bad-exit", "0") != "0")


def task_variables(rank: int, count: int, step: int, environ: dict[str, str]) -> dict[str, str]:
    """Return the environment of one task. Pure. Source: srun(1), OUTPUT ENVIRONMENT VARIABLES."""
    return environ | slurm_variables(
        [
            ("PROCID LOCALID", rank),
            ("NODEID", 0),
            ("NTASKS NPROCS STEP_NUM_TASKS STEP_TASKS_PER_NODE TASKS_PER_NODE", count),
            ("STEP_ID STEPID", step),
            ("STEP_NUM_NODES", 1),
            ("STEP_NODELIST", environ.get("SLURMD_NODENAME", "localhost")),
            ("LAUNCH_NODE_IPADDR SRUN_COMM_HOST", "127.0.0.1"),
            ("GTIDS", ",".join(str(one) for one in range(count))),
        ]
    )


def run_step(step: Step, environ: dict[str, str]) -> int:
    """Start the tasks, wait for all, and return the highest exit code (128 + signal when a signal ended one)."""
    running: dict[int, int] = {}
    waiting: list[int] = []

    def forward(number: int, frame: FrameType | None) -> None:
        waiting.append(number)
        for pid in list(running):
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, number)

    for forwarded in _FORWARDED:
        signal.signal(forwarded, forward)
    directory = _steps_directory(environ)
    number = _next_step(directory)
    for rank in range(step.ntasks):
        try:
            # Tasks are waited for by pid, in any order, and not by Popen.
            process = subprocess.Popen(
                step.command, env=task_variables(rank, step.ntasks, number, environ), start_new_session=True
            )
        except OSError as error:
            _say(f"slurmstepd: error: execve(): {step.command[0]}: {error.strerror}")
            _kill(running)
            return 2
        running[process.pid] = rank
        process.returncode = 0
    _register(directory, running)
    for early in waiting:
        forward(early, None)
    return _wait(step, running, environ)


def _wait(step: Step, running: dict[int, int], environ: Mapping[str, str]) -> int:
    highest = 0
    host = environ.get("SLURMD_NODENAME", "localhost")
    while running:
        pid, status = os.wait()
        rank = running.pop(pid, None)
        if rank is None:
            continue
        code = os.waitstatus_to_exitcode(status)
        if code < 0:
            _say(f"srun: error: {host}: task {rank}: {signal.strsignal(-code)}")
            code = 128 - code
        elif code:
            _say(f"srun: error: {host}: task {rank}: Exited with exit code {code}")
        highest = max(highest, code)
        if code and step.kill_on_bad_exit:
            _kill(running)
    return highest


def _kill(running: Mapping[int, int]) -> None:
    for pid in list(running):
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)


def _steps_directory(environ: Mapping[str, str]) -> Path | None:
    spool, job = environ.get("RESIL_LOCAL_SPOOL"), environ.get("SLURM_JOB_ID")
    return Path(spool, "jobs", job, "steps") if spool and job else None


def _next_step(directory: Path | None) -> int:
    """Return the step's number. A file makes the number unique."""
    if directory is None:
        return 0
    with contextlib.suppress(OSError):
        directory.mkdir(mode=0o700, exist_ok=True)
        for number in range(10000):
            with contextlib.suppress(FileExistsError):
                os.close(os.open(directory / f"{number}.step", os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o600))
                return number
    return 0


def _register(directory: Path | None, running: Mapping[int, int]) -> None:
    """List the tasks for the daemon, which sends their signals."""
    if directory is None:
        return
    lines = [f"srun {os.getpid()} {start_ticks(os.getpid())}"]
    lines += [f"task {pid} {start_ticks(pid)}" for pid in running]
    with contextlib.suppress(Exception):
        write_atomic(directory / f"pids.{os.getpid()}", "\n".join(lines) + "\n")


def _say(text: str) -> None:
    sys.stderr.write(text + "\n")
    sys.stderr.flush()


def main() -> None:
    """Run the command named by the first argument, and exit with its code."""
    name, *arguments = sys.argv[1:]
    environ = dict(os.environ)
    if (code := command_exit(name, environ)) is not None:
        sys.exit(code)
    if name != "srun":
        from resilience.schedulers._local import commands

        sys.exit(commands.main(name, arguments, environ))
    try:
        step = parse_srun(arguments, environ)
    except UsageError as error:
        _say(f"srun: {error.message.removeprefix('srun: ')}")
        sys.exit(1)
    sys.exit(run_step(step, environ))
