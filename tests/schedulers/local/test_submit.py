"""The grammars of sbatch's option values, by tables."""

from __future__ import annotations

import time

import pytest

from resilience.errors import SchedulerError, UsageError
from resilience.schedulers._local import submit
from resilience.submission import Submission

NOW = time.mktime((2026, 11, 20, 10, 0, 0, 0, 0, -1))


def at(*moment: int) -> float:
    year, month, day, hour, minute, second = (*moment, 0, 0, 0)[:6]
    return time.mktime((year, month, day, hour, minute, second, 0, 0, -1))


@pytest.mark.parametrize(
    ("text", "meant"),
    [
        ("USR1", (10, 60, False)),
        ("USR1@120", (10, 120, False)),
        ("B:USR1@0", (10, 0, True)),
        ("B:SIGTERM@5", (15, 5, True)),
        ("R:USR2", (12, 60, False)),
        ("12@65535", (12, 65535, False)),
        ("b:usr1", None),
        ("FOO@60", None),
        ("@60", None),
        ("X:USR1@60", None),
        ("USR1@65536", None),
        ("USR1@-1", None),
        ("99", None),
    ],
)
def test_signal(text: str, meant: tuple[int, int, bool] | None) -> None:
    if meant is None:
        with pytest.raises(UsageError, match="Invalid --signal"):
            submit.parse_signal(text)
    else:
        assert submit.parse_signal(text) == meant


@pytest.mark.parametrize(
    ("text", "when"),
    [
        ("now", NOW),
        ("now+10", NOW + 10),
        ("now+1hour", NOW + 3600),
        ("now+2days", NOW + 172800),
        ("now + 5", None),
        ("16:00", at(2026, 11, 20, 16)),
        ("4:30pm", at(2026, 11, 20, 16, 30)),
        ("4:30:10 PM", at(2026, 11, 20, 16, 30, 10)),
        ("09:00", at(2026, 11, 21, 9)),
        ("noon", at(2026, 11, 20, 12)),
        ("midnight", at(2026, 11, 21)),
        ("tomorrow", at(2026, 11, 21)),
        ("2026-12-01", at(2026, 12, 1)),
        ("2026-12-01T08:15", at(2026, 12, 1, 8, 15)),
        ("2026-12-01T08:15:30", at(2026, 12, 1, 8, 15, 30)),
        ("2026-12-01 08:15", at(2026, 12, 1, 8, 15)),
        ("12/01", at(2026, 12, 1)),
        ("12/01-16:00", at(2026, 12, 1, 16)),
        ("12/01/27", at(2027, 12, 1)),
        ("120127", at(2027, 12, 1)),
        ("uts1800000000", 1800000000),
        ("25:00", None),
        ("2026-13-01", None),
        ("whenever", None),
        ("", None),
    ],
)
def test_begin(text: str, when: float | None) -> None:
    if when is None:
        with pytest.raises(UsageError, match="Invalid --begin"):
            submit.parse_begin(text, NOW)
    else:
        assert submit.parse_begin(text, NOW) == when


@pytest.mark.parametrize(
    ("text", "indices", "throttle"),
    [
        ("0", (0,), None),
        ("1-3", (1, 2, 3), None),
        ("1,3,5-7", (1, 3, 5, 6, 7), None),
        ("0-15:4", (0, 4, 8, 12), None),
        ("1-10%1", tuple(range(1, 11)), 1),
        ("3,1,3%0", (1, 3), 0),
        ("1000", (1000,), None),
    ],
)
def test_array(text: str, indices: tuple[int, ...], throttle: int | None) -> None:
    array = submit.parse_array(text)
    assert (array.indices(), array.throttle) == (indices, throttle)


@pytest.mark.parametrize("text", ["", "a", "1-", "5-1", "1001", "1-2000", "-1", "1%x", "1-5:0", "1,,2", "0-4000000000"])
def test_no_array(text: str) -> None:
    with pytest.raises(SchedulerError, match="Invalid job array specification"):
        submit.parse_array(text)


@pytest.mark.parametrize(
    ("text", "seconds"),
    [("10", 600), ("0:30", 30), ("1:00:00", 3600), ("1-12", 129600), ("UNLIMITED", None), ("0", None)],
)
def test_time_limits_are_exact_to_the_second(text: str, seconds: int | None) -> None:
    assert submit.parse_time_limit_s(text) == seconds


@pytest.mark.parametrize(
    ("option", "error", "words"),
    [
        ("--time=abc", UsageError, "Invalid --time"),
        ("--nodes=2", SchedulerError, "Requested node configuration is not available"),
        ("--nodes=x", UsageError, "Invalid --nodes"),
        ("--cpus-per-task=0", UsageError, "cpus-per-task"),
        ("--dependency=bogus:1", SchedulerError, "Job dependency problem"),
        ("--dependency=afterburstbuffer:1", SchedulerError, "burst buffers"),
        ("--open-mode=x", UsageError, "one of append"),
    ],
)
def test_options_with_a_wrong_value_are_refused(option: str, error: type[Exception], words: str) -> None:
    submission = Submission("t", "run", "/job.sh", extra_args=(option,))
    with pytest.raises(error) as caught:
        submit.check(submission, b"#!/bin/sh\n", {}, user="me", umask=0, now=NOW)
    assert words in f"{caught.value} {getattr(caught.value, 'hint', '')}"


@pytest.mark.parametrize(
    ("pattern", "path"),
    [
        ("slurm-%A_%a.out", "slurm-7_3.out"),
        ("%x.%j.%u.%N", "name.10.me.box"),
        ("%4a/%6j", "0003/000010"),
        ("100%%", "100%"),
        ("%q", "%q"),
        ("plain", "plain"),
    ],
)
def test_file_patterns(pattern: str, path: str) -> None:
    assert submit.expand_pattern(pattern, raw=10, array=7, index=3, name="name", user="me", host="box") == path


def test_a_name_with_a_slash_leads_into_no_other_directory() -> None:
    path = submit.expand_pattern("%x.out", raw=1, array=1, index=None, name="../../etc/x", user="me", host="box")
    assert path == ".._.._etc_x.out"


OUTER = {"HOME": "/h", "PATH": "/p", "A": "1", "B": "2", "SLURM_JOB_ID": "9", "SBATCH_TIMELIMIT": "1"}


@pytest.mark.parametrize(
    ("export", "expected"),
    [
        ("", {"HOME": "/h", "PATH": "/p", "A": "1", "B": "2"}),
        ("ALL,A=5", {"HOME": "/h", "PATH": "/p", "A": "5", "B": "2"}),
        ("NIL", {}),
        ("A,C=x=y", {"A": "1", "C": "x=y"}),
        ("A,C='x,y'", {"A": "1", "C": "x,y"}),
        ("NONE,A", {"A": "1"}),
        ("MISSING", {}),
    ],
)
def test_export(export: str, expected: dict[str, str]) -> None:
    result = submit.export_environment(export, OUTER)
    if not export.startswith(("ALL", "NIL")) and export:
        assert result.pop("HOME") == "/h" and result.pop("ENVIRONMENT") == "BATCH"
        assert "/bin" in result.pop("PATH")
    assert result == expected


@pytest.mark.parametrize("export", ["ALL,1X=2", "ALL,A='x"])
def test_a_bad_name_or_an_open_quote_in_export_is_refused(export: str) -> None:
    with pytest.raises(UsageError, match="--export"):
        submit.export_environment(export, OUTER)
