"""Which names of jobs are meant: an exact name, a pattern, or a regular expression that may not take for ever."""

from __future__ import annotations

import contextlib
import re
import signal
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from enum import StrEnum
from fnmatch import translate

from resilience.errors import SettingsError
from resilience.switch import printable

CPU_LIMIT_S = 0.5
"""What one expression may cost for all names of a queue. A hundred thousand names cost an honest one a tenth."""


class Kind(StrEnum):
    """How a name is written."""

    EXACT = "exact"
    GLOB = "glob"
    REGEX = "regex"


@dataclass(frozen=True, slots=True)
class Wanted:
    """One name to watch.

    Attributes:
        written: as it was written, which is also what findings are about.
        pattern: the compiled expression; None for an exact name.
    """

    written: str
    name: str
    kind: Kind
    pattern: re.Pattern[str] | None = None

    @property
    def is_pattern(self) -> bool:
        """Whether several names may match."""
        return self.pattern is not None

    def matches(self, name: str) -> bool:
        """Whether a job of this name is meant. A regular expression may take long: see Matcher."""
        if self.pattern is None:
            return name == self.name
        look = self.pattern.search if self.kind is Kind.REGEX else self.pattern.match
        return look(name) is not None or name == self.written


def parse_wanted(written: str) -> Wanted:
    """Given a name as people write it, return it. Raise SettingsError if it is empty, or does not compile."""
    if not written.strip():
        raise SettingsError("an empty name would watch nothing", hint="name a job: resil watch job gpt")
    if written.startswith("="):
        return Wanted(written, written[1:], Kind.EXACT)
    if len(written) > 2 and written.startswith("/") and written.endswith("/"):
        try:
            return Wanted(written, written, Kind.REGEX, re.compile(written[1:-1]))
        except (re.error, RecursionError, OverflowError) as error:
            raise SettingsError(
                f"{written} is not a regular expression: {error}", hint="/^tr11-.*-ml$/ is one; tr11-* is a pattern"
            ) from None
    if any(character in written for character in "*?["):
        # translate() writes atomic groups, so that such a pattern never backtracks for long
        return Wanted(written, written, Kind.GLOB, re.compile(translate(written)))
    return Wanted(written, written, Kind.EXACT)


def subject_of(name: str, users: Sequence[str], cluster: str = "") -> str:
    """The text that findings about a name have: printable, with the users when they are not just oneself, and the
    cluster when one was named.

    For instance `gpt`, `gpt of bob`, `'two\\nlines'`, `gpt of anyone on alpha`.
    """
    shown = name if name and printable(name) == name else ascii(name)
    whose = f" of {'anyone' if '*' in users else ','.join(sorted(users))}" if users else ""
    return shown + whose + (f" on {cluster}" if cluster else "")


class Matcher:
    """Says which of the wanted names a job's name is, each name looked at once.

    Attributes:
        trouble: for what is too slow to be asked: why it cannot be.
    """

    def __init__(self, wanted: Sequence[Wanted], cpu_limit_s: float = CPU_LIMIT_S) -> None:
        self._exact: dict[str, list[Wanted]] = {}
        for one in wanted:
            if one.kind is Kind.EXACT:
                self._exact.setdefault(one.name, []).append(one)
        self._patterns = [one for one in wanted if one.is_pattern]
        self._left_s = {one.written: cpu_limit_s for one in self._patterns}
        self._known: dict[str, tuple[Wanted, ...]] = {}
        self.trouble: dict[str, str] = {}

    def find(self, name: str) -> tuple[Wanted, ...]:
        """The wanted names that this one is."""
        if not self._patterns:
            return tuple(self._exact.get(name, ()))
        known = self._known.get(name)
        if known is None:
            found = (*self._exact.get(name, ()), *(one for one in self._patterns if self._matches(one, name)))
            known = self._known[name] = found
        return known

    def _matches(self, one: Wanted, name: str) -> bool:
        if one.written in self.trouble:
            return False
        if one.kind is not Kind.REGEX:
            return one.matches(name)
        try:
            with _cpu_limit(self._left_s[one.written]) as left:
                return one.matches(name)
        except _TooLongError:
            self.trouble[one.written] = f"{one.written} takes for ever to compare with the name {ascii(name)[:80]}"
            return False
        finally:
            self._left_s[one.written] = max(0.001, left[0])


class _TooLongError(Exception):
    pass


@contextlib.contextmanager
def _cpu_limit(seconds: float) -> Iterator[list[float]]:
    """Interrupt what is inside when it has computed for that long; the list then holds what was left.

    Only a signal can end a regular expression: re looks for one now and then while it goes back and forth. The timer
    counts this process's own computing (ITIMER_VIRTUAL, setitimer(2)), so a busy machine does no harm.
    """
    left = [seconds]

    def give_up(*_: object) -> None:
        raise _TooLongError

    try:
        before = signal.signal(signal.SIGVTALRM, give_up)
    except ValueError:  # not the main thread, which alone has signals: whoever started us has a deadline
        yield left
        return
    signal.setitimer(signal.ITIMER_VIRTUAL, seconds)
    try:
        yield left
    finally:
        left[0], _ = signal.setitimer(signal.ITIMER_VIRTUAL, 0)
        signal.signal(signal.SIGVTALRM, before)
