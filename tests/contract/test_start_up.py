"""What the commands that people type most may load: every third-party package costs them a tenth of a second."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Collection
from pathlib import Path

import pytest

from resilience.job import Job, JobId, JobState
from resilience.runs import queue_cache
from resilience.runs.run_directory import RunDirectory
from resilience.runs.submissions import Intent, Outcome, record_intent, record_result
from resilience.system.ports import System

REPOSITORY = Path(__file__).parents[2]
HEAVY = {"jinja2", "requests", "slack_sdk", "psutil", "pynvml", "pydantic", "rich", "urllib3", "markupsafe", "cronsim",
         "filelock", "platformdirs"}  # fmt: skip
PROGRAM = """
import json, sys
before = set(sys.modules)
from resilience.cli.entry import run
code = run(sys.argv[1:])
print(json.dumps([code, sorted(set(sys.modules) - before)]))
"""


@pytest.fixture
def environ(tmp_path: Path) -> dict[str, str]:
    """A project with one run, whose jobs SLURM told of a moment ago."""
    environ = {
        key: value for key, value in os.environ.items() if not key.startswith(("RESIL_", "SLURM", "SBATCH", "XDG_"))
    }
    environ |= {"HOME": str(tmp_path), "PYTHONPATH": str(REPOSITORY), "RESIL_SCHEDULER__NAME": "slurm"}
    directory = RunDirectory(tmp_path / ".resil" / "gpt")
    directory.create('[run]\nname = "gpt"\n')
    (tmp_path / "resil.toml").write_text('[run]\nname = "gpt"\n')
    (directory.path / "beats" / "7.n1").write_text("step = 5\n")
    (directory.path / "switches" / "kill").touch()
    (directory.path / "attempts" / "0001").write_text('job_id = 7\nlabel = "7"\nstart = 1.0\n')
    record_intent(directory, Intent("aa", "slurm", "", (), 0.0))
    record_result(directory, "aa", Outcome.SUBMITTED, 0.0, job_id=JobId(7))
    system = System(environ=environ)
    system = System(environ=environ | {"XDG_CACHE_HOME": str(tmp_path / ".cache")}, host=system.host)
    job = Job(id=JobId(7), raw_id=7, name="gpt", state=JobState.RUNNING, comment="resil:gpt:aa", reason="None")
    queue_cache.save(system, "slurm", (job,))
    return environ


def loaded_by(environ: dict[str, str], *words: str, codes: Collection[int] = (0,)) -> tuple[str, set[str]]:
    """What a command says, and the modules that it loads beyond a bare interpreter's."""
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM, *words], cwd=environ["HOME"], env=environ, capture_output=True, text=True,
        check=True, timeout=60,
    )  # fmt: skip
    *said, last = done.stdout.splitlines()
    code, modules = json.loads(last)
    assert code in codes, done.stderr
    return "\n".join(said), set(modules)


@pytest.mark.parametrize("words", [("--help",), ("status",), ("status", "gpt"), ("--version",)], ids=str)
def test_the_commands_that_people_type_most_load_no_heavy_package(
    environ: dict[str, str], words: tuple[str, ...]
) -> None:
    _, modules = loaded_by(environ, *words)
    assert not {name.partition(".")[0] for name in modules} & HEAVY


def test_a_plain_status_loads_neither_typer_nor_what_only_others_need(environ: dict[str, str]) -> None:
    said, modules = loaded_by(environ, "status")
    assert "gpt  running, step 5, attempt 1" in said and "kill switch" in said
    packages = {name.partition(".")[0] for name in modules}
    assert {name for name in packages if name not in sys.stdlib_module_names} == {"resilience"}
    assert not modules & {"resilience.schedulers.slurm", "resilience.schedulers.local", "resilience.cli.main",
                          "resilience.runs.templates.script", "resilience.plugins", "subprocess", "socket",
                          "importlib.metadata"}  # fmt: skip


@pytest.mark.parametrize("words", [("watch", "fs"), ("watch", "--all"), ("watch", "--help"), ("watch", "fs", "--json")])
def test_watching_loads_no_heavy_package(environ: dict[str, str], words: tuple[str, ...]) -> None:
    _, modules = loaded_by(environ, *words, codes=(0, 1, 2, 3))
    assert not {name.partition(".")[0] for name in modules} & HEAVY


def test_a_plain_watch_loads_neither_typer_nor_what_only_others_need(environ: dict[str, str]) -> None:
    said, modules = loaded_by(environ, "watch", "fs", codes=(0, 1, 2))
    assert said.startswith("FS ")
    packages = {name.partition(".")[0] for name in modules}
    assert {name for name in packages if name not in sys.stdlib_module_names} == {"resilience"}
    costly = {"resilience.cli.main", "resilience.cli.watch", "resilience.alerts.notify", "resilience.watch.checks.log",
              "resilience.watch.checks.job", "importlib.metadata", "socket", "subprocess", "email",
              "argparse", "difflib", "hashlib", "resilience.guard"}  # fmt: skip
    assert sorted(modules & costly) == []


def test_whoever_has_nothing_to_tell_loads_nothing_that_delivers() -> None:
    program = "import sys, resilience.alerts.notify; print(*sys.modules)"
    modules = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True, timeout=60)
    assert not {"resilience.alerts.delivery", "resilience.alerts.sending", "random"} & set(modules.stdout.split())


def test_help_imports_no_commands_module(environ: dict[str, str]) -> None:
    said, modules = loaded_by(environ, "--help")
    assert "submit" in said
    ours = {name for name in modules if name.startswith("resilience.")}
    assert ours <= {"resilience.errors", "resilience.cli", "resilience.cli.entry", "resilience.cli.main"}  # fmt: skip
