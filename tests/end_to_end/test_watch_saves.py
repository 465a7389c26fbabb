"""A guarded training whose disk is full: people hear once that its saves fail, and that they are durable again."""

from __future__ import annotations

from typing import Any

from tests.end_to_end.conftest import Shell
from tests.end_to_end.test_watch_loss import SETTINGS, run_on, told
from tests.lab.disks import fill, small_disk

TRAINING = """\
import sys, time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from resilience.guard import TrainingGuard

def write(step):
    new = Path("disk", "new")
    new.write_bytes(step.to_bytes(8192))
    new.replace("disk/checkpoint")

with ThreadPoolExecutor(1) as pool, TrainingGuard.from_env() as guard:
    for step in range(1, 100_000):
        if guard.step().stop:
            break
        if step == 20 or (step % 20 == 0 and Path("again").exists()):
            with guard.saving() as save:
                save.until(pool.submit(write, step))
        time.sleep(0.02)
sys.exit(guard.exit_code)
"""


def of_saves(alerts: list[dict[str, Any]]) -> list[str]:
    """The reasons of what was said about saves; on a busy machine a slow step may be an incident of its own."""
    notices = [notice for alert in alerts for notice in alert["notices"]]
    assert all(notice["fault"] != "failing" for notice in notices), "told a second time, as a line of the log"
    return [notice["reason"] for notice in notices if notice["fault"] == "save-failed"]


def test_people_hear_of_saves_that_fail_once_and_when_one_is_durable_again(shell: Shell) -> None:
    shell.settings(SETTINGS.replace("cat >> told", f"cat >> {shell.directory}/told"))
    (shell.directory / "train.py").write_text(TRAINING)
    with small_disk(shell.directory / "disk") as disk:
        run_on(shell)
        shell.until((disk / "checkpoint").exists)
        ballast = fill(disk)
        (shell.directory / "again").touch()
        said: list[str] = []

        def tells(start: str) -> bool:
            said.append(shell.resil("watch", "log").stdout)
            return said[-1].startswith(start)

        shell.until(lambda: tells("LOG CRITICAL - gpt: the save of step "))
        assert "failed: OSError(28, 'No space left on device'); the newest durable save is of step 20, " in said[-1]
        assert tells("LOG CRITICAL - gpt: the save of step ")
        assert of_saves(told(shell)) == ["FIRST"]

        ballast.unlink()
        shell.until(lambda: tells("LOG OK - gpt: step "))
        assert tells("LOG OK - gpt: step ")
        assert of_saves(told(shell)) == ["FIRST", "RESOLVED"]
        assert shell.resil("cancel", "gpt").returncode == 0
