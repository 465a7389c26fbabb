"""Keeps of a stream of bytes its beginning and its end, without secrets, in memory that does not grow. Pure.

Only what is kept is searched for secrets: a run that prints gigabytes costs no more than the reading of them. A secret
is found wherever the pieces of the stream, or the cut between what is kept and what is not, fall into it.
"""

from __future__ import annotations

import re
from collections.abc import Iterable

from resilience.quantities import format_bytes
from resilience.system.redaction import REDACTED, all_needles

_USER_INFO = re.compile(rb"(?<=://)[^/@\s'\"]+@")
_ADDRESS = re.compile(rb"://[^/@\s'\"]+@")
_USER_INFO_BYTES = 512
"""No `name:password@` is longer, where one must be seen whole to be cut well."""

_SLACK_BYTES = 2**18
"""The ring for the end may be so much longer than asked for, so that it need not be cut at each piece."""

_LINE_BYTES = 2**16
"""Cuts are moved to the end of a line where one is so near."""

_LAST_BYTES = 4096
"""The last line is looked for in so much of the end."""

_SMALL_BYTES = 512
"""Less than this is not left out: the sentence that says so would be as long."""


class Secrets:
    """Finds and replaces secrets in bytes."""

    def __init__(self, secrets: Iterable[str] = ()) -> None:
        """Those that this process has read are known besides."""
        table = {
            needle.encode("utf-8", "surrogateescape"): instead.encode("utf-8", "surrogateescape")
            for needle, instead in all_needles(secrets).items()
        }
        self._table = dict(sorted(table.items(), key=lambda pair: len(pair[0]), reverse=True))
        self.longest = max([_USER_INFO_BYTES + 4, *map(len, self._table)])

    def redact(self, raw: bytes) -> bytes:
        """Given bytes, return them without secrets."""
        for needle, instead in self._table.items():
            if needle in raw:
                raw = raw.replace(needle, instead)
        return _USER_INFO.sub(f"{REDACTED}@".encode(), raw)

    def begin_of(self, raw: bytes | bytearray, cut: int) -> int:
        """Given a place at which bytes are to be cut, return it, or the begin of the secret that lies across it."""
        while (span := self._across(raw, cut)) is not None:
            cut = span[0]
        return cut

    def end_of(self, raw: bytes | bytearray, cut: int) -> int:
        """Given a place at which bytes are to be cut, return it, or the end of the secret that lies across it."""
        while (span := self._across(raw, cut)) is not None:
            cut = span[1]
        return cut

    def before_part(self, raw: bytes | bytearray, cut: int) -> int:
        """Given the end of a line in what has come so far, return it, or the begin of what may become a secret of
        several lines. No other secret goes on after the end of a line."""
        for needle in self._table:
            if b"\n" in needle or b"\r" in needle:
                for length in range(min(len(needle) - 1, len(raw)), len(raw) - cut, -1):
                    if raw.endswith(needle[:length]):
                        cut = len(raw) - length
                        break
        return cut

    def _across(self, raw: bytes | bytearray, cut: int) -> tuple[int, int] | None:
        """Where the secret begins and ends that lies across a cut."""
        for needle in self._table:
            at = raw.find(needle, max(0, cut - len(needle) + 1), cut + len(needle) - 1)
            if at >= 0:  # within these borders any occurrence has the cut inside
                return at, at + len(needle)
        begin = max(0, cut - _USER_INFO_BYTES)
        for match in _ADDRESS.finditer(raw, begin, cut + _USER_INFO_BYTES):
            if match.start() < cut < match.end():
                return match.start(), match.end()
        return None


class Bounded:
    """What a run writes, of which so many bytes are kept: a half from its beginning, a half from its end."""

    def __init__(self, limit_bytes: int, secrets: Secrets) -> None:
        self._secrets = secrets
        self._half = max(1, limit_bytes // 2)
        self._head = bytearray()  # the first half, and what is needed to see a secret that lies across its end
        self._given = 0  # of the head, what has been handed out
        self._tail = bytearray()  # what came after the first half, as much of its end as is needed
        self._lines = 0
        self.total_bytes = 0

    def add(self, chunk: bytes) -> None:
        """Take the next piece of what it wrote."""
        room = self._half + self._secrets.longest - len(self._head)
        if room > 0:
            self._head += chunk[:room]
        beyond = self.total_bytes + len(chunk) - self._half
        if beyond > 0:
            self._tail += chunk[-beyond:] if beyond < len(chunk) else chunk
            kept = self._half + self._secrets.longest
            if len(self._tail) > kept + _SLACK_BYTES:
                del self._tail[:-kept]
        self._lines += chunk.count(b"\n")
        self.total_bytes += len(chunk)

    def take_head(self) -> bytes:
        """Whole lines of the beginning that were not handed out before, without secrets: a file of them grows as the
        run goes on."""
        sure = min(len(self._head), self._half)
        cut = max(self._head.rfind(b"\n", self._given, sure), self._head.rfind(b"\r", self._given, sure)) + 1
        cut = self._secrets.before_part(self._head, cut)
        if cut <= self._given:
            cut = min(len(self._head) - self._secrets.longest, self._half)
            if cut - self._given < _LINE_BYTES:
                return b""
        cut = self._secrets.begin_of(self._head, cut)
        if cut <= self._given:
            return b""
        found = self._secrets.redact(bytes(self._head[self._given : cut]))
        self._given = cut
        return found

    @property
    def has_head(self) -> bool:
        """Whether `take_head` may have something to give, now or when more has come."""
        return self._given < min(len(self._head), self._half)

    def finish(self) -> bytes:
        """The rest of what is kept, for the end. Between beginning and end stands how much was left out."""
        whole = bytes(self._head[: self._half]) + bytes(self._tail)  # is the whole if nothing was cut from the tail
        if self.total_bytes <= len(whole) and self.total_bytes <= 2 * self._half + _SMALL_BYTES:
            return self._secrets.redact(whole[self._given :])
        head_end = self._head_end()
        tail = bytes(self._tail)
        first = self.total_bytes - len(tail)  # where in the stream the tail begins
        cut = len(tail) - self._half
        line_end = tail.find(b"\n", cut - 1, cut + _LINE_BYTES)
        begin = self._secrets.end_of(tail, line_end + 1 if line_end >= 0 else cut)
        begin = max(begin, head_end - first)  # a secret that lies across everything that is left out
        left_out = first + begin - head_end
        lines = self._lines - self._head.count(b"\n", 0, head_end) - tail.count(b"\n", begin)
        head = self._secrets.redact(bytes(self._head[self._given : head_end]))
        said = f"{lines:,} lines ({format_bytes(left_out)})" if lines else format_bytes(left_out)
        line_break = b"" if self._head.endswith(b"\n", 0, head_end) else b"\n"
        return head + line_break + f"... {said} left out ...\n".encode() + self._secrets.redact(tail[begin:])

    def last_line(self) -> str:
        """The last line that says something, for people, without secrets: see `last_line`."""
        raw = bytes(self._tail or self._head)
        begin = max(0, len(raw) - _LAST_BYTES)
        return last_line(self._secrets.redact(raw[self._secrets.end_of(raw, begin) if begin else 0 :]))

    def _head_end(self) -> int:
        line_end = self._head.rfind(b"\n", max(0, self._half - _LINE_BYTES), self._half)
        cut = line_end + 1 if line_end >= 0 else self._half
        return self._secrets.end_of(self._head, max(cut, self._given))


def last_line(text: bytes, limit: int = 200) -> str:
    """Given what a run wrote, return its last line that says something, for people: printable, and not too long."""
    for line in reversed(text[-65536:].decode("utf-8", "replace").splitlines()):
        words = "".join(c if c.isprintable() else " " for c in _ESCAPES.sub("", line)).strip()
        if words:
            return words if len(words) <= limit else f"{words[: limit - 1]}…"
    return ""


_ESCAPES = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]")
"""Colours and the like (ECMA-48, control sequences)."""
