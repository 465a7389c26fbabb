"""The layers of the packages are kept by import-linter, and it does notice an import that goes up."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

REPOSITORY = Path(__file__).parents[2]


def lint(folder: Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-c", "from importlinter.cli import lint_imports_command; lint_imports_command()",
         "--no-cache"],
        cwd=folder, env=os.environ | {"PYTHONPATH": str(folder), "COLUMNS": "200", "NO_COLOR": "1"},
        capture_output=True, text=True, timeout=120,
    )  # fmt: skip


@pytest.fixture
def copied(tmp_path: Path) -> Path:
    shutil.copy(REPOSITORY / "pyproject.toml", tmp_path)
    shutil.copytree(REPOSITORY / "resilience", tmp_path / "resilience", ignore=shutil.ignore_patterns("__pycache__"))
    return tmp_path


def test_every_import_goes_down() -> None:
    done = lint(REPOSITORY)
    assert done.returncode == 0, done.stdout + done.stderr
    assert " 0 broken" in done.stdout


PLANTED = [
    ("system/world.py", "import resilience.runs.project", "Rooms"),
    ("base/files.py", "import resilience.system.files", "Rooms"),
    ("settings/load.py", "from resilience.watch.checks import __doc__", "Rooms"),
    ("alerts/policy.py", "import resilience.watch.checks", "Rooms"),
    ("runs/switches.py", "def later():\n    import resilience.cli", "Rooms"),
    ("finding.py", "import subprocess", "The words do no I/O"),
    ("guard/pace.py", "import resilience.system.files", "alone"),
    ("runs/status.py", "import resilience.integrations", "Nobody imports the integrations"),
    ("runs/init.py", "import typer", "Only the CLI knows Typer"),
]


def test_imports_that_go_up_are_each_noticed(copied: Path) -> None:
    for where, statement, _ in PLANTED:
        with open(copied / "resilience" / where, "a") as module:
            module.write(f"\n\n{statement}\n")
    done = lint(copied)
    assert done.returncode != 0
    assert "KEPT" not in done.stdout, done.stdout
    for where, _, contract in PLANTED:
        broken = f"resilience.{where.removesuffix('.py').replace('/', '.')}"
        sections = [part for part in done.stdout.split("\n\n\n") if contract in part]
        assert broken in done.stdout, f"{broken} against {contract!r}: {sections or done.stdout}"
