"""The command line as a user types it: a project directory of one's own, a spool of one's own, real processes."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from tests.lab.waiting import until

REPOSITORY = Path(__file__).parents[2]
PATIENCE_S = 180.0
"""So long every wait lasts at most. Five seconds' work takes a minute where fifteen other programs run on two cores."""


@dataclass
class Shell:
    """Types commands in one project directory."""

    directory: Path
    environment: dict[str, str] = field(default_factory=dict)

    def resil(self, *words: str, cwd: Path | None = None, **variables: str) -> subprocess.CompletedProcess[str]:
        """Run `resil` to its end and return what it said."""
        return subprocess.run(
            [sys.executable, "-m", "resilience", *words],
            cwd=cwd or self.directory,
            env={**self.environment, **variables},
            capture_output=True,
            text=True,
            timeout=PATIENCE_S,
        )

    def settings(self, text: str) -> None:
        """Write resil.toml."""
        (self.directory / "resil.toml").write_text(text)

    @property
    def state_dir(self) -> Path:
        """Where the runs are kept."""
        return self.directory / ".resil"

    def until(self, what: Callable[[], bool]) -> None:
        """Wait for a condition; fail when it does not come."""
        until(what, "what was to happen", PATIENCE_S, every_s=0.05)


@pytest.fixture
def shell(tmp_path: Path) -> Iterator[Shell]:
    """A project directory and the embedded scheduler; whatever is still queued at the end is cancelled."""
    directory = tmp_path / "project"
    directory.mkdir()
    environment = {key: value for key, value in os.environ.items() if not key.startswith(("RESIL_", "SLURM", "SBATCH"))}
    environment |= {
        "HOME": str(tmp_path),
        "XDG_CACHE_HOME": str(tmp_path / "cache"),
        "XDG_CONFIG_HOME": str(tmp_path / "config"),
        "XDG_STATE_HOME": str(tmp_path / "state"),
        "RESIL_LOCAL_SPOOL": str(tmp_path / "spool"),
        "RESIL_LOCAL_IDLE_S": "1",
        "RESIL_LOCAL_KILL_WAIT_S": "1",
        "RESIL_SCHEDULER__NAME": "local",
        "PYTHONPATH": str(REPOSITORY),
    }
    made = Shell(directory, environment)
    yield made
    for run in made.state_dir.glob("*"):
        made.resil("cancel", run.name)
