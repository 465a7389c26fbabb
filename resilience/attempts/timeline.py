"""The attempts of a run as a picture (SVG, or text): when each ran, how it ended, and the time in between. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from html import escape

from resilience.attempts.breaker import Treatment, treatment_of
from resilience.attempts.ledger import LedgerRow, totals_of
from resilience.messages import cut, plural
from resilience.quantities import format_duration
from resilience.runs.injections import Injection, describe_injection
from resilience.settings.sections import ActSettings

WIDTH, LEFT, RIGHT, ROW, TOP, BOTTOM = 900, 124, 356, 24, 66, 34
"""In pixels: of the picture, left and right of the bars, of a row, above and below the rows."""
_CLASSES = {Treatment.END: "good", Treatment.NEUTRAL: "outside"}
"""Of bars; of other ends: failed."""
_LEGEND = (("good", "finished"), ("outside", "ended from outside"), ("failed", "failed"), ("running", "running"))
_TICKS_S = (
    *(1, 2, 5, 10, 20, 30, 60, 120, 300, 600, 1200, 1800, 3600, 7200, 10800, 21600, 43200),
    *(86400 * days for days in (1, 2, 5, 10, 20, 50, 100, 200, 500)),
)
_MOST_TICKS = 6
_STYLE = """\
<style>
.paper { fill: #ffffff } text { fill: #1f2328 } .dim { fill: #59636e } .grid { stroke: #d1d9e0 } .wait { fill: #d1d9e0 }
.injected { fill: #8250df }
.good { fill: #2e7d32 } .outside { fill: #1565c0 } .failed { fill: #c62828 } .running { fill: #8a8a8a }
@media (prefers-color-scheme: dark) {
.paper { fill: #0d1117 } text { fill: #f0f6fc } .dim { fill: #9198a1 } .grid { stroke: #3d444d } .wait { fill: #3d444d }
.good { fill: #3fb950 } .outside { fill: #4493f8 } .failed { fill: #f85149 } .running { fill: #9198a1 }
}
</style>"""


def render(run: str, rows: Sequence[LedgerRow], now: float, injections: Sequence[Injection] = ()) -> str:
    """Return an SVG document: one row per attempt, oldest first. `now` ends the attempts that run; faults that were
    injected on purpose are marked."""
    begin, end = _ends(rows, now)
    height = TOP + ROW * max(1, len(rows)) + BOTTOM
    scale = (WIDTH - LEFT - RIGHT) / max(1.0, end - begin)
    head = _head(run, rows, end - begin, now)
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{WIDTH}" height="{height}" viewBox="0 0 {WIDTH} {height}" '
        'font-family="sans-serif" font-size="12">',
        _STYLE,
        f'<rect class="paper" width="{WIDTH}" height="{height}" rx="6"/>',
        f'<text x="14" y="24" font-size="15" font-weight="bold">{escape(head)}</text>',
        *_legend(),
        *_axis(max(1.0, end - begin), scale, height - BOTTOM + 4),
    ]
    for number, row in enumerate(rows):
        parts += _row(row, TOP + ROW * number, begin, scale, now)
        parts += _marks(row, TOP + ROW * number, begin, scale, injections)
    return "\n".join([*parts, "</svg>"]) + "\n"


def render_text(
    run: str, rows: Sequence[LedgerRow], now: float, width: int, injections: Sequence[Injection] = ()
) -> list[str]:
    """Return lines of at most `width` characters: one per attempt, oldest first, with a bar and how it ended; and one
    per fault that was injected on purpose."""
    begin, end = _ends(rows, now)
    room = max(10, width // 2)
    lines = [_head(run, rows, end - begin, now)]
    for row in rows:
        first = int((row.start_time - begin) / max(1.0, end - begin) * (room - 1))
        last = int((_end(row, now) - begin) / max(1.0, end - begin) * (room - 1))
        bar = " " * first + "█" * (last - first + 1)
        steps = "" if row.last_step is None else f", step {row.last_step}"
        lines.append(cut(f"{row.attempt:>5} │{bar:<{room}}│ {_said(row)}{steps}", width))
        for one in (one for one in injections if one.attempt == row.attempt):
            at = max(0, min(room - 1, int((one.begun - begin) / max(1.0, end - begin) * (room - 1))))
            lines.append(cut(f"      │{' ' * at + '▲':<{room}}│ injected {describe_injection(one)}", width))
    return lines


def _marks(row: LedgerRow, y: float, begin: float, scale: float, injections: Sequence[Injection]) -> list[str]:
    """Return a triangle below the bar for each fault that was injected into an attempt."""
    parts = []
    for one in (one for one in injections if one.attempt == row.attempt):
        x = LEFT + (one.begun - begin) * scale
        parts.append(
            f'<path class="injected" d="M{x - 4:.1f} {y + 20} L{x + 4:.1f} {y + 20} L{x:.1f} {y + 13} Z">'
            f"<title>{escape('injected ' + describe_injection(one))}</title></path>"
        )
    return parts


def _ends(rows: Sequence[LedgerRow], now: float) -> tuple[float, float]:
    begin = min((row.start_time for row in rows), default=now)
    return begin, max((_end(row, now) for row in rows), default=now)


def _head(run: str, rows: Sequence[LedgerRow], length_s: float, now: float) -> str:
    trained = totals_of(rows, now).trained_s
    waited = sum(row.queue_s or 0.0 for row in rows[1:])
    attempts = plural(len(rows), "attempt")
    head = f"{run}: {attempts} in {format_duration(length_s)}, {format_duration(trained)} of them running"
    return head + (f", {format_duration(waited)} between jobs" if waited else "")


def _said(row: LedgerRow) -> str:
    return "running" if row.failure is None else row.failure.failure.text


def _end(row: LedgerRow, now: float) -> float:
    """Return when an attempt ended; one whose end is unknown is drawn as a moment."""
    return row.end_time if row.end_time is not None else now if row.failure is None else row.start_time


def _legend() -> list[str]:
    parts, x = [], LEFT
    for name, text in _LEGEND:
        parts.append(f'<rect class="{name}" x="{x}" y="37" width="12" height="12" rx="2"/>')
        parts.append(f'<text class="dim" x="{x + 17}" y="47">{text}</text>')
        x += 36 + 7 * len(text)
    parts.append(f'<rect class="wait" x="{x}" y="41" width="16" height="4"/>')
    parts.append(f'<text class="dim" x="{x + 21}" y="47">between jobs</text>')
    return parts


def _axis(length_s: float, scale: float, bottom: float) -> list[str]:
    """Return lines and labels at round times since the first attempt began."""
    step = next((one for one in _TICKS_S if length_s / one <= _MOST_TICKS), _TICKS_S[-1])
    parts = []
    for number in range(int(length_s / step) + 1):
        x = LEFT + number * step * scale
        parts.append(f'<line class="grid" x1="{x:.1f}" y1="{TOP - 8}" x2="{x:.1f}" y2="{bottom}"/>')
        label = format_duration(number * step) if number else "0"
        parts.append(f'<text class="dim" x="{x:.1f}" y="{bottom + 16}" text-anchor="middle">{label}</text>')
    return parts


def _row(row: LedgerRow, y: float, begin: float, scale: float, now: float) -> list[str]:
    failure = row.failure
    x, width = LEFT + (row.start_time - begin) * scale, max(2.0, (_end(row, now) - row.start_time) * scale)
    name = "running" if failure is None else _CLASSES.get(treatment_of(row, ActSettings()), "failed")
    said = _said(row)
    steps = "" if row.last_step is None else f", step {row.last_step}"
    where = f" on {failure.host}" if failure is not None and failure.host else ""
    decided = f" → {row.decided}" if row.decided else ""
    title = said if failure is None else f"{said}: {failure.reason}"
    parts = []
    if row.queue_s:
        waited = min(row.queue_s * scale, x - LEFT)
        parts.append(f'<rect class="wait" x="{x - waited:.1f}" y="{y + 6}" width="{waited:.1f}" height="4"/>')
    parts += [
        f'<text x="14" y="{y + 12}">{row.attempt}</text>',
        f'<text class="dim" x="42" y="{y + 12}">job {escape(cut(row.job, 9))}</text>',
        f'<rect class="{name}" x="{x:.1f}" y="{y}" width="{width:.1f}" height="16" rx="2">'
        f"<title>{escape(title + decided)}</title></rect>",
        f'<text x="{WIDTH - RIGHT + 22}" y="{y + 12}">{escape(cut(said + steps + where + decided, 50))}</text>',
    ]
    return parts
