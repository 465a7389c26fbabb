"""The options of a watchdog, from the fields of its settings and their docstring. Pure."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from resilience.errors import UsageError
from resilience.plugins import Family
from resilience.watch.options import (
    Option,
    absolute_paths,
    flag_of,
    options_of,
    parse_attributes,
    parse_pairs,
    without_unit,
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Every:
    """Every kind of field.

    More about it: nothing.

    Attributes:
        paths: what to probe;
            several lines long: with a colon.
        warn_percent, crit_percent: from how much on.
        grace_s: how `long`.
        free_bytes: how much.
        is_shared: whether.
        limit: a number.
        table: a table.

    Not an attribute: this.
    """

    paths: tuple[str, ...] = ("/a", "/b")
    warn_percent: float | None = None
    crit_percent: float = 90.0
    grace_s: float = 600.0
    free_bytes: int = 2**30
    is_shared: bool | None = None
    limit: int = 3
    table: Mapping[str, str] = field(default_factory=dict)
    word: str = "any"


def test_each_field_is_an_option_with_its_help_and_default() -> None:
    assert options_of(Every) == (
        Option("paths", "--paths", "list", "TEXT", "What to probe; several lines long: with a colon.", "/a, /b"),
        Option("warn_percent", "--warn-percent", "text", "PERCENT", "From how much on.", ""),
        Option("crit_percent", "--crit-percent", "text", "PERCENT", "From how much on.", "90%"),
        Option("grace_s", "--grace", "text", "DURATION", "How long.", "10 min"),
        Option("free_bytes", "--free", "text", "SIZE", "How much.", "1.0 GiB"),
        Option("is_shared", "--is-shared", "switch", "TEXT", "Whether.", ""),
        Option("limit", "--limit", "text", "NUMBER", "A number.", "3"),
        Option("table", "--table", "table", "KEY=VALUE", "A table.", ""),
        Option("word", "--word", "text", "TEXT", "", "any"),
    )


@pytest.mark.parametrize(
    ("typed", "meant"),
    [("grace", "grace"), ("grace-s", "grace"), ("grace_s", "grace"), ("free-bytes", "free"), ("paths", "paths"),
     ("warn-percent", "warn-percent"), ("-s", "-s"), ("warn_percent", "warn-percent"), ("c", "c")],
)  # fmt: skip
def test_a_unit_may_be_typed_and_left_out(typed: str, meant: str) -> None:
    assert without_unit(typed) == meant


def test_a_flag_is_the_fields_name() -> None:
    assert flag_of("max_pending_s") == "--max-pending" and flag_of("paths") == "--paths"


@pytest.mark.parametrize("docstring", ["", "No section.", "Attributes:\n", "Attributes:\n\n    \n"])
def test_a_docstring_without_attributes_has_no_help(docstring: str) -> None:
    assert parse_attributes(docstring) == {}


def test_pairs_are_a_table() -> None:
    option = options_of(Every)[7]
    assert parse_pairs(option, ["a=1", "b=c=d", "e="]) == {"a": "1", "b": "c=d", "e": ""}
    for text in ("a", "=a"):
        with pytest.raises(UsageError, match="not KEY=VALUE"):
            parse_pairs(option, [text])


def test_settings_with_required_fields_are_rejected() -> None:
    @dataclass
    class Needs:
        path: str

    with pytest.raises(UsageError, match=r"path has no default"):
        options_of(Needs)
    with pytest.raises(UsageError, match="not a dataclass"):
        options_of(int)


def test_typed_paths_are_relative_to_the_current_directory() -> None:
    typed = {"paths": ["a", ".", "/b", "~/c", "$D/e", ""], "checkpoints": "../ckpt", "word": "as it is"}
    assert absolute_paths(typed, ("paths", "checkpoints", "other"), Path("/here")) == {
        "paths": ["/here/a", "/here", "/b", "~/c", "$D/e", ""],
        "checkpoints": "/here/../ckpt",
        "word": "as it is",
    }


def test_the_help_of_an_option_is_a_sentence_that_names_other_options() -> None:
    """`--churn DURATION  see there.` was the help of an option once."""
    family = Family("checks", "CHECK", ())
    bad = []
    for name in family.names():
        for option in options_of(family.load(name).Settings):
            text = option.help
            is_sentence = text[:1].isupper() and text.endswith((".", ")")) and len(text.split()) > 3
            points_away = re.search(r"\b(see there|above|below|the same for|likewise)\b|\b\w+_(s|bytes)\b", text)
            if not is_sentence or (points_away and "[" not in text):
                bad.append(f"{name} {option.flag}: {text}")
    assert not bad, "\n".join(bad)
