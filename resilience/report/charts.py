"""The charts of a report as inline SVG: steps, attempts with incidents, where the time went, the loss. Pure.

Horizontal places are percentages and texts have the size of the page, so that a chart fits a phone without getting
small. No fact is shown by a colour alone: bars have words, letters, a hatching or a line style as well, and the page
has a table for each chart. What comes from a run only gets in through Markup.format(), which escapes.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator, Sequence
from math import ceil

from markupsafe import Markup

from resilience.messages import cut, plural
from resilience.quantities import format_duration
from resilience.report.contents import AttemptLine, IncidentLine, Outcome, Report
from resilience.report.goodput import Category

OWN_ROWS = 40
"""More attempts than this share rows, each of one stretch of time, such as a day."""
MOST_ROWS = 31
LANES = 6
PHONE, CHARACTER = 350, 6.5
"""Width of a chart on a phone, and of a character of it, in pixels: what decides whether a text fits."""
_TICKS_S = (
    *(1, 2, 5, 10, 20, 30, 60, 120, 300, 600, 1200, 1800, 3600, 7200, 10800, 21600, 43200),
    *(86400 * days for days in (1, 2, 5, 10, 20, 50, 100, 200, 500)),
)
_MOST_TICKS = 5
_PLOT, _TOP = 200, 14
"""Height of a plot of lines, and the room above it, in pixels."""
_CLASSES = {
    Outcome.FINISHED: "good", Outcome.OUTSIDE: "outside", Outcome.FAILED: "failed", Outcome.RUNNING: "running",
}  # fmt: skip
HATCH = Markup(
    '<svg width="0" height="0" aria-hidden="true" class="defs"><defs>'
    '<pattern id="hatch" width="6" height="6" patternUnits="userSpaceOnUse" patternTransform="rotate(45)">'
    '<rect class="hatch" width="2.4" height="6"/></pattern></defs></svg>'
)
"""The hatching of failed attempts and unknown time, once for the page."""


def letters(report: Report) -> dict[Category, str]:
    """Return a letter for each category that has time: of its segment of the bar, and of its row of the table."""
    ms = report.time.ms if report.time is not None else {}
    return {one: chr(ord("A") + number) for number, one in enumerate(one for one in Category if ms.get(one))}


def time_bar(report: Report) -> Markup:
    """Return where the time went, as one bar of segments with letters below."""
    assert report.time is not None
    wall, x, parts = max(1, report.time.wall_ms), 0.0, []
    for category, letter in letters(report).items():
        width = 100 * report.time.ms[category] / wall
        parts.append(Markup('<rect class="c-{}" x="{:.3f}%" width="{:.3f}%" height="34"/>').format(category, x, width))
        if category is Category.UNKNOWN:
            hatched = '<rect fill="url(#hatch)" x="{:.3f}%" width="{:.3f}%" height="34"/>'
            parts.append(Markup(hatched).format(x, width))
        if 0.7 * width > 100 * CHARACTER / PHONE:
            label = '<text x="{:.3f}%" y="50" text-anchor="middle">{}</text>'
            parts.append(Markup(label).format(x + width / 2, letter))
        x += width
    said = ", ".join(f"{one.text} {100 * report.time.ms[one] / wall:.1f} %" for one in letters(report))
    return _chart(56, f"Where the time went: {said}", parts)


def step_chart(report: Report) -> Markup:
    """Return steps against time: the restarts are its saw-teeth, and steps that were made again are dotted."""
    most, least = report.last_step or 1, min((one.first_step for one in report.steps), default=0)
    span, height = report.end - report.begin, max(1, most - least)

    def place(at: float, step: int) -> str:
        return f"{1000 * (at - report.begin) / span:.2f} {1000 - 1000 * (step - least) / height:.2f}"

    paths: dict[str, list[str]] = {"teeth": [], "made": [], "redone": []}
    end = ""
    for one in report.steps:
        first, last = place(one.start_time, one.first_step), place(one.end_time, one.last_step)
        if end and end != first:
            paths["teeth"].append(f"M{end}L{first}")
        paths["redone" if one.is_redone else "made"].append(f"M{first}L{last}")
        end = last
    lines = [Markup('<path class="{}" d="{}"/>').format(name, "".join(path)) for name, path in paths.items() if path]
    marks = []
    if len(report.attempts) <= OWN_ROWS:
        for attempt in report.attempts:
            if attempt.outcome is Outcome.FAILED and attempt.end_time is not None and attempt.last_step is not None:
                x = 100 * (attempt.end_time - report.begin) / span
                y = _TOP + _PLOT * (1 - (attempt.last_step - least) / height)
                mark = '<text class="mark" x="{:.2f}%" y="{:.1f}" text-anchor="middle">×</text>'
                marks.append(Markup(mark).format(x, y + 5))
    said = f"Steps against time: from step {least} to step {most} in {format_duration(span)}, {_restarts(report)}"
    grid = [*_grid(least, most), *_time_axis(report.begin, report.end, _TOP + _PLOT)]
    return _chart(_TOP + _PLOT + 22, said, [*grid, _plot(lines), *marks])


def _restarts(report: Report) -> str:
    redone = sum(one.redone_steps for one in report.attempts)
    return f"{plural(max(0, len(report.attempts) - 1), 'restart')}, {plural(redone, 'step')} made again"


def loss_chart(report: Report) -> Markup:
    """Return the loss against the step."""
    (first, *_), (last, *_) = report.losses[0], report.losses[-1]
    low, high = min(loss for _, loss in report.losses), max(loss for _, loss in report.losses)
    span, height = max(1, last - first), (high - low) or 1.0
    points = [
        f"{1000 * (at - first) / span:.1f} {1000 - 1000 * (loss - low) / height:.1f}" for at, loss in report.losses
    ]
    line = Markup('<path class="made" d="{}"/>').format("M" + "L".join(points))
    said = f"Loss against step: from step {first} to {last}, between {low:.4g} and {high:.4g}"
    parts = [*_grid(low, high)]
    for x, anchor, step in ((0, "start", first), (100, "end", last)):
        label = '<text class="dim" x="{}%" y="{}" text-anchor="{}">step {:,}</text>'
        parts.append(Markup(label).format(x, _TOP + _PLOT + 16, anchor, step))
    return _chart(_TOP + _PLOT + 22, said, [*parts, _plot([line])])


# ---- attempts ------------------------------------------------------------------------------------------------------


def gantt(report: Report) -> Markup:
    """Return when each attempt ran and how it ended, with incidents: a row for each, or for each stretch of time."""
    counts = ", ".join(
        f"{sum(one.outcome is outcome for one in report.attempts)} {outcome}" for outcome in Outcome
    )  # fmt: skip
    said = f"{plural(len(report.attempts), 'attempt')}: {counts}; {plural(report.found, 'incident')}"
    is_short = len(report.attempts) <= OWN_ROWS
    height, parts = _own_rows(report) if is_short else _shared_rows(report)
    return _chart(height, said, parts)


def _own_rows(report: Report) -> tuple[int, list[Markup]]:
    begin, end = report.begin, report.end
    lanes = _lanes(report.incidents, report.made_at, (end - begin) * 6 * CHARACTER / PHONE)
    y, parts = 4, list[Markup]()
    for lane in lanes:
        for number, one in lane:
            until = one.resolved if one.resolved is not None else report.made_at
            parts += _bar(one.opened, until, begin, end, y, 8, "incident")
            x = _percent(max(begin, min(end, one.opened)), begin, end)
            anchor = "end" if x > 90 else "start"
            parts.append(_text(x, y + 20, f"▴ {number}", "dim", anchor))
        y += 26
    if lanes:
        y += 4
    top = y
    for attempt in report.attempts:
        said = f"{attempt.attempt}  {attempt.failure or 'running'}"
        said += f" on {attempt.blamed}" if attempt.blamed else ""
        said += f", step {attempt.last_step:,}" if attempt.last_step is not None else ""
        left, right = (_percent(one, begin, end) for one in (attempt.start_time, _end(attempt, report)))
        parts.append(_label(left, right, y + 11, cut(said, 48)))
        if attempt.queue_s:
            parts += _bar(attempt.start_time - attempt.queue_s, attempt.start_time, begin, end, y + 20, 4, "wait")
        parts += _attempt_bar(attempt, report, begin, end, y + 16, 12)
        y += 33
    return y + 22, [*_time_axis(begin, end, y + 2, top - 2), *parts]


def _label(left: float, right: float, y: int, text: str) -> Markup:
    """Return a text above its bar, or in the middle: where it fits a phone."""
    width = 100 * CHARACTER * len(text) / PHONE
    if left + width <= 100:
        return _text(left, y, text)
    return _text(min(right, 100), y, text, "", "end") if right >= width else _text(50, y, text, "", "middle")


def _shared_rows(report: Report) -> tuple[int, list[Markup]]:
    """Rows of the same length, such as a day, from the first to the last moment: a calendar of the run."""
    length = next((one for one in _TICKS_S if (report.end - report.begin) / one <= MOST_ROWS), _TICKS_S[-1])
    parts, y, begin = [], 4, report.begin
    while begin < report.end:
        end = begin + length
        inside = [one for one in report.attempts if one.start_time < end and _end(one, report) > begin]
        parts.append(_text(0, y + 11, _moment(begin), "dim"))
        counted = f"{plural(len(inside), 'attempt')}, {sum(one.outcome is Outcome.FAILED for one in inside)} failed"
        parts.append(_text(100, y + 11, counted, "dim", "end"))
        for one in inside:
            parts += _attempt_bar(one, report, begin, end, y + 15, 12)
        for incident in report.incidents:
            until = incident.resolved if incident.resolved is not None else report.made_at
            if incident.opened < end and until > begin:
                parts += _bar(incident.opened, until, begin, end, y + 28, 4, "incident")
        begin, y = end, y + 38
    return y + 4, parts


def _end(one: AttemptLine, report: Report) -> float:
    return one.end_time if one.end_time is not None else report.made_at


def _attempt_bar(
    one: AttemptLine, report: Report, begin: float, end: float, y: int, height: int
) -> Iterator[Markup]:  # fmt: skip
    yield from _bar(one.start_time, _end(one, report), begin, end, y, height, _CLASSES[one.outcome])
    if one.outcome is Outcome.FAILED:
        yield from _bar(one.start_time, _end(one, report), begin, end, y, height, "hatched")


def _lanes(incidents: Sequence[IncidentLine], now: float, least_s: float) -> list[list[tuple[int, IncidentLine]]]:
    """Return the incidents in rows without overlap, each at least `least_s` long, for its number.

    Those beyond LANES rows are in the table only.
    """
    lanes: list[list[tuple[int, IncidentLine]]] = []
    for number, one in enumerate(incidents, 1):
        for lane in lanes:
            last = lane[-1][1]
            end = last.resolved if last.resolved is not None else now
            if max(end, last.opened + least_s) < one.opened:
                lane.append((number, one))
                break
        else:
            lanes.append([(number, one)])
    return lanes[:LANES]


# ---- parts ---------------------------------------------------------------------------------------------------------


def _chart(height: float, said: str, parts: Iterable[Markup]) -> Markup:
    return Markup('<svg class="chart" role="img" aria-label="{}" width="100%" height="{:.0f}">{}</svg>').format(
        said, height, Markup("").join(parts)
    )


def _plot(lines: Iterable[Markup]) -> Markup:
    """Return lines in a field of 1000 by 1000 that stretches over the chart; the width of the lines does not."""
    field = (
        '<svg y="{}" width="100%" height="{}" viewBox="0 0 1000 1000" preserveAspectRatio="none" class="plot">{}</svg>'
    )
    return Markup(field).format(_TOP, _PLOT, Markup("").join(lines))


def _text(x: float, y: float, text: str, name: str = "", anchor: str = "start") -> Markup:
    shown = '<text class="{}" x="{:.2f}%" y="{}" text-anchor="{}">{}</text>'
    return Markup(shown).format(name, x, y, anchor, "".join(c if c.isprintable() else " " for c in text))


def _percent(at: float, begin: float, end: float) -> float:
    return 100 * (at - begin) / (end - begin)


def _bar(start: float, stop: float, begin: float, end: float, y: float, height: int, name: str) -> Iterator[Markup]:
    """Yield a bar, cut off at the ends of the chart, and at least visible."""
    left, right = max(start, begin), min(max(stop, start), end)
    if right >= left:
        x, width = _percent(left, begin, end), max(0.25, _percent(right, begin, end) - _percent(left, begin, end))
        bar = '<rect class="{}" x="{:.3f}%" y="{}" width="{:.3f}%" height="{}"/>'
        yield Markup(bar).format(name, min(x, 100 - width), y, width, height)


def _grid(low: float, high: float) -> Iterator[Markup]:
    """Yield lines at round values, with the value above each."""
    height = (high - low) or 1.0
    step = next(size for power in range(-12, 19) for size in (10.0**power, 2 * 10.0**power, 5 * 10.0**power)
                if height / size <= 5)  # fmt: skip
    number = ceil(low / step)
    while number * step <= high + step / 1e6:
        y = _TOP + _PLOT * (1 - (number * step - low) / height)
        yield Markup('<line class="grid" x1="0" y1="{:.1f}" x2="100%" y2="{:.1f}"/>').format(y, y)
        yield _text(0, round(y - 3, 1), f"{number * step:,.10g}", "dim")
        number += 1


def _time_axis(begin: float, end: float, bottom: float, top: float = _TOP) -> Iterator[Markup]:
    """Yield lines and labels at round times since the begin."""
    length = end - begin
    step = next((one for one in _TICKS_S if length / one <= _MOST_TICKS), _TICKS_S[-1])
    for number in range(int(length / step) + 1):
        x = 100 * number * step / length
        line = '<line class="grid" x1="{:.2f}%" y1="{}" x2="{:.2f}%" y2="{}"/>'
        yield Markup(line).format(x, top, x, bottom)
        anchor = "start" if not number else "middle" if x < 94 else "end"
        yield _text(x, bottom + 16, format_duration(number * step) if number else "0", "dim", anchor)


def _moment(at: float) -> str:
    """Return a moment in local time. For instance, `Mon 23 Nov 08:00`."""
    return time.strftime("%a %d %b %H:%M", time.localtime(at))
