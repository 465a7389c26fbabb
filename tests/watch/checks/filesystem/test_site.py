"""A site's own command is read by regular expressions of the settings, and refused early where they mean nothing."""

from __future__ import annotations

from pathlib import Path

import pytest

from resilience.errors import ProbeError, SettingsError
from resilience.watch.checks._filesystem.quota import du_command, parse_du
from resilience.watch.checks._filesystem.reading import BYTES, INODES
from resilience.watch.checks._filesystem.sources import parse_site, site_command
from resilience.watch.checks._filesystem.task import SiteCommand, check_site

RECORDED = Path(__file__).parents[3] / "recorded" / "quota"
IDRQUOTA = (RECORDED / "idrquota_w.txt").read_text()


def a_site(**changes: object) -> SiteCommand:
    values = {"argv": ("idrquota", "-w"), "used": "", "limit": "", "percent": "", **changes}
    return SiteCommand(**values)  # type: ignore[arg-type]


def test_sizes_with_separators_and_units_are_read() -> None:
    found = parse_site(IDRQUOTA, a_site(used=r"WORK: ([\d.,]+) (\w+)", limit=r"/ ([\d.,]+) (GiB)"), BYTES)
    assert found.used == pytest.approx(4507.3 * 2**30, abs=1)
    assert found.limit == 5000 * 2**30
    assert found.source == "`idrquota -w`"


def test_numbers_of_files_are_read() -> None:
    found = parse_site(IDRQUOTA, a_site(used=r"([\d,]+) / [\d,]+ inodes", limit=r"/ ([\d,]+) inodes"), INODES)
    assert (found.used, found.limit) == (450_000, 500_000)


def test_a_percentage_is_enough() -> None:
    found = parse_site(IDRQUOTA, a_site(percent=r"\((\d+\.\d+)%\)$"), BYTES)
    assert (found.kind, found.used, found.limit) == ("percent", 90.15, 100)


@pytest.mark.parametrize("lines", [0, 1, 3])
def test_any_number_of_percentages_does_no_harm(lines: int) -> None:
    # The original unpacked exactly two, and died at one and at three.
    text = "".join(f"WORK{n}: used 1 of 2 ({50 + n}.0%)\n" for n in range(lines))
    site = a_site(percent=r"\((\d+\.\d+)%\)")
    if lines:
        assert parse_site(text, site, BYTES).used == 50
    else:
        with pytest.raises(ProbeError, match="printed nothing"):
            parse_site(text, site, BYTES)


def test_a_line_is_found_by_its_whole_name_where_the_pattern_says_so() -> None:
    text = (RECORDED / "site_french.txt").read_text()
    for name, used in (("WORK", 4.5), ("WORKSF", 1.0)):
        site = a_site(used=rf"^{name}\s+([\d.]+) (\w+)", limit=rf"^{name}\s+\S+ \w+\s+([\d.]+) (\w+)")
        assert parse_site(text, site, BYTES).used == used * 2**40


def test_a_device_that_is_not_in_the_list_is_no_figure() -> None:
    with pytest.raises(ProbeError, match="printed no use"):
        parse_site("gpfsssd2 1 2\n", a_site(used=r"^gpfsssd\s+(\d+)", limit=r"(\d+)$"), BYTES)


@pytest.mark.parametrize(
    ("figure", "unit", "size"),
    [("12", "B", 12), ("12", "GiB", 12 * 2**30), ("12 TB", "B", 12 * 10**12), ("4.5 Tio", "B", 4.5 * 2**40),
     ("1'000 KiB", "B", 1000 * 2**10), ("3 Go", "B", 3 * 2**30)],
)  # fmt: skip
def test_a_figure_without_a_unit_is_in_the_settings_one(figure: str, unit: str, size: float) -> None:
    assert (
        parse_site(f"used={figure};", a_site(used="used=([^;]+)", limit="used=([^;]+)", unit=unit), BYTES).used == size
    )


@pytest.mark.parametrize(
    "printed", ["used=many;", "used=;", "used=1,5 GiB;", "used=12 parsecs;", "error: no such user"]
)
def test_what_is_no_figure_is_said(printed: str) -> None:
    with pytest.raises(ProbeError):
        parse_site(printed, a_site(used="used=([^;]*)", limit="used=([^;]*)"), BYTES)


@pytest.mark.parametrize(("text", "count"), [("3e6", 3_000_000), ("450k", 450_000), ("1.5M", 1_500_000), ("7", 7)])
def test_files_are_counted_in_tens(text: str, count: float) -> None:
    assert parse_site(f"{text};", a_site(used="^(.*);", limit="^(.*);"), INODES).used == count


def test_path_and_user_are_filled_in_and_no_shell_reads_them() -> None:
    site = a_site(argv=("quota.sh", "-u", "{user}", "--at={path}"), percent="(.)")
    assert site_command(site, "/a b;rm", "alice") == ["quota.sh", "-u", "alice", "--at=/a b;rm"]


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"argv": (), "used": "(x)"}, "used_regex is set, and there is no command"),
        ({}, "nothing says how to read"),
        ({"used": "("}, "used_regex = '(' is no regular expression"),
        ({"used": "(x)"}, "limit_regex is missing"),
        ({"limit": "(x)"}, "used_regex is missing"),
        ({"percent": "[0-9]+"}, "has no group"),
        (
            {"percent": "(x)", "used": "(x)", "limit": "(y)"},
            "percent_regex is set, and used_regex or limit_regex as well",
        ),
        ({"percent": "(x)", "argv": ("idrquota -w",)}, "one text with blanks"),
        ({"percent": "(x)", "argv": ("", "-w")}, "starts with an empty text"),
        ({"percent": "(x)", "argv": ("q", "{folder}")}, "holds {folder}, and nothing fills that in"),
        ({"percent": "(x)", "unit": "furlongs"}, "command_unit = 'furlongs' is no unit"),
    ],
)
def test_a_command_that_cannot_be_meant_is_refused_by_the_name_of_its_key(
    changes: dict[str, object], message: str
) -> None:
    with pytest.raises(SettingsError) as caught:
        check_site(a_site(**changes))
    assert message in caught.value.message


def test_du_prints_a_total_also_where_folders_could_not_be_read() -> None:
    found = parse_du("4096\t/data\n", "du: cannot read directory '/data/x': Permission denied\n", BYTES, 8192.0)
    assert (found.used, found.limit) == (4096, 8192)
    assert "lower bound: 1 folder" in found.note


def test_du_that_prints_nothing_is_said_and_no_crash() -> None:
    with pytest.raises(ProbeError, match="no total: du: cannot access"):
        parse_du("", "du: cannot access '/x': No such file or directory\n", BYTES, 1.0)


def test_du_counts_blocks_not_apparent_sizes() -> None:
    assert du_command("/data", BYTES) == ["du", "-s", "-x", "--block-size=1", "--", "/data"]
    assert "-b" not in du_command("/data", BYTES) and "--inodes" in du_command("/data", INODES)
