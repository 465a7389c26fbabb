"""Apprise is asked for what we have no channel for; its addresses are secrets, and it need not be installed."""

from __future__ import annotations

import importlib.util
import json
import re
from dataclasses import replace
from pathlib import Path

import pytest
from pytest_httpserver import HTTPServer

from resilience.alerts.alert import Alert
from resilience.alerts.channels import apprise
from resilience.alerts.channels.apprise import CHANNEL, AppriseSettings
from resilience.errors import DeliveryError, SettingsError
from resilience.system.ports import System
from tests.alerts.channels.alerts import HOSTILE, a_thousand, an_alert, hostile, resolved
from tests.alerts.channels.sender import Sender
from tests.alerts.channels.servers import serving, silent, takes_at_most
from tests.lab.canary import plant

pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning")  # Apprise imports what Python will remove

needs_apprise = pytest.mark.skipif(
    importlib.util.find_spec("apprise") is None, reason="Apprise is not installed (pip install apprise)"
)


SENDER = Sender(CHANNEL)
send, refused = SENDER.send, SENDER.refused


def at(httpserver: HTTPServer, directory: Path, canary: str) -> AppriseSettings:
    """Two addresses on the server, with the canary as a password in them."""
    where = f"json://ada:{canary}@127.0.0.1:{httpserver.port}"
    urls = plant(directory, "urls", f"# mine\n{where}/one\n\n{where}/two")
    return AppriseSettings(urls_file=str(urls), timeout_s=60.0)


@needs_apprise
def test_all_urls_of_the_file_are_notified(httpserver: HTTPServer, system: System, tmp_path: Path, canary: str) -> None:
    httpserver.expect_request(re.compile("/(one|two)/?")).respond_with_data("ok")
    answer = send(at(httpserver, tmp_path, canary), system)["answer"]
    assert "2 services accepted the message" in answer
    sent = [json.loads(request.get_data()) for request, _ in httpserver.log]
    assert {body["title"].partition(" used")[0] for body in sent} == {"[resil] CRITICAL: /scratch: 98%"}
    assert "resil alert ack 3f9a1c" in sent[0]["message"] and sent[0]["type"] == "failure"


@needs_apprise
def test_a_failing_url_is_reported_without_its_password(
    httpserver: HTTPServer, system: System, tmp_path: Path, canary: str, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("DEBUG")
    httpserver.expect_request(re.compile("/one/?")).respond_with_data("ok")
    httpserver.expect_request(re.compile("/two/?")).respond_with_data(f"no {canary}", status=500)
    error = refused(at(httpserver, tmp_path, canary), system)
    assert error.transient and "could not deliver" in error.message
    assert canary not in repr(vars(error)) and canary not in caplog.text


@needs_apprise
def test_an_unsupported_url_is_reported_by_its_line(system: System, tmp_path: Path, canary: str) -> None:
    settings = AppriseSettings(urls_file=str(plant(tmp_path, "urls", f"nobody://{canary}")), timeout_s=60.0)
    error = refused(settings, system)
    assert "line 1" in error.message and canary not in error.message and not error.transient


@needs_apprise
def test_a_service_that_never_answers_fails_within_the_time_limit(system: System, tmp_path: Path) -> None:
    with serving(silent) as port, takes_at_most(5):
        urls = plant(tmp_path, "urls", f"json://127.0.0.1:{port}/x?rto=1&cto=1")
        error = refused(AppriseSettings(urls_file=str(urls), timeout_s=0.5), system)
    assert error.transient and "0.5 s" in error.message


def test_without_apprise_the_hint_is_how_to_install_it(
    system: System, monkeypatch: pytest.MonkeyPatch, canary_file: Path
) -> None:
    monkeypatch.setattr(apprise, "is_installed", lambda: False)
    settings = AppriseSettings(urls_file=str(canary_file))
    with pytest.raises(SettingsError) as caught:
        CHANNEL.check(settings)
    assert "not installed" in caught.value.message and caught.value.hint.endswith("-m pip install apprise")
    with pytest.raises(DeliveryError, match="not installed"):
        CHANNEL.send(CHANNEL.compose(an_alert(), settings, {}), settings, system)


@pytest.mark.parametrize(
    ("wrong", "word"),
    [
        (AppriseSettings(), "urls_file"),
        (AppriseSettings(urls_file="tgram://x"), "the secret itself"),
        (AppriseSettings(urls_file="/x", timeout_s=0.0), "must be positive"),
    ],
)
def test_invalid_settings_are_rejected(wrong: AppriseSettings, word: str) -> None:
    assert word in SENDER.objection(wrong)


@pytest.mark.parametrize("alert", [a_thousand(), *map(hostile, HOSTILE.values())])
def test_a_message_has_one_line_of_title_and_a_bounded_body(alert: Alert) -> None:
    message = CHANNEL.compose(alert, AppriseSettings(), {})
    assert message.title.isprintable() and len(message.title) < 250 and len(message.body) < 9000


def test_the_end_is_a_success() -> None:
    kinds = [CHANNEL.compose(alert, AppriseSettings(), {}).kind for alert in
             (an_alert(), resolved(), replace(an_alert(), is_test=True))]  # fmt: skip
    assert kinds == ["failure", "success", "info"]
