"""Which earlier sums are kept, and which of them the present is compared with."""

from __future__ import annotations

import pytest

from resilience.watch.scan.memory import AGES_S, baseline, snapshot, thin
from resilience.watch.scan.tree import STUCK, Record, grow

HOUR, DAY = 3600, 86400


@pytest.mark.parametrize(
    ("ages_s", "wanted_s"),
    [
        ([], None),
        ([5], 5),
        ([5, 60], 60),  # of two that are both too young, the older
        ([60, 2 * HOUR], 2 * HOUR),
        ([60, 2 * HOUR, 22 * HOUR, 3 * DAY], 22 * HOUR),
        ([10 * DAY], 10 * DAY),
        ([-60], None),  # a clock that went back: the future is nothing to compare with
        ([0], None),
    ],
)
def test_growth_is_measured_over_about_a_day_where_it_can_be(ages_s: list[float], wanted_s: float | None) -> None:
    now = 1.8e9
    number = baseline([now - age for age in ages_s], now)
    assert (None if number is None else ages_s[number]) == wanted_s


def test_scans_every_ten_minutes_for_two_months_leave_a_few_snapshots_of_all_ages() -> None:
    times: list[float] = []
    for minute in range(0, 60 * 24 * 60, 10):
        now = minute * 60.0
        times.append(now)
        times = [times[number] for number in thin(times, now)]
        assert len(times) <= len(AGES_S)
    ages = [now - time for time in times]
    number = baseline(times, now)
    assert number is not None
    assert HOUR <= ages[number] <= 3 * DAY
    assert max(ages) > 8 * DAY


def test_folders_that_were_not_read_are_holes_and_not_sums() -> None:
    records = [
        Record(b"", 0, inode=1, read_at=1, blocks=8, files=1, children=(b"a", b"b")),
        Record(b"a", 0, inode=2, read_at=1, blocks=8, files=2),
        Record(b"b", 0, inode=3, read_at=1, blocks=8, files=3, children=(b"dead",)),
        Record(b"b/dead", STUCK),
    ]
    tree = grow({record.path: record for record in records})
    taken = snapshot(tree, tree.totals(), 5.0)
    assert taken.sums == {b"a": (8, 3)}
    assert taken.holes == (b"b/dead",)
    assert taken.whole


def test_of_very_many_folders_the_largest_and_the_fullest_are_kept() -> None:
    names = tuple(f"d{number:03d}".encode() for number in range(300))
    records = [Record(b"", 0, inode=1, read_at=1, children=names)]
    records += [
        Record(name, 0, inode=number + 2, read_at=1, blocks=number, files=300 - number)
        for number, name in enumerate(names)
    ]
    tree = grow({record.path: record for record in records})
    taken = snapshot(tree, tree.totals(), 5.0, most=20)
    assert not taken.whole
    assert {b"", b"d000", b"d299"} <= set(taken.sums)
    assert b"d150" not in taken.sums
    assert len(taken.sums) <= 20
