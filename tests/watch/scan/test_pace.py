"""How many look at the same time is decided by how long a look takes."""

from __future__ import annotations

import pytest

from resilience.watch.scan.worker import Pace, decide


@pytest.mark.parametrize(
    ("look_us", "cores", "processes", "threads"),
    [
        (1.6, 2, 4, 1),  # ext4, from memory
        (8, 1, 2, 1),  # ext4, from the disk
        (8, 64, 4, 1),  # a login node belongs to others as well
        (200, 2, 1, 16),  # a server answers
        (5000, 64, 1, 16),
    ],
)
def test_local_disks_get_processes_and_servers_get_threads(
    look_us: float, cores: int, processes: int, threads: int
) -> None:
    pace = decide(look_us * 1e-6, cores)
    assert (pace.processes, pace.threads) == (processes, threads)
    assert f"{look_us:.0f} us" in pace.reason


def test_the_reason_is_a_sentence() -> None:
    assert decide(2e-6, 1) == Pace(2, 1, "2 us for each look: 2 processes")
