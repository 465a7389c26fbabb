"""Talks to Slack with slack_sdk, over our own door to web servers.

slack_sdk follows redirects with the token in its hand, has no deadline over a whole answer, reads bodies of any size
and logs addresses: so only its own words are used (arguments, bodies, answers), and system/http.py carries them.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

from slack_sdk import WebClient
from slack_sdk.errors import SlackApiError
from slack_sdk.webhook import WebhookClient, WebhookResponse

from resilience.errors import DeliveryError
from resilience.system.http import Answer, quoted, refusal, request, retry_after_s
from resilience.system.secrets import Secret

if TYPE_CHECKING:
    from resilience.alerts.channels.slack import SlackMessage, SlackSettings

_TRANSIENT = {
    "ratelimited", "rate_limited", "internal_error", "fatal_error", "service_unavailable", "request_timeout",
    "team_added_to_org", "external_channel_migrating", "accesslimited",
}  # fmt: skip
"""Errors of https://docs.slack.dev/reference/methods/chat.postMessage#errors that pass by themselves."""

_HINTS = {
    "invalid_auth": "the token is not valid: make a new one at https://api.slack.com/apps",
    "not_authed": "the token is not valid: make a new one at https://api.slack.com/apps",
    "token_revoked": "the token was revoked: make a new one at https://api.slack.com/apps",
    "account_inactive": "the bot was removed: install the app again",
    "channel_not_found": "use the channel's ID, and invite the bot: /invite @bot",
    "not_in_channel": "invite the bot into the channel: /invite @bot",
    "is_archived": "the channel is archived: choose another",
    "missing_scope": "the app needs the scope chat:write",
}

_QUIET = logging.Logger("resil.slack", logging.CRITICAL + 1)
"""A logger that hangs on no other: slack_sdk writes addresses and answers into its own."""

Ask = Callable[[str, bytes, Mapping[str, str]], Answer]


class _Webhook(WebhookClient):
    ask: Ask

    def _perform_http_request_internal(self, url: str, req: Any) -> WebhookResponse:
        answer = self.ask(url, req.data, dict(req.header_items()))
        return WebhookResponse(url="", status_code=answer.status, body=answer.body, headers=dict(answer.headers))


class _Api(WebClient):
    ask: Ask

    def _perform_urllib_http_request_internal(self, url: str, req: Any) -> dict[str, Any]:
        answer = self.ask(url, req.data or b"", dict(req.header_items()))
        return {"status": answer.status, "headers": dict(answer.headers), "body": answer.body}


def post_to_webhook(
    webhook: Secret, content: Mapping[str, Any], settings: SlackSettings, environ: Mapping[str, str]
) -> Mapping[str, str]:
    """Post a message. Raise DeliveryError if it was not taken."""
    url = webhook.reveal()
    client = _Webhook(url, timeout=int(settings.timeout_s) + 1, logger=_QUIET, retry_handlers=[])
    client.ask = _asker(settings, environ, [url])
    response = client.send_dict(dict(content))
    answer = Answer(response.status_code, dict(response.headers), str(response.body))
    where = urlsplit(url).hostname or "Slack"
    if error := refusal(answer, where, [url]):
        raise error
    # A proxy's page for people to log in comes with 200 as well.
    if answer.body.lstrip().startswith("<"):
        raise DeliveryError(
            f"{where} answered {answer.status} with a web page: something in between answered in its place",
            hint="does this node reach the network without logging in?",
        )
    if code := _refused_in_words(answer.body):
        code = quoted(code, [url])
        raise DeliveryError(f"{where} refused it: {code}", hint=_HINTS.get(code, ""), transient=code in _TRANSIENT)
    return {"answer": f"{where} answered {answer.status}: {quoted(answer.body, [url])}"}


def _refused_in_words(body: str) -> str:
    """The error in a body that says `{"ok": false, "error": ...}`, which comes with 200; empty for any other."""
    import json

    try:
        said = json.loads(body)
    except (ValueError, RecursionError):
        return ""
    return str(said.get("error") or "no reason") if isinstance(said, dict) and said.get("ok") is False else ""


def post_as_bot(
    token: Secret, message: SlackMessage, settings: SlackSettings, environ: Mapping[str, str]
) -> Mapping[str, str]:
    """Post a message, or a reply and what the first message of the thread now shows; return where it stands.

    Raise DeliveryError if the message was not taken. Once it was, a failure to draw the first one anew is only told: to
    raise would send the reply again.
    """
    client = _Api(
        token.reveal(), base_url=settings.base_url.rstrip("/") + "/", timeout=int(settings.timeout_s) + 1,
        logger=_QUIET, retry_handlers=[],
    )  # fmt: skip
    client.ask = _asker(settings, environ, [token.reveal()])
    content = dict(message.content)
    if message.reply_to:
        content |= {"thread_ts": message.reply_to, "reply_broadcast": message.is_loud}
    where = message.reply_in or settings.channel
    posted = _call(client, "chat.postMessage", {"channel": where, **content}, [token.reveal()])
    said = "Slack took it"
    channel, ts = str(posted.get("channel") or where), str(posted.get("ts") or "")
    if message.redraw and message.reply_to:
        fresh = {key: message.content[key] for key in ("text", "blocks", "attachments")}
        try:
            _call(client, "chat.update", {"channel": where, "ts": message.reply_to, **fresh}, [token.reveal()])
        except DeliveryError as error:
            said += f", but not what the first message should show now ({error.message})"
    first = message.reply_to or ts
    return {"answer": f"{said} ({channel} {ts})", "ts": first, "channel": channel, "asked": settings.channel}


def _call(client: _Api, method: str, arguments: Mapping[str, Any], secrets: list[str]) -> Mapping[str, Any]:
    """One call of the API. Raise DeliveryError for a refusal, with what to do about it where that is known."""
    failure: DeliveryError
    try:
        response = client.api_call(method, json=dict(arguments))
        return dict(response.data) if isinstance(response.data, dict) else {}
    except SlackApiError as error:
        failure = _explain(method, error, secrets)
    raise failure  # out here: slack_sdk's error holds the whole answer


def _explain(method: str, error: SlackApiError, secrets: list[str]) -> DeliveryError:
    response = error.response
    data = response.data if isinstance(response.data, dict) else {}
    status = int(response.status_code)
    code = quoted(str(data.get("error", "")), secrets)
    headers = {str(name).lower(): str(value) for name, value in dict(response.headers).items()}
    wait_s = retry_after_s(headers.get("retry-after", ""), headers.get("date", ""))
    is_page = "Received a response in a non-JSON format" in code
    transient = status == 429 or status >= 500 or is_page or code in _TRANSIENT
    shown = "a page that is not Slack's" if is_page else code or "no reason"
    said = f"Slack refused {method}: {shown}" if status == 200 else f"Slack answered {status} to {method}: {shown}"
    needed = f" (it needs {quoted(str(data['needed']), secrets)})" if data.get("needed") else ""
    return DeliveryError(said + needed, hint=_HINTS.get(code, ""), transient=transient, retry_after_s=wait_s)


def _asker(settings: SlackSettings, environ: Mapping[str, str], secrets: list[str]) -> Ask:
    """What carries requests. All of one delivery share its time."""
    import time

    deadline = time.monotonic() + settings.timeout_s

    def ask(url: str, body: bytes, headers: Mapping[str, str]) -> Answer:
        left_s = deadline - time.monotonic()
        if left_s <= 0.01:
            raise DeliveryError(f"Slack did not answer within {settings.timeout_s:g} s")
        return request(
            url, body, environ=environ, timeout_s=left_s, headers=headers, ca_file=settings.ca_file, secrets=secrets
        )

    return ask
