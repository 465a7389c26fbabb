"""Act two of the demo: each fault of the night is told once, by mail and by Slack, and so is its end."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from pathlib import Path

import pytest

from resilience.base.mounts import current_mounts
from resilience.demo.night import DemoFailed, play_night, shorten, small_disk
from resilience.system.ports import System, SystemClock
from resilience.system.process import Completed, ProcessRunner
from tests.lab.fakes import make_system


class NoMount(ProcessRunner):
    """As for somebody who is not root."""

    def run(
        self,
        argv: Sequence[str],
        *,
        timeout_s: float,
        env: Mapping[str, str] | None = None,
        cwd: str | None = None,
        stdin: str = "",
    ) -> Completed:
        if argv[0] == "mount":
            return Completed(tuple(argv), 32, "", "mount: only root can do that")
        return super().run(argv, timeout_s=timeout_s, env=env, cwd=cwd, stdin=stdin)


def a_world(directory: Path, runner: ProcessRunner) -> System:
    return make_system(directory, dict(os.environ), clock=SystemClock(), runner=runner)


def test_a_disk_a_training_and_a_queue_are_told_once_acknowledged_and_resolved(tmp_path: Path) -> None:
    told: list[str] = []
    faults = play_night(a_world(tmp_path, NoMount()), tmp_path / "night", say=told.append)
    assert [fault.fault for fault in faults] == ["full disk", "hung training", "dead queue"]
    for fault in faults:
        assert fault.was_notified_once, "\n".join(told)
        assert fault.acknowledged_by
        assert ["CRITICAL" in fault.mails[0], "RESOLVED" in fault.mails[1]] == [True, True], fault
    assert any("as the quota command of this site says" in sentence for sentence in told)


@pytest.mark.skipif(os.geteuid() != 0, reason="only root may mount a tmpfs; the quota command is tested above")
def test_root_fills_a_real_disk_and_leaves_none_mounted(tmp_path: Path) -> None:
    system = a_world(tmp_path, ProcessRunner())
    with small_disk(system, tmp_path) as disk:
        if disk.quota is not None:
            pytest.skip("this machine lets not even root mount a tmpfs")
        disk.fill()
        left = os.statvfs(disk.path)
        assert left.f_bavail * left.f_frsize < 2**17
        disk.free()
    assert not [mount for mount in current_mounts() if mount.point == str(disk.path)]


def test_what_must_go_well_and_does_not_ends_the_night_with_the_reason(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Broken(NoMount):
        def run(self, argv: Sequence[str], **options: object) -> Completed:
            if argv[0] == "mount":
                return Completed(tuple(argv), 32, "", "")
            return Completed(tuple(argv), 2, '{"incidents": []}', "resil: error: broken")

    monkeypatch.setattr("resilience.demo.night.PATIENCE_S", 0.1)
    with pytest.raises(DemoFailed, match="resil watch fs"):
        play_night(a_world(tmp_path, Broken()), tmp_path / "night", say=lambda _: None)


def test_a_long_line_keeps_its_end_where_the_incidents_id_stands() -> None:
    line = shorten("x" * 300 + " (3f9a1c04)")
    assert len(line) <= 111 and line.endswith("(3f9a1c04)")
    assert shorten("short (3f9a1c04)") == "short (3f9a1c04)"
