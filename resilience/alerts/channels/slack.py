"""Sends alerts to Slack: through an incoming webhook, or as a bot with one thread per incident."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from resilience.alerts.alert import Alert, Reason
from resilience.alerts.channels import check_timeout
from resilience.alerts.channels._slack_blocks import mention_of, slack_message
from resilience.errors import DeliveryError, SettingsError
from resilience.system.http import check_url
from resilience.system.ports import System
from resilience.system.secrets import check_secret, read_secret

if TYPE_CHECKING:  # importing slack_sdk takes 77 ms, only when posting
    from resilience.alerts.channels._slack_client import Api

API = "https://slack.com/api/"


@dataclass(frozen=True, slots=True, kw_only=True)
class SlackSettings:
    """[channel.slack]: a webhook URL, or a bot token and its channel.

    Attributes:
        webhook_file: file of mode 0600 with the URL of an incoming webhook; the whole URL is the secret.
        webhook_variable: name of an environment variable with that URL instead.
        token_file: file of mode 0600 with a bot token (`xoxb-...`, scope `chat:write`): the bot replies in threads and
            updates the first message when the incident changes or is resolved.
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
    """

    content: Mapping[str, Any] = field(default_factory=dict)
    reply_to: str = ""
    reply_in: str = ""
    broadcast: bool = False
    update_first: bool = False


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
            return SlackMessage(content=content)
        return SlackMessage(
            content=content,
            reply_to=thread["ts"],
            reply_in=thread["channel"],
            broadcast=alert.reason in (Reason.WORSE, Reason.ESCALATED, Reason.RESOLVED),
            update_first=alert.reason in (Reason.WORSE, Reason.BETTER, Reason.RESOLVED, Reason.FIRST),
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
    if message.update_first and message.reply_to:
        fresh = {key: message.content[key] for key in ("text", "blocks", "attachments")}
        try:
            api.call("chat.update", {"channel": where, "ts": message.reply_to, **fresh})
        except DeliveryError as error:
            answer += f", but not the update of the first message ({error.message})"
    first = message.reply_to or ts
    return {"answer": f"{answer} ({channel} {ts})", "ts": first, "channel": channel, "asked": settings.channel}


CHANNEL = SlackChannel()
