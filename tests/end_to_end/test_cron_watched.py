"""Nobody watches the watchman, except us: a dead chain is noticed by everybody, and a training starts it again."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from resilience.job import JobState
from resilience.system.files import read_lines
from tests.end_to_end.conftest import Shell

SETTINGS = """\
[run]
name = "gpt"
command = "sleep 600"
[attempt]
beat_s = 0.5
[alert]
channels = ["console"]
group_s = 0
[channel.console]
path = "{told}"
[cron]
tick_s = 1
jitter_s = 0
backend = "slurm"
revive = true
"""


@pytest.fixture
def desk(shell: Shell) -> Iterator[Shell]:
    """A project whose scheduler is a chain of jobs of the embedded scheduler."""
    for directory in (shell.directory, shell.directory.parent):
        directory.chmod(0o755)
    shell.settings(SETTINGS.format(told=shell.directory / "told"))
    yield shell
    shell.resil("cron", "stop")
    shell.resil("cron", "uninstall")


def heartbeat(shell: Shell) -> dict[str, Any]:
    path = shell.state_dir / ".cron" / "heartbeat"
    try:
        found: dict[str, Any] = json.loads(path.read_text())
    except FileNotFoundError:
        return {"time": 0.0, "job_id": ""}
    return found


def chain(shell: Shell) -> list[Path]:
    """The jobs of the scheduler that wait, run or are ending."""
    spool = Path(shell.environment["RESIL_LOCAL_SPOOL"]) / "jobs"
    return [
        job for job in spool.glob("*")
        if "resil:.cron:" in (job / "comment").read_text() and JobState.parse((job / "state").read_text()).is_alive
    ]  # fmt: skip


def kill_the_chain(shell: Shell) -> None:
    """As an administrator who cancels all of somebody's jobs would; and let an hour pass."""

    def is_gone() -> bool:
        living = chain(shell)
        for job in living:  # the one that runs may still submit a successor
            (job / "cancel").touch()
        return not living

    shell.until(is_gone)
    cron = shell.state_dir / ".cron"
    (cron / "stop").unlink(missing_ok=True)  # all cancelled together: meant as a stop, where one job is left to say so
    record = heartbeat(shell) | {"time": time.time() - 3600, "expected": time.time() - 3540}
    (cron / "heartbeat").write_text(json.dumps(record))
    installed = json.loads((cron / "driver.json").read_text())
    (cron / "driver.json").write_text(json.dumps(installed | {"time": time.time() - 7200}, indent=1))


def test_a_dead_chain_is_noticed_by_everybody_and_a_training_starts_it_again(desk: Shell) -> None:
    installed = desk.resil("cron", "install")
    assert installed.returncode == 0, installed.stderr
    desk.until(lambda: heartbeat(desk)["time"] > 0)
    kill_the_chain(desk)

    assert "resil cron status" in desk.resil("status").stdout
    watched = desk.resil("watch", "cron")
    assert watched.returncode == 2 and "nothing runs" in watched.stdout
    submitted = desk.resil("submit")
    assert submitted.returncode == 0 and "the cron scheduler is dead" in submitted.stderr

    journal = desk.state_dir / "gpt" / "journal"
    desk.until(
        lambda: any(
            line.get("event") == "cron_revived" for path in journal.glob("*.batch.jsonl") for line in read_lines(path)
        )
    )
    desk.until(lambda: time.time() - heartbeat(desk)["time"] < 60)
    assert "dead" not in desk.resil("status").stdout
    assert desk.resil("watch", "cron").returncode == 0
