"""What the check of gradients and optimizer moments costs, beside the training steps between two checks."""

from __future__ import annotations

import json

from benchmarks._peers import peers_interpreter, run_program
from benchmarks.measure import Claim, Options, Report, Row, Spread

EVERY = 100
"""The default of StateCheck."""
MOST_PERCENT = 0.1


def run(options: Options) -> Report:
    """Time single checks and single steps of a transformer on one core, in turn."""
    python, note = peers_interpreter()
    size = "small" if options.quick else "full"
    line = run_program(
        "_state_check", [size, str(options.samples)], python=python, scratch=options.scratch, deadline_s=600
    )
    found = json.loads(line)
    check, step = Spread(tuple(found["check"])), Spread(tuple(found["step"]))
    rows = (
        Row(f"one check of {found['tensors']} tensors", check, "one training step", step),
        Row("one check", check, "torch.isfinite(x).all() of the same tensors", Spread(tuple(found["isfinite"])), 1.0),
    )
    percent = 100 * check.median / (EVERY * step.median)
    claims = (Claim(f"of a training that checks every {EVERY} steps", percent, MOST_PERCENT, "%"),)
    size_text = f"{found['parameters'] / 1e6:.1f} million parameters, batches of {found['tokens']} tokens, one core"
    return Report("one call, in seconds of one core", rows, (size_text, note), claims)
