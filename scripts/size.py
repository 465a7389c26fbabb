#!/usr/bin/env python3
"""Prints the lines of code by room: docstrings, comments and blank lines are left out by the syntax tree.

    make size                       resilience/ and tests/
    scripts/size.py DIRECTORY ...   others

A line counts if a token of code stands on it; a string of ten lines, such as a table of expected output, counts ten.
"""

from __future__ import annotations

import ast
import io
import sys
import tokenize
from collections import Counter
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
_LAYOUT = {tokenize.COMMENT, tokenize.NL, tokenize.NEWLINE, tokenize.INDENT, tokenize.DEDENT, tokenize.ENDMARKER}


def lines_of_code(source: str) -> int:
    """Given the source of a module, return its lines of code."""
    documentation: set[int] = set()
    for node in ast.walk(ast.parse(source)):
        for child in ast.iter_child_nodes(node):
            # A string that stands alone documents a module, a class, a function or the name above it.
            text = child.value if isinstance(child, ast.Expr) else None
            if isinstance(text, ast.Constant) and isinstance(text.value, str):
                documentation.update(range(text.lineno, (text.end_lineno or text.lineno) + 1))
    code: set[int] = set()
    for token in tokenize.generate_tokens(io.StringIO(source).readline):
        if token.type not in _LAYOUT:
            code.update(range(token.start[0], token.end[0] + 1))
    return len(code - documentation)


def size(directory: Path) -> tuple[Counter[str], Counter[str]]:
    """Lines of code and modules of each room of a package; its own modules count as the room `.`."""
    lines: Counter[str] = Counter()
    modules: Counter[str] = Counter()
    for path in sorted(directory.rglob("*.py")):
        inside = path.relative_to(directory).parts
        room = inside[0] if len(inside) > 1 else "."
        lines[room] += lines_of_code(path.read_text(encoding="utf-8"))
        modules[room] += 1
    return lines, modules


def main(arguments: list[str]) -> None:
    for directory in map(Path, arguments) if arguments else (ROOT / "resilience", ROOT / "tests"):
        lines, modules = size(directory)
        print(f"{directory.name}: {lines.total():,} lines of code in {modules.total()} modules")
        for room in sorted(lines, key=lambda room: -lines[room]):
            print(f"  {lines[room]:>7,}  {modules[room]:>4} modules  {room}")


if __name__ == "__main__":
    main(sys.argv[1:])
