"""The cron of one project: its cron directory, its settings and its state."""

from __future__ import annotations

import os
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from resilience.cron.records import Entry, Kind
from resilience.cron.state_directory import CronDirectory
from resilience.errors import ProbeError, ResilError

if TYPE_CHECKING:
    from resilience.cron.records import Ignored, Table
    from resilience.cron.table.directory import CronReader
    from resilience.cron.table.supervisor import Supervised
    from resilience.runs.project import Project
    from resilience.settings.cron_settings import CronSettings


T = TypeVar("T")

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

    @property
    def is_there(self) -> bool:
        """Return whether the project directory exists: it may be moved while its scheduler runs."""
        return self.project.loaded.project.is_dir()

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
        from resilience.cron.table.watched_run import Setup

        system, project = self.project.system, self.project.loaded.project
        secrets = tuple(secrets_of(system.environ, self.named_variables()))
        host = system.host.name
        return Supervised(
            Setup(self.state, self.settings, project, self.environment, self.refuse, system.clock, host, secrets)
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
        places = [str(self.directory), str(self.state.path)]

        def look() -> None:
            for place in places:
                with suppress(FileNotFoundError, NotADirectoryError, PermissionError):
                    os.listdir(place)  # noqa: PTH208 - a listing asks the server, where a stat may be remembered

        try:
            self._in_child("tick", look, LOOK_S)
        except ResilError as error:
            raise ProbeError(
                f"no entries run: {places[0]} or {places[1]} does not respond: {error.message}",
                hint="check the file systems with df; the next tick tries again",
                transient=True,
            ) from None

    def read_in_child(self, what: str, read: Callable[[], T], limit_s: float) -> T:
        """Return what `read` returns in a child with a deadline, because disks may hang. Raise ResilError if it fails.

        While one child with this name hangs on this node, the next one fails at once.
        """
        import pickle

        found: T = pickle.loads(self._in_child(what, lambda: pickle.dumps(read()), limit_s))
        return found

    def _in_child(self, what: str, look: Callable[[], Any], limit_s: float) -> Any:
        from resilience.system.stuck import ChildProbe, StuckMemory, probe_in_child

        system, probe = self.project.system, ChildProbe(f"{what} of {self.state.path}", look, limit_s)
        ((_, answer),) = probe_in_child({0: probe}, StuckMemory.of(system), system.clock)
        if answer.error is not None:
            raise answer.error
        return answer.value

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


def open_cron(project: Project) -> CronProject:
    """Return the cron of a project. Does not access the disk."""
    loaded = project.loaded
    settings = loaded.settings.cron_settings
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
