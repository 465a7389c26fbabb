"""The same decision on every rank: what it costs in a step, and how long it takes, beside a collective."""

from __future__ import annotations

import json
import math
import os
import signal
import socket
import statistics
import subprocess
from pathlib import Path
from typing import Any

from benchmarks._peers import REPOSITORY, peers_interpreter
from benchmarks.measure import BenchmarkError, Claim, Options, Report, Row, Spread

WORLDS = (2, 4, 8)
STEP_S = 0.005
DEADLINE_S = 240
MOST_COMMIT_MS = 5
MOST_SLOWED_PERCENT = 0.1
MOST_STEPS = 3


def run(options: Options) -> Report:
    """Time it with 2, 4 and 8 gloo ranks on this machine; with more ranks than cores only the ratios mean anything."""
    python, note = peers_interpreter()
    rows: list[Row] = []
    notes, claims = [note], list[Claim]()
    for world in WORLDS[:1] if options.quick else WORLDS:
        found = _ranks(python, world, options)
        tight = {name: Spread(tuple(values)) for name, values in found["tight"].items()}
        target = 1 / 1000 if world == 2 else None
        name = f"{world} ranks, tight: guard.step()"
        rows.append(Row(name, tight["step"], "all-reduce of one int", tight["all_reduce"], target))
        loop = {name: Spread(tuple(values)) for name, values in found["loop"].items()}
        rows += [
            Row(f"{world} ranks, after 5 ms: guard.step()", loop["step"], baseline, loop[key])
            for key, baseline in (
                ("nothing", "calling nothing"),
                ("all_reduce", "all-reduce of one int"),
                ("accelerate", "accelerate's check_trigger"),
                ("lightning", "Lightning's broadcast"),
            )
            if key in loop
        ]
        claims += _claims(world, found, loop)
    return Report("gloo on loopback, ranks in step", tuple(rows), tuple(notes), tuple(claims))


def _claims(world: int, found: dict[str, Any], loop: dict[str, Spread]) -> list[Claim]:
    slowed = (loop["step"].median - loop["nothing"].median) / STEP_S
    by_mean = (statistics.mean(loop["step"].values) - statistics.mean(loop["nothing"].values)) / STEP_S
    commits = sorted(found["wish"]["commit_s"])
    middle, late = statistics.median(commits), commits[int(len(commits) * 0.99)]
    middle_steps, most_steps = statistics.median(found["wish"]["steps"]), max(found["wish"]["steps"])
    stops = [
        (turn["seconds"] - turn["poll_s"]) / turn["step_s"] for turn in found["switch"]
    ]  # steps beyond one poll interval
    return [
        Claim(
            f"{world} ranks: a 5 ms step is longer with the guard, by the medians (by the means {by_mean * 100:.3f} %)",
            slowed * 100,
            MOST_SLOWED_PERCENT if world == WORLDS[-1] else math.nan,
            "%",
        ),
        Claim(
            f"{world} ranks: from a wish to its commit, median of {len(commits)} (99 % within {late * 1e3:.2f} ms; "
            f"all save {middle_steps:g} steps later, at most {most_steps:g})",
            middle * 1e3,
            MOST_COMMIT_MS,
            "ms",
        ),
        Claim(
            f"{world} ranks: from touching the kill switch to the last rank's stop, beyond the poll interval",
            max(stops),
            MOST_STEPS,
            "steps",
        ),
    ]


def _ranks(python: str, world: int, options: Options) -> dict[str, Any]:
    """Run the ranks and return what rank 0 printed. Raise BenchmarkError if one of them fails."""
    directory = options.scratch / f"ranks-{world}"
    for name in ("switches", "beats", "journal", "attempts"):
        (directory / name).mkdir(parents=True)
    with socket.create_server(("127.0.0.1", 0)) as probe:
        port = probe.getsockname()[1]
    kept = {key: value for key, value in os.environ.items() if not key.startswith(("PYTHON", "RESIL_", "SLURM"))}
    environ = kept | {"PYTHONPATH": str(REPOSITORY), "OMP_NUM_THREADS": "1", "GLOO_SOCKET_IFNAME": "lo"}
    program = str(REPOSITORY / "benchmarks" / "_guard_ranks.py")
    rounds = "30" if options.quick else "100"
    processes = []
    try:
        for rank in range(world):
            with (directory / f"{rank}.out").open("wb") as out, (directory / f"{rank}.err").open("wb") as err:
                argv = [python, program, str(rank), str(world), str(port), str(directory), rounds]
                processes.append(
                    subprocess.Popen(
                        argv, stdin=subprocess.DEVNULL, stdout=out, stderr=err, env=environ, start_new_session=True
                    )
                )
        codes = [process.wait(DEADLINE_S) for process in processes]
    except subprocess.TimeoutExpired as error:
        raise BenchmarkError(f"{world} ranks did not end in {DEADLINE_S} s: {_errors(directory, world)}") from error
    finally:
        for process in processes:
            if process.poll() is None:
                os.killpg(process.pid, signal.SIGKILL)
                process.wait()
    if any(codes):
        raise BenchmarkError(f"{world} ranks ended with {codes}: {_errors(directory, world)}")
    found: dict[str, Any] = json.loads((directory / "0.out").read_text().splitlines()[-1])
    return found


def _errors(directory: Path, world: int) -> str:
    return "\n".join((directory / f"{rank}.err").read_text()[-800:] for rank in range(world))
