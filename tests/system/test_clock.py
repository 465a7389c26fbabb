"""Times are written with their offset and read back exactly."""

from __future__ import annotations

import time
from collections.abc import Iterator
from datetime import datetime

import pytest
from hypothesis import given
from hypothesis import strategies as st

from resilience.system.clock import SystemClock, iso_time


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


def test_a_negative_sleep_returns_at_once() -> None:
    SystemClock().sleep(-5)
