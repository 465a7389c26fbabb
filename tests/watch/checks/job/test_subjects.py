"""Names of jobs, patterns, and expressions that would never finish."""

from __future__ import annotations

import threading
import time

import pytest

from resilience.errors import SettingsError
from resilience.watch.checks._job.subjects import Matcher, parse_requested, subject_of

LONG = "tr11-176B-ml-" + "x" * 80

MATCHES = [
    ("gpt", "gpt", True),
    ("gpt", "gpt2", False),
    ("gpt", "my-gpt", False),
    ("GPT", "gpt", False),
    (LONG, LONG, True),
    (LONG, LONG[:40], False),
    ("a b | c", "a b | c", True),
    ("two\nlines", "two\nlines", True),
    ("caf\udce9", "caf\udce9", True),
    ("tr11-*", "tr11-176B", True),
    ("tr11-*", "xtr11-176B", False),
    ("tr?1", "tr11", True),
    ("run[12]", "run2", True),
    ("run[12]", "run3", False),
    ("run[12]", "run[12]", True),
    ("=run[12]", "run[12]", True),
    ("=run[12]", "run1", False),
    ("/tr11.*ml/", "my-tr11-176B-ml-eval", True),
    ("/^tr11-.*-ml$/", "tr11-176B-ml", True),
    ("/^tr11-.*-ml$/", "tr11-176B-ml-eval", False),
    ("=/a/", "/a/", True),
    ("/", "/", True),
]


@pytest.mark.parametrize(("written", "name", "meant"), MATCHES)
def test_a_name_is_exact_a_pattern_or_a_regular_expression(written: str, name: str, meant: bool) -> None:
    wanted = parse_requested(written)
    assert bool(Matcher([wanted]).find(name)) is meant


@pytest.mark.parametrize("written", ["/(/", "/*a/", "/a{99999999999}/", "", "  "])
def test_an_invalid_expression_is_rejected_with_a_message(written: str) -> None:
    with pytest.raises(SettingsError) as caught:
        parse_requested(written)
    assert caught.value.hint


def test_an_expression_that_backtracks_for_ever_is_stopped_and_reported() -> None:
    slow, good = parse_requested("/^(a+)+$/"), parse_requested("b*")
    matcher = Matcher([slow, good], cpu_limit_s=0.1)
    began = time.process_time()

    assert matcher.find("a" * 60 + "!") == ()
    assert matcher.find("b" + "a" * 60 + "!") == (good,), "the others are still searched"
    assert matcher.find("a" * 61 + "!") == (), "and it is not tried again"

    assert time.process_time() - began < 2
    assert "takes too long" in matcher.errors["/^(a+)+$/"]


def test_the_limit_is_one_for_all_names() -> None:
    """A hundred names that take a little less than the limit each must not take a hundred times the limit."""
    matcher = Matcher([parse_requested("/^(a+)+$/")], cpu_limit_s=0.2)
    began = time.process_time()
    for number in range(1000):
        matcher.find("a" * 18 + f"!{number}")
    assert time.process_time() - began < 2
    assert matcher.errors


def test_in_another_thread_there_is_no_limit_and_no_crash() -> None:
    found = []
    thread = threading.Thread(target=lambda: found.append(Matcher([parse_requested("/gp/")]).find("gpt")))
    thread.start()
    thread.join()
    assert len(found[0]) == 1


SUBJECTS = [
    ("gpt", (), "gpt"),
    ("gpt", ("bob",), "gpt of bob"),
    ("gpt", ("bob", "alice"), "gpt of alice,bob"),
    ("gpt", ("*",), "gpt of anyone"),
    ("two\nlines", (), r"'two\nlines'"),
    ("caf\udce9", (), r"'caf\udce9'"),
    ("two  blanks", (), "'two  blanks'"),
]


@pytest.mark.parametrize(("name", "users", "subject"), SUBJECTS)
def test_a_subject_is_one_printable_line(name: str, users: tuple[str, ...], subject: str) -> None:
    assert subject_of(name, users) == subject
    assert subject_of(name, users, "alpha") == f"{subject} on alpha"
