"""Checks that processors and GPUs are not much slower than on other nodes: throttled, or busy with what was left.

Where no training runs, products of matrices are added to the reading (nodes/check.py): `matmul_gpu3_s`.
"""

from __future__ import annotations

import hashlib
import time
from collections.abc import Mapping

from resilience.nodes.checks import Check, Expected, Reading

BLOCK = bytes(2**22)
LENGTH_S = 0.5


def probe(expected: Expected, environ: Mapping[str, str]) -> Reading:
    """Return the shortest time of many for a digest: the others are what else happened on the node.

    Not a product of matrices: the Python of resil need not have numpy, whose threads would compete with a training.
    """
    times: list[float] = []
    while sum(times) < LENGTH_S:
        began = time.perf_counter()
        hashlib.sha256(BLOCK).digest()
        times.append(time.perf_counter() - began)
    return {"compute_s": min(times)}


CHECK = Check(probe=probe, deadline_s=10.0, rules={"*": "> 100%"})  # DLRover's straggler: twice the median
