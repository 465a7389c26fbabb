"""What lies beside the crontab and the directories of drop-ins, and what somebody may have meant by it. Pure."""

from __future__ import annotations

import re
import stat
from pathlib import PurePath

from resilience.cron.records import Ignored
from resilience.cron.table.drop_ins import SCHEDULES, SUBMITTED

_LINES = {"cron.d": "crontab", "crontabs": "crontab"}


def judge_unknown(name: str, place: str, mode: int | None) -> Ignored | None:
    """Return why something in the cron directory that is neither the crontab nor a drop-in directory is ignored; None:
    not reported.

    `mode` is the mode of the target, as in stat(2); None for a broken link.
    """
    if name.startswith("."):
        return None
    if mode is None:
        return Ignored(place, "it is a broken symbolic link")
    meant = _probable_name(name)
    if meant and (stat.S_ISDIR(mode) or meant == "crontab"):
        if meant == "crontab":
            return Ignored(place, "only the file `crontab` is read", "did you mean crontab?", True)
        directories = ", ".join(SCHEDULES)
        return Ignored(place, f"unknown directory; there are {directories}", f"did you mean {meant}?", True)
    if stat.S_ISDIR(mode):
        return Ignored(place, "it is not a drop-in directory")
    if stat.S_ISREG(mode) and (name.endswith(SUBMITTED) or mode & 0o100) and "*" not in name:
        hint = f"move it, for instance: mv {place} {PurePath(place).parent}/cron.hourly/"
        return Ignored(place, "it is not in a drop-in directory", hint, True)
    return Ignored(place, "it is neither a crontab nor a drop-in")


def _probable_name(name: str) -> str:
    """Return the name that was probably meant; empty: none."""
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
    # `cron.fortnightly`, `cron.houry`: probably meant to run.
    if lower.startswith(("cron.", "cron_")):
        return next(iter(get_close_matches(lower, SCHEDULES, n=1, cutoff=0.0)))
    close = get_close_matches(f"cron.{lower}", SCHEDULES, n=1, cutoff=0.9)
    return close[0] if close else ""
