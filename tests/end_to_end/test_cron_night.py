"""A shipped watchdog as a job of its own: dropped into a directory, submitted once for its slot, its alert sent."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

from resilience.demo.receivers import receivers
from tests.end_to_end.conftest import PATIENCE_S, Shell

SETTINGS = """\
[run]
name = "gpt"
command = "true"
[scheduler]
name = "local"
[cron]
jitter_s = 0
[watch.fs]
paths = ["."]
command = ["cat", "{quota}"]
used_regex = "used (\\\\d+)"
limit_regex = "of (\\\\d+)"
[alert]
channels = ["email"]
group_s = 0
[channel.email]
to = ["you@example.org"]
host = "127.0.0.1"
port = {port}
"""
NAME = "cron.hourly/watch-fs.slurm"
KEY = "cron.hourly+watch-fs.slurm"
DAY_S = 86400


def make_due(state: Path, key: str) -> None:
    """As if the entry had been known since yesterday, and nobody had been there since."""
    seen = json.loads((state / "seen").read_text())
    seen[key][0] -= DAY_S
    (state / "seen").write_text(json.dumps(seen))


def test_a_watchdog_in_the_queue_tells_of_a_full_disk_and_three_ticks_at_once_submit_it_once(shell: Shell) -> None:
    quota = shell.directory / "quota.txt"
    quota.write_text("used 99 of 100\n")
    state = shell.state_dir / ".cron"
    with receivers() as inbox:
        assert shell.resil("init").returncode == 0
        shell.settings(SETTINGS.format(quota=quota, port=inbox.smtp_port))
        (shell.directory / "cron" / "cron.hourly" / "watch-fs.slurm").symlink_to("../slurm/watch-fs.slurm")
        assert shell.resil("cron", "tick").returncode == 0
        make_due(state, KEY)
        tick = [sys.executable, "-m", "resilience", "cron", "tick"]
        at_once = [subprocess.Popen(tick, cwd=shell.directory, env=shell.environment) for _ in range(3)]
        assert [process.wait(PATIENCE_S) for process in at_once] == [0, 0, 0]
        shell.until(lambda: bool(inbox.subjects))

    (subject,) = inbox.subjects
    assert "CRITICAL" in subject and "99" in subject
    runs = json.loads(shell.resil("cron", "history", NAME, "--json").stdout)["runs"]
    missed, ran = (run["outcome"] for run in runs)
    # The last tick may see the end of the job.
    assert missed == "missed" and ran in ("submitted", "done"), "a day is made up for once, and told"
    assert len(list((state / "output" / KEY).iterdir())) == 1, "one job, so one output"
    assert "FS CRITICAL" in shell.resil("cron", "logs", NAME).stdout
