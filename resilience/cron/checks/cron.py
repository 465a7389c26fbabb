"""`resil watch cron`: checks the health of this project's scheduler, and the results of its entries."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from resilience.cron.checks._cron.judging import judge
from resilience.cron.checks._cron.probe import read_cron
from resilience.cron.checks._cron.reading import CronCheckSettings, CronReading
from resilience.cron.state_directory import CronDirectory
from resilience.errors import SettingsError
from resilience.finding import Finding
from resilience.runs.context import Context
from resilience.watch.reading import Memory, Target, Timed


class CronCheck:
    """See ports.Check."""

    summary = "cron: health of the scheduler, and results of its entries"
    Settings = CronCheckSettings
    Reading = CronReading
    memory = Memory(count=1)
    argument = "entries"
    example = "resil watch cron 'cron.hourly/*'"
    on_nothing = "install a scheduler: resil cron install"

    def targets(self, settings: CronCheckSettings, context: Context) -> Sequence[Target]:
        """Return the state directory of the scheduler."""
        check_settings(settings)
        return (Target(str(CronDirectory(context.state_dir).path)),)

    def probe(
        self, target: Target, settings: CronCheckSettings, context: Context, before: Mapping[str, Timed[CronReading]]
    ) -> Mapping[str, CronReading]:
        """Read the heartbeat and the histories."""
        return read_cron(CronDirectory(context.state_dir, context.group), settings, before, context.system.clock.now())

    def judge(
        self, subject: str, readings: Sequence[Timed[CronReading]], settings: CronCheckSettings, now: float
    ) -> Sequence[Finding]:
        """Return the findings of the newest reading."""
        return judge(subject, readings[-1].reading, settings, now)


CHECK = CronCheck()


def check_settings(settings: CronCheckSettings) -> None:
    """Raise SettingsError for invalid settings."""
    for key in ("late_s", "crit_failures", "skips"):
        if getattr(settings, key) < 0:
            raise SettingsError(f"{key} = {getattr(settings, key):g} is negative", hint=f"{key} = 0")
