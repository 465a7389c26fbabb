"""What every channel promises, whoever wrote it: the same tests for the built-in ones and for one that is dropped in.

After Alertmanager, which has four tests for each notifier (https://github.com/prometheus/alertmanager, notify/*):
Retry, RedactedURL, ReadingURLFromFile, Truncate.
"""

from __future__ import annotations

import dataclasses
import importlib.util
import inspect
import json
import logging
import os
import pickle
import re
import sys
import threading
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from pytest_httpserver import HTTPServer
from werkzeug import Response

from resilience.alerts.alert import Alert
from resilience.alerts.channels import Channel
from resilience.errors import DeliveryError, SettingsError
from resilience.plugins import Family
from resilience.settings.convert import plugin_settings
from resilience.settings.sections import PluginTable
from resilience.system.ports import System
from tests.alerts.channels.alerts import HOSTILE, a_thousand, an_alert, hostile, resolved
from tests.alerts.channels.servers import Mailbox, free_port, smtp_server, takes_at_most
from tests.contract.test_imports import HEAVY, loaded_by
from tests.lab.canary import PLANTED, plant
from tests.lab.fakes import make_system

pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning:apprise")

BUILT_IN = ("apprise", "command", "console", "email", "slack", "webhook")
DROPPED_IN = "pager"

PAGER = '''"""Tells people by a file."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from resilience.errors import DeliveryError, SettingsError
from resilience.alerts.alert import Alert
from resilience.alerts.message import headline
from resilience.system.secrets import check_secret, read_secret
from resilience.system.ports import System


@dataclass(frozen=True, slots=True, kw_only=True)
class PagerSettings:
    """Where the pager reads.

    Attributes:
        path: the file, one line per alert.
        token_file: file of mode 0600 that holds the token.
        timeout_s: how long it may take.
    """

    path: str = ""
    token_file: str = ""
    timeout_s: float = 1.0


class Pager:
    """One line per alert."""

    summary = "a line in a file"
    Settings = PagerSettings

    def check(self, settings: PagerSettings) -> None:
        if not settings.path:
            raise SettingsError("the pager needs a path", hint='path = "/var/spool/pager"')
        check_secret(settings, "token")

    def compose(self, alert: Alert, settings: PagerSettings, thread: Mapping[str, str]) -> str:
        return headline(alert)

    def send(self, message: str, settings: PagerSettings, system: System) -> Mapping[str, str]:
        read_secret(settings, "token", system)
        try:
            with open(settings.path, "a", encoding="utf-8") as file:
                file.write(message + "\\n")
        except OSError as error:
            raise DeliveryError(f"cannot write {settings.path}: {error.strerror}") from None
        return {"answer": "written"}


CHANNEL = Pager()
'''


@dataclasses.dataclass
class Case:
    """One channel with a receiver.

    Attributes:
        good: a table as in resil.toml that delivers.
        broken: one that cannot: nothing listens, or the place does not exist.
        received: what has come so far, as text.
    """

    name: str
    channel: Channel
    good: dict[str, Any]
    broken: dict[str, Any]
    received: Callable[[], str]
    secret_field: str = ""

    def settings(self, table: dict[str, Any]) -> Any:
        return plugin_settings(self.channel.Settings, "channel", self.name, PluginTable(self.name, table))

    def send(self, alert: Alert, system: System, table: dict[str, Any] | None = None) -> dict[str, str]:
        settings = self.settings(table or self.good)
        self.channel.check(settings)
        return dict(self.channel.send(self.channel.compose(alert, settings, {}), settings, system))


@pytest.fixture
def system(tmp_path: Path, canary: str) -> System:
    return make_system(tmp_path, {"PATH": "/usr/bin:/bin", "RESIL_CANARY": canary})


@pytest.fixture(params=[*BUILT_IN, "email by sendmail", "slack as a bot", DROPPED_IN])
def case(request: pytest.FixtureRequest, tmp_path: Path, httpserver: HTTPServer, canary: str) -> Iterator[Case]:
    """Every channel, with a receiver that is really there."""
    if request.param == "apprise" and importlib.util.find_spec("apprise") is None:
        pytest.skip("Apprise is not installed (pip install apprise)")
    (tmp_path / "plugins" / "channels").mkdir(parents=True)
    (tmp_path / "plugins" / "channels" / "pager.py").write_text(PAGER)
    family = Family("channels", "CHANNEL", (tmp_path / "plugins",))
    name = request.param.split()[0]
    channel = family.load(name)
    httpserver.expect_request(re.compile("/api/.*")).respond_with_json({"ok": True, "ts": "1.2", "channel": "C1"})
    httpserver.expect_request(re.compile("/.*")).respond_with_data("ok")

    def over_http() -> str:
        return "\n".join(asked.get_data(as_text=True) for asked, _ in httpserver.log)

    def in_file() -> str:
        path = tmp_path / "received"
        return path.read_text() if path.exists() else ""

    dead = f"http://127.0.0.1:{free_port()}"
    hook = str(plant(tmp_path, "hook", httpserver.url_for(f"/services/{canary}")))
    dead_hook = str(plant(tmp_path, "dead", f"{dead}/services/{canary}"))
    token = str(plant(tmp_path, "token", canary))
    out = str(tmp_path / "received")
    quick = {"timeout_s": 14}  # for a machine that does a dozen things at once
    if request.param == "email":
        mailbox = Mailbox()
        with smtp_server(mailbox) as port:
            mail = {"to": ["a@example.org"], "host": "127.0.0.1", "username": "ada", "password_file": token, **quick}
            yield Case(
                name, channel, {key: mail[key] for key in ("to", "host", "timeout_s")} | {"port": port},
                mail | {"port": free_port()},
                lambda: "\n".join(str(envelope.content) for envelope in mailbox.envelopes), "password_file",
            )  # fmt: skip
        return
    if request.param in ("email by sendmail", "command"):
        program = tmp_path / "program"
        program.write_text(f"#!/bin/sh\ncat >> {out}\n")
        program.chmod(0o755)
        field = "argv" if name == "command" else "sendmail"
        table = {field: [str(program)], **quick} | ({"to": ["a@example.org"]} if name == "email" else {})
        yield Case(name, channel, table, table | {field: ["/nowhere/program"]}, in_file)
        return
    if request.param == "console":
        yield Case(name, channel, {"path": out}, {"path": "/nowhere/x"}, in_file)
        return
    if request.param == DROPPED_IN:
        table = {"path": out, "token_file": token}
        yield Case(name, channel, table, table | {"path": "/nowhere/x"}, in_file, "token_file")
        return
    if request.param == "apprise":
        urls = plant(tmp_path, "urls", f"json://ada:{canary}@127.0.0.1:{httpserver.port}/services")
        dead_urls = plant(tmp_path, "dead", f"json://ada:{canary}@127.0.0.1:{free_port()}/services")
        yield Case(name, channel, {"urls_file": str(urls), **quick}, {"urls_file": str(dead_urls), **quick}, over_http,
                   "urls_file")  # fmt: skip
        return
    if request.param == "slack as a bot":
        bot = {"token_file": token, "channel": "C1", **quick}
        yield Case(name, channel, bot | {"base_url": httpserver.url_for("/api/")}, bot | {"base_url": f"{dead}/api/"},
                   over_http, "token_file")  # fmt: skip
        return
    field = {"slack": "webhook_file", "webhook": "url_file"}[name]
    yield Case(name, channel, {field: hook, **quick}, {field: dead_hook, **quick}, over_http, field)


# Alertmanager's four, and what belongs to them


def test_an_alert_arrives_with_its_episode(case: Case, system: System) -> None:
    answer = case.send(an_alert(), system)
    assert "3f9a1c" in case.received()
    assert answer["answer"].isprintable() and answer["answer"]
    assert all(isinstance(key, str) and isinstance(value, str) for key, value in answer.items())
    case.send(resolved(), system)
    assert "RESOLVED" in case.received()


def test_retry_a_receiver_that_is_not_there_is_an_error_that_says_so(case: Case, system: System) -> None:
    with takes_at_most(10), pytest.raises(DeliveryError) as caught:
        case.send(an_alert(), system, case.broken)
    assert caught.value.message and isinstance(caught.value.transient, bool)
    if case.name not in ("console", DROPPED_IN):
        assert caught.value.transient


def test_redacted_url_no_error_log_or_traceback_shows_a_secret(
    case: Case, system: System, canary: str, caplog: pytest.LogCaptureFixture, capfd: pytest.CaptureFixture[str]
) -> None:
    caplog.set_level(logging.DEBUG)
    with pytest.raises(DeliveryError) as caught:
        case.send(an_alert(), system, case.broken)
    shown = "".join(traceback.format_exception(caught.value)) + repr(vars(caught.value)) + repr(caught.value)
    chain: BaseException | None = caught.value
    while chain is not None:
        shown += str(chain) + repr(chain)
        chain = chain.__cause__ or chain.__context__
    output = capfd.readouterr()
    assert canary not in shown and canary not in caplog.text and canary not in output.out + output.err


def test_redacted_url_no_answer_shows_a_secret(case: Case, system: System, canary: str) -> None:
    settings = case.settings(case.good)
    message = case.channel.compose(an_alert(), settings, {})
    assert canary not in repr(message) + repr(settings) + json.dumps(message, default=str)
    assert canary not in repr(case.send(an_alert(), system))


def test_reading_url_from_file_a_file_that_others_can_read_is_a_fault_of_the_settings(
    case: Case, system: System, canary: str
) -> None:
    if not case.secret_field:
        return  # it has no secret
    table = case.broken
    path = Path(str(table[case.secret_field]))
    for what, word in (("open", "chmod 600"), ("empty", "is empty"), ("gone", "No such file")):
        if what == "open":
            path.chmod(0o644)
        elif what == "empty":
            path.chmod(0o600)
            path.write_text("\n")
        else:
            path.unlink()
        with pytest.raises(SettingsError) as caught:
            case.send(an_alert(), system, table)
        assert word in caught.value.message + caught.value.hint and canary not in str(vars(caught.value))
    assert case.received() == ""


def test_truncate_a_thousand_incidents_are_one_message_of_a_bounded_size(case: Case, system: System) -> None:
    case.send(a_thousand(), system)
    assert 0 < len(case.received()) < 400_000
    assert "1000" in case.received() or "more" in case.received()


@pytest.mark.parametrize("text", HOSTILE.values(), ids=HOSTILE.keys())
def test_truncate_a_hostile_text_is_delivered_and_bounded(case: Case, system: System, text: str) -> None:
    with takes_at_most(15):
        case.send(hostile(text), system)
    assert 0 < len(case.received()) < 400_000
    assert "\0" not in case.received()


# How a channel is written


def test_settings_are_a_documented_dataclass_of_defaults(case: Case) -> None:
    fields = dataclasses.fields(case.channel.Settings)
    case.channel.Settings()  # every field has a default
    documentation = inspect.getdoc(case.channel.Settings) or ""
    assert "Attributes:" in documentation and case.channel.summary
    for field in fields:
        assert re.search(rf"^    {field.name}: ", documentation, re.MULTILINE), f"{field.name} is not explained"


def test_a_secret_is_never_a_setting_only_where_it_lies(case: Case) -> None:
    names = {field.name for field in dataclasses.fields(case.channel.Settings)}
    assert not names & {"password", "token", "webhook", "secret", "urls", "api_key", "routing_key"}


def test_compose_is_pure(case: Case) -> None:
    settings = case.settings(case.good)
    first = case.channel.compose(an_alert(), settings, {})  # whatever it imports is there by now
    touched: list[str] = []
    with watching(touched):
        second = case.channel.compose(an_alert(), settings, {})
    assert not touched
    assert first == second  # and it knows no clock and no dice


WORLD = ("open", "os.", "socket.", "subprocess.", "shutil.", "tempfile.", "urllib.", "smtplib.")
watchers: dict[int, list[str]] = {}
"""By thread: an audit hook cannot be taken away again, so there is one, which mostly looks away."""


def notice(event: str, arguments: tuple[Any, ...]) -> None:
    seen = watchers.get(threading.get_ident())
    if seen is not None and event.startswith(WORLD):
        seen.append(event)


@contextmanager
def watching(touched: list[str]) -> Iterator[None]:
    """Note what this thread asks of the machine."""
    if not watchers:
        watchers[0] = []
        sys.addaudithook(notice)
    watchers[threading.get_ident()] = touched
    try:
        yield
    finally:
        del watchers[threading.get_ident()]


def test_the_watch_over_purity_sees_what_is_not_pure(tmp_path: Path) -> None:
    touched: list[str] = []
    with watching(touched):
        tmp_path.joinpath("x").write_text("x")
    assert touched == ["open"]


def test_a_message_can_be_handed_to_another_process(case: Case) -> None:
    message = case.channel.compose(an_alert(), case.settings(case.good), {})
    assert pickle.loads(pickle.dumps(message)) == message


def test_a_message_about_several_incidents_has_the_id_that_acknowledges_all(case: Case, system: System) -> None:
    alert = replace(a_thousand(), id="5b1d0c9a44e2f7a0")
    case.send(alert, system)
    assert "5b1d0c9a44e2f7a0" in case.received()


def test_an_alert_without_notices_is_told_too(case: Case, system: System) -> None:
    case.send(replace(an_alert(), notices=(), total=3), system)
    assert "3 incidents" in case.received()


def test_a_plain_secret_in_resil_toml_is_an_unknown_key_and_is_not_shown(case: Case, canary: str) -> None:
    for key in ("webhook", "token", "password", "secret", "urls"):
        with pytest.raises(SettingsError) as caught:
            case.settings({key: f"https://hooks.slack.com/services/{canary}"})
        assert f"unknown key {key!r}" in caught.value.message and canary not in str(vars(caught.value))


def test_no_child_process_has_a_secret_in_its_arguments(case: Case, system: System, canary: str) -> None:
    seen: list[str] = []
    stop = threading.Event()

    def look() -> None:
        while not stop.is_set():
            for directory in Path("/proc").iterdir():
                if directory.name.isdigit():
                    try:
                        if int((directory / "stat").read_text().rpartition(")")[2].split()[1]) == os.getpid():
                            seen.append((directory / "cmdline").read_bytes().decode("utf-8", "replace"))
                    except (OSError, ValueError, IndexError):
                        continue

    watcher = threading.Thread(target=look)
    watcher.start()
    try:
        case.send(an_alert(), system)
    finally:
        stop.set()
        watcher.join()
    assert not any(canary in line for line in seen)


def test_nothing_but_what_was_planted_holds_the_secret(case: Case, system: System, tmp_path: Path, canary: str) -> None:
    case.send(an_alert(), system)
    with pytest.raises(DeliveryError):
        case.send(an_alert(), system, case.broken)
    for path in tmp_path.rglob("*"):
        if path.is_file() and PLANTED not in path.parts:
            assert canary.encode() not in path.read_bytes(), path


@pytest.mark.parametrize("name", BUILT_IN)
def test_loading_a_channel_loads_no_heavy_package(name: str) -> None:
    loaded = loaded_by(f"import resilience.alerts.channels.{name}")
    assert not {module.partition(".")[0] for module in loaded} & (
        HEAVY | {"smtplib", "email", "ssl", "apprise", "http", "urllib.request"}
    )


def test_every_channel_is_in_this_suite() -> None:
    assert set(Family("channels", "CHANNEL", ()).names()) == set(BUILT_IN)


def test_an_http_status_says_the_same_in_every_channel(httpserver: HTTPServer, system: System) -> None:
    """The Retry matrix: which statuses are worth another try, over all channels that speak HTTP."""
    family = Family("channels", "CHANNEL", ())
    statuses = {400: False, 401: False, 403: False, 404: False, 408: True, 429: True, 500: True, 502: True, 503: True}
    for status, transient in statuses.items():
        httpserver.clear()
        httpserver.expect_request(re.compile("/.*")).respond_with_response(Response("no", status=status))
        url = httpserver.url_for("/x")
        environment = replace(system, environ={"URL": url, "TOKEN": "a-token"})
        for name, table in (
            ("slack", {"webhook_variable": "URL"}),
            ("slack", {"token_variable": "TOKEN", "channel": "C", "base_url": url}),
            ("webhook", {"url_variable": "URL"}),
            ("webhook", {"url": url, "preset": "pagerduty", "secret_variable": "TOKEN"}),
        ):
            channel = family.load(name)
            settings = channel.Settings(**table)
            channel.check(settings)
            with pytest.raises(DeliveryError) as caught:
                channel.send(channel.compose(an_alert(), settings, {}), settings, environment)
            # Slack's API says in its JSON what went wrong; without it, a web page came from a proxy.
            assert caught.value.transient is (transient or "a web page" in caught.value.message), (name, status)
