"""The evidence as text and as one page that needs nothing else."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from resilience.ranks.collect import Evidence, RankStacks
from resilience.ranks.grouping import group
from resilience.ranks.page import SHOWN_TEXTS, render_html, render_text
from resilience.ranks.stacks import parse_stacks

RECORDED = Path(__file__).parents[1] / "recorded" / "stacks"
REDUCE, CODE = ((RECORDED / f"{name}.txt").read_text() for name in ("all_reduce", "preprocess"))


def evidence(ranks: int = 4, host: str = "n1", notes: tuple[str, ...] = ()) -> Evidence:
    """All wait in a collective, but the last two: one is elsewhere, one is stopped."""
    texts = dict.fromkeys(range(ranks - 2), REDUCE) | {ranks - 2: CODE}
    silent = {ranks - 1: "its process is stopped (state T)"}
    stacks = {rank: parse_stacks(text) for rank, text in texts.items()}
    told = tuple(
        RankStacks(rank, host, 7, 41, "train", texts.get(rank, ""), "guard" * (rank in texts), why=silent.get(rank, ""))
        for rank in range(ranks)
    )
    return Evidence(
        "gpt", "12", 3, 1_795_189_215.0, told, group(stacks, silent, dict.fromkeys(range(ranks), host)), notes
    )


def test_the_text_says_first_who_differs_and_then_shows_each_group() -> None:
    head, note, *lines = render_text(evidence(notes=("n2 is slow",)))
    assert head.startswith("gpt, attempt 3 (job 12), 2026-11-2") and ": rank 3 on n1: its process is stopped" in head
    assert note == "  note: n2 is slow"
    assert "; rank 2 on n1: in the user's code at train.py:11 in preprocess; the other" in head
    assert lines[:4] == [
        "",
        "2 ranks 0-1 on n1: in a collective (all_reduce) at train.py:10 in step",
        "  all_reduce (/home/ada/venv/lib/python3.11/site-packages/torch/distributed/distributed_c10d.py:3252)",
        "  wrapper (/home/ada/venv/lib/python3.11/site-packages/torch/distributed/c10d_logger.py:83)",
    ]


def test_odd_ranks_that_the_sentence_counts_are_listed() -> None:
    few = evidence(ranks=6)
    stacks = {rank: parse_stacks(REDUCE) for rank in range(3)}
    many = replace(few, groups=group(stacks, dict.fromkeys(range(3, 6), "stopped"), dict.fromkeys(range(6), "n1")))
    head, *lines = render_text(many)
    assert "3 of 6 ranks differ" in head and lines[:3] == [f"  rank {rank} on n1: stopped" for rank in (3, 4, 5)]


def test_the_page_needs_nothing_from_elsewhere_and_fits_dark_screens_and_paper() -> None:
    page = render_html([evidence()])
    assert page.startswith("<!DOCTYPE html>") and page.endswith("</body></html>\n")
    assert "prefers-color-scheme: dark" in page and "@media print" in page
    assert not any(word in page for word in ("http", "<script", "src=", "<link", "url("))
    assert "<p>no new step for 2 min &lt;59&gt;</p>" in render_html([evidence()], "no new step for 2 min <59>")


def test_the_page_shows_the_odd_ranks_first_and_all_threads_of_each_rank() -> None:
    page = render_html([evidence()])
    rows = page.split("<tr")[2:]
    assert [">2<" in rows[0], ">3<" in rows[1], ">0<" in rows[2], ">1<" in rows[3]] == [True] * 4
    assert [' class="odd"' in row for row in rows] == [True, True, False, False]
    assert page.count("<details>") == 3 and "Current thread 0x" in page


def test_of_a_thousand_ranks_the_page_shows_the_odd_ones_whole_and_says_where_the_others_are() -> None:
    page = render_html([evidence(1024)])
    assert page.count("<details>") == SHOWN_TEXTS and "<summary>rank 1022 on n1</summary>" in page
    assert "Those of 959 more ranks are in the run directory: journal/12.RANK.stacks" in page


def test_foreign_text_is_text() -> None:
    page = render_html([evidence(host="<b>&", notes=("<script>",))])
    assert "<b>" not in page and "<script>" not in page and "&lt;b&gt;&amp;" in page
