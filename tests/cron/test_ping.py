"""The dead man's switch: what it is told, and that it delays no tick whatever its server does."""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from urllib.parse import parse_qs, urlsplit

import pytest

from resilience.cron.ping import Ping, PingState, check_ping, ping_state, ping_url
from resilience.cron.project import CronProject, open_cron
from resilience.errors import SettingsError
from resilience.runs.project import Project
from resilience.settings.cron_settings import CronSettings
from resilience.settings.load import load
from resilience.system.ports import System

PATIENCE_S = 60.0
SECRET = "9c1f2a44-aaaa-4bbb-8ccc-0123456789ab"


class Requests(list[tuple[str, str, str]]):
    """(word, rid, body) of each request."""


@contextmanager
def a_server(status: int = 200) -> Iterator[tuple[str, Requests]]:
    heard = Requests()

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            parts = urlsplit(self.path)
            body = self.rfile.read(int(self.headers.get("Content-Length", 0))).decode()
            assert parts.path.startswith(f"/{SECRET}")
            heard.append((parts.path.removeprefix(f"/{SECRET}"), parse_qs(parts.query)["rid"][0], body))
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


def a_cron(tmp_path: Path, **settings: str) -> CronProject:
    lines = "\n".join(f'{key} = "{value}"' for key, value in settings.items())
    (tmp_path / "resil.toml").write_text(f'[run]\nstate_dir = "{tmp_path}/state"\n[cron]\n{lines}\n')
    system = System(cwd=tmp_path)
    return open_cron(Project(system, load(system)))


def until(condition: Callable[[], object]) -> None:
    end = time.monotonic() + PATIENCE_S
    while not condition():
        assert time.monotonic() < end, "it did not happen in time"
        time.sleep(0.02)


def test_a_tick_that_went_well_tells_its_start_and_its_end_with_one_run_id(tmp_path: Path) -> None:
    with a_server() as (url, heard):
        cron = a_cron(tmp_path, ping_url=url)
        ping = Ping(cron)
        until(lambda: heard)
        ping.ended("3 runs, all well", is_well=True)
        ping.wait(PATIENCE_S)
        assert [word for word, _, _ in heard] == ["/start", ""]
        assert heard[0][1] == heard[1][1] and len(heard[0][1]) == 36
        assert heard[1][2] == "3 runs, all well"
    state = ping_state(cron)
    assert state is not None and not state.error and state.well > 0


def test_a_tick_that_failed_says_so(tmp_path: Path) -> None:
    with a_server() as (url, heard):
        ping = Ping(a_cron(tmp_path, ping_url=url))
        ping.ended("the table cannot be read", is_well=False)
        ping.wait(PATIENCE_S)
        assert heard[-1][0] == "/fail" and heard[-1][2] == "the table cannot be read"


def test_a_tick_that_dies_without_a_word_is_a_failure(tmp_path: Path) -> None:
    with a_server() as (url, heard):
        ping = Ping(a_cron(tmp_path, ping_url=url))
        ping.forget()  # as the kernel closes what the dead had open
        until(lambda: len(heard) == 2)
        assert heard[1][0] == "/fail"


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
        ping = Ping(cron)
        ping.ended("well", is_well=True)
        assert ping_state(cron) is None, "nobody has waited for an answer"
        until(lambda: ping_state(cron) is not None)
        ping.wait(PATIENCE_S)
    state = ping_state(cron)
    assert state is not None and state.error and SECRET not in state.error


@pytest.mark.parametrize("url", [f"https://no-such-host.invalid/{SECRET}", f"http://127.0.0.1:1/{SECRET}"])
def test_a_server_that_is_not_there_is_only_noted_and_its_address_stays_secret(tmp_path: Path, url: str) -> None:
    cron = a_cron(tmp_path, ping_url=url)
    ping = Ping(cron)
    ping.ended("well", is_well=True)
    ping.wait(PATIENCE_S)
    state = ping_state(cron)
    assert state is not None and state.error and SECRET not in state.error and not state.well


def test_a_failed_ping_is_recorded_with_the_last_success(tmp_path: Path) -> None:
    with a_server(404) as (url, _):
        cron = a_cron(tmp_path, ping_url=url)
        cron.state.path.mkdir(parents=True)
        (cron.state.path / "ping").write_text('{"time": 7, "error": "", "well": 7}')
        ping = Ping(cron)
        ping.ended("well", is_well=True)
        ping.wait(PATIENCE_S)
    state = ping_state(cron)
    assert state is not None and "404" in state.error and state.well == 7


def test_the_address_may_lie_in_a_file_that_only_its_owner_reads(tmp_path: Path) -> None:
    file = tmp_path / "ping-url"
    with a_server() as (url, heard):
        file.write_text(f"{url}\n")
        file.chmod(0o644)
        cron = a_cron(tmp_path, ping_url_file=str(file))
        for mode, words in ((0o644, 0), (0o600, 2)):
            file.chmod(mode)
            ping = Ping(cron)
            ping.ended("well", is_well=True)
            ping.wait(PATIENCE_S)
            assert len(heard) == words
            state = ping_state(cron)
            assert state is not None and ("0600" in state.error) is (mode == 0o644)


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
    assert ping_url("https://hc-ping.com/abc", "start", "r") == "https://hc-ping.com/abc/start?rid=r"
    assert ping_url("https://hc-ping.com/abc/?create=1", "", "r") == "https://hc-ping.com/abc?create=1&rid=r"
    assert ping_url("https://example.org", "fail", "r") == "https://example.org/fail?rid=r"


def test_without_an_address_no_child_is_started(tmp_path: Path) -> None:
    ping = Ping(a_cron(tmp_path))
    ping.ended("well", is_well=True)
    ping.wait(0)
    ping.forget()
    assert ping_state(a_cron(tmp_path)) is None


def test_a_damaged_note_is_as_if_it_were_not_there(tmp_path: Path) -> None:
    cron = a_cron(tmp_path)
    cron.state.path.mkdir(parents=True)
    (cron.state.path / "ping").write_text("[]")
    assert ping_state(cron) is None
    (cron.state.path / "ping").write_text('{"time": 1}')
    assert ping_state(cron) == PingState(time=1.0)
