"""The live screen of `resil top`, composed from values: it fits, and says everything also without colours."""

from __future__ import annotations

from dataclasses import replace

import pytest

from resilience.cli.output import width_of
from resilience.cli.top.frame import Frame, IncidentView, Line, Rank, RunView, View, compose, rate, spark
from resilience.cli.top.look import rates, recent_step_s

NOW = 1_800_000_000.0
HOSTILE = "x\x1b[2J\r\u202e日本語" + "y" * 300


def a_run(name: str = "gpt", **given: object) -> RunView:
    ranks = tuple(Rank(number, f"n{number // 8}", factor=1.0) for number in range(16))
    facts, log = ("attempt 3, job 12 on n0", "saved: step 41000, 3 min ago"), tuple(f"line {n}" for n in range(60))
    run = RunView(
        name, "running", step=41200, step_s=0.5, rates=(1.0, 2.0, 4.0), ends=NOW + 3600, next_save=NOW + 240,
        memory_per_s=4096.0, facts=facts, ranks=ranks, log_path="/runs/gpt/logs/a.out", log=log,
    )  # fmt: skip
    return replace(run, **given)  # type: ignore[arg-type]


FRAME = Frame(
    time=NOW,
    runs=(a_run(), RunView("bert", "queued")),
    incidents=(
        IncidentView("1a2b3c4d", "CRITICAL", "fs", "/scratch", "97% used", NOW - 700, "ada"),
        IncidentView("5e6f7a8b", "WARNING", "job", "gpt", "ends in 10 min", NOW - 60),
    ),
)


def text(lines: list[Line]) -> list[str]:
    return ["".join(span for span, _ in line).rstrip() for line in lines]


def test_eighty_columns_and_twenty_four_rows_hold_everything() -> None:
    assert text(compose(FRAME, 80, 24))[:14] == [
        "resil top  2 runs, 2 open incidents",
        "   RUN   STATE    STEP    RATE       SPEED  LEFT      NEXT SAVE  MEMORY",
        ">  gpt   running  41,200  2 steps/s  ▂▄█    01:00:00  in 4 min   +14.1 MiB/h",
        "   bert  queued",
        "  attempt 3, job 12 on n0",
        "  saved: step 41000, 3 min ago",
        "RANKS  16 ranks on 2 hosts",
        "   0 ················",
        "INCIDENTS",
        "  1a2b3c4d CRITICAL fs /scratch: 97% used, 11 min ago, acknowledged by ada",
        "> 5e6f7a8b WARNING job gpt: ends in 10 min, 1 min ago",
        "LOG  /runs/gpt/logs/a.out",
        "line 49",
        "line 50",
    ]
    assert text(compose(FRAME, 80, 24))[-2:] == ["line 59", " s save  k kill  a ack  l logs  ? help  q quit"]


@pytest.mark.parametrize("panel", ["", "log", "help"])
@pytest.mark.parametrize(("width", "height"), [(1, 1), (20, 5), (40, 8), (57, 13), (80, 24), (132, 50), (300, 100)])
def test_it_fits_every_terminal(width: int, height: int, panel: str) -> None:
    ranks = tuple(Rank(number, f"n{number // 8}", stands_s=float(number == 1000) * 99) for number in range(1024))
    runs = (a_run(HOSTILE, ranks=ranks, facts=(HOSTILE,) * 9, log=(HOSTILE,) * 9), *(a_run(f"r{i}") for i in range(30)))
    incident = IncidentView("1a2b3c4d", "CRITICAL", "fs", HOSTILE, HOSTILE, NOW)
    for frame in (Frame(NOW), FRAME, Frame(NOW, runs, (incident,) * 40, trouble=(HOSTILE,))):
        for selected in ("", "r29"):
            lines = text(compose(frame, width, height, View(selected, panel, HOSTILE if panel else "")))
            assert len(lines) <= height and max(map(width_of, lines)) <= width
            assert all(line.isprintable() for line in lines)
    if width >= 80 and not panel:
        assert any("rank 1000 on n125 has done no step for 1 min" in line for line in text(compose(
            Frame(NOW, runs), width, height)))  # fmt: skip


def test_without_utf8_it_is_ascii() -> None:
    assert all(line.isascii() for line in text(compose(FRAME, 80, 24, is_utf8=False)))
    assert all(line.isascii() for line in text(compose(FRAME, 80, 24, View(panel="help"), is_utf8=False)))


def test_each_way_of_being_bad_has_a_sign_of_its_own_and_the_worst_rank_is_named() -> None:
    ranks = (
        Rank(0, "n0", 1.0), Rank(1, "n0", 1.06), Rank(2, "n0", 1.2), Rank(3, "n0", 3.5), Rank(4, "n1", stands_s=40.0),
        Rank(5, "n1", is_silent=True), Rank(6, "n1", is_gone=True, is_silent=True),
    )  # fmt: skip
    head, row = text(compose(Frame(NOW, (a_run(ranks=ranks, facts=()),)), 80, 24))[3:5]
    assert head == "RANKS  rank 6 on n1 has ended  7 ranks on 2 hosts" and row == "  0 ·░▒▓=?X"
    head = text(compose(Frame(NOW, (a_run(ranks=ranks[:4], facts=(), slow="rank 3 on n0 is slow"),)), 80, 24))[3]
    assert head.startswith("RANKS  rank 3 on n0 is slow")


def test_data_that_do_not_come_any_more_are_said_to_be_old() -> None:
    assert "NO NEW DATA FOR 40 s" in text(compose(FRAME, 80, 24, now=NOW + 40))[0]
    assert "NO NEW DATA" not in text(compose(FRAME, 80, 24, now=NOW + 4))[0]
    slow = Frame(NOW, FRAME.runs, every_s=60.0)
    assert "NO NEW DATA" not in text(compose(slow, 80, 24, now=NOW + 40))[0]


def test_a_rate_is_steps_per_second_or_seconds_per_step() -> None:
    assert (rate(None), rate(0.05), rate(4.25)) == ("", "20 steps/s", "4.25 s/step")
    assert spark([9, 0, 1, 2, 4], 4, "abcd") == "aabd"


def test_the_line_of_rates_has_equal_stretches_and_a_stop_is_seen() -> None:
    points = [(0.0, 0.0), (60.0, 60.0), (120.0, 60.0), (180.0, 180.0)]
    found = rates(points)
    assert len(found) == 24 and set(found) == {1.0, 0.0, 2.0}
    assert rates([(0.0, 5.0)]) == () and rates([]) == ()
    assert recent_step_s(points) == 0.5 and recent_step_s([]) is None and recent_step_s(points[1:3]) is None
