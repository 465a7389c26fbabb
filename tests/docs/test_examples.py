"""The examples of how to write a watchdog, a channel and a driver are real: they are taken from the pages and run."""

from __future__ import annotations

import importlib.util
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.docs.markdown import ROOT


def plugin(directory: Path, page: str, family: str, name: str) -> dict[str, str]:
    """Put the page's example where plugins are looked for; return the environment in which it is found."""
    text = (ROOT / "docs" / "how-to" / page).read_text()
    block = re.search(r"```python\n(.*?)```", text, re.DOTALL)
    assert block is not None
    (directory / "plugins" / family).mkdir(parents=True)
    (directory / "plugins" / family / f"{name}.py").write_text(block[1])
    clean = {key: value for key, value in os.environ.items() if not key.startswith("RESIL_")}
    return {**clean, "RESIL_PLUGINS": str(directory / "plugins"), "HOME": str(directory), "PYTHONPATH": str(ROOT)}


def resil(directory: Path, environ: dict[str, str], *words: str) -> subprocess.CompletedProcess[str]:
    argv = [sys.executable, "-m", "resilience", *words]
    return subprocess.run(argv, cwd=directory, env=environ, capture_output=True, text=True, timeout=60)


def test_the_watchdog_of_the_page_watches(tmp_path: Path) -> None:
    environ = plugin(tmp_path, "write-a-watchdog.md", "checks", "licence")
    licences = tmp_path / "free"
    for free, code in ((9, 0), (3, 1), (0, 2)):
        licences.write_text(f"{free}\n")
        done = resil(tmp_path, environ, "watch", "licence", str(licences))
        assert done.returncode == code, done
        assert f"{free} licences left" in done.stdout
    assert resil(tmp_path, environ, "watch", "licence", "nowhere").returncode == 3
    assert "--crit-free" in resil(tmp_path, environ, "watch", "licence", "--help").stdout


def test_the_channel_of_the_page_tells(tmp_path: Path) -> None:
    environ = plugin(tmp_path, "write-a-channel.md", "channels", "pager")
    (tmp_path / "resil.toml").write_text(
        f'[alert]\nchannels = ["pager"]\n[channel.pager]\npath = "{tmp_path}/pages"\n'
        f'[watch.fs]\npaths = ["{tmp_path}/gone"]\n'
    )
    done = resil(tmp_path, environ, "watch", "fs")
    assert done.returncode == 2, done
    assert "FIRST CRITICAL" in (tmp_path / "pages").read_text()


def test_the_driver_of_the_page_ticks(tmp_path: Path) -> None:
    environ = plugin(tmp_path, "write-a-driver.md", "drivers", "sitecron")
    (tmp_path / "resil.toml").write_text('[scheduler]\nname = "local"\n')
    (tmp_path / "service").mkdir()
    environ["SITECRON"] = str(tmp_path / "service")
    done = resil(tmp_path, environ, "cron", "install")
    assert done.returncode == 0 and done.stdout.startswith("sitecron: best of the available backends"), done
    (line,) = (tmp_path / "service").iterdir()
    ran = subprocess.run(["/bin/sh", "-c", line.read_text()], env={}, cwd="/", capture_output=True, timeout=60)
    assert ran.returncode == 0, ran
    status = resil(tmp_path, environ, "cron", "status")
    assert status.returncode == 0 and "by sitecron" in status.stdout, status
    assert resil(tmp_path, environ, "cron", "uninstall").returncode == 0
    assert not list((tmp_path / "service").iterdir())


LOOP = """
import json, pathlib, sys
loader = range(4)
def train_step(batch): return 1.0 / (batch + 1)
def save(path): (path / "model.json").write_text(json.dumps({"step": 3}))
def load(path): print("loaded", path.name); return json.loads((path / "model.json").read_text())["step"]
"""


def test_the_loop_of_the_page_saves_and_resumes(tmp_path: Path) -> None:
    """docs/how-to/keep-checkpoints.md, with a training of four steps around it."""
    text = (ROOT / "docs" / "how-to" / "keep-checkpoints.md").read_text()
    block = re.search(r"```python\n(.*?)```", text, re.DOTALL)
    shell = re.search(r"```bash\n(.*?)```", text, re.DOTALL)
    assert block is not None and shell is not None
    (tmp_path / "train.py").write_text(LOOP + block[1] + 'print("trained", sys.argv[1:])\n')
    resil = tmp_path / "bin" / "resil"
    resil.parent.mkdir()
    resil.write_text(f'#!/bin/sh\nexec {sys.executable} -m resilience "$@"\n')
    resil.chmod(0o755)
    clean = {key: value for key, value in os.environ.items() if not key.startswith(("RESIL_", "SLURM"))}
    environ = clean | {"RESIL_GUARD": "test:save@3", "PYTHONPATH": str(ROOT), "HOME": str(tmp_path)}
    environ |= {"PATH": f"{resil.parent}:{Path(sys.executable).parent}:{environ['PATH']}"}
    environ |= {"RESIL_CHECKPOINTS__PATH": str(tmp_path / "checkpoints")}
    script = ["bash", "-c", shell[1]]
    first, second = (
        subprocess.run(script, cwd=tmp_path, env=environ, capture_output=True, text=True, timeout=60) for _ in range(2)
    )
    assert (first.returncode, first.stdout) == (0, "trained []\n"), first
    path = tmp_path / "checkpoints" / "step-00000003"
    assert second.stdout.startswith(f"loaded step-00000003\ntrained ['--load', '{path}']\n"), second
    (path / "model.json").write_text("{")
    third = subprocess.run(script, cwd=tmp_path, env=environ, capture_output=True, text=True, timeout=60)
    assert third.returncode == 4 and third.stdout == "" and "model.json" in third.stderr, third


@pytest.mark.skipif(importlib.util.find_spec("torch") is None, reason="torch not installed (pip install)")
@pytest.mark.soak
def test_the_script_about_silent_corruption_finds_its_damaged_gradient(tmp_path: Path) -> None:
    text = (ROOT / "docs" / "how-to" / "guard-against-silent-corruption.md").read_text()
    block = re.search(r"```python\n(import sys\n.*?)```", text, re.DOTALL)
    assert block is not None
    (tmp_path / "train.py").write_text(block[1])
    clean = {
        key: value for key, value in os.environ.items() if not key.startswith(("RESIL_", "SLURM", "RANK", "WORLD"))
    }
    done = subprocess.run(
        [sys.executable, "train.py"], cwd=tmp_path, env=clean | {"PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"},
        capture_output=True, text=True, timeout=300,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert "found: ['transient']" in done.stdout and "the gradient of 0.weight is 1e+17" in done.stderr
