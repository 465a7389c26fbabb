"""Two real schedulers under random faults, with RESIL_SOAK=1: each slot is in the history once, and none ran twice.

Without SLURM, a slot a second: killed schedulers and supervisors, suspended schedulers, a disk without room for content
or for names, a read-only one. RESIL_SOAK_SEED (1) draws others.
"""

from __future__ import annotations

import os
import random
import shutil
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest

from resilience.base.processes import descendants
from resilience.cron.records import Outcome
from tests.cron.context import CronContext, wait_until
from tests.lab.disks import fill, make_read_only, small_disk

ROOT, KEY, SECONDS = Path(__file__).parents[2], "crontab+beat", 90
LINE = "@every 1s echo $RESIL_CRON_SLOT >> ran; exec sleep 0.{} # resil: name=beat catch_up=all<=1000 timeout=10s\n"
pytestmark = [
    pytest.mark.soak,
    pytest.mark.skipif(os.environ.get("RESIL_SOAK") != "1", reason="takes minutes: set RESIL_SOAK=1"),
    pytest.mark.timeout(600),
]

_SCHEDULER = """
import ctypes, signal, sys
from pathlib import Path
from resilience.cron.run import run
from resilience.system.ports import SystemClock
from tests.cron.context import CronContext
context, stop = CronContext(Path(sys.argv[1]), settings="tick_s = 1", clock=SystemClock()), []
signal.signal(signal.SIGTERM, lambda *_: stop.append(1))
run(context.cron, driver="foreground", stop=lambda: bool(stop), say=lambda line: print(line, flush=True))
"""


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[Path]:
    with small_disk(tmp_path / "state", "2m,nr_inodes=600") as disk:
        yield disk


@pytest.mark.parametrize("tenths", ["0", "7"])
def test_no_slot_is_lost_without_a_word_and_none_runs_twice(tmp_path: Path, disk: Path, tenths: str) -> None:
    context, dice = CronContext(tmp_path), random.Random(int(os.environ.get("RESIL_SOAK_SEED", "1")))
    context.crontab(LINE.format(tenths))
    schedulers: list[subprocess.Popen[bytes]] = []
    faults: Counter[str] = Counter()

    def start() -> None:
        while len(schedulers) < 2:
            argv = [sys.executable, "-c", _SCHEDULER, str(tmp_path)]
            with (tmp_path / "log").open("a") as log:
                schedulers.append(subprocess.Popen(argv, cwd=ROOT, stdout=log, stderr=log))

    def end(number: signal.Signals) -> None:
        one = schedulers.pop(dice.randrange(len(schedulers)))
        one.send_signal(number)
        one.wait(timeout=60)

    def kill_all() -> None:
        for pid in descendants(os.getpid()):
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        while schedulers:
            schedulers.pop().wait()

    def suspend() -> None:
        schedulers[0].send_signal(signal.SIGSTOP)
        time.sleep(dice.uniform(0.5, 6))
        schedulers[0].send_signal(signal.SIGCONT)

    def no_blocks() -> None:
        ballast = fill(disk)
        time.sleep(dice.uniform(1, 6))
        ballast.unlink()

    def no_names() -> None:
        (disk / "many").mkdir(exist_ok=True)
        with suppress(OSError):
            for number in range(1000):
                (disk / "many" / str(number)).touch()
        time.sleep(dice.uniform(1, 6))
        shutil.rmtree(disk / "many")

    def read_only() -> None:
        with suppress(subprocess.CalledProcessError):  # somebody writes just now
            make_read_only(disk, True)
            time.sleep(dice.uniform(1, 6))
            make_read_only(disk, False)

    def kill() -> None:
        end(signal.SIGKILL)

    def terminate() -> None:
        end(signal.SIGTERM)

    over = time.monotonic() + SECONDS
    while time.monotonic() < over:
        start()
        time.sleep(dice.uniform(0.5, 4))
        fault = dice.choice([kill, terminate, kill_all, suspend, no_blocks, no_names, read_only])
        faults[fault.__name__] += 1
        with suppress(FileNotFoundError):
            fault()
    start()
    until = time.time()
    wait_until(lambda: any(run.slot > until for run in context.history(KEY)))
    while schedulers:
        end(signal.SIGTERM)
    wait_until(lambda: not context.cron.state.book.active())
    runs = context.history(KEY)
    ran = Counter(context.ran())
    outcomes = Counter(str(run.outcome) for run in runs)
    late = sorted(run.started - run.slot for run in runs if run.started)
    half, most = late[len(late) // 2], late[-1]
    print(f"\n{len(ran)} slots ran, {dict(faults)}: {dict(outcomes)}; late: median {half:.2f} s, at most {most:.1f} s")
    assert [run.slot for run in runs] == list(range(runs[0].slot, runs[-1].slot + 1)) and len(ran) > SECONDS // 2
    assert set(ran.values()) == {1}
    assert {run.slot for run in runs if run.outcome is Outcome.DONE} <= set(ran)
    assert set(ran).isdisjoint(run.slot for run in runs if run.outcome in (Outcome.SKIPPED, Outcome.MISSED))
