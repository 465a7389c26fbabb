"""The system is one frozen value, and an odd machine does not keep us from looking at it."""

from __future__ import annotations

import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from dataclasses import FrozenInstanceError
from datetime import datetime
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from resilience.errors import UsageError
from resilience.system.ports import System, SystemClock, iso_time
from tests.system.people import needs_root

REPOSITORY = Path(__file__).parents[2]
NAMELESS_UID = 54321


def test_the_world_is_a_snapshot_that_later_changes_do_not_reach(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RESIL_TEST", "before")
    system = System()
    monkeypatch.setenv("RESIL_TEST", "after")
    assert system.environ["RESIL_TEST"] == "before"
    with pytest.raises(FrozenInstanceError):
        system.cwd = Path("/")  # type: ignore[misc]


def test_the_worlds_runner_and_clock_are_the_real_ones() -> None:
    system = System()
    assert system.runner.run(["pwd"], timeout_s=20).stdout.strip() == str(system.cwd)
    assert system.clock.now() > 1_700_000_000


@needs_root
def test_an_account_without_a_name_or_a_home_is_named_by_its_number(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("LOGNAME", "USER", "LNAME", "USERNAME", "HOME"):
        monkeypatch.delenv(name, raising=False)
    script = (
        "import os\nfrom resilience.system.ports import Host\n"
        f"os.setuid({NAMELESS_UID})\nhost = Host.current()\nprint(host.user, host.uid, host.home)\n"
    )
    done = subprocess.run([sys.executable, "-c", script], cwd=REPOSITORY, capture_output=True, text=True, check=True)
    assert done.stdout == f"{NAMELESS_UID} {NAMELESS_UID} /\n"


def test_a_directory_that_was_removed_under_us_is_told_plainly(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    directory = tmp_path / "gone"
    directory.mkdir()
    monkeypatch.chdir(directory)
    directory.rmdir()
    with pytest.raises(UsageError, match="current directory"):
        System()
    assert System(cwd=Path("/")).cwd == Path("/")


@pytest.fixture(params=["UTC", "Europe/Berlin", "Asia/Kolkata", "America/St_Johns"])
def zone(request: pytest.FixtureRequest) -> Iterator[str]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("TZ", request.param)
        time.tzset()
        yield request.param
    time.tzset()


# 2026: the hours around both changes of the clocks in Berlin and in St. John's, and ordinary moments.
MOMENTS = [0, 1, 1774745999, 1774746000, 1792889999, 1792890000, 1792893600, 1772947800, 1793507400, 2**31]


@pytest.mark.parametrize("moment", MOMENTS)
def test_a_written_time_reads_back_in_every_zone(zone: str, moment: int) -> None:
    text = iso_time(moment)
    assert datetime.fromisoformat(text).timestamp() == moment
    assert datetime.fromisoformat(text).utcoffset() is not None


@given(st.integers(0, 2**32))
def test_any_second_reads_back(moment: int) -> None:
    assert datetime.fromisoformat(iso_time(moment)).timestamp() == moment


def test_the_system_clock_goes_with_the_machines() -> None:
    clock = SystemClock()
    assert abs(clock.now() - time.time()) < 5
    first = clock.monotonic()
    clock.sleep(0.01)
    assert clock.monotonic() - first >= 0.01


class Heard(Exception):
    pass


def test_a_signal_that_arrives_just_before_the_sleep_is_heard_during_it() -> None:
    """The signal goes to another thread, so that nothing interrupts the system call: as if it had come before."""

    def hear(number: int, frame: object) -> None:
        raise Heard

    before = signal.signal(signal.SIGUSR1, hear)
    other = threading.Timer(0.3, signal.raise_signal, [signal.SIGUSR1])
    other.start()
    mask = signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGUSR1])
    start = time.monotonic()
    try:
        with pytest.raises(Heard):
            SystemClock().sleep(60)
        assert time.monotonic() - start < 50
    finally:
        other.join()
        signal.pthread_sigmask(signal.SIG_SETMASK, mask)
        signal.signal(signal.SIGUSR1, before)


def test_a_negative_sleep_returns_at_once() -> None:
    SystemClock().sleep(-5)
