"""What it costs to judge 1,000 runs from one query of the queue that answers with 100,000 rows."""

from __future__ import annotations

import statistics
import sys
import time
from pathlib import Path

from benchmarks.measure import BenchmarkError, Claim, Options, Report, Row, Spread, interleave, timed
from resilience.finding import Verdict
from resilience.job import JobId
from resilience.runs.project import Project
from resilience.runs.submissions import Intent, Outcome, record_intent, record_result
from resilience.schedulers._slurm.queue import QUEUE_COLUMNS, ROW_END, SEPARATOR
from resilience.schedulers.slurm import Slurm
from resilience.settings.load import load
from resilience.submission import make_comment
from resilience.system.ports import Host, System, SystemClock
from resilience.system.process import ProcessRunner
from resilience.watch.checks.job import CHECK
from resilience.watch.reading import Timed
from resilience.watch.watchdogs import context_of, load_watchdog

RUNS, QUICK_RUNS = 1_000, 50
ROWS, QUICK_ROWS = 100_000, 5_000
JOBS_OF_A_RUN = 5
TARGET_S = 1.5


def run(options: Options) -> Report:
    """Make the runs and the queue, then look and judge, in turn with what a look would cost without its filter."""
    runs, rows = (QUICK_RUNS, QUICK_ROWS) if options.quick else (RUNS, ROWS)
    project = _project(options.scratch)
    _make_runs(project, runs)
    _make_squeue(options.scratch, project, runs, rows)
    client = Slurm(clock=SystemClock(), runner=ProcessRunner(), environ=project.system.environ)

    def look() -> None:
        verdicts = _look_and_judge(project)
        if verdicts != [Verdict.OK] * (runs + 1):
            raise BenchmarkError(f"{len(verdicts)} findings, not all of them OK")

    samples = max(3, options.samples // 3)
    taken = interleave(
        {
            "look": timed(look),
            "pipe": timed(lambda: client.jobs(finished=True, keep=lambda *_: False)),
            "all": timed(lambda: client.jobs(finished=True)),
        },
        samples,
    )
    what = f"{runs:,} runs judged from one query of {rows:,} rows"
    table = (
        Row(f"{what}: files, query, judge", taken["look"], "making a Job of every row", taken["all"]),
        Row(f"{rows:,} rows through the pipe, each checked, none kept", taken["pipe"], "the same", taken["all"]),
    )
    tick = _tick(project)
    claims = (
        Claim(what, statistics.median(taken["look"].values), float("nan") if options.quick else TARGET_S, "s"),
        Claim("the whole tick: fork, readings remembered as JSON before and after", tick.median, float("nan"), "s"),
    )
    notes = (
        f"{JOBS_OF_A_RUN} rows of each run, the others strangers'",
        "squeue is `cat` of a file here, so the controller's own time is not in it",
    )
    return Report(what, table, notes, claims)


def _look_and_judge(project: Project) -> list[Verdict]:
    settings, context = CHECK.Settings(), context_of(project)
    found = []
    for target in CHECK.targets(settings, context):
        for subject, reading in CHECK.probe(target, settings, context, {}).items():
            now = project.system.clock.now()
            found += [one.verdict for one in CHECK.judge(subject, (Timed(now, reading),), settings, now)]
    return found


def _tick(project: Project) -> Spread:
    from resilience.watch.watch import watch

    watchdog = load_watchdog(project, "job")

    def tick() -> float:
        began = time.perf_counter()
        (report,) = watch(project, [watchdog])
        if report.verdict is not Verdict.OK:
            raise BenchmarkError(f"the tick ended with {report.findings[0]}")
        return time.perf_counter() - began

    tick()  # the first has nothing to remember
    return Spread(tuple(tick() for _ in range(3)))


def _project(scratch: Path) -> Project:
    directory = scratch / "project"
    directory.mkdir()
    (directory / "resil.toml").write_text('[run]\nname = "run-0000"\n[scheduler]\nname = "slurm"\n')
    here = Host.current()
    host = Host(here.name, here.user, here.uid, scratch)
    environ = {"PATH": f"{scratch}/bin:/usr/bin:/bin"}
    system = System(runner=ProcessRunner(), environ=environ, host=host, cwd=directory)
    return Project(system, load(system))


def _make_runs(project: Project, runs: int) -> None:
    now = time.time()
    for number in range(runs):
        name = f"run-{number:04d}"
        directory = project.directory(name)
        directory.create("")
        for link in range(2):
            token = f"{number:012x}{link:04x}"
            record_intent(directory, Intent(token, "slurm", "train.sbatch", ("sbatch", "train.sbatch"), now))
            record_result(directory, token, Outcome.SUBMITTED, now, job_id=JobId(_first_id(number) + link))
        (directory.path / "attempts" / "0001").write_text(f'job_id = "{_first_id(number)}"\nstart = "{now}"\n')


def _first_id(number: int) -> int:
    return 1_000_000 + 10 * number


def _make_squeue(scratch: Path, project: Project, runs: int, rows: int) -> None:
    """A squeue that answers with a file: the runs' rows spread among the others."""
    mine = [row for number in range(runs) for row in _rows_of_run(number, project.system.host.user)]
    every = max(1, rows // len(mine))
    text = scratch / "queue.txt"
    with text.open("w") as file:
        for number in range(rows):
            turn, rest = divmod(number, every)
            file.write(mine[turn] if rest == 0 and turn < len(mine) else _strangers_row(number))
    program = scratch / "bin" / "squeue"
    program.parent.mkdir()
    program.write_text(f"#!/bin/sh\nexec cat {text}\n")
    program.chmod(0o755)


def _rows_of_run(number: int, user: str) -> list[str]:
    """One that runs, a chain behind it."""
    name, now = f"run-{number:04d}", int(time.time())
    found = []
    for link in range(JOBS_OF_A_RUN):
        first = _first_id(number)
        token = f"{number:012x}{min(link, 1):04x}"
        runs = link == 0
        found.append(
            _row(
                JobArrayID=first + link, JobID=first + link, UserName=user, State="RUNNING" if runs else "PENDING",
                StartTime=now - 3600 if runs else "N/A", EndTime=now + 72000 if runs else "N/A",
                NodeList=f"n[{number}-{number + 3}]" if runs else "", Reason="None" if runs else "Dependency",
                Dependency="" if runs else f"afterany:{first + link - 1}(unfulfilled)",
                Comment=make_comment(name, token), Name=name,
            )
        )  # fmt: skip
    return found


def _strangers_row(number: int) -> str:
    comment = "(null)" if number % 3 else make_comment(f"theirs-{number % 700}", f"{number:016x}")
    name = f"eval lr={number % 97}e-5 {'x' * (number % 60)}"
    return _row(
        JobArrayID=f"{5_000_000 + number}_[1-9%2]", JobID=5_000_000 + number, UserName=f"user{number % 300}",
        State="PENDING", ArrayTaskID="1-9%2", Reason="Priority", Comment=comment, Name=name,
    )  # fmt: skip


def _row(**values: object) -> str:
    usual = {
        "ArrayTaskID": "N/A", "SubmitTime": int(time.time()) - 7200, "StartTime": "N/A", "EndTime": "N/A",
        "TimeLimit": "20:00:00", "NumNodes": "4", "Partition": "gpu", "Account": "lab", "QOS": "normal",
        "RestartCnt": "0", "exit_code": "0", "NodeList": "", "Dependency": "(null)", "Command": "/home/a/train.sbatch",
    }  # fmt: skip
    columns = usual | values
    return "".join(f"{columns[name]}{SEPARATOR}" for name in QUEUE_COLUMNS) + f"{ROW_END}\n"


if __name__ == "__main__":
    from benchmarks.__main__ import main

    raise SystemExit(main(["judge_runs", *sys.argv[1:]]))
