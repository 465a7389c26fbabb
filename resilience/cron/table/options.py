"""What an entry may ask for in a comment: `# resil: timeout=10m catch_up=none overlap=skip ok=0-3 rerun`. Pure."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import replace
from typing import NamedTuple

from resilience.cron.records import EntryOptions, Overlap
from resilience.errors import QuantityError, UsageError
from resilience.quantities import parse_duration_s
from resilience.settings.cron_settings import CronSettings

MARK = r"#+[ \t]*resil:"
"""What a comment with options begins with."""

MOST_CAUGHT_UP = 1000
"""`all<=1000` is the most: more runs in a row are no catching up but a storm."""

KNOWN = ("timeout", "catch_up", "overlap", "jitter", "ok", "rerun", "sbatch", "name")

_NAME = r"[A-Za-z0-9_-][A-Za-z0-9_.-]{0,63}"
_NEVER = frozenset({"0", "none", "never"})


class OptionError(UsageError, ValueError):
    """An option that nobody knows, or a value that it cannot have."""


class Options(NamedTuple):
    """Options as parsed, and the name that a line may give itself (empty: none)."""

    options: EntryOptions
    name: str = ""


def default_options(settings: CronSettings, *, is_drop_in: bool) -> EntryOptions:
    """What counts where an entry says nothing. Raise OptionError if the settings say what nobody can do."""
    return EntryOptions(
        timeout_s=settings.timeout_s,
        catch_up=parse_catch_up(settings.catch_up),
        jitter_s=settings.jitter_s if is_drop_in else 0.0,
    )


def parse_options(text: str, default: EntryOptions) -> Options:
    """Given what stands behind `# resil:`, return it on top of `default`.

    For instance, `timeout=10m rerun`. Raise OptionError with what to write.
    """
    said: dict[str, str] = {}
    for word in text.split():
        key, equals, value = word.partition("=")
        key = key.lower().replace("-", "_")
        if key not in KNOWN:
            raise OptionError(f"there is no option {word!r}", hint=_hint(key))
        if key in said:
            raise OptionError(f"the option {key} stands there twice", hint="keep one of them")
        if not equals and key != "rerun":
            raise OptionError(f"the option {key} has no value", hint=f"write for instance {_EXAMPLES[key]}")
        said[key] = value if equals else "yes"
    return _apply(said, default)


def _apply(said: Mapping[str, str], default: EntryOptions) -> Options:
    options = default
    if "timeout" in said:
        options = replace(options, timeout_s=_parse_seconds("timeout", said["timeout"]))
    if "jitter" in said:
        options = replace(options, jitter_s=_parse_seconds("jitter", said["jitter"]))
    if "catch_up" in said:
        options = replace(options, catch_up=parse_catch_up(said["catch_up"]))
    if "overlap" in said:
        if said["overlap"] not in set(Overlap):
            raise OptionError(f"overlap={said['overlap']} is none of {', '.join(Overlap)}", hint="write overlap=skip")
        options = replace(options, overlap=Overlap(said["overlap"]))
    if "ok" in said:
        options = replace(options, ok=parse_exit_codes(said["ok"]))
    if "rerun" in said:
        if said["rerun"] not in {"yes", "no", "true", "false"}:
            raise OptionError(f"rerun={said['rerun']} is neither yes nor no", hint="write rerun, or leave it out")
        options = replace(options, rerun=said["rerun"] in {"yes", "true"})
    if "sbatch" in said:
        if said["sbatch"] != "cron":
            raise OptionError(f"sbatch={said['sbatch']} is nothing to take options from", hint="write sbatch=cron")
        options = replace(options, takes_cron_sbatch=True)
    name = said.get("name", "")
    if "name" in said and not re.fullmatch(_NAME, name):
        raise OptionError(f"{name!r} cannot be a name", hint="write letters, digits, `-`, `_` and `.`, at most 64")
    return Options(options, name)


def parse_catch_up(text: str) -> int:
    """Given `none`, `once` or `all<=N`, return how many missed slots are made up for. Raise OptionError otherwise."""
    if text in {"none", "once"}:
        return 0 if text == "none" else 1
    match = re.fullmatch(r"all<=([0-9]{1,9})", text)
    if match is None:
        raise OptionError(f"catch_up={text} is nothing that can be done", hint="write none, once or all<=12")
    if not 1 <= int(match[1]) <= MOST_CAUGHT_UP:
        raise OptionError(f"catch_up={text} is not between all<=1 and all<={MOST_CAUGHT_UP}", hint="write all<=12")
    return int(match[1])


def parse_exit_codes(text: str) -> tuple[int, ...]:
    """Given `0-3,75`, return (0, 1, 2, 3, 75). Raise OptionError if these are no exit codes."""
    codes: set[int] = set()
    for part in text.split(","):
        match = re.fullmatch(r"([0-9]{1,3})(?:-([0-9]{1,3}))?", part)
        first, last = (int(match[1]), int(match[2] or match[1])) if match else (1, 0)
        if not first <= last <= 255:
            raise OptionError(f"ok={text} is no list of exit codes", hint="write for instance ok=0-3 or ok=0,75")
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


def _hint(key: str) -> str:
    from difflib import get_close_matches

    close = get_close_matches(key, KNOWN, n=1)
    return f"did you mean {close[0]}?" if close else f"there are: {', '.join(KNOWN)}"
