"""Makes the ticks with a `resil cron run` that the user leaves running: in tmux, a container, a login node."""

from __future__ import annotations

import shlex
from collections.abc import Sequence

from resilience.base.processes import is_there
from resilience.cron.drivers import Availability, DriverState, Step, _tables, state_of
from resilience.cron.records import Installation
from resilience.cron.state_directory import CronDirectory
from resilience.job import Liveness
from resilience.runs.context import Context
from resilience.settings.cron_settings import CronSettings

PATIENCE_S = 120.0
"""A heartbeat from another machine may be overdue by this much, as clocks differ."""


class ForegroundDriver:
    """A process that the user runs."""

    summary = "`resil cron run`, which you leave running yourself"
    rank = 90

    def availability(self, context: Context) -> Availability:
        """Always available."""
        return Availability(True, "needs only a place to run: tmux, a container, a login node")

    def plan(self, installation: Installation, settings: CronSettings, context: Context) -> Sequence[Step]:
        """Return the command to run, unless it is running; nothing is written."""
        if state_of(self, installation, settings, context).liveness is Liveness.ALIVE:
            return ()
        return (Step("nothing is installed; keep this command running yourself", self._command(installation)),)

    def install(self, installation: Installation, settings: CronSettings, context: Context) -> Sequence[str]:
        """Nothing to do."""
        return ()

    def uninstall(self, installation: Installation, settings: CronSettings, context: Context) -> Sequence[str]:
        """Nothing to do: the user ends the process."""
        return ()

    def state(self, installation: Installation, settings: CronSettings, context: Context) -> DriverState:
        """Return the state from the heartbeat: on this machine check the process, on others the heartbeat's age."""
        start = f"start it, in tmux: {self._command(installation)}"
        beat = CronDirectory(context.state_dir, context.group).heartbeat()
        if beat is None:
            return DriverState(Liveness.GONE, "no tick yet", hint=start)
        who = f"process {beat.pid} on {beat.host}"
        if beat.host == context.system.host.name and beat.pid:
            if is_there(beat.pid):
                return DriverState(Liveness.ALIVE, f"{who} ticks", beat.expected)
            return DriverState(Liveness.GONE, f"{who} has ended", hint=start)
        if context.system.clock.now() <= beat.expected + PATIENCE_S:
            return DriverState(Liveness.ALIVE, f"{who} ticks", beat.expected)
        return DriverState(
            Liveness.UNKNOWN, f"{who} is late, and cannot be checked from this host", hint=f"check there, or {start}"
        )

    def _command(self, installation: Installation) -> str:
        return f"cd {shlex.quote(installation.project)} && {shlex.join(_tables.tick_words(installation, 'run'))}"


DRIVER = ForegroundDriver()
