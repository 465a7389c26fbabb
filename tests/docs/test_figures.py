"""The durations, sizes and exit codes that the pages name are those of the code, read from where they are defined."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import fields, is_dataclass
from typing import get_type_hints

import pytest

from resilience.checkpoints.settings import CheckpointSettings
from resilience.cli.entry import EXIT_INTERRUPTED
from resilience.errors import EX_TEMPFAIL, ResilError, UsageError
from resilience.finding import Verdict
from resilience.guard.settings import GuardSettings
from resilience.plugins import Family
from resilience.settings.cron_settings import CronSettings
from resilience.settings.sections import Settings
from tests.docs.markdown import ROOT, Page, page, pages

GENERATED = {"docs/reference/settings.md", "docs/reference/commands.md"}
_NUMBERS = ("zero", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine", "ten")
WORDS = {word: float(number) for number, word in enumerate(_NUMBERS)}
WORDS |= {"a": 1.0, "an": 1.0, "half a": 0.5, "a quarter of an": 0.25}
SECONDS = {"ms": 0.001, "s": 1, "second": 1, "min": 60, "minute": 60, "h": 3600, "hour": 3600, "day": 86400}
_WORD = "|".join(sorted(WORDS, key=len, reverse=True))
_DURATION = rf"(?P<number>\d[\d,.]* ?|(?:{_WORD}) )(?P<unit>{'|'.join(SECONDS)})s?\b"
_KEY = r"`(?P<key>[a-z][a-z0-9_]*)`"
_NAMED = (
    re.compile(rf"{_KEY}(?: \(|, | is |: )(?:by default |default:? |the default )?{_DURATION}(?! in all)"),
    re.compile(rf"{_DURATION}(?: by default)? \({_KEY}\)"),
)
"""`poll_s` (5 s); `poll_s`, 5 s; 5 s (`poll_s`). A product of it is `in all`."""


def defaults() -> dict[str, set[float]]:
    """Every number among the defaults of resil.toml, by the name of its key: of several tables, several."""
    owners: list[type] = [GuardSettings, CheckpointSettings, CronSettings]
    late = {owner.__name__: owner for owner in owners}
    hints = get_type_hints(Settings, localns=late).values()
    owners += [hint for hint in hints if isinstance(hint, type) and is_dataclass(hint)]
    for family in (Family("checks", "CHECK", ()), Family("channels", "CHANNEL", ())):
        owners += [family.load(name).Settings for name in family.names()]
    found: dict[str, set[float]] = {}
    for owner in owners:
        for field in fields(owner):
            if isinstance(field.default, int | float) and not isinstance(field.default, bool):
                found.setdefault(field.name, set()).add(float(field.default))
    return found


def seconds(match: re.Match[str]) -> float:
    number = match["number"].strip()
    return (WORDS[number] if number in WORDS else float(number.replace(",", ""))) * SECONDS[match["unit"]]


def named(where: Page) -> Iterator[tuple[str, float, str]]:
    """Each key with the duration that the page gives for it, and the words."""
    text = " ".join(where.prose.split())
    for pattern in _NAMED:
        yield from ((match["key"], seconds(match), match[0]) for match in pattern.finditer(text))


@pytest.mark.parametrize("where", pages(), ids=lambda where: str(where.path.relative_to(ROOT)))
def test_a_duration_beside_a_setting_is_its_default(where: Page) -> None:
    if (
        str(where.path.relative_to(ROOT)) in GENERATED
        or "measured" in where.path.parts
        or where.path.name == "CHANGELOG.md"
    ):
        return
    known = defaults()
    false = [words for key, value, words in named(where) if key in known and value not in known[key]]
    assert not false


def test_durations_beside_settings_are_found() -> None:
    found = [key for where in pages() for key, _, _ in named(where) if key in defaults()]
    assert len(found) > 10, found
    assert {"poll_s", "beat_s", "signal_lead_s", "previous_wait_s", "exit_timeout_s", "deadline_s"} <= set(found)


def test_the_codes_of_resil_watch_are_those_of_its_verdicts() -> None:
    text = page("docs/reference/exit-codes.md").text
    table = text.partition("| code | `resil watch` |")[2].partition("\n\n")[0]
    told = dict(re.findall(r"^\| (\d+) \| ([A-Z]+)", table, re.MULTILINE))
    assert told == {str(verdict.exit_code): verdict.value for verdict in Verdict}
    glossary = next(row for row in page("docs/glossary.md").rows() if row[0] == "**Verdict**")[1]
    order = re.match(r"(\w+), (\w+), (\w+) or (\w+) \(exit codes (\d), (\d), (\d), (\d)\)", glossary)
    assert order is not None
    assert all(str(Verdict(order[n]).exit_code) == order[n + 4] for n in (1, 2, 3, 4))


def test_the_codes_of_commands_are_those_of_the_code() -> None:
    table = page("docs/reference/exit-codes.md").text.partition("## Commands")[2].partition("\n\n75 is")[0]
    told = re.findall(r"^\| (\d+) \| (\w+)", table, re.MULTILINE)
    assert told == [
        ("0", "done"), (str(ResilError("x").exit_code), "failed"), (str(UsageError("x").exit_code), "usage"),
        (str(EX_TEMPFAIL), "temporary"), (str(EXIT_INTERRUPTED), "interrupted"),
    ]  # fmt: skip
