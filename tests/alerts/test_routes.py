"""The ways out: every channel that the settings name, and nothing is imported before one is used."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from resilience.alerts.routes import escalation_channels, routes_of
from resilience.errors import UsageError
from tests.lab.fakes import make_project

SETTINGS = """
[alert]
channels = ["email"]
escalation = ["1h: list, oncall", "4h: email"]
[channel.list]
kind = "email"
to = ["list@example.org"]
[channel.slack]
"""


def test_every_channel_that_is_named_anywhere_has_a_route(tmp_path: Path) -> None:
    project = make_project(tmp_path, settings=SETTINGS)
    assert list(routes_of(project)) == ["email", "list", "oncall", "slack"]
    assert list(routes_of(project, "console"))[-1] == "console"


def test_a_channel_is_loaded_only_when_it_is_used(tmp_path: Path) -> None:
    sys.modules.pop("resilience.alerts.channels.slack", None)
    routes = routes_of(make_project(tmp_path, settings=SETTINGS))
    assert "resilience.alerts.channels.slack" not in sys.modules
    channel, settings = routes["list"]()
    assert settings.to == ("list@example.org",) and isinstance(settings, channel.Settings)


@pytest.mark.parametrize("name", ["oncall", "list"])
def test_a_channel_that_cannot_be_loaded_fails_when_it_is_used(tmp_path: Path, name: str) -> None:
    project = make_project(tmp_path, settings=SETTINGS.replace("to = [", "too = ["))
    with pytest.raises(UsageError, match=r"oncall|too"):
        routes_of(project)[name]()


@pytest.mark.parametrize(
    ("steps", "names"),
    [((), ()), (("1h: list, oncall",), ("list", "oncall")), (("nonsense", "1h:", ": a, ,a"), ("a",))],
)
def test_channels_of_an_escalation(steps: tuple[str, ...], names: tuple[str, ...]) -> None:
    assert escalation_channels(steps) == names
