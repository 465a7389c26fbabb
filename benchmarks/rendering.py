"""What a batch script costs to make from its template."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path

from benchmarks.measure import Options, Program, Report, Row, Spread, interleave, interpreter_environment, timed
from resilience.runs.templates.script import BASE, SUFFIX, ScriptSpec, TemplateLibrary, render
from resilience.system.files import shipped_directory

TEMPLATES = ("python", "torchrun")
FOLDER = shipped_directory("slurm_templates")
LIBRARY = TemplateLibrary((("shipped", FOLDER),))
SPEC = ScriptSpec(
    run="gpt-7b",
    run_dir="/home/alice/gpt/.resil/runs/gpt-7b",
    command="python train.py --config configs/7b.yaml --lr 3e-4 --resume auto",
    directives=(
        ("job-name", "gpt-7b"),
        ("output", "/home/alice/gpt/.resil/runs/gpt-7b/logs/%x-%A_%a.out"),
        ("open-mode", "append"),
        ("signal", "B:USR1@300"),
        ("nodes", "4"),
        ("gpus-per-node", "8"),
        ("time", "24:00:00"),
    ),
    setup=("module load cuda/12.4", "source .venv/bin/activate"),
    environment={"NCCL_DEBUG": "WARN", "OMP_NUM_THREADS": "8"},
)
COLD = """\
from benchmarks.rendering import LIBRARY, SPEC
from resilience.runs.templates.script import render
render(LIBRARY, {name!r}, SPEC)
"""


def run(options: Options) -> Report:
    """Render warm against str.format of the same text and Jinja's compiling; cold against `import jinja2`."""
    env = interpreter_environment(PYTHONPATH=str(Path(__file__).resolve().parents[1]))
    rows: list[Row] = []
    for name in TEMPLATES:
        taken = interleave(
            {
                "warm": timed(lambda name=name: render(LIBRARY, name, SPEC), 5),  # type: ignore[misc]
                "compile": timed(_compile(name), 5),
                "format": timed(_format(name), 200),
            },
            options.samples,
        )
        cold = interleave(
            {
                "cold": Program([sys.executable, "-c", COLD.format(name=name)], env),
                "import": Program([sys.executable, "-c", _imports()], env),
            },
            options.samples,
        )
        rows += _rows(name, taken, cold)
    return Report("templates to batch scripts, the library read from disk each time", tuple(rows))


def _rows(name: str, taken: dict[str, Spread], cold: dict[str, Spread]) -> list[Row]:
    return [
        Row(f"render {name}, warm", taken["warm"], "jinja2 compiling its files", taken["compile"]),
        Row(f"render {name}, warm", taken["warm"], "str.format of the same text", taken["format"]),
        Row(f"render {name}, cold process", cold["cold"], "a process with the imports only", cold["import"]),
    ]


def _imports() -> str:
    return "import benchmarks.rendering, jinja2, jinja2.sandbox"


def _compile(name: str) -> Callable[[], object]:
    """What no way through Jinja avoids without a cache: parsing and compiling the template and what it is made of."""
    import jinja2

    environment = jinja2.Environment(trim_blocks=True, lstrip_blocks=True)
    environment.filters |= {"raw": str, "quote": str}
    # bash's ${#array[@]} would begin a comment of Jinja's
    files = [FOLDER / file for file in (f"{name}{SUFFIX}", f"{BASE}{SUFFIX}", "_attempt.bash")]
    sources = [file.read_text().replace("${#", "$ {") for file in files]
    return lambda: [environment.compile(source) for source in sources]


def _format(name: str) -> Callable[[], object]:
    """The floor: the finished script with five of its values put in by str.format."""
    values = {"run": SPEC.run, "run_dir": SPEC.run_dir, "command": SPEC.command}
    text = render(LIBRARY, name, SPEC).replace("{", "{{").replace("}", "}}")
    for key in ("run_dir", "command", "run"):
        text = text.replace(values[key], f"{{{key}}}")
    return lambda: text.format(**values)
