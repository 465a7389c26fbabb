"""Sizes, durations, percentages and SLURM's times: tables, round trips, and real sbatch as the judge."""

from __future__ import annotations

import re
import shutil
import subprocess
import tomllib
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from resilience.errors import QuantityError
from resilience.quantities import (
    format_bytes,
    format_duration,
    format_slurm_time,
    parse_bytes,
    parse_duration_s,
    parse_percent,
    parse_slurm_time_s,
    quote_toml,
)

NINES = "9" * 5000
ARABIC_FIVE = "\u0665"


@pytest.mark.parametrize(
    ("text", "count"),
    [
        ("0", 0),
        ("512", 512),
        ("512B", 512),
        ("1k", 1024),
        ("4K", 4096),
        ("4KiB", 4096),
        ("4KB", 4000),
        ("1.5TB", 1_500_000_000_000),
        ("1.5T", 3 * 2**39),
        ("40TiB", 40 * 2**40),
        (" 500 G ", 500 * 2**30),
        ("1EiB", 2**60),
        ("0.1K", 102),
        ("9007199254740993", 2**53 + 1),
        ("9007199254740993K", (2**53 + 1) * 1024),
    ],
)
def test_a_size_is_read_to_the_byte(text: str, count: int) -> None:
    assert parse_bytes(text) == count


@pytest.mark.parametrize(
    "text", ["", "K", "-1G", "1..5G", "1,5G", "5i", "5iB", "1e3", "1 000", "inf", "nan", "0x10", NINES, ARABIC_FIVE]
)
def test_what_is_no_size_is_refused(text: str) -> None:
    with pytest.raises(QuantityError):
        parse_bytes(text)


@pytest.mark.parametrize(
    ("count", "text"),
    [
        (0, "0 B"),
        (1023, "1023 B"),
        (1024, "1.0 KiB"),
        (1536, "1.5 KiB"),
        (102_399, "100 KiB"),
        (2**20 - 1, "1.0 MiB"),
        (2**40, "1.0 TiB"),
        (-2048, "-2.0 KiB"),
        (2**60, "1.0 EiB"),
        (2**70, "1024 EiB"),
    ],
)
def test_a_size_is_written_as_people_read_it(count: int, text: str) -> None:
    assert format_bytes(count) == text


@given(st.integers(min_value=0, max_value=2**62))
def test_a_written_size_reads_back_within_a_twentieth(count: int) -> None:
    assert parse_bytes(format_bytes(count)) == pytest.approx(count, rel=0.05)


@pytest.mark.parametrize(
    ("text", "percent"), [("85%", 85.0), ("85", 85.0), (" 99.5 % ", 99.5), ("0.5%", 0.5), ("0", 0)]
)
def test_a_percentage_is_read(text: str, percent: float) -> None:
    assert parse_percent(text) == percent


@pytest.mark.parametrize(
    "text",
    ["", "%", "0.85", "1", "101%", "-1%", "nan", "inf", "8_5%", "1e1%", "85%%", "5 0%", ARABIC_FIVE + "%", NINES],
)
def test_a_fraction_or_nonsense_is_no_percentage(text: str) -> None:
    with pytest.raises(QuantityError):
        parse_percent(text)


def test_a_refused_fraction_says_what_was_meant() -> None:
    with pytest.raises(QuantityError) as caught:
        parse_percent("0.85")
    assert caught.value.hint == "write 85%"


@pytest.mark.parametrize(
    ("text", "seconds"),
    [
        ("90s", 90),
        ("10m", 600),
        ("10min", 600),
        ("1h30m", 5400),
        ("1 h 30 min", 5400),
        ("2d", 172800),
        ("1w", 604800),
        ("250ms", 0.25),
        ("1.5h", 5400),
        ("1H", 3600),
    ],
)
def test_a_duration_is_read_with_its_units(text: str, seconds: float) -> None:
    assert parse_duration_s(text) == pytest.approx(seconds)


@pytest.mark.parametrize(
    "text", ["", "90", "1h30", "-5m", "5 months", "1.5.5m", "m", "1h x", "1:30", NINES + "s", ARABIC_FIVE + "m"]
)
def test_a_bare_number_or_nonsense_is_no_duration(text: str) -> None:
    with pytest.raises(QuantityError):
        parse_duration_s(text)


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (0, "0 s"),
        (0.25, "0.2 s"),
        (59.4, "59 s"),
        (59.6, "1 min"),
        (3599.6, "1 h"),
        (5400, "1 h 30 min"),
        (86399, "23 h 59 min"),
        (90000, "1 d 1 h"),
        (86400 + 59, "1 d"),
        (-5400, "-1 h 30 min"),
    ],
)
def test_a_duration_is_written_with_its_two_largest_units(seconds: float, text: str) -> None:
    assert format_duration(seconds) == text


@given(st.integers(min_value=0, max_value=10**8))
def test_a_written_duration_reads_back_short_of_its_next_unit(seconds: int) -> None:
    read = parse_duration_s(format_duration(seconds))
    assert 0 <= seconds - read < (3600 if seconds >= 86400 else 60 if seconds >= 3600 else 1)


# sbatch(1), --time; every line was accepted by sbatch 22.05.8.
SLURM_TIMES = [
    ("90", 5400),
    ("90:30", 5430),
    ("1:30:00", 5400),
    ("1-12", 129600),
    ("1-12:30", 131400),
    ("1-12:30:15", 131415),
    ("01:00", 60),
    ("0:01", 1),
    ("1:60", 120),
    ("1-24", 172800),
    ("1:99:99", 9639),
    ("UNLIMITED", None),
    ("INFINITE", None),
    ("infinite", None),
    ("Unlimited", None),
    ("-1", None),
    ("0", None),
    ("0:0:0", None),
    ("0-0", None),
]

# "Invalid --time specification" from sbatch 22.05.8.
NOT_SLURM_TIMES = ["", " ", "5m", "1h", "1:2:3:4", "1-2:3:4:5", "1.5", "5:", ":5", "1::2", "+5", "5x", "1--2", "1-12:",
                   "1-12:30:", "a:b", "0x10", "unlim", "infi"]  # fmt: skip

# sbatch takes these and makes something else of them: 71582788 minutes are UNLIMITED to it, -12 is 2982604 days.
MISREAD_BY_SBATCH = ["35791394", "71582788", "99999999999", "-12", "25000-0", NINES]


@pytest.mark.parametrize(("text", "seconds"), SLURM_TIMES)
def test_a_slurm_time_is_read_as_sbatch_reads_it(text: str, seconds: int | None) -> None:
    assert parse_slurm_time_s(text) == seconds


@pytest.mark.parametrize("text", [*NOT_SLURM_TIMES, *MISREAD_BY_SBATCH, ARABIC_FIVE])
def test_what_sbatch_refuses_or_misreads_is_refused(text: str) -> None:
    with pytest.raises(QuantityError):
        parse_slurm_time_s(text)


@given(st.integers(min_value=1, max_value=2**31 - 61) | st.none())
def test_a_written_slurm_time_reads_back(seconds: int | None) -> None:
    assert parse_slurm_time_s(format_slurm_time(seconds)) == seconds


@pytest.fixture(scope="module")
def slurm_conf(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A configuration that lets sbatch read its options, though no controller listens."""
    if shutil.which("sbatch") is None:
        pytest.skip("needs sbatch (apt-get install slurm-client)")
    path = tmp_path_factory.mktemp("slurm") / "slurm.conf"
    path.write_text(
        "ClusterName=x\nSlurmctldHost=localhost\nSlurmctldPort=1\nAuthType=auth/none\nNodeName=n1\n"
        "PartitionName=p Nodes=n1\n"
    )
    return path


def ask_sbatch(text: str, conf: Path) -> str:
    """The time limit as sbatch understood it, in its own words; `refused` when it would not have it."""
    process = subprocess.Popen(
        ["sbatch", "-v", f"--time={text}", "--wrap=true"],
        env={"SLURM_CONF": str(conf), "PATH": "/usr/bin:/bin"},
        stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True,
    )  # fmt: skip
    assert process.stderr is not None
    try:
        for line in process.stderr:
            if "Invalid --time" in line:
                return "refused"
            if match := re.search(r"sbatch: time\s+: (\S+)", line):
                return match[1]
            if "end of defined options" in line:
                break
        return "nothing"
    finally:
        process.kill()  # it would try for nine seconds to reach a controller
        process.wait()
        process.stderr.close()


@pytest.mark.parametrize(("text", "seconds"), SLURM_TIMES)
def test_real_sbatch_agrees_on_the_minute(text: str, seconds: int | None, slurm_conf: Path) -> None:
    rounded_up = None if seconds is None else -(-seconds // 60) * 60
    assert ask_sbatch(text, slurm_conf) == format_slurm_time(rounded_up)


@pytest.mark.parametrize("text", NOT_SLURM_TIMES)
def test_real_sbatch_refuses_it_too(text: str, slurm_conf: Path) -> None:
    assert ask_sbatch(text, slurm_conf) == "refused"


@given(st.text())
def test_any_text_survives_toml_on_one_line(text: str) -> None:
    quoted = quote_toml(text)
    assert "\n" not in quoted and "\r" not in quoted
    assert tomllib.loads(f"value = {quoted}") == {"value": text}


@given(st.text(max_size=30))
def test_no_text_raises_anything_but_a_quantity_error(text: str) -> None:
    for parse in (parse_bytes, parse_percent, parse_duration_s, parse_slurm_time_s):
        try:
            parse(text)
        except QuantityError as error:
            assert error.exit_code == 2
