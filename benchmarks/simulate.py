"""How fast lives of runs are simulated, in seconds of one core for 100,000 run-days, and what 10,000 nodes need."""

from __future__ import annotations

import math
import statistics
import subprocess
import sys
import time
from dataclasses import replace

from benchmarks.measure import MIB, BenchmarkError, Claim, Options, Report, interpreter_environment
from resilience.cadence import AUTO, Costs, Every
from resilience.settings.sections import ActSettings
from resilience.simulate.failures import bundled
from resilience.simulate.life import live
from resilience.simulate.scenario import DAY_S, Scenario, random_waits

RUN_DAYS, TARGET_S, TARGET_MIB = 100_000, 1.0, 1024.0
COSTS = Costs(stall_s=5.0, durable_s=90.0, restart_s=600.0)
ALONE = Scenario(
    work_s=30 * DAY_S, nodes=128, costs=COSTS, source=bundled("rsc-1"), every=Every(seconds=1200.0),
    policy=ActSettings(enabled=True, keep_queued=1),
)  # fmt: skip
WHOLE = replace(ALONE, every=AUTO, queue_s=random_waits(7200.0), walltime_s=DAY_S, spares=1)
SCENARIOS = {
    "16 nodes, RSC-1, a fixed interval": replace(ALONE, nodes=16),
    "128 nodes, RSC-1, a fixed interval": ALONE,
    "128 nodes, RSC-1, auto": replace(ALONE, every=AUTO),
    "128 nodes, RSC-1, auto, queue, daily time limit, a spare": WHOLE,
    "2,048 nodes, Llama 3, all of that": replace(WHOLE, nodes=2048, source=bundled("llama3")),
}
TARGETED = "128 nodes, RSC-1, a fixed interval"
MEMORY = """
import resource
from dataclasses import replace
from benchmarks.simulate import WHOLE, bundled, live
scenario = replace(WHOLE, nodes=10_000, source=bundled("llama3"))
assert live(scenario, "1").is_finished
print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss)
"""


def run(options: Options) -> Report:
    """Simulate each scenario in turn, then 10,000 nodes in a process of their own."""
    lives = 5 if options.quick else 50
    taken: dict[str, list[float]] = {name: [] for name in SCENARIOS}
    notes = []
    for turn in range(options.samples):
        for name, scenario in SCENARIOS.items():
            began = time.process_time()
            found = [live(scenario, f"{turn}-{number}") for number in range(lives)]
            took_s = time.process_time() - began
            days = sum(one.wall_s for one in found) / DAY_S
            taken[name].append(took_s * RUN_DAYS / days)
            if turn == 0:
                each = sum(one.attempts for one in found) / days
                notes.append(f"{name}: {each:.2f} attempts a day, {1e6 * took_s / each / days:.0f} us each")
    claims = [
        Claim(name, statistics.median(values), TARGET_S if name == TARGETED else math.nan, "s")
        for name, values in taken.items()
    ]
    done = subprocess.run(
        [sys.executable, "-c", MEMORY], env=interpreter_environment(PYTHONPATH=sys.path[0]), capture_output=True,
        text=True, timeout=600, check=False,
    )  # fmt: skip
    if done.returncode:
        raise BenchmarkError(done.stderr[-500:])
    claims.append(Claim("memory of a process with 10,000 nodes", int(done.stdout) * 1024 / MIB, TARGET_MIB, "MiB"))
    title = f"{RUN_DAYS:,} run-days, in seconds of one core's time"
    return Report(title, notes=tuple(notes), claims=tuple(claims))


if __name__ == "__main__":
    from benchmarks.__main__ import main

    raise SystemExit(main(["simulate", *sys.argv[1:]]))
