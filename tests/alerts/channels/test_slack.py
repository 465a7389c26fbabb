"""Slack gets one message or one thread, within its limits, without mentions from alert texts or leaked secrets."""

from __future__ import annotations

import html
import json
import re
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pytest_httpserver import HTTPServer
from werkzeug import Request, Response

from resilience.alerts.alert import Alert, Reason
from resilience.alerts.channels.slack import CHANNEL, SlackMessage, SlackSettings, escaped, mention_of
from resilience.errors import DeliveryError, SettingsError
from resilience.finding import Verdict
from resilience.system.ports import System
from tests.alerts.channels.alerts import HOSTILE, a_notice, a_thousand, an_alert, hostile, resolved
from tests.alerts.channels.sender import Sender
from tests.alerts.channels.servers import drips, says, serving, silent, takes_at_most

BOT = SlackSettings(token_variable="RESIL_CANARY", channel="C1", timeout_s=3)


def texts_in(value: Any) -> Iterator[str]:
    if isinstance(value, dict):
        for item in value.values():
            yield from texts_in(item)
    elif isinstance(value, list):
        for item in value:
            yield from texts_in(item)
    elif isinstance(value, str):
        yield value


def content_of(alert: Alert, *mention: str) -> dict[str, Any]:
    settings = SlackSettings(webhook_variable="X", mention=mention)
    return dict(CHANNEL.compose(alert, settings, {}).content)


def assert_within_limits(content: dict[str, Any]) -> None:
    """https://docs.slack.dev/reference/block-kit/blocks."""
    blocks = content["blocks"] + content["attachments"][0]["blocks"]
    assert len(blocks) <= 50
    assert len(json.dumps(content)) < 100_000 and sum(map(len, texts_in(content))) < 40_000
    for block in blocks:
        if block["type"] == "header":
            assert 0 < len(block["text"]["text"]) <= 150
        elif block["type"] == "section":
            assert 0 < len(block["text"]["text"]) <= 3000
        else:
            assert 0 < len(block["elements"][0]["text"]) <= 2000


@pytest.mark.parametrize("alert", [an_alert(), resolved(), a_thousand(), *map(hostile, HOSTILE.values())])
def test_a_message_stays_within_the_limits(alert: Alert) -> None:
    assert_within_limits(content_of(alert, "here"))


def test_the_short_id_of_the_episode_is_visible() -> None:
    content = content_of(an_alert())
    assert "3f9a1c" in content["text"] and "3f9a1c" in content["blocks"][0]["text"]["text"]


def test_truncation_is_marked() -> None:
    long = an_alert(a_notice(evidence=("x" * 10_000,), summary="y" * 5000))
    shown = json.dumps(content_of(long), ensure_ascii=False)
    assert "more)" in shown
    many = json.dumps(content_of(a_thousand()), ensure_ascii=False)
    assert "And 985 more" in many


@settings(deadline=None)
@given(st.text(st.characters() | st.sampled_from("&<>")), st.integers(1, 60))
def test_an_escape_is_never_cut_apart(text: str, limit: int) -> None:
    shown = escaped(text, limit)
    assert len(shown) <= limit
    assert not re.search(r"[<>]|&(?!amp;|lt;|gt;)", shown)
    if len(shown) < limit - 6:
        assert html.unescape(shown.replace("&amp;", "&#38;")) == text or "&" in text


@pytest.mark.parametrize(
    ("written", "form"),
    [("here", "<!here>"), ("@channel", "<!channel>"), ("<!everyone>", "<!everyone>"), ("U024BE7LH", "<@U024BE7LH>"),
     ("<@W012A3CDE>", "<@W012A3CDE>"), ("S0614TZR7", "<!subteam^S0614TZR7>")],
)  # fmt: skip
def test_mentions_are_converted_to_slacks_notation(written: str, form: str) -> None:
    assert mention_of(written) == form


def test_a_job_named_like_a_broadcast_mentions_no_user() -> None:
    content = content_of(hostile("<!channel> <@U123> & <https://evil.example|click>"))
    shown = list(texts_in(content))
    assert not any("<!" in text or "<@" in text or "<http" in text for text in shown)
    assert any("&lt;!channel&gt;" in text for text in shown)
    assert not any("& " in text.replace("&amp; ", "") for text in shown)


@pytest.mark.parametrize(
    ("alert", "calls"),
    [
        (an_alert(), True),
        (an_alert(reason=Reason.WORSE), True),
        (an_alert(reason=Reason.ESCALATED), True),
        (an_alert(reason=Reason.REMINDER), False),
        (an_alert(a_notice(verdict=Verdict.WARNING)), False),
        (resolved(), False),
        (an_alert(is_test=True), False),
        (an_alert(is_digest=True), False),
    ],
)
def test_only_a_new_critical_has_mentions(alert: Alert, calls: bool) -> None:
    shown = json.dumps(content_of(alert, "here", "<@U024BE7LH>", "S0614TZR7"))
    assert ("<!here> <@U024BE7LH> <!subteam^S0614TZR7>" in shown) is calls
    assert ("<!here>" in shown) is calls


def test_colours_follow_the_verdict_and_the_end() -> None:
    colours = {content_of(alert)["attachments"][0]["color"] for alert in
               (an_alert(), an_alert(a_notice(verdict=Verdict.WARNING)), resolved())}  # fmt: skip
    assert len(colours) == 3
    assert content_of(resolved())["text"].startswith("🟢 RESOLVED")


SENDER = Sender(CHANNEL)
send, refused = SENDER.send, SENDER.refused


@dataclass
class Hook:
    """A webhook on the server, with the canary in its address."""

    server: HTTPServer
    system: System
    canary: str
    settings = SlackSettings(webhook_variable="HOOK", timeout_s=3)

    def answers(self, response: Response) -> None:
        self.server.expect_request(f"/services/T0/B0/{self.canary}", method="POST").respond_with_response(response)

    def refused(self, response: Response) -> DeliveryError:
        self.answers(response)
        return refused(self.settings, self.system)


@pytest.fixture
def hook(httpserver: HTTPServer, system: System, canary: str) -> Hook:
    url = httpserver.url_for(f"/services/T0/B0/{canary}")
    return Hook(httpserver, replace(system, environ={**system.environ, "HOOK": url}), canary)


def test_a_webhook_takes_the_message(hook: Hook) -> None:
    hook.answers(Response("ok"))
    answer = send(hook.settings, hook.system)["answer"]
    sent = hook.server.log[0][0].get_json()
    assert sent["text"].startswith("🔴 CRITICAL: /scratch") and sent["attachments"][0]["blocks"]
    assert "answered 200: ok" in answer and hook.canary not in answer


@pytest.mark.parametrize(
    ("status", "headers", "transient", "wait_s"),
    [
        (429, {"Retry-After": "30"}, True, 30.0),
        (429, {}, True, None),
        (429, {"Retry-After": "99999999"}, True, 300.0),
        (429, {"Retry-After": "soon"}, True, None),
        (503, {"Retry-After": "7"}, True, 7.0),
        (410, {}, False, None),
    ],
)
def test_a_webhooks_refusal_says_whether_and_when_to_try_again(
    hook: Hook, status: int, headers: dict[str, str], transient: bool, wait_s: float | None
) -> None:
    error = hook.refused(Response(f"no: /services/T0/B0/{hook.canary}", status=status, headers=headers))
    assert (error.transient, error.retry_after_s) == (transient, wait_s)
    assert str(status) in error.message and hook.canary not in error.message + error.hint
    assert len(hook.server.log) == 1  # slack_sdk tries nothing again by itself: the outbox does


@pytest.mark.parametrize(
    ("answer", "kind", "transient", "said"),
    [
        ('{"ok": false, "error": "channel_not_found"}', "application/json", False, "channel_not_found"),
        ('{"ok": false, "error": "internal_error"}', "application/json", True, "internal_error"),
        ("<html>please log in</html>", "text/html", True, ""),
    ],
    ids=["no channel", "internal error", "a log-in page"],
)
def test_a_200_with_an_error_is_no_delivery(hook: Hook, answer: str, kind: str, transient: bool, said: str) -> None:
    error = hook.refused(Response(answer, content_type=kind))
    assert error.transient is transient and said in error.message


def test_a_redirect_is_not_followed(hook: Hook) -> None:
    hook.server.expect_request("/elsewhere").respond_with_data("ok")
    error = hook.refused(Response(status=302, headers={"Location": hook.server.url_for("/elsewhere")}))
    assert not error.transient and "302" in error.message and len(hook.server.log) == 1


@pytest.mark.parametrize("way", ["webhook", "bot"])
@pytest.mark.parametrize(
    "handler",
    [silent, drips(b"HTTP/1.1 200 OK\r\n"), says(b"HTTP/1.1 200 OK\r\nX: ", drips(b"y"))],
    ids=["black hole", "a slow drip", "a header without end"],
)
def test_a_bad_server_fails_within_the_time_limit(system: System, canary: str, handler: Any, way: str) -> None:
    with serving(handler) as port, takes_at_most(5):
        if way == "webhook":
            settings = SlackSettings(webhook_variable="HOOK", timeout_s=0.3)
            system = replace(system, environ={"HOOK": f"http://127.0.0.1:{port}/services/{canary}"})
        else:
            settings = replace(BOT, base_url=f"http://127.0.0.1:{port}/api/", timeout_s=0.3)
        error = refused(settings, system)
    assert error.transient and "did not answer within 0.3 s" in error.message


class Api:
    """As much of Slack's API as a bot needs."""

    def __init__(self, httpserver: HTTPServer) -> None:
        self.calls: list[tuple[str, dict[str, Any]]] = []
        self.answers: dict[str, dict[str, Any]] = {}
        self.authorizations: set[str | None] = set()
        self.settings = replace(BOT, base_url=httpserver.url_for("/api/"))
        httpserver.expect_request("/api/chat.postMessage").respond_with_handler(self.answer)
        httpserver.expect_request("/api/chat.update").respond_with_handler(self.answer)

    def answer(self, request: Request) -> Response:
        method = request.path.rpartition("/")[2]
        self.calls.append((method, request.get_json()))
        self.authorizations.add(request.headers.get("Authorization"))
        good = {"ok": True, "channel": "C1", "ts": f"170000.{len(self.calls)}"}
        return Response(json.dumps(self.answers.get(method, good)), content_type="application/json")


@pytest.fixture
def api(httpserver: HTTPServer) -> Api:
    return Api(httpserver)


def bot_refused(httpserver: HTTPServer, system: System, response: Response) -> DeliveryError:
    """The error of a bot to which the API answers this."""
    httpserver.expect_request("/api/chat.postMessage").respond_with_response(response)
    return refused(replace(BOT, base_url=httpserver.url_for("/api/")), system)


def test_a_bots_later_alerts_reply_and_the_first_message_shows_the_end(api: Api, system: System, canary: str) -> None:
    first = send(api.settings, system)
    worse = send(api.settings, system, an_alert(id="x-2", reason=Reason.WORSE), first)
    reminded = send(api.settings, system, an_alert(id="x-3", reason=Reason.REMINDER), worse)
    over = send(api.settings, system, resolved(), reminded)
    assert [method for method, _ in api.calls] == [
        "chat.postMessage", "chat.postMessage", "chat.update", "chat.postMessage", "chat.postMessage", "chat.update",
    ]  # fmt: skip
    calls = [body for _, body in api.calls]
    assert "thread_ts" not in calls[0] and calls[0]["channel"] == "C1"
    assert {body["thread_ts"] for body in (calls[1], calls[3], calls[4])} == {first["ts"]}
    assert [calls[number]["reply_broadcast"] for number in (1, 3, 4)] == [True, False, True]
    assert calls[5]["ts"] == first["ts"] and "RESOLVED" in calls[5]["text"]
    assert calls[5]["attachments"][0]["color"] != calls[0]["attachments"][0]["color"]
    assert over["ts"] == first["ts"]
    assert api.authorizations == {f"Bearer {canary}"}


def test_a_failed_update_of_the_first_message_does_not_repeat_the_reply(api: Api, system: System) -> None:
    first = send(api.settings, system)
    api.answers["chat.update"] = {"ok": False, "error": "message_not_found"}
    over = send(api.settings, system, resolved(), first)
    assert "message_not_found" in over["answer"]


def test_another_channel_in_the_settings_begins_a_new_thread(api: Api, system: System) -> None:
    first = send(api.settings, system)
    message = CHANNEL.compose(resolved(), replace(api.settings, channel="C2"), first)
    assert message == SlackMessage(content=message.content)


@pytest.mark.parametrize(
    ("code", "transient"),
    [("invalid_auth", False), ("channel_not_found", False), ("msg_too_long", False), ("ratelimited", True),
     ("internal_error", True)],
)  # fmt: skip
def test_an_ok_false_is_as_lasting_as_its_code(
    api: Api, system: System, code: str, transient: bool, canary: str
) -> None:
    api.answers["chat.postMessage"] = {"ok": False, "error": code, "echo": canary}
    error = refused(api.settings, system)
    assert error.transient is transient and code in error.message
    assert canary not in repr(vars(error)) and error.__context__ is None


@pytest.mark.parametrize(("wait", "wait_s"), [("12", 12.0), ("86400", 300.0), (None, None)])
def test_a_bots_rate_limit_is_respected(
    httpserver: HTTPServer, system: System, wait: str | None, wait_s: float
) -> None:
    headers = {"Retry-After": wait} if wait else {}
    answer = Response('{"ok": false, "error": "ratelimited"}', status=429, headers=headers)
    error = bot_refused(httpserver, system, answer)
    assert error.transient and error.retry_after_s == wait_s


def test_a_redirect_does_not_get_the_token(httpserver: HTTPServer, system: System) -> None:
    bot_refused(httpserver, system, Response(status=302, headers={"Location": httpserver.url_for("/thief")}))
    assert [request.path for request, _ in httpserver.log] == ["/api/chat.postMessage"]


def test_a_page_instead_of_an_answer_is_tried_again(httpserver: HTTPServer, system: System) -> None:
    error = bot_refused(httpserver, system, Response("<html>please log in</html>"))
    assert error.transient and "a web page" in error.message


@pytest.mark.parametrize(
    ("wrong", "word"),
    [
        ({}, "needs a webhook or a token"),
        ({"webhook_file": "/a", "token_file": "/b"}, "not both"),
        ({"token_file": "/b"}, "needs a channel"),
        ({"webhook_file": "https://hooks.slack.com/services/T/B/secret"}, "seems to be the secret itself"),
        ({"token_file": "xoxb-123-secret"}, "seems to be the secret itself"),
        ({"webhook_variable": "https://hooks.slack.com/secret"}, "name of an environment variable"),
        ({"webhook_file": "slack.txt"}, "absolute path"),
        ({"webhook_file": "/a", "mention": ("@ada",)}, "not a mention in Slack"),
        ({"webhook_file": "/a", "timeout_s": 0.0}, "must be positive"),
        ({"webhook_file": "/a", "base_url": "http://slack.example/api/"}, "plain http"),
        ({"webhook_file": "/a", "base_url": "slack"}, "not a web address"),
    ],
)
def test_invalid_settings_are_rejected(wrong: dict[str, Any], word: str) -> None:
    said = SENDER.objection(SlackSettings(**wrong))
    assert word in said and 'secret"' not in said and "xoxb" not in said and "hooks.slack" not in said


def test_a_webhook_in_the_clear_to_another_machine_is_refused(system: System, canary: str) -> None:
    system = replace(system, environ={"HOOK": f"http://hooks.example.org/{canary}"})
    with pytest.raises(SettingsError) as caught:
        send(SlackSettings(webhook_variable="HOOK"), system)
    assert "plain http to hooks.example.org" in caught.value.message and canary not in caught.value.message
