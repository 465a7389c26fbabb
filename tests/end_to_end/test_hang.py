"""Three guarded ranks, one of which is stopped: the watchdog finds the hang, and people get the evidence with it."""

from __future__ import annotations

import json
import sys

from tests.end_to_end.conftest import Shell
from tests.end_to_end.test_watch_loss import run_on, told

TRAINING = """\
import multiprocessing, os, signal, time
from resilience.guard import TrainingGuard

def all_reduce():
    barrier.wait()

def train(rank):
    os.environ |= {"RANK": str(rank), "LOCAL_RANK": str(rank), "WORLD_SIZE": "3", "LOCAL_WORLD_SIZE": "3"}
    with TrainingGuard.from_env() as guard:
        for step in range(1, 100_000):
            if step == 20 and rank == 1:
                open("stops", "w").close()
                os.kill(os.getpid(), signal.SIGSTOP)
            all_reduce()
            guard.step()
            time.sleep(0.01)

context = multiprocessing.get_context("fork")
barrier = context.Barrier(3)
ranks = [context.Process(target=train, args=(rank,)) for rank in range(3)]
for rank in ranks:
    rank.start()
for rank in ranks:
    rank.join()
"""
SETTINGS = f"""\
[run]
name = "gpt"
command = "{sys.executable} train.py"
[attempt]
beat_s = 1
[guard]
poll_s = 0.1
beat_s = "200ms"
[watch.log]
timeout_s = "2s"
[alert]
channels = ["pager"]
group_s = 0
[channel.pager]
kind = "command"
argv = ["/bin/sh", "-c", "cat >> DIRECTORY/told"]
"""


def test_the_evidence_of_a_hang_is_collected_once_and_sent_with_its_alert(shell: Shell) -> None:
    shell.settings(SETTINGS.replace("DIRECTORY", str(shell.directory)))
    (shell.directory / "train.py").write_text(TRAINING)
    run_on(shell)
    hangs = shell.state_dir / "gpt" / "hangs"
    # A step before, on a busy machine even the first, may take longer than the timeout.
    shell.until((shell.directory / "stops").exists)
    shell.until(lambda: shell.resil("watch", "log").returncode == 2)
    (page,), (text,) = hangs.glob("0001-19.html"), hangs.glob("*.txt")
    assert "all_reduce" in page.read_text() and page.stat().st_mode & 0o077 == 0
    assert "rank 1 on " in text.read_text() and "its process is stopped (state T)" in text.read_text()
    (alert,) = told(shell)
    evidence = alert["notices"][0]["evidence"]
    assert evidence[0] == f"evidence: {page}"
    assert any("its process is stopped (state T)" in line for line in evidence)
    before = text.stat().st_mtime_ns
    again = shell.resil("watch", "log", "--json")
    assert text.stat().st_mtime_ns == before and len(told(shell)) == 1, "one hang, one page, one message"
    findings = json.loads(again.stdout)["reports"][0]["findings"]
    assert findings[0]["evidence"][0] == f"evidence: {page}"
