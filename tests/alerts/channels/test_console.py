"""The console is one line for each alert, whatever stands in it."""

from __future__ import annotations

import os
import stat
import threading
from pathlib import Path

import pytest

from resilience.alerts.channel_health import NodeState, failure_alert
from resilience.alerts.channels.console import CHANNEL, ConsoleSettings
from resilience.system.ports import System
from tests.alerts.channels.alerts import HOSTILE, hostile, resolved
from tests.alerts.channels.sender import Sender

SENDER = Sender(CHANNEL)
send, refused = SENDER.send, SENDER.refused


def test_a_line_goes_to_standard_error(system: System, capsys: pytest.CaptureFixture[str]) -> None:
    send(ConsoleSettings(), system)
    said = capsys.readouterr()
    assert said.out == "" and said.err.count("\n") == 1
    assert "[resil] CRITICAL: /scratch: 98% used" in said.err
    assert "cd '/home/ada/my gpt' && resil alert ack 3f9a1c" in said.err


def test_an_alert_about_a_channel_is_no_incident_to_acknowledge() -> None:
    alert = failure_alert(
        "email", NodeState(error="refused"), incident_id="0228ce32", now=9.0, waiting=1, host="l", project="/p"
    )
    assert "ack" not in CHANNEL.compose(alert, ConsoleSettings(), {})


def test_lines_are_appended_to_a_private_file(system: System, tmp_path: Path) -> None:
    path = tmp_path / "alerts.log"
    send(ConsoleSettings(path=str(path)), system)
    send(ConsoleSettings(path=str(path)), system, resolved())
    first, second = path.read_text().splitlines()
    assert "CRITICAL" in first and "RESOLVED" in second and "ack" not in second
    assert stat.S_IMODE(path.stat().st_mode) == 0o600


def test_a_path_may_begin_at_home(system: System) -> None:
    send(ConsoleSettings(path="~/alerts.log"), system)
    assert (system.host.home / "alerts.log").is_file()


@pytest.mark.parametrize("text", HOSTILE.values(), ids=HOSTILE.keys())
def test_hostile_texts_stay_on_their_line(text: str) -> None:
    line = CHANNEL.compose(hostile(text), ConsoleSettings(), {})
    assert line.isprintable() and len(line) < 2000
    line.encode()


def test_a_terminal_shows_it(system: System) -> None:
    leader, follower = os.openpty()
    try:
        send(ConsoleSettings(path=os.ttyname(follower)), system)
        assert b"CRITICAL" in os.read(leader, 4096)
    finally:
        os.close(leader)
        os.close(follower)


def test_a_pipe_without_a_reader_does_not_hang(system: System, tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    assert refused(ConsoleSettings(path=str(tmp_path / "pipe")), system).transient


def test_many_writers_do_not_mix_their_lines(system: System, tmp_path: Path) -> None:
    path = tmp_path / "alerts.log"
    threads = [threading.Thread(target=send, args=(ConsoleSettings(path=str(path)), system)) for _ in range(20)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(set(path.read_text().splitlines())) == 1 and len(path.read_text().splitlines()) == 20


@pytest.mark.parametrize("place", ["missing/alerts.log", "."])
def test_a_file_that_cannot_be_written_is_an_error_that_lasts(system: System, tmp_path: Path, place: str) -> None:
    error = refused(ConsoleSettings(path=str(tmp_path / place)), system)
    assert not error.transient and "cannot write" in error.message


def test_a_full_disk_is_transient(system: System) -> None:
    if not Path("/dev/full").exists():
        pytest.skip("no /dev/full here")
    error = refused(ConsoleSettings(path="/dev/full"), system)
    assert error.transient and "No space left" in error.message


def test_a_link_is_not_followed(system: System, tmp_path: Path) -> None:
    (tmp_path / "target").write_text("mine")
    (tmp_path / "link").symlink_to(tmp_path / "target")
    refused(ConsoleSettings(path=str(tmp_path / "link")), system)
    assert (tmp_path / "target").read_text() == "mine"


def test_a_path_that_depends_on_the_directory_is_refused() -> None:
    assert "absolute path" in SENDER.objection(ConsoleSettings(path="alerts.log"))
