"""Every setting is shown with where it came from, and nothing that looks like a secret."""

from __future__ import annotations

import tomllib
from dataclasses import fields, is_dataclass
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from resilience.checkpoints.settings import CheckpointSettings
from resilience.guard.settings import GuardSettings
from resilience.settings.cron_settings import CronSettings
from resilience.settings.load import FILE_NAME, Loaded, load
from resilience.settings.sections import RunSettings, Settings, SubmitSettings
from resilience.settings.show import SettingRow, redacted, rows, to_toml
from tests.lab.fakes import make_system


def test_each_row_has_its_origin(tmp_path: Path) -> None:
    (tmp_path / FILE_NAME).write_text('[run]\nstate-dir = "x"\n[sbatch]\ngpus_per_node = 8\n')
    loaded = load(make_system(tmp_path, {"RESIL_RUN__GROUP": "lab"}), overrides={"scheduler.name": "local"})
    origins = {row.key: row.origin for row in rows(loaded) if row.origin != "default"}
    assert origins == {
        "run.state_dir": str(tmp_path / FILE_NAME),
        "run.group": "$RESIL_RUN__GROUP",
        "sbatch.gpus-per-node": str(tmp_path / FILE_NAME),
        "scheduler.name": "command line",
    }


EVERY = Settings(guard=GuardSettings(), checkpoints=CheckpointSettings(), cron=CronSettings())


def test_no_setting_is_omitted() -> None:
    shown = {row.key for row in rows(Loaded(Settings(), None, Path("/p")))}
    owned = {
        f"{section.name}.{field.name}"
        for section in fields(Settings)
        if is_dataclass(owner := getattr(EVERY, section.name))
        for field in fields(owner)
    }
    assert shown == owned


texts = st.text(st.characters(exclude_categories=["Cs"]), max_size=30)
keys = texts.map(lambda key: key.replace("_", "-"))
plain = texts | st.integers(-(2**63), 2**63 - 1) | st.booleans() | st.floats(allow_nan=False)


@given(
    run=st.builds(RunSettings, name=texts, command=texts, setup=st.lists(texts, max_size=3).map(tuple), group=texts),
    submit=st.builds(SubmitSettings, array=texts, requeue=st.none() | st.booleans(), signal_lead_s=st.floats(0, 1e6)),
    sbatch=st.dictionaries(keys, plain, max_size=3),
    environment=st.dictionaries(texts, texts, max_size=3),
    launcher=st.dictionaries(texts, plain, max_size=3),
)
def test_run_toml_round_trips_any_value(
    run: RunSettings,
    submit: SubmitSettings,
    sbatch: dict[str, str],
    environment: dict[str, str],
    launcher: dict[str, str],
) -> None:
    settings = Settings(run=run, submit=submit, sbatch=sbatch, environment=environment, launcher=launcher)
    document = tomllib.loads(to_toml(Loaded(settings, None, Path("/p")), "gpt"))
    assert document["run"] == {
        "name": "gpt", "command": run.command, "template": "python", "setup": list(run.setup), "state_dir": ".resil",
        "group": run.group, "switch_owners": "", "finish_on_success": True, "allow_inject": False,
    }  # fmt: skip
    assert (document["submit"]["array"], document["submit"].get("requeue")) == (submit.array, submit.requeue)
    assert document["submit"]["signal_lead_s"] == submit.signal_lead_s
    assert (document.get("sbatch", {}), document.get("environment", {})) == (sbatch, environment)
    assert document.get("template", {}) == launcher


def test_run_toml_can_be_used_as_settings_again(tmp_path: Path) -> None:
    (tmp_path / FILE_NAME).write_text(
        '[run]\nname = "gpt"\ncommand = "a \\"b\\""\n[sbatch]\n"x.y" = "é"\nexclusive = true\n[environment]\nA = "1"\n'
        '[act.treatments]\nnetwork = "retry"\n'
    )
    loaded = load(make_system(tmp_path))
    (tmp_path / "run.toml").write_text(to_toml(loaded, "gpt"))
    again = load(make_system(tmp_path), named=tmp_path / "run.toml")
    assert [(row.key, row.value) for row in rows(again)] == [(row.key, row.value) for row in rows(loaded)]


def shown(key: str, value: object) -> object:
    return redacted(SettingRow(key, value, "resil.toml")).value


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
def test_a_value_that_looks_like_a_secret_is_redacted(key: str, value: object) -> None:
    assert "canary" not in repr(shown(key, value)) and "REDACTED" in repr(shown(key, value))


def test_a_numeric_password_is_redacted() -> None:
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
def test_a_value_that_is_not_a_secret_is_shown_unchanged(key: str, value: object) -> None:
    assert shown(key, value) == value


@pytest.mark.parametrize(
    "url", ["https://hc-ping.com/9c1f2a44-aaaa-4bbb", "https://user:word@ping.example.org/my-slug"]
)
def test_only_the_host_of_a_ping_url_is_shown(url: str) -> None:
    said = shown("cron.ping_url", url)
    assert isinstance(said, str) and said.startswith("https://") and said.endswith("/REDACTED")
    assert "9c1f" not in said and "word" not in said and "slug" not in said
    assert shown("cron.ping_url", "") == ""
    assert shown("cron.ping_url_file", "~/.config/resil/ping-url") == "~/.config/resil/ping-url"
