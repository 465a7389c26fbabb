"""Templates and the cron directory come along, whichever way resil was installed."""

from __future__ import annotations

import os
import subprocess
import sys
import tarfile
import zipfile
from pathlib import Path

import pytest

from tests.end_to_end.conftest import REPOSITORY, Shell

TEMPLATES = {"python", "srun", "torchrun", "accelerate", "deepspeed", "container"}


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The wheel, built from this checkout."""
    directory = tmp_path_factory.mktemp("wheel")
    subprocess.run(
        [sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", str(directory)],
        cwd=REPOSITORY,
        check=True,
        capture_output=True,
    )
    (built,) = directory.glob("*.whl")
    return built


@pytest.fixture(scope="module")
def elsewhere(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The wheel, unpacked as an installer does, with no checkout in sight."""
    directory = tmp_path_factory.mktemp("site-packages")
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(directory)
    return directory


def names(listing: str) -> set[str]:
    return {line.split()[0] for line in listing.splitlines()[1:]}


def test_a_clone_finds_its_templates(shell: Shell) -> None:
    said = shell.resil("templates")

    assert names(said.stdout) >= TEMPLATES
    assert str(REPOSITORY / "slurm_templates") in said.stdout


def test_a_wheel_installed_elsewhere_finds_its_own(shell: Shell, elsewhere: Path) -> None:
    said = shell.resil("templates", PYTHONPATH=str(elsewhere))

    assert names(said.stdout) >= TEMPLATES
    assert str(elsewhere) in said.stdout and str(REPOSITORY) not in said.stdout


def test_a_wheel_carries_the_cron_directory_and_init_copies_it(shell: Shell, elsewhere: Path) -> None:
    said = shell.resil("init", PYTHONPATH=str(elsewhere))

    assert said.returncode == 0, said.stderr
    shipped = {str(path.relative_to(REPOSITORY / "cron")) for path in (REPOSITORY / "cron").rglob("*")}
    copied = {str(path.relative_to(shell.directory / "cron")) for path in (shell.directory / "cron").rglob("*")}
    assert copied == shipped and shipped
    assert shell.resil("config", "check").returncode == 0
    look = shell.directory / "cron" / "cron.quarter_hourly" / "watch-fs"
    assert os.access(look, os.X_OK), "zipfile unpacks without modes, and a drop-in that is not executable does not run"
    assert "cron.quarter_hourly/watch-fs" in shell.resil("cron", "list", PYTHONPATH=str(elsewhere)).stdout


def test_a_source_distribution_carries_the_drop_ins_as_programs(tmp_path: Path) -> None:
    build = [sys.executable, "-m", "hatchling", "build", "-t", "sdist", "-d", str(tmp_path)]
    subprocess.run(build, cwd=REPOSITORY, check=True, capture_output=True)
    (built,) = tmp_path.glob("*.tar.gz")
    with tarfile.open(built) as archive:
        modes = {member.name.partition("/cron/")[2]: member.mode for member in archive.getmembers()}
    for path in (REPOSITORY / "cron").rglob("*"):
        if path.is_file():
            assert modes[str(path.relative_to(REPOSITORY / "cron"))] & 0o100 == path.stat().st_mode & 0o100


def test_a_wheel_submits_and_runs_without_the_checkout(shell: Shell, elsewhere: Path) -> None:
    shell.settings('[run]\nname = "gpt"\ncommand = "touch done"\n')

    said = shell.resil("submit", PYTHONPATH=str(elsewhere))

    assert said.returncode == 0, said.stderr
    shell.until(lambda: (shell.directory / "done").exists())


def test_a_wheel_is_typed_and_brings_the_command(wheel: Path) -> None:
    with zipfile.ZipFile(wheel) as archive:
        members = archive.namelist()
        (points,) = (archive.read(name).decode() for name in members if name.endswith("entry_points.txt"))
    assert "resilience/py.typed" in members
    assert "resil = resilience.cli.entry:main" in points
    assert not [name for name in members if name.startswith("tests/") or name.endswith(".pth")]


def test_a_projects_own_template_wins_and_the_shipped_one_is_said_to_be_shadowed(shell: Shell) -> None:
    own = shell.directory / "slurm_templates"
    own.mkdir()
    (own / "python.sbatch.j2").write_text('{% extends "base.sbatch.j2" %}\n# resil: Mine.\n')

    said = shell.resil("templates")

    rows = [line for line in said.stdout.splitlines() if line.startswith("python ")]
    assert len(rows) == 2
    assert str(own) in rows[0] and "project" in rows[0]
    assert "shadowed" in rows[1]


def test_the_console_script_and_the_module_are_the_same(shell: Shell) -> None:
    script = Path(sys.executable).with_name("resil")
    if not script.exists():
        pytest.skip("resil is not installed in this environment; `make test` installs it")
    by_script = subprocess.run([script, "--version"], capture_output=True, text=True, env=dict(os.environ))

    assert by_script.stdout == shell.resil("--version").stdout
