"""Helpers for messages: counted nouns, suggestions for misspelt words, truncated texts. Pure."""

from __future__ import annotations

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable


def plural(count: int, noun: str, many: str = "") -> str:
    """Return a count with its noun: `plural(1, "rank")` gives `1 rank`, `plural(1200, "run")` gives `1,200 runs`.

    `many`: an irregular plural: `plural(2, "process", "processes")`.
    """
    regular = f"{noun[:-1]}ies" if noun.endswith("y") and noun[-2] not in "aeiou" else f"{noun}s"
    return f"{count:,} {noun if count == 1 else many or regular}"


def nearest(word: str, known: Iterable[str], *, cutoff: float = 0.5) -> str:
    """Return the known word that is most similar to an unknown one; empty if none is similar.

    `cutoff`: 0 accepts any word, 1 only the word itself.
    """
    from difflib import get_close_matches  # slow to import; only needed for error messages

    return next(iter(get_close_matches(word[:100], list(known), n=1, cutoff=cutoff)), "")


def suggest(word: str, known: Iterable[str], *, cutoff: float = 0.5) -> str:
    """Return the hint for an unknown word: `did you mean X?`, or `there are: X, Y` if no known word is similar."""
    words = list(known)
    near = nearest(word, words, cutoff=cutoff)
    return f"did you mean {near}?" if near else f"there are: {', '.join(words)}"


def quoted(path: object) -> str:
    """Return a path as one word of a shell, for a hint that is pasted: `'my run/train.py'`."""
    from shlex import quote  # only needed for hints

    return quote(str(path))


def cut(text: str, limit: int) -> str:
    """Return the text truncated to `limit` characters; a truncated text ends with `…`."""
    return text if len(text) <= limit else f"{text[: max(0, limit - 1)]}…"
