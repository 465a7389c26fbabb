"""Notifies people through any service that takes JSON over HTTPS: PagerDuty, ntfy, Teams, Discord, Mattermost."""

from __future__ import annotations

import json
import re
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import urlsplit, urlunsplit

from resilience.alerts.alert import Alert, Notice, Reason
from resilience.alerts.channels import check_answer, check_timeout
from resilience.alerts.channels._webhook_payloads import (
    PAGERDUTY_URL,
    PRESETS,
    SECRET,
    TOPIC,
    open_episodes,
    pagerduty_ends,
    render_payload,
)
from resilience.errors import DeliveryError, SettingsError
from resilience.finding import Verdict
from resilience.system.http import check_url, quoted, request
from resilience.system.ports import System
from resilience.system.secrets import check_secret, read_secret

METHODS = ("POST", "PUT", "PATCH")
_TOKEN = re.compile(r"[A-Za-z0-9!#$%&'*+.^_`|~-]+")
_SECRET_HEADER = re.compile(r"(?i)authorization|cookie|.*(token|key|secret|password|signature).*")
_SECRET_URL = re.compile(
    r"(?i)https?://(hooks\.slack\.com/|(\w+\.)?discord(app)?\.com/api/webhooks/|[^/]*(webhook\.office\.com"
    r"|logic\.azure\.com|powerplatform\.com)|[^/]*@|[^?]*/hooks/\w{20,}|.*[?&](sig|key|token|secret|access_token|code)=)"
)
"""Addresses that are a key: anybody who knows one can write."""


@dataclass(frozen=True, slots=True, kw_only=True)
class WebhookSettings:
    """[channel.webhook]: where JSON goes, and what it looks like.

    Attributes:
        preset: whose form the JSON has: generic, pagerduty, ntfy, teams, discord or mattermost.
        url: the address, where it is no secret: `https://ntfy.sh/my-topic`. PagerDuty has one already.
        url_file: file of mode 0600 with the address, where knowing it is all it takes to write: Discord, Teams ...
        url_variable: name of an environment variable with the address instead.
        secret_file: file of mode 0600 with a token: PagerDuty's routing key, or what `{secret}` stands for in `headers`
            and `{{ secret }}` in `payload`.
        secret_variable: name of an environment variable with that token instead.
        headers: headers to send: `{ Authorization = "Bearer {secret}" }`.
        payload: JSON of your own as a Jinja2 template, instead of the preset's: `{"text": {{ headline }}}`.
        method: POST, PUT or PATCH.
        allow_http: whether it may be plain http to another machine.
        ca_file: certificate authorities to trust instead of the usual ones, as a PEM file.
        timeout_s: how long delivering one message may take.
    """

    preset: str = "generic"
    url: str = ""
    url_file: str = ""
    url_variable: str = ""
    secret_file: str = ""
    secret_variable: str = ""
    headers: Mapping[str, str] = field(default_factory=dict)
    payload: str = ""
    method: str = "POST"
    allow_http: bool = False
    ca_file: str = ""
    timeout_s: float = 12.0


@dataclass(frozen=True, slots=True)
class WebhookMessage:
    """A message before its placeholders are filled.

    Attributes:
        payload: the JSON, as text, with placeholders for the secret and the topic.
        memory: what the next message of this thread needs.
        more: payloads that are sent after it, to the same address.
    """

    payload: str
    memory: Mapping[str, str] = field(default_factory=dict)
    more: tuple[str, ...] = ()


class WebhookChannel:
    """One request."""

    summary = "JSON to PagerDuty, ntfy, Teams, Discord, Mattermost or any service of your own"
    Settings = WebhookSettings

    def check(self, settings: WebhookSettings) -> None:
        """Raise SettingsError for an address that is none or a secret, a bad header, a payload that is no JSON."""
        if settings.preset not in PRESETS:
            raise SettingsError(f"preset = {settings.preset!r} is not known", hint=f"there are: {', '.join(PRESETS)}")
        if settings.method not in METHODS:
            raise SettingsError(f"method = {settings.method!r} is not known", hint=f"it may be {', '.join(METHODS)}")
        check_timeout(settings.timeout_s)
        hides_url = check_secret(settings, "url", required=False)
        if settings.url and hides_url:
            raise SettingsError("the address is given twice: url, and url_file or url_variable")
        if settings.url and _SECRET_URL.match(settings.url):
            raise SettingsError(
                "this url is a secret: anybody who knows the address can write, or it holds a key",
                hint='write it into a file of mode 0600 and name that: url_file = "~/.config/resil/url"',
            )
        if settings.url:
            check_url(settings.url, "url", allow_http=settings.allow_http)
        elif not hides_url and settings.preset != "pagerduty":
            raise SettingsError("the webhook channel needs an address", hint='url = "https://..." or url_file = "..."')
        has_secret = check_secret(settings, "secret", required=settings.preset == "pagerduty" and not settings.payload)
        for name, value in settings.headers.items():
            _check_header(name, value, has_secret=has_secret)
        if settings.payload:
            self.compose(_SAMPLE, settings, {})

    def compose(self, alert: Alert, settings: WebhookSettings, thread: Mapping[str, str]) -> WebhookMessage:
        """The JSON. Raise SettingsError if a payload of one's own makes none of this alert."""
        more: tuple[str, ...] = ()
        if settings.payload:
            payload = render_payload(settings.payload, alert)
        else:
            payload = PRESETS[settings.preset](alert, thread)
            if settings.preset == "pagerduty":
                more = tuple(json.dumps(event) for event in pagerduty_ends(alert))
        return WebhookMessage(json.dumps(payload), {"open": ",".join(open_episodes(alert, thread))}, more)

    def send(self, message: WebhookMessage, settings: WebhookSettings, system: System) -> Mapping[str, str]:
        """Send it. Raise DeliveryError if the server did not take it."""
        hidden_url, secret = read_secret(settings, "url", system), read_secret(settings, "secret", system)
        url = hidden_url.reveal() if hidden_url else settings.url
        if not url and settings.preset == "pagerduty":
            url = PAGERDUTY_URL
        check_url(url, "the webhook's address", allow_http=settings.allow_http)
        secrets = [hidden.reveal() for hidden in (hidden_url, secret) if hidden is not None]
        fillings = {SECRET: secret.reveal() if secret else ""}
        if settings.preset == "ntfy" and not settings.payload:
            url, fillings[TOPIC] = _topic_of(url)
        headers = {"Content-Type": "application/json", "User-Agent": "resil"}
        for name, value in settings.headers.items():
            headers[name] = value.replace("{secret}", fillings[SECRET])
        host = urlsplit(url).hostname or "?"
        deadline = time.monotonic() + settings.timeout_s
        for text in (message.payload, *message.more):
            left_s = deadline - time.monotonic()
            if left_s < 0.01:
                raise DeliveryError(f"{host} did not answer within {settings.timeout_s:g} s")
            answer = request(
                url,
                json.dumps(_filled(json.loads(text), fillings)).encode(),
                environ=system.environ,
                timeout_s=left_s,
                headers=headers,
                method=settings.method,
                ca_file=settings.ca_file,
                secrets=secrets,
            )
            check_answer(answer, host, secrets, may_be_page=settings.preset == "generic")
        said = quoted(answer.body, secrets)
        return {"answer": f"{host} answered {answer.status}" + (f": {said}" if said else ""), **message.memory}


def _check_header(name: str, value: str, *, has_secret: bool) -> None:
    """Raise SettingsError for a header that cannot be sent, or that holds a secret. Its value is never shown."""
    if not _TOKEN.fullmatch(name):
        raise SettingsError(f"headers: {name[:40]!r} is no header's name")
    if not value.isascii() or not value.isprintable():
        raise SettingsError(f"headers: the value of {name} must be one line of ASCII characters")
    if "{secret}" in value:
        if not has_secret:
            raise SettingsError(f"headers: {name} needs a secret", hint='secret_file = "~/.config/resil/token"')
    elif _SECRET_HEADER.fullmatch(name):
        raise SettingsError(
            f"headers: {name} holds a secret, which has no place in resil.toml",
            hint=f'write it into a file of mode 0600: secret_file = "...", headers = {{ {name} = "{{secret}}" }}',
        )


def _filled(value: Any, fillings: Mapping[str, str]) -> Any:
    """A JSON value with every placeholder replaced."""
    if isinstance(value, dict):
        return {key: _filled(item, fillings) for key, item in value.items()}
    if isinstance(value, list):
        return [_filled(item, fillings) for item in value]
    if isinstance(value, str) and "\0" in value:
        for placeholder, text in fillings.items():
            value = value.replace(placeholder, text)
        return value.replace("\0", "")
    return value


def _topic_of(url: str) -> tuple[str, str]:
    """Given a topic's address, return where ntfy takes JSON, and the topic. Raise SettingsError without one."""
    parts = urlsplit(url)
    base, _, topic = parts.path.rstrip("/").rpartition("/")
    if not topic:
        raise SettingsError("ntfy's address names no topic", hint="https://ntfy.sh/your-topic")
    return urlunsplit((parts.scheme, parts.netloc, base + "/", parts.query, "")), topic


_NOTICE = Notice(
    episode="3f9a1c",
    fingerprint="fs",
    reason=Reason.FIRST,
    check="fs",
    subject="/scratch",
    fault="space",
    verdict=Verdict.CRITICAL,
    summary='98% used, and "quoted"',
    since=0.0,
    evidence=("a line",),
)
_SAMPLE = Alert.of(_NOTICE, _NOTICE, id="sample", time=0.0, host="n01", project="/project")
"""The alert on which a user's payload is tried when settings are checked."""

CHANNEL = WebhookChannel()
