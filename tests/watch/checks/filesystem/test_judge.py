"""Findings from readings of file systems, as tables."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from resilience.finding import Finding, Verdict
from resilience.watch.checks._filesystem.judge import judge_reading
from resilience.watch.checks._filesystem.reading import BYTES, FILE_SYSTEM, INODES, Amount, FileSystemReading
from resilience.watch.checks._filesystem.task import task_of
from resilience.watch.checks.fs import FsSettings
from resilience.watch.checks.inodes import InodesSettings
from resilience.watch.reading import Timed
from tests.watch.checks.outcome import outcome

NOW = 1_800_000_000.0
DAY_S = 86400.0
GIB, TIB, PIB = 2**30, 2**40, 2**50
OK, WARNING, CRITICAL, UNKNOWN = Verdict.OK, Verdict.WARNING, Verdict.CRITICAL, Verdict.UNKNOWN


def amount(used: float, limit: float | None, scope: str = "file system", **more: Any) -> Amount:
    source = "statvfs" if scope == "file system" else "lfs quota"
    return Amount(**{"kind": BYTES, "source": source, "scope": scope, "used": used, "limit": limit, **more})


def a_reading(*amounts: Amount, **more: Any) -> FileSystemReading:
    return FileSystemReading(**{
        "path": "/scratch", "mount": "/scratch", "type": "lustre", "device": "x@o2ib:/scratch",
        "amounts": tuple(amounts), **more,
    })  # fmt: skip


def judged(reading: FileSystemReading, settings: FsSettings | None = None, later_s: float = 0.0) -> list[Finding]:
    task = task_of(settings or FsSettings(), BYTES)
    return list(judge_reading("/scratch", [Timed(NOW, reading)], task, NOW + later_s))


def the_only(
    expected: str, reading: FileSystemReading, settings: FsSettings | None = None, later_s: float = 0
) -> Finding:
    """Return the only finding; expect this verdict and fault."""
    (found,) = judged(reading, settings, later_s)
    assert outcome(found) == expected, found
    return found


def test_the_worst_limit_is_reported_with_its_source() -> None:
    reading = a_reading(
        amount(50 * TIB, 90 * TIB), amount(9 * TIB, 10 * TIB, "user alice"), amount(97 * GIB, 100 * GIB, "group lab")
    )
    (found,) = judged(reading)
    assert found.verdict is CRITICAL
    assert found.summary == "97% of 100 GiB used, 3.0 GiB free (lfs quota of group lab, just now); more than 95%"
    assert found.advice.endswith("or ask for a larger quota")
    assert [figure.label for figure in found.figures] == ["used", "used user alice", "used group lab"]
    assert any("90% of 10.0 TiB used" in line and "more than 85%" in line for line in found.looked)


@pytest.mark.parametrize(
    ("used", "settings", "verdict"),
    [
        (0.97 * PIB, FsSettings(), OK),  # 30.7 TiB free of a petabyte
        (PIB - 9 * TIB, FsSettings(), WARNING),
        (PIB - 1 * TIB, FsSettings(), CRITICAL),
        (0.97 * PIB, FsSettings(warn_percent=85.0), CRITICAL),  # a percentage that was set counts
        (0.97 * PIB, FsSettings(warn_free_bytes=40 * TIB), WARNING),
        (0.97 * PIB, FsSettings(large_bytes=2 * PIB), CRITICAL),
    ],
)
def test_a_large_shared_file_system_is_judged_by_its_free_space(
    used: float, settings: FsSettings, verdict: Verdict
) -> None:
    assert judged(a_reading(amount(used, PIB)), settings)[0].verdict is verdict


def test_a_large_disk_of_ones_own_and_a_large_quota_are_judged_by_percent() -> None:
    assert judged(a_reading(amount(0.97 * PIB, PIB), is_local=True))[0].verdict is CRITICAL
    assert judged(a_reading(amount(0.97 * PIB, PIB, "group lab")))[0].verdict is CRITICAL


@pytest.mark.parametrize(
    ("grace_s", "later_s", "verdict", "words"),
    [
        (6 * DAY_S, 0, WARNING, "writes fail in 6 d, when the grace period expires"),
        (6 * DAY_S, DAY_S, WARNING, "writes fail in 5 d"),
        (11 * 3600, 0, CRITICAL, "writes fail in 11 h"),
        (3600, 7200, CRITICAL, "the grace period has expired"),
        (0, 0, CRITICAL, "the grace period has expired: writes fail"),
        (None, 0, WARNING, "grace period unknown"),
    ],
)
def test_an_exceeded_soft_limit_counts_although_the_hard_one_is_far(
    grace_s: float | None, later_s: float, verdict: Verdict, words: str
) -> None:
    reading = a_reading(amount(6 * TIB, 10 * TIB, "user alice", soft=5 * TIB, grace_s=grace_s))
    found = the_only(f"{verdict.value} quota-grace", reading, later_s=later_s)
    assert found.summary.startswith("1.0 TiB over the soft limit of user alice (5.0 TiB, lfs quota); ")
    assert words in found.summary
    assert "remove 1.0 TiB" in found.advice


def test_a_soft_limit_without_a_hard_one_counts() -> None:
    reading = a_reading(amount(6 * TIB, None, "user alice", soft=5 * TIB, grace_s=0.0), amount(1 * TIB, 90 * TIB))
    assert [found.fault for found in judged(reading)] == ["quota-grace"]


def test_a_soft_limit_that_is_not_exceeded_is_not_reported() -> None:
    assert judged(a_reading(amount(5 * TIB, 10 * TIB, "user alice", soft=5 * TIB)))[0].verdict is OK


def test_a_percentage_alone_is_judged_by_percent() -> None:
    reading = a_reading(Amount(kind="percent", source="`idrquota -w`", scope="quota", used=90.15, limit=100.0))
    (found,) = judged(reading)
    assert found.verdict is WARNING and found.summary.startswith("90.1% used (`idrquota -w`, just now)")
    assert (found.figures[0].label, found.figures[0].unit) == ("used_percent", "%")
    assert judged(reading, FsSettings(warn_free_bytes=GIB))[0].verdict is WARNING  # there is nothing else to go by


def test_the_age_of_a_cached_figure_increases() -> None:
    (found,) = judged(a_reading(amount(1 * TIB, 10 * TIB)), later_s=7200)
    assert "(statvfs, 2 h old)" in found.summary


def test_no_percentage_is_rounded_up_to_its_threshold() -> None:
    (found,) = judged(a_reading(amount(9499, 10000, "user alice")))
    assert found.verdict is WARNING and found.summary.startswith("94.9%")


@pytest.mark.parametrize(
    ("reading", "verdict"),
    [
        (a_reading(trouble="missing", detail="does not exist", is_named=True), CRITICAL),
        (a_reading(trouble="missing", detail="does not exist", is_needed=True), CRITICAL),
        (a_reading(trouble="missing", detail="does not exist", roles=("$STORE",)), WARNING),
        (a_reading(trouble="stale", detail="stale file handle"), CRITICAL),
        (a_reading(trouble="unreadable", detail="permission denied", is_named=True), UNKNOWN),
    ],
)
def test_the_verdict_of_a_path_error_depends_on_the_paths_role(reading: FileSystemReading, verdict: Verdict) -> None:
    the_only(f"{verdict.value} {reading.trouble}", reading)


@pytest.mark.parametrize(
    ("more", "verdict"),
    [({"is_needed": True}, CRITICAL), ({"seen_writable": True}, CRITICAL), ({"is_named": True}, WARNING), ({}, OK)],
)
def test_the_verdict_of_a_read_only_path_depends_on_the_paths_role(more: dict[str, bool], verdict: Verdict) -> None:
    assert judged(a_reading(amount(1, 10), read_only=True, **more))[0].verdict is verdict


def history(reading: FileSystemReading, per_s: float, hours: float = 24) -> FileSystemReading:
    """Return the reading after growth at this rate per second."""
    row = reading.amounts[0]
    points = [(NOW - 600 * n, row.used - per_s * 600 * n) for n in reversed(range(int(hours * 6)))]
    return replace(reading, history={row.key: tuple(points)})


FILLING = history(a_reading(amount(60 * TIB, 90 * TIB)), 18.4 * TIB / DAY_S)


def test_the_runway_is_in_hours_with_the_growth_and_up_to_the_usable_size() -> None:
    found = the_only("WARNING runway", FILLING)
    assert found.summary == "39 hours left at 18.4 TiB a day: 30.0 TiB free"
    the_only("OK", FILLING, FsSettings(warn_runway_s=39 * 3600, crit_runway_s=0))
    the_only("CRITICAL runway", FILLING, FsSettings(crit_runway_s=40 * 3600))
    far = the_only("WARNING runway", FILLING, FsSettings(warn_runway_s=4 * DAY_S, crit_runway_s=0, usable_percent=100))
    assert far.summary.startswith("39 hours left")
    found = next(f for f in judged(FILLING, FsSettings(usable_percent=80.0)) if f.fault == "runway")
    assert found.summary == "16 hours left at 18.4 TiB a day: 12.0 TiB free"


def test_long_runways_are_in_days() -> None:
    reading = history(a_reading(amount(33 * TIB, 90 * TIB)), 18.4 * TIB / DAY_S, hours=40)
    (found,) = judged(reading, FsSettings(warn_runway_s=4 * DAY_S))
    assert found.summary == "3.1 days left at 18.4 TiB a day: 57.0 TiB free"


def test_a_percentage_alone_has_a_runway_too() -> None:
    percent = Amount(kind="percent", source="`q`", scope="quota", used=70.0, limit=100.0)
    (found,) = judged(history(a_reading(percent), 20.0 / DAY_S))
    assert found.fault == "runway" and found.summary == "36 hours left at 20.0% a day: 30.0% free"


def test_the_growth_is_explained_in_ok_findings() -> None:
    for reading, words in (
        (a_reading(amount(1 * TIB, 90 * TIB)), "growth (file system): too few readings for a forecast (0)"),
        (history(a_reading(amount(9 * TIB, 90 * TIB)), 0.0), "growth (file system): no growth"),
        (
            history(a_reading(amount(9 * TIB, 90 * TIB)), TIB / DAY_S),
            "1.0 TiB a day, measured over 24 hours: runway longer",
        ),
    ):
        assert any(words in line for line in judged(reading)[0].looked), judged(reading)[0].looked


def test_a_full_disk_has_no_runway() -> None:
    reading = history(a_reading(amount(90 * TIB, 90 * TIB)), TIB / DAY_S)
    assert [found.fault for found in judged(reading)] == ["space"]


LEARNED = {"directory": "/scratch/ckpt", "size": 2.0 * TIB, "every_s": 10800.0, "count": 4, "saves": 5,
           "source": "the run's journal", "is_pruned": False}  # fmt: skip


def test_checkpoints_that_will_not_all_fit_are_reported_before_any_growth_was_seen() -> None:
    found = the_only("WARNING checkpoint", a_reading(amount(60 * TIB, 90 * TIB), checkpoint=LEARNED))
    assert found.summary == "room for 15 more checkpoints of 2.0 TiB, one every 3 h: 45 hours at 16.0 TiB a day"


@pytest.mark.parametrize(
    "reading",
    [
        a_reading(amount(60 * TIB, 90 * TIB), checkpoint={**LEARNED, "is_pruned": True}),
        history(a_reading(amount(60 * TIB, 90 * TIB), checkpoint=LEARNED), 0.0),
        a_reading(amount(60 * TIB, 90 * TIB), checkpoint={**LEARNED, "every_s": None}),
        a_reading(amount(60 * TIB, 90 * TIB), checkpoint={**LEARNED, "size": None}),
        a_reading(amount(60 * TIB, 90 * TIB)),
    ],
)
def test_pruned_or_unknown_checkpoints_cause_no_alert(reading: FileSystemReading) -> None:
    assert judged(reading)[0].verdict is OK


def test_the_tightest_limit_decides_whether_the_next_checkpoint_fits() -> None:
    reading = a_reading(
        amount(1 * TIB, 90 * TIB), amount(8.4 * TIB, 10 * TIB, "user alice"), checkpoint={**LEARNED, "is_pruned": True}
    )
    (found,) = judged(reading)
    assert found.summary == "the next checkpoint does not fit: it takes 2.0 TiB, and 1.6 TiB is free"


def test_inodes_are_judged_as_inodes() -> None:
    row = Amount(kind=INODES, source="lfs quota", scope="user alice", used=450_001, limit=500_000, age_s=None)
    reading = a_reading(row)
    (found,) = judge_reading("/scratch", [Timed(NOW, reading)], task_of(InodesSettings(), INODES), NOW)
    assert outcome(found) == "WARNING inodes"
    used = "90% of 500,000 inodes used, 49,999 free"
    assert found.summary == f"{used} (lfs quota of user alice, read just now); more than 85%"


def test_several_faults_are_reported_worst_first_and_figures_once() -> None:
    reading = a_reading(
        amount(9 * TIB, 10 * TIB, "user alice", soft=5 * TIB, grace_s=0.0), read_only=False, checkpoint=LEARNED
    )
    found = judged(reading)
    assert [f.fault for f in found] == ["checkpoint", "quota-grace", "space"]
    assert [bool(f.figures) for f in found] == [True, False, False]
    assert all(f.looked for f in found)


@pytest.mark.parametrize("kind", [BYTES, INODES])
@pytest.mark.parametrize("why", ["is_read", "read_only"])
def test_a_full_file_system_that_cannot_fill_up_is_no_fault(kind: str, why: str) -> None:
    full = Amount(kind=kind, source="statvfs", scope=FILE_SYSTEM, used=1000.0, limit=1000.0)
    reading = FileSystemReading(
        path="/cvmfs/soft", type="fuse", amounts=(full,), is_read=why == "is_read", read_only=why == "read_only"
    )
    settings = FsSettings() if kind == BYTES else InodesSettings()
    (found,) = judge_reading("/cvmfs/soft", [Timed(NOW, reading)], task_of(settings, kind), NOW)
    assert found.verdict is OK
