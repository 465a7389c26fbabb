"""What commands print, and what they leave in the state directory, shows no secret: also as JSON and in failures."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.alerts.channels.servers import free_port
from tests.lab.canary import PLANTED, plant


@pytest.fixture
def project(tmp_path: Path, canary: str) -> Path:
    """A project whose channels all have a secret and an unreachable server."""
    dead = f"http://127.0.0.1:{free_port()}"
    token, hook = plant(tmp_path, "token", canary), plant(tmp_path, "hook", f"{dead}/services/{canary}")
    directory = tmp_path / "project"
    directory.mkdir()
    (directory / "resil.toml").write_text(f'''
[run]
name = "gpt"
state_dir = "{tmp_path}/state"

[alert]
channels = ["slack", "bot", "webhook", "pagerduty", "email"]

[channel.slack]
webhook_file = "{hook}"

[channel.bot]
kind = "slack"
token_file = "{token}"
channel = "C1"
base_url = "{dead}/api/"

[channel.webhook]
url_file = "{hook}"
secret_variable = "RESIL_CANARY"
headers = {{ Authorization = "Bearer {{secret}}" }}

[channel.pagerduty]
kind = "webhook"
preset = "pagerduty"
url = "{dead}/v2/enqueue"
secret_file = "{token}"

[channel.email]
to = ["ada@example.org"]
host = "127.0.0.1"
port = {free_port()}
username = "ada"
password_file = "{token}"

[watch.fs]
paths = ["/"]
crit_percent = "0.001%"
warn_percent = "0.001%"
''')
    return directory


@pytest.mark.parametrize(
    "command",
    [
        ["alert", "test"],
        ["alert", "test", "--json"],
        ["alert", "test", "--dry-run"],
        ["config", "show", "--json"],
        ["config", "check"],
        ["watch", "fs", "--json"],
    ],
    ids=" ".join,
)
def test_no_command_shows_a_secret(project: Path, tmp_path: Path, canary: str, command: list[str]) -> None:
    environment = {**os.environ, "RESIL_CANARY": canary, "HOME": str(tmp_path), "PYTHONDEVMODE": "0"}
    done = subprocess.run(
        [sys.executable, "-m", "resilience", *command],
        cwd=project, env=environment, capture_output=True, text=True, timeout=120,
    )  # fmt: skip
    assert done.stdout + done.stderr and "Traceback" not in done.stderr
    assert canary not in done.stdout + done.stderr
    for path in tmp_path.rglob("*"):
        if path.is_file() and PLANTED not in path.parts:
            assert canary.encode() not in path.read_bytes(), path
