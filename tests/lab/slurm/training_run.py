"""A run on the test cluster whose training has the guard, real checkpoints and the faults that a test writes for it."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

from resilience.demo.receivers import Inbox
from tests.lab.slurm.cluster_run import ClusterRun

# Its state depends on each step, in order; rank 0 writes. `fault.py` is the test's: is_last(step, resumed), and
# meet(step, resumed), which fails, or returns a loss.
TRAINING = """\
import hashlib, os, pickle, sys, time
from pathlib import Path
from resilience.guard import TrainingGuard

checkpoints = Path("checkpoints")
is_first = os.environ.get("RANK", "0") == "0"


def newest():
    return sorted(checkpoints.glob("*.pickle"))


def load(path):
    try:
        return pickle.loads(path.read_bytes())
    except Exception:
        if len(newest()) > 1:
            path.rename(path.with_suffix(".broken"))  # the next attempt has an older one
        raise


def save(step, state):
    if not is_first:
        return
    part = checkpoints / "part"
    with open(part, "wb") as file:
        pickle.dump((step, state, bytes(2**16)), file)
    part.rename(checkpoints / f"{step:06d}.pickle")
    for path in newest()[:-2]:
        path.unlink()


def main():
    from fault import is_last, meet

    step, state = 0, b""
    with TrainingGuard.from_env() as guard:
        if guard.should_stop_early():
            sys.exit(guard.exit_code)
        if is_first and (after := guard.resumed_after) is not None:
            Path("told").open("a").write(f"{after.step} {after.times}\\n")
        if newest():
            step, state, _ = load(newest()[-1])
            guard.resumed(step)
        resumed, is_over = step, False
        while not is_over:
            time.sleep(0.02)
            step += 1
            state = hashlib.sha256(state + step.to_bytes(8, "big")).digest()
            loss = meet(step, resumed)
            decision = guard.step(loss=1.0 if loss is None else loss)
            is_over = is_last(step, resumed)
            if decision.save or step % 10 == 0 or is_over:
                with guard.saving():
                    save(step, state)
            if is_first:
                with open("steps", "a") as file:
                    file.write(f"{step} {time.time()} {os.environ['RESIL_ATTEMPT']}\\n")
            if is_over:
                guard.finished()
                if is_first:
                    Path("final").write_text(f"{step} {state.hex()}")
            is_over = is_over or decision.stop
    sys.exit(guard.exit_code)


if __name__ == "__main__":
    main()
"""
SETTINGS = """\
[run]
name = "{name}"
command = "python train.py"
[act]
enabled = true
keep_queued = {keep_queued}
[alert]
channels = ["slack"]
group_s = 0
[channel.slack]
webhook_file = "{webhook}"
[watch]
checks = ["job", "log"]
[watch.job]
churn_count = 0  # one attempt after the other is the point
end_notice_s = 0
[attempt]
beat_s = 1
[guard]
poll_s = 0.3
beat_s = 1
walltime_ask_s = 1
walltime_margin_s = 4
first_save_s = 2
[submit]
array = "{array}"
signal_lead_s = 2
[sbatch]
time = "10"
mem = "400M"
requeue = true
"""
LAST_AT_60 = "def is_last(step, resumed):\n    return step >= 60\n"


@dataclass
class TrainingRun(ClusterRun):
    """One such run.

    Attributes:
        inbox: what its watchdogs tell.
        episodes: the incidents so far, by their ids: the ledger of alerts keeps the last one of each fault.
    """

    inbox: Inbox = field(default_factory=Inbox)
    episodes: dict[str, dict[str, Any]] = field(default_factory=dict)

    def begin(self, faults: str, *, array: str = "10", keep_queued: int = 0, settings: str = SETTINGS) -> None:
        """Write its files, and submit it."""
        webhook = self.project / "webhook"
        text = settings.format(name=self.name, array=array, keep_queued=keep_queued, webhook=webhook)
        self.write("resil.toml", text)
        self.write("webhook", self.inbox.slack_url)
        self.cluster.run(["chmod", "600", str(webhook)], check=True)
        self.write("train.py", TRAINING)
        self.write("fault.py", faults)
        self.cluster.run(["mkdir", "-p", "checkpoints"], self.user, self.project, check=True)
        self.submit()

    def attempts(self) -> list[dict[str, Any]]:
        """The attempts as `resil attempts` tells them."""
        found: list[dict[str, Any]] = json.loads(self.ask("attempts", "--json"))["attempts"]
        return found

    def incidents(self) -> list[dict[str, Any]]:
        """All incidents so far, as they are now or were when they were seen last."""
        for path in (self.project / ".resil" / ".alerts" / "incidents").glob("*.json"):
            one = json.loads(path.read_text())
            for earlier in self.episodes.values():
                if earlier["fingerprint"] == one["fingerprint"]:
                    earlier["resolved"] = earlier["resolved"] or one["opened"]
            self.episodes[one["episode"]] = one
        return list(self.episodes.values())

    def running(self) -> tuple[str, str]:
        """Id and node of the job that runs. (The raw id of an array's last task is that of the array.)"""
        rows = [row.split() for row in self.cluster.squeue("%i %T %N", "-n", self.name)]
        return next((row[0], row[2]) for row in rows if row[1] == "RUNNING")

    @property
    def queued(self) -> set[str]:
        """State and reason of the jobs that have not ended."""
        rows = self.cluster.squeue("%T %r", "-n", self.name)
        return {row for row in rows if row.split()[0] in ("PENDING", "RUNNING", "COMPLETING")}

    @property
    def is_finished(self) -> bool:
        return (self.directory / "finished").exists()

    @property
    def is_open(self) -> bool:
        """Whether its breaker is open."""
        return (self.directory / "attempts" / "breaker").exists()

    @property
    def final(self) -> str:
        """The last step and the state of the finished training."""
        return (self.project / "final").read_text()

    @contextmanager
    def watched(self, count: int = 2, every_s: float = 3.0) -> Iterator[list[str]]:
        """Look every few seconds, as from several login nodes at once; yield what the watchdogs say."""
        over = threading.Event()
        said: list[str] = []

        def look() -> None:
            while not over.wait(every_s):
                said.append(self.resil("watch", "--all").stderr)
                self.incidents()

        threads = [threading.Thread(target=look) for _ in range(count)]
        for thread in threads:
            thread.start()
        try:
            yield said
        finally:
            over.set()
            for thread in threads:
                thread.join()
