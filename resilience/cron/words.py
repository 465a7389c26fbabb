"""Schedules, options and times as text for the user. Pure."""

from __future__ import annotations

import re
import time
from collections.abc import Iterable

from resilience.cron.records import EntryOptions
from resilience.quantities import format_duration

_ALIAS_WORDS = {
    "@hourly": "every hour", "@daily": "every day at 00:00", "@midnight": "every day at 00:00",
    "@weekly": "on Sunday at 00:00", "@monthly": "on the 1st at 00:00", "@yearly": "on 1 January at 00:00",
    "@annually": "on 1 January at 00:00", "@reboot": "once after each boot",
}  # fmt: skip


def unusual_options(options: EntryOptions, usual: EntryOptions) -> dict[str, str]:
    """Return the options that differ from the defaults, as they are written. Pure."""
    written = {
        "timeout": span_text(options.timeout_s),
        "catch_up": {0: "none", 1: "once"}.get(options.catch_up, f"all<={options.catch_up}"),
        "overlap": options.overlap.value,
        "jitter": span_text(options.jitter_s),
        "ok": _codes(options.ok),
        "rerun": "",
        "sbatch": "cron",
    }
    fields = {"timeout": "timeout_s", "jitter": "jitter_s", "sbatch": "takes_cron_sbatch"}
    names = {name: fields.get(name, name) for name in written}
    return {name: written[name] for name, field in names.items() if getattr(options, field) != getattr(usual, field)}


def span_text(seconds: float) -> str:
    """Return a duration as written in an option: `1h30m`, `0s`."""
    return format_duration(seconds).replace("min", "m").replace(" ", "")


def _codes(codes: Iterable[int]) -> str:
    """Return `0-3` for 0, 1, 2, 3."""
    spans: list[list[int]] = []
    for code in sorted(set(codes)):
        if spans and code == spans[-1][1] + 1:
            spans[-1][1] = code
        else:
            spans.append([code, code])
    return ",".join(str(a) if a == b else f"{a}-{b}" for a, b in spans)


def schedule_in_words(schedule: str, zone: str = "") -> str:
    """Return a schedule in words, or as written if no words are known. Pure.

    For instance, `30 2 * * 1` gives `at 02:30 on Monday`.
    """
    text = " ".join(schedule.split())
    words = _ALIAS_WORDS.get(text) or _explain(text)
    return f"{words} ({zone})" if zone else words


def _explain(text: str) -> str:
    step = re.fullmatch(r"\*/([1-9][0-9]*) \* \* \* \*", text)
    if step and 60 % int(step[1]) == 0:
        return f"every {int(step[1])} minutes"
    if text.startswith("@"):
        return text.removeprefix("@") if text.startswith("@every ") else text
    from datetime import UTC, datetime

    from cronsim import CronSim, CronSimError

    try:
        said = CronSim(text, datetime(2026, 1, 1, tzinfo=UTC)).explain()
    except (CronSimError, ValueError, IndexError):
        return text
    return said[:1].lower() + said[1:]


def slot_text(slot: float, now: float | None = None) -> str:
    """Return a time for display: `18:00` today, `24 Dec 18:00` otherwise; with seconds if there are any."""
    moment, today = time.localtime(slot), time.localtime(slot if now is None else now)
    clock = "%H:%M:%S" if moment.tm_sec else "%H:%M"
    if moment.tm_year != today.tm_year:
        clock = f"%Y-%m-%d {clock}"
    elif now is None or moment[:3] != today[:3]:
        clock = f"%d %b {clock}"
    return time.strftime(clock, moment)
