"""Trainings of several real processes, drawn by lot: what a seed means, and the pool of ranks that runs it."""

from __future__ import annotations

import json
import os
import queue
import random
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, field
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest

from tests.guard.guards import make_run
from tests.lab.leftovers import shared

ROOT = Path(__file__).parents[3]
START_S = 240.0
DEADLINE_S = 40.0
STOPS = ("kill", "signal", "memory")
KINDS = ("plain",) * 3 + ("pause",) * 3 + ("late",) * 2 + ("evaluation",) * 2 + ("collective", "death")


@dataclass
class Event:
    """What happens on a rank before a step. Kinds: kill, save (the switches), signal, memory, die, die_at_commit."""

    kind: str
    rank: int
    step: int
    generation: int = 0
    why: str = ""


@dataclass
class Plan:
    """One training.

    Attributes:
        late_s: per rank, how long it waits before anything.
        pauses: (rank, seconds after the begin, for how many seconds) of a SIGSTOP.
        resume: the step from which all go on after a rank died.
        steps: the end, if nobody stops it.
        polls: per rank, how often it polls in each evaluation.
        is_free: ranks do nothing together but the guard.
        raises: what the guard raises ends the process.
    """

    seed: str
    world: int
    events: list[Event] = field(default_factory=list)
    late_s: list[float] = field(default_factory=list)
    pauses: list[tuple[int, float, float]] = field(default_factory=list)
    step_ms: tuple[float, float] = (0.0, 2.0)
    steps: int = 800
    resume: int = 0
    asks_early: bool = False
    evaluates_every: int = 0
    polls: list[int] = field(default_factory=list)
    poll_ms: float = 1.0
    is_free: bool = False
    raises: bool = False
    collective_every: int = 0
    settings: dict[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.late_s = self.late_s or [0.0] * self.world
        self.polls = self.polls or [0] * self.world

    @property
    def dies(self) -> list[Event]:
        """The death that the plan has, if any."""
        return [event for event in self.events if event.kind == "die"]

    def for_rank(self, rank: int, generation: int, run: Path) -> dict[str, Any]:
        """What the process of this rank is told."""
        job_id = "".join(character for character in self.seed if character.isalnum())
        place = {"rank": rank, "generation": generation, "run_dir": str(run), "store": str(run / "store")}
        return {**asdict(self), **place, "dies": bool(self.dies), "job_id": job_id or "1"}


def need_torch() -> None:
    """Skip the test where there is no torch: the ranks are real ones."""
    if find_spec("torch") is None:
        pytest.skip("torch is not installed: real ranks need its gloo")


def draw(seed: int) -> Plan:
    """The training of this seed: any number of ranks, troubles, and at least one reason to stop."""
    chance = random.Random(seed)
    kind = chance.choice(KINDS)
    world = chance.choice((2, 2, 2, 4, 8) if kind == "death" else (2, 2, 4, 4, 8))
    plan = Plan(str(seed), world, settings={"round_s": 3.0})
    plan.step_ms = chance.choice(((0.0, 0.5), (0.0, 2.0), (1.0, 4.0)))
    last = chance.randint(5, 60)

    def anyone() -> int:
        return chance.randrange(world)

    if kind == "pause":
        for _ in range(chance.randint(1, 2)):
            plan.pauses.append((anyone(), chance.uniform(0.05, 0.5), chance.uniform(0.1, 0.7)))
    elif kind == "late":
        plan.late_s[anyone()] = chance.uniform(0.1, 0.6)
    elif kind == "evaluation":
        plan.evaluates_every = chance.randint(2, 7)
        plan.polls = [chance.randint(0, 12) for _ in range(world)]
        plan.poll_ms = chance.choice((0.1, 1.0))
    elif kind == "collective":
        plan.collective_every = chance.choice((1, 3, 10))
    elif kind == "death":
        dead, died = anyone(), chance.randint(3, 40)
        plan.events.append(Event("die", dead, died))
        plan.resume = chance.randint(max(0, died - 20), died - 1)
        if chance.random() < 0.5:
            plan.events.append(Event("save", anyone(), max(1, died - chance.randint(0, 3)), why="before the death"))
        if chance.random() < 0.6:  # nobody completes this step, so it is obeyed after the ranks have formed anew
            other = chance.choice([rank for rank in range(world) if rank != dead])
            plan.events.append(Event(chance.choice(STOPS), other, died, why="at the death"))
        last = plan.resume + chance.randint(1, 40)
    generation = 1 if kind == "death" else 0
    plan.asks_early = chance.random() < 0.3 and kind != "death"
    for number in range(chance.choice((0, 0, 1, 2))):
        step = chance.randint(plan.resume + 1 if generation else 1, max(plan.resume + 1, last))
        plan.events.append(Event("save", anyone(), step, generation, f"save {number}"))
    for number in range(chance.choice((1, 1, 2, 3))):  # several at once, or nearly
        step = last + chance.choice((0, 0, 1, 3)) * (number > 0)
        plan.events.append(Event(chance.choice(STOPS), anyone(), step, generation, f"stop {number}"))
    return plan


class Rank:
    """A process that runs one rank after the other."""

    def __init__(self, log: Path) -> None:
        environ = {**os.environ, "GLOO_SOCKET_IFNAME": "lo", "OMP_NUM_THREADS": "1", "PYTHONPATH": str(ROOT)}
        self._log = log.open("ab")
        self.process = subprocess.Popen(
            [sys.executable, "-W", "ignore", "-m", "tests.guard.agreement.gloo_rank"],
            cwd=ROOT,
            env=environ,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._log,
        )
        self.lines: queue.Queue[bytes] = queue.Queue()
        self._is_ready = False
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def wait_until_ready(self) -> None:
        """On a busy machine it takes long to import torch: that is no hang of a training."""
        if not self._is_ready:
            assert self.lines.get(timeout=START_S) == b"ready\n", self.process.poll()
            self._is_ready = True

    def tell(self, plan: dict[str, Any]) -> None:
        """Begin a training."""
        assert self.process.stdin is not None
        self.process.stdin.write(json.dumps(plan).encode() + b"\n")
        self.process.stdin.flush()

    def hear(self, deadline: float) -> dict[str, Any] | None:
        """The result of the training, or None if the process has ended. Raise TimeoutError."""
        while True:
            try:
                line = self.lines.get(timeout=max(0.0, deadline - time.monotonic()))
            except queue.Empty:
                raise TimeoutError from None
            if not line:
                self.process.wait(10)
                return None
            if line.startswith(b"{"):
                result: dict[str, Any] = json.loads(line)
                return result

    def end(self) -> None:
        """End the process, whatever it does."""
        if self.process.poll() is None:
            self.process.kill()
        self.process.wait()
        for pipe in (self.process.stdin, self.process.stdout):
            if pipe is not None:
                with suppress(OSError):
                    pipe.close()
        self._reader.join(10)
        self._log.close()

    def _read(self) -> None:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            self.lines.put(line)
        self.lines.put(b"")


class Pool:
    """Processes that have torch imported, used again and again."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._log = directory / "ranks.log"
        self._idle: list[Rank] = []
        self._number = 0
        self._wanted = 0

    def __enter__(self) -> Pool:
        return self

    def __exit__(self, *_: object) -> None:
        while self._idle:
            self._take().end()

    def prepare(self, count: int) -> None:
        """Start processes, so that there are so many now, and after each training."""
        self._wanted = max(self._wanted, count)
        while len(self._idle) < self._wanted:
            self._keep(Rank(self._log))

    def _keep(self, rank: Rank) -> None:
        self._idle.append(rank)
        shared.add(rank.process.pid)

    def _take(self) -> Rank:
        rank = self._idle.pop(0)
        shared.discard(rank.process.pid)
        return rank

    def run(self, plan: Plan, before: Sequence[str] = ()) -> list[dict[str, Any]]:
        """Run a training; return what each rank tells, or {"code": the exit status} of one that ended without a word.

        `before` names switches that are thrown before it starts. Raise TimeoutError, with what is known, on a hang.
        """
        self._number += 1
        run = make_run(self._directory / f"run{self._number}")
        for switch in before:
            (run / "switches" / switch).touch()
        self.prepare(plan.world + len(plan.dies))
        ranks = [self._take() for _ in range(plan.world)]
        spares = [self._take() for _ in plan.dies]
        pauses: list[threading.Thread] = []
        results: list[dict[str, Any]] = [{} for _ in ranks]
        try:
            for rank in (*ranks, *spares):
                rank.wait_until_ready()
            for number, rank in enumerate(ranks):
                rank.tell(plan.for_rank(number, 0, run))
            for who, *when in plan.pauses:
                pauses.append(threading.Thread(target=_pause, args=(ranks[who], *when)))
                pauses[-1].start()
            deadline = time.monotonic() + DEADLINE_S
            for event in plan.dies:
                dead, ranks[event.rank] = ranks[event.rank], spares.pop()
                spares.append(dead)
                if dead.hear(deadline) is not None:
                    raise AssertionError("the run ended before the death")
                ranks[event.rank].tell(plan.for_rank(event.rank, 1, run))
            for number, rank in enumerate(ranks):
                results[number] = rank.hear(deadline) or {"code": rank.process.returncode}
        except TimeoutError:
            for rank in ranks:
                if rank.process.poll() is None:
                    rank.process.send_signal(signal.SIGUSR2)
            time.sleep(1)
            raise TimeoutError(f"seed {plan.seed}: no end in {DEADLINE_S:g} s; {self._last_words(results)}") from None
        finally:
            for thread in pauses:
                thread.join()
            good = all("history" in result for result in results)
            for rank in (*ranks, *spares):
                if good and rank.process.poll() is None:
                    self._keep(rank)
                else:
                    rank.end()
            self.prepare(self._wanted)  # they import torch while others train
        return results

    def train(self, plan: Plan) -> list[dict[str, Any]]:
        """Run a training and `check` it; return what each rank reports."""
        results = self.run(plan)
        check(plan, results)
        return results

    def log(self) -> str:
        """What all ranks have written to stderr."""
        return self._log.read_text(errors="replace")

    def _last_words(self, results: list[dict[str, Any]]) -> str:
        silent = [number for number, result in enumerate(results) if not result]
        return f"ranks {silent} did not tell; stderr ended with: {self.log()[-20000:]}"


def _pause(rank: Rank, after_s: float, for_s: float) -> None:
    time.sleep(after_s)
    if rank.process.poll() is None:
        rank.process.send_signal(signal.SIGSTOP)
        time.sleep(for_s)
        rank.process.send_signal(signal.SIGCONT)


def assert_nothing_was_trained(results: list[dict[str, Any]]) -> None:
    """Each rank was told before its first step not to start, and is to be requeued."""
    for result in results:
        assert (result["decisions"], result["history"], result["exit_code"]) == ([{"early": True}], [], 75)


def check(plan: Plan, results: list[dict[str, Any]]) -> None:
    """All ranks did the same, at the same step; nothing was lost, done twice, or saved by some only."""
    assert all("history" in result for result in results), results
    newborn = {event.rank for event in plan.dies}
    first = next(result for number, result in enumerate(results) if number not in newborn)
    generation = 1 if plan.dies else 0

    def of(result: dict[str, Any], name: str) -> list[Any]:
        return [entry for entry in result[name] if entry[0] == generation]

    for result in results:
        assert of(result, "history") == of(first, "history"), "not the same steps everywhere"
        assert of(result, "saves") == of(first, "saves"), "saved by some only"
        last = result["decisions"][-1] if result["decisions"] else None
        assert last == first["decisions"][-1], "not the same last decision"
        assert last is not None and last["stop"] and last["save"], f"not stopped: {last}"
        assert result["exit_code"] == 75
        if not plan.dies:
            assert result["decisions"] == first["decisions"], "not the same decisions everywhere"
    steps = [step for _, step in of(first, "history")]
    begin = plan.resume if plan.dies else 0
    assert steps == list(range(begin + 1, begin + 1 + len(steps))), "a step lost, or done twice"
    stop = first["decisions"][-1]
    assert stop["step"] == steps[-1], "steps were done after the decision to stop"
    assert of(first, "saves")[-1][1] == steps[-1], "the last step was not saved"
    at_death = any(event.kind in STOPS and event.generation < generation for event in plan.events)
    asked = [event.step for event in plan.events if event.kind in STOPS and event.generation == generation]
    assert at_death or steps[-1] >= min(asked), "stopped before anybody asked"
