"""Digests: one message for many, open incidents first, then the worst and the oldest."""

from __future__ import annotations

from itertools import permutations

import pytest

from resilience.alerts.alert import Reason
from resilience.alerts.digest import (
    MAX_LINES,
    MAX_NOTICES,
    DigestLine,
    bounded,
    compose_digest,
    digest_id,
    is_due,
    lines_of,
    merge,
    ranked,
    summary_of,
)
from resilience.alerts.outbox import Entry, decode, encode
from resilience.finding import Verdict
from tests.alerts.stand_in import an_alert
from tests.lab.fakes import NOW

HOUR = 3600.0


def a_line(episode: str, verdict: Verdict = Verdict.WARNING, since: float = NOW, **fields: object) -> DigestLine:
    given = {"worst": verdict, "summary": f"{episode} is bad", "time": since, **fields}
    return DigestLine(
        episode=episode, fingerprint="f", check="fs", subject=f"/{episode}", fault="space", verdict=verdict,
        since=since, **given,  # type: ignore[arg-type]
    )  # fmt: skip


FIRST = an_alert("1", thread="t", time=NOW, summary="91% used")
WORSE = an_alert("2", thread="t", time=NOW + HOUR, reason=Reason.WORSE, verdict=Verdict.CRITICAL, summary="99% used")
OVER = an_alert("3", thread="t", time=NOW + 2 * HOUR, reason=Reason.RESOLVED, summary="40% used")


@pytest.mark.parametrize("order", list(permutations([FIRST, WORSE, OVER])))
def test_a_resolved_incident_is_one_line_in_any_order_of_alerts(order: tuple[object, ...]) -> None:
    (line,) = merge(line for alert in order for line in lines_of(alert))  # type: ignore[arg-type]
    assert (line.worst, line.verdict, line.count) == (Verdict.CRITICAL, Verdict.OK, 3)
    assert (line.since, line.ended) == (NOW, NOW + 2 * HOUR)
    assert summary_of(line) == "was CRITICAL, resolved after 2 h: 99% used"


def test_an_open_incident_has_its_newest_summary() -> None:
    (line,) = merge([*lines_of(WORSE), *lines_of(FIRST)])
    assert (line.verdict, line.summary, line.ended) == (Verdict.CRITICAL, "99% used", 0.0)


def test_a_resolution_without_its_incident_is_a_line() -> None:
    (line,) = merge(lines_of(OVER))
    assert summary_of(line) == "resolved after 2 h: 40% used"


def test_lines_are_sorted_open_first_then_the_worst_then_the_oldest() -> None:
    lines = [
        a_line("over", Verdict.OK, NOW - 9, worst=Verdict.CRITICAL, ended=NOW),
        a_line("late", Verdict.CRITICAL, NOW - 1),
        a_line("mild", Verdict.WARNING, NOW - 9),
        a_line("early", Verdict.CRITICAL, NOW - 5),
        a_line("unknown", Verdict.UNKNOWN, NOW - 2),
    ]
    assert [line.episode for line in ranked(lines)] == ["early", "late", "unknown", "mild", "over"]


def test_the_message_says_how_many_and_shows_the_first() -> None:
    lines = ranked(a_line(f"e{n:04d}", Verdict.CRITICAL if n % 2 else Verdict.WARNING, NOW + n) for n in range(300))
    alert = compose_digest(lines, id="digest-1", now=NOW, host="n1", project="/p", left_out=7)
    assert (alert.total, len(alert.notices), alert.is_digest) == (307, MAX_NOTICES, True)
    assert alert.notices[0].episode == "e0001", "the oldest CRITICAL"
    assert (alert.verdict, alert.reason) == (Verdict.CRITICAL, Reason.FIRST)


def test_a_digest_of_resolved_incidents_is_resolved() -> None:
    alert = compose_digest(merge(lines_of(OVER)), id="digest-1", now=NOW, host="n1", project="/p")
    assert alert.is_resolved and alert.verdict is Verdict.OK


def test_the_number_of_lines_is_limited_and_the_rest_is_counted() -> None:
    lines = merge(a_line(f"e{n}", since=NOW + n) for n in range(MAX_LINES + 10))
    kept, left_out = bounded(lines)
    assert (len(kept), left_out) == (MAX_LINES, 10)
    assert kept[0].episode == "e0", "the oldest are kept"


@pytest.mark.parametrize(
    ("count", "age_s", "due"), [(5, 9999, False), (6, 9999, True), (6, 60, False), (20, 0, False), (21, 0, True)]
)
def test_few_messages_are_sent_one_by_one_and_many_as_a_digest(count: int, age_s: float, due: bool) -> None:
    assert is_due(count, NOW - age_s, NOW) is due


def test_folding_the_same_entries_gives_the_same_id() -> None:
    assert digest_id(["b", "a"]) == digest_id(["a", "b"]) != digest_id(["a"])


def test_a_line_comes_back_from_json() -> None:
    line = a_line("e", Verdict.CRITICAL, advice="rm", ended=NOW, acknowledged_by="ada", run="gpt", count=3)
    plain = a_line("e", since=0.0, summary="")
    digest = Entry(alert=FIRST, channel="email", queued=NOW, lines=(line, plain), covers=("a.email",))
    assert decode(encode(digest)) == digest


def test_a_long_summary_is_cut() -> None:
    (line,) = lines_of(an_alert(summary="x" * 5000))
    assert len(line.summary) == 200
