"""The guard alone, in the environment of a training: installed by `pip install --no-deps` into a real, empty venv."""

from __future__ import annotations

import os
import re
import shlex
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

from resilience.cli.missing import PACKAGES
from tests.end_to_end.conftest import REPOSITORY

LOOP = """\
import sys
from resilience.guard import TrainingGuard
guard = TrainingGuard.from_env()
for batch in guard.steps(range(3), save=lambda: None):
    pass
guard.finished()
import resilience.integrations.checkpoint_files
assert not {"typer", "jinja2", "requests", "psutil"} & set(sys.modules)
sys.exit(guard.exit_code)
"""


@pytest.fixture(scope="module")
def bare(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The Python of a new virtual environment with resil alone; its directory has a blank, as a home may have."""
    directory = tmp_path_factory.mktemp("bare") / "my training"
    subprocess.run([sys.executable, "-m", "venv", directory], check=True, capture_output=True)
    wheels = directory / "wheels"
    build = [sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", str(wheels)]
    subprocess.run(build, cwd=REPOSITORY, check=True, capture_output=True)
    (wheel,) = wheels.glob("*.whl")
    python = directory / "bin" / "python"
    install = [str(python), "-m", "pip", "install", "--quiet", "--no-index", "--no-deps", str(wheel)]
    done = subprocess.run(install, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return python


def called(*argv: str | Path, cwd: Path) -> subprocess.CompletedProcess[str]:
    clean = {key: value for key, value in os.environ.items() if not key.startswith(("RESIL_", "PYTHON"))}
    return subprocess.run([*map(str, argv)], cwd=cwd, env=clean, capture_output=True, text=True, timeout=60)


def test_the_guard_works_without_any_other_package(bare: Path, tmp_path: Path) -> None:
    done = called(bare, "-c", LOOP, cwd=tmp_path)
    assert (done.returncode, done.stderr) == (0, "")


@pytest.mark.parametrize(
    ("words", "code"),
    [((), 1), (("--version",), 1), (("status",), 1), (("submit", "--array", "10"), 1), (("watch", "fs"), 3),
     (("watch", "--all"), 3), (("cron", "tick"), 1), (("no-such-command",), 1)],
)  # fmt: skip
def test_the_command_says_what_is_missing_and_how_to_install_it(
    bare: Path, tmp_path: Path, words: tuple[str, ...], code: int
) -> None:
    for program in ((bare.with_name("resil"),), (bare, "-m", "resilience")):
        done = called(*program, *words, cwd=tmp_path)
        assert (done.returncode, done.stdout) == (code, ""), done
        first, hint = done.stderr.splitlines()
        assert str(bare) in first and "typer" in first and "nvidia-ml-py" in first
        install = shlex.split(hint.rpartition("add them here: ")[2])
        assert install[:4] == [str(bare), "-m", "pip", "install"]
        required = {re.split(r"[<>=]", word)[0].replace("_", "-") for word in install[4:]}
        assert required == {package.replace("_", "-") for package in PACKAGES.values()}
        assert all(re.search(r"[<>=]\d", word) for word in install[4:]), "each with the versions that resil accepts"


def test_one_missing_package_is_named_alone(bare: Path, tmp_path: Path) -> None:
    """A training's environment has some of them: here all but psutil, which a command asks for later."""
    fakes = tmp_path / "fakes"
    fakes.mkdir()
    for module in set(PACKAGES) - {"psutil"}:
        (fakes / f"{module}.py").write_text("raise ModuleNotFoundError('No module named psutil', name='psutil')\n")
    code = f"import sys; sys.path.append({str(fakes)!r}); from resilience.cli.entry import run; sys.exit(run(['init']))"
    done = called(bare, "-c", code, cwd=tmp_path)
    assert done.returncode == 1 and "lacks 1 package that its commands need: psutil" in done.stderr, done


def test_the_packages_are_those_of_the_project() -> None:
    project = tomllib.loads((REPOSITORY / "pyproject.toml").read_text())["project"]
    assert {re.split(r"[<>=]", line)[0] for line in project["dependencies"]} == set(PACKAGES.values())
