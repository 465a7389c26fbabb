"""What lies beside the crontab and the directories of drop-ins, and what somebody may have meant by it. Pure."""

from __future__ import annotations

import re
import stat
from pathlib import PurePath

from resilience.cron.records import Ignored
from resilience.cron.table.drop_ins import SCHEDULES, SUBMITTED

_LINES = {"cron.d": "crontab", "crontabs": "crontab"}


def judge_stranger(name: str, place: str, mode: int | None) -> Ignored | None:
    """Say what something in the cron directory is that is neither the crontab nor a directory of drop-ins; None:
    nothing.

    `mode` is that of what the name leads to, as in stat(2); None: it leads to nothing.
    """
    if name.startswith("."):
        return None
    if mode is None:
        return Ignored(place, "it is nothing that runs, and leads to nothing")
    meant = _meant(name)
    if meant and (stat.S_ISDIR(mode) or meant == "crontab"):
        if meant == "crontab":
            return Ignored(place, "lines are read from the file `crontab` only", "did you mean crontab?", True)
        directories = ", ".join(SCHEDULES)
        return Ignored(place, f"there is no such directory; there are {directories}", f"did you mean {meant}?", True)
    if stat.S_ISDIR(mode):
        return Ignored(place, "it is a directory that nothing runs from")
    if stat.S_ISREG(mode) and (name.endswith(SUBMITTED) or mode & 0o100) and "*" not in name:
        hint = f"move it, for instance: mv {place} {PurePath(place).parent}/cron.hourly/"
        return Ignored(place, "it lies beside the directories that things run from", hint, True)
    return Ignored(place, "it is nothing that runs")


def _meant(name: str) -> str:
    """The name that somebody may have meant; empty: none."""
    from difflib import get_close_matches

    if name in _LINES:
        return _LINES[name]
    lower = name.lower().replace("-", "_")
    if lower == "crontab" or (re.fullmatch(r"crontab\.(txt|conf|cron)|cron_?tab|cron\.tab", lower)):
        return "crontab"
    candidates = dict.fromkeys([lower, f"cron.{lower}", lower.replace("_", ".", 1)])
    for candidate in candidates:
        if candidate in SCHEDULES:
            return candidate
    # `cron.fortnightly`, `cron.houry`: whatever begins so was meant to run.
    if lower.startswith(("cron.", "cron_")):
        return next(iter(get_close_matches(lower, SCHEDULES, n=1, cutoff=0.0)))
    close = get_close_matches(f"cron.{lower}", SCHEDULES, n=1, cutoff=0.9)
    return close[0] if close else ""
