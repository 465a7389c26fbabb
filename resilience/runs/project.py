"""A project: system, settings, run directories and scheduler."""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING

from resilience.errors import UsageError

if TYPE_CHECKING:  # `resil watch fs` does not need them
    from resilience.errors import ResilError
    from resilience.plugins import Family
    from resilience.runs.run_directory import RunDirectory
    from resilience.schedulers import Scheduler
    from resilience.settings.load import Loaded
    from resilience.system.ports import System


def run_name_from(text: str) -> str:
    """Return a valid run name made from any text, for instance a directory's name. Pure."""
    return "".join(c if c.isascii() and (c.isalnum() or c in "._-") else "-" for c in text).lstrip("._-")[:100] or "run"


@cache
def schedulers() -> Family:
    """Return the installed schedulers."""
    from resilience.plugins import Family

    return Family("schedulers", "SCHEDULER")


@dataclass(frozen=True, slots=True)
class Project:
    """One project directory with its settings.

    Raises SettingsError if the settings name a scheduler that is not installed.

    Attributes:
        unread: why the user's own settings were ignored; None when they were read, or there are none.
    """

    system: System
    loaded: Loaded
    _clients: dict[str, Scheduler] = field(default_factory=dict, compare=False, repr=False)
    unread: ResilError | None = None

    def __post_init__(self) -> None:
        if self.loaded.settings.run.allow_inject:
            from dataclasses import replace

            from resilience.runs.injected import shifted

            clock = shifted(self.system.clock, self.loaded.state_dir)
            object.__setattr__(self, "system", replace(self.system, clock=clock))
        name = self.loaded.settings.scheduler.name
        if name not in ("auto", "local", "slurm", *self._clients) and name not in schedulers().names():
            from resilience.errors import SettingsError
            from resilience.messages import suggest

            origin = self.loaded.origins.get("scheduler.name", "[scheduler]")
            raise SettingsError(
                f"there is no scheduler {name!r} ({origin})", hint=suggest(name, ("auto", *schedulers().names()))
            )

    def scheduler_name(self) -> str:
        """Return the scheduler for new jobs: the configured one, else SLURM if sbatch is installed, else the embedded
        one."""
        requested = self.loaded.settings.scheduler.name
        if requested != "auto":
            return requested
        import shutil

        found = shutil.which("sbatch", path=self.system.environ.get("PATH"))
        return "slurm" if found else "local"

    def scheduler(self, name: str = "", *, cluster: str = "") -> Scheduler:
        """Return the client of a scheduler, made once. Raise UsageError for an unknown scheduler.

        `cluster` selects one of several SLURM clusters; empty is the default cluster of the user's own commands.
        """
        name = name or self.scheduler_name()
        key = f"{name}@{cluster}" if cluster else name
        if key not in self._clients:
            environ = self.system.environ
            if self.loaded.settings.run.allow_inject:
                from resilience.runs.injected import with_commands

                environ = with_commands(environ, self.loaded.state_dir)
            self._clients[key] = schedulers().load(name)(
                clock=self.system.clock,
                runner=self.system.runner,
                environ={**environ, "SLURM_CLUSTERS": cluster} if cluster else environ,
                deadline_s=self.loaded.settings.scheduler.deadline_s,
            )
        return self._clients[key]

    def default_run(self, script: Path | None = None) -> str:
        """Return the default name of a run: from the settings, the script, or the project directory.

        Raise UsageError if the configured name is invalid.
        """
        if self.loaded.settings.run.name:
            from resilience.submission import check_run_name

            return check_run_name(self.loaded.settings.run.name)
        if script is not None and self.loaded.path is None:
            return run_name_from(script.stem)
        return run_name_from(self.loaded.project.name)

    def directory(self, run: str) -> RunDirectory:
        """Return the directory of a run, by name or by path. It need not exist."""
        from resilience.runs.run_directory import RunDirectory

        group = self.loaded.settings.run.group
        if "/" in run:
            path = (self.system.cwd / run).resolve()
            return RunDirectory(path, group)
        return RunDirectory(self.loaded.state_dir / run, group)

    def existing(self, run: str = "") -> RunDirectory:
        """Return the directory of a submitted run.

        Without a name: the project's own run, else the only one. Raise UsageError if there is none, or several.
        """
        if run:
            directory = self.directory(run)
            if directory.exists():
                return directory
            raise self._no_such_run(run)
        own = self.directory(self.default_run())
        if own.exists():
            return own
        runs = self.runs()
        if len(runs) == 1:
            return runs[0]
        if not runs:
            raise UsageError(
                f"no run has been submitted here yet (state directory {self.loaded.state_dir})",
                hint="start one: resil submit",
            )
        raise UsageError("there are several runs", hint=f"name one of: {', '.join(d.run for d in runs)}")

    def runs(self) -> tuple[RunDirectory, ...]:
        """Return every run of the state directory."""
        from resilience.runs.run_directory import find_runs

        return tuple(find_runs(self.loaded.state_dir, self.loaded.settings.run.group))

    def _no_such_run(self, run: str) -> UsageError:
        from resilience.messages import cut, nearest

        run = cut(run, 100)
        near = nearest(run, [directory.run for directory in self.runs()], cutoff=0.6)
        hint = f"did you mean {near}?" if near else "see them all: resil status"
        return UsageError(f"there is no run {run!r} in {self.loaded.state_dir}", hint=hint)
