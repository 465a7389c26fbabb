"""Markdown as the tests of docs/ need it: code blocks, links, headings, rows of tables."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]

_FENCE = re.compile(r"^```(\w*)\n(.*?)^```", re.MULTILINE | re.DOTALL)
_LINK = re.compile(r"!?\[[^\]]*\]\(([^)\s]+)\)")
_HEADING = re.compile(r"^#+ (.+)$", re.MULTILINE)
_CODE_SPAN = re.compile(r"`[^`\n]*`")


@dataclass(frozen=True)
class Page:
    """One file of ours for people."""

    path: Path

    @property
    def text(self) -> str:
        return self.path.read_text(encoding="utf-8")

    @property
    def prose(self) -> str:
        """Without its code blocks."""
        return _FENCE.sub("", self.text)

    def blocks(self, *languages: str) -> Iterator[str]:
        """The code blocks in these languages."""
        yield from (match[2] for match in _FENCE.finditer(self.text) if match[1] in languages)

    def links(self) -> tuple[str, ...]:
        """Where its links lead, those to the web left out."""
        targets = _LINK.findall(_CODE_SPAN.sub("", self.prose))
        return tuple(target for target in targets if not re.match(r"[a-z]+:", target))

    def anchors(self) -> frozenset[str]:
        """The names of its headings, as GitHub makes them."""
        return frozenset(anchor(heading) for heading in _HEADING.findall(self.prose))

    def rows(self) -> Iterator[tuple[str, ...]]:
        """The cells of each row of its tables."""
        for line in self.prose.splitlines():
            if line.startswith("|") and not set(line) <= set("|- "):
                yield tuple(cell.strip() for cell in re.split(r"(?<!\\)\|", line)[1:-1])


def anchor(heading: str) -> str:
    """Given a heading, return its name in links."""
    plain = re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", heading) if "](" in heading else heading
    return re.sub(r"[^\w\- ]", "", plain.lower()).strip().replace(" ", "-")


def page(name: str) -> Page:
    return Page(ROOT / name)


def pages() -> tuple[Page, ...]:
    """Every page for people in the repository: docs/ and the files beside it."""
    files = [*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md"), *(ROOT / "cron").rglob("*.md")]
    return tuple(Page(path) for path in sorted(files))
