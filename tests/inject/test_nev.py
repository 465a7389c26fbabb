"""The figures of `benchmarks/nev.py`: intervals, the fitted curve, the picture."""

from __future__ import annotations

import xml.etree.ElementTree as ElementTree

import pytest

from benchmarks.nev import FLIPS, NETS, PRECISIONS, Cell, fitted, render, wilson


@pytest.mark.parametrize(
    ("hits", "count", "low", "high"), [(0, 250, 0.0, 0.0151), (5, 10, 0.2366, 0.7634), (250, 250, 0.9849, 1.0)]
)
def test_the_interval_is_wilsons(hits: int, count: int, low: float, high: float) -> None:
    assert list(wilson(hits, count)) == pytest.approx([low, high], abs=1e-4)


def cells(p: float) -> list[Cell]:
    return [
        Cell(net, precision, flips, first_bit, round(250 * (1 - (1 - p) ** flips)) if first_bit == 1 else 0, 250)
        for net in NETS
        for precision in PRECISIONS
        for flips in FLIPS
        for first_bit in (1, 2)
    ]


@pytest.mark.parametrize("p", [0.004, 0.03, 0.1])
def test_the_fit_finds_the_p_of_its_curve(p: float) -> None:
    assert fitted([one for one in cells(p) if one.first_bit == 1 and one.precision == 32]) == pytest.approx(p, rel=0.03)
    assert fitted([one for one in cells(p) if one.first_bit == 2]) == 0


def test_the_picture_has_each_cell_as_text() -> None:
    picture = ElementTree.fromstring(render(cells(0.03)))
    titles = [one.text or "" for one in picture.iter("{http://www.w3.org/2000/svg}title")]
    assert len(titles) == 1 + 3 * 24 and "32 bits, 10 flips: 26.4% (21.3%-32.2%)" in titles
