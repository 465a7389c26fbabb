"""Hints can be pasted: each text of the code that names a command is parsed, and each path in it is quoted.

What tests provoke is checked too, with real values in place: by a fixture of tests/conftest.py, after each module.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest

from tests.lab.hints import commands_in, wrong

RESILIENCE = Path(__file__).parents[2] / "resilience"
FILE_COMMAND = re.compile(r"\b(?:chmod|chown|chgrp|setfacl|rm|rmdir|mv|mkdir|touch|cat|ls|fuser|sed -i) [^;`]*\{\d+\}")
PATH = re.compile(r"(?:path|file|script|directory|folder|place|target|program)\)?$")
QUOTED = re.compile(r"(?:quoted|quote|quote_bash|shlex\.quote|shlex\.join)\(")
"""Calls that make one word, or words, for a shell."""


@cache
def texts(path: Path) -> list[tuple[int, str, list[str]]]:
    """Line, text and interpolated expressions of each string that is no docstring; `{0}` stands for the first."""
    return list(_texts(list(ast.walk(ast.parse(path.read_text())))))


def _texts(nodes: list[ast.AST]) -> Iterator[tuple[int, str, list[str]]]:
    inside = {id(part) for node in nodes if isinstance(node, ast.JoinedStr) for part in ast.walk(node)}
    inside |= {id(node.value) for node in nodes if isinstance(node, ast.Expr)}
    for node in nodes:
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and id(node) not in inside:
            yield node.lineno, node.value, []
        elif isinstance(node, ast.JoinedStr):
            parts, text, expressions = node.values, "", list[str]()
            for part in parts:
                if isinstance(part, ast.Constant):
                    text += str(part.value)
                elif isinstance(part, ast.FormattedValue):
                    text += f"{{{len(expressions)}}}"
                    expressions.append(ast.unparse(part.value))
            yield node.lineno, text, expressions


SOURCES = sorted(set(RESILIENCE.rglob("*.py")) - {RESILIENCE / "watch" / "scan" / "cache.py"})
"""The cache of a scan begins with `resil scan`, and no user reads it."""


def test_each_command_that_the_code_names_is_one_of_resil() -> None:
    bad = []
    for path in SOURCES:
        for line, text, expressions in texts(path):
            if text.count("`") % 2:
                continue  # the start of a text that other code completes
            filled = text
            for number, expression in enumerate(expressions):
                filled = filled.replace(f"{{{number}}}", "" if "join(" in expression else "NAME")
            if (reason := wrong(filled)) and len(text) < 400:
                bad.append(f"{path.relative_to(RESILIENCE)}:{line}: {reason}")
    assert not bad, "\n".join(bad)


def test_each_path_in_a_command_is_quoted() -> None:
    bad = []
    for path in SOURCES:
        for line, text, expressions in texts(path):
            of_files = [command[0] for command in FILE_COMMAND.finditer(text)]
            inside = {int(n) for command in [*of_files, *commands_in(text)] for n in re.findall(r"\{(\d+)\}", command)}
            bare = [expressions[number] for number in inside if not QUOTED.match(expressions[number])]
            bad += [
                f"{path.relative_to(RESILIENCE)}:{line}: {{{expression}}} in {text[:90]!r}"
                for expression in bare
                if PATH.search(expression)
            ]
    assert not bad, "\n".join(bad)


@pytest.mark.parametrize(
    ("hint", "found"),
    [
        ("start one: resil submit", ["submit"]),
        ("queue behind it: --after auto; cancel it: resil cancel gpt", ["cancel gpt"]),
        ("see `resil status gpt --fresh`, then ask", ["status gpt --fresh"]),
        ("resil watch --all, or a name from: resil watch --list", ["watch --all", "watch --list"]),
        ("array cannot be set: resil writes it", []),
        ("`resil cron` runs it. Resil waits", ["cron"]),
        ("the next tick rewrites it", []),
        ("ask who submits with resil", []),
        ("/opt/resil is gone", []),
    ],
)
def test_commands_are_found_in_a_hint(hint: str, found: list[str]) -> None:
    assert list(commands_in(hint)) == found


@pytest.mark.parametrize(
    ("hint", "why"),
    [
        ("try: resil sbumit", "no command"),
        ("try: resil submit --arrya 10", "--arrya"),
        ("see: resil logs <run>", "capitals"),
        ("resil cron add x --hourly -- ...", "capitals"),
        ("try: resil logs 'gpt", "No closing quotation"),
        ("see: resil config check my run", "unexpected extra argument"),
    ],
)
def test_a_hint_that_cannot_be_pasted_is_noticed(hint: str, why: str) -> None:
    assert why in wrong(hint)
