"""Entries that the settings define: the daily digest, which runs at [cron] digest_at. Pure."""

from __future__ import annotations

import re
import sys
from typing import TYPE_CHECKING

from resilience.cron.records import Entry, EntryOptions, Ignored, Kind, Table
from resilience.errors import SettingsError

if TYPE_CHECKING:
    from resilience.settings.cron_settings import CronSettings

DIGEST, PLACE = "resil/digest", "resil.toml: [cron] digest_at"
_TIME = re.compile(r"([01]?\d|2[0-3]):([0-5]\d)")


def parse_digest_at(text: str) -> tuple[int, int]:
    """Parse a time of day: `08:00` gives (8, 0). Raise SettingsError if it is invalid. Pure."""
    found = _TIME.fullmatch(text.strip())
    if found is None:
        raise SettingsError(f"[cron] digest_at = {text!r} is not a time of day", hint='digest_at = "08:00"')
    return int(found[1]), int(found[2])


def own_entries(settings: CronSettings) -> Table:
    """Return the entries that [cron] defines. Pure."""
    try:
        hour, minute = parse_digest_at(settings.digest_at)
    except SettingsError as error:
        return Table(ignored=(Ignored(PLACE, error.message, error.hint, is_fault=True),))
    argv = (sys.executable, "-P", "-m", "resilience", "cron", "digest")
    options = EntryOptions(timeout_s=600.0, rerun=True)
    schedule = f"{minute} {hour} * * *"
    return Table((Entry(name=DIGEST, place=PLACE, schedule=schedule, kind=Kind.RUN, argv=argv, options=options),))
