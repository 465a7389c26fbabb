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
from resilience.errors import ProbeError, SettingsError

if TYPE_CHECKING:
    from resilience.cron.records import Ignored, Table
    from resilience.cron.table.directory import CronReader
    from resilience.cron.table.supervisor import Supervised
    from resilience.runs.project import Project
    from resilience.settings.cron_settings import CronSettings


LOOK_S = 20.0
"""Time limit for the check of the disks before a tick. Busy file servers take seconds."""


@dataclass(frozen=True, slots=True)
class CronProject:
    """The cron of one project.

    Attributes:
        project: the project.
        settings: [cron].
        directory: absolute path of the cron directory, with `cron.hourly/` etc. and `crontab`; may not exist.
        state: the state in `<state_dir>/.cron`; may not exist.
    """

    project: Project
    settings: CronSettings
    directory: Path
    state: CronDirectory

    @property
    def salt(self) -> str:
        """Salt of the jitter: this user and this project."""
        return f"{self.project.system.host.uid}:{self.state.path.parent}"

    def environment(self, entry: Entry, slot: int) -> dict[str, str]:
        """Return the environment of a run."""
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
        """Return the variables that [channel.*] settings name: `password_variable = "SMTP_PASSWORD"`."""
        tables = self.project.loaded.settings.channels.values()
        found = (value for table in tables for key, value in table.values.items() if key.endswith("_variable"))
        return tuple(value for value in found if isinstance(value, str) and value)

    def supervised(self) -> Supervised:
        """Return a new manager of this scheduler's runs."""
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
            host=system.host.name,
        )

    def refuse(self, entry: Entry) -> Ignored | None:
        """Return why a drop-in may no longer run, just before its start; None if it may."""
        return self._reader().recheck(entry)

    def with_entry_environment(self) -> CronProject:
        """Return a copy whose scheduler programs see the environment of entries instead of the user's."""
        no_entry = Entry(name="", place="", schedule="", kind=Kind.SUBMIT, argv=())
        system = self.project.system
        own = {name: value for name, value in system.environ.items() if name.startswith(("SBATCH_", "SLURM_"))}
        environ = {**own, **self.environment(no_entry, 0)}
        return replace(self, project=replace(self.project, system=replace(system, environ=environ)))

    def check_disks(self) -> None:
        """Check in a child with a deadline that the disks respond. Raise ProbeError if they do not.

        For ticks started every minute, which would otherwise accumulate on a hung disk. While one check hangs on this
        node, the next one fails at once.
        """
        from resilience.system.stuck import ChildProbe, StuckMemory, probe_in_child

        places = [str(self.directory), str(self.state.path)]

        def look() -> None:
            for place in places:
                with suppress(FileNotFoundError, NotADirectoryError, PermissionError):
                    os.listdir(place)  # noqa: PTH208 - a listing asks the server, where a stat may be remembered

        system = self.project.system
        asked = ChildProbe(f"cron of {self.state.path}", look, LOOK_S)
        ((_, answer),) = probe_in_child({0: asked}, StuckMemory.of(system), system.clock)
        if answer.error is not None:
            raise ProbeError(
                f"no entries run: {places[0]} or {places[1]} does not respond: {answer.error.message}",
                hint="check the file systems with df; the next tick tries again",
                transient=True,
            )

    def read_table(self) -> Table:
        """Read the cron directory. Raise ResilError if it cannot be read."""
        found = self._reader().table()
        if not self.settings.digest_at:
            return found
        from resilience.cron.table.own_entries import own_entries

        own = own_entries(self.settings)
        return replace(found, entries=found.entries + own.entries, ignored=found.ignored + own.ignored)

    def _reader(self) -> CronReader:
        from resilience.cron.table.directory import CronReader

        loaded, uid = self.project.loaded, self.project.system.host.uid
        group = loaded.settings.run.group
        return CronReader(self.directory, self.settings, uid=uid, group=group, project=loaded.project)


def check_amounts(settings: CronSettings) -> None:
    """Raise SettingsError for an interval without a length."""
    for key, example in (("tick_s", "60s"), ("pulse_s", "15m")):
        if getattr(settings, key) <= 0:
            raise SettingsError(
                f"{key} = {getattr(settings, key):g} in [cron] must be above 0",
                hint=f'for instance {key} = "{example}"',
            )


def open_cron(project: Project) -> CronProject:
    """Return the cron of a project. Does not access the disk. Raise SettingsError for settings that no tick can use."""
    loaded = project.loaded
    settings = loaded.settings.cron_settings
    check_amounts(settings)
    directory = loaded.project / Path(settings.folder).expanduser()
    return CronProject(project, settings, directory, CronDirectory(loaded.state_dir, loaded.settings.run.group))


@cache
def _tool_directories(path: str) -> tuple[str, ...]:
    """Return the directories of sbatch and squeue on PATH."""
    import shutil

    found = (shutil.which(program, path=path) for program in ("sbatch", "squeue"))
    return tuple(dict.fromkeys(os.path.dirname(program) for program in found if program))  # noqa: PTH120


def reread(cron: CronProject) -> CronProject:
    """Return the cron with its settings as they are now, and its state where it was. Raise SettingsError for settings
    that no tick can use."""
    from resilience.settings.load import load

    project = cron.project
    fresh = open_cron(replace(project, loaded=load(project.system, named=project.loaded.path)))
    return replace(fresh, state=cron.state)
