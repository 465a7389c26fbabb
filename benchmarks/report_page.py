"""The report of a run of three weeks: 400 attempts that save each ten minutes, from the run directory to the page."""

from __future__ import annotations

import resource
import subprocess

from benchmarks.measure import BenchmarkError, Claim, Options, Report, Spread
from benchmarks.start_up import installed_command
from tests.report.run_on_disk import write_attempts

ATTEMPTS, HOURS = 400, 1.2
MOST_S, MOST_BYTES = 2.0, 1_000_000
SETTINGS = '[run]\nname = "gpt"\ncommand = "true"\n[scheduler]\nname = "local"\n'


def run(options: Options) -> Report:
    """Measure `resil report` as a user types it, with the interpreter's start; the ends are classified already."""
    (options.scratch / "resil.toml").write_text(SETTINGS)
    directory = options.scratch / ".resil" / "gpt"
    write_attempts(directory, 40 if options.quick else ATTEMPTS, hours=HOURS)
    (directory / "run.toml").touch()
    page = options.scratch / "page.html"

    def write() -> float:
        before = resource.getrusage(resource.RUSAGE_CHILDREN)
        argv = [*installed_command(), "report", "-o", str(page)]
        done = subprocess.run(argv, cwd=options.scratch, capture_output=True, text=True, check=False)
        if done.returncode:
            raise BenchmarkError(done.stderr[-2000:])
        after = resource.getrusage(resource.RUSAGE_CHILDREN)
        return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime

    first = write()
    took = Spread(tuple(write() for _ in range(max(3, options.samples // 7))))
    claims = (
        Claim("resil report of three weeks, as typed, CPU time", took.median, MOST_S, "s"),
        Claim("the same for the first time, when the ends are classified from the logs", first, float("nan"), "s"),
        Claim("size of the page", float(page.stat().st_size), MOST_BYTES, "bytes"),
    )
    return Report("the report of a run", (), ("CPU time, because the machine was shared",), claims)
