"""The report of a run as one HTML page, which needs nothing from elsewhere: no script, no network, no other file. Pure.

Jinja2 escapes all that comes from the run, and characters without a shape of their own, which could hide or turn text,
become spaces. The page's Content-Security-Policy forbids scripts and requests, should anything get through.
"""

from __future__ import annotations

import json
import time
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

from markupsafe import Markup

from resilience import __version__
from resilience.quantities import format_bytes, format_duration
from resilience.report.charts import HATCH, OWN_ROWS, gantt, letters, loss_chart, step_chart, time_bar
from resilience.report.contents import AttemptLine, Report
from resilience.report.goodput import FOOTNOTES, Category

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from jinja2 import Template

_MARKS = {
    "verified": "✓", "not verified": "–", "damaged": "✗", "set aside": "✗",
    "good": "✓", "suspect": "?", "probation": "?", "excluded": "✗",
}  # fmt: skip


def render(report: Report, document: Mapping[str, Any]) -> str:
    """Return the page. `document`: what `resil report --json` prints, which the page carries."""
    text = json.dumps(document, ensure_ascii=True, separators=(",", ":"))

    def figure(path: str, shown: Callable[[Any], str]) -> Markup:
        """Return a number of the JSON document by its path, as text for people and as value for programs."""
        value: Any = report
        for part in path.split("."):
            if part.isdecimal():
                value = value[int(part)]
            else:
                value = value.get(Category(part), 0) if isinstance(value, dict) else getattr(value, part)
        return Markup('<data value="{}" data-of="{}">{}</data>').format(value, path, shown(value))

    def ran(one: AttemptLine) -> str:
        return format_duration(
            max(0.0, (one.end_time if one.end_time is not None else report.made_at) - one.start_time)
        )

    return _template().render(
        r=report,
        document=Markup(text.replace("<", "\\u003c").replace("&", "\\u0026").replace(">", "\\u003e")),
        figure=figure,
        ran=ran,
        zone=time.strftime("%Z", time.localtime(report.made_at)),
    )


@cache
def _template() -> Template:
    from jinja2 import Environment, FileSystemLoader, StrictUndefined  # 20 ms

    environment = Environment(
        loader=FileSystemLoader(Path(__file__).parent),
        autoescape=True,
        undefined=StrictUndefined,
        finalize=_printable,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters |= {"capitalized": _capitalized, "words": lambda text: str(text).replace("_", " ")}
    environment.globals |= {
        "version": __version__,
        "categories": list(Category),
        "footnotes": FOOTNOTES,
        "hatch": HATCH,
        "own_rows": OWN_ROWS,
        "letters": letters,
        "marks": _MARKS,
        "time_bar": time_bar,
        "step_chart": step_chart,
        "loss_chart": loss_chart,
        "gantt": gantt,
        "moment": _moment,
        "day": lambda at: time.strftime("%d %b %H:%M", time.localtime(at)),
        "ms": _duration_ms,
        "duration_ms": _duration_ms,
        "seconds": _seconds,
        "duration": _seconds,
        "percent": _percent,
        "hours": lambda hours: f"{hours:,.1f}",
        "string": lambda number: f"{number:,}",
        "size": format_bytes,
    }
    return environment.get_template("page.html.j2")


def _printable(value: object) -> object:
    """Return a text without characters that have no shape: controls, and those that turn or hide what follows."""
    if not isinstance(value, str) or isinstance(value, Markup):
        return value
    return "".join(c if c.isprintable() or c in "\n\xa0" else " " for c in value)


def _capitalized(text: str) -> str:
    return text[:1].upper() + text[1:].replace(" %", "\xa0%")


def _moment(at: float) -> str:
    return time.strftime("%a %d %b %Y %H:%M", time.localtime(at))


def _duration_ms(ms: int) -> str:
    return _seconds(ms / 1000)


def _seconds(seconds: float) -> str:
    return f"{1000 * seconds:.0f} ms" if 0 < seconds < 0.1 else format_duration(seconds)


def _percent(share: float) -> str:
    return f"{100 * share:.1f}\xa0%"
