"""Slack client: slack_sdk on top of system/http.py.

slack_sdk follows redirects with the token, has no deadline for a whole response, reads bodies of any size and logs
URLs. So slack_sdk only builds requests and parses responses, and system/http.py sends them. slack_sdk has no public
hook for that: two private methods are overridden, tested with slack_sdk 3.47. If a later version no longer calls them,
tests/alerts/channels/test_slack.py fails: a redirect would get the token, and a slow server would exceed the deadline.
"""

from __future__ import annotations

import json
import logging
import time
from collections.abc import Mapping
from typing import Any
from urllib.parse import urlsplit

from slack_sdk import WebClient
from slack_sdk.errors import SlackApiError
from slack_sdk.webhook import WebhookClient, WebhookResponse

from resilience.alerts.channels import check_answer
from resilience.errors import DeliveryError
from resilience.system.http import Answer, check_url, quoted, request, retry_after_s
from resilience.system.secrets import Secret

_TRANSIENT = {
    "ratelimited", "rate_limited", "internal_error", "fatal_error", "service_unavailable", "request_timeout",
    "team_added_to_org", "external_channel_migrating", "accesslimited",
}  # fmt: skip
"""Errors of https://docs.slack.dev/reference/methods/chat.postMessage#errors that are temporary."""

_HINTS = {
    "invalid_auth": "the token is not valid: make a new one at https://api.slack.com/apps",
    "not_authed": "the token is not valid: make a new one at https://api.slack.com/apps",
    "token_revoked": "the token was revoked: make a new one at https://api.slack.com/apps",
    "account_inactive": "the bot was removed: install the app again",
    "channel_not_found": "use the channel's ID, and invite the bot: /invite @bot",
    "not_in_channel": "invite the bot into the channel: /invite @bot",
    "is_archived": "the channel is archived: use another channel",
    "missing_scope": "the app needs the scope chat:write",
}

_QUIET = logging.Logger("resil.slack", logging.CRITICAL + 1)
"""A logger without parent or output: slack_sdk logs URLs and responses to its own."""


class Transport:
    """Sends the requests of one delivery, which share one deadline."""

    def __init__(self, secret: Secret, environ: Mapping[str, str], timeout_s: float, ca_file: str) -> None:
        """`secret`: the token, or the URL of the webhook."""
        self.secret, self.timeout_s = secret.reveal(), timeout_s
        self._environ, self._ca_file = environ, ca_file
        self._deadline = time.monotonic() + timeout_s
        self.options: dict[str, Any] = {"timeout": int(timeout_s) + 1, "logger": _QUIET, "retry_handlers": []}

    def send(self, url: str, body: bytes, headers: Mapping[str, str]) -> Answer:
        """Send one request. Raise DeliveryError without a response in time."""
        left_s = self._deadline - time.monotonic()
        if left_s <= 0.01:
            raise DeliveryError(f"Slack did not answer within {self.timeout_s:g} s")
        return request(
            url,
            body,
            environ=self._environ,
            timeout_s=left_s,
            headers=headers,
            ca_file=self._ca_file,
            secrets=[self.secret],
        )


class _WebhookClient(WebhookClient):
    transport: Transport

    def _perform_http_request_internal(self, url: str, req: Any) -> WebhookResponse:
        answer = self.transport.send(url, req.data, dict(req.header_items()))
        return WebhookResponse(url="", status_code=answer.status, body=answer.body, headers=dict(answer.headers))


class _WebClient(WebClient):
    transport: Transport

    def _perform_urllib_http_request_internal(self, url: str, req: Any) -> dict[str, Any]:
        answer = self.transport.send(url, req.data or b"", dict(req.header_items()))
        return {"status": answer.status, "headers": dict(answer.headers), "body": answer.body}


def post_to_webhook(transport: Transport, content: Mapping[str, Any]) -> Mapping[str, str]:
    """Post a message to the URL that is the transport's secret. Raise DeliveryError unless Slack accepted it."""
    url = transport.secret
    client = _WebhookClient(url, **transport.options)
    client.transport = transport
    response = client.send_dict(dict(content))
    answer = Answer(response.status_code, dict(response.headers), str(response.body))
    where = urlsplit(url).hostname or "Slack"
    check_answer(answer, where, [url])
    if code := _refused_in_words(answer.body):
        code = quoted(code, [url])
        raise DeliveryError(
            f"{where} rejected the message: {code}", hint=_HINTS.get(code, ""), transient=code in _TRANSIENT
        )
    return {"answer": f"{where} answered {answer.status}: {quoted(answer.body, [url])}"}


def _refused_in_words(body: str) -> str:
    """Return the error of a body such as `{"ok": false, "error": ...}`, which has status 200; empty for any other."""
    try:
        said = json.loads(body)
    except (ValueError, RecursionError):
        return ""
    return str(said.get("error") or "no reason") if isinstance(said, dict) and said.get("ok") is False else ""


class Api:
    """Slack's Web API, for one delivery by a bot."""

    def __init__(self, transport: Transport, base_url: str) -> None:
        """The transport's secret is the token."""
        self._client = _WebClient(transport.secret, base_url=base_url.rstrip("/") + "/", **transport.options)
        self._client.transport = transport

    def call(self, method: str, arguments: Mapping[str, Any], *, as_form: bool = False) -> Mapping[str, Any]:
        """Call a method. Raise DeliveryError if rejected, with a hint for known errors. `as_form`: it takes no JSON."""
        failure: DeliveryError
        try:
            form, body = (dict(arguments), None) if as_form else (None, dict(arguments))
            response = self._client.api_call(method, params=form, json=body)
            return dict(response.data) if isinstance(response.data, dict) else {}
        except SlackApiError as error:
            failure = _explain(method, error, [self._client.transport.secret])
        raise failure  # outside the handler: slack_sdk's error holds the whole response

    def upload(self, url: str, content: bytes) -> None:
        """Send a file to the address that files.getUploadURLExternal has given, without the token.

        Raise DeliveryError if it was not accepted, SettingsError for an address without TLS.
        """
        check_url(url, "the address of Slack's upload")
        answer = self._client.transport.send(url, content, {"Content-Type": "application/octet-stream"})
        check_answer(answer, urlsplit(url).hostname or "Slack", [self._client.transport.secret], may_be_page=True)


def _explain(method: str, error: SlackApiError, secrets: list[str]) -> DeliveryError:
    response = error.response
    data = response.data if isinstance(response.data, dict) else {}
    status = int(response.status_code)
    code = quoted(str(data.get("error", "")), secrets)
    headers = {str(name).lower(): str(value) for name, value in dict(response.headers).items()}
    wait_s = retry_after_s(headers.get("retry-after", ""), headers.get("date", ""))
    is_page = "Received a response in a non-JSON format" in code
    transient = status == 429 or status >= 500 or is_page or code in _TRANSIENT
    shown = "a web page, probably from a proxy" if is_page else code or "no reason"
    said = f"Slack rejected {method}: {shown}" if status == 200 else f"Slack answered {status} to {method}: {shown}"
    needed = f" (needs scope {quoted(str(data['needed']), secrets)})" if data.get("needed") else ""
    return DeliveryError(said + needed, hint=_HINTS.get(code, ""), transient=transient, retry_after_s=wait_s)
