"""From the tick that finds a hang to its evidence page: real ranks; one is stopped, sleeps or holds the GIL."""

from __future__ import annotations

import subprocess
import sys
import time
from pathlib import Path

from benchmarks.measure import BenchmarkError, Claim, Options, Report, interpreter_environment
from benchmarks.start_up import installed_command

TRAINING = """\
import collections, itertools, multiprocessing, os, signal, sys, time
from resilience.guard import TrainingGuard

def hang():
    if sys.argv[1] == "stop":
        os.kill(os.getpid(), signal.SIGSTOP)
    elif sys.argv[1] == "gil":
        collections.deque(itertools.count(), maxlen=0)
    time.sleep(1000)

def all_reduce():
    barrier.wait()

def train(rank):
    os.environ |= {"RANK": str(rank), "LOCAL_RANK": str(rank), "WORLD_SIZE": "3", "LOCAL_WORLD_SIZE": "3"}
    with TrainingGuard.from_env() as guard:
        for step in range(1, 100_000):
            if step == 20 and rank == 1:
                hang()
            all_reduce()
            guard.step()
            if rank == 0:
                os.utime("train.py")
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
command = "{sys.executable} train.py KIND"
[scheduler]
name = "local"
[guard]
poll_s = 0.2
beat_s = 1
[watch.log]
timeout_s = "3s"
"""
KINDS = ("stop", "sleep", "gil")
NAMED = "rank 1 on "
TICK_S, PATIENCE_S = 1.0, 60.0
CRITICAL = 2
MOST_S = 15.0


def run(options: Options) -> Report:
    """Let a training hang, tick each second until the page is there, and end it; again and again."""
    found = [_hang(options.scratch / str(number), KINDS[number % len(KINDS)]) for number in range(options.samples)]
    to_page = sorted(page_s for page_s, _, _ in found)
    from_step = sorted(step_s for _, step_s, _ in found)
    none = float("nan")
    return Report(
        "evidence of a hang",
        claims=(
            Claim("from the tick that finds the hang to its page, median", to_page[len(to_page) // 2], none, "s"),
            Claim("from the tick that finds the hang to its page, p95", to_page[len(to_page) * 95 // 100], MOST_S, "s"),
            Claim("from the last step to the page, median", from_step[len(from_step) // 2], none, "s"),
            Claim("from the last step to the page, p95", from_step[len(from_step) * 95 // 100], none, "s"),
            Claim("pages that name another rank, or none", float(sum(not right for *_, right in found)), 0.0, "pages"),
        ),
        notes=(
            f"{len(found)} hangs of three guarded ranks, in turn {', '.join(KINDS)}; timeout_s = 3 s, heartbeats of "
            "1 s (with the default of 10 s the ranks answer up to 9 s later)",
            "each tick is a process of its own, as cron starts it",
        ),
    )


def _hang(directory: Path, kind: str) -> tuple[float, float, bool]:
    """Return the seconds from the tick and from the last step to the page, and whether it names the right rank."""
    directory.mkdir()
    (directory / "resil.toml").write_text(SETTINGS.replace("KIND", kind))
    (directory / "train.py").write_text(TRAINING)
    home = str(directory / "home")
    env = interpreter_environment(
        HOME=home, XDG_STATE_HOME=home, RESIL_LOCAL_SPOOL=str(directory / "spool"), RESIL_LOCAL_IDLE_S="1",
        RESIL_LOCAL_KILL_WAIT_S="1",
    )  # fmt: skip
    _resil(directory, env, "submit")
    try:
        until = time.monotonic() + PATIENCE_S
        while time.monotonic() < until:
            began = time.time()
            if _resil(directory, env, "watch", "log", codes=(0, 1, 2, 3)) == CRITICAL:
                break
            time.sleep(max(0.0, began + TICK_S - time.time()))
        pages = list((directory / ".resil" / "gpt" / "hangs").glob("*.html"))
        if not pages:
            raise BenchmarkError(f"no page of a hang ({kind}) within {PATIENCE_S:g} s")
        written = pages[0].stat().st_mtime
        last_step = (directory / "train.py").stat().st_mtime
        return written - began, written - last_step, NAMED in pages[0].with_suffix(".txt").read_text().splitlines()[2]
    finally:
        _resil(directory, env, "cancel", "gpt", codes=(0, 1))


def _resil(directory: Path, env: dict[str, str], *words: str, codes: tuple[int, ...] = (0,)) -> int:
    done = subprocess.run([*installed_command(), *words], cwd=directory, env=env, capture_output=True, text=True)
    if done.returncode not in codes:
        raise BenchmarkError(f"resil {' '.join(words)}: {done.stderr.strip()[-300:]}")
    return done.returncode
