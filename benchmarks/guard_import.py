"""What `from resilience.guard import TrainingGuard` adds to the start of every rank, as whole processes."""

from __future__ import annotations

import sys

from benchmarks._peers import REPOSITORY
from benchmarks.measure import Claim, Options, Program, Report, Row, Spread, interleave, interpreter_environment

MOST_MS = 15
IMPORT = "from resilience.guard import TrainingGuard"
STARTED = f"{IMPORT}\nwith TrainingGuard.from_env() as guard: guard.step()"


def run(options: Options) -> Report:
    """Time it against a bare interpreter, and the standard library's own modules of the same kind."""
    env = interpreter_environment(PYTHONPATH=str(REPOSITORY), HOME=str(options.scratch))
    programs = {
        "bare": Program([sys.executable, "-c", "pass"], env),
        "import": Program([sys.executable, "-c", IMPORT], env),
        "started": Program([sys.executable, "-c", STARTED], env),
        "logging": Program([sys.executable, "-c", "import logging"], env),
        "psutil": Program([sys.executable, "-c", "import psutil"], env),
    }
    taken = interleave(programs, max(options.samples, 15), warm_ups=2)
    over = {name: _over(spread, taken["bare"]) for name, spread in taken.items() if name != "bare"}
    rows = (
        Row("import resilience.guard", taken["import"], "python -c pass", taken["bare"]),
        Row("the import alone", over["import"], "import logging alone", over["logging"]),
        Row("the import alone", over["import"], "import psutil alone", over["psutil"]),
        Row("import, start, one step, close", taken["started"], "python -c pass", taken["bare"]),
    )
    added = over["import"].median
    return Report("whole processes", rows, claims=(Claim("over a bare interpreter", added * 1e3, MOST_MS, "ms"),))


def _over(spread: Spread, bare: Spread) -> Spread:
    return Spread(tuple(max(1e-6, value - bare.median) for value in spread.values))
