"""The picture of a report as PNG, for mails and Slack, which show no SVG: steps against time, attempts, where the time
went. Pure.

It has no words: those are in the message. One byte per pixel and a palette (PNG colour type 3, W3C PNG specification,
11.2.2), in the colours of the page.
"""

from __future__ import annotations

import struct
import zlib
from collections.abc import Sequence

from resilience.report.contents import Outcome, Report
from resilience.report.goodput import Category

WIDTH, MARGIN, PLOT, BAR, GAP = 1200, 16, 260, 28, 16
_PAPER, _LINE, _MADE, _REDONE = "ffffff", "d1d9e0", "0072b2", "d55e00"
_OUTCOMES = {Outcome.FINISHED: "0072b2", Outcome.OUTSIDE: "56b4e9", Outcome.FAILED: "d55e00", Outcome.RUNNING: "8c959f"}
_CATEGORIES = {
    Category.PRODUCTIVE: "0072b2", Category.REDONE: "d55e00", Category.SAVE_STALL: "e69f00",
    Category.EVALUATION: "009e73", Category.DATA_WAIT: "b8a900", Category.START_UP: "56b4e9",
    Category.RESTORE: "2a7f9e", Category.HANG: "a0346e", Category.DRAIN: "cc79a7", Category.TAIL: "a98467",
    Category.QUEUE: "b3bbc4", Category.HELD: "6e7781", Category.UNKNOWN: "d8dee4",
}  # fmt: skip
_COLOURS = list(dict.fromkeys([_PAPER, _LINE, _MADE, _REDONE, *_OUTCOMES.values(), *_CATEGORIES.values()]))


class _Canvas:
    """Rows of bytes, each the number of a colour."""

    def __init__(self, width: int, height: int) -> None:
        self.rows = [bytearray(width) for _ in range(height)]

    def fill(self, x: float, y: int, width: float, height: int, colour: str) -> None:
        """Fill a rectangle, at least one pixel wide."""
        left = max(0, min(WIDTH - 1, int(x)))
        right = max(left + 1, min(WIDTH, int(x + width)))
        for row in self.rows[max(0, y) : y + height]:
            row[left:right] = bytes([_COLOURS.index(colour)]) * (right - left)

    def line(self, x: float, y: float, to_x: float, to_y: float, colour: str) -> None:
        """Draw a line of three pixels."""
        steps = max(1, int(max(abs(to_x - x), abs(to_y - y))))
        for number in range(steps + 1):
            part = number / steps
            self.fill(x + part * (to_x - x) - 1, int(y + part * (to_y - y)) - 1, 3, 3, colour)


def render_png(report: Report) -> bytes:
    """Return the picture of a run with attempts."""
    canvas = _Canvas(WIDTH, 4 * GAP + PLOT + 2 * BAR)
    inside, span = WIDTH - 2 * MARGIN, report.end - report.begin

    def x(at: float) -> float:
        return MARGIN + inside * max(0.0, min(1.0, (at - report.begin) / span))

    most, least = report.last_step or 1, min((one.first_step for one in report.steps), default=0)
    for number in range(5):
        canvas.fill(MARGIN, GAP + number * PLOT // 4, inside, 1, _LINE)
    for one in report.steps:
        ends = [GAP + PLOT * (1 - (step - least) / max(1, most - least)) for step in (one.first_step, one.last_step)]
        colour = _REDONE if one.is_redone else _MADE
        canvas.line(x(one.start_time), ends[0], x(one.end_time), ends[1], colour)
    top = 2 * GAP + PLOT
    for attempt in report.attempts:
        left, until = x(attempt.start_time), attempt.end_time if attempt.end_time is not None else report.made_at
        canvas.fill(left, top, x(until) - left - 1, BAR, _OUTCOMES[attempt.outcome])
    if report.time is not None and report.time.wall_ms:
        left = float(MARGIN)
        for category in Category:
            width = inside * report.time.ms.get(category, 0) / report.time.wall_ms
            if width:
                canvas.fill(left, top + BAR + GAP, width, BAR, _CATEGORIES[category])
            left += width
    return _png(canvas.rows)


def _png(rows: Sequence[bytearray]) -> bytes:
    def chunk(kind: bytes, content: bytes) -> bytes:
        return struct.pack(">I", len(content)) + kind + content + struct.pack(">I", zlib.crc32(kind + content))

    head = struct.pack(">IIBBBBB", len(rows[0]), len(rows), 8, 3, 0, 0, 0)
    pixels = zlib.compress(b"".join(b"\0" + row for row in rows), 9)
    palette = bytes.fromhex("".join(_COLOURS))
    parts = ((b"IHDR", head), (b"PLTE", palette), (b"IDAT", pixels), (b"IEND", b""))
    return b"\x89PNG\r\n\x1a\n" + b"".join(chunk(*part) for part in parts)
