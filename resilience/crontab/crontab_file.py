"""Read a crontab: five fields and a command, `NAME=value`, `CRON_TZ=`, `MAILTO=`, options in comments. Pure."""

from __future__ import annotations

from resilience.model.cron import Table
from resilience.model.cron_settings import CronSettings


def parse_crontab(text: str | bytes, place: str, settings: CronSettings) -> Table:
    """Given a crontab, return its entries and what it has that does not run; `place` names it: `cron/crontab`."""
    return Table()
