"""The console is one line for each alert, whatever stands in it."""

from __future__ import annotations

import os
import stat
import threading
from pathlib import Path

import pytest

from resilience.alerts.alert import Alert
from resilience.alerts.channels.console import CHANNEL, ConsoleSettings
from resilience.errors import DeliveryError, SettingsError
from resilience.system.world import World
from tests.alerts.channels.alerts import HOSTILE, an_alert, hostile, resolved


def send(settings: ConsoleSettings, world: World, alert: Alert | None = None) -> str:
    CHANNEL.check(settings)
    return CHANNEL.send(CHANNEL.compose(alert or an_alert(), settings, {}), settings, world)["answer"]


def test_a_line_goes_to_standard_error(world: World, capsys: pytest.CaptureFixture[str]) -> None:
    send(ConsoleSettings(), world)
    said = capsys.readouterr()
    assert said.out == "" and said.err.count("\n") == 1
    assert "[resil] CRITICAL: /scratch: 98% used" in said.err
    assert "cd '/home/ada/my gpt' && resil alert ack 3f9a1c" in said.err


def test_lines_are_appended_to_a_private_file(world: World, tmp_path: Path) -> None:
    path = tmp_path / "alerts.log"
    send(ConsoleSettings(path=str(path)), world)
    send(ConsoleSettings(path=str(path)), world, resolved())
    first, second = path.read_text().splitlines()
    assert "CRITICAL" in first and "RESOLVED" in second and "ack" not in second
    assert stat.S_IMODE(path.stat().st_mode) == 0o600


def test_a_path_may_begin_at_home(world: World) -> None:
    send(ConsoleSettings(path="~/alerts.log"), world)
    assert (world.host.home / "alerts.log").is_file()


@pytest.mark.parametrize("text", HOSTILE.values(), ids=HOSTILE.keys())
def test_hostile_texts_stay_on_their_line(text: str) -> None:
    line = CHANNEL.compose(hostile(text), ConsoleSettings(), {})
    assert line.isprintable() and len(line) < 2000
    line.encode()


def test_a_terminal_shows_it(world: World) -> None:
    leader, follower = os.openpty()
    try:
        send(ConsoleSettings(path=os.ttyname(follower)), world)
        assert b"CRITICAL" in os.read(leader, 4096)
    finally:
        os.close(leader)
        os.close(follower)


def test_a_pipe_that_nobody_reads_does_not_hang(world: World, tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(DeliveryError) as caught:
        send(ConsoleSettings(path=str(tmp_path / "pipe")), world)
    assert caught.value.transient


def test_many_writers_do_not_mix_their_lines(world: World, tmp_path: Path) -> None:
    path = tmp_path / "alerts.log"
    threads = [threading.Thread(target=send, args=(ConsoleSettings(path=str(path)), world)) for _ in range(20)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(set(path.read_text().splitlines())) == 1 and len(path.read_text().splitlines()) == 20


@pytest.mark.parametrize(("place", "transient"), [("missing/alerts.log", False), (".", False)])
def test_a_file_that_cannot_be_written_is_told(world: World, tmp_path: Path, place: str, transient: bool) -> None:
    with pytest.raises(DeliveryError) as caught:
        send(ConsoleSettings(path=str(tmp_path / place)), world)
    assert caught.value.transient is transient and "cannot write" in caught.value.message


def test_a_full_disk_is_transient(world: World) -> None:
    if not Path("/dev/full").exists():
        pytest.skip("no /dev/full here")
    with pytest.raises(DeliveryError) as caught:
        send(ConsoleSettings(path="/dev/full"), world)
    assert caught.value.transient and "No space left" in caught.value.message


def test_a_link_is_not_followed(world: World, tmp_path: Path) -> None:
    (tmp_path / "target").write_text("mine")
    (tmp_path / "link").symlink_to(tmp_path / "target")
    with pytest.raises(DeliveryError):
        send(ConsoleSettings(path=str(tmp_path / "link")), world)
    assert (tmp_path / "target").read_text() == "mine"


def test_a_path_that_depends_on_the_folder_is_refused() -> None:
    with pytest.raises(SettingsError, match="whole path"):
        CHANNEL.check(ConsoleSettings(path="alerts.log"))
