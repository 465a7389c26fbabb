"""The lines that failures print: `rules/*.toml`, one file per family of failures.

A rule is a table:

    [[rule]]
    class = "gpu_oom"                        # a FailureClass
    contains = ["out of memory"]             # lower case; each matching line contains one of them: searched first
    pattern = 'CUDA out of memory'           # regular expression, searched in the line
    unless = 'skipping batch'                # optional: lines that look alike
    role = "root"                            # optional: root, cascade, confirmation or diagnostic
    broad = true                             # optional: counts only in error lines, and less than other rules
    decides = true                           # optional: the scheduler or the kernel says it: beats all other lines
    source = "https://..., or the program and file that prints the line"
    advice = "..."                           # optional: what to try
    example = "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB"

A group `(?P<rank>...)` or `(?P<host>...)` names the culprit; `(?P<xid>...)` is looked up in `xid.toml`. Files in a
directory `failure_rules` of $RESIL_PLUGINS come first.
"""

from __future__ import annotations

import os
import re
import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from resilience.attempts.failure import FailureClass, Role
from resilience.errors import SettingsError
from resilience.messages import suggest

BUILT_IN = Path(__file__).parent / "rules"
FOLDER = "failure_rules"
"""In a directory of $RESIL_PLUGINS."""
_KEYS = {"class", "contains", "pattern", "unless", "role", "broad", "decides", "source", "advice", "example"}
_REQUIRED = {"class", "contains", "pattern", "source", "example"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Rule:
    """A line that a failure prints.

    Attributes:
        name: file and line of its definition: `gpu.toml:12`.
        failure: the class it shows.
        role: see Role.
        broad: whether it counts only in error lines and in the last lines of tracebacks, and less than other rules.
        decides: whether it beats all other lines, wherever they are.
        contains: in lower case; a matching line contains at least one of them.
        pattern: searched in the line.
        unless: lines that match this as well do not count; None: none.
        source: where the wording comes from.
        advice: what to try; may be empty.
        example: a line that it matches.
    """

    name: str
    failure: FailureClass
    role: Role
    broad: bool
    decides: bool
    contains: tuple[str, ...]
    pattern: re.Pattern[str]
    unless: re.Pattern[str] | None
    source: str
    advice: str
    example: str

    def match(self, line: str) -> re.Match[str] | None:
        """Return the match of a line, or None."""
        found = self.pattern.search(line)
        return None if found is None or (self.unless is not None and self.unless.search(line)) else found


@cache
def all_rules() -> tuple[Rule, ...]:
    """Return the rules of the directories of $RESIL_PLUGINS, then the built-in ones.

    Raise SettingsError, with file and line, if one of them is invalid.
    """
    from resilience.plugins import PLUGIN_PATH

    directories = [Path(name) / FOLDER for name in os.environ.get(PLUGIN_PATH, "").split(":") if name]
    files = [path for directory in (*directories, BUILT_IN) for path in sorted(directory.glob("*.toml"))]
    return tuple(rule for path in files for rule in read_rules(path))


def read_rules(path: Path) -> tuple[Rule, ...]:
    """Read one file. Raise SettingsError, with file and line, if it is invalid."""
    try:
        return parse_rules(path.read_text(encoding="utf-8"), path.name)
    except OSError as error:
        raise SettingsError(f"cannot read the failure rules {path}: {error.strerror}") from error


def parse_rules(text: str, name: str) -> tuple[Rule, ...]:
    """Return the rules of a file's text. Pure. Raise SettingsError, with file and line, if it is invalid."""
    try:
        tables = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise SettingsError(f"failure rules {name}: {error}") from error
    lines = [number for number, line in enumerate(text.splitlines(), 1) if line.strip() == "[[rule]]"]
    rules = tables.pop("rule", [])
    if tables or not isinstance(rules, list) or len(rules) != len(lines):
        raise SettingsError(
            f"failure rules {name}: only [[rule]] tables are allowed", hint="one [[rule]] for each rule"
        )
    return tuple(_rule(table, f"{name}:{line}") for table, line in zip(rules, lines, strict=True))


def _rule(table: Mapping[str, Any], name: str) -> Rule:
    def refuse(problem: str, hint: str = "") -> SettingsError:
        return SettingsError(f"failure rule {name}: {problem}", hint=hint or "compare resilience/attempts/rules/*.toml")

    for key in table:
        if key not in _KEYS:
            raise refuse(f"unknown key {key!r}", suggest(key, sorted(_KEYS)))
    if missing := sorted(_REQUIRED - table.keys()):
        raise refuse(f"{missing[0]} is missing")
    contains = table["contains"]
    if not isinstance(contains, list) or not contains or not all(isinstance(one, str) and one for one in contains):
        raise refuse("contains must be a list of texts")
    if wrong := [key for key in _KEYS - {"contains", "broad", "decides"} if not isinstance(table.get(key, ""), str)]:
        raise refuse(f"{wrong[0]} must be a text")
    for key in ("broad", "decides"):
        if not isinstance(table.get(key, False), bool):
            raise refuse(f"{key} must be true or false")
    if any(one != one.lower() for one in contains):
        raise refuse("contains must be in lower case")
    patterns: dict[str, re.Pattern[str] | None] = {"unless": None}
    for key in ("pattern", "unless"):
        if key in table:
            try:
                patterns[key] = re.compile(table[key])
            except re.error as error:
                raise refuse(f"{key} is no regular expression: {error}") from error
    try:
        failure, role = FailureClass(table["class"]), Role(table.get("role", "root"))
    except ValueError as error:
        known: Sequence[str] = [*FailureClass, *Role]
        raise refuse(str(error), suggest(str(error).split("'")[1], known)) from error
    pattern = patterns["pattern"]
    assert pattern is not None
    rule = Rule(
        name=name, failure=failure, role=role, broad=table.get("broad", False), decides=table.get("decides", False),
        contains=tuple(contains), pattern=pattern, unless=patterns["unless"],
        source=table["source"], advice=table.get("advice", ""), example=table["example"],
    )  # fmt: skip
    small = rule.example.lower()
    if rule.match(rule.example) is None or not any(one in small for one in rule.contains):
        raise refuse("its example does not match")
    return rule
