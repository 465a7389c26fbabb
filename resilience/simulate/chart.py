"""A sweep as a picture (SVG): how much of the time is trained, against the interval. Pure."""

from __future__ import annotations

import math
from collections.abc import Sequence
from html import escape

from resilience.quantities import format_duration
from resilience.simulate.outcome import Point

WIDTH, HEIGHT, LEFT, RIGHT, TOP, BOTTOM = 900, 430, 74, 24, 84, 66
"""In pixels: of the picture, and around the plot."""
_STYLE = """\
<style>
.paper { fill: #ffffff } text { fill: #1f2328 } .dim { fill: #59636e } .grid { stroke: #d1d9e0 }
.line { stroke: #1565c0; stroke-width: 2; fill: none } .dot { fill: #1565c0 } .band { fill: #1565c0; opacity: 0.18 }
.auto { stroke: #b35900; stroke-width: 2; stroke-dasharray: 6 4 } .best { fill: #2e7d32 }
@media (prefers-color-scheme: dark) {
.paper { fill: #0d1117 } text { fill: #f0f6fc } .dim { fill: #9198a1 } .grid { stroke: #3d444d }
.line { stroke: #4493f8 } .dot, .band { fill: #4493f8 } .auto { stroke: #e3a04f } .best { fill: #3fb950 }
}
</style>"""


def render(title: str, what: str, points: Sequence[Point]) -> str:
    """Return an SVG document. Each point has its numbers as text, for readers that see no picture."""
    fixed = [one for one in points if one.name != "auto"]
    logs = [math.log(one.interval_s) if one.interval_s == one.interval_s else i for i, one in enumerate(fixed)]
    bands = [one.outcome.ettr for one in points]
    low, high = min(one.low for one in bands), max(one.high for one in bands)
    low, high = max(0.0, low - 0.1 * (high - low) - 0.002), min(1.0, high + 0.1 * (high - low) + 0.002)
    left, right = min(logs), max(logs)

    def x(log: float) -> float:
        return LEFT + (log - left) / ((right - left) or 1.0) * (WIDTH - LEFT - RIGHT)

    def y(share: float) -> float:
        return TOP + (high - share) / (high - low) * (HEIGHT - TOP - BOTTOM)

    best = max(fixed, key=lambda one: one.outcome.ettr.mean)
    said = f"best: {_label(one=best)}, {best.outcome.ettr.mean:.1%} of the time trained"
    upper = " ".join(f"{x(log):.1f},{y(one.outcome.ettr.high):.1f}" for log, one in zip(logs, fixed, strict=True))
    lower = [f"{x(log):.1f},{y(one.outcome.ettr.low):.1f}" for log, one in zip(logs, fixed, strict=True)]
    middle = " ".join(f"{x(log):.1f},{y(one.outcome.ettr.mean):.1f}" for log, one in zip(logs, fixed, strict=True))
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{WIDTH}" height="{HEIGHT}" viewBox="0 0 {WIDTH} {HEIGHT}" '
        'font-family="sans-serif" font-size="12" role="img">',
        f"<title>{escape(title)}</title><desc>{escape(said)}</desc>",
        _STYLE,
        f'<rect class="paper" width="{WIDTH}" height="{HEIGHT}" rx="6"/>',
        f'<text x="14" y="24" font-size="15" font-weight="bold">{escape(title)}</text>',
        f'<text x="14" y="44">{escape(said)}</text>',
        '<text class="dim" x="14" y="64">ETTR: the mean, and between 10 and 90 % of the simulated runs</text>',
    ]
    for number in range(5):
        share = low + (high - low) * number / 4
        parts.append(
            f'<line class="grid" x1="{LEFT}" y1="{y(share):.1f}" x2="{WIDTH - RIGHT}" y2="{y(share):.1f}"/>'
            f'<text class="dim" x="{LEFT - 8}" y="{y(share) + 4:.1f}" text-anchor="end">{share:.1%}</text>'
        )
    parts.append(f'<polygon class="band" points="{upper} {" ".join(reversed(lower))}"/>')
    parts.append(f'<polyline class="line" points="{middle}"/>')
    for one in points:
        if one.name == "auto":
            level = y(one.outcome.ettr.mean)
            parts.append(
                f'<line class="auto" x1="{LEFT}" y1="{level:.1f}" x2="{WIDTH - RIGHT}" y2="{level:.1f}">'
                f"<title>{_spoken(one)}</title></line>"
                f'<text x="{WIDTH - RIGHT}" y="{level - 5:.1f}" text-anchor="end">auto</text>'
            )
    for number, (log, one) in enumerate(zip(logs, fixed, strict=True)):
        kind, radius = ("best", 6) if one is best else ("dot", 4)
        parts.append(
            f'<circle class="{kind}" cx="{x(log):.1f}" cy="{y(one.outcome.ettr.mean):.1f}" r="{radius}">'
            f"<title>{_spoken(one)}</title></circle>"
        )
        anchor = "start" if number == 0 else "end" if number == len(fixed) - 1 else "middle"
        place = HEIGHT - BOTTOM + 18 + 14 * (number % 2)
        parts.append(f'<text class="dim" x="{x(log):.1f}" y="{place}" text-anchor="{anchor}">{_label(one)}</text>')
    middle_x = (LEFT + WIDTH - RIGHT) / 2
    parts.append(f'<text x="{middle_x:.0f}" y="{HEIGHT - 8}" text-anchor="middle">{escape(what)}</text>')
    return "\n".join([*parts, "</svg>"]) + "\n"


def _label(one: Point) -> str:
    return format_duration(round(one.interval_s)) if one.interval_s == one.interval_s else one.name


def _spoken(one: Point) -> str:
    ettr = one.outcome.ettr
    return escape(f"{_label(one)}: ETTR {ettr.mean:.1%} ({ettr.low:.1%} to {ettr.high:.1%})")
