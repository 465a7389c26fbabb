"""The output of each quota tool becomes amounts with limits; any other output is an error."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from resilience.errors import ProbeError
from resilience.watch.checks._filesystem.quota import (
    parse_beegfs,
    parse_beegfs_8,
    parse_count,
    parse_du,
    parse_gpfs,
    parse_gpfs_fileset,
    parse_grace_s,
    parse_lustre,
    parse_lustre_project,
    parse_size,
    parse_unix,
    parse_xfs,
)
from resilience.watch.checks._filesystem.reading import BYTES, INODES, Amount
from resilience.watch.checks._filesystem.sources import parse_site
from resilience.watch.checks.fs import FsSettings

RECORDED = Path(__file__).parents[3] / "recorded" / "quota"
NOW = 1_800_000_000.0
KIB, GIB, TIB = 2**10, 2**30, 2**40
ALICE = "user alice"
ANY_SITE = FsSettings(used_regex=r"used ([0-9.]+) ?(\w*)", limit_regex=r"of ([0-9.]+) ?(\w*)")

Figures = tuple[str, str, float, float | None, float | None, float | None]


def figures(amounts: Sequence[Amount]) -> list[Figures]:
    """Return scope, kind, used, soft, limit, grace."""
    return [(a.scope, a.kind, a.used, a.soft, a.limit, a.grace_s) for a in amounts]


def recorded(name: str) -> str:
    return (RECORDED / name).read_text()


TABLES: list[tuple[str, Callable[[str], tuple[Amount, ...]], list[Figures]]] = [
    ("lfs_quota_user.txt", parse_lustre, [
        (ALICE, BYTES, 10 * GIB, 20 * GIB, 30 * GIB, None), (ALICE, INODES, 250e3, 900e3, 1e6, None)]),
    ("lfs_quota_over.txt", parse_lustre, [
        (ALICE, BYTES, 21 * GIB, 20 * GIB, 30 * GIB, 604796.0), (ALICE, INODES, 900001, 900e3, 1e6, 0.0)]),
    ("lfs_quota_wrapped.txt", parse_lustre, [
        ("group lab", BYTES, 1041408 * KIB, None, 4 * GIB, None), ("group lab", INODES, 17, None, None, None)]),
    ("lfs_quota_two.txt", parse_lustre, [
        (ALICE, BYTES, 3 * GIB, 10 * TIB, 12 * TIB, None), (ALICE, INODES, 160e3, None, None, None),
        ("project 1000", BYTES, 9.537 * TIB, None, 10 * TIB, None), ("project 1000", INODES, 9, None, 2e6, None)]),
    ("mmlsquota_Y.txt", lambda text: parse_gpfs(text, "gpfs0", ["work"]), [
        (ALICE, BYTES, 2 * GIB, 10 * GIB, 12 * GIB, None), (ALICE, INODES, 4000, None, 500e3, None),
        ("group lab", BYTES, 11 * GIB, 10 * GIB, 12 * GIB, 2 * 86400), ("group lab", INODES, 1, None, None, None)]),
    ("mmlsquota_Y.txt", lambda text: parse_gpfs(text, "gpfs01"), [
        (ALICE, BYTES, 99 * KIB, 100 * KIB, 100 * KIB, None), (ALICE, INODES, 99, 100, 100, None)]),
    ("beegfs_table.txt", lambda text: parse_beegfs(text, "user", "alice"), [
        (ALICE, BYTES, 76.61 * GIB, None, 5 * TIB, None), (ALICE, INODES, 687792, None, None, None),
        ("user alice in pool nvme", BYTES, 0, None, 100 * GIB, None),
        ("user alice in pool nvme", INODES, 0, None, 50000, None)]),
    ("beegfs_csv.txt", lambda text: parse_beegfs(text, "user", "alice"), [
        (ALICE, BYTES, 10 * GIB, None, 100 * GIB, None), (ALICE, INODES, 1234, None, None, None)]),
    ("beegfs_8.txt", lambda text: parse_beegfs_8(text, [("user", "alice"), ("group", "lab")]), [
        (ALICE, BYTES, 204134154240, None, TIB, None), (ALICE, INODES, 836440, None, None, None),
        ("user alice in pool nvme", BYTES, 100 * GIB, None, None, None),
        ("user alice in pool nvme", INODES, 12, None, 50000, None),
        ("group lab", BYTES, 20 * GIB, None, None, None), ("group lab", INODES, 9, None, None, None)]),
    ("lfs_quota_pool.txt", parse_lustre, [
        (ALICE, BYTES, 100 * GIB, None, 100 * GIB, None), (ALICE, INODES, 250e3, None, None, None)]),
    ("quota_nfs.txt", lambda text: parse_unix(text, "filer:/export/home", NOW), [
        (ALICE, BYTES, 950e3 * KIB, 900e3 * KIB, 1e6 * KIB, 86400.0), (ALICE, INODES, 350, None, None, None),
        ("group lab", BYTES, 100 * KIB, None, None, None), ("group lab", INODES, 5, 4, 10, 0.0)]),
    ("quota_plain.txt", lambda text: parse_unix(text, "/dev/sda1", NOW), [
        (ALICE, BYTES, 500 * KIB, 400 * KIB, 600 * KIB, 6 * 86400.0), (ALICE, INODES, 10, None, None, None)]),
    ("quota_plain.txt", lambda text: parse_unix(text, "/dev/mapper/a-very-long-name", NOW), [
        (ALICE, BYTES, 14340 * 2**20, 16 * GIB, 20 * GIB, None), (ALICE, INODES, 160e3, None, None, None)]),
    ("quota_no.txt", lambda text: parse_unix(text, "/dev/sda1", NOW), []),
    ("xfs_quota_user.txt", parse_xfs, [
        (ALICE, BYTES, 1024e3 * KIB, 2e6 * KIB, 3e6 * KIB, None), (ALICE, INODES, 40, 50, 60, None)]),
    ("xfs_quota_over.txt", parse_xfs, [
        (ALICE, BYTES, 2.5e6 * KIB, 2e6 * KIB, 3e6 * KIB, 6 * 86400.0), (ALICE, INODES, 55, 50, 60, 0.0)]),
    ("xfs_quota_files.txt", parse_xfs, [(ALICE, INODES, 40, 50, 60, None)]),
]  # fmt: skip


@pytest.mark.parametrize(
    ("name", "parse", "expected"), TABLES, ids=lambda value: value if isinstance(value, str) else ""
)
def test_the_output_of_each_tool_is_parsed(
    name: str, parse: Callable[[str], tuple[Amount, ...]], expected: list[Figures]
) -> None:
    found = figures(parse(recorded(name)))
    assert [row[:2] for row in found] == [row[:2] for row in expected]
    for row, wanted in zip(found, expected, strict=True):
        assert row[2:] == pytest.approx(wanted[2:]), row


def test_brackets_mean_that_some_servers_did_not_respond() -> None:
    size, _ = parse_lustre(recorded("lfs_quota_wrapped.txt"))
    assert "lower bound" in size.note


@pytest.mark.parametrize("device", ["gpfs", "gpfs012", "pfs0", ""])
def test_a_file_system_is_found_by_its_whole_name_only(device: str) -> None:
    assert parse_gpfs(recorded("mmlsquota_Y.txt"), device) == ()


def test_an_nfs_export_is_found_by_its_whole_name_only() -> None:
    assert parse_unix(recorded("quota_nfs.txt"), "filer:/export/hom", NOW) == ()
    assert len(parse_unix(recorded("quota_nfs.txt"), "filer:/export/home2", NOW)) == 2


def test_a_beegfs_user_is_found_by_the_whole_name_only() -> None:
    assert parse_beegfs(recorded("beegfs_table.txt"), "user", "ali") == ()


def test_a_directory_without_a_project_has_none() -> None:
    assert parse_lustre_project(recorded("lfs_project.txt")) == "1000"
    assert parse_lustre_project("    0 - /scratch/lab\n") == ""


def test_the_fileset_of_a_directory_is_read() -> None:
    assert parse_gpfs_fileset(recorded("mmlsattr_L.txt")) == "work"


def test_xfs_quota_prints_nothing_if_quotas_are_off() -> None:
    assert parse_xfs("") == ()


@pytest.mark.parametrize(
    ("word", "left_s"),
    [("6d23h59m56s", 604796), ("6days", 518400), ("[6 days]", 518400), ("7 days 02:03:04", 612184), ("23:59", 86340),
     ("1w2d", 777600), ("none", 0), ("[--none--]", 0), ("expired", 0), ("0", 0), ("-", None), ("", None),
     ("[--------]", None)],
)  # fmt: skip
def test_a_grace_period_is_read_if_the_soft_limit_is_exceeded(word: str, left_s: float | None) -> None:
    assert parse_grace_s(word, is_over=True) == left_s
    assert parse_grace_s(word, is_over=False) is None


@pytest.mark.parametrize(
    ("text", "size"), [("2000", 2000 * KIB), ("2000*", 2000 * KIB), ("[12]", 12 * KIB), ("1.5G", 1.5 * GIB), ("0k", 0)]
)
def test_a_bare_size_is_in_kibibytes_and_marks_are_passed_over(text: str, size: float) -> None:
    assert parse_size(text, "K") == size


def test_files_are_counted_in_thousands_not_in_1024s() -> None:
    assert parse_count("160k") == 160_000
    assert parse_count("3M") == 3_000_000


PARSERS: list[Callable[[str], object]] = [
    parse_lustre, parse_lustre_project, parse_xfs, parse_gpfs_fileset,
    lambda text: parse_gpfs(text, "gpfs0", ["work"]), lambda text: parse_beegfs(text, "user", "alice"),
    lambda text: parse_unix(text, "/dev/sda1", NOW), lambda text: parse_du(text, text, BYTES, 1.0),
    lambda text: parse_beegfs_8(text, [("user", "alice")]),
    lambda text: parse_site(text, ANY_SITE, BYTES), lambda text: parse_site(text, ANY_SITE, INODES),
]  # fmt: skip
NAMES = [
    "lfs",
    "lfs project",
    "xfs",
    "mmlsattr",
    "mmlsquota",
    "beegfs",
    "quota",
    "du",
    "beegfs 8",
    "site",
    "site inodes",
]


@pytest.mark.parametrize("parse", PARSERS, ids=NAMES)
@given(st.text(max_size=200))
@settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.too_slow])
def test_garbage_yields_a_probe_error_or_nothing(parse: Callable[[str], object], text: str) -> None:
    try:
        parse(text)
    except ProbeError as error:
        assert error.message


@pytest.mark.parametrize(
    ("name", "parse"),
    [("lfs_quota_two.txt", PARSERS[0]), ("xfs_quota_user.txt", PARSERS[2]), ("mmlsquota_Y.txt", PARSERS[4]),
     ("beegfs_table.txt", PARSERS[5]), ("beegfs_8.txt", PARSERS[8]), ("quota_nfs.txt", PARSERS[6])],
)  # fmt: skip
@given(st.data())
@settings(max_examples=40, deadline=None)
def test_truncated_or_overwritten_output_yields_a_probe_error_or_figures(
    name: str, parse: Callable[[str], object], data: st.DataObject
) -> None:
    text = recorded(name)
    at = data.draw(st.integers(0, len(text)))
    middle = data.draw(st.text(alphabet="0123456789*-:|,kKTZ. \n[]é\x00", max_size=12))
    for damaged in (text[:at], text[:at] + middle + text[at + len(middle) :]):
        try:
            parse(damaged)
        except ProbeError as error:
            assert error.message
