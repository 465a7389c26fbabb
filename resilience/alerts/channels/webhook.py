"""Sends alerts to any service that accepts JSON over HTTPS: PagerDuty, ntfy, Teams, Discord, Mattermost.

Payloads are presets for well-known services, or users' templates. Placeholders mark the secret and the topic, which
`send` fills in. They contain NUL bytes, which are removed from alert texts, so that no job name can refer to the
secret.
"""

from __future__ import annotations

import json
import re
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import urlsplit, urlunsplit

from resilience.alerts.alert import Alert, Notice, Reason
from resilience.alerts.channels import check_answer, check_timeout
from resilience.alerts.message import (
    MAX_NOTICES,
    alert_record,
    clean_line,
    clean_lines,
    colour_of,
    cut,
    footer,
    headline,
    items_of,
    left_out,
    plain_text,
    state_of,
)
from resilience.errors import DeliveryError, SettingsError
from resilience.finding import Verdict
from resilience.system.http import check_url, quoted, request
from resilience.system.ports import System
from resilience.system.secrets import check_secret, read_secret

SECRET = "\0secret\0"
TOPIC = "\0topic\0"

PAGERDUTY_URL = "https://events.pagerduty.com/v2/enqueue"


def plain_alert(alert: Alert) -> dict[str, Any]:
    """Return the alert as JSON types with headline and text; texts cleaned, evidence and notices bounded."""
    record = alert_record(alert, lambda text: clean_line(text, 2000), text=plain_text(alert, 20_000))
    body = list(clean_lines(alert.body))
    return record | {"body": body, "state": state_of(alert), "is_resolved": alert.is_resolved}


def open_episodes(alert: Alert, thread: Mapping[str, str]) -> tuple[str, ...]:
    """Return the open incidents of the thread: a page is resolved with the last of them."""
    still = dict.fromkeys(filter(None, thread.get("open", "").split(",")))
    for notice in alert.notices:
        episode = clean_line(notice.episode, 24).replace(",", "")
        if notice.is_over:
            still.pop(episode, None)
        else:
            still[episode] = None
    return tuple(still)[:100]


def pagerduty(alert: Alert, thread: Mapping[str, str]) -> dict[str, Any]:
    """Events API v2: https://developer.pagerduty.com/docs/send-alert-event (summary 1,024 characters, key 255)."""
    severity = {"CRITICAL": "critical", "UNKNOWN": "error", "WARNING": "warning", "OK": "info"}[alert.verdict.value]
    lasting = [notice.episode for notice in alert.notices if notice.verdict is not Verdict.OK]
    # No later message resolves a digest's own thread, so its page is that of its first incident.
    thread_of = lasting[0] if alert.is_digest and lasting else alert.thread
    key = cut(f"resil-{clean_line(thread_of, 300)}", 255)
    action = "trigger"
    if alert.title or (alert.is_resolved and not open_episodes(alert, thread)):
        action = "resolve"  # never a page for good news; resolving a page that does not exist has no effect
    elif alert.notices and all(notice.acknowledged_by for notice in alert.notices):
        action = "acknowledge" if alert.reason not in (Reason.WORSE, Reason.ESCALATED) else "trigger"
    first = alert.notices[0] if alert.notices else None
    return {
        "routing_key": SECRET,
        "event_action": action,
        "dedup_key": key,
        "client": "resil",
        "payload": {
            "summary": headline(alert, 1000),
            "source": clean_line(first.subject if first else alert.host, 300) or "resil",
            "severity": "info" if alert.is_test else severity,
            "timestamp": _utc(alert.time),
            "component": clean_line(first.check, 100) if first else "resil",
            "group": clean_line(first.run or alert.project, 300) if first else "",
            "class": clean_line(first.fault, 100) if first else "",
            "custom_details": {"text": plain_text(alert, 20_000)},
        },
    }


def pagerduty_ends(alert: Alert) -> tuple[dict[str, Any], ...]:
    """Return further PagerDuty events: one to resolve the page of each resolved incident.

    One message may resolve several incidents whose pages were triggered by separate messages. Resolving a page twice,
    or one that does not exist, has no effect.
    """
    over = [notice for notice in alert.notices if notice.is_over]
    keys = dict.fromkeys(cut(f"resil-{clean_line(notice.episode, 300)}", 255) for notice in over[:MAX_NOTICES])
    keys.pop(f"resil-{clean_line(alert.thread, 300)}", None)
    return tuple({"routing_key": SECRET, "event_action": "resolve", "dedup_key": key} for key in keys)


def ntfy(alert: Alert, thread: Mapping[str, str]) -> dict[str, Any]:
    """https://docs.ntfy.sh/publish/#publish-as-json: a duplicate has the same sequence_id and replaces it (2.16)."""
    priority = {"CRITICAL": 5, "UNKNOWN": 4, "WARNING": 3, "OK": 3}[state_of(alert)]
    tags = {"CRITICAL": "rotating_light", "UNKNOWN": "grey_question", "WARNING": "warning", "OK": "white_check_mark"}
    return {
        "topic": TOPIC,
        "title": headline(alert, 200),
        "message": cut(plain_text(alert, 3000), 3500),  # longer ones (4,096 bytes) become attachments
        "priority": 2 if alert.is_test or alert.title else priority,
        "tags": ["test_tube" if alert.is_test else tags[state_of(alert)]],
        "sequence_id": re.sub(r"[^A-Za-z0-9_-]", "_", clean_line(alert.id, 60))[:60] or "resil",
    }


def teams(alert: Alert, thread: Mapping[str, str]) -> dict[str, Any]:
    """A Teams workflow's adaptive card (28 KB): https://learn.microsoft.com/en-us/microsoftteams/platform/webhooks-and-
    connectors/how-to/connectors-using. Rich text runs have no Markdown, so that no text can forge a link or mention."""
    colour = {"CRITICAL": "attention", "UNKNOWN": "accent", "WARNING": "warning", "OK": "good"}[state_of(alert)]
    body: list[dict[str, Any]] = [_rich(headline(alert), weight="bolder", size="medium", color=colour)]
    size = 0
    for item in items_of(alert):
        lines = [f"{label}: {value}" for label, value in item.rows]
        if len(alert.notices) > 1:
            lines.insert(0, item.title)
        size += sum(map(len, lines)) + sum(map(len, item.evidence))
        if size > 5000 and len(body) > 1:
            body.append(_rich(f"… {alert.total} incidents in all: resil alert list"))
            break
        body += [_rich(cut(line, 600)) for line in lines]
        if item.evidence:
            body.append(_rich(cut("\n".join(item.evidence), 2500), fontType="monospace"))
    if more := left_out(alert):
        body.append(_rich(more))
    body.append(_rich(footer(alert), isSubtle=True))
    card = {
        "$schema": "http://adaptivecards.io/schemas/adaptive-card.json",
        "type": "AdaptiveCard",
        "version": "1.4",
        "msteams": {"width": "Full"},
        "body": body,
    }
    attachment = {"contentType": "application/vnd.microsoft.card.adaptive", "contentUrl": None, "content": card}
    return {"type": "message", "attachments": [attachment]}


def discord(alert: Alert, thread: Mapping[str, str]) -> dict[str, Any]:
    """https://discord.com/developers/docs/resources/webhook#execute-webhook: content 2,000 characters, an embed's title
    256 and description 4,096. Mentions are disabled."""
    return {
        "username": "resil",
        "content": cut(unmarked(headline(alert)), 1900),
        "embeds": [
            {
                "title": cut(headline(alert), 250),
                "description": _fenced(alert, 3900),
                "color": int(colour_of(alert)[1:], 16),
                "footer": {"text": cut(footer(alert), 300)},
            }
        ],
        "allowed_mentions": {"parse": []},
    }


def mattermost(alert: Alert, thread: Mapping[str, str]) -> dict[str, Any]:
    """https://developers.mattermost.com/integrate/webhooks/incoming: mentions are read from text, not from code."""
    line = unmarked(headline(alert))
    return {
        "username": "resil",
        "text": line,
        "attachments": [
            {
                "fallback": line,
                "color": colour_of(alert),
                "text": _fenced(alert, 6000),
                "footer": unmarked(footer(alert)),
            }
        ],
    }


def generic(alert: Alert, thread: Mapping[str, str]) -> dict[str, Any]:
    """The alert with headline and text."""
    return plain_alert(alert)


PRESETS: Mapping[str, Callable[[Alert, Mapping[str, str]], dict[str, Any]]] = {
    "generic": generic,
    "pagerduty": pagerduty,
    "ntfy": ntfy,
    "teams": teams,
    "discord": discord,
    "mattermost": mattermost,
}


def unmarked(text: str) -> str:
    """Return a text without effective Markdown or mentions."""
    return re.sub(r"([\\`*_~|\[\]<>#])", r"\\\1", text).replace("@", "@\u200b")


def _fenced(alert: Alert, limit: int) -> str:
    """Return the sections as a Markdown code block, without evidence if there are several."""
    items = items_of(alert)
    lines: list[str] = []
    for item in items:
        lines += [item.title] if len(items) > 1 else []
        lines += [f"{label}: {value}" for label, value in item.rows if len(items) == 1 or label in ("Advice", "Since")]
        if len(items) == 1:
            lines += list(item.evidence)
    lines += filter(None, [left_out(alert)])
    text = "\n".join(cut(line, 500) for line in lines).replace("```", "'''")
    return f"```\n{cut(text, limit)}\n```"


def _rich(text: str, **style: Any) -> dict[str, Any]:
    return {"type": "RichTextBlock", "inlines": [{"type": "TextRun", "text": text, **style}]}


def _utc(seconds: float) -> str:
    from datetime import UTC, datetime

    try:
        return datetime.fromtimestamp(seconds, UTC).isoformat(timespec="milliseconds")
    except (OverflowError, ValueError, OSError):
        return datetime.fromtimestamp(0, UTC).isoformat(timespec="milliseconds")


LIMIT = 1_000_000
"""Maximum number of characters. No service accepts more, and a loop in a template must not fill the memory."""


def render_payload(template: str, alert: Alert) -> Any:
    """Render a template such as `{"text": {{ headline }}}` with an alert, and return the JSON value.

    Every `{{ value }}` is rendered as JSON, including quotes, so that no text of an alert can break the structure.
    Raise SettingsError, with the line, for an error in the template.
    """
    import jinja2
    from jinja2.sandbox import ImmutableSandboxedEnvironment
    from markupsafe import Markup

    def as_json(value: Any) -> Any:
        # The result of `tojson` is JSON already; rendering reports undefined names.
        if isinstance(value, Markup | jinja2.Undefined):
            return value
        return Markup(json.dumps(value))

    environment = ImmutableSandboxedEnvironment(undefined=jinja2.StrictUndefined, finalize=as_json, autoescape=False)
    # tojson also escapes < > & ', which JSON decodes again.
    size = 0
    pieces: list[str] = []
    try:
        for piece in environment.from_string(template).generate(plain_alert(alert) | {"secret": SECRET}):
            size += len(piece)
            if size > LIMIT:
                raise SettingsError(f"payload renders to more than {LIMIT} characters")
            pieces.append(piece)
    except jinja2.TemplateSyntaxError as error:
        raise SettingsError(f"payload, line {error.lineno}: {error.message}") from None
    except jinja2.UndefinedError as error:
        hint = "available: headline, text, state, verdict, reason, notices, host, project, id, thread, secret ..."
        raise SettingsError(f"payload: {error.message}", hint=hint) from None
    except (jinja2.TemplateError, ArithmeticError, TypeError, ValueError, LookupError, AttributeError) as error:
        raise SettingsError(f"payload: {type(error).__name__}: {error}") from None
    try:
        return json.loads("".join(pieces))
    except (ValueError, RecursionError) as error:
        raise SettingsError(
            f"payload does not render to JSON: {error}",
            hint='values include their quotes: write {"text": {{ headline }}}, without quotes around the braces',
        ) from None


METHODS = ("POST", "PUT", "PATCH")
_TOKEN = re.compile(r"[A-Za-z0-9!#$%&'*+.^_`|~-]+")
_SECRET_HEADER = re.compile(r"(?i)authorization|cookie|.*(token|key|secret|password|signature).*")
_SECRET_URL = re.compile(
    r"(?i)https?://(hooks\.slack\.com/|(\w+\.)?discord(app)?\.com/api/webhooks/|[^/]*(webhook\.office\.com"
    r"|logic\.azure\.com|powerplatform\.com)|[^/]*@|[^?]*/hooks/\w{20,}|.*[?&](sig|key|token|secret|access_token|code)=)"
)
"""URLs that grant access by themselves, or contain a key."""


@dataclass(frozen=True, slots=True, kw_only=True)
class WebhookSettings:
    """[channel.webhook]: URL and format of JSON requests.

    Attributes:
        preset: format of the JSON: generic, pagerduty, ntfy, teams, discord or mattermost.
        url: the URL, unless it is a secret: `https://ntfy.sh/my-topic`. Not needed for PagerDuty.
        url_file: file of mode 0600 with the URL, if the URL grants access by itself: Discord, Teams ...
        url_variable: name of an environment variable with the URL instead.
        secret_file: file of mode 0600 with a token: PagerDuty's routing key, or the value of `{secret}` in `headers`
            and `{{ secret }}` in `payload`.
        secret_variable: name of an environment variable with that token instead.
        headers: headers to send: `{ Authorization = "Bearer {secret}" }`.
        payload: Jinja2 template of your own JSON, instead of a preset: `{"text": {{ headline }}}`.
        method: POST, PUT or PATCH.
        allow_http: allow plain http to another machine.
        ca_file: certificate authorities to trust instead of the system's, as a PEM file.
        timeout_s: time limit for one message.
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
    """A message with unfilled placeholders.

    Attributes:
        payload: the JSON text, with placeholders for the secret and the topic.
        memory: what the next message of this thread needs.
        more: further payloads, sent afterwards to the same URL.
    """

    payload: str
    memory: Mapping[str, str] = field(default_factory=dict)
    more: tuple[str, ...] = ()


class WebhookChannel:
    """Sends one request per alert, and for PagerDuty one for each resolved incident."""

    summary = "JSON to PagerDuty, ntfy, Teams, Discord, Mattermost or any service of your own"
    Settings = WebhookSettings

    def check(self, settings: WebhookSettings) -> None:
        """Raise SettingsError for an invalid or secret `url`, a bad header, or a payload that is not JSON."""
        if settings.preset not in PRESETS:
            raise SettingsError(f"preset = {settings.preset!r} is unknown", hint=f"use one of: {', '.join(PRESETS)}")
        if settings.method not in METHODS:
            raise SettingsError(f"method = {settings.method!r} is unknown", hint=f"use one of: {', '.join(METHODS)}")
        check_timeout(settings.timeout_s)
        hides_url = check_secret(settings, "url", required=False)
        if settings.url and hides_url:
            raise SettingsError("the URL is set twice: url, and url_file or url_variable")
        if settings.url and _SECRET_URL.match(settings.url):
            raise SettingsError(
                "this url is a secret: it grants access by itself or contains a key",
                hint='write the URL into a file of mode 0600 and set: url_file = "~/.config/resil/url"',
            )
        if settings.url:
            check_url(settings.url, "url", allow_http=settings.allow_http)
        elif not hides_url and settings.preset != "pagerduty":
            raise SettingsError("the webhook channel needs a URL", hint='url = "https://..." or url_file = "..."')
        has_secret = check_secret(settings, "secret", required=settings.preset == "pagerduty" and not settings.payload)
        for name, value in settings.headers.items():
            _check_header(name, value, has_secret=has_secret)
        if settings.payload:
            self.compose(_SAMPLE, settings, {})

    def compose(self, alert: Alert, settings: WebhookSettings, thread: Mapping[str, str]) -> WebhookMessage:
        """Return the JSON. Raise SettingsError if the `payload` template does not render to JSON."""
        more: tuple[str, ...] = ()
        if settings.payload:
            payload = render_payload(settings.payload, alert)
        else:
            payload = PRESETS[settings.preset](alert, thread)
            if settings.preset == "pagerduty":
                more = tuple(json.dumps(event) for event in pagerduty_ends(alert))
        return WebhookMessage(json.dumps(payload), {"open": ",".join(open_episodes(alert, thread))}, more)

    def send(self, message: WebhookMessage, settings: WebhookSettings, system: System) -> Mapping[str, str]:
        """Send the message. Raise DeliveryError unless the server accepted it."""
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
    """Raise SettingsError for a header that cannot be sent or contains a secret, without showing its value."""
    if not _TOKEN.fullmatch(name):
        raise SettingsError(f"headers: {name[:40]!r} is not a header name")
    if not value.isascii() or not value.isprintable():
        raise SettingsError(f"headers: the value of {name} must be one line of ASCII characters")
    if "{secret}" in value:
        if not has_secret:
            raise SettingsError(f"headers: {name} needs a secret", hint='secret_file = "~/.config/resil/token"')
    elif _SECRET_HEADER.fullmatch(name):
        raise SettingsError(
            f"headers: {name} contains a secret, which does not belong in resil.toml",
            hint=f'write it into a file of mode 0600: secret_file = "...", headers = {{ {name} = "{{secret}}" }}',
        )


def _filled(value: Any, fillings: Mapping[str, str]) -> Any:
    """Return a JSON value with all placeholders replaced."""
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
    """Split a topic's URL into ntfy's JSON endpoint and the topic. Raise SettingsError without a topic."""
    parts = urlsplit(url)
    base, _, topic = parts.path.rstrip("/").rpartition("/")
    if not topic:
        raise SettingsError("ntfy's URL has no topic", hint="https://ntfy.sh/your-topic")
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
"""The alert used to check a `payload` template."""

CHANNEL = WebhookChannel()
