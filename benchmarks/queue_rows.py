"""What 100,000 queue rows cost to read: our squeue call, streamed, against json.load of `squeue --json`."""

from __future__ import annotations

import contextlib
import json
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

from benchmarks import _queue
from benchmarks.measure import (
    BenchmarkError,
    Options,
    Report,
    Row,
    Spread,
    interleave,
    interpreter_environment,
    timed,
)
from resilience.schedulers.slurm import Slurm
from resilience.system.ports import SystemClock
from resilience.system.process import ProcessRunner
from tests.lab.slurm.cluster import Cluster

ROWS, QUICK_ROWS = 100_000, 5_000
JOBS, QUICK_JOBS = 3_000, 200
REPOSITORY = Path(__file__).resolve().parents[1]
HOWS = ("run", "json", "all")


def run(options: Options) -> Report:
    """Build the queue, then read it both ways in turn, each in a process of its own."""
    rows = QUICK_ROWS if options.quick else ROWS
    live: dict[str, Spread] = {}
    with _cluster() as cluster:
        if cluster is None:
            answers = _queue.recorded()
        else:
            answers = _queue.ask(cluster, QUICK_JOBS if options.quick else JOBS)
            live = _live(cluster, options)
    text, document = options.scratch / "queue.txt", options.scratch / "queue.json"
    _queue.write_rows(answers, text, rows)
    _queue.write_document(answers, document, rows)
    seconds, peaks, found = _read(text, document, answers.run, options.samples)
    if found["run"] != found["json"] or found["all"] != found["json"]:
        raise BenchmarkError(f"the readers do not agree on the rows of {answers.run}: {found}")
    title = f"{rows:,} rows, {found['run']} of them the run's"
    table = _rows(f"{rows:,} rows", seconds, peaks, live)
    if options.quick:  # the targets are of 100,000 rows; of few, Python itself is most of the memory
        table = tuple(replace(row, target=None) for row in table)
    return Report(title, table, _notes(answers, text, document))


@contextlib.contextmanager
def _cluster() -> Iterator[Cluster | None]:
    if Cluster.requirements():
        yield None
        return
    with Cluster(nodes=4, extra=_queue.ROOM) as cluster:
        yield cluster


def _rows(what: str, seconds: dict[str, Spread], peaks: dict[str, Spread], live: dict[str, Spread]) -> tuple[Row, ...]:
    baseline = "json.load of squeue --json"
    rows = [
        Row(f"{what}, keep one run's: time", seconds["run"], baseline, seconds["json"], 1 / 25),
        Row(f"{what}, keep one run's: peak memory", peaks["run"], baseline, peaks["json"], 1 / 40, unit="B"),
        Row(f"{what}, keep all: time", seconds["all"], baseline, seconds["json"]),
        Row(f"{what}, keep all: peak memory", peaks["all"], baseline, peaks["json"], unit="B"),
    ]
    if live:
        baseline = "squeue --json and json.loads"
        rows.append(Row("the real jobs, asked for: find(token)", live["find"], baseline, live["json"]))
        rows.append(Row("the real jobs, asked for: jobs(users=())", live["jobs"], baseline, live["json"]))
    return tuple(rows)


def _notes(answers: _queue.Answers, text: Path, document: Path) -> tuple[str, ...]:
    sizes = ", ".join(f"{path.stat().st_size / 1e6:.0f} MB of {path.suffix[1:]}" for path in (text, document))
    return (
        f"{answers.where_from}, repeated with other ids; {sizes}",
        "time: reading alone, without starting Python and importing; ours through a pipe from `cat`, JSON from a file",
        "memory: VmHWM of the whole process, so Python itself is in it",
    )


def _read(
    text: Path, document: Path, run: str, samples: int
) -> tuple[dict[str, Spread], dict[str, Spread], dict[str, int]]:
    """Read `samples` times in turn; return seconds, peak bytes, and how many rows of the run each reader found."""
    env = interpreter_environment(PYTHONPATH=str(REPOSITORY))
    peaks: dict[str, list[float]] = {how: [] for how in HOWS}
    found: dict[str, int] = {}

    def sample(how: str) -> float:
        path = document if how == "json" else text
        argv = [sys.executable, "-m", "benchmarks._read_queue", how, str(path), run]
        done = subprocess.run(argv, env=env, capture_output=True, text=True)
        if done.returncode:
            raise BenchmarkError(done.stderr)
        count, took_s, peak = done.stdout.split()
        found[how] = int(count)
        peaks[how].append(float(peak))
        return float(took_s)

    taken = interleave({how: (lambda how=how: sample(how)) for how in HOWS}, samples)  # type: ignore[misc]
    return taken, {how: Spread(tuple(peaks[how][-samples:])) for how in HOWS}, found


def _live(cluster: Cluster, options: Options) -> dict[str, Spread]:
    """The whole question, to a real controller that has the real jobs: fork, squeue, slurmctld, reading."""
    env = cluster.environment()
    client = Slurm(clock=SystemClock(), runner=ProcessRunner(), environ=env)
    argv = ["squeue", "--all", "--states=all", "--json"]
    return interleave(
        {
            "find": timed(lambda: client.find("0123456789abcdef")),
            "jobs": timed(lambda: client.jobs(users=(), finished=True)),
            "json": timed(lambda: json.loads(subprocess.run(argv, env=env, capture_output=True, check=True).stdout)),
        },
        options.samples,
    )
