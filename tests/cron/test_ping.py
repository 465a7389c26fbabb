"""The dead man's switch: what it is told, and that it delays no tick whatever its server does."""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from urllib.parse import urlsplit

import pytest

from resilience.cron.ping import Pinged, check_ping, last_ping, ping, ping_url
from resilience.cron.project import CronProject, open_cron
from resilience.cron.records import Outcome, RunRecord
from resilience.cron.report import TickReporter, send_failures
from resilience.cron.ticker import TickResult
from resilience.errors import SettingsError
from resilience.runs.project import Project
from resilience.settings.cron_settings import CronSettings
from resilience.settings.load import load
from resilience.system.ports import System

PATIENCE_S = 60.0
SECRET = "9c1f2a44-aaaa-4bbb-8ccc-0123456789ab"


class Requests(list[tuple[str, str]]):
    """(word, body) of each request."""


@contextmanager
def a_server(status: int = 200) -> Iterator[tuple[str, Requests]]:
    heard = Requests()

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            parts = urlsplit(self.path)
            body = self.rfile.read(int(self.headers.get("Content-Length", 0))).decode()
            assert parts.path.startswith(f"/{SECRET}")
            heard.append((parts.path.removeprefix(f"/{SECRET}"), body))
            self.send_response(status)
            self.end_headers()

        def log_message(self, format: str, *args: object) -> None:
            pass

    server = HTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever, args=(0.05,), daemon=True)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_address[1]}/{SECRET}", heard
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


def a_cron(tmp_path: Path, *channels: str, **settings: str) -> CronProject:
    lines = "\n".join(f'{key} = "{value}"' for key, value in settings.items())
    alert = f"[alert]\nchannels = {list(channels)}\n"
    (tmp_path / "resil.toml").write_text(f'[run]\nstate_dir = "{tmp_path}/state"\n{alert}[cron]\n{lines}\n')
    system = System(cwd=tmp_path)
    return open_cron(Project(system, load(system)))


def until(condition: Callable[[], object]) -> None:
    end = time.monotonic() + PATIENCE_S
    while not condition():
        assert time.monotonic() < end, "it did not happen in time"
        time.sleep(0.02)


@pytest.mark.parametrize("is_well", [True, False])
def test_a_tick_reports_its_end_once(tmp_path: Path, is_well: bool) -> None:
    with a_server() as (url, heard):
        cron = a_cron(tmp_path, ping_url=url)
        ping(cron, "3 runs", {}, is_well=is_well)
        assert heard == [("" if is_well else "/fail", "3 runs")]
    assert last_ping(cron).time > 0 and not last_ping(cron).error


def test_no_success_is_reported_while_a_watchdog_cannot_look(tmp_path: Path) -> None:
    with a_server() as (url, heard):
        cron = a_cron(tmp_path, ping_url=url)
        ping(cron, "well", {"cron.hourly/other": 0, "cron.hourly/watch-fs": 3}, is_well=True)
        assert not heard and "watch-fs ended UNKNOWN" in last_ping(cron).error
        assert "watch-fs ended UNKNOWN" in send_failures(cron)[0]
        ping(cron, "an hour without a run", {}, is_well=True)
        assert not heard
        ping(cron, "the table cannot be read", {}, is_well=False)
        ping(cron, "it could look again", {"cron.hourly/watch-fs": 2}, is_well=True)
        assert [word for word, _ in heard] == ["/fail", ""]
        (cron.state.path / "reported").write_text('{"unknown": "heartbeat is damaged"}')
        reporter = TickReporter(cron)
        reporter.ended(TickResult(), None)
        until(lambda: "heartbeat is damaged" in last_ping(cron).error)
        reporter.close()
        ping(cron, "it failed", {"cron.hourly/watch-fs": 3}, is_well=True)
        assert len(heard) == 2
        (cron.state.path / "table.json").write_text('{"entries": ["cron.hourly/other"], "ignored": []}')
        ping(cron, "well", {}, is_well=True)
        assert len(heard) == 3, "an entry that left the table is over"


def test_a_tick_tells_the_ping_which_looks_ended_unknown(tmp_path: Path) -> None:
    with a_server() as (url, heard):
        cron = a_cron(tmp_path, ping_url=url)
        reporter = TickReporter(cron)
        run = RunRecord(name="crontab/look", slot=1, outcome=Outcome.DONE, time=1.0, exit_code=3)
        reporter.ended(TickResult(records=(run,)), None)
        until(lambda: last_ping(cron).error)
        reporter.close()
        reporter.ended(TickResult(records=(replace(run, outcome=Outcome.FAILED),)), None)
        until(lambda: heard)
        ((word, body),) = heard
        assert word == "" and "crontab/look: failed" in body, "an incident tells of a failure"


def test_no_success_is_reported_while_the_outbox_does_not_drain(tmp_path: Path) -> None:
    from resilience.alerts.commands import trial
    from resilience.alerts.state import open_alert_state

    with a_server() as (url, heard):
        cron = a_cron(tmp_path, "console", ping_url=url)
        outbox, now = open_alert_state(cron.project).outbox, time.time()
        outbox.put(replace(trial(cron.project), id="new"), "console", now - 60)
        outbox.put(replace(trial(cron.project), id="foreign"), "pager-of-another-project", now - 86400)
        ping(cron, "well", {}, is_well=True)
        assert heard == [("", "well")]
        outbox.put(replace(trial(cron.project), id="old"), "console", now - 3600)
        ping(cron, "well", {}, is_well=True)
        assert len(heard) == 1 and "2 alerts queued, for up to 1 h: resil alert list" in last_ping(cron).error
        for entry in outbox.pending("console"):
            outbox.give_up(entry, "invalid token", "", now, "n1")
        ping(cron, "well", {}, is_well=True)
        assert len(heard) == 1 and "the last alert was rejected" in last_ping(cron).error
        outbox.put(replace(trial(cron.project), id="next"), "console", now)
        (entry,) = outbox.pending("console")
        outbox.delivered(entry, now + 1, "ok", "n1")
        ping(cron, "well", {}, is_well=True)
        assert len(heard) == 2


@contextmanager
def a_black_hole() -> Iterator[str]:
    """Takes connections, and never says a word."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        yield f"http://127.0.0.1:{server.getsockname()[1]}/{SECRET}"


@contextmanager
def a_drip() -> Iterator[str]:
    """Answers a byte at a time, for ever."""
    over = threading.Event()

    def drip(connection: socket.socket) -> None:
        with connection:
            while not over.wait(0.2):
                try:
                    connection.send(b"H")
                except OSError:
                    return

    def serve(server: socket.socket) -> None:
        while True:
            try:
                connection, _ = server.accept()
            except OSError:
                return
            threading.Thread(target=drip, args=(connection,), daemon=True).start()

    with socket.create_server(("127.0.0.1", 0)) as server:
        threading.Thread(target=serve, args=(server,), daemon=True).start()
        yield f"http://127.0.0.1:{server.getsockname()[1]}/{SECRET}"
        over.set()


@pytest.mark.parametrize("trouble", [a_black_hole, a_drip])
def test_no_server_delays_a_tick(
    tmp_path: Path, trouble: Callable[[], object], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("resilience.cron.ping.PING_S", 1.0)
    with trouble() as url:  # type: ignore[attr-defined]
        cron = a_cron(tmp_path, ping_url=url)
        reporter = TickReporter(cron)
        reporter.ended(TickResult(), None)
        assert not last_ping(cron).time, "nobody has waited for an answer"
        until(lambda: last_ping(cron).time)
    error = last_ping(cron).error
    assert error and SECRET not in error


@pytest.mark.parametrize("url", [f"https://no-such-host.invalid/{SECRET}", f"http://127.0.0.1:1/{SECRET}"])
def test_a_server_that_is_not_there_is_only_noted_and_its_address_stays_secret(tmp_path: Path, url: str) -> None:
    cron = a_cron(tmp_path, ping_url=url)
    ping(cron, "well", {}, is_well=True)
    error = last_ping(cron).error
    assert error and SECRET not in error


def test_a_ping_that_the_server_refuses_is_recorded(tmp_path: Path) -> None:
    with a_server(404) as (url, _):
        cron = a_cron(tmp_path, ping_url=url)
        ping(cron, "well", {}, is_well=True)
    assert "404" in last_ping(cron).error


def test_the_address_may_lie_in_a_file_that_only_its_owner_reads(tmp_path: Path) -> None:
    file = tmp_path / "ping-url"
    with a_server() as (url, heard):
        file.write_text(f"{url}\n")
        file.chmod(0o644)
        cron = a_cron(tmp_path, ping_url_file=str(file))
        for mode, words in ((0o644, 0), (0o600, 1)):
            file.chmod(mode)
            ping(cron, "well", {}, is_well=True)
            assert len(heard) == words
            assert ("0600" in last_ping(cron).error) is (mode == 0o644)


@pytest.mark.parametrize(
    "settings",
    [
        CronSettings(ping_url=f"http://example.org/{SECRET}"),
        CronSettings(ping_url=f"ftp://example.org/{SECRET}"),
        CronSettings(ping_url=SECRET),
        CronSettings(ping_url=f"https://example.org/{SECRET}", ping_url_file="/f"),
    ],
)
def test_an_address_that_cannot_be_meant_is_refused_without_being_shown(settings: CronSettings) -> None:
    with pytest.raises(SettingsError) as caught:
        check_ping(settings)
    assert SECRET not in str(caught.value) + caught.value.hint


def test_plain_http_is_for_this_machine_or_by_ones_own_will() -> None:
    check_ping(CronSettings(ping_url="http://127.0.0.1:8000/x"))
    with pytest.raises(SettingsError) as caught:
        check_ping(CronSettings(ping_url="http://example.org/x"))
    assert "ping_allow_http = true" in caught.value.hint
    check_ping(CronSettings(ping_url="http://example.org/x", ping_allow_http=True))


def test_the_words_stand_where_healthchecks_wants_them() -> None:
    assert ping_url("https://hc-ping.com/abc/?create=1", "") == "https://hc-ping.com/abc?create=1"
    assert ping_url("https://example.org", "fail") == "https://example.org/fail"


def test_without_an_address_and_while_stopped_nothing_is_reported(tmp_path: Path) -> None:
    cron = a_cron(tmp_path)
    TickReporter(cron).ended(TickResult(), None)
    assert not last_ping(cron).time
    with a_server() as (url, heard):
        cron = a_cron(tmp_path, ping_url=url)
        reporter = TickReporter(cron)
        reporter.ended(TickResult(stopped="stopped by ada"), None)
        reporter.close()
        assert not heard and not last_ping(cron).time


@pytest.mark.parametrize("content", ["[]", "{", '{"time": "x"}', ""])
def test_a_damaged_record_is_as_if_it_were_not_there(tmp_path: Path, content: str) -> None:
    cron = a_cron(tmp_path)
    cron.state.path.mkdir(parents=True)
    (cron.state.path / "ping").write_text(content)
    assert last_ping(cron) == Pinged()
