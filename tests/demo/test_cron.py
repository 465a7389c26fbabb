"""Act three of the demo: the scheduler's node dies, another job goes on, and the full disk is told."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

import pytest

from resilience.demo import cron as demo_cron
from resilience.demo.cron import CronNight, play_cron
from resilience.demo.night import DemoFailed, Disk
from resilience.system.process import Completed
from tests.demo.test_night import NoMount, a_world


def test_the_scheduler_outlives_its_node_and_its_watchdog_tells(tmp_path: Path) -> None:
    told: list[str] = []
    night = play_cron(a_world(tmp_path, NoMount()), tmp_path / "cron", say=told.append)
    assert night.is_well, (night, told)
    assert int(night.successor) > int(night.killed) and "CRITICAL" in night.mail
    story = "\n".join(told)
    assert (
        story.index("resil cron install")
        < story.index("kill -9")
        < story.index("the disk fills")
        < story.index("mail:")
    )


def test_a_watchdog_that_tells_nobody_fails_the_demo(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The same act, with a disk that does not fill: it must not end well by itself."""
    monkeypatch.setattr(demo_cron, "PATIENCE_S", demo_cron.PATIENCE_S)
    monkeypatch.setattr(Disk, "fill", lambda disk: setattr(demo_cron, "PATIENCE_S", 3.0))
    told: list[str] = []
    with pytest.raises(DemoFailed, match="no notification of the full disk"):
        play_cron(a_world(tmp_path, NoMount()), tmp_path / "cron", say=told.append)


def test_an_install_that_fails_ends_the_act_with_the_reason(tmp_path: Path) -> None:
    class Refused(NoMount):
        def run(self, argv: Sequence[str], *, env: Mapping[str, str] | None = None, **options: object) -> Completed:
            if "install" in argv:
                return Completed(tuple(argv), 1, "", "resil: error: no backend")
            return super().run(argv, env=env, **options)  # type: ignore[arg-type]

    with pytest.raises(DemoFailed, match="no backend"):
        play_cron(a_world(tmp_path, Refused()), tmp_path / "cron", say=lambda _: None)


WELL = CronNight(killed="3", successor="4", mail="CRITICAL", told_s=1.0, slots=4, twice=0, left=0)


@pytest.mark.parametrize(
    "changed", [{"successor": "3"}, {"successor": ""}, {"mail": ""}, {"slots": 0}, {"twice": 1}, {"left": 2}]
)
def test_each_thing_that_must_be_is_asked_for(changed: dict[str, object]) -> None:
    assert WELL.is_well and not replace(WELL, **changed).is_well  # type: ignore[arg-type]
