"""What every story of cron needs besides the project: its cron folder, its settings, and what is remembered of it."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from resilience.system.cron_folder import CronFolder

if TYPE_CHECKING:
    from resilience.actions.project import Project
    from resilience.model.cron import Table
    from resilience.model.cron_settings import CronSettings


@dataclass(frozen=True, slots=True)
class CronProject:
    """The cron of one project.

    Attributes:
        project: the project.
        settings: [cron].
        folder: the cron folder, absolute: `cron.hourly/` and its sisters, and `crontab`. It need not exist.
        state: what is remembered: `<state_dir>/.cron`. It need not exist.
    """

    project: Project
    settings: CronSettings
    folder: Path
    state: CronFolder

    def read_table(self) -> Table:
        """What the cron folder says now. Raise ResilError if it cannot be read."""
        from resilience.crontab.folder import read_table

        project = self.project
        group = project.loaded.settings.run.group
        return read_table(self.folder, self.settings, uid=project.world.host.uid, group=group)


def open_cron(project: Project) -> CronProject:
    """The cron of a project. Touches no disk."""
    loaded = project.loaded
    settings = loaded.settings.cron_settings
    folder = loaded.project / Path(settings.folder).expanduser()
    return CronProject(project, settings, folder, CronFolder(loaded.state_dir, loaded.settings.run.group))
