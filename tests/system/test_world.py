"""The world is one frozen value, and an odd machine does not keep us from looking at it."""

from __future__ import annotations

import subprocess
import sys
from dataclasses import FrozenInstanceError
from pathlib import Path

import pytest

from resilience.errors import UsageError
from resilience.system.world import World
from tests.system.people import needs_root

REPOSITORY = Path(__file__).parents[2]
NAMELESS_UID = 54321


def test_the_world_is_a_snapshot_that_later_changes_do_not_reach(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RESIL_TEST", "before")
    world = World()
    monkeypatch.setenv("RESIL_TEST", "after")
    assert world.environ["RESIL_TEST"] == "before"
    with pytest.raises(FrozenInstanceError):
        world.cwd = Path("/")  # type: ignore[misc]


def test_the_worlds_runner_and_clock_are_the_real_ones() -> None:
    world = World()
    assert world.runner.run(["pwd"], timeout_s=20).stdout.strip() == str(world.cwd)
    assert world.clock.now() > 1_700_000_000


@needs_root
def test_an_account_without_a_name_or_a_home_is_named_by_its_number(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("LOGNAME", "USER", "LNAME", "USERNAME", "HOME"):
        monkeypatch.delenv(name, raising=False)
    script = (
        "import os\nfrom resilience.system.world import Host\n"
        f"os.setuid({NAMELESS_UID})\nhost = Host.current()\nprint(host.user, host.uid, host.home)\n"
    )
    done = subprocess.run([sys.executable, "-c", script], cwd=REPOSITORY, capture_output=True, text=True, check=True)
    assert done.stdout == f"{NAMELESS_UID} {NAMELESS_UID} /\n"


def test_a_folder_that_was_removed_under_us_is_told_plainly(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = tmp_path / "gone"
    folder.mkdir()
    monkeypatch.chdir(folder)
    folder.rmdir()
    with pytest.raises(UsageError, match="current folder"):
        World()
    assert World(cwd=Path("/")).cwd == Path("/")
