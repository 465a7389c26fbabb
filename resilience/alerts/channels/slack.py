"""Notifies people in Slack: through an incoming webhook, or as a bot whose threads follow an incident to its end."""

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

if TYPE_CHECKING:  # slack_sdk costs 77 ms, for commands that post
    from resilience.alerts.channels._slack_client import Api

API = "https://slack.com/api/"


@dataclass(frozen=True, slots=True, kw_only=True)
class SlackSettings:
    """[channel.slack]: a webhook's address, or a bot's token and the channel where it speaks.

    Attributes:
        webhook_file: file of mode 0600 with the address of an incoming webhook: all of it is the secret.
        webhook_variable: name of an environment variable with that address instead.
        token_file: file of mode 0600 with a bot's token (`xoxb-...`, scope `chat:write`): it answers in threads, and
            shows in the first message how it ended.
        token_variable: name of an environment variable with that token instead.
        channel: where the bot speaks: the channel's ID, such as `C024BE91L`. A webhook has one already.
        mention: who is called when something is newly CRITICAL, worse or escalated: `["here", "U024BE7LH"]`.
        base_url: where the API answers, for a gateway of your own.
        allow_http: whether a webhook may be plain http to another machine.
        ca_file: certificate authorities to trust instead of the usual ones, as a PEM file.
        timeout_s: how long delivering one message may take.
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
        reply_in: ID of the channel where that stands.
        is_loud: whether a reply is shown in the channel as well.
        redraw: whether the first message shows the new state too.
    """

    content: Mapping[str, Any] = field(default_factory=dict)
    reply_to: str = ""
    reply_in: str = ""
    is_loud: bool = False
    redraw: bool = False


class SlackChannel:
    """One message, or one reply and one update."""

    summary = "Slack, by an incoming webhook or as a bot with threads"
    Settings = SlackSettings

    def check(self, settings: SlackSettings) -> None:
        """Raise SettingsError unless there is one way to Slack, whole."""
        has_webhook = check_secret(settings, "webhook", required=False)
        has_token = check_secret(settings, "token", required=False)
        if has_webhook == has_token:
            raise SettingsError(
                "the slack channel needs a webhook or a token" + (", not both" if has_webhook else ""),
                hint='webhook_file = "~/.config/resil/slack", a file of mode 0600 that holds the address',
            )
        if has_token and not settings.channel:
            raise SettingsError("a bot needs a channel to speak in", hint='channel = "C024BE91L"')
        if not settings.channel.isprintable() or " " in settings.channel:
            raise SettingsError(f"channel = {settings.channel!r} is no channel", hint='channel = "C024BE91L"')
        for text in settings.mention:
            mention_of(text)
        check_url(settings.base_url, "base_url", allow_http=settings.allow_http)
        check_timeout(settings.timeout_s)

    def compose(self, alert: Alert, settings: SlackSettings, thread: Mapping[str, str]) -> SlackMessage:
        """The message. With a bot, later ones of a thread are replies, and the first one is drawn anew."""
        content = slack_message(alert, settings.mention)
        # Another channel in the settings by now: the thread stays where it was, and a new one begins.
        if not thread.get("ts") or not thread.get("channel") or thread.get("asked") != settings.channel:
            return SlackMessage(content=content)
        return SlackMessage(
            content=content,
            reply_to=thread["ts"],
            reply_in=thread["channel"],
            is_loud=alert.reason in (Reason.WORSE, Reason.ESCALATED, Reason.RESOLVED),
            redraw=alert.reason in (Reason.WORSE, Reason.BETTER, Reason.RESOLVED, Reason.FIRST),
        )

    def send(self, message: SlackMessage, settings: SlackSettings, system: System) -> Mapping[str, str]:
        """Post it. Raise DeliveryError if Slack did not take it."""
        from resilience.alerts.channels._slack_client import Api, Transport, post_to_webhook

        way = (system.environ, settings.timeout_s, settings.ca_file)
        if webhook := read_secret(settings, "webhook", system):
            check_url(webhook.reveal(), "the webhook's address", allow_http=settings.allow_http)
            return post_to_webhook(Transport(webhook, *way), message.content)
        if token := read_secret(settings, "token", system):
            return _post_as_bot(Api(Transport(token, *way), settings.base_url), message, settings)
        raise DeliveryError("no webhook and no token is given for Slack", transient=False)


def _post_as_bot(api: Api, message: SlackMessage, settings: SlackSettings) -> Mapping[str, str]:
    """Post a message, or a reply and the first message of the thread anew; return where it stands.

    Raise DeliveryError if the message was not taken. Once it was, a failure to update the first message is only
    reported: to raise would send the reply again.
    """
    content = dict(message.content)
    if message.reply_to:
        content |= {"thread_ts": message.reply_to, "reply_broadcast": message.is_loud}
    where = message.reply_in or settings.channel
    posted = api.call("chat.postMessage", {"channel": where, **content})
    answer = "Slack took it"
    channel, ts = str(posted.get("channel") or where), str(posted.get("ts") or "")
    if message.redraw and message.reply_to:
        fresh = {key: message.content[key] for key in ("text", "blocks", "attachments")}
        try:
            api.call("chat.update", {"channel": where, "ts": message.reply_to, **fresh})
        except DeliveryError as error:
            answer += f", and not the update of the first message ({error.message})"
    first = message.reply_to or ts
    return {"answer": f"{answer} ({channel} {ts})", "ts": first, "channel": channel, "asked": settings.channel}


CHANNEL = SlackChannel()
