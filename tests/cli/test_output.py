"""What is printed is safe for a terminal, coloured only for people, and JSON for programs."""

from __future__ import annotations

import json
import sys

import pytest
from hypothesis import given
from hypothesis import strategies as st

from resilience.cli.output import clean, paint, patience, print_json, table

HOSTILE = "a\x1b[2J\x9b31m\r\n\t\x00\x7f\u202e\u2028\udcff\U000e0001é漢"


def test_nothing_in_a_text_from_outside_can_steer_a_terminal() -> None:
    assert clean(HOSTILE) == "a?[2J?31m?????????é漢"


@given(st.text())
def test_a_cleaned_text_is_printable_and_as_long_as_it_was(text: str) -> None:
    cleaned = clean(text)
    assert cleaned.isprintable()
    cleaned.encode()


@pytest.mark.parametrize(
    ("is_terminal", "environ", "painted"),
    [(True, {"TERM": "xterm"}, True), (False, {"TERM": "xterm"}, False), (True, {"TERM": "dumb"}, False),
     (True, {"TERM": "xterm", "NO_COLOR": ""}, False)],
)  # fmt: skip
def test_colours_are_for_people_who_want_them(
    monkeypatch: pytest.MonkeyPatch, is_terminal: bool, environ: dict[str, str], painted: bool
) -> None:
    monkeypatch.delenv("NO_COLOR", raising=False)
    for name, value in environ.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setattr(sys.stdout, "isatty", lambda: is_terminal)
    assert paint("x", "red") == ("\x1b[31mx\x1b[0m" if painted else "x")
    assert paint("x", "") == "x"


def test_a_table_is_as_wide_as_it_must_be_and_leaves_empty_columns_out() -> None:
    assert table(("JOB", "WHY", "NODES"), [("7", "", "n[1-2]"), ("1234567", "", "n\n3")], indent=2) == [
        "  JOB      NODES",
        "  7        n[1-2]",
        "  1234567  n?3",
    ]


def test_json_is_one_document_that_reads_back_and_shows_no_control_character(
    capsys: pytest.CaptureFixture[str],
) -> None:
    print_json("test", {"name": HOSTILE, "plain": "é漢"})
    out = capsys.readouterr().out
    assert json.loads(out) == {"schema": "resil/1", "kind": "test", "name": HOSTILE, "plain": "é漢"}
    assert all(character.isprintable() or character == "\n" for character in out)
    assert '"é漢"' in out
    out.encode()


@given(st.dictionaries(st.text(), st.text() | st.floats(allow_nan=False) | st.none(), max_size=3))
def test_any_content_reads_back(content: dict[str, object]) -> None:
    import io
    from contextlib import redirect_stdout

    with redirect_stdout(io.StringIO()) as out:
        print_json("test", {"content": content})
    assert json.loads(out.getvalue())["content"] == content
    out.getvalue().encode()


def test_somebody_who_waits_is_told_once_and_nobody_else(capsys: pytest.CaptureFixture[str]) -> None:
    with patience("it is slow", after_s=60):
        pass
    assert capsys.readouterr().err == ""
    import time

    with patience("it is slow", after_s=0.01):
        time.sleep(0.3)
    assert capsys.readouterr().err == "resil: it is slow\n"
