"""Keeps the beginning and the end of a byte stream, without secrets, in bounded memory. Pure.

Only kept bytes are searched for secrets, so a run that prints gigabytes costs little. A secret is found even if chunk
borders, or the cut between kept and omitted bytes, split it.
"""

from __future__ import annotations

import re
from collections.abc import Iterable

from resilience.messages import cut
from resilience.quantities import format_bytes
from resilience.system.redaction import FORM_BYTES, FORMS, REDACTED, all_needles

_FORMS = re.compile(FORMS.encode())
_BEGIN, _END = b"-----BEGIN", b"-----END"

_SLACK_BYTES = 2**18
"""The buffer for the end may exceed its limit by this, so that it is not cut for each chunk."""

_LINE_BYTES = 2**16
"""Cuts are moved to the end of a line within this distance."""

_LAST_BYTES = 4096
"""The last line is searched in this many bytes at the end."""

_SMALL_BYTES = 512
"""Less than this is not omitted: the notice would be as long."""


class Secrets:
    """Finds and replaces secrets in bytes."""

    def __init__(self, secrets: Iterable[str] = ()) -> None:
        """Secrets that this process has read are included."""
        table = {
            needle.encode("utf-8", "surrogateescape"): instead.encode("utf-8", "surrogateescape")
            for needle, instead in all_needles(secrets).items()
        }
        self._table = dict(sorted(table.items(), key=lambda pair: len(pair[0]), reverse=True))
        self.longest = max([FORM_BYTES, *map(len, self._table)])

    def redact(self, raw: bytes) -> bytes:
        """Return the bytes without secrets."""
        for needle, instead in self._table.items():
            if needle in raw:
                raw = raw.replace(needle, instead)
        word = REDACTED.encode()
        return _FORMS.sub(lambda found: (found["scheme"] or found["name"] or b"") + word + (found["at"] or b""), raw)

    def begin_of(self, raw: bytes | bytearray, cut: int) -> int:
        """Return the cut position, moved to the beginning of a secret that spans it."""
        while (span := self._across(raw, cut)) is not None:
            cut = span[0]
        return cut

    def end_of(self, raw: bytes | bytearray, cut: int) -> int:
        """Return the cut position, moved to the end of a secret that spans it."""
        while (span := self._across(raw, cut)) is not None:
            cut = span[1]
        return cut

    def before_part(self, raw: bytes | bytearray, cut: int) -> int:
        """Return the cut position at the end of a line, moved before the possible beginning of a multi-line secret. No
        other secret continues after the end of a line, except for a private key."""
        begin = raw.rfind(_BEGIN, max(0, cut - FORM_BYTES), cut)
        if begin >= 0 and raw.find(_END, begin, cut) < 0:
            cut = begin
        for needle in self._table:
            if b"\n" in needle or b"\r" in needle:
                for length in range(min(len(needle) - 1, len(raw)), len(raw) - cut, -1):
                    if raw.endswith(needle[:length]):
                        cut = len(raw) - length
                        break
        return cut

    def _across(self, raw: bytes | bytearray, cut: int) -> tuple[int, int] | None:
        """Return the span of the secret that spans a cut."""
        for needle in self._table:
            at = raw.find(needle, max(0, cut - len(needle) + 1), cut + len(needle) - 1)
            if at >= 0:  # within these limits any occurrence spans the cut
                return at, at + len(needle)
        for match in _FORMS.finditer(raw, max(0, cut - FORM_BYTES), cut + FORM_BYTES):
            if match.start() < cut < match.end():
                return match.start(), match.end()
        return None


class Bounded:
    """Output of a run within a size limit: one half from its beginning, one half from its end."""

    def __init__(self, limit_bytes: int, secrets: Secrets) -> None:
        self._secrets = secrets
        self._half = max(1, limit_bytes // 2)
        self._head = bytearray()  # the first half, and enough to find a secret across its end
        self._given = 0  # bytes of the head already returned
        self._tail = bytearray()  # the end of what came after the first half
        self._lines = 0
        self.total_bytes = 0

    def add(self, chunk: bytes) -> None:
        """Add a chunk of output."""
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
        """Return new complete lines of the beginning, without secrets, so that the output file grows during the run."""
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
        """Return whether `take_head` may return more, now or after more output."""
        return self._given < min(len(self._head), self._half)

    def finish(self) -> bytes:
        """Return the rest of the kept output, with a notice of how much was omitted."""
        whole = bytes(self._head[: self._half]) + bytes(self._tail)  # complete if nothing was cut from the tail
        if self.total_bytes <= len(whole) and self.total_bytes <= 2 * self._half + _SMALL_BYTES:
            return self._secrets.redact(whole[self._given :])
        head_end = self._head_end()
        tail = bytes(self._tail)
        first = self.total_bytes - len(tail)  # where in the stream the tail begins
        cut = len(tail) - self._half
        line_end = tail.find(b"\n", cut - 1, cut + _LINE_BYTES)
        begin = self._secrets.end_of(tail, line_end + 1 if line_end >= 0 else cut)
        begin = max(begin, head_end - first)  # a secret that spans everything omitted
        left_out = first + begin - head_end
        lines = self._lines - self._head.count(b"\n", 0, head_end) - tail.count(b"\n", begin)
        head = self._secrets.redact(bytes(self._head[self._given : head_end]))
        said = f"{lines:,} lines ({format_bytes(left_out)})" if lines else format_bytes(left_out)
        line_break = b"" if self._head.endswith(b"\n", 0, head_end) else b"\n"
        return head + line_break + f"... {said} left out ...\n".encode() + self._secrets.redact(tail[begin:])

    def last_line(self) -> str:
        """Return the last non-empty line for display, without secrets: see `last_line`."""
        raw = bytes(self._tail or self._head)
        begin = max(0, len(raw) - _LAST_BYTES)
        return last_line(self._secrets.redact(raw[self._secrets.end_of(raw, begin) if begin else 0 :]))

    def _head_end(self) -> int:
        line_end = self._head.rfind(b"\n", max(0, self._half - _LINE_BYTES), self._half)
        cut = line_end + 1 if line_end >= 0 else self._half
        return self._secrets.end_of(self._head, max(cut, self._given))


def last_line(text: bytes, limit: int = 200) -> str:
    """Return the last non-empty line of output for display: printable, and shortened."""
    for line in reversed(text[-65536:].decode("utf-8", "replace").splitlines()):
        words = "".join(c if c.isprintable() else " " for c in _ESCAPES.sub("", line)).strip()
        if words:
            return cut(words, limit)
    return ""


_ESCAPES = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]")
"""Colours and the like (ECMA-48, control sequences)."""
