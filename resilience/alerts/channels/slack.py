"""Sends alerts to Slack: through an incoming webhook, or as a bot with one thread per incident.

Alerts are formatted within Slack's limits and without effective mentions or markup. Limits:
https://docs.slack.dev/reference/block-kit/blocks (header 150 characters, section 3,000, ten fields of 2,000, 50 blocks)
and https://docs.slack.dev/reference/methods/chat.postMessage (text 4,000 recommended). Escapes:
https://docs.slack.dev/messaging/formatting-message-text#escaping.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from resilience.alerts.alert import Alert, Reason
from resilience.alerts.channels import check_timeout, read_files
from resilience.alerts.message import Item, colour_of, footer, headline, is_command, items_of, left_out, state_of
from resilience.errors import DeliveryError, SettingsError
from resilience.finding import Verdict
from resilience.messages import plural
from resilience.system.http import check_url
from resilience.system.ports import System
from resilience.system.secrets import check_secret, read_secret

if TYPE_CHECKING:  # importing slack_sdk takes 77 ms, only when posting
    from resilience.alerts.channels._slack_client import Api

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


API = "https://slack.com/api/"


@dataclass(frozen=True, slots=True, kw_only=True)
class SlackSettings:
    """[channel.slack]: a webhook URL, or a bot token and its channel.

    Attributes:
        webhook_file: file of mode 0600 with the URL of an incoming webhook; the whole URL is the secret.
        webhook_variable: name of an environment variable with that URL instead.
        token_file: file of mode 0600 with a bot token (`xoxb-...`, scope `chat:write`): the bot replies in threads and
            updates the first message when the incident changes or is resolved. With the scope `files:write` reports
            come with their picture.
        token_variable: name of an environment variable with that token instead.
        channel: the ID of the bot's channel, such as `C024BE91L`. A webhook has a channel of its own.
        mention: mentions when an incident is newly CRITICAL, worse or escalated: `["here", "U024BE7LH"]`.
        base_url: base URL of the API, for a gateway of your own.
        allow_http: allow plain http to another machine for a webhook.
        ca_file: certificate authorities to trust instead of the system's, as a PEM file.
        timeout_s: time limit for one message.
    """

    webhook_file: str = ""
    webhook_variable: str = ""
    token_file: str = ""
    token_variable: str = ""
    channel: str = ""
    mention: tuple[str, ...] = ()
    base_url: str = API
    allow_http: bool = False
    ca_file: str = ""
    timeout_s: float = 12.0


@dataclass(frozen=True, slots=True, kw_only=True)
class SlackMessage:
    """A message or a reply for Slack.

    Attributes:
        content: text, blocks and attachments.
        reply_to: `ts` of the first message of the thread, or empty.
        reply_in: ID of the channel of that message.
        broadcast: whether a reply is also broadcast to the channel.
        update_first: whether to update the first message to the new state.
        files: paths of files that a bot uploads into the thread.
    """

    content: Mapping[str, Any] = field(default_factory=dict)
    reply_to: str = ""
    reply_in: str = ""
    broadcast: bool = False
    update_first: bool = False
    files: tuple[str, ...] = ()


class SlackChannel:
    """Posts one message, or one reply and one update of the first message."""

    summary = "Slack, through an incoming webhook or as a bot with threads"
    Settings = SlackSettings

    def check(self, settings: SlackSettings) -> None:
        """Raise SettingsError unless exactly one of webhook and token is set, with all that it requires."""
        has_webhook = check_secret(settings, "webhook", required=False)
        has_token = check_secret(settings, "token", required=False)
        if has_webhook == has_token:
            raise SettingsError(
                "the slack channel needs a webhook or a token" + (", not both" if has_webhook else ""),
                hint='webhook_file = "~/.config/resil/slack", a file of mode 0600 with the URL',
            )
        if has_token and not settings.channel:
            raise SettingsError("a bot needs a channel", hint='channel = "C024BE91L"')
        if not settings.channel.isprintable() or " " in settings.channel:
            raise SettingsError(f"channel = {settings.channel!r} is not a channel ID", hint='channel = "C024BE91L"')
        for text in settings.mention:
            mention_of(text)
        check_url(settings.base_url, "base_url", allow_http=settings.allow_http)
        check_timeout(settings.timeout_s)

    def compose(self, alert: Alert, settings: SlackSettings, thread: Mapping[str, str]) -> SlackMessage:
        """Return the message. With a bot, later messages of a thread are replies and update the first message."""
        content = slack_message(alert, settings.mention)
        # If the channel in the settings has changed, a new thread starts there.
        if not thread.get("ts") or not thread.get("channel") or thread.get("asked") != settings.channel:
            return SlackMessage(content=content, files=alert.files)
        return SlackMessage(
            content=content,
            reply_to=thread["ts"],
            reply_in=thread["channel"],
            broadcast=alert.reason in (Reason.WORSE, Reason.ESCALATED, Reason.RESOLVED),
            update_first=alert.reason in (Reason.WORSE, Reason.BETTER, Reason.RESOLVED, Reason.FIRST),
            files=alert.files,
        )

    def send(self, message: SlackMessage, settings: SlackSettings, system: System) -> Mapping[str, str]:
        """Post the message. Raise DeliveryError unless Slack accepted it."""
        from resilience.alerts.channels._slack_client import Api, Transport, post_to_webhook

        way = (system.environ, settings.timeout_s, settings.ca_file)
        if webhook := read_secret(settings, "webhook", system):
            check_url(webhook.reveal(), "the webhook's address", allow_http=settings.allow_http)
            return post_to_webhook(Transport(webhook, *way), message.content)
        if token := read_secret(settings, "token", system):
            return _post_as_bot(Api(Transport(token, *way), settings.base_url), message, settings)
        raise DeliveryError("neither a webhook nor a token is set for Slack", transient=False)


def _post_as_bot(api: Api, message: SlackMessage, settings: SlackSettings) -> Mapping[str, str]:
    """Post a message, or a reply and an update of the thread's first message; return the location of the thread.

    Raise DeliveryError unless Slack accepted the message. A failure to update the first message is only part of the
    answer: an exception would send the reply again.
    """
    content = dict(message.content)
    if message.reply_to:
        content |= {"thread_ts": message.reply_to, "reply_broadcast": message.broadcast}
    where = message.reply_in or settings.channel
    posted = api.call("chat.postMessage", {"channel": where, **content})
    answer = "Slack accepted the message"
    channel, ts = str(posted.get("channel") or where), str(posted.get("ts") or "")
    if message.files:
        answer += _upload(api, message.files, channel, message.reply_to or ts)
    if message.update_first and message.reply_to:
        fresh = {key: message.content[key] for key in ("text", "blocks", "attachments")}
        try:
            api.call("chat.update", {"channel": where, "ts": message.reply_to, **fresh})
        except DeliveryError as error:
            answer += f", but not the update of the first message ({error.message})"
    first = message.reply_to or ts
    return {"answer": f"{answer} ({channel} {ts})", "ts": first, "channel": channel, "asked": settings.channel}


def _upload(api: Api, paths: Sequence[str], channel: str, thread: str) -> str:
    """Upload files into a thread, and return what the answer says of it: a failure would send the message again.

    https://docs.slack.dev/messaging/working-with-files#upload: an address for each file, its bytes, then one call.
    """
    try:
        uploaded = []
        for name, content in read_files(paths):
            place = api.call("files.getUploadURLExternal", {"filename": name, "length": len(content)}, as_form=True)
            api.upload(str(place.get("upload_url")), content)
            uploaded.append({"id": str(place.get("file_id")), "title": name})
        if uploaded:
            arguments = {"files": json.dumps(uploaded), "channel_id": channel, "thread_ts": thread}
            api.call("files.completeUploadExternal", arguments, as_form=True)
        return f", with {plural(len(uploaded), 'file')}"
    except (DeliveryError, SettingsError) as error:
        return f", but not its files ({error.message}; the app needs the scope files:write)"


CHANNEL = SlackChannel()
