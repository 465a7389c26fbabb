"""Types commands in this very process, in a project of its own whose jobs go to the fake scheduler."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from resilience.cli import entry
from resilience.cli.options import open_project
from resilience.runs.project import Project
from tests.fakes import FakeScheduler

PLUGIN = "from tests.cli import shell\nSCHEDULER = shell.the_fake\n"
SETTINGS = '[run]\nname = "gpt"\ncommand = "python train.py"\n[sbatch]\ntime = "60"\n'
_fakes: list[FakeScheduler] = []


def the_fake(**_: object) -> FakeScheduler:
    """The fake of the test that runs now."""
    return _fakes[-1]


@dataclass(frozen=True)
class Said:
    """What a command said, and its exit code."""

    code: int
    out: str
    err: str

    @property
    def json(self) -> Any:
        return json.loads(self.out)


@dataclass
class Shell:
    """A person at a prompt."""

    folder: Path
    capsys: pytest.CaptureFixture[str]
    fake: FakeScheduler = field(default_factory=FakeScheduler)

    def resil(self, *words: str) -> Said:
        """Run a command line."""
        self.capsys.readouterr()
        code = entry.run(words)
        captured = self.capsys.readouterr()
        assert "Traceback" not in captured.err
        return Said(code, captured.out, captured.err)

    def settings(self, text: str) -> None:
        (self.folder / "resil.toml").write_text(text)

    def journal(self, job: int, **event: Any) -> None:
        """Write a line as the batch shell of a job does."""
        with (self.run_dir / "journal" / f"{job}.batch.jsonl").open("a") as file:
            file.write(json.dumps(event) + "\n")

    @property
    def project(self) -> Project:
        return open_project()

    @property
    def run_dir(self) -> Path:
        return self.folder / ".resil" / "gpt"


def make_shell(folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Shell:
    """A project in `folder`, alone in the world."""
    for name in [*os.environ]:
        if name.startswith(("RESIL_", "SLURM", "SBATCH", "XDG_")):
            monkeypatch.delenv(name)
    (folder / "project").mkdir()
    (folder / "plugins" / "schedulers").mkdir(parents=True)
    (folder / "plugins" / "schedulers" / "fake.py").write_text(PLUGIN)
    variables: Mapping[str, str] = {
        "HOME": str(folder),
        "RESIL_PLUGINS": str(folder / "plugins"),
        "RESIL_SCHEDULER__NAME": "fake",
    }
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    monkeypatch.chdir(folder / "project")
    made = Shell(folder / "project", capsys)
    made.settings(SETTINGS)
    _fakes.append(made.fake)
    return made
