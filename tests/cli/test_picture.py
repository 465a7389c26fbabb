"""The picture is a well-formed SVG that shows the lines and asks the network for nothing."""

from __future__ import annotations

from pathlib import Path
from xml.etree import ElementTree

import pytest

from resilience.cli.picture import write_svg
from resilience.errors import StateDirectoryError


def shown(path: Path) -> str:
    return "".join(ElementTree.parse(path).getroot().itertext()).replace("\xa0", " ")


def test_every_line_is_in_the_picture_in_one_piece(tmp_path: Path) -> None:
    long = "a line that is much wider than eighty columns " * 4
    write_svg(
        tmp_path / "x.svg", [("$ resil demo", "bold"), (long, "red"), ("", ""), ("é 漢 [bold]x[/]", "dim")], title="T"
    )
    text = shown(tmp_path / "x.svg")
    assert "$ resil demo" in text and long.rstrip() in text and "é 漢 [bold]x[/]" in text


def test_nothing_in_a_text_breaks_the_picture(tmp_path: Path) -> None:
    write_svg(tmp_path / "x.svg", [("<script>alert(1)</script> & \"'", "no such colour")], title="<T>")
    assert "<script>alert(1)</script> & \"'" in shown(tmp_path / "x.svg")


def test_the_picture_asks_the_network_for_nothing(tmp_path: Path) -> None:
    write_svg(tmp_path / "x.svg", [("x", "")], title="T")
    drawn = (tmp_path / "x.svg").read_text().replace('xmlns="http://www.w3.org/2000/svg"', "")
    assert "http" not in drawn.replace("https://www.textualize.io", "") and "@font-face" not in drawn


def test_a_picture_of_nothing_is_a_picture(tmp_path: Path) -> None:
    write_svg(tmp_path / "x.svg", [], title="T")
    assert ElementTree.parse(tmp_path / "x.svg").getroot().tag.endswith("svg")


def test_a_folder_that_is_not_there_is_named(tmp_path: Path) -> None:
    with pytest.raises(StateDirectoryError, match="No such file"):
        write_svg(tmp_path / "none" / "x.svg", [("x", "")], title="T")
