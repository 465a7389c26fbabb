"""Checks the clock of a node against that of the file server: make, caches and the order of events depend on it.

A file that the node writes gets its time from the server. Nodes are also compared with each other (nodes/check.py), by
the time at which their answers arrive: `ahead_s`, `behind_s`.
"""

from __future__ import annotations

import os
import tempfile
import time
from collections.abc import Mapping

from resilience.nodes.checks import Check, Expected, Reading

FIGURES = ("ahead_s", "behind_s", "ahead_of_server_s", "behind_server_s")


def probe(expected: Expected, environ: Mapping[str, str]) -> Reading:
    """Return by how much the clock is ahead of the server's or behind it; 0 within the duration of the write."""
    before = time.time()
    with tempfile.NamedTemporaryFile(dir=expected.directory, prefix=".resil-clock.") as file:
        file.write(b"\n")
        file.flush()
        os.fsync(file.fileno())
        server, after = os.fstat(file.fileno()).st_mtime, time.time()
    return {"ahead_of_server_s": max(0.0, before - server), "behind_server_s": max(0.0, server - after)}


CHECK = Check(probe=probe, rules=dict.fromkeys(FIGURES, "> 5"))
