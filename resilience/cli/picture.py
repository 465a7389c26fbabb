"""What was printed, as an SVG picture: for a README, or for those who would rather look than read."""

from __future__ import annotations

import re
from collections.abc import Sequence
from io import StringIO
from pathlib import Path

from resilience.system.files import write_atomic

_STYLES = {"dim": "dim", "bold": "bold", "red": "red", "green": "green", "yellow": "yellow", "blue": "blue"}


def write_svg(path: Path, lines: Sequence[tuple[str, str]], *, title: str) -> None:
    """Write lines of (text, colour) as an SVG. rich, which Typer brings, draws it."""
    from rich.console import Console
    from rich.text import Text

    width = max((len(text) for text, _ in lines), default=80) + 2
    console = Console(record=True, width=max(80, width), file=StringIO(), force_terminal=True)
    for text, colour in lines:
        console.print(Text(text, style=_STYLES.get(colour, "")), soft_wrap=True)
    drawn = console.export_svg(title=title, unique_id="resil")
    # rich refers to a font on somebody's server; a picture must not ask the network for anything.
    without_font = re.sub(r"@font-face\s*\{[^}]*\}\s*", "", drawn).replace("Fira Code", "monospace")
    write_atomic(path, without_font, mode=0o644)
