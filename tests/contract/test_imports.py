"""What an import may cost: every rank of a training and every tick of a watchdog pays it."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

REPOSITORY = Path(__file__).parents[2]
HEAVY = {"typer", "click", "rich", "pydantic", "jinja2", "psutil", "requests", "urllib3", "slack_sdk", "pynvml",
         "cronsim", "filelock", "platformdirs"}  # fmt: skip


def loaded_by(statement: str) -> set[str]:
    """The modules that a statement loads beyond what a bare interpreter has."""
    script = (
        "import sys, json\nbefore = set(sys.modules)\n"
        f"{statement}\nprint(json.dumps(sorted(set(sys.modules) - before)))"
    )
    done = subprocess.run(
        [sys.executable, "-c", script], cwd=REPOSITORY, capture_output=True, text=True, check=True, timeout=60
    )
    return set(json.loads(done.stdout))


def test_the_package_imports_nothing_else() -> None:
    assert loaded_by("import resilience") <= {"resilience", "__future__"}


@pytest.mark.parametrize(
    "module",
    ["resilience.errors", "resilience.quantities", "resilience.hostlist", "resilience.plugins",
     "resilience.system.ports", "resilience.system.files", "resilience.runs.switches",
     "resilience.runs.submissions", "resilience.runs.run_files", "resilience.system.ports"],
)  # fmt: skip
def test_the_floors_below_the_crafts_load_no_third_party_package(module: str) -> None:
    loaded = {name.partition(".")[0] for name in loaded_by(f"import {module}")}
    assert not loaded & HEAVY
    assert {name for name in loaded if name not in sys.stdlib_module_names} == {"resilience"}


def test_listing_the_plugins_imports_none_of_them() -> None:
    loaded = loaded_by("from resilience.plugins import Family; Family('checks', 'CHECK', ()).names()")
    assert not {name for name in loaded if name.startswith("resilience.watch.checks.")}
    assert not {name.partition(".")[0] for name in loaded} & HEAVY


@pytest.mark.parametrize("module", ["resilience.quantities", "resilience.hostlist", "resilience.job"])
def test_the_words_load_no_door_to_the_machine(module: str) -> None:
    assert not loaded_by(f"import {module}") & {"subprocess", "socket", "tempfile", "shutil", "selectors"}
