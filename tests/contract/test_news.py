"""A message that is about no incident: every channel tells it as what it is, and nobody is paged for it."""

from __future__ import annotations

from dataclasses import replace

import pytest

from resilience.alerts.alert import Alert, Reason
from resilience.alerts.channels import _webhook_payloads
from resilience.alerts.digest import compose_digest, lines_of, merge
from resilience.alerts.message import headline, plain_text, runbook
from resilience.alerts.outbox import LIMIT_BYTES, Entry, decode, encode, trimmed
from resilience.alerts.routes import channels
from resilience.alerts.sending import readable
from resilience.finding import Verdict
from resilience.records import from_record, to_record

NEWS = Alert(
    id="cron-digest-20261120", thread="cron-digest", reason=Reason.FIRST, verdict=Verdict.OK, time=1_800_000_000.0,
    host="login1", project="/home/ada/gpt", notices=(), total=0,
    title="resil is alive: 1,440 ticks, 2 open incidents", body=("96 runs of 8 entries", "next: backup at 04:00"),
)  # fmt: skip


def test_its_title_is_the_headline_and_its_body_the_text_without_a_verdict() -> None:
    assert headline(NEWS) == NEWS.title
    text = plain_text(NEWS)
    assert text.startswith(NEWS.title) and "96 runs of 8 entries\nnext: backup" in text and "login1" in text
    assert "CRITICAL" not in text and "alert ack" not in text


def test_it_survives_the_outbox() -> None:
    assert from_record(Alert, to_record(NEWS, complete=True), strict=True) == NEWS
    assert decode(encode(Entry(alert=NEWS, channel="email", queued=1.0))).alert == NEWS


def test_a_body_without_end_is_cut_in_the_middle_for_the_outbox() -> None:
    long = replace(NEWS, body=tuple(f"line {n} {'x' * 100}" for n in range(100_000)))
    entry = trimmed(long)
    assert len(encode(Entry(alert=entry, channel="email", queued=1.0))) < LIMIT_BYTES + 1000
    assert entry.body[0].startswith("line 0 ") and entry.body[-1].startswith("line 99999 ")
    assert any("left out" in line for line in entry.body)


@pytest.mark.parametrize("name", ["email", "slack", "webhook", "console", "command", "apprise"])
def test_every_channel_composes_it(name: str) -> None:
    channel = channels().load(name)
    shown = readable(channel.compose(NEWS, channel.Settings(), {}))
    assert "resil is alive" in shown and "alert ack" not in shown
    if name != "console":
        assert "96 runs of 8 entries" in shown


@pytest.mark.parametrize("preset", sorted(_webhook_payloads.PRESETS))
def test_every_service_gets_its_title(preset: str) -> None:
    payload = _webhook_payloads.PRESETS[preset](NEWS, {})
    assert "resil is alive" in str(payload)


def test_nobody_is_paged_to_hear_that_all_is_well() -> None:
    assert _webhook_payloads.pagerduty(NEWS, {})["event_action"] == "resolve"
    assert _webhook_payloads.pagerduty_ends(NEWS) == ()
    assert _webhook_payloads.ntfy(NEWS, {})["priority"] == 2


def test_no_block_that_slack_gets_is_empty() -> None:
    for story in runbook(NEWS):
        assert story.rows and all(value for _, value in story.rows)


def test_a_line_of_it_stands_in_the_digest_of_an_outage() -> None:
    lines = merge(lines_of(NEWS))
    digest = compose_digest(lines, id="digest-1", now=1_800_000_100.0, host="login1", project="/p")
    assert NEWS.title in plain_text(digest)
