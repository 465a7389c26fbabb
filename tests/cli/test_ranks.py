"""`resil ranks`: the slow rank comes first, is drawn, and a run without a training says what to try."""

from __future__ import annotations

import re
import xml.etree.ElementTree as ElementTree
from collections import Counter
from pathlib import Path

import pytest

from tests.lab.shell import Shell


def write_beats(run_dir: Path, *, slow: int, host: str = "n{}", ranks: int = 4) -> None:
    """Two ranks per node; in each of ten windows `slow` waits for 3 of 60 looks, and the others for 18."""
    for node in range(ranks // 2):
        text = f'attempt = 3\nhost = "{host.format(node + 1)}"\ntime = 1.0\n'
        for rank in (2 * node, 2 * node + 1):
            windows = [[64 * n, 64, 64, 60, 3 if rank == slow else 18, 70.4] for n in range(1, 11)]
            text += f'[rank.{rank}]\npid = 7\nstep = 640\nphase = "train"\nwindows = {windows}\n'
        (run_dir / "beats" / f"12.{host.format(node + 1)}").write_text(text)


@pytest.fixture
def shell(shell: Shell) -> Shell:
    assert shell.resil("submit").code == 0
    return shell


def test_the_slow_rank_comes_first(shell: Shell, tmp_path: Path) -> None:
    write_beats(shell.run_dir, slow=3)
    said = shell.resil("ranks", "--svg", str(tmp_path / "gpt.svg"))
    first, second, _, *rows = said.out.splitlines()
    assert said.code == 0 and first == "gpt, attempt 3 (job 12): 4 ranks, 1.1 s per step"
    assert second == "  rank 3 on n2 takes 1.36 times as long as the median rank, last in 10 of 10 windows"
    assert [row.split()[0] for row in rows] == ["3", "0", "1", "2"]
    assert re.fullmatch(r"3 +n2 +640 +train +1\.1 +5% +1\.36 +10/10 +makes the others wait", rows[0])
    picture = ElementTree.parse(tmp_path / "gpt.svg").getroot()
    titles = [one.text for one in picture.iter("{http://www.w3.org/2000/svg}title")]
    assert len(titles) == 40 and "rank 3 on n2, to step 640: waits 5%" in titles
    assert opacities(tmp_path / "gpt.svg") == {0.05: 30, 1.0: 10}
    found = shell.resil("ranks", "gpt", "--json").json
    assert [one["ranks"] for one in found["stragglers"]] == [[3]] and found["ranks"][0]["waits"] == 0.3


def opacities(picture: Path) -> Counter[float]:
    """How many cells of the map have which opacity; those of the legend have no title."""
    cells = ElementTree.parse(picture).iter("{http://www.w3.org/2000/svg}rect")
    return Counter(float(one.get("opacity", "1")) for one in cells if len(one))


def test_ranks_that_are_equally_fast_are_all_pale_however_little_they_wait(shell: Shell, tmp_path: Path) -> None:
    write_beats(shell.run_dir, slow=-1)
    assert shell.resil("ranks", "--svg", str(tmp_path / "x.svg")).code == 0
    assert opacities(tmp_path / "x.svg") == {0.05: 40}


def test_equal_ranks_and_too_few_windows_are_told_as_such(shell: Shell) -> None:
    write_beats(shell.run_dir, slow=-1)
    assert "  no rank makes the others wait\n" in shell.resil("ranks").out
    for path in (shell.run_dir / "beats").iterdir():
        path.write_text(
            'attempt = 3\n[rank.0]\npid = 7\n[rank.1]\npid = 8\nphase = "\x1b[31m"\n'.replace("\x1b", "\\u001b")
        )
    said = shell.resil("ranks")
    assert said.code == 0 and "0 of 10 windows" in said.out and "\x1b" not in said.out


def test_a_host_with_markup_in_its_name_stays_text_in_the_picture(shell: Shell, tmp_path: Path) -> None:
    write_beats(shell.run_dir, slow=-1, host="<b>&{}")
    assert shell.resil("ranks", "--svg", str(tmp_path / "x.svg")).code == 0
    ElementTree.parse(tmp_path / "x.svg")


def test_a_run_that_does_not_train_says_what_to_try(shell: Shell) -> None:
    said = shell.resil("ranks")
    assert said.code == 1 and "none is running, or it has no guard\n  try: see: resil status gpt; " in said.err
