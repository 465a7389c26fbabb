"""The cron of one project: its cron directory, its settings and its state."""

from __future__ import annotations

import os
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING

from resilience.cron.records import Entry, Kind
from resilience.cron.state_directory import CronDirectory
from resilience.errors import ProbeError

if TYPE_CHECKING:
    from resilience.cron.records import Ignored, Table
    from resilience.cron.table.running import Here
    from resilience.cron.table.supervisor import Supervised
    from resilience.runs.project import Project
    from resilience.schedulers import Scheduler
    from resilience.settings.cron_settings import CronSettings


LOOK_S = 20.0
"""How long the disks may take to answer before a tick. Busy file servers take seconds."""


@dataclass(frozen=True, slots=True)
class CronProject:
    """The cron of one project.

    Attributes:
        project: the project.
        settings: [cron].
        directory: the cron directory, absolute: `cron.hourly/` and its sisters, and `crontab`. It need not exist.
        state: what is remembered: `<state_dir>/.cron`. It need not exist.
    """

    project: Project
    settings: CronSettings
    directory: Path
    state: CronDirectory

    @property
    def salt(self) -> str:
        """Whose jitter it is: this user's, and this project's."""
        return f"{self.project.system.host.uid}:{self.state.path.parent}"

    def environment(self, entry: Entry, slot: int) -> dict[str, str]:
        """What a run of an entry sees."""
        import sys

        from resilience.cron.table.environment import environment_of

        system, loaded = self.project.system, self.project.loaded
        return environment_of(
            entry,
            slot,
            environ=system.environ,
            home=system.host.home,
            user=system.host.user,
            config=loaded.path or loaded.project / "resil.toml",
            python=sys.executable,
            resil_directory=str(Path(sys.executable).parent),
            tool_directories=_tool_directories(system.environ.get("PATH", os.defpath)),
            keep=self.named_variables(),
        )

    def named_variables(self) -> tuple[str, ...]:
        """The variables that [channel.*] settings name: `password_variable = "SMTP_PASSWORD"`."""
        tables = self.project.loaded.settings.channels.values()
        found = (value for table in tables for key, value in table.values.items() if key.endswith("_variable"))
        return tuple(value for value in found if isinstance(value, str) and value)

    def supervised(self) -> Supervised:
        """The runs of a scheduler that begins now."""
        from resilience.cron.table.environment import secrets_of
        from resilience.cron.table.supervisor import Supervised

        system = self.project.system
        return Supervised(
            self.state,
            self.settings,
            project=self.project.loaded.project,
            environment=self.environment,
            refuse=self.refuse,
            secrets=secrets_of(system.environ, self.named_variables()),
            clock=system.clock,
            at=self.here(),
        )

    def here(self) -> Here:
        """This machine, as the marks of what runs name it."""
        from resilience.cron.table.running import here

        return here()._replace(host=self.project.system.host.name)

    def refuse(self, entry: Entry) -> Ignored | None:
        """Why a drop-in may not run now, where it might have run when the table was read; None: it may."""
        from resilience.cron.table.directory import look_again

        loaded = self.project.loaded
        return look_again(
            entry,
            self.directory,
            self.settings,
            uid=self.project.system.host.uid,
            group=loaded.settings.run.group,
            project=loaded.project,
        )

    def scheduler(self, name: str = "") -> Scheduler:
        """The scheduler that the jobs of entries go to. Raise UsageError if there is no such scheduler."""
        return self.project.scheduler(name)

    def apart(self) -> CronProject:
        """The same, whose scheduler's programs see the environment of entries instead of the person's own."""
        nobody = Entry(name="", place="", schedule="", kind=Kind.SUBMIT, argv=())
        system = self.project.system
        own = {name: value for name, value in system.environ.items() if name.startswith(("SBATCH_", "SLURM_"))}
        environ = {**own, **self.environment(nobody, 0)}
        return replace(self, project=replace(self.project, system=replace(system, environ=environ)))

    def look_first(self) -> None:
        """Look whether the disks answer, in a child that can be left behind. Raise ProbeError if they do not.

        For what somebody starts every minute: the ticks of a night would otherwise hang there side by side. As long as
        one look hangs on this node, the next one is refused at once.
        """
        from resilience.system.stuck import Look, StuckMemory, look_apart

        places = [str(self.directory), str(self.state.path)]

        def look() -> None:
            for place in places:
                with suppress(FileNotFoundError, NotADirectoryError, PermissionError):
                    os.listdir(place)  # noqa: PTH208 - a listing asks the server, where a stat may be remembered

        system = self.project.system
        asked = Look(f"cron of {self.state.path}", look, LOOK_S)
        ((_, answer),) = look_apart({0: asked}, StuckMemory.of(system), system.clock)
        if answer.error is not None:
            raise ProbeError(
                f"nothing is run: {places[0]} or {places[1]} does not answer: {answer.error.message}",
                hint="df; the next tick looks again",
                transient=True,
            )

    def read_table(self) -> Table:
        """What the cron directory says now. Raise ResilError if it cannot be read."""
        from resilience.cron.table.directory import read_table

        project = self.project
        loaded = project.loaded
        return read_table(
            self.directory,
            self.settings,
            uid=project.system.host.uid,
            group=loaded.settings.run.group,
            project=loaded.project,
        )


def open_cron(project: Project) -> CronProject:
    """The cron of a project. Touches no disk."""
    loaded = project.loaded
    settings = loaded.settings.cron_settings
    directory = loaded.project / Path(settings.folder).expanduser()
    return CronProject(project, settings, directory, CronDirectory(loaded.state_dir, loaded.settings.run.group))


@cache
def _tool_directories(path: str) -> tuple[str, ...]:
    """The directories of sbatch and squeue, where they are on PATH."""
    import shutil

    found = (shutil.which(program, path=path) for program in ("sbatch", "squeue"))
    return tuple(dict.fromkeys(os.path.dirname(program) for program in found if program))  # noqa: PTH120
