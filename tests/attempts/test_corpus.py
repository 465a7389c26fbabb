"""The labelled corpus: what is in it, how well it is classified, and that no healthy line is called a failure."""

from __future__ import annotations

import time
from collections import Counter
from functools import cache

import pytest

from benchmarks.classify import scores
from resilience.attempts.classify import Evidence, classify, sign_of_bad_node
from resilience.attempts.failure import Failure, FailureClass
from tests.attempts.corpus import Entry, all_entries
from tests.attempts.corpus.benign import benign_lines

pytestmark = pytest.mark.xdist_group("corpus")
HEALTHY = {FailureClass.UNKNOWN, FailureClass.FINISHED}
PER_LOG = 200


@cache
def classified() -> tuple[tuple[Entry, Failure], ...]:
    return tuple((one, classify(one.evidence)) for one in all_entries())


def macro_f1(*, is_test: bool) -> float:
    return scores(
        [(str(one.label), str(said.failure)) for one, said in classified() if one.is_test == is_test]
    ).macro_f1


def test_it_has_entries_of_each_class_in_either_half() -> None:
    entries = all_entries()
    assert len(entries) >= 400
    assert len({one.name for one in entries}) == len(entries)
    for is_test in (False, True):
        assert {one.label for one in entries if one.is_test == is_test} == set(FailureClass)
    assert not {one.fingerprint for one in entries if one.is_test} & {
        one.fingerprint for one in entries if not one.is_test
    }
    assert sum("produced" in one.source for one in entries) >= 100, "really failed"


def test_its_deciding_lines_are_in_its_logs() -> None:
    assert [one.name for one in all_entries() if one.line and one.line not in one.evidence.log] == []


def test_the_development_half_is_classified() -> None:
    assert macro_f1(is_test=False) >= 0.98


def test_the_test_half_is_classified() -> None:
    assert macro_f1(is_test=True) >= 0.95


def test_a_right_class_quotes_the_line_that_decides() -> None:
    wrong = []
    for one, found in classified():
        if one.line and found.failure is one.label and found.quotes:
            quoted = " ".join(quote.text for quote in found.quotes)
            if one.line.strip()[:60] not in quoted:
                wrong.append(one.name)
    assert len(wrong) <= len(all_entries()) // 20, wrong


def test_no_healthy_line_is_called_a_failure() -> None:
    lines = list(benign_lines())
    called = Counter[str]()
    for first in range(0, len(lines), PER_LOG):
        found = classify(Evidence(log="\n".join(lines[first : first + PER_LOG])))
        if found.failure not in HEALTHY:
            called[found.reason] += 1
    for line in dict.fromkeys(lines[:2000]):
        if classify(Evidence(log=line)).failure not in HEALTHY:
            called[line] += 1
    assert not called
    assert len(lines) >= 20_000


def test_no_healthy_line_stops_a_training() -> None:
    assert sign_of_bad_node("\n".join(benign_lines())) is None


def test_a_tail_of_a_megabyte_takes_milliseconds() -> None:
    tail = ("\n".join(benign_lines(9000)) + "\n")[-(2**20) :]
    took = []
    for _ in range(3):
        begin = time.process_time()
        classify(Evidence(exit_code=1, log=tail))
        took.append(time.process_time() - begin)
    assert min(took) < 0.2, "measured: benchmarks/classify.py"
