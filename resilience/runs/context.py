"""The context of a check or a cron driver besides its own settings: machine, project, runs, scheduler."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

if TYPE_CHECKING:  # `resil watch fs` does not need them
    from resilience.runs.run_directory import RunDirectory
    from resilience.schedulers import Scheduler
    from resilience.settings.cron_settings import CronSettings
    from resilience.system.ports import System


class Context(NamedTuple):
    """The context of a check or a driver.

    Attributes:
        system: clock, runner, environment, host, current directory.
        project: the project directory.
        state_dir: where the run directories are kept; it need not exist.
        run: the project's own run, by name; it need not exist.
        group: Unix group that may operate the runs, or empty.
        scheduler: returns a client, made on first use: of the scheduler for new jobs, or of the one named;
            `cluster=` selects one of several SLURM clusters. Raises UsageError for an unknown scheduler.
        scheduler_deadline_s: how long one call to a scheduler may take: [scheduler] deadline_s.
        has_settings: whether a resil.toml was found.
        state_deadline_s: how long the state directory may take to respond.
        cron: [cron]; None: all defaults.
        checkpoints: [checkpoints] path, absolute; `{run}` in it stands for a run's name. Empty: none.
        save_every: [guard] every; empty: not set.
        evidence: the directory of what is known about nodes: [nodes] evidence.
        config: the settings file; empty: none.
        shared: results that the checks of one tick share, and in a child its probes; None outside of a tick.
    """

    system: System
    project: Path
    state_dir: Path
    run: str
    group: str
    scheduler: Callable[..., Scheduler]
    scheduler_deadline_s: float = 60.0
    has_settings: bool = False
    state_deadline_s: float = 5.0
    cron: CronSettings | None = None
    checkpoints: str = ""
    save_every: str = ""
    evidence: str = ""
    config: str = ""
    shared: dict[Any, Any] | None = None

    def runs(self) -> tuple[RunDirectory, ...]:
        """Return every run of the state directory. Raise StateDirectoryError if it cannot be read."""
        from resilience.runs.run_directory import find_runs

        return tuple(find_runs(self.state_dir, self.group))
