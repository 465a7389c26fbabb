"""Parses options in comments: `# resil: timeout=10m catch_up=none overlap=skip ok=0-3 rerun`. Pure."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import replace
from typing import NamedTuple

from resilience.cron.records import EntryOptions, Overlap
from resilience.errors import QuantityError, UsageError
from resilience.messages import suggest
from resilience.quantities import parse_duration_s
from resilience.settings.cron_settings import CronSettings

MARK = r"#+[ \t]*resil:"
"""Beginning of a comment with options."""

MOST_CAUGHT_UP = 1000
"""Maximum N of `all<=N`: more runs in a row would be a storm."""

KNOWN = ("timeout", "catch_up", "overlap", "jitter", "ok", "rerun", "sbatch", "name")

_NAME = r"[A-Za-z0-9_-][A-Za-z0-9_.-]{0,63}"
_NEVER = frozenset({"0", "none", "never"})


class OptionError(UsageError, ValueError):
    """Unknown option, or invalid value."""


class Options(NamedTuple):
    """Parsed options, and the optional name of a line (empty: none)."""

    options: EntryOptions
    name: str = ""


def default_options(settings: CronSettings, *, is_drop_in: bool) -> EntryOptions:
    """Return the options of an entry that sets none. Raise OptionError if the settings are invalid."""
    return EntryOptions(
        timeout_s=settings.timeout_s,
        catch_up=parse_catch_up(settings.catch_up),
        jitter_s=settings.jitter_s if is_drop_in else 0.0,
    )


def parse_options(text: str, default: EntryOptions) -> Options:
    """Parse the text after `# resil:` on top of `default`.

    For instance, `timeout=10m rerun`. Raise OptionError with what to write.
    """
    given: dict[str, str] = {}
    for word in text.split():
        key, equals, value = word.partition("=")
        key = key.lower().replace("-", "_")
        if key not in KNOWN:
            raise OptionError(f"unknown option {word!r}", hint=suggest(key, KNOWN, cutoff=0.6))
        if key in given:
            raise OptionError(f"duplicate option {key}", hint="keep only one")
        if not equals and key != "rerun":
            raise OptionError(f"option {key} has no value", hint=f"write for instance {_EXAMPLES[key]}")
        given[key] = value if equals else "yes"
    return _apply(given, default)


def _apply(given: Mapping[str, str], default: EntryOptions) -> Options:
    options = default
    if "timeout" in given:
        options = replace(options, timeout_s=_parse_seconds("timeout", given["timeout"]))
    if "jitter" in given:
        options = replace(options, jitter_s=_parse_seconds("jitter", given["jitter"]))
    if "catch_up" in given:
        options = replace(options, catch_up=parse_catch_up(given["catch_up"]))
    if "overlap" in given:
        if given["overlap"] not in set(Overlap):
            raise OptionError(
                f"overlap={given['overlap']} is not one of {', '.join(Overlap)}", hint="write overlap=skip"
            )
        options = replace(options, overlap=Overlap(given["overlap"]))
    if "ok" in given:
        options = replace(options, ok=parse_exit_codes(given["ok"]))
    if "rerun" in given:
        if given["rerun"] not in {"yes", "no", "true", "false"}:
            raise OptionError(f"rerun={given['rerun']} is neither yes nor no", hint="write rerun, or remove it")
        options = replace(options, rerun=given["rerun"] in {"yes", "true"})
    if "sbatch" in given:
        if given["sbatch"] != "cron":
            raise OptionError(f"sbatch={given['sbatch']} is unknown", hint="write sbatch=cron")
        options = replace(options, takes_cron_sbatch=True)
    name = given.get("name", "")
    if "name" in given and not re.fullmatch(_NAME, name):
        raise OptionError(f"{name!r} is not a valid name", hint="write letters, digits, `-`, `_` and `.`, at most 64")
    return Options(options, name)


def parse_catch_up(text: str) -> int:
    """Return how many missed slots are run late: `none` 0, `once` 1, `all<=N` N. Raise OptionError otherwise."""
    if text in {"none", "once"}:
        return 0 if text == "none" else 1
    match = re.fullmatch(r"all<=([0-9]{1,9})", text)
    if match is None:
        raise OptionError(f"catch_up={text} is unknown", hint="write none, once or all<=12")
    if not 1 <= int(match[1]) <= MOST_CAUGHT_UP:
        raise OptionError(f"catch_up={text} is not between all<=1 and all<={MOST_CAUGHT_UP}", hint="write all<=12")
    return int(match[1])


def parse_exit_codes(text: str) -> tuple[int, ...]:
    """Return (0, 1, 2, 3, 75) for `0-3,75`. Raise OptionError if these are not exit codes."""
    codes: set[int] = set()
    for part in text.split(","):
        match = re.fullmatch(r"([0-9]{1,3})(?:-([0-9]{1,3}))?", part)
        first, last = (int(match[1]), int(match[2] or match[1])) if match else (1, 0)
        if not first <= last <= 255:
            raise OptionError(f"ok={text} is not a list of exit codes", hint="write for instance ok=0-3 or ok=0,75")
        codes.update(range(first, last + 1))
    return tuple(sorted(codes))


def _parse_seconds(key: str, text: str) -> float:
    if text in _NEVER:
        return 0.0
    try:
        return parse_duration_s(text)
    except QuantityError as error:
        raise OptionError(f"{key}={text}: {error}", hint=f"write for instance {_EXAMPLES[key]}") from error


_EXAMPLES = {
    "timeout": "timeout=10m, or timeout=none",
    "catch_up": "catch_up=none, catch_up=once or catch_up=all<=12",
    "overlap": "overlap=skip, overlap=allow or overlap=replace",
    "jitter": "jitter=30s",
    "ok": "ok=0-3",
    "sbatch": "sbatch=cron",
    "name": "name=backup",
}
