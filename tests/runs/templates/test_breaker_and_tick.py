"""The breaker of the batch shell and that of the watchdog on one run: they agree in the end, and open it once.

The functions of a rendered script in one long bash, and `act` as the watchdog calls it, on the same run directory.
"""

from __future__ import annotations

import json
import os
import random
import re
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from resilience.attempts.acting import act
from resilience.attempts.breaker import State, decide
from resilience.attempts.ledger import read_ledger
from resilience.job import JobId
from resilience.runs.run_directory import RunDirectory
from resilience.runs.submissions import Intent, Outcome, record_intent, record_result
from resilience.settings.sections import ActSettings
from tests.lab.fakes import ME, FakeClock, make_project
from tests.runs.templates.batch import Batch
from tests.runs.templates.test_breaker import CAN_HOLD, Loop
from tests.runs.templates.ticker import SCONTROL, SQUEUE

SOAK = "RESIL_SOAK" in os.environ
HISTORIES = 300 if SOAK else 4
DRIVER = """
resil_kill_training() { :; }
while read -r verb RESIL_ATTEMPT end code; do
  RESIL_JOB_ID=$((100 + RESIL_ATTEMPT)) resil_journal_file=$RESIL_RUN_DIR/journal/$((100 + RESIL_ATTEMPT)).batch.jsonl
  (
    printf -v resil_number '%04d' "$RESIL_ATTEMPT"
    if [ "$verb" = start ]; then
      resil_check_breaker counted
      exit 0
    fi
    resil_launched=true resil_launched_at=$SECONDS
    resil_finish "$code" "$end" ''
  ) >&2
  echo $?
done
"""
LOGS = {
    "unknown": "",
    "preempted": "slurmstepd: error: *** JOB 7 ON n1 CANCELLED AT 2026-11-20T07:55:16 DUE TO PREEMPTION ***\n",
    "time limit": "slurmstepd: error: *** JOB 7 ON n1 CANCELLED AT 2026-11-20T07:55:16 DUE TO TIME LIMIT ***\n",
    "disk full": "OSError: [Errno 28] No space left on device\n",
    "exception": 'Traceback (most recent call last):\n  File "/home/ada/train.py", line 9, in main\nKeyError: 7\n',
    "network": "n7:4711:4800 [3] transport/net_ib.cc:1295 NCCL WARN NET/IB : Got completion from peer "
    "10.1.2.3<4> with status=12\n",
}

pytestmark = [pytest.mark.soak, pytest.mark.timeout(3600)] if SOAK else []


def start_driver(loop: Loop, environment: dict[str, str]) -> subprocess.Popen[str]:
    """Start a bash with the functions of a rendered script, which does what each line of its input says."""
    script = loop.batch.root / "driver"
    script.write_text(loop.functions() + DRIVER)
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("SLURM", "RESIL"))}
    return subprocess.Popen(
        ["bash", str(script)], cwd=loop.batch.root, text=True, bufsize=1, stdin=subprocess.PIPE,
        stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, env=kept | {"SLURM_JOB_ID": "1"} | environment,
    )  # fmt: skip


def ask(process: subprocess.Popen[str], *words: object) -> None:
    """Send a line to a process."""
    assert process.stdin is not None
    print(*words, file=process.stdin, flush=True)


def answer(process: subprocess.Popen[str]) -> str:
    """Return the next line of a process."""
    assert process.stdout is not None
    return process.stdout.readline()


class Story:
    """One run of which the shell and the watchdog decide in turn."""

    def __init__(self, root: Path, policy: ActSettings) -> None:
        self.loop = Loop(Batch.make(root))
        self.loop.act = self.policy = policy
        settings = "\n".join(f"{key} = {getattr(policy, key)}" for key in ("failures", "half_open", "neutral"))
        settings = f'[run]\nname = "demo"\n[act]\nenabled = true\n{settings}\n'
        self.project = make_project(root, settings=settings, clock=FakeClock(time.time()))
        self.directory = RunDirectory(self.loop.batch.run_dir)
        self.number, self.trains = 0, False
        spool = {"RESIL_SCHEDULER": "local", "RESIL_LOCAL_SPOOL": str(self.loop.batch.spool)}
        self.shell = start_driver(self.loop, spool | self.loop.batch.program("scontrol", CAN_HOLD))

    def ask(self, *words: object) -> int:
        """Let the shell do it; return its exit code."""
        ask(self.shell, *words)
        return int(answer(self.shell))

    def starts(self) -> bool:
        """Take the next number, and return whether the start check lets it train."""
        self.number += 1
        self.loop.batch.attempt(self.number, job=100 + self.number)
        self.trains = self.ask("start", self.number) == 0
        return self.trains

    def attempt(self, cause: str, end: str = "exited", save: int | None = None, ago_s: float = 900.0) -> None:
        """An attempt of 20 s to its end, so long ago: the one that has started, else the next one."""
        if not self.trains:
            self.number += 1
        self.trains = False
        path, job = self.loop.batch.attempt(self.number, job=100 + self.number), 100 + self.number
        start = self.project.system.clock.now() - ago_s - 20
        path.write_text(path.read_text().replace("start = 1\n", f"start = {start:.0f}\n"))
        (self.directory.path / "logs" / f"demo-{job}.out").write_text(LOGS[cause])
        if save is not None:
            line = json.dumps({"event": "save", "time": 1, "attempt": self.number, "step": save}, separators=(",", ":"))
            (self.directory.path / "journal" / f"{job}.0.jsonl").write_text(line + "\n")
        if end != "lost":
            self.ask("end", self.number, end, {"exited": 1, "stopped": 75}.get(end, 143))
            path = path.with_name(f"{path.name}.end")
            path.write_text(re.sub(r"(?m)^time = .*", f"time = {start + 20:.0f}", path.read_text()))

    def tick(self) -> str:
        return act(self.project, self.directory)

    @property
    def snapshot(self) -> str:
        """Return what the breaker says, without the number of the newest attempt."""
        return re.sub("attempt = .*", "", self.loop.file().read_text(), count=1) if self.loop.is_open else ""

    def close(self) -> None:
        self.shell.communicate()
        assert self.shell.returncode == 0


@pytest.fixture
def story(tmp_path: Path) -> Iterator[Story]:
    story = Story(tmp_path, ActSettings(enabled=True))
    yield story
    story.close()


def test_what_the_watchdog_has_closed_the_next_job_does_not_open_again(story: Story) -> None:
    for _ in range(3):
        story.attempt("preempted")  # and the training made an exit code 1 of the signal
    assert not story.starts()
    assert "is closed" in story.tick()
    assert story.starts() and not story.snapshot
    assert story.loop.batch.end(3)["end"] == "exited"
    for _ in range(2):
        story.attempt("unknown")
    assert story.starts() and story.tick() == ""
    story.attempt("unknown")
    assert not story.starts(), "the third failure of its own"


def test_failures_count_on_although_the_watchdog_has_closed_it_for_others(story: Story) -> None:
    for cause in ("unknown", "preempted", "unknown"):
        story.attempt(cause)
    assert "is closed: 2 attempts of 3" in story.tick()
    assert (story.loop.batch.end(3)["burnt"], story.loop.batch.end(3)["outside"]) == (2, 1)
    story.attempt("unknown")
    assert not story.starts()


def test_over_drawn_histories_shell_and_watchdog_come_to_one_view(tmp_path: Path) -> None:
    """After each history, in which either of them decided or was late:

    - after a tick and a start, further ticks and starting jobs in turn change nothing: a fixed point;
    - there an open breaker is one that `decide` does not close, and a job that starts may train if and only if there is
      none, or `decide` calls it half open. (Of a closed one `decide` may say "open": nothing is opened while the newest
      attempt is one that was stopped on purpose. If the next one fails, it is.)
    - whatever one of them lets train in between, since the last progress no more than `failures + half_open` attempts
      exit for a cause of their own, and no more than `failures + half_open + neutral` end in all. (The shell alone
      cannot tell an exit code of a preemption from a failure, nor what a lost attempt failed for.)
    """
    dice = random.Random(20261124)
    for index in range(HISTORIES):
        policy = ActSettings(
            enabled=True, failures=dice.randint(0, 4), half_open=dice.randint(0, 2), neutral=dice.choice((0, 2, 4))
        )
        root = tmp_path / str(index)
        root.mkdir()
        story, told = Story(root, policy), []
        causes, best, failed = dice.sample(sorted(LOGS), dice.choice((1, 2, 6))), 0, 0
        for _ in range(dice.randint(1, 9)):
            if dice.random() < 0.5:
                story.tick()
            if not story.starts():
                told.append("held")
                break
            save = dice.choice((None, None, None, best, best + 1))
            cause, end = (
                dice.choice(causes),
                dice.choice(("exited", "exited", "exited", "terminated", "lost", "stopped")),
            )
            is_own = end == "exited" and cause not in ("preempted", "time limit")
            failed = 0 if save is not None and (save > best or not best) else failed + is_own
            best = max(best, save or 0)
            story.attempt(cause, end, save, ago_s=dice.choice((900.0, -900.0)))
            told.append(f"{cause}, {end}, saved {save}")
        seen = set()
        for turn in range(4):
            story.tick()
            starts = story.starts()
            if starts:
                story.attempt("unknown", "stopped")
            if turn:
                seen.add((story.snapshot, starts))
        context = f"history {index}: {policy}, {told}"
        assert len(seen) == 1, (context, seen)
        decision = decide(read_ledger(story.directory), policy, story.project.system.clock.now())
        if story.loop.is_open:
            assert decision.state is not State.CLOSED, (context, decision)
        assert starts is (not story.loop.is_open or decision.state is State.HALF_OPEN), (context, decision)
        if policy.failures:
            assert failed <= policy.failures + policy.half_open, context
        if policy.failures and policy.neutral:
            assert decision.burnt + decision.outside <= policy.failures + policy.half_open + policy.neutral, context
        story.close()


# ---- all at once ---------------------------------------------------------------------------------------------------


class Crowd:
    """Batch shells and watchdogs, each a process, that decide about one run and its queue at once."""

    def __init__(self, root: Path, each: int) -> None:
        self.batch = Batch.make(root)
        self.loop = Loop(self.batch)
        self.queue = root / "queue"
        self.queue.mkdir()
        self.directory = RunDirectory(self.batch.run_dir)
        record_intent(self.directory, Intent("token", "fake", "train.sh", ("sbatch",), 1.0, by=ME))
        record_result(self.directory, "token", Outcome.SUBMITTED, 2.0, job_id=JobId(50))
        self.batch.program("squeue", SQUEUE)
        environment = {"RESIL_SCHEDULER": "", "QUEUE": str(self.queue), **self.batch.program("scontrol", SCONTROL)}
        self.shells = [start_driver(self.loop, environment) for _ in range(each)]
        self.ticks = [
            subprocess.Popen(
                [sys.executable, "-m", "tests.runs.templates.ticker", str(root), f"ticker{number}"],
                text=True, stdin=subprocess.PIPE, stdout=subprocess.PIPE,
            )
            for number in range(each)
        ]  # fmt: skip
        for tick in self.ticks:
            answer(tick)

    def begins_anew(self) -> None:
        """Two attempts have failed, the third trains; two jobs wait, and the user holds one."""
        for path in [*(self.batch.run_dir / "attempts").iterdir(), *(self.batch.run_dir / "journal").iterdir()]:
            path.unlink()
        for name in ("50", "51", "60", "60.held"):
            (self.queue / name).touch()
        self.loop.failed(2)
        self.begins(3)

    def begins(self, number: int) -> None:
        """An attempt begins."""
        path = self.batch.attempt(number, job=100 + number)
        path.write_text(path.read_text().replace("start = 1\n", f"start = {time.time():.0f}\n"))

    def all_at_once(self, *words: str) -> tuple[list[int], list[str]]:
        """Let each shell do one of these and each watchdog decide; return exit codes, and sentences."""
        for shell, line in zip(self.shells, words, strict=False):
            ask(shell, line)
        for tick in self.ticks:
            ask(tick, "tick")
        codes = [int(answer(shell)) for shell, _ in zip(self.shells, words, strict=False)]
        return codes, [text for tick in self.ticks for text in json.loads(answer(tick))]

    @property
    def held(self) -> list[str]:
        return sorted(path.stem for path in self.queue.glob("*.held"))

    def openers(self, said: list[str]) -> int:
        """Return how many processes say that they have opened it."""
        events = (self.batch.events(job) for job in range(101, 110))
        return sum("opens" in text for text in said) + [one for some in events for one in some].count("breaker_opened")

    def close(self) -> None:
        for process in (*self.shells, *self.ticks):
            process.communicate()
            assert process.returncode == 0


def test_shells_and_watchdogs_that_decide_at_once_open_it_once_and_release_no_job_of_the_user(tmp_path: Path) -> None:
    """Eight processes (four by default), in many rounds: the third failure of the run ends while watchdogs look at the
    run; then waiting jobs start while they do; then the one more makes progress while they do."""
    crowd = Crowd(tmp_path, 4 if SOAK else 2)
    for turn in range(300 if SOAK else 3):
        crowd.begins_anew()
        _, said = crowd.all_at_once("end 3 exited 1")
        assert (crowd.openers(said), crowd.held) == (1, ["50", "51", "60"]), (turn, said)
        starting = range(4, 4 + len(crowd.shells))
        for number in starting:
            crowd.begins(number)
        codes, more = crowd.all_at_once(*(f"start {number}" for number in starting))
        assert codes == [75] * len(codes), "no job trains"
        assert crowd.openers([*said, *more]) == 1, (turn, more)
        assert {*crowd.loop.file(".held").read_text().split()} == {"50", "51"}, "the only ones to be released"
        last = starting[-1] + 1
        crowd.begins(last)
        line = f'{{"event":"save","time":1,"attempt":{last},"step":9}}\n'
        (crowd.batch.run_dir / "journal" / f"{100 + last}.0.jsonl").write_text(line)
        _, said = crowd.all_at_once(f"end {last} exited 1")
        assert not crowd.loop.is_open and not crowd.loop.file(".held").exists(), (turn, said)
        assert crowd.held == ["60"], (turn, said)
    crowd.close()
