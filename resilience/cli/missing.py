"""Explains a Python that has resil without the packages that its commands need.

`pip install --no-deps` puts the guard, which needs none, beside the pinned packages of a training. The command `resil`
is there as well, and says what it lacks.
"""

from __future__ import annotations

import os
import shlex
import sys
from collections.abc import Sequence
from contextlib import suppress
from importlib.util import find_spec
from pathlib import Path

from resilience.errors import ResilError
from resilience.messages import plural

PACKAGES = {
    "cronsim": "cronsim",
    "jinja2": "jinja2",
    "psutil": "psutil",
    "pynvml": "nvidia-ml-py",
    "requests": "requests",
    "slack_sdk": "slack_sdk",
    "typer": "typer",
}
"""The modules that commands import, and the packages that bring them (pyproject.toml, `dependencies`)."""


def check_packages() -> None:
    """Raise ResilError if this Python has the guard of resil alone: no training's environment has cronsim by chance."""
    if find_spec("cronsim") is None:
        raise missing_packages()


def missing_packages() -> ResilError:
    """Return the error that names each missing package, with the command that installs them."""
    missing = [package for module, package in PACKAGES.items() if find_spec(module) is None]
    return ResilError(
        f"this Python, {sys.executable}, has the guard of resil, but lacks {plural(len(missing), 'package')} that its"
        f" commands need: {', '.join(missing)}",
        hint=f"{_elsewhere()}; or add them here: "
        + shlex.join([sys.executable, "-m", "pip", "install", *map(_required, missing)]),
    )


def _elsewhere() -> str:
    """Return what to type instead: an active environment of a training hides the `resil` of the login node."""
    found = other_resil(os.environ.get("PATH", "").split(os.pathsep), Path(sys.executable).parent)
    if found is None:
        return "run resil where it is installed with its packages"
    return f"use the other one on your PATH: {shlex.join([str(found), *sys.argv[1:]])}"


def other_resil(path: Sequence[str], own: Path) -> Path | None:
    """Return the first `resil` on a PATH that is not in this Python's own directory; None if there is none."""
    for directory in filter(None, path):
        program = Path(directory) / "resil"
        with suppress(OSError, RuntimeError):  # RuntimeError: a loop of links
            if program.resolve().parent != own.resolve() and program.is_file() and os.access(program, os.X_OK):
                return program
    return None


def _required(package: str) -> str:
    """Return the package with the versions that resil accepts: `jinja2>=3.1.6`."""
    from importlib.metadata import PackageNotFoundError, requires

    try:
        found = requires("resil") or []
    except PackageNotFoundError:  # a clone on PYTHONPATH
        found = []
    name = package.replace("_", "-")
    return next((line for line in found if ";" not in line and line.replace("_", "-").startswith(name)), package)
