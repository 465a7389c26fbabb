"""Webhooks: each service's own form, a payload of one's own, and servers of every kind of bad."""

from __future__ import annotations

import gzip
import json
import socket
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from pytest_httpserver import HTTPServer
from werkzeug import Response

from resilience.alerts.alert import Alert, Reason
from resilience.alerts.channels.webhook import CHANNEL, WebhookSettings
from resilience.errors import SettingsError
from resilience.finding import Verdict
from resilience.system.ports import System
from tests.alerts.channels.alerts import HOSTILE, a_notice, a_thousand, an_alert, hostile, resolved
from tests.alerts.channels.sender import Sender
from tests.alerts.channels.servers import (
    Certificate,
    Handler,
    drips,
    free_port,
    hangs_up,
    make_certificate,
    says,
    serving,
    silent,
    takes_at_most,
)

PRESETS = ("generic", "pagerduty", "ntfy", "teams", "discord", "mattermost")


def payload(alert: Alert, settings: WebhookSettings | str = "generic", **thread: str) -> Any:
    if isinstance(settings, str):
        settings = WebhookSettings(preset=settings)
    return json.loads(CHANNEL.compose(alert, settings, thread).payload)


SENDER = Sender(CHANNEL)
send, refused = SENDER.send, SENDER.refused


@pytest.fixture
def url(httpserver: HTTPServer) -> str:
    """Takes everything."""
    httpserver.expect_request("/x").respond_with_data("ok")
    return httpserver.url_for("/x")


def to(port: int, scheme: str = "http", **fields: Any) -> WebhookSettings:
    return WebhookSettings(url=f"{scheme}://127.0.0.1:{port}/alerts", **{"timeout_s": 2.0, **fields})


# What each service is sent


def test_generic_is_the_alert_itself_with_a_headline(httpserver: HTTPServer, system: System) -> None:
    httpserver.expect_request("/alerts", method="POST").respond_with_json({"id": 7}, status=201)
    answer = send(WebhookSettings(url=httpserver.url_for("/alerts")), system)["answer"]
    request = httpserver.log[0][0]
    assert request.content_type == "application/json"
    assert request.get_json()["headline"].startswith("CRITICAL: /scratch: 98%")
    assert request.get_json()["notices"][0]["episode"] == "3f9a1c"
    assert "201" in answer


def test_a_page_is_triggered_and_resolved_under_one_key() -> None:
    fire, end = payload(an_alert(), "pagerduty"), payload(resolved(), "pagerduty", open="3f9a1c")
    assert (fire["event_action"], end["event_action"]) == ("trigger", "resolve")
    assert fire["dedup_key"] == end["dedup_key"] and len(fire["dedup_key"]) <= 255
    assert fire["payload"]["severity"] == "critical" and fire["payload"]["source"] == "/scratch"
    assert fire["payload"]["timestamp"] == "2027-01-15T08:00:00.000+00:00"
    assert len(fire["payload"]["summary"]) <= 1024
    assert payload(an_alert(a_notice(verdict=Verdict.UNKNOWN)), "pagerduty")["payload"]["severity"] == "error"


def test_a_page_lasts_until_the_last_incident_of_its_thread_is_over() -> None:
    two = an_alert(a_notice("aaaaaa"), a_notice("bbbbbb"))
    settings = WebhookSettings(preset="pagerduty")
    memory = CHANNEL.compose(two, settings, {}).memory
    ended = a_notice("aaaaaa", reason=Reason.RESOLVED, verdict=Verdict.OK)
    first_end = CHANNEL.compose(an_alert(ended, reason=Reason.RESOLVED), settings, memory)
    assert json.loads(first_end.payload)["event_action"] == "trigger"
    ended = replace(ended, episode="bbbbbb")
    last_end = CHANNEL.compose(an_alert(ended, reason=Reason.RESOLVED), settings, first_end.memory)
    assert json.loads(last_end.payload)["event_action"] == "resolve"


def test_the_page_of_a_digest_is_ended_by_the_end_of_its_first_incident() -> None:
    over = a_notice("000000", reason=Reason.RESOLVED, verdict=Verdict.OK)
    digest = an_alert(over, a_notice("3f9a1c"), is_digest=True, id="digest-1", thread="digest-1")
    end = payload(resolved(thread="3f9a1c"), "pagerduty")
    assert payload(digest, "pagerduty")["dedup_key"] == end["dedup_key"]


def test_one_message_about_several_ends_closes_the_page_of_each(
    httpserver: HTTPServer, system: System, canary: str
) -> None:
    httpserver.expect_request("/v2").respond_with_json({"status": "success"}, status=202)
    settings = WebhookSettings(preset="pagerduty", url=httpserver.url_for("/v2"), secret_variable="RESIL_CANARY")
    ends = [a_notice(episode, reason=Reason.RESOLVED, verdict=Verdict.OK) for episode in ("aaaaaa", "bbbbbb")]
    send(settings, system, an_alert(*ends, reason=Reason.RESOLVED, thread="the-group"))
    sent = [asked.get_json() for asked, _ in httpserver.log]
    assert {event["dedup_key"] for event in sent} == {"resil-the-group", "resil-aaaaaa", "resil-bbbbbb"}
    assert {event["event_action"] for event in sent} == {"resolve"}
    assert {event["routing_key"] for event in sent} == {canary}
    assert CHANNEL.compose(an_alert(), settings, {}).more == ()


def test_an_acknowledged_page_is_triggered_again_only_if_worse() -> None:
    taken = a_notice(acknowledged_by="ada")
    assert payload(an_alert(taken, reason=Reason.REMINDER), "pagerduty")["event_action"] == "acknowledge"
    assert payload(an_alert(taken, reason=Reason.WORSE), "pagerduty")["event_action"] == "trigger"


def test_pagerduty_gets_its_key_from_a_file_and_nothing_shows_it(
    httpserver: HTTPServer, system: System, canary: str, canary_file: Path
) -> None:
    httpserver.expect_request("/v2/enqueue").respond_with_data(f'{{"status":"success","key":"{canary}"}}', status=202)
    settings = WebhookSettings(preset="pagerduty", url=httpserver.url_for("/v2/enqueue"), secret_file=str(canary_file))
    answer = send(settings, system)
    assert httpserver.log[0][0].get_json()["routing_key"] == canary
    assert canary not in repr(answer) and "202" in answer["answer"]
    assert canary not in CHANNEL.compose(an_alert(), settings, {}).payload


def test_ntfy_gets_the_topic_from_the_address(httpserver: HTTPServer, system: System) -> None:
    httpserver.expect_request("/").respond_with_json({"id": "x"})
    send(WebhookSettings(preset="ntfy", url=httpserver.url_for("/my-topic")), system)
    sent = httpserver.log[0][0].get_json()
    assert sent["topic"] == "my-topic" and sent["priority"] == 5 and "98% used" in sent["message"]
    assert sent["sequence_id"] == payload(an_alert(), "ntfy")["sequence_id"]
    with pytest.raises(SettingsError, match="no topic"):
        send(WebhookSettings(preset="ntfy", url=httpserver.url_for("/")), system)


def test_teams_gets_an_adaptive_card_of_plain_runs() -> None:
    sent = payload(hostile("[click](https://evil.example) <at>everyone</at> **x**"), "teams")
    card = sent["attachments"][0]["content"]
    assert sent["type"] == "message" and card["type"] == "AdaptiveCard"
    assert {block["type"] for block in card["body"]} == {"RichTextBlock"}
    assert len(json.dumps(payload(a_thousand(), "teams"))) < 28_000


def test_discord_and_mattermost_mention_nobody() -> None:
    text = "@everyone @here [click](https://evil.example)"
    discord, mattermost = payload(hostile(text), "discord"), payload(hostile(text), "mattermost")
    assert discord["allowed_mentions"] == {"parse": []}
    assert len(discord["content"]) <= 2000
    embed = discord["embeds"][0]
    assert len(embed["title"]) <= 256 and len(embed["description"]) <= 4096
    assert "@everyone" not in mattermost["text"] and "@here" not in mattermost["text"]
    assert mattermost["attachments"][0]["text"].startswith("```")


@pytest.mark.parametrize("preset", PRESETS)
@pytest.mark.parametrize("alert", [a_thousand(), resolved(), *map(hostile, HOSTILE.values())])
def test_every_service_gets_json_of_a_size_it_takes(preset: str, alert: Alert) -> None:
    message = CHANNEL.compose(alert, WebhookSettings(preset=preset), {})
    assert len(message.payload) < {"teams": 28_000, "ntfy": 12_000, "discord": 24_000}.get(preset, 512_000)
    json.loads(message.payload)["dedup_key" if preset == "pagerduty" else next(iter(json.loads(message.payload)))]


def test_no_job_name_can_refer_to_the_secret(httpserver: HTTPServer, url: str, system: System, canary: str) -> None:
    for preset in ("generic", "pagerduty"):
        settings = WebhookSettings(preset=preset, url=url, secret_variable="RESIL_CANARY")
        send(settings, system, hostile("\0secret\0 {secret} {{ secret }} \\u0000secret\\u0000"))
    generic, page = (request.get_data(as_text=True) for request, _ in httpserver.log)
    assert canary not in generic and page.count(canary) == 1  # the routing key itself


# A payload of one's own


def own(template: str, **fields: Any) -> WebhookSettings:
    return WebhookSettings(payload=template, **{"url": "https://example.org/", **fields})


@pytest.mark.parametrize("text", HOSTILE.values(), ids=HOSTILE.keys())
def test_a_custom_payload_is_json_for_any_alert(text: str) -> None:
    settings = own('{"text": {{ headline }}, "runs": [{% for n in notices %}{{ n.run }}{% endfor %}]}')
    assert set(payload(hostile(text), settings)) == {"text", "runs"}


def test_a_payload_may_use_tojson_and_the_secret(httpserver: HTTPServer, url: str, system: System, canary: str) -> None:
    settings = own('{"a": {{ headline|tojson }}, "token": {{ secret }}}', url=url, secret_variable="RESIL_CANARY")
    send(settings, system, an_alert(a_notice(subject="<&'>")))
    sent = httpserver.log[0][0].get_json()
    assert sent["token"] == canary and "<&'>" in sent["a"]


@pytest.mark.parametrize(
    ("template", "word"),
    [
        ('{"text": "{{ headline }}"}', "quotes"),
        ('{"text": {{ headlin }}}', "headlin"),
        ('{"text": {{ headline }}', "does not render to JSON"),
        ('{"text": {{ headline }', "line 1"),
        ("{% if x %}", "line 1"),
        ('{{ "".__class__.__mro__ }}', "payload"),
        ("{% for i in range(100000) %}{% for j in range(100000) %}xxxxxxxxxx{% endfor %}{% endfor %}", "1000000"),
        ("{{ 1/0 }}", "ZeroDivisionError"),
    ],
)
def test_an_invalid_payload_is_rejected_by_check(template: str, word: str) -> None:
    with takes_at_most(5):
        assert word in SENDER.objection(own(template))


# Headers and secrets


def test_a_header_may_hold_the_secret(httpserver: HTTPServer, url: str, system: System, canary: str) -> None:
    headers = {"Authorization": "Bearer {secret}", "X-Team": "ml"}
    send(WebhookSettings(url=url, secret_variable="RESIL_CANARY", method="PUT", headers=headers), system)
    request = httpserver.log[0][0]
    assert request.headers["Authorization"] == f"Bearer {canary}" and request.headers["X-Team"] == "ml"
    assert request.method == "PUT"


@pytest.mark.parametrize(
    ("wrong", "word"),
    [
        ({"url": ""}, "needs a URL"),
        ({"url": "ftp://example.org"}, "not a web address"),
        ({"url": "https://"}, "not a web address"),
        ({"url": "https://exa mple.org"}, "not a web address"),
        ({"url": "https://example.org:99999/"}, "not a web address"),
        ({"url": "http://example.org/"}, "plain http to example.org"),
        ({"url": "https://hooks.slack.com/services/T/B/CaNaRy99"}, "is a secret"),
        ({"url": "https://discord.com/api/webhooks/1/CaNaRy99"}, "is a secret"),
        ({"url": "https://x.webhook.office.com/CaNaRy99"}, "is a secret"),
        ({"url": "https://ada:CaNaRy99@example.org/"}, "is a secret"),
        ({"url": "https://example.org/?token=CaNaRy99"}, "is a secret"),
        ({"url_file": "/a"}, "set twice"),
        ({"preset": "pager"}, "use one of: generic, pagerduty"),
        ({"preset": "pagerduty"}, "secret_file"),
        ({"method": "GET"}, "is unknown"),
        ({"timeout_s": 0.0}, "must be positive"),
        ({"headers": {"X Y": "z"}}, "not a header name"),
        ({"headers": {"X": "a\r\nY: b"}}, "one line"),
        ({"headers": {"Authorization": "Bearer CaNaRy99"}}, "contains a secret"),
        ({"headers": {"X-Api-Key": "CaNaRy99"}}, "contains a secret"),
        ({"headers": {"X": "{secret}"}}, "needs a secret"),
        ({"secret_file": "secret.txt"}, "absolute path"),
    ],
)
def test_invalid_settings_are_rejected_without_showing_a_secret(wrong: dict[str, Any], word: str) -> None:
    said = SENDER.objection(replace(WebhookSettings(url="https://example.org/"), **wrong))
    assert word in said and "CaNaRy99" not in said


def test_plain_http_may_be_allowed() -> None:
    CHANNEL.check(WebhookSettings(url="http://gateway.cluster/alerts", allow_http=True))
    CHANNEL.check(WebhookSettings(url="http://localhost:8080/alerts"))


def test_a_malformed_url_in_a_secret_file_is_reported_without_it(system: System, canary: str) -> None:
    with pytest.raises(SettingsError) as caught:  # the canary is no address at all
        send(WebhookSettings(url_variable="RESIL_CANARY"), system)
    assert "not a web address" in caught.value.message and canary not in caught.value.message


# Servers


@pytest.mark.parametrize(
    ("status", "headers", "transient", "wait_s"),
    [
        (429, {"Retry-After": "20"}, True, 20.0),
        (429, {}, True, None),
        (429, {"Retry-After": "1e99"}, True, None),
        (429, {"Retry-After": "9" * 18}, True, 300.0),
        (429, {"Retry-After": "-5"}, True, None),
        (425, {}, True, None),
        (503, {"Retry-After": "3"}, True, 3.0),
        (422, {}, False, None),
        (307, {"Location": "/elsewhere"}, False, None),
    ],
)
def test_the_status_determines_whether_and_when_to_retry(
    httpserver: HTTPServer, system: System, status: int, headers: dict[str, str], transient: bool, wait_s: float | None
) -> None:
    httpserver.expect_request("/x").respond_with_response(Response("because", status=status, headers=headers))
    error = refused(WebhookSettings(url=httpserver.url_for("/x")), system)
    assert (error.transient, error.retry_after_s) == (transient, wait_s)
    assert f"answered {status}: because" in error.message
    assert len(httpserver.log) == 1


def test_a_date_to_try_again_is_measured_by_the_servers_own_clock(system: System) -> None:
    dates = b"Date: Wed, 21 Oct 2015 07:28:00 GMT\r\nRetry-After: Wed, 21 Oct 2015 07:28:40 GMT"
    with serving(says(b"HTTP/1.1 429 Slow\r\n" + dates + b"\r\nContent-Length: 0\r\n\r\n")) as port:
        assert refused(to(port), system).retry_after_s == 40.0


BOMB = gzip.compress(b"0" * 200_000_000, 1)
BOMB_HEAD = f"HTTP/1.1 500 No\r\nContent-Encoding: gzip\r\nContent-Length: {len(BOMB)}\r\n\r\n".encode()
LONG = '[{% for i in range(90) %}{{ "x" * 10000 }},{% endfor %}1]'
LATE = "did not answer within 0.3 s"
# By name: the server, settings, and a part of the message.
BAD_SERVERS: dict[str, tuple[Handler, dict[str, Any], str]] = {
    "black hole": (silent, {"timeout_s": 0.3}, LATE),
    "a slow drip": (drips(b"HTTP/1.1 200 OK\r\n"), {"timeout_s": 0.3}, LATE),
    "a header without end": (says(b"HTTP/1.1 200 OK\r\nX: ", drips(b"y", 0.01)), {"timeout_s": 0.3}, LATE),
    "go on, go on": (says(b"HTTP/1.1 100 Continue\r\n\r\n" * 3, silent), {"timeout_s": 0.3}, LATE),
    "it reads nothing": (silent, {"timeout_s": 0.3, "payload": LONG}, ""),
    "it never shakes hands": (silent, {"timeout_s": 0.3, "scheme": "https"}, ""),
    "a packed bomb is not unpacked": (says(BOMB_HEAD + BOMB), {}, ""),
    "it hangs up": (hangs_up, {}, ""),
    "no HTTP": (says(b"SSH-2.0-OpenSSH_9.2\r\n\r\n"), {}, ""),
}


@pytest.mark.parametrize("name", BAD_SERVERS)
def test_a_bad_server_is_transient_within_the_time_limit(system: System, name: str) -> None:
    handler, fields, said = BAD_SERVERS[name]
    with serving(handler) as port, takes_at_most(5):
        error = refused(to(port, **fields), system)
    assert error.transient and said in error.message


def test_a_closed_port_is_transient_and_reported(system: System) -> None:
    error = refused(to(free_port()), system)
    assert error.transient and "connection refused" in error.message


def test_a_body_that_never_ends_does_not_undo_the_answer(system: System) -> None:
    endless = says(b"HTTP/1.1 200 OK\r\n\r\n", drips(b"y", 0.01))
    with serving(endless) as port, takes_at_most(5):
        assert "answered 200" in send(to(port, timeout_s=0.5), system)["answer"]


def test_a_huge_body_is_not_read(system: System) -> None:
    sent = 0

    def pours(connection: socket.socket, stop: Any) -> None:
        nonlocal sent
        for _ in range(2000):
            sent += connection.send(b"z" * 2**20)

    with serving(says(b"HTTP/1.1 500 No\r\n\r\n", pours)) as port, takes_at_most(5):
        error = refused(to(port), system)
    assert error.transient and len(error.message) < 400 and sent < 50 * 2**20


def test_an_unresolvable_name_is_transient(system: System) -> None:
    with takes_at_most(5):
        error = refused(WebhookSettings(url="https://nowhere.invalid/x", timeout_s=3), system)
    assert error.transient and "nowhere.invalid" in error.message


def test_a_certificate_must_be_signed_and_for_this_host(
    system: System, certificate: Certificate, tmp_path: Path, httpserver: HTTPServer
) -> None:
    other = make_certificate(tmp_path, names="DNS:example.org")
    answers = says(b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok")
    with serving(answers, certificate.server_context()) as port:
        assert "certificate" in refused(to(port, "https"), system).message
        assert "answered 200" in send(to(port, "https", ca_file=str(certificate.file)), system)["answer"]
    with serving(answers, other.server_context()) as port:
        assert "certificate" in refused(to(port, "https", ca_file=str(other.file)), system).message


def test_nothing_in_the_environment_switches_checking_off(system: System, certificate: Certificate) -> None:
    off = {"PYTHONHTTPSVERIFY": "0", "CURL_CA_BUNDLE": "", "REQUESTS_CA_BUNDLE": ""}
    with serving(says(b"HTTP/1.1 200 OK\r\n\r\n"), certificate.server_context()) as port:
        assert "certificate" in refused(to(port, "https"), replace(system, environ=off)).message


def test_a_tls_server_that_drips_costs_no_more_than_its_time(system: System, certificate: Certificate) -> None:
    dripping = says(b"HTTP/1.1 200 OK\r\nX: ", drips(b"y"))
    with serving(dripping, certificate.server_context()) as port, takes_at_most(5):
        error = refused(to(port, "https", timeout_s=0.3, ca_file=str(certificate.file)), system)
    assert LATE in error.message


def test_the_proxy_of_the_environment_is_asked(httpserver: HTTPServer, system: System, canary: str) -> None:
    httpserver.expect_request("/alerts").respond_with_data("from the proxy")
    proxy = httpserver.url_for("").rstrip("/").replace("http://", f"http://ada:{canary}@")
    settings = WebhookSettings(url="http://far.example/alerts", allow_http=True, timeout_s=3)
    assert "from the proxy" in send(settings, replace(system, environ={"http_proxy": proxy}))["answer"]
    dead = f"http://ada:{canary}@127.0.0.1:{free_port()}"
    error = refused(settings, replace(system, environ={"http_proxy": dead}))
    assert error.transient and canary not in error.message
    https = replace(settings, url="https://far.example/alerts")
    error = refused(https, replace(system, environ={"HTTPS_PROXY": dead}))
    assert error.transient and canary not in error.message


def test_no_password_is_taken_from_netrc(
    httpserver: HTTPServer, url: str, system: System, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    (tmp_path / ".netrc").write_text("machine localhost login ada password geheim\n")
    (tmp_path / ".netrc").chmod(0o600)
    monkeypatch.setenv("HOME", str(tmp_path))
    send(WebhookSettings(url=url), system)
    assert "Authorization" not in httpserver.log[0][0].headers
