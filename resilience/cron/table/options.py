"""Parses options in comments: `# resil: timeout=10m catch_up=none overlap=skip ok=0-3 rerun`. Pure."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import lru_cache
from typing import Any, NamedTuple

from resilience.cron.records import Entry, EntryOptions, Overlap
from resilience.cron.table.expression import Schedule, parse_schedule
from resilience.errors import QuantityError, UsageError
from resilience.messages import suggest
from resilience.quantities import parse_duration_s
from resilience.settings.cron_settings import CronSettings

MARK = r"#+[ \t]*resil:"
"""Beginning of a comment with options."""

MOST_CAUGHT_UP = 1000
"""Maximum N of `all<=N`: more runs in a row would be a storm."""

_USUAL_S = CronSettings().timeout_s


class OptionError(UsageError, ValueError):
    """Unknown option, or invalid value."""


class Options(NamedTuple):
    """Parsed options, the optional name of a line (empty: none), and the options that were written."""

    options: EntryOptions
    name: str = ""
    written: frozenset[str] = frozenset()


def default_options(settings: CronSettings, *, is_drop_in: bool) -> EntryOptions:
    """Return the options of an entry that sets none. Raise OptionError if the settings are invalid."""
    return EntryOptions(
        timeout_s=settings.timeout_s,
        catch_up=parse_catch_up(settings.catch_up),
        jitter_s=settings.jitter_s if is_drop_in else 0.0,
    )


def entry_options(text: str, settings: CronSettings, schedule: Schedule, *, is_drop_in: bool) -> Options:
    """Parse the options of an entry with this schedule.

    Neither `timeout=` nor `[cron] timeout_s` set: the time limit is an hour, or the entry's period where that is
    shorter, so that a run that hangs costs one slot. (`overlap=allow` needs no such limit.) Raise OptionError.
    """
    said = parse_options(text, default_options(settings, is_drop_in=is_drop_in))
    limit_s = said.options.timeout_s
    is_set = "timeout" in said.written or settings.timeout_s != _USUAL_S
    if is_set or said.options.overlap is Overlap.ALLOW or schedule.shortest_s >= limit_s:
        return said
    return Options(replace(said.options, timeout_s=min(limit_s, schedule.shortest_s)), said.name, said.written)


def usual_options(entry: Entry, settings: CronSettings) -> EntryOptions:
    """Return the options that an entry has if it sets none, except for `overlap`."""
    schedule = parse_schedule(entry.schedule, entry.zone)
    said = entry_options(f"overlap={entry.options.overlap}", settings, schedule, is_drop_in=bool(entry.path))
    return replace(said.options, overlap=EntryOptions().overlap)


def parse_options(text: str, default: EntryOptions) -> Options:
    """Parse the text after `# resil:` on top of `default`.

    For instance, `timeout=10m rerun`. Raise OptionError with what to write.
    """
    given: dict[str, Any] = {}
    for word in text.split():
        key, equals, value = word.partition("=")
        key = key.lower().replace("-", "_")
        if key not in _OPTIONS:
            raise OptionError(f"unknown option {word!r}", hint=suggest(key, _OPTIONS, cutoff=0.6))
        if key in given:
            raise OptionError(f"duplicate option {key}", hint="keep only one")
        option = _OPTIONS[key]
        if not equals and key != "rerun":
            raise OptionError(f"option {key} has no value", hint=f"write for instance {option.example}")
        try:
            given[key] = option.parse(value if equals else "yes")
        except QuantityError as error:
            raise OptionError(f"{key}={value}: {error}", hint=f"write for instance {option.example}") from error
    values = {_OPTIONS[key].field: value for key, value in given.items() if key != "name"}
    return Options(replace(default, **values), given.get("name", ""), frozenset(given))


@lru_cache
def parse_catch_up(text: str) -> int:
    """Return how many missed slots are run late: `none` 0, `once` 1, `all<=N` N. Raise OptionError otherwise."""
    match = re.fullmatch(r"(none)|(once)|all<=([0-9]{1,9})", text)
    if match is None:
        raise OptionError(f"catch_up={text} is unknown", hint="write none, once or all<=12")
    if match[3] and not 1 <= int(match[3]) <= MOST_CAUGHT_UP:
        raise OptionError(f"catch_up={text} is not between all<=1 and all<={MOST_CAUGHT_UP}", hint="write all<=12")
    return int(match[3] or bool(match[2]))


def _parse_seconds(text: str) -> float:
    return 0.0 if text in {"0", "none", "never"} else parse_duration_s(text)


def _one_of(key: str, values: Mapping[str, Any]) -> Callable[[str], Any]:
    def parse(text: str) -> Any:
        if text not in values:
            said = f"{key}={text} is not one of {', '.join(values)}"
            raise OptionError(said, hint=f"write {key}={next(iter(values))}")
        return values[text]

    return parse


def _parse_exit_codes(text: str) -> tuple[int, ...]:
    """Return (0, 1, 2, 3, 75) for `0-3,75`."""
    codes: set[int] = set()
    for part in text.split(","):
        match = re.fullmatch(r"([0-9]{1,3})(?:-([0-9]{1,3}))?", part)
        first, last = (int(match[1]), int(match[2] or match[1])) if match else (1, 0)
        if not first <= last <= 255:
            raise OptionError(f"ok={text} is not a list of exit codes", hint="write for instance ok=0-3 or ok=0,75")
        codes.update(range(first, last + 1))
    return tuple(sorted(codes))


def _parse_name(text: str) -> str:
    if not re.fullmatch(r"[A-Za-z0-9_-][A-Za-z0-9_.-]{0,63}", text):
        raise OptionError(f"{text!r} is not a valid name", hint="write letters, digits, `-`, `_` and `.`, at most 64")
    return text


class _Option(NamedTuple):
    field: str
    parse: Callable[[str], Any]
    example: str


_OPTIONS = {
    "timeout": _Option("timeout_s", _parse_seconds, "timeout=10m, or timeout=none"),
    "catch_up": _Option("catch_up", parse_catch_up, "catch_up=none, catch_up=once or catch_up=all<=12"),
    "overlap": _Option(
        "overlap",
        _one_of("overlap", {one.value: one for one in Overlap}),
        "overlap=skip, overlap=allow or overlap=replace",
    ),
    "jitter": _Option("jitter_s", _parse_seconds, "jitter=30s"),
    "ok": _Option("ok", _parse_exit_codes, "ok=0-3"),
    "rerun": _Option("rerun", _one_of("rerun", {"yes": True, "true": True, "no": False, "false": False}), "rerun"),
    "sbatch": _Option("takes_cron_sbatch", _one_of("sbatch", {"cron": True}), "sbatch=cron"),
    "name": _Option("", _parse_name, "name=backup"),
}
