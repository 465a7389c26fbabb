"""A GPU that only spins, and a network on which nothing happens, are told; a training's are not."""

from __future__ import annotations

from pathlib import Path

import pytest

from resilience.ranks import devices
from resilience.ranks.devices import Gpu, judge, look_at_devices, read_sent

TRAINS = [Gpu(index, 99, 640.0 - index, 700.0) for index in range(8)]


@pytest.mark.parametrize(
    ("gpus", "sent", "said"),
    [
        (TRAINS, 3e9, []),
        (TRAINS, None, []),
        ([], None, []),
        ([Gpu(0, 100, 119.6, 700.0)], None, ["GPU 0 100 % busy at 120 W of 700 W: inside a collective that is stuck"]),
        ([*TRAINS[:6], Gpu(6, 100, 120.0, 700.0), Gpu(7, 98, 118.0, 700.0)], 3e9,
         ["GPUs 6, 7 100 % busy at 120 W of 700 W: inside a collective that is stuck"]),
        ([Gpu(0, 0, 70.0, 700.0)], 2e9, ["its GPU idle"]),
        ([Gpu(0, 0, 70.0, 700.0), Gpu(1, 3, 71.0, 700.0)], 400.4,
         ["all 2 GPUs idle", "InfiniBand sends 400 bytes/s: next to nothing"]),
        ([Gpu(0, 60, 90.0, 300.0)], 3e9, []),  # a small model
    ],
)  # fmt: skip
def test_what_devices_do_in_words(gpus: list[Gpu], sent: float | None, said: list[str]) -> None:
    assert list(judge(gpus, sent)) == said


def test_the_bytes_of_all_ports_are_added(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert read_sent(tmp_path) is None
    for port, count in (("mlx5_0/ports/1", "1000\n"), ("mlx5_1/ports/1", "24\n"), ("mlx5_2/ports/1", "N/A\n")):
        folder = tmp_path / port / "counters"
        folder.mkdir(parents=True)
        (folder / "port_xmit_data").write_text(count)
    assert read_sent(tmp_path) == 4096
    monkeypatch.setattr(devices, "PORTS", tmp_path)
    monkeypatch.setattr(devices, "DEVICES_S", 0.01)
    monkeypatch.setattr(devices, "_DEVICE_FILES", ())
    assert look_at_devices() == ["InfiniBand sends 0 bytes/s: next to nothing"]
