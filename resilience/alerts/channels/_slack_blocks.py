"""Slack messages of alerts, within Slack's limits and without effective mentions or markup from the alert. Pure.

Limits: https://docs.slack.dev/reference/block-kit/blocks (header 150 characters, section 3,000, ten fields of 2,000, 50
blocks) and https://docs.slack.dev/reference/methods/chat.postMessage (text 4,000 recommended). Escapes:
https://docs.slack.dev/messaging/formatting-message-text#escaping.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

from resilience.alerts.alert import Alert, Reason
from resilience.alerts.message import Item, colour_of, footer, headline, is_command, items_of, left_out, state_of
from resilience.errors import SettingsError
from resilience.finding import Verdict

HEADER_LIMIT = 150
SECTION_LIMIT = 3000
BLOCKS_LIMIT = 50
ITEMS_LIMIT = 15
"""With three blocks each, a message stays below BLOCKS_LIMIT."""
ATTACHMENTS_CHARACTERS = 24_000
"""Limit of all blocks together: Slack rejects longer messages (`msg_too_long`, at about 40,000 characters)."""

_ESCAPES = {"&": "&amp;", "<": "&lt;", ">": "&gt;"}
_EMOJI = {"CRITICAL": "🔴", "UNKNOWN": "🟣", "WARNING": "🟠", "OK": "🟢"}
_PERSON = re.compile(r"(?:<@)?([UW][A-Z0-9]{2,30})>?")
_GROUP = re.compile(r"(?:<!subteam\^)?(S[A-Z0-9]{2,30})>?")


def mention_of(text: str) -> str:
    """Return a mention from the settings in Slack's notation. For example, `here` gives `<!here>`.

    Raise SettingsError for anything else: a name such as `@ada` is plain text for Slack.
    """
    word = text.strip()
    if word.strip("<!@>") in ("here", "channel", "everyone"):
        return f"<!{word.strip('<!@>')}>"
    if person := _PERSON.fullmatch(word):
        return f"<@{person[1]}>"
    if group := _GROUP.fullmatch(word):
        return f"<!subteam^{group[1]}>"
    raise SettingsError(
        f"mention = {text[:60]!r} is not a mention in Slack",
        hint='write "here", "channel", or a member ID such as "U024BE7LH" ("Copy member ID" in the profile)',
    )


def mentions_for(alert: Alert, mention: Sequence[str]) -> str:
    """Return the mentions of an alert: none unless a CRITICAL is new, worse or escalated."""
    if alert.is_test or alert.is_digest or alert.verdict is not Verdict.CRITICAL:
        return ""
    if alert.reason not in (Reason.FIRST, Reason.WORSE, Reason.ESCALATED):
        return ""
    return " ".join(mention_of(text) for text in mention)


def escaped(text: str, limit: int) -> str:
    """Return a text escaped for Slack, at most `limit` characters; truncation is marked and never splits an escape."""
    pieces: list[str] = []
    size = 0
    for c in text:
        piece = _ESCAPES.get(c, c)
        if size + len(piece) > limit - 1:
            rest = len(text) - len(pieces)
            if rest > 1 or size + len(piece) > limit:
                return "".join(pieces) + "…"
        pieces.append(piece)
        size += len(piece)
    return "".join(pieces)


def slack_message(alert: Alert, mention: Sequence[str]) -> dict[str, Any]:
    """Return the content for a webhook or chat.postMessage: notification text, header, coloured attachment."""
    emoji = "🔔" if alert.is_test else _EMOJI[state_of(alert)]
    line = headline(alert, 180)
    calls = mentions_for(alert, mention)
    text = f"{emoji} {escaped(line, 1000)}" + (f" {calls}" if calls else "")
    top: list[dict[str, Any]] = [
        {"type": "header", "text": {"type": "plain_text", "text": f"{emoji} {escaped(line, HEADER_LIMIT - 3)}"}}
    ]
    if calls:
        top.append({"type": "section", "text": {"type": "mrkdwn", "text": calls[:SECTION_LIMIT]}})
    return {
        "text": text,
        "blocks": top,
        "attachments": [{"color": colour_of(alert), "fallback": escaped(line, 1000), "blocks": _items(alert)}],
        "unfurl_links": False,
        "unfurl_media": False,
    }


def _items(alert: Alert) -> list[dict[str, Any]]:
    blocks: list[dict[str, Any]] = []
    items = items_of(alert)
    size, shown = 0, 0
    for item in items[:ITEMS_LIMIT]:
        new = _item(item, is_only=len(items) == 1)
        size += sum(len(block["text"]["text"]) for block in new)
        if shown and size > ATTACHMENTS_CHARACTERS:
            break
        blocks += new
        shown += 1
    more = left_out(alert)
    if shown < len(items):
        rest = max(alert.total, len(alert.notices)) - shown
        more = f"And {rest} more: {items[shown].title}" + (" …" if rest > 1 else "")
    if more:
        blocks.append(_section(escaped(more, 1000)))
    context = {"type": "mrkdwn", "text": escaped(footer(alert), 500)}
    return [*blocks, {"type": "context", "elements": [context]}]


def _item(item: Item, *, is_only: bool) -> list[dict[str, Any]]:
    lines = [] if is_only else [f"*{_unmarked(escaped(item.title, 300))}*"]
    for label, value in item.rows:
        # Commands are formatted as code, so that they can be copied; a back-quote inside would end the code.
        is_code = is_command(label, value)
        shown = escaped(value.replace("`", "'") if is_code else value, 700)
        lines.append(f"*{label}:* `{shown}`" if is_code else f"*{label}:* {_unmarked(shown)}")
    blocks = [_section(_joined(lines, SECTION_LIMIT))]
    if item.evidence:
        evidence = escaped("\n".join(item.evidence).replace("```", "'''"), SECTION_LIMIT - 8)
        blocks.append(_section(f"```{evidence}```"))
    return blocks


def _joined(lines: Sequence[str], limit: int) -> str:
    """Return as many whole lines as fit: truncation must not split an escape or a mark."""
    text = ""
    for line in lines:
        if len(text) + len(line) + 3 > limit:
            return f"{text}…"
        text += f"{line}\n"
    return text.rstrip("\n")


def _unmarked(text: str) -> str:
    """Return a text without effective markup: a zero-width space keeps stars and back-quotes from pairing."""
    return re.sub(r"([*_~`])", "\\1\u200b", text)[: SECTION_LIMIT - 10]


def _section(text: str) -> dict[str, Any]:
    return {"type": "section", "text": {"type": "mrkdwn", "text": text}}
