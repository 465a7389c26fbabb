"""What a command costs before it does anything: `resil --help`, `resil status`, `resil watch fs`, as whole processes.

`status` has everything it may have on an ordinary day but a scheduler to ask: settings, a run of several jobs and
attempts, a log, and the queue's answer of a moment ago. `watch fs` has no configuration at all; its target leaves
out the looks themselves: four children that look at a file system, timed without resil. What alerting adds to a tick
without news is told besides.
"""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from benchmarks.measure import (
    BenchmarkError,
    Options,
    Program,
    Report,
    Row,
    Spread,
    interleave,
    interpreter_environment,
)
from resilience import layout
from resilience.job import Job, JobId, JobState
from resilience.runs import queue_cache
from resilience.runs.init import compose_settings
from resilience.runs.project import Project
from resilience.runs.submissions import Intent, Outcome, record_intent, record_result
from resilience.settings.load import FILE_NAME, load
from resilience.settings.show import to_toml
from resilience.system.ports import System

ONE_COMMAND = """\
import typer

app = typer.Typer()


@app.command()
def hello(name: str = "system", loud: bool = False) -> None:
    '''Say hello.'''
    print(f"hello {name}")


app()
"""
PASS, STATUS, HELP, TYPER, TYPER_HELP, SUBMITIT = "pass", "status", "help", "typer", "typer help", "submitit"
WATCH, PROBES, TOLD, UNTOLD = "watch", "probes", "told", "untold"
FORKS = """\
import os
for _ in range(4):
    pid = os.fork()
    if pid == 0:
        os.statvfs("/")
        os._exit(0)
    os.waitpid(pid, 0)
"""
"""What the looks of `watch fs` cannot do without: settings, memory, a file system, memory again, each in a child."""
TOLD_STEP = 71200


def run(options: Options) -> Report:
    """Time them against `python -c pass`, a Typer app of one command, and `import submitit`."""
    python, resil = sys.executable, installed_command()
    project = options.scratch / "gpt"
    run_directory = _write_project(project)
    # No client of any scheduler on PATH: a status that asked would fail, and so would the benchmark.
    home = {"HOME": str(options.scratch), "XDG_CACHE_HOME": str(options.scratch / "cache"), "PATH": "/nonexistent"}
    env = interpreter_environment(**home, RESIL_CONFIG=str(project / FILE_NAME))
    system = System(environ=env, cwd=project)
    _check_status(resil, env, system, run_directory)
    bare = options.scratch / "hello.py"
    bare.write_text(ONE_COMMAND)
    for name, table in ((TOLD, '[alert]\nchannels = ["console"]\n'), (UNTOLD, "")):
        (options.scratch / name).mkdir()
        (options.scratch / name / FILE_NAME).write_text(f'[run]\nname = "gpt"\n{table}')
    programs = {
        PASS: Program([python, "-c", "pass"], env),
        STATUS: Program([*resil, "status"], env, prepare=lambda: _remember(system, run_directory)),
        HELP: Program([*resil, "--help"], env),
        WATCH: Program([*resil, "watch", "fs"], interpreter_environment(**home), codes=(0, 1, 2)),
        PROBES: Program([python, "-c", FORKS], env),
        **{
            name: Program(
                [*resil, "watch", "fs"],
                interpreter_environment(**home, RESIL_CONFIG=str(options.scratch / name / FILE_NAME)),
                codes=(0, 1, 2),
            )
            for name in (TOLD, UNTOLD)
        },
        TYPER: Program([python, str(bare)], env),
        TYPER_HELP: Program([python, str(bare), "--help"], env),
    }
    other, note = _install_submitit(options.scratch / "submitit")
    if other is not None:
        programs[SUBMITIT] = Program([other, "-c", "import submitit"], env)
    taken = interleave(programs, options.samples, warm_ups=2)
    probes_s = max(0.0, taken[PROBES].median - taken[PASS].median)
    less = Spread(tuple(value - probes_s for value in taken[WATCH].values))
    rows = [
        Row("resil --help", taken[HELP], "python -c pass", taken[PASS], 14),
        Row("resil status, answer remembered", taken[STATUS], "python -c pass", taken[PASS], 8),
        Row("resil watch fs, no configuration, probes included", taken[WATCH], "python -c pass", taken[PASS]),
        Row("resil watch fs, less its probes", less, "python -c pass", taken[PASS], 8),
        Row("resil watch fs, alerting without news", taken[TOLD], "the same without [alert]", taken[UNTOLD]),
    ]
    if other is not None:
        rows += [
            Row("resil --help", taken[HELP], "import submitit", taken[SUBMITIT], 0.75),
            Row("resil status, answer remembered", taken[STATUS], "import submitit", taken[SUBMITIT], 0.75),
        ]
    rows += [
        Row("resil --help", taken[HELP], "Typer app of one command --help", taken[TYPER_HELP]),
        Row("resil status, answer remembered", taken[STATUS], "Typer app of one command", taken[TYPER]),
    ]
    probes = (
        f"the probes of watch fs are taken to cost {probes_s * 1000:.1f} ms: a bare Python that forks four times "
        "(settings, memory, a file system, memory again), less `pass`; forks of resil, which is larger, cost more"
    )
    return Report("whole processes, from the start to the end", tuple(rows), (note, probes))


def installed_command() -> list[str]:
    """The `resil` of this interpreter."""
    script = Path(sys.executable).with_name("resil")
    return [str(script)] if script.exists() else [sys.executable, "-m", "resilience"]


def _write_project(project: Path) -> Path:
    """A project directory with resil.toml and a run in its second attempt; return the run's directory."""
    project.mkdir()
    (project / FILE_NAME).write_text(compose_settings(project.name, "")[0])
    system = System(environ={}, cwd=project)
    opened = Project(system, load(system))
    directory = opened.directory(project.name)
    directory.create(to_toml(opened.loaded, project.name))
    now = system.clock.now()
    for number in range(1, 6):
        token = f"{number:016x}"
        script = str(directory.path / layout.SCRIPTS / f"{token}.sbatch")
        argv = ("sbatch", "--parsable", f"--comment=resil:{project.name}:{token}", "--array=1-10%1", script)
        record_intent(directory, Intent(token, "slurm", script, argv, now, by=system.host.user))
        record_result(directory, token, Outcome.SUBMITTED, now, job_id=JobId(100 + number))
    for number in (1, 2):
        text = f'number = {number}\njob_id = {100 + number}\nlabel = "105_{number}"\nrestart = 0\nhost = "n1"\n'
        attempt = directory.path / layout.ATTEMPTS / layout.attempt_file(number)
        attempt.write_text(f"{text}pid = 1\nstart = {now:.0f}\n")
    log = "".join(f"step {step} loss 2.{step % 1000:03d}\n" for step in range(TOLD_STEP - 5000, TOLD_STEP + 1))
    (directory.path / layout.LOGS / f"{project.name}-105_2.out").write_text(log)
    return directory.path


def _remember(system: System, run_directory: Path) -> None:
    """Let the queue have answered just now."""
    name, now = run_directory.name, system.clock.now()
    running = Job(
        id=JobId(105, 2),
        raw_id=107,
        name=name,
        state=JobState.RUNNING,
        user=system.host.user,
        comment=f"resil:{name}:{5:016x}",
        nodes="n1",
        end_time=now + 3600,
    )
    waiting = Job(
        id=JobId(105),
        raw_id=105,
        name=name,
        state=JobState.PENDING,
        user=system.host.user,
        comment=f"resil:{name}:{5:016x}",
        reason="JobArrayTaskLimit",
        tasks="3-10%1",
        task_count=8,
    )
    queue_cache.save(system, "slurm", (running, waiting))


def _check_status(resil: list[str], env: dict[str, str], system: System, run_directory: Path) -> None:
    """Raise BenchmarkError unless `resil status` shows what was written."""
    _remember(system, run_directory)
    shown = subprocess.run([*resil, "status"], env=env, capture_output=True, text=True)
    if shown.returncode or not all(word in shown.stdout for word in ("running", str(TOLD_STEP), "attempt 2", "3-10%1")):
        raise BenchmarkError(f"resil status shows something else:\n{shown.stdout}{shown.stderr}")


def _install_submitit(directory: Path) -> tuple[str | None, str]:
    """Make an environment with submitit alone; return its interpreter, or None, and a note on what was done."""
    try:
        subprocess.run([sys.executable, "-m", "venv", str(directory)], check=True, capture_output=True, timeout=120)
        pip = [str(directory / "bin" / "python"), "-m", "pip"]
        install = [*pip, "install", "--quiet", "--disable-pip-version-check", "submitit"]
        subprocess.run(install, check=True, capture_output=True, timeout=180)
        shown = subprocess.run([*pip, "show", "submitit"], check=True, capture_output=True, text=True, timeout=60)
    except (OSError, subprocess.SubprocessError) as error:
        return None, f"without `import submitit`: it could not be installed ({type(error).__name__}; no network?)"
    version = next(line.split()[1] for line in shown.stdout.splitlines() if line.startswith("Version:"))
    note = f"submitit {version} is alone in a fresh virtual environment of the same interpreter; resil is not"
    return str(directory / "bin" / "python"), note
