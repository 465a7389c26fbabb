"""The attempts of a run as a picture (SVG): when each ran, how it ended, and the time in between. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from html import escape

from resilience.attempts.breaker import TREATMENTS, Treatment
from resilience.attempts.ledger import LedgerRow
from resilience.messages import cut
from resilience.quantities import format_duration

WIDTH, LEFT, RIGHT, ROW, TOP = 1000, 170, 250, 26, 46
"""In pixels: of the picture, left and right of the bars, of a row, above the rows."""
GOOD, NEUTRAL, BAD, RUNNING = "#2e7d32", "#1565c0", "#c62828", "#9e9e9e"
_COLOURS = {Treatment.END: GOOD, Treatment.NEUTRAL: NEUTRAL}
"""Of other ends: BAD."""


def render(run: str, rows: Sequence[LedgerRow], now: float) -> str:
    """Return an SVG document: one row per attempt, oldest first. `now` ends the attempts that run."""
    height = TOP + ROW * max(1, len(rows)) + 16
    begin = min((row.start_time for row in rows), default=now)
    end = max(
        [now if row.end_time is None and row.failure is None else row.end_time or row.start_time for row in rows]
        + [begin]
    )
    scale = (WIDTH - LEFT - RIGHT) / max(1.0, end - begin)
    trained = sum(row.seconds or 0.0 for row in rows)
    waited = sum(row.queue_s or 0.0 for row in rows[1:])
    head = f"{run}: {len(rows)} attempts in {format_duration(end - begin)}, {format_duration(trained)} of them running"
    head += f", {format_duration(waited)} between jobs" if waited else ""
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{WIDTH}" height="{height}" viewBox="0 0 {WIDTH} {height}" '
        'font-family="sans-serif" font-size="12">',
        f'<rect width="{WIDTH}" height="{height}" fill="white"/>',
        f'<text x="12" y="24" font-size="15" font-weight="bold">{escape(head)}</text>',
    ]
    for number, row in enumerate(rows):
        parts += _row(row, TOP + ROW * number, begin, scale, now)
    return "\n".join([*parts, "</svg>"]) + "\n"


def _row(row: LedgerRow, y: float, begin: float, scale: float, now: float) -> list[str]:
    failure = row.failure
    ended = row.end_time if row.end_time is not None else now if failure is None else row.start_time
    x, width = LEFT + (row.start_time - begin) * scale, max(2.0, (ended - row.start_time) * scale)
    colour = RUNNING if failure is None else _COLOURS.get(TREATMENTS[failure.failure], BAD)
    said = "running" if failure is None else failure.failure.text
    steps = "" if row.last_step is None else f", step {row.last_step}"
    where = f" on {failure.host}" if failure is not None and failure.host else ""
    title = said if failure is None else f"{said}: {failure.reason}"
    title += f"; decided: {row.decided}" if row.decided else ""
    parts = []
    if row.queue_s:
        waited = min(row.queue_s * scale, x - LEFT)
        parts.append(f'<rect x="{x - waited:.1f}" y="{y + 9}" width="{waited:.1f}" height="4" fill="#e0e0e0"/>')
    parts += [
        f'<text x="12" y="{y + 15}">{row.attempt}  job {escape(cut(row.job, 14))}</text>',
        f'<rect x="{x:.1f}" y="{y + 3}" width="{width:.1f}" height="16" rx="2" fill="{colour}">'
        f"<title>{escape(title)}</title></rect>",
        f'<text x="{x + width + 6:.1f}" y="{y + 15}">{escape(cut(said + steps + where, 48))}</text>',
    ]
    return parts
