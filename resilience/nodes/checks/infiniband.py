"""Checks that the InfiniBand ports of a node are in the state of those of other nodes, at their rate."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path

from resilience.nodes.checks import Check, Expected, Fault, Outcome, Reading

ROOT = Path("/sys/class/infiniband")
ACTIVE = "4: ACTIVE"
"""IB_PORT_ACTIVE of the kernel's drivers/infiniband/core/sysfs.c; before it come NOP, DOWN, INIT and ARMED."""


def probe(expected: Expected, environ: Mapping[str, str], root: Path = ROOT) -> Reading | None:
    """Return for each port its state and rate: `4: ACTIVE, 400 Gb/sec (4X NDR)`."""
    ports = {f"{port.parts[-3]} port {port.name}": port for port in sorted(root.glob("*/ports/*"))}
    return {
        name: ", ".join((p / f).read_text().strip() for f in ("state", "rate")) for name, p in ports.items()
    } or None


def judge(reading: Reading, expected: Expected) -> Iterable[Fault]:
    """Tell of a node with ports of which none is active. One of several may not be cabled: others are compared."""
    if not any(text.startswith(ACTIVE) for text in reading.values()):
        states = "; ".join(f"{port} is {text}" for port, text in reading.items())
        yield Fault(Outcome.WARN, f"no InfiniBand port is active: {states}", "see it there: ibstat")


CHECK = Check(probe=probe, judge=judge, equal={"*": Outcome.FAIL})
