"""The recipes of docs/how-to/guard-in-*.md: each block of Python compiles, and its imports from resil exist."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest

from resilience.guard import TrainingGuard
from tests.integrations.launched import REPOSITORY

PAGES = sorted((REPOSITORY / "docs" / "how-to").glob("guard-in-*.md"))
BLOCK = re.compile(r"^```python\n(.*?)^```", re.MULTILINE | re.DOTALL)


def test_there_is_a_page_for_each_framework() -> None:
    frameworks = {"accelerate", "deepspeed", "jax", "lightning", "megatron", "pytorch", "transformers"}
    assert {page.stem.removeprefix("guard-in-") for page in PAGES} == frameworks


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_a_recipe_compiles_and_its_imports_exist(page: Path) -> None:
    blocks = BLOCK.findall(page.read_text())
    assert blocks
    for block in blocks:
        tree = ast.parse(block)
        for node in ast.walk(tree):
            if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("resilience"):
                source = REPOSITORY / Path(*str(node.module).split("."))
                text = (source / "__init__.py" if source.is_dir() else source.with_suffix(".py")).read_text()
                assert all(alias.name in text for alias in node.names), ast.unparse(node)
            elif isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name) and node.value.id == "guard":
                assert hasattr(TrainingGuard, node.attr), f"guard.{node.attr}"
