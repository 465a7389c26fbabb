"""What somebody wrote under a wrong key is not shown to everybody who looks at the settings."""

from __future__ import annotations

import pytest

from resilience.settings.hide import hidden
from resilience.settings.show import SettingRow


def shown(key: str, value: object) -> object:
    return hidden(SettingRow(key, value, "resil.toml")).value


SLACK = "https://hooks.slack.com/services/T0AAAA/B0BBBB/canary123"


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("channel.slack.webhook", SLACK),
        ("channel.slack.webhook", "https://hooks.slack.com/services/canary"),
        ("channel.slack.url", SLACK),
        ("channel.slack.webhook_file", SLACK),
        ("channel.slack.tokn", "xoxb-12345-canary"),
        ("channel.slack.token_file", "xoxb-12345-canary"),
        ("channel.email.password", "canary"),
        ("channel.email.pasword", "canary"),
        ("channel.email.passwd", "canary"),
        ("channel.email.smtp", "smtp://ada:canary@mail.example.org"),
        ("channel.email.to", ["https://example.org/?token=canary"]),
        ("channel.pager.argv", ("pager", "--token", "canary")),
        ("channel.pager.argv", ["pager", "--api-key=canary"]),
        ("channel.pager.argv", ["curl", "-H", "Authorization: Bearer canary", "https://u:canary@x.org/a"]),
        ("channel.pager.argv", ["sh", "-c", "curl https://example.org/hook/canary123"]),
        ("channel.hook.headers", {"Authorization": "Bearer canary", "X-Api-Key": "canary"}),
        ("channel.hook.url", "https://discord.com/api/webhooks/1234/canary"),
        ("channel.hook.routing", "canary0123456789abcdef"),
        ("channel.hook.url", "https://[canary"),
        ("watch.fs.site_command", ["quota", "--password", "canary"]),
    ],
)
def test_what_looks_like_a_secret_is_not_shown(key: str, value: object) -> None:
    assert "canary" not in repr(shown(key, value)) and "REDACTED" in repr(shown(key, value))


def test_a_password_of_digits_is_none_the_less_one() -> None:
    assert shown("channel.email.password", 12345678) == "REDACTED"


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("channel.slack.webhook_file", "~/.config/resil/slack-webhook"),
        ("channel.slack.token_variable", "RESIL_SLACK_TOKEN_2"),
        ("channel.slack.channel", "C024BE91L"),
        ("channel.slack.mention", ("here", "U024BE7LH")),
        ("channel.email.to", ("ada@example.org", "Training on Call <training-on-call-2@example.org>")),
        ("channel.email.host", "smtp-2.cluster01.example.org"),
        ("channel.email.port", 587),
        ("channel.email.tls", "starttls"),
        ("channel.hook.url", "https://ntfy.sh/my-topic"),
        ("channel.hook.url", "http://127.0.0.1:8080/v2/enqueue"),
        ("channel.hook.headers", {"Authorization": "Bearer {secret}", "X-Team": "ml"}),
        ("channel.hook.payload", '{"text": {{ headline }}, "token": "{{ secret }}"}'),
        ("channel.pager.argv", ("/opt/site/bin/pager-2024", "--team", "ml")),
        ("watch.fs.paths", ("/scratch/project_465000123/ada", "~/runs")),
        ("watch.log.progress_regex", r"iteration +(?P<step>\d+)"),
        ("run.name", SLACK),
    ],
)
def test_what_is_none_is_shown_as_it_was_written(key: str, value: object) -> None:
    assert shown(key, value) == value


@pytest.mark.parametrize(
    "url", ["https://hc-ping.com/9c1f2a44-aaaa-4bbb", "https://user:word@ping.example.org/my-slug"]
)
def test_of_a_dead_man_s_switch_the_host_alone_is_shown(url: str) -> None:
    said = shown("cron.ping_url", url)
    assert isinstance(said, str) and said.startswith("https://") and said.endswith("/REDACTED")
    assert "9c1f" not in said and "word" not in said and "slug" not in said
    assert shown("cron.ping_url", "") == ""
    assert shown("cron.ping_url_file", "~/.config/resil/ping-url") == "~/.config/resil/ping-url"
