"""`resil watch cron`: does the scheduler of this project live, and do its entries run well? Watches the watchman."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from resilience.cron.checks._cron.judging import judge
from resilience.cron.checks._cron.look import look
from resilience.cron.checks._cron.words import CronCheckSettings, CronReading
from resilience.cron.state_directory import CronDirectory
from resilience.errors import SettingsError
from resilience.finding import Finding
from resilience.runs.context import Context
from resilience.watch.reading import Memory, Target, Timed


class CronCheck:
    """See ports.Check."""

    summary = "does cron live: the scheduler's ticks, and what became of each entry"
    Settings = CronCheckSettings
    Reading = CronReading
    memory = Memory(count=1)
    argument = "entries"
    example = "resil watch cron 'cron.hourly/*'"
    on_nothing = "no scheduler was ever installed here: resil cron install"

    def targets(self, settings: CronCheckSettings, context: Context) -> Sequence[Target]:
        """What the scheduler of this state directory left."""
        check_settings(settings)
        return (Target(str(CronDirectory(context.state_dir).path)),)

    def probe(
        self, target: Target, settings: CronCheckSettings, context: Context, before: Mapping[str, Timed[CronReading]]
    ) -> Mapping[str, CronReading]:
        """Read the sign of life and the histories."""
        return look(CronDirectory(context.state_dir, context.group), settings, before, context.system.clock.now())

    def judge(
        self, subject: str, readings: Sequence[Timed[CronReading]], settings: CronCheckSettings, now: float
    ) -> Sequence[Finding]:
        """Say what the newest reading amounts to."""
        return judge(subject, readings[-1].reading, settings, now)


CHECK = CronCheck()


def check_settings(settings: CronCheckSettings) -> None:
    """Raise SettingsError for settings that cannot be meant."""
    for key in ("late_s", "crit_failures", "skips"):
        if getattr(settings, key) < 0:
            raise SettingsError(f"{key} = {getattr(settings, key):g} is less than nothing", hint=f"{key} = 0")
