"""Payloads of the webhook channel: those of well-known services, and templates of users. Pure.

A placeholder stands where the secret or the topic goes; both are filled in when the message is sent. It has a NUL byte,
which no text of an alert has by then, so nobody's job name can ask for the secret.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping
from typing import Any

from resilience.alerts.alert import Alert, Reason
from resilience.alerts.message import (
    MAX_NOTICES,
    alert_record,
    clean_line,
    clean_lines,
    colour_of,
    cut,
    footer,
    headline,
    left_out,
    plain_text,
    runbook,
    state_of,
)
from resilience.errors import SettingsError
from resilience.finding import Verdict

SECRET = "\0secret\0"
TOPIC = "\0topic\0"

PAGERDUTY_URL = "https://events.pagerduty.com/v2/enqueue"


def plain_alert(alert: Alert) -> dict[str, Any]:
    """The alert as JSON's types, each text cleaned, evidence and notices bounded, with a headline and a text."""
    record = alert_record(alert, lambda text: clean_line(text, 2000), text=plain_text(alert, 20_000))
    body = list(clean_lines(alert.body))
    return record | {"body": body, "state": state_of(alert), "is_resolved": alert.is_resolved}


def open_episodes(alert: Alert, thread: Mapping[str, str]) -> tuple[str, ...]:
    """The incidents of the thread that last: a page ends with the last of them."""
    still = dict.fromkeys(filter(None, thread.get("open", "").split(",")))
    for notice in alert.notices:
        episode = clean_line(notice.episode, 24).replace(",", "")
        if notice.reason is Reason.RESOLVED or notice.verdict is Verdict.OK:
            still.pop(episode, None)
        else:
            still[episode] = None
    return tuple(still)[:100]


def pagerduty(alert: Alert, thread: Mapping[str, str]) -> dict[str, Any]:
    """Events API v2: https://developer.pagerduty.com/docs/send-alert-event (summary 1,024 characters, key 255)."""
    severity = {"CRITICAL": "critical", "UNKNOWN": "error", "WARNING": "warning", "OK": "info"}[alert.verdict.value]
    lasting = [notice.episode for notice in alert.notices if notice.verdict is not Verdict.OK]
    # A digest has a thread of its own, which nothing ends: its page is that of its first incident.
    thread_of = lasting[0] if alert.is_digest and lasting else alert.thread
    key = cut(f"resil-{clean_line(thread_of, 300)}", 255)
    action = "trigger"
    if alert.title or (alert.is_resolved and not open_episodes(alert, thread)):
        action = "resolve"  # nobody is paged to hear that all is well: what is not there cannot be resolved
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
    """More events for PagerDuty: the end of each incident that had a page of its own.

    One message may report the end of several incidents, whose pages were opened by several messages. To end a page that
    is not there, or one twice, changes nothing.
    """
    over = [notice for notice in alert.notices if notice.reason is Reason.RESOLVED or notice.verdict is Verdict.OK]
    keys = dict.fromkeys(cut(f"resil-{clean_line(notice.episode, 300)}", 255) for notice in over[:MAX_NOTICES])
    keys.pop(f"resil-{clean_line(alert.thread, 300)}", None)
    return tuple({"routing_key": SECRET, "event_action": "resolve", "dedup_key": key} for key in keys)


def ntfy(alert: Alert, thread: Mapping[str, str]) -> dict[str, Any]:
    """https://docs.ntfy.sh/publish/#publish-as-json: a repeat has the same sequence_id and replaces itself (2.16)."""
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
    connectors/how-to/connectors-using. Runs of rich text know no Markdown, so no text can forge a link or a mention."""
    colour = {"CRITICAL": "attention", "UNKNOWN": "accent", "WARNING": "warning", "OK": "good"}[state_of(alert)]
    body: list[dict[str, Any]] = [_rich(headline(alert), weight="bolder", size="medium", color=colour)]
    size = 0
    for story in runbook(alert):
        lines = [f"{label}: {value}" for label, value in story.rows]
        if len(alert.notices) > 1:
            lines.insert(0, story.title)
        size += sum(map(len, lines)) + sum(map(len, story.evidence))
        if size > 5000 and len(body) > 1:
            body.append(_rich(f"… {alert.total} incidents in all: resil alert list"))
            break
        body += [_rich(cut(line, 600)) for line in lines]
        if story.evidence:
            body.append(_rich(cut("\n".join(story.evidence), 2500), fontType="monospace"))
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
    256 and description 4,096. Nothing in it may mention anybody."""
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
    """The alert itself, with a headline and a text."""
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
    """A text without effective Markdown or mentions."""
    return re.sub(r"([\\`*_~|\[\]<>#])", r"\\\1", text).replace("@", "@\u200b")


def _fenced(alert: Alert, limit: int) -> str:
    """The stories as a code block in Markdown, without their evidence when there are many."""
    stories = runbook(alert)
    lines: list[str] = []
    for story in stories:
        lines += [story.title] if len(stories) > 1 else []
        lines += [f"{label}: {value}" for label, value in story.rows if len(stories) == 1 or label in ("Do", "Since")]
        if len(stories) == 1:
            lines += list(story.evidence)
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
"""Characters. No service takes more, and a loop in a template must not fill the memory."""


def render_payload(template: str, alert: Alert) -> Any:
    """Given a template, return the JSON value that it makes of an alert. Every `{{ value }}` comes out as JSON, quotes
    included, so no text of an alert can break out of its place.

    For instance, `{"text": {{ headline }}}`. Raise SettingsError, naming the line, for whatever is wrong with it.
    """
    import jinja2
    from jinja2.sandbox import ImmutableSandboxedEnvironment
    from markupsafe import Markup

    def as_json(value: Any) -> Any:
        # The result of `tojson` is JSON already; rendering reports undefined values by name.
        if isinstance(value, Markup | jinja2.Undefined):
            return value
        return Markup(json.dumps(value))

    environment = ImmutableSandboxedEnvironment(undefined=jinja2.StrictUndefined, finalize=as_json, autoescape=False)
    # tojson escapes < > & ' for HTML, which JSON reads back as they were.
    size = 0
    pieces: list[str] = []
    try:
        for piece in environment.from_string(template).generate(plain_alert(alert) | {"secret": SECRET}):
            size += len(piece)
            if size > LIMIT:
                raise SettingsError(f"payload makes more than {LIMIT} characters")
            pieces.append(piece)
    except jinja2.TemplateSyntaxError as error:
        raise SettingsError(f"payload, line {error.lineno}: {error.message}") from None
    except jinja2.UndefinedError as error:
        hint = "it knows headline, text, state, verdict, reason, notices, host, project, id, thread, secret ..."
        raise SettingsError(f"payload: {error.message}", hint=hint) from None
    except (jinja2.TemplateError, ArithmeticError, TypeError, ValueError, LookupError, AttributeError) as error:
        raise SettingsError(f"payload: {type(error).__name__}: {error}") from None
    try:
        return json.loads("".join(pieces))
    except (ValueError, RecursionError) as error:
        raise SettingsError(
            f"payload does not make JSON: {error}",
            hint='values bring their own quotes: write {"text": {{ headline }}}, without any around the braces',
        ) from None
