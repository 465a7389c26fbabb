"""The ranks of a run as a heat map (SVG): how much less than the median rank each waits, window by window. Pure."""

from __future__ import annotations

from html import escape
from statistics import median_high

from resilience.messages import cut
from resilience.ranks.stragglers import Pace, RankPace, describe

WIDTH, LEFT, RIGHT, TOP, BOTTOM = 900, 150, 24, 78, 30
"""In pixels: of the picture, left and right of the cells, above and below the rows."""
HEIGHT, HIGHEST, LOWEST, READABLE = 1000, 22, 2, 11
"""Of all rows together, of a row at most and at least, and of one with its name."""
LEAST_SCALE = 0.2
"""What is fully red, at least: a smaller difference is chance."""
_STYLE = """\
<style>
.paper { fill: #ffffff } text { fill: #1f2328 } .dim { fill: #59636e } .cell { fill: #c62828 } .none { fill: #d1d9e0 }
@media (prefers-color-scheme: dark) {
.paper { fill: #0d1117 } text { fill: #f0f6fc } .dim { fill: #9198a1 } .cell { fill: #f85149 } .none { fill: #3d444d }
}
</style>"""


def render(run: str, pace: Pace) -> str:
    """Return an SVG document: a row per rank, a column per window, oldest left. The redder, the less a rank waits than
    the median rank in that window: ranks that are equally fast are all pale, however little they wait.
    """
    shares: dict[int, list[float]] = {}
    for end, share in (window for one in pace.ranks for window in one.windows):
        shares.setdefault(end, []).extend([] if share is None else [share])
    ends = sorted(shares)
    middle = {end: median_high(found) for end, found in shares.items() if found}
    most = max([LEAST_SCALE, *(middle[end] - min(found) for end, found in shares.items() if found)])
    row = max(LOWEST, min(HIGHEST, HEIGHT // max(1, len(pace.ranks))))
    height = TOP + row * max(1, len(pace.ranks)) + BOTTOM
    said = describe(pace.stragglers) or pace.nothing or "no rank makes the others wait"
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{WIDTH}" height="{height}" viewBox="0 0 {WIDTH} {height}" '
        'font-family="sans-serif" font-size="12">',
        _STYLE,
        f'<rect class="paper" width="{WIDTH}" height="{height}" rx="6"/>',
        f'<text x="14" y="24" font-size="15" font-weight="bold">{escape(run)}: how much ranks wait</text>',
        f'<text x="14" y="44">{escape(cut(said, 140))}</text>',
        '<rect class="cell" x="14" y="54" width="12" height="12" rx="2"/>',
        f'<text class="dim" x="32" y="64">waits {most:.0%} of the time less than the median rank</text>',
        '<rect class="cell" x="332" y="54" width="12" height="12" rx="2" opacity="0.05"/>',
        '<text class="dim" x="350" y="64">waits as long</text>',
        '<rect class="none" x="436" y="54" width="12" height="12" rx="2"/>',
        '<text class="dim" x="454" y="64">does not count: another rank saved or evaluated alone, or no window</text>',
    ]
    for number, one in enumerate(pace.ranks):
        is_named = row >= READABLE or number == 0 or one.host != pace.ranks[number - 1].host
        parts += _row(one, ends, TOP + row * number, row, (middle, most), is_named=is_named)
    if ends:
        parts.append(f'<text class="dim" x="{LEFT}" y="{height - 10}">to step {ends[0]}</text>')
        parts.append(
            f'<text class="dim" x="{WIDTH - RIGHT}" y="{height - 10}" text-anchor="end">to step {ends[-1]}</text>'
        )
    return "\n".join([*parts, "</svg>"]) + "\n"


def _row(
    one: RankPace, ends: list[int], y: int, height: int, scale: tuple[dict[int, float], float], *, is_named: bool
) -> list[str]:
    middle, most = scale
    width = (WIDTH - LEFT - RIGHT) / max(1, len(ends))
    known = dict(one.windows)
    gap = 1 if height > 2 * LOWEST else 0
    parts = []
    if is_named:
        parts.append(f'<text x="14" y="{y + min(height, READABLE)}">{one.rank} on {escape(one.host[:16])}</text>')
    for number, end in enumerate(ends):
        share = known.get(end)
        where = f'x="{LEFT + number * width:.1f}" y="{y}" width="{width - 1:.1f}" height="{height - gap}"'
        if share is None:
            parts.append(f'<rect class="none" {where}/>')
        else:
            title = f"rank {one.rank} on {one.host}, to step {end}: waits {share:.0%}"
            opacity = 0.05 + 0.95 * max(0.0, middle[end] - share) / most
            parts.append(f'<rect class="cell" {where} opacity="{opacity:.2f}"><title>{escape(title)}</title></rect>')
    return parts
