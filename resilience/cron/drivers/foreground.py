"""Has nobody make the ticks but `resil cron run`, which somebody leaves running: in tmux, a container, a login node."""

from __future__ import annotations

import shlex
from collections.abc import Sequence

from resilience.base.processes import is_there
from resilience.cron.drivers import Availability, DriverState, Step
from resilience.cron.drivers._ticks.place import heartbeat
from resilience.cron.records import Installation
from resilience.errors import ResilError
from resilience.job import Liveness
from resilience.runs.context import Context
from resilience.settings.cron_settings import CronSettings

PATIENCE_S = 120.0
"""A heartbeat from another machine may be this late before its silence means something: the clocks differ, too."""


class ForegroundDriver:
    """A process of the person's own."""

    summary = "`resil cron run`, which you leave running yourself"
    rank = 90

    def availability(self, context: Context) -> Availability:
        """It always can be."""
        return Availability(True, "it needs nothing but a place to run: tmux, a container, a login node")

    def plan(self, installation: Installation, settings: CronSettings, context: Context) -> Sequence[Step]:
        """Nothing is written anywhere; what to run is said, unless it runs."""
        if self.state(installation, settings, context).liveness is Liveness.ALIVE:
            return ()
        return (Step("nothing is installed: leave this running yourself", self._command(installation)),)

    def install(self, installation: Installation, settings: CronSettings, context: Context) -> Sequence[str]:
        """Nothing to do."""
        return ()

    def uninstall(self, installation: Installation, settings: CronSettings, context: Context) -> Sequence[str]:
        """Nothing to do: who was left running ends when the person ends it."""
        return ()

    def state(self, installation: Installation, settings: CronSettings, context: Context) -> DriverState:
        """As the heartbeat says: on this machine the process is looked at, on others its last sign of life."""
        start = f"start it, in tmux: {self._command(installation)}"
        try:
            beat = heartbeat(context)
        except ResilError as error:
            return DriverState(Liveness.UNKNOWN, error.message, hint=error.hint)
        if beat is None:
            return DriverState(Liveness.GONE, "nothing ticks yet", hint=start)
        who = f"process {beat.pid} on {beat.host}"
        if beat.host == context.system.host.name and beat.pid:
            if is_there(beat.pid):
                return DriverState(Liveness.ALIVE, f"{who} ticks", beat.expected)
            return DriverState(Liveness.GONE, f"{who}, which ticked, has ended", hint=start)
        if context.system.clock.now() <= beat.expected + PATIENCE_S:
            return DriverState(Liveness.ALIVE, f"{who} ticks", beat.expected)
        return DriverState(
            Liveness.UNKNOWN, f"{who} is late, and cannot be looked at from here", hint=f"look there, or {start}"
        )

    def _command(self, installation: Installation) -> str:
        python = f"{shlex.quote(installation.python)} -P"  # else the project's queue.py were Python's own
        return f"cd {shlex.quote(installation.project)} && {python} -m resilience cron run"


DRIVER = ForegroundDriver()
