"""`resilience.plugin` is the only module of ours that a plugin imports: the how-tos use no other."""

from __future__ import annotations

import ast
import re
import subprocess
import sys
from importlib import import_module

import pytest

from resilience import plugin
from tests.docs.markdown import ROOT

PAGES = [*sorted((ROOT / "docs" / "how-to").glob("write-a-*.md")), ROOT / "docs" / "how-to" / "add-a-scheduler.md"]
STABLE = {"resilience.plugin", "resilience.guard"}


def imported(code: str) -> list[tuple[str, str]]:
    """Every (module, name) that code imports from this package."""
    found = [node for node in ast.walk(ast.parse(code)) if isinstance(node, ast.ImportFrom)]
    return [(node.module or "", alias.name) for node in found for alias in node.names
            if (node.module or "").startswith("resilience")]  # fmt: skip


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_a_how_to_imports_stable_modules_only_and_each_import_works(page: object) -> None:
    blocks = re.findall(r"```python\n(.*?)```", page.read_text(), re.DOTALL)  # type: ignore[attr-defined]
    for module, name in (found for block in blocks for found in imported(block)):
        assert module in STABLE and getattr(import_module(module), name) is not None, (module, name)


def test_each_name_is_what_its_home_defines_and_what_type_checkers_see() -> None:
    seen = imported((ROOT / "resilience" / "plugin.py").read_text())
    assert sorted(seen) == sorted((home, name) for name, home in plugin._HOME_OF.items())
    for home, name in seen:
        assert getattr(plugin, name) is getattr(import_module(home), name)
    assert sorted(name for _, name in seen) == plugin.__all__ == dir(plugin)


def test_a_name_that_is_not_promised_is_refused() -> None:
    with pytest.raises(AttributeError, match="offers no 'Ledger'"):
        plugin.Ledger  # noqa: B018


def test_a_plugin_loads_only_the_homes_of_the_names_that_it_imports() -> None:
    program = "import sys; from resilience.plugin import Finding, Verdict; print(*sys.modules)"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True, cwd=ROOT)
    ours = {name for name in done.stdout.split() if name.startswith("resilience.")}
    assert ours == {"resilience.plugin", "resilience.finding"}
