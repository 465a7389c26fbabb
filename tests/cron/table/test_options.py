"""What a comment may ask for, and what is said to what nobody can do."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from resilience.cron.records import Entry, EntryOptions, Kind, Overlap
from resilience.cron.table.expression import parse_schedule
from resilience.cron.table.options import (
    OptionError,
    default_options,
    entry_options,
    parse_options,
    usual_options,
)
from resilience.settings.cron_settings import CronSettings


def test_all_options_are_read() -> None:
    said = parse_options(
        "timeout=10m catch_up=none overlap=replace jitter=30s ok=0-3,75 rerun name=backup", EntryOptions()
    )
    assert said.name == "backup"
    assert said.options == EntryOptions(
        timeout_s=600, catch_up=0, overlap=Overlap.REPLACE, jitter_s=30, ok=(0, 1, 2, 3, 75), rerun=True
    )


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("", EntryOptions()),
        ("timeout=none", EntryOptions(timeout_s=0)),
        ("timeout=0", EntryOptions(timeout_s=0)),
        ("timeout=1h30m", EntryOptions(timeout_s=5400)),
        ("catch_up=once", EntryOptions(catch_up=1)),
        ("catch-up=all<=12", EntryOptions(catch_up=12)),
        ("rerun=no", EntryOptions(rerun=False)),
        ("rerun=yes", EntryOptions(rerun=True)),
        ("TIMEOUT=5s", EntryOptions(timeout_s=5)),
        ("sbatch=cron", EntryOptions(takes_cron_sbatch=True)),
    ],
)
def test_values_are_read(text: str, expected: EntryOptions) -> None:
    assert parse_options(text, EntryOptions()).options == expected


@pytest.mark.parametrize(
    ("schedule", "text", "timeout_s"),
    [
        ("* * * * *", "", 60),
        ("*/15 * * * *", "rerun", 900),
        ("0,5 * * * *", "", 300),
        ("59,0 * * * *", "", 60),
        ("59 23,0 * * *", "", 3600),
        ("0,59 0,23 * * *", "", 60),
        ("0,59 0,23 * * 1", "", 3540),
        ("@hourly", "", 3600),
        ("@daily", "", 3600),
        ("@every 90s", "", 90),
        ("@reboot", "", 3600),
        ("* * * * *", "timeout=5m", 300),
        ("* * * * *", "timeout=none", 0),
        ("* * * * *", "overlap=allow", 3600),
    ],
)
def test_the_default_time_limit_is_the_period_and_at_most_an_hour(schedule: str, text: str, timeout_s: float) -> None:
    parsed = parse_schedule(schedule, "UTC")
    options = entry_options(text, CronSettings(), parsed, is_drop_in=False).options
    assert options.timeout_s == timeout_s
    entry = Entry(
        name="crontab/x", place="", schedule=schedule, zone="UTC", kind=Kind.RUN, argv=("x",), options=options
    )
    usual = usual_options(entry, CronSettings())
    assert (usual.timeout_s == timeout_s) == ("timeout" not in text) and usual.overlap is Overlap.SKIP
    said = entry_options("", CronSettings(timeout_s=7200), parsed, is_drop_in=True).options
    assert said.timeout_s == 7200, "what [cron] timeout_s says counts for all"


def test_unset_options_keep_their_defaults() -> None:
    settings = CronSettings(timeout_s=77, catch_up="all<=3", jitter_s=9)
    assert default_options(settings, is_drop_in=True) == EntryOptions(timeout_s=77, catch_up=3, jitter_s=9)
    line = default_options(settings, is_drop_in=False)
    assert line.jitter_s == 0  # who writes a minute means that minute
    assert parse_options("rerun", line).options == EntryOptions(timeout_s=77, catch_up=3, rerun=True)


@pytest.mark.parametrize(
    ("text", "reason", "hint"),
    [
        ("timout=10m", "unknown option 'timout=10m'", "did you mean timeout?"),
        ("xyz", "unknown option 'xyz'", "timeout, catch_up"),
        ("timeout=10", "timeout=10: '10' is not a duration", "timeout=10m"),
        ("timeout=-5m", "timeout=-5m", "timeout=10m"),
        ("timeout", "option timeout has no value", "timeout=10m"),
        ("timeout=1m timeout=2m", "duplicate", "keep only one"),
        ("catch_up=all", "catch_up=all is unknown", "all<=12"),
        ("catch_up=all<=0", "is not between all<=1 and all<=1000", "all<=12"),
        ("catch_up=all<=99999", "is not between", "all<=12"),
        ("overlap=queue", "overlap=queue is not one of skip, allow, replace", "overlap=skip"),
        ("jitter=soon", "jitter=soon", "jitter=30s"),
        ("ok=3-0", "ok=3-0 is not a list of exit codes", "ok=0-3"),
        ("ok=256", "ok=256", "ok=0-3"),
        ("ok=", "ok= is not a list", "ok=0-3"),
        ("sbatch=yes", "sbatch=yes is not one of cron", "sbatch=cron"),
        ("rerun=perhaps", "rerun=perhaps is not one of yes, true, no, false", "rerun"),
        ("name=../x", "'../x' is not a valid name", "letters"),
        ("name=", "'' is not a valid name", "letters"),
        ("name=" + "x" * 65, "is not a valid name", "64"),
    ],
)
def test_an_invalid_option_is_reported_with_a_hint(text: str, reason: str, hint: str) -> None:
    with pytest.raises(OptionError) as refused:
        parse_options(text, EntryOptions())
    assert reason in refused.value.message
    assert hint in refused.value.hint


def test_invalid_settings_are_reported() -> None:
    with pytest.raises(OptionError, match="catch_up=sometimes"):
        default_options(CronSettings(catch_up="sometimes"), is_drop_in=True)


WORDS = st.one_of(
    st.text(max_size=10),
    st.tuples(
        st.sampled_from(["timeout", "catch_up", "overlap", "jitter", "ok", "rerun", "name"]),
        st.one_of(st.text(max_size=6), st.sampled_from(["10m", "all<=3", "skip", "0-3", "\u0663m", "9" * 30 + "h"])),
    ).map("=".join),
)


@settings(max_examples=200, derandomize=True, deadline=None)
@given(st.lists(WORDS, max_size=4).map(" ".join))
def test_any_text_is_options_or_an_error(text: str) -> None:
    try:
        options = parse_options(text, EntryOptions()).options
    except OptionError as error:
        assert error.message
        assert error.hint
    else:
        assert options.timeout_s >= 0 <= options.jitter_s
        assert 0 <= options.catch_up <= 1000
        assert set(options.ok) <= set(range(256))
