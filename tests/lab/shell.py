"""Types commands in this very process, in a project of its own whose jobs go to the fake scheduler."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from resilience.alerts.notify import notify
from resilience.alerts.routes import channels
from resilience.alerts.state import AlertState, open_alert_state
from resilience.cli import entry
from resilience.cli.options import open_project
from resilience.cron.driver_choice import drivers
from resilience.cron.project import CronProject, open_cron
from resilience.cron.records import Heartbeat, Outcome, RunRecord
from resilience.finding import Finding, Report, Verdict
from resilience.inject import fault_plugins
from resilience.runs.project import Project, schedulers
from resilience.watch.watchdogs import checks
from tests.lab import here
from tests.lab.fakes import FakeScheduler

PLUGIN = "from tests.lab import shell\nSCHEDULER = shell.the_fake\n"
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

    directory: Path
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
        (self.directory / "resil.toml").write_text(text)

    def journal(self, job: int, **event: Any) -> None:
        """Write a line as the batch shell of a job does."""
        with (self.run_dir / "journal" / f"{job}.batch.jsonl").open("a") as file:
            file.write(json.dumps(event) + "\n")

    @property
    def project(self) -> Project:
        return open_project(banner=False)

    @property
    def run_dir(self) -> Path:
        return self.directory / ".resil" / "gpt"


def make_shell(directory: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Shell:
    """A project in `directory`, alone in the system."""
    for name in [*os.environ]:
        if name.startswith(("RESIL_", "SLURM", "SBATCH", "XDG_")):
            monkeypatch.delenv(name)
    (directory / "project").mkdir()
    (directory / "plugins" / "schedulers").mkdir(parents=True)
    (directory / "plugins" / "schedulers" / "fake.py").write_text(PLUGIN)
    variables: Mapping[str, str] = {
        "HOME": str(directory),
        "RESIL_PLUGINS": str(directory / "plugins"),
        "RESIL_SCHEDULER__NAME": "fake",
    }
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    for family in (schedulers, channels, checks, drivers, fault_plugins):  # found once in a process
        family.cache_clear()
    monkeypatch.chdir(directory / "project")
    here.make_cheap(monkeypatch)
    made = Shell(directory / "project", capsys)
    made.settings(SETTINGS)
    _fakes.append(made.fake)
    return made


CHANNEL_PLUGIN = """
from pathlib import Path
from tests.alerts.stand_in import StandIn
CHANNEL = StandIn(Path({directory!r}), {name!r})
"""
ALERTING = SETTINGS + '[alert]\nchannels = ["pager", "list"]\ngroup_s = 0\n[channel.pager]\n[channel.list]\n'


class Office:
    """A project with two channels of its own, and what they took."""

    def __init__(self, shell: Shell) -> None:
        self.shell = shell
        shell.settings(ALERTING)
        self.directory = shell.directory.parent
        plugins = self.directory / "plugins" / "channels"
        plugins.mkdir()
        for name in ("pager", "list"):
            (plugins / f"{name}.py").write_text(CHANNEL_PLUGIN.format(directory=str(self.directory), name=name))

    def resil(self, *words: str) -> Said:
        return self.shell.resil("alert", *words)

    def order(self, channel: str, what: str = "") -> None:
        (self.directory / f"{channel}.order").write_text(what)

    def taken(self, channel: str) -> list[str]:
        path = self.directory / f"{channel}.taken"
        return [json.loads(line)["said"][0] for line in path.read_text().splitlines()] if path.exists() else []

    @property
    def state(self) -> AlertState:
        return open_alert_state(self.shell.project)

    def tick(self, *findings: Finding, check: str = "fs") -> tuple[str, ...]:
        """What a watchdog's tick does when it has found this, and what it says."""
        return notify(self.shell.project, [Report(check=check, findings=findings, time=time.time())])

    def episode(self, subject: str = "/scratch") -> str:
        return next(i.episode for i in self.state.ledger.incidents() if i.subject == subject)


def full(subject: str = "/scratch", verdict: Verdict = Verdict.CRITICAL) -> Finding:
    return Finding(
        subject=subject, verdict=verdict, fault="space", summary="99% used", advice="resil watch fs --top",
        evidence=("df: 99%",), run="gpt",
    )  # fmt: skip


def well(subject: str = "/scratch") -> Finding:
    return Finding(subject=subject, verdict=Verdict.OK, summary="10% used")


DRIVER_PLUGIN = """
import json
from pathlib import Path
from resilience.cron.drivers import Availability, DriverState, Step
from resilience.job import Liveness
class Fake:
    summary = "for tests"
    rank = 0
    def availability(self, context): return Availability(True, "it is a fake")
    def plan(self, installation, settings, context):
        return () if self._line(context).exists() else (Step("write a line", "* * * * * resil cron tick"),)
    def install(self, installation, settings, context):
        if self._line(context).exists(): return ()
        self._line(context).write_text(installation.mode)
        return ("wrote a line",)
    def uninstall(self, installation, settings, context):
        if not self._line(context).exists(): return ()
        self._line(context).unlink()
        return ("took the line out",)
    def state(self, installation, settings, context):
        there = self._line(context).exists()
        return DriverState(Liveness.ALIVE if there else Liveness.GONE, "the line is there" if there else "no line")
    def _line(self, context): return context.project / "line"
DRIVER = Fake()
"""


class Desk:
    """A person with a project, whose ticks a driver of tests makes."""

    def __init__(self, shell: Shell) -> None:
        self.shell = shell
        self.directory = shell.directory
        shell.settings(SETTINGS + '[cron]\nbackend = "fake"\n')
        for directory in (self.directory, self.directory.parent):
            directory.chmod(0o755)
        (shell.directory.parent / "plugins" / "drivers").mkdir()
        (shell.directory.parent / "plugins" / "drivers" / "fake.py").write_text(DRIVER_PLUGIN)

    def cron(self, *words: str, code: int | None = 0) -> Said:
        said = self.shell.resil("cron", *words)
        assert code is None or said.code == code, said
        assert "internal error" not in said.err
        return said

    @property
    def project(self) -> CronProject:
        return open_cron(self.shell.project)

    def drop(
        self, name: str, text: str = "#!/bin/sh\ntrue\n", directory: str = "cron.hourly", mode: int = 0o755
    ) -> Path:
        path = self.directory / "cron" / directory / name
        for made in (path.parents[1], path.parent):
            made.mkdir(exist_ok=True)
            made.chmod(0o755)
        path.write_text(text)
        path.chmod(mode)
        return path

    def beat(self, ago_s: float = 0.0, driver: str = "crontab") -> None:
        now = time.time()
        self.project.state.beat(
            Heartbeat(time=now - ago_s, expected=now - ago_s + 60, alive_since=now - 4000, ticks=66, driver=driver,
                      host="login1", late_s=1.5)
        )  # fmt: skip

    def record(self, name: str, ago_s: float, outcome: Outcome = Outcome.DONE, **given: object) -> int:
        slot = int(time.time() - ago_s)
        run = RunRecord(name=name, slot=slot, outcome=outcome, time=slot + 3.0, **given)  # type: ignore[arg-type]
        self.project.state.record(name.replace("/", "+"), run)
        return slot
