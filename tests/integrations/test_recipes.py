"""The recipes of docs/how-to/guard-in-*.md: run as printed, killed in a save and resumed; all compile."""

from __future__ import annotations

import ast
import json
import os
import re
import signal
import sys
from pathlib import Path

import pytest

from resilience.checkpoints.directory import StoreDirectory
from resilience.checkpoints.verify import verify
from resilience.guard import TrainingGuard
from tests.integrations.launched import HERE, REPOSITORY, Launched, needs
from tests.integrations.recipe import SAVED, STOPPED

PAGES = sorted((REPOSITORY / "docs" / "how-to").glob("guard-in-*.md"))
MOST_LINES = 12
SOAK = (
    pytest.mark.soak,
    pytest.mark.skipif("RESIL_SOAK" not in os.environ, reason="a slow start of the framework: set RESIL_SOAK=1"),
)
RECIPES = [
    pytest.param(
        "torch.save, safetensors, dcp, dcp in a thread, deepspeed, megatron", marks=needs("torch", "safetensors")
    ),
    pytest.param("dcp in a process", marks=(needs("torch"), *SOAK)),
    pytest.param("accelerate", marks=(needs("torch", "accelerate"), *SOAK)),
    pytest.param("lightning", marks=(needs("torch", "lightning"), *SOAK)),
    pytest.param("transformers", marks=(needs("torch", "transformers", "accelerate"), *SOAK)),
    pytest.param("jax", marks=(needs("jax", "orbax.checkpoint"), *SOAK)),
]
BLOCK = re.compile(r"^```python\n(.*?)^```", re.MULTILINE | re.DOTALL)


def test_there_is_a_page_for_each_framework() -> None:
    frameworks = {"accelerate", "dcp", "deepspeed", "jax", "lightning", "megatron", "pytorch", "transformers"}
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
            elif isinstance(node, ast.For):
                assert (node.end_lineno or 0) - node.lineno < MOST_LINES, "a loop that fits the eye"
            elif isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name) and node.value.id == "guard":
                assert hasattr(TrainingGuard, node.attr), f"guard.{node.attr}"


@pytest.mark.parametrize("forms", RECIPES)
def test_killed_in_a_save_a_recipe_as_printed_goes_on_from_the_checkpoint_before(
    launched: Launched, forms: str
) -> None:
    names = forms.split(", ")
    command = [sys.executable, str(HERE / "recipe.py"), str(launched.directory), *names]
    launched.launch(command, JAX_PLATFORMS="cpu")
    assert launched.wait(240) == 0, launched.output.read_text()
    codes = json.loads((launched.directory / "codes.json").read_text())
    for name in names:
        assert codes[name] == [-signal.SIGKILL, 75], f"{name}: {launched.output.read_text()}"
        diary = [json.loads(line) for line in (launched.directory / name / "diary.jsonl").read_text().splitlines()]
        killed, resumed = ({e["step"]: e["weight"] for e in diary if e["attempt"] == one} for one in (1, 2))
        assert (list(killed), list(resumed)) == ([*range(STOPPED)], [*range(SAVED, STOPPED)]), name
        assert resumed == {step: killed[step] for step in resumed}, f"{name}: the same weights, to the last bit"
        checkpoints = StoreDirectory(str(launched.directory / name / "checkpoints")).checkpoints()
        assert {one.step for one in checkpoints} == {SAVED, STOPPED}, f"{name}: half a save is no checkpoint"
        assert all(verify(one).is_good for one in checkpoints), name
