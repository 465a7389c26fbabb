"""A run of a project on the test cluster: its files, the commands typed about it, and the records it leaves."""

from __future__ import annotations

import subprocess
import tomllib
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from resilience.system.files import read_lines
from tests.lab.slurm.cluster import Cluster
from tests.lab.slurm.processes import until


@dataclass
class ClusterRun:
    """One run in a project directory of its own, which belongs to the first user of the cluster.

    Attributes:
        job: the id that `submit` has returned.
    """

    cluster: Cluster
    name: str
    job: str = ""

    @property
    def user(self) -> str:
        return self.cluster.users[0]

    @property
    def project(self) -> Path:
        return self.cluster.shared / self.name

    @property
    def directory(self) -> Path:
        return self.project / ".resil" / self.name

    def write(self, name: str, text: str) -> None:
        """Write a file of the project as its user."""
        path = self.project / name
        self.cluster.run(["mkdir", "-p", str(path.parent)], self.user, check=True)
        self.cluster.run(["tee", str(path)], self.user, input=text, check=True)

    def resil(self, *words: str, user: str = "") -> subprocess.CompletedProcess[str]:
        """Type a command: in the project, or as a colleague elsewhere."""
        cwd = self.cluster.shared if user else self.project
        return self.cluster.run(["resil", *words], user=user or self.user, cwd=cwd, timeout=120)

    def ask(self, *words: str) -> str:
        """Type a command that succeeds, and return its output."""
        done = self.resil(*words)
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout

    def submit(self, *words: str) -> None:
        self.job = self.ask("submit", "--parsable", *words).strip()

    def lines(self, name: str, rank: int = 0) -> list[str]:
        """The whole lines that a rank has written to a file of the run directory."""
        path = self.directory / f"{name}.{rank}"
        return path.read_text().split("\n")[:-1] if path.exists() else []

    def events(self, writer: str = "batch", attempt: int = 1) -> list[dict[str, Any]]:
        """The journal of the batch shell or of a rank about one attempt."""
        paths = sorted((self.directory / "journal").glob(f"*.{writer}.jsonl"))
        return [record for path in paths for record in read_lines(path) if record.get("attempt") == attempt]

    def end(self, attempt: int = 1) -> dict[str, Any]:
        """The record of an attempt's end; empty until there is one."""
        path = self.directory / "attempts" / f"{attempt:04d}.end"
        return tomllib.loads(path.read_text()) if path.exists() else {}

    @property
    def log(self) -> str:
        paths = [*sorted((self.directory / "logs").glob("*")), *sorted(self.project.glob("*.out"))]
        return "".join(f"--- {path.name}\n{path.read_text(errors='replace')}" for path in paths)

    def until(self, true: Callable[[], object], what: str) -> None:
        """Wait until something is true; show the log if it never is."""
        try:
            until(lambda: bool(true()), f"{self.name}: {what}", every_s=0.1)
        except TimeoutError as error:
            raise AssertionError(f"{error}\n{self.end()}\n{self.log}") from None

    def until_end(self, attempt: int = 1) -> dict[str, Any]:
        """Wait for the end of an attempt, and return its record."""
        self.until(lambda: self.end(attempt), f"the end of attempt {attempt}")
        return self.end(attempt)
