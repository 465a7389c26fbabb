"""A project with a cron directory and real ticks, for tests of what a tick tells."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from resilience.cron.project import CronProject, open_cron
from resilience.runs.project import Project
from resilience.settings.load import load
from resilience.system.ports import System
from tests.lab import waiting

PATIENCE_S = 90.0


class Stage:
    """A project whose alerts go to a file."""

    def __init__(
        self, directory: Path, cron: str = "", channel: str = "", alert: str = 'channels = ["console"]\ngroup_s = 0'
    ) -> None:
        self.directory = directory
        self.told_file = directory / "told"
        (directory / "resil.toml").write_text(
            f'[run]\nstate_dir = "{directory}/state"\n[alert]\n{alert}\n'
            f'[channel.console]\npath = "{self.told_file}"\n{channel}\n[cron]\njitter_s = 0\n{cron}\n'
        )
        (directory / "cron" / "cron.hourly").mkdir(parents=True)
        system = System(cwd=directory)
        self.project = Project(system, load(system))
        self.cron: CronProject = open_cron(self.project)

    def crontab(self, *lines: str) -> None:
        """Write the crontab."""
        path = self.directory / "cron" / "crontab"
        path.write_text("\n".join(lines) + "\n")
        path.chmod(0o644)

    def told(self) -> list[str]:
        """The alerts, a line each."""
        return self.told_file.read_text().splitlines() if self.told_file.exists() else []


def until(condition: Callable[[], object], what: str = "it") -> None:
    """Wait for something, bounded."""
    waiting.until(condition, what, PATIENCE_S, every_s=0.05)
