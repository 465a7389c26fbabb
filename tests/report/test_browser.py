"""The page of a report in a real browser: headless Chromium, where it is installed (`make test WITH=browser`).

A second page measures it in frames of several widths: what is drawn where, not how its pixels look.
"""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import zlib
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from resilience.cli.output import plain
from resilience.report.charts import letters
from resilience.report.contents import Report
from resilience.report.page import render
from tests.report.simulated import BEGIN, simulated

CHROMIUM = next(
    (path for name in ("chromium", "chromium-browser", "google-chrome") if (path := shutil.which(name))), ""
)
FLAGS = (
    "--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run",
    "--disable-background-networking", "--disable-component-update", "--disable-sync", "--hide-scrollbars",
    "--enable-logging=stderr", "--allow-file-access-from-files",
)  # fmt: skip
WIDTHS = (390, 768, 1280)
EMPTY = Report(run="gpt", made_at=BEGIN, state="not started")
NAMED = simulated(12)
LONG = tuple(
    replace(one, failure="collective timeout", blamed="gpu-node-0123.cluster.example.org") for one in NAMED.attempts
)
REPORTS = {
    "twelve": NAMED,
    "long": replace(NAMED, attempts=LONG, run="g" * 100),
    "many": simulated(400),
    "empty": EMPTY,
}

pytestmark = [
    pytest.mark.skipif(not CHROMIUM, reason="no chromium here: make test WITH=browser"),
    pytest.mark.timeout(300),
]

MEASURE = """\
<!DOCTYPE html><meta charset="utf-8"><link rel="icon" href="data:,"><body>
<script>
const found = [];
function box(element) {
  const {left, right, top, bottom, width} = element.getBoundingClientRect();
  return {left, right, top, bottom, width, text: element.textContent, name: element.getAttribute("class") || ""};
}
function measure(frame) {
  const page = frame.contentDocument, root = page.documentElement;
  const charts = [...page.querySelectorAll("svg.chart")].map(chart => ({
    label: chart.getAttribute("aria-label"), ...box(chart),
    texts: [...chart.querySelectorAll("text")].map(box), bars: [...chart.querySelectorAll("rect")].map(box),
  }));
  const focus = [...page.querySelectorAll("[tabindex], a[href], summary")].length;
  return {width: frame.width, inside: root.scrollWidth, height: root.scrollHeight, charts, focus,
          sections: page.querySelectorAll("section").length, heading: page.querySelector("h1").textContent};
}
const frames = WIDTHS.map(width => {
  const frame = document.createElement("iframe");
  frame.width = width; frame.height = 900; frame.src = "page.html";
  document.body.append(frame);
  return new Promise(done => frame.onload = () => done(measure(frame)));
});
Promise.all(frames).then(all => {
  const out = document.createElement("pre");
  out.id = "measured"; out.textContent = JSON.stringify(all);
  document.body.replaceChildren(out);
});
</script>
"""


def chromium(directory: Path, page: str, *words: str) -> subprocess.CompletedProcess[str]:
    """Run the browser once, with a profile of its own."""
    profile = directory / "profile"
    shutil.rmtree(profile, ignore_errors=True)
    argv = [CHROMIUM, *FLAGS, f"--user-data-dir={profile}", "--virtual-time-budget=20000", *words]
    done = subprocess.run([*argv, f"file://{directory / page}"], capture_output=True, text=True, timeout=240)
    assert done.returncode == 0, done.stderr[-2000:]
    said = [line for line in done.stderr.splitlines() if "CONSOLE" in line or "Refused" in line]
    assert not said, "no error and no warning in the console"
    return done


@pytest.fixture(scope="module", params=REPORTS)
def measured(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> tuple[Report, list[Any]]:
    """A report, and what the browser measured of its page in frames of several widths."""
    directory = tmp_path_factory.mktemp("browser")
    report = REPORTS[request.param]
    (directory / "page.html").write_text(render(report, plain(report)))
    (directory / "measure.html").write_text(MEASURE.replace("WIDTHS.map", f"{list(WIDTHS)}.map"))
    done = chromium(directory, "measure.html", "--dump-dom")
    match = re.search(r'<pre id="measured">(.*?)</pre>', done.stdout, re.DOTALL)
    assert match, done.stdout[-2000:] + done.stderr[-2000:]
    text = match[1].replace("&lt;", "<").replace("&gt;", ">").replace("&amp;", "&")
    return report, json.loads(text)


def test_the_page_fits_a_phone_a_tablet_and_a_screen(measured: tuple[Report, list[Any]]) -> None:
    report, pages = measured
    assert [int(page["width"]) for page in pages] == [*WIDTHS]
    for page in pages:
        assert page["inside"] <= int(page["width"]), "nothing sticks out to the right"
        assert page["heading"].casefold().startswith(report.state)
        assert page["sections"] == (9 if report.attempts else 0)


def test_every_text_of_a_chart_lies_within_it_and_they_do_not_cover_each_other(
    measured: tuple[Report, list[Any]],
) -> None:
    report, pages = measured
    for page in pages:
        assert len(page["charts"]) == (4 if report.attempts else 0)
        for chart in page["charts"]:
            texts = [one for one in chart["texts"] if one["text"].strip() and one["name"] != "mark"]
            for one in texts:
                assert one["left"] >= chart["left"] - 1 and one["right"] <= chart["right"] + 1, (one, page["width"])
                assert one["top"] >= chart["top"] - 4 and one["bottom"] <= chart["bottom"] + 4, (one, page["width"])
            shared = [one for one in texts if "attempts" not in chart["label"] and "▴" not in one["text"]]
            axis = sorted((one for one in shared if one["top"] > chart["bottom"] - 30), key=lambda one: one["left"])
            for first, second in pairwise(axis):
                assert first["right"] <= second["left"] + 1, (first, second, page["width"])


def test_the_bar_has_the_shares_of_the_time(measured: tuple[Report, list[Any]]) -> None:
    report, pages = measured
    for page in pages:
        if report.time is None:
            assert not page["charts"]
            continue
        (bar,) = (chart for chart in page["charts"] if chart["label"].startswith("Where the time went"))
        widths = {one["name"]: one["width"] / bar["width"] for one in bar["bars"]}
        assert set(widths) == {f"c-{one}" for one in letters(report)}
        for category in letters(report):
            assert widths[f"c-{category}"] == pytest.approx(report.time.ms[category] / report.time.wall_ms, abs=0.003)


def test_what_is_folded_and_what_scrolls_is_reached_by_keyboard(measured: tuple[Report, list[Any]]) -> None:
    report, pages = measured
    for page in pages:
        assert page["focus"] >= (9 if report.attempts else 1)
        assert page["height"] < 12_000, "the table of 400 attempts is folded"


def first_pixel(path: Path) -> tuple[int, ...]:
    """The colour of the upper left corner of a PNG: its first pixel is stored as it is, whatever the row's filter."""
    raw, chunks, at = path.read_bytes(), b"", 8
    while at < len(raw):
        size, kind = int.from_bytes(raw[at : at + 4], "big"), raw[at + 4 : at + 8]
        chunks += raw[at + 8 : at + 8 + size] if kind == b"IDAT" else b""
        at += 12 + size
    return tuple(zlib.decompress(chunks)[1:4])


def test_the_page_is_light_dark_and_printable(tmp_path: Path) -> None:
    report = simulated(12)
    (tmp_path / "page.html").write_text(render(report, plain(report)))
    for scheme, colour in ((1, (255, 255, 255)), (0, (13, 17, 23))):
        words = (f"--blink-settings=preferredColorScheme={scheme}", "--window-size=1280,2000")
        chromium(tmp_path, "page.html", *words, f"--screenshot={tmp_path / 'page.png'}")
        assert first_pixel(tmp_path / "page.png") == colour
        assert (tmp_path / "page.png").stat().st_size > 100_000, "it is not empty"
    chromium(tmp_path, "page.html", "--no-pdf-header-footer", f"--print-to-pdf={tmp_path / 'page.pdf'}")
    raw = (tmp_path / "page.pdf").read_bytes()
    pages = re.findall(rb"/Type\s*/Page\b(?!s)", raw)
    assert raw.startswith(b"%PDF") and 2 <= len(pages) <= 6
