"""The layers of the packages are kept by import-linter, and it does notice an import that goes up."""

from __future__ import annotations

import ast
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

REPOSITORY = Path(__file__).parents[2]


def lint(directory: Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-c", "from importlinter.cli import lint_imports_command; lint_imports_command()",
         "--no-cache"],
        cwd=directory, env=os.environ | {"PYTHONPATH": str(directory), "COLUMNS": "200", "NO_COLOR": "1"},
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
    ("system/ports.py", "import resilience.runs.project", "Rooms"),
    ("base/files.py", "import resilience.system.files", "Rooms"),
    ("settings/load.py", "from resilience.watch.checks import __doc__", "Rooms"),
    ("alerts/policy.py", "import resilience.watch.checks", "Rooms"),
    ("runs/switches.py", "def later():\n    import resilience.cli", "Rooms"),
    ("finding.py", "import subprocess", "The words do no I/O"),
    ("guard/step_timer.py", "import resilience.system.files", "alone"),
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


def imports_of(package: Path) -> dict[str, set[str]]:
    """What each module of the package imports of it: anywhere in the module, also for the type checker only."""
    paths = {".".join(path.relative_to(package.parent).with_suffix("").parts): path for path in package.rglob("*.py")}
    modules = {name.removesuffix(".__init__"): path for name, path in paths.items()}
    found: dict[str, set[str]] = {}
    for name, path in modules.items():
        imported: set[str] = set()
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.ImportFrom) and node.module in modules:
                names = {f"{node.module}.{alias.name}" for alias in node.names}
                imported |= (names & modules.keys()) or {node.module}
            elif isinstance(node, ast.Import):
                imported |= {alias.name for alias in node.names} & modules.keys()
        found[name] = imported - {name}
    return found


def private_uses(graph: dict[str, set[str]]) -> list[str]:
    """Imports that lead from one package into a module with an underscore of another: its inside."""
    return [
        f"{name} -> {imported}" for name, found in graph.items() for imported in found
        if "._" in imported and imported.split(".")[1] != name.split(".")[1]
    ]  # fmt: skip


def test_packages_use_each_other_through_their_public_modules_only() -> None:
    assert private_uses(imports_of(REPOSITORY / "resilience")) == []
    assert private_uses({"resilience.cron.tick": {"resilience.runs._private", "resilience.cron._own"}}) != []


def circle_in(graph: dict[str, set[str]]) -> list[str]:
    """A circle of imports, or an empty list. Kahn's algorithm: modules that import nothing that is left are removed."""
    left = dict(graph)
    while free := [name for name, imported in left.items() if not imported & left.keys()]:
        for name in free:
            del left[name]
    way = [next(iter(left))] if left else []
    while way and way[-1] not in way[:-1]:
        way.append(min(graph[way[-1]] & left.keys()))
    return way[way.index(way[-1]) :] if way else []


def test_no_modules_import_each_other_in_a_circle() -> None:
    assert circle_in(imports_of(REPOSITORY / "resilience")) == []


def test_a_circle_of_imports_is_found() -> None:
    assert circle_in({"a": {"b", "x"}, "b": {"c"}, "c": {"b"}, "x": set()}) in (["b", "c", "b"], ["c", "b", "c"])
    assert circle_in({"a": {"b"}, "b": set()}) == []
