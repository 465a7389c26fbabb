"""How things are printed: tables without a library, colours only for people, JSON with a schema."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

SCHEMA = "resil/1"
"""Version of every JSON document. Keys are added without a new version; none is removed or changes its meaning."""

_CODES = {"red": "31", "green": "32", "yellow": "33", "blue": "34", "dim": "2", "bold": "1"}


@contextmanager
def patience(sentence: str, after_s: float = 5.0) -> Iterator[None]:
    """Say a sentence to whoever waits, once, when the work inside takes longer than a person expects."""
    from threading import Timer

    timer = Timer(after_s, lambda: print(f"resil: {sentence}", file=sys.stderr, flush=True))
    timer.daemon = True
    timer.start()
    try:
        yield
    finally:
        timer.cancel()


def print_json(kind: str, content: Mapping[str, Any]) -> None:
    """Write one JSON document, for people as well: what cannot be shown is escaped, everything else is as it is."""
    text = json.dumps({"schema": SCHEMA, "kind": kind, **content}, indent=2, ensure_ascii=False)
    if not text.isascii() or "\x7f" in text:
        text = "".join(c if c.isprintable() or c == "\n" else json.dumps(c)[1:-1] for c in text)
        text = text.replace("\x7f", "\\u007f")
    print(text)


def clean(text: str) -> str:
    """Text from outside without control characters: a job's name must not steer a terminal."""
    return "".join(c if c.isprintable() else "?" for c in text.encode("utf-8", "replace").decode())


def paint(text: str, colour: str) -> str:
    """Text in a colour, when a person is looking (https://no-color.org)."""
    if not colour or not sys.stdout.isatty() or "NO_COLOR" in os.environ or os.environ.get("TERM") == "dumb":
        return text
    return f"\x1b[{_CODES[colour]}m{text}\x1b[0m"


def table(
    headers: Sequence[str], rows: Sequence[Sequence[str]], colours: Sequence[str] = (), indent: int = 0
) -> list[str]:
    """Lines of a table: columns as wide as they must be, the last one free. `colours` paint whole rows."""
    cells = [[clean(cell) for cell in row] for row in rows]
    widths = [max([len(header), *(len(row[i]) for row in cells)]) for i, header in enumerate(headers)]
    shown = [i for i, header in enumerate(headers) if not header or any(row[i] for row in cells)]

    def line(values: Sequence[str]) -> str:
        return " " * indent + "  ".join(values[i].ljust(widths[i]) for i in shown).rstrip()

    lines = [paint(line(headers), "bold")] if any(headers) else []
    return lines + [
        paint(line(row), colours[number] if number < len(colours) else "") for number, row in enumerate(cells)
    ]
