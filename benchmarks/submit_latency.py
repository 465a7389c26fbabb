"""What resil adds to an sbatch: settings, template, lint, journal, and the promise of one job per intent."""

from __future__ import annotations

import itertools
import subprocess
from collections.abc import Mapping
from pathlib import Path

from benchmarks.measure import BenchmarkError, Options, Report, Row, Sample, interleave, timed
from benchmarks.start_up import installed_command
from resilience.runs import submit
from resilience.runs.project import Project
from resilience.runs.run_jobs import resolve_after
from resilience.runs.submit_plan import SubmitRequest
from resilience.settings.load import FILE_NAME, load
from resilience.system.ports import System
from tests.lab.slurm.cluster import Cluster

SETTINGS = """\
[run]
name = "gpt"
command = "python train.py --resume auto"
setup = ["true"]

[submit]
array = "10"

[sbatch]
time = "1:00:00"
nodes = 1

[environment]
OMP_NUM_THREADS = 8
"""
MOST = 1.5


def run(options: Options) -> Report:
    """Submit held jobs to a real SLURM, ours and bare ones in turn."""
    if reasons := Cluster.requirements():
        return Report("not measured", notes=(f"no SLURM can be booted here: {'; '.join(reasons)}",))
    with Cluster(nodes=1) as cluster:
        directory = cluster.shared / "gpt"
        directory.mkdir()
        (directory / FILE_NAME).write_text(SETTINGS)
        kept = {name: value for name, value in cluster.environment().items() if not name.startswith("PYTHON")}
        return _measure(options, directory, kept | {"XDG_CACHE_HOME": str(directory / "cache")})


def _measure(options: Options, directory: Path, env: Mapping[str, str]) -> Report:
    system = System(environ=env, cwd=directory)
    script = directory / "bare.sbatch"
    known = SubmitRequest(run="known", hold=True)
    project = Project(system, load(system))
    script.write_text(submit.prepare(project, known).script)
    _submit(project, known)
    names = (f"fresh-{number}" for number in itertools.count())
    bare = ["sbatch", "--parsable", "--hold", "--array=1-10%1", str(script)]
    command = [*installed_command(), "submit", "--hold", "--run"]
    taken = interleave(
        {
            "sbatch": _program(bare, directory, env),
            "fresh": timed(lambda: _submit(project, SubmitRequest(run=next(names), hold=True))),
            "after": timed(lambda: _submit_behind(project, known.run)),
            "command": lambda: _program([*command, next(names)], directory, env)(),
        },
        options.samples,
        warm_ups=2,
    )
    rows = (
        Row(
            "submit of a fresh run, rendered, in process",
            taken["fresh"],
            "subprocess.run(sbatch)",
            taken["sbatch"],
            MOST,
        ),
        Row("--after auto: behind a live job of the run", taken["after"], "subprocess.run(sbatch)", taken["sbatch"]),
        Row("the command `resil submit`, fresh run", taken["command"], "subprocess.run(sbatch)", taken["sbatch"]),
    )
    return Report("held arrays of ten on a real SLURM on loopback", rows)


def _program(argv: list[str], directory: Path, env: Mapping[str, str]) -> Sample:
    return timed(lambda: subprocess.run(argv, cwd=directory, env=env, check=True, capture_output=True, text=True))


def _submit(project: Project, request: SubmitRequest) -> None:
    result = submit.perform(project, submit.prepare(project, request))
    if len(result.ids) != 1 or result.recovered:
        raise BenchmarkError(f"not an ordinary submit: {result}")


def _submit_behind(project: Project, run: str) -> None:
    _submit(project, SubmitRequest(run=run, hold=True, after=resolve_after(project, run, "auto")))
