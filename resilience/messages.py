"""Parts of the sentences that people read: counted nouns, the nearest name, a text cut to a length. Pure."""

from __future__ import annotations

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable


def plural(count: int, noun: str, many: str = "") -> str:
    """Given a count and a noun, return both: `plural(1, "rank")` gives `1 rank`, `plural(1200, "run")` `1,200 runs`.

    `many`: the plural where it is irregular: `plural(2, "process", "processes")`.
    """
    regular = f"{noun[:-1]}ies" if noun.endswith("y") and noun[-2] not in "aeiou" else f"{noun}s"
    return f"{count:,} {noun if count == 1 else many or regular}"


def nearest(word: str, known: Iterable[str], *, cutoff: float = 0.5) -> str:
    """Given a word that is not known, return the known one that is most like it; empty when none is like it.

    `cutoff`: 0 takes anything, 1 only the word itself.
    """
    from difflib import get_close_matches  # only for those who mistype: it costs milliseconds

    return next(iter(get_close_matches(word[:100], list(known), n=1, cutoff=cutoff)), "")


def suggest(word: str, known: Iterable[str], *, cutoff: float = 0.5) -> str:
    """The hint for a word that is not known: `did you mean X?`, or, where none is like it, `there are: X, Y`."""
    words = list(known)
    near = nearest(word, words, cutoff=cutoff)
    return f"did you mean {near}?" if near else f"there are: {', '.join(words)}"


def cut(text: str, limit: int) -> str:
    """Given a text, return at most `limit` characters of it, the last of them `…` where some are left out."""
    return text if len(text) <= limit else f"{text[: max(0, limit - 1)]}…"
