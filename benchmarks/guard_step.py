"""What `guard.step()` costs with every trigger on, beside an empty call, the usual look at files, and peers' checks."""

from __future__ import annotations

import json
import statistics

from benchmarks._peers import peers_interpreter, run_program
from benchmarks.measure import Claim, Options, Report, Row, Spread

BASELINES = (
    ("naive", "2 x os.path.exists, psutil memory, clock", 1 / 300),
    ("accelerate", "accelerate's check_trigger, one process", None),
    ("lightning", "Lightning's received_sigterm", None),
    ("nvrx", "nvidia-resiliency-ext's send_heartbeat", 1 / 1000),
)
MOST_NS = 110
MOST_TAIL = 3.0


def run(options: Options) -> Report:
    """Time single calls in one process, in turn; the loop around them is taken off."""
    python, note = peers_interpreter()
    arguments = [str(options.scratch / "run"), str(options.samples)]
    line = run_program("_guard_costs", arguments, python=python, scratch=options.scratch, deadline_s=300)
    arguments = [str(options.scratch / "store"), str(options.samples), "store"]
    line_of_store = run_program("_guard_costs", arguments, python=python, scratch=options.scratch, deadline_s=300)
    found, stored = json.loads(line), json.loads(line_of_store)["seconds"]
    seconds = found["seconds"]
    loop = statistics.median(seconds.pop("nothing"))
    taken = {name: Spread(tuple(max(1e-10, value - loop) for value in values)) for name, values in seconds.items()}
    step = taken["step"]
    rows = [Row("guard.step()", step, "an empty method call", taken["empty"], 5)]
    rows += [Row("guard.step()", step, name, taken[key], target) for key, name, target in BASELINES if key in taken]
    rows.append(Row("guard.step(loss)", taken["step with loss"], "guard.step()", step))
    off = statistics.median(stored["nothing"])
    with_store = Spread(tuple(max(1e-10, value - off) for value in stored["step"]))
    rows.append(Row("guard.step() with a store", with_store, "guard.step()", step, 1.1))
    tails = found["tails"]
    ratio = tails["p99.9"] / tails["p50"]
    claims = (
        Claim(f"guard.step(), median; least {min(step.values) * 1e9:.0f} ns", step.median * 1e9, MOST_NS, "ns"),
        Claim("99.9 % of single calls within so many times their median", ratio, MOST_TAIL, "x"),
    )
    notes = (
        f"single calls, with the timer in them: median {tails['p50'] * 1e9:.0f} ns, 99.9 % within "
        f"{tails['p99.9'] * 1e9:.0f} ns, slowest {tails['max'] * 1e6:.0f} us",
        note,
        *found["notes"],
    )
    return Report("one call, in seconds of one core", tuple(rows), notes, claims)
