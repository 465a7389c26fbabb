"""Runs rendered scripts with a real bash, below a scheduler that is only a directory of files."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import time
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from resilience.layout import FOLDERS
from resilience.runs.templates.script import ScriptSpec, TemplateLibrary, render
from resilience.system.files import read_lines, shipped_directory
from tests.lab.waiting import until

SHIPPED = TemplateLibrary((("shipped", shipped_directory("slurm_templates")),))
PYTHON = sys.executable


@dataclass
class Script:
    """A rendered script that runs."""

    process: subprocess.Popen[str]
    log: Path
    began: float = field(default_factory=time.monotonic)

    def send(self, number: signal.Signals) -> None:
        os.kill(self.process.pid, number)

    def wait(self, timeout_s: float = 30) -> int:
        """Its exit code."""
        return self.process.wait(timeout_s)

    def wait_after(self, number: signal.Signals) -> int:
        """Send a signal; return the exit code."""
        self.send(number)
        return self.wait()

    @property
    def text(self) -> str:
        return self.log.read_text()

    def until_says(self, text: str, timeout_s: float = 60) -> None:
        until(lambda: text in self.text, f"{text!r} in {self.log}", timeout_s)


@dataclass
class Batch:
    """One run directory and one pretended scheduler."""

    root: Path
    started: list[Script] = field(default_factory=list)

    @classmethod
    def make(cls, root: Path) -> Batch:
        batch = cls(root)
        for name in FOLDERS:
            (batch.run_dir / name).mkdir(parents=True)
        (batch.spool / "jobs").mkdir(parents=True)
        journal = batch.run_dir / "submissions.jsonl"
        journal.touch(0o600)
        journal.write_text('{"event":"intent","token":"token"}\n')
        return batch

    @property
    def run_dir(self) -> Path:
        return self.root / "run"

    @property
    def spool(self) -> Path:
        return self.root / "spool"

    def state(self, job: int, word: str, comment: str = "resil:demo:token") -> Path:
        """Let the scheduler know a job; return its directory."""
        directory = self.spool / "jobs" / str(job)
        directory.mkdir(exist_ok=True)
        (directory / "state").write_text(word + "\n")
        (directory / "comment").write_text(comment + "\n")
        return directory

    def start(
        self,
        command: str,
        job: int = 7,
        *,
        template: str = "python",
        environment: Mapping[str, str] | None = None,
        beat_s: float = 0.2,
        says: str = "",
        **spec: Any,
    ) -> Script:
        """Start the batch script of a job, and wait until its log holds `says`."""
        script = self.root / f"script.{job}.{len(self.started)}"
        wish = ScriptSpec(run="demo", run_dir=str(self.run_dir), command=command, beat_s=beat_s, **spec)
        script.write_text(render(SHIPPED, template, wish))
        self.state(job, "RUNNING")
        log = script.with_suffix(script.suffix + ".log")
        kept = {name: value for name, value in os.environ.items() if not name.startswith(("SLURM", "RESIL"))}
        variables = {
            "SLURM_JOB_ID": str(job),
            "RESIL_SCHEDULER": "local",
            "RESIL_LOCAL_SPOOL": str(self.spool),
            **(environment or {}),
        }
        with log.open("w") as output:
            process = subprocess.Popen(
                # bash cannot trap what is ignored when it begins, as SIGHUP is in a test run under nohup.
                ["env", "--default-signal=HUP,INT,QUIT,TERM,USR1,USR2", "bash", str(script)],
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                env=kept | variables,
                cwd=self.root,
                start_new_session=True,
                text=True,
            )
        self.started.append(Script(process, log))
        self.started[-1].until_says(says)
        return self.started[-1]

    def run(self, command: str, job: int = 7, **wishes: Any) -> Script:
        """Run the batch script of a job to its end."""
        script = self.start(command, job, **wishes)
        script.wait()
        return script

    def launches_nothing(self, *says: str, script: Script | None = None, code: int = 75, **wishes: Any) -> None:
        """Run `touch launched` (or wait for the script of it that was started): the code, no launch, and why."""
        script = script or self.run("touch launched", **wishes)
        assert script.wait() == code
        assert not self.launched
        for text in says:
            assert text in script.text

    def program(self, name: str, text: str) -> dict[str, str]:
        """Put a script into a directory of programs; return the environment that finds it first."""
        path = self.root / "bin" / name
        path.parent.mkdir(exist_ok=True)
        path.write_text(text)
        path.chmod(0o755)
        return {"PATH": f"{path.parent}:{os.environ['PATH']}"}

    @property
    def launched(self) -> bool:
        """Whether `touch launched` has run."""
        return (self.root / "launched").exists()

    @property
    def environment(self) -> dict[str, str]:
        """What `env >environment` wrote."""
        lines = (self.root / "environment").read_text().splitlines()
        return dict(line.split("=", 1) for line in lines if "=" in line)

    @property
    def is_finished(self) -> bool:
        return (self.run_dir / "finished").exists()

    def attempt(self, number: int, *, job: int, host: str = "elsewhere") -> Path:
        """Write an attempt as another batch shell would have."""
        path = self.run_dir / "attempts" / f"{number:04d}"
        path.write_text(
            f'number = {number}\njob_id = {job}\nlabel = "{job}"\nrestart = 0\nhost = "{host}"\npid = 1\nstart = 1\n'
        )
        return path

    def end(self, number: int) -> dict[str, Any]:
        """What the end of an attempt says; empty when there is none."""
        path = self.run_dir / "attempts" / f"{number:04d}.end"
        return tomllib.loads(path.read_text()) if path.exists() else {}

    def switch(self, name: str) -> Path:
        return self.run_dir / "switches" / name

    def journal(self, job: int = 7) -> list[dict[str, Any]]:
        return list(read_lines(self.run_dir / "journal" / f"{job}.batch.jsonl"))

    def events(self, job: int = 7) -> list[str]:
        return [record["event"] for record in self.journal(job)]

    def processes(self) -> list[int]:
        """Every process that came of a script of this run."""
        mark = str(self.root).encode()
        found = []
        for entry in Path("/proc").iterdir():
            if entry.name.isdigit() and int(entry.name) != os.getpid():
                with contextlib.suppress(OSError):
                    if mark in (entry / "environ").read_bytes() and b") Z" not in (entry / "stat").read_bytes():
                        found.append(int(entry.name))
        return found

    def clean_up(self) -> None:
        for pid in self.processes():
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        for script in self.started:
            script.process.wait()
