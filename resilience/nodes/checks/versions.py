"""Checks that kernel, driver, Python, torch and the environment of the training are the same on all nodes."""

from __future__ import annotations

import os
from collections.abc import Mapping
from contextlib import suppress

from resilience.nodes.checks import Check, Expected, Outcome, Reading
from resilience.nodes.torch_child import training_python
from resilience.system.files import short_digest
from resilience.system.process import ProcessRunner

PREFIXES = ("NCCL_", "TORCH_", "CUDA_", "OMP_", "UCX_", "FI_")
NAMES = ("LD_LIBRARY_PATH", "LD_PRELOAD", "PYTHONPATH", "VIRTUAL_ENV", "CONDA_PREFIX")
OF_NODE = ("CUDA_VISIBLE_DEVICES",)
"""Differs between nodes where a job has some of the GPUs."""

_ASK = """\
import platform
from importlib import metadata
print("python", platform.python_version())
for name in ("torch", "numpy", "nvidia-nccl-cu12", "nvidia-nccl-cu13", "triton", "transformer-engine"):
    try:
        print(name, metadata.version(name))
    except metadata.PackageNotFoundError:
        pass
"""


def probe(expected: Expected, environ: Mapping[str, str]) -> Reading:
    """Ask the kernel, and the `python` on PATH, which is the training's after its setup.

    Of each environment variable that libraries of a training read, the digest is compared: no values.
    """
    found = {"kernel": os.uname().release, "driver": ""}
    with suppress(OSError), open("/proc/driver/nvidia/version", encoding="utf-8") as file:
        found["driver"] = next((word for word in file.readline().split() if word[:1].isdigit()), "")
    python = training_python(environ)
    found["program python"] = python
    if python:
        done = ProcessRunner().run([python, "-c", _ASK], timeout_s=8.0, env=environ)
        found |= dict(line.split(" ", 1) for line in done.stdout.splitlines() if " " in line)
    for name, value in sorted(environ.items()):
        if (name.startswith(PREFIXES) or name in NAMES) and name not in OF_NODE:
            found[f"${name}"] = short_digest(value.encode("utf-8", "surrogateescape"))
    return found


CHECK = Check(probe=probe, deadline_s=10.0, equal={"kernel": Outcome.WARN, "*": Outcome.FAIL})
