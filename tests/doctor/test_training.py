"""The Python of the training is the one that the command would start; it is asked, and its answer is repeated."""

from __future__ import annotations

import os
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

from resilience.doctor.diagnosis import Diagnosis
from resilience.doctor.training import ASK, Question, diagnose_training, install_command, judge_training, question_of
from resilience.finding import Verdict
from resilience.settings.sections import RunSettings
from resilience.system.process import ProcessRunner
from tests.lab.fakes import make_project

ROOT = Path(__file__).parents[2]
PROJECT = Path("/p")


def asked(command: str, template: str = "python") -> Question | str:
    return question_of(RunSettings(command=command, template=template), PROJECT)


@pytest.mark.parametrize(
    ("command", "template", "expected"),
    [
        ("python train.py --lr 1", "python", Question("/p", "python")),
        ("/opt/a b/python -u src/train.py".replace("a b", "ab"), "srun", Question("/p/src", "/opt/ab/python")),
        ("'/opt/a b/python' train.py", "python", Question("/p", "/opt/a b/python")),
        ("python -m pkg.train", "python", Question("/p", "python")),
        ("PYTHONPATH=src A=1 python train.py", "python", Question("/p", "python", (("PYTHONPATH", "src"), ("A", "1")))),
        ("train.py --lr 1e-4", "torchrun", Question("/p", "torchrun")),
        ("python train.py", "accelerate", Question("/p", "accelerate")),
        ("torchrun --nproc_per_node 8 train.py", "python", Question("/p", "torchrun")),
    ],
)
def test_the_program_is_that_of_the_command_or_the_launcher(command: str, template: str, expected: Question) -> None:
    assert asked(command, template) == expected


@pytest.mark.parametrize(
    "command", ["", "cd src && python train.py", "a; b", "$PYTHON train.py", "'", "A=1", "python $(x)", "x | y", "~/x"]
)
def test_a_line_of_shell_is_not_guessed_at(command: str) -> None:
    assert isinstance(asked(command), str)


def test_a_training_in_an_image_is_not_asked_outside() -> None:
    assert "image" in str(asked("python train.py", "container"))


def answer(directory: Path, program: str, **variables: str) -> Diagnosis:
    """What real bash and real programs answer."""
    environ = {"PATH": f"{directory}:{os.environ['PATH']}", **variables}
    line = ASK + Question(str(directory), program).call()
    said = subprocess.run(["bash", "-c", line], env=environ, capture_output=True, text=True, timeout=60)
    assert said.stderr == ""
    (words,) = [row.split("\t") for row in said.stdout.splitlines()]
    assert words[0] == "training"
    return judge_training(words[1:], "here")


def program(path: Path, text: str) -> Path:
    path.write_text(text)
    path.chmod(0o755)
    return path


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    made = tmp_path / "my project"
    made.mkdir()
    return made


def test_a_python_with_the_guard_is_ok_and_named(directory: Path) -> None:
    found = answer(directory, sys.executable, PYTHONPATH=str(ROOT))
    assert (found.verdict, found.text) == (Verdict.OK, f"{sys.executable} -c 'import resilience.guard' succeeded here")


def test_a_python_without_the_guard_is_a_warning_with_the_command_that_installs_it(directory: Path) -> None:
    bare = program(directory / "python3", f'#!/bin/sh\nexec {sys.executable} -I -S "$@"\n')
    found = answer(directory, "python3")
    assert found.verdict is Verdict.WARNING and "No module named 'resilience'" in found.text
    assert shlex.split(found.advice)[:5] == [str(bare), "-m", "pip", "install", "--no-deps"]
    assert " ".join(shlex.split(found.advice)) != found.advice, "a path with a blank is quoted"


def test_the_first_line_of_a_launcher_names_its_python(directory: Path) -> None:
    program(directory / "torchrun", f"#!{sys.executable}\nimport torch\n")
    assert answer(directory, "torchrun", PYTHONPATH=str(ROOT)).verdict is Verdict.OK
    program(directory / "torchrun", "#!/usr/bin/env python3\n")
    program(directory / "python3", "#!/bin/sh\necho 'Python 3.9 is too old: the guard needs 3.11' >&2\nexit 1\n")
    found = answer(directory, "torchrun")
    assert (found.verdict, found.advice) == (Verdict.WARNING, "use a newer Python for the training")


@pytest.mark.parametrize("name", ["true", "bash"])
def test_a_program_that_is_no_python_is_unknown(directory: Path, name: str) -> None:
    found = answer(directory, name)
    assert (found.verdict, "is not a program in Python" in found.text) == (Verdict.UNKNOWN, True)


def test_a_program_or_directory_that_is_not_there_is_named(directory: Path) -> None:
    assert "no program no-such" in answer(directory, "no-such").text
    (directory / "x").mkdir()
    (directory / "x").rmdir()
    said = subprocess.run(["bash", "-c", ASK + Question(str(directory / "x"), "true").call()], capture_output=True)
    assert said.stdout.startswith(b"training\tno-directory\t")


def test_a_python_that_answers_nothing_is_unknown_and_one_that_is_killed_is_a_warning(directory: Path) -> None:
    assert judge_training([], "here").verdict is Verdict.UNKNOWN
    program(directory / "python3", "#!/bin/sh\nkill -9 $$\n")
    assert answer(directory, "python3").verdict is Verdict.WARNING


def test_doctor_asks_here_unless_the_setup_may_choose_another_python(tmp_path: Path) -> None:
    def found(table: str) -> list[Diagnosis]:
        environ = {"PATH": os.environ["PATH"], "PYTHONPATH": str(ROOT)}
        project = make_project(tmp_path, settings=f"[run]\n{table}\n", environ=environ, runner=ProcessRunner())
        return list(diagnose_training(project))

    (one,) = found(f'command = "{sys.executable} train.py"')
    assert one.verdict is Verdict.OK and one.text.endswith("on this machine")
    (two,) = found('command = "python train.py"\nsetup = ["module load x"]')
    assert (two.verdict, two.advice) == (Verdict.UNKNOWN, "resil doctor --on-node")
    (three,) = found('command = "a && b"')
    assert three.verdict is Verdict.UNKNOWN
    assert found('name = "x"') == [], "a project without a command has no Python to ask"


def test_the_install_command_names_the_clone_or_capitals() -> None:
    words = shlex.split(install_command("/opt/my env/bin/python"))
    assert words[:5] == ["/opt/my env/bin/python", "-m", "pip", "install", "--no-deps"]
    assert words[5] == "CLONE" or Path(words[5]).exists()
