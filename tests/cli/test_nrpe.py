"""`resil watch --nrpe` prints one line and only one, of 4,096 bytes at most, whatever happens."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from resilience.cli.run_watch import NRPE_BYTES, nrpe_line, nrpe_unknown
from tests.lab.shell import Shell

LINE = re.compile(r"[A-Z ]+ (OK|WARNING|CRITICAL|UNKNOWN) - [^|\n]+( \| ('[^'\n]+'=\S+ ?)+)?\n")


@pytest.mark.parametrize(
    ("words", "code", "begin"),
    [
        (("--all", "--no-alert"), (0, 1, 2, 3), "RESIL "),
        (("fs", "/", "--no-alert", "--warn-percent", "100%", "--crit-percent", "100%"), (0,), "FS OK - "),
        (("fs", "/", "--no-alert", "--crit-percent", "2%", "--warn-percent", "1%"), (0, 1, 2), "FS "),
        (("fs", "/nowhere/at/all", "--no-alert"), (2,), "FS CRITICAL - "),
        (("fs", "--no-such-option"), (3,), "RESIL UNKNOWN - No such option"),
        (("nothing",), (3,), "RESIL UNKNOWN - "),
        (("fs", "--deadline", "soon"), (3,), "RESIL UNKNOWN - --deadline soon"),
        (("fs", "--json"), (3,), "RESIL UNKNOWN - --nrpe cannot be given together"),
    ],
)
def test_there_is_one_line_and_only_one(
    shell: Shell, words: tuple[str, ...], code: tuple[int, ...], begin: str
) -> None:
    said = shell.resil("watch", *words, "--nrpe")
    assert LINE.fullmatch(said.out), said.out
    assert said.code in code and said.out.startswith(begin)


def test_broken_settings_are_one_line_as_well(shell: Shell) -> None:
    shell.settings('[watch]\nno_such_key = "a|b"\n')
    said = shell.resil("watch", "--all", "--nrpe")
    assert said.code == 3 and said.out.count("\n") == 1 and said.out.startswith("RESIL UNKNOWN - ")


def test_many_findings_are_counted_and_their_figures_cut_at_a_whole_one(shell: Shell, tmp_path: Path) -> None:
    places = [tmp_path / f"{'x' * 60}{number}" for number in range(60)]
    for place in places:
        place.mkdir()
    said = shell.resil("watch", "fs", *map(str, places), "--no-alert", "--nrpe")
    assert len(said.out.encode()) <= NRPE_BYTES and said.out.count("\n") == 1 and LINE.fullmatch(said.out)


@given(st.text(max_size=5000), st.lists(st.from_regex(r"'[a-z ]{1,300}'=[0-9]+B;;;0", fullmatch=True), max_size=40))
def test_no_line_is_longer_than_nagios_reads(text: str, figures: list[str]) -> None:
    line = nrpe_line(f"FS OK - {nrpe_unknown(text)} | {' '.join(figures)}" if figures else f"FS OK - {text}")
    assert len(line.encode()) < NRPE_BYTES and "\n" not in line
    if figures and " | " in line:
        kept = line.partition(" | ")[2]
        assert " ".join(figures).startswith(kept)
