"""A message that is about no incident: every channel tells it as what it is, and nobody is paged for it."""

from __future__ import annotations

from dataclasses import replace

import pytest

from resilience.alerts.alert import Alert, Reason
from resilience.alerts.channels import webhook
from resilience.alerts.digest import compose_digest, lines_of, merge
from resilience.alerts.message import headline, items_of, plain_text
from resilience.alerts.outbox import LIMIT_BYTES, Entry, decode, encode, trimmed
from resilience.alerts.routes import channels
from resilience.alerts.sending import readable
from resilience.finding import Verdict
from resilience.records import from_record, to_record

ANNOUNCEMENT = Alert(
    id="cron-digest-20261120", thread="cron-digest", reason=Reason.FIRST, verdict=Verdict.OK, time=1_800_000_000.0,
    host="login1", project="/home/ada/gpt", notices=(), total=0,
    title="resil is alive: 1,440 ticks, 2 open incidents", body=("96 runs of 8 entries", "next: backup at 04:00"),
)  # fmt: skip


def test_its_title_is_the_headline_and_its_body_the_text_without_a_verdict() -> None:
    assert headline(ANNOUNCEMENT) == ANNOUNCEMENT.title
    text = plain_text(ANNOUNCEMENT)
    assert text.startswith(ANNOUNCEMENT.title) and "96 runs of 8 entries\nnext: backup" in text and "login1" in text
    assert "CRITICAL" not in text and "alert ack" not in text


def test_it_survives_the_outbox() -> None:
    assert from_record(Alert, to_record(ANNOUNCEMENT, complete=True), strict=True) == ANNOUNCEMENT
    assert decode(encode(Entry(alert=ANNOUNCEMENT, channel="email", queued=1.0))).alert == ANNOUNCEMENT


def test_a_body_without_end_is_cut_in_the_middle_for_the_outbox() -> None:
    long = replace(ANNOUNCEMENT, body=tuple(f"line {n} {'x' * 100}" for n in range(100_000)))
    entry = trimmed(long)
    assert len(encode(Entry(alert=entry, channel="email", queued=1.0))) < LIMIT_BYTES + 1000
    assert entry.body[0].startswith("line 0 ") and entry.body[-1].startswith("line 99999 ")
    assert any("left out" in line for line in entry.body)


@pytest.mark.parametrize("name", ["email", "slack", "webhook", "console", "command", "apprise"])
def test_every_channel_composes_it(name: str) -> None:
    channel = channels().load(name)
    shown = readable(channel.compose(ANNOUNCEMENT, channel.Settings(), {}))
    assert "resil is alive" in shown and "alert ack" not in shown
    if name != "console":
        assert "96 runs of 8 entries" in shown


def test_two_projects_announcements_of_one_day_are_different_mails() -> None:
    email = channels().load("email")
    settings = email.Settings(to=("ada@example.org",))
    mails = [email.compose(replace(ANNOUNCEMENT, project=where), settings, {}) for where in ("/home/ada/a", "/b", "/b")]
    assert len({mail.headers["Message-ID"] for mail in mails}) == 2


@pytest.mark.parametrize("preset", sorted(webhook.PRESETS))
def test_every_service_gets_its_title(preset: str) -> None:
    payload = webhook.PRESETS[preset](ANNOUNCEMENT, {})
    assert "resil is alive" in str(payload)


def test_nobody_is_paged_to_hear_that_all_is_well() -> None:
    assert webhook.pagerduty(ANNOUNCEMENT, {})["event_action"] == "resolve"
    assert webhook.pagerduty_ends(ANNOUNCEMENT) == ()
    assert webhook.ntfy(ANNOUNCEMENT, {})["priority"] == 2


def test_no_block_that_slack_gets_is_empty() -> None:
    for story in items_of(ANNOUNCEMENT):
        assert story.rows and all(value for _, value in story.rows)


def test_a_line_of_it_stands_in_the_digest_of_an_outage() -> None:
    lines = merge(lines_of(ANNOUNCEMENT))
    digest = compose_digest(lines, id="digest-1", now=1_800_000_100.0, host="login1", project="/p")
    assert ANNOUNCEMENT.title in plain_text(digest)
