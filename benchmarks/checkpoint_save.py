"""What a store adds to a save: to its stall, until it is durable, and in memory."""

from __future__ import annotations

import json
import sys

from benchmarks._peers import run_program
from benchmarks.measure import Claim, Options, Report, Row, Spread

MIB, QUICK_MIB = 1024, 128
STALL, STALL_ASYNC = 1.10, 1.02
MOST_MIB = 32.0


def run(options: Options) -> Report:
    """Save in a process of its own."""
    mib = QUICK_MIB if options.quick else MIB
    saves = options.scratch / "saves"
    saves.mkdir()
    samples = str(min(options.samples, 9))
    line = run_program(
        "_checkpoint_saves", [str(saves), samples, str(mib)], python=sys.executable, scratch=options.scratch,
        deadline_s=1200,
    )  # fmt: skip
    found = json.loads(line)
    taken = {name: Spread(tuple(values)) for name, values in found["seconds"].items()}
    durable = {name: Spread(tuple(values)) for name, values in found["durable"].items()}
    rows = [Row(f"stall of a save of {mib:,} MiB", taken["store"], "the framework alone", taken["alone"], STALL)]
    if "store, async" in taken:
        alone = taken["alone, async"]
        rows.append(Row("stall of an asynchronous one", taken["store, async"], "DCP alone", alone, STALL_ASYNC))
    rows.append(Row("until it is committed", durable["store"], "until it is on disk", durable["alone"]))
    claims = (Claim("memory of the child that commits", found["peak_kib"] / 1024, MOST_MIB, "MiB"),)
    return Report("a store around a save", tuple(rows), (f"saved with {found['framework']}",), claims)
