"""One rank of a real training: gloo all-reduces, a guard, and the mischief that a plan asks for.

A process that is asked for many trainings, one after the other, because torch takes a second to import: one plan a
line on stdin (JSON), one result a line on stdout. See `Plan` in `campaign.py` for what a plan says.
"""

from __future__ import annotations

import contextlib
import faulthandler
import json
import os
import random
import signal
import sys
import time
from datetime import timedelta
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

from resilience.guard import Collective, Decision, TrainingGuard
from resilience.guard.agreement.server import Server
from tests.guard.guards import QUIET, Requester, job_environ

PATIENCE_S = 30.0
CRASH_PATIENCE_S = 4.0
"""For the ranks whose neighbour dies: not all of them see its connection end."""


class Training:
    """One training of this rank, as a plan wants it."""

    def __init__(self, plan: dict[str, Any]) -> None:
        self.plan = plan
        self.rank, self.world = int(plan["rank"]), int(plan["world"])
        self.generation = int(plan["generation"])
        self.chance = random.Random(f"{plan['seed']}/{self.rank}")
        self.run = Path(plan["run_dir"])
        self.memory = Requester()
        self.memory.name = "memory"
        self.said: list[str] = []
        self.history: list[tuple[int, int]] = []
        self.saves: list[tuple[int, int, str]] = []
        self.decisions: list[dict[str, Any]] = []
        self.announced: list[tuple[int, int]] = []
        self.acted: set[int] = set()

    def result(self) -> dict[str, Any]:
        """Train, and tell what happened."""
        time.sleep(self.plan["late_s"][self.rank])
        code = 0
        if not self.plan["dies"]:
            self.form()
        with self.make_guard() as guard:
            if self.plan["dies"]:  # the ranks that live may wait for the new rank 0 in the guard, before they form anew
                self.form()
            if self.generation:  # this process replaces one that died
                guard.resumed(self.plan["resume"])
            if self.plan["asks_early"] and guard.should_stop_early():
                self.decisions.append({"early": True})
            else:
                self.train(guard)
            if guard.decided is None:
                guard.finished()
            code = guard.exit_code
        dist.destroy_process_group()
        return {
            "rank": self.rank,
            "history": self.history,
            "saves": self.saves,
            "decisions": self.decisions,
            "announced": self.announced,
            "exit_code": code,
            "said": self.said,
            "heard": self.memory.outcomes,
            "run_dir": str(self.run),
        }

    def form(self) -> None:
        """Meet the other ranks, as torch does it; after a crash, once all have noticed it."""
        if self.generation:
            (self.run / f"noticed.{self.rank}").touch()
            deadline = time.monotonic() + PATIENCE_S
            while len(list(self.run.glob("noticed.*"))) < self.world and time.monotonic() < deadline:
                time.sleep(0.005)
        dist.init_process_group(
            "gloo",
            init_method=f"file://{self.plan['store']}.{self.generation}",
            rank=self.rank,
            world_size=self.world,
            timeout=timedelta(seconds=CRASH_PATIENCE_S if self.plan["dies"] and not self.generation else PATIENCE_S),
        )

    def make_guard(self) -> TrainingGuard:
        """The guard that a job of a template makes on one node."""
        ranks = {"RANK": self.rank, "WORLD_SIZE": self.world, "LOCAL_RANK": self.rank, "LOCAL_WORLD_SIZE": self.world}
        environ = job_environ(self.run, **{name: str(value) for name, value in ranks.items()})
        environ["RESIL_JOB_ID"] = self.plan["job_id"]
        every = self.plan["collective_every"]
        return TrainingGuard.from_env(
            environ,
            triggers=[self.memory],
            agreement=Collective(every=every) if every else None,
            say=self.said.append,
            **{**QUIET, "signals": ("USR1",), "mirror": "thread", "force_exit": "off", **self.plan["settings"]},
        )

    def train(self, guard: TrainingGuard) -> None:
        """Steps until the guard says stop, through one crash of another rank if the plan has one."""
        while guard.count < self.plan["steps"]:
            try:
                if self.step(guard).stop:
                    return
            except RuntimeError:
                if not self.plan["dies"] or self.generation:
                    raise
                with contextlib.suppress(RuntimeError):
                    dist.destroy_process_group()
                self.generation = 1
                self.form()
                guard.resumed(self.plan["resume"])

    def step(self, guard: TrainingGuard) -> Decision:
        """One step: what the plan wants to happen, some work, what all ranks do together, and the guard."""
        step = guard.count + 1
        self.act(step)
        low, high = self.plan["step_ms"]
        time.sleep(self.chance.uniform(low, high) / 1000)
        if not self.plan["is_free"]:
            together = torch.tensor([float(step)])
            dist.all_reduce(together)
            if together.item() != self.world * step:
                raise SystemExit(f"rank {self.rank} does step {step}, others do not: {together.item()}")
        self.history.append((self.generation, step))
        decision = guard.step()
        if decision:
            self.decisions.append(decision.as_dict())
        if decision.save:
            with guard.saving():
                self.save(decision.label, step)
        every = self.plan["evaluates_every"]
        if every and step % every == 0 and not decision.stop:
            self.evaluate(guard, step)
        return decision

    def save(self, label: str, step: int) -> None:
        """A save is a collective: it hangs, and then fails, unless all ranks are in it."""
        if not self.plan["is_free"]:
            here = torch.tensor([1.0])
            dist.all_reduce(here)
            if here.item() != self.world:
                raise SystemExit(f"rank {self.rank} saves with {here.item()} ranks")
        self.saves.append((self.generation, step, label))

    def evaluate(self, guard: TrainingGuard, step: int) -> None:
        """Polls, on some ranks more often than on others if the plan says so."""
        polls = self.plan["polls"][self.rank]
        for poll in range(1, polls + 1):
            time.sleep(self.plan["poll_ms"] / 1000)
            if guard.poll().stop:
                self.announced.append((step, poll))
                return

    def act(self, step: int) -> None:
        """Throw a switch, signal oneself, run out of memory, die: at most once each."""
        for number, event in enumerate(self.plan["events"]):
            is_due = event["step"] == step and event["generation"] == self.generation
            if event["rank"] != self.rank or not is_due or number in self.acted:
                continue
            self.acted.add(number)
            kind = event["kind"]
            if kind in ("kill", "save"):
                (self.run / "switches" / kind).write_text(f'who = "ada"\nwhy = "{event["why"]}"\n')
            elif kind == "signal":
                os.kill(os.getpid(), signal.SIGUSR1)
            elif kind == "memory":
                self.memory.request = event["why"]
            elif kind == "die":
                os.kill(os.getpid(), signal.SIGKILL)
            elif kind == "die_at_commit":
                die_at_commit()


def die_at_commit() -> None:
    """On rank 0: all have promised, the verdict is known, and nobody hears it."""
    send = Server.send

    def mute(server: Server, rank: int, message: dict[str, Any]) -> None:
        if message["say"] == "commit":
            os.kill(os.getpid(), signal.SIGKILL)
        send(server, rank, message)

    setattr(Server, "send", mute)  # noqa: B010  # mypy sees a method here


def main() -> None:
    """Serve plans until stdin ends."""
    torch.set_num_threads(1)
    faulthandler.register(signal.SIGUSR2, all_threads=True)  # where it hangs, for whoever reads the log
    signal.signal(signal.SIGUSR1, lambda *_: None)  # one that comes when the guard is closed already
    print("ready", flush=True)
    for line in sys.stdin:
        plan = json.loads(line)
        if plan["raises"]:  # a program as people write it: what the guard raises ends it
            Training(plan).result()
            continue
        try:
            result = Training(plan).result()
        except BaseException as error:
            result = {"error": f"{type(error).__name__}: {error}"}
            print(json.dumps(result), flush=True)
            raise
        print(json.dumps(result), flush=True)


if __name__ == "__main__":
    main()
