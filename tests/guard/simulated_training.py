"""A simulated training with a fake clock: steps, saves, leaks memory, and is killed at its limit."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field

from resilience.guard.decision import Request
from resilience.guard.rank_info import RankInfo
from resilience.guard.recorder import Recorder
from resilience.guard.settings import GuardSettings
from resilience.guard.step_timer import StepTimer
from resilience.guard.triggers.host_memory import HostMemory
from resilience.guard.watch import POLL_S, next_poll_s
from tests.guard.memory.memory_cgroups import MIB, Machine

STAT = "inactive_file {:020}\nactive_file 0\n"


@dataclass
class SimulatedTraining:
    """One that does a step in `step_s` and saves every `save_every_s`: for half of `save_s` it makes a copy of
    `save_mib`, for the other half it writes. The save is durable `held_s` later, and the copy is given back then.

    `use_mib` and `cache_mib` tell what else is in use, and what was read from files, at a second; `training_mib` what
    is in use besides after so many seconds of training, which stand still while it saves. The guard looks as its
    thread does: every second, whenever a save begins or has ended, and as soon as the trigger wants.
    """

    machine: Machine
    limit_mib: float
    use_mib: Callable[[float], float]
    step_s: float = 0.1
    save_s: float = 0.5
    save_mib: float = 0.0
    save_every_s: float = 20.0
    held_s: float = 0.0
    training_mib: Callable[[float], float] = lambda trained_s: 0.0
    cache_mib: Callable[[float], float] = lambda now: 0.0
    settings: GuardSettings = GuardSettings()  # noqa: RUF009 - it is frozen
    now: float = 0.0
    wanted: Request | None = None
    wanted_at: float = math.inf
    was_killed: bool = False
    looks: list[float] = field(default_factory=list)

    def __post_init__(self) -> None:
        limits = {"job_12": int(self.limit_mib * MIB)}
        self._job = self.machine.slurm(2, used=0, limits=limits, stat=STAT.format(0))
        (self.machine.root / "proc/meminfo").write_text("MemTotal: 4000000000 kB\nMemAvailable: 3000000000 kB\n")
        self.timer, self.said = StepTimer(), list[str]()
        place = RankInfo(host="n17", end_time=1e9)
        root, clock = str(self.machine.root), lambda: self.now
        self.trigger = HostMemory(
            place, self.settings, Recorder(place, self.said.append), self.timer, root=root, clock=clock,
            wall_clock=clock,
        )  # fmt: skip
        self._steps = 0
        self._pass_at = self._look_at = self.now
        self._waited_s, self._entered = 0.0, math.inf
        self._save_began: float | None = None
        self._durable_at = math.inf
        self._next_save = self.save_every_s

    def run(self, seconds: float) -> bool:
        """Train until the requested stop, a kill or a time limit; return whether the training saved and stopped."""
        while self.now < seconds and not self.was_killed:
            self._go_on(self.now + self.step_s)
            self._steps += 1
            is_last = self.wanted_at <= self.now
            wants_save = self.wanted.save if self.wanted is not None else self.now >= self._next_save
            if wants_save and (is_last or self.wanted is None):
                self._save()
            if is_last:
                self._wait_for_durable()
                return not self.was_killed
        return False

    def _save(self) -> None:
        entered = self._entered = self.now
        self.timer.save_began(entered)
        self._wait_for_durable()
        began = self._save_began = self._look_at = self._pass_at = self.now
        self._go_on(began + self.save_s)
        self._save_began = None
        self.timer.was_saving(self.now - entered)
        self._waited_s, self._entered = self._waited_s + self.now - entered, math.inf
        self._durable_at = self.now + self.held_s
        if self.held_s:
            self.timer.in_flight_since(began)
        else:
            self._settle()
        self._next_save = self.now + self.save_every_s

    def _wait_for_durable(self) -> None:
        if self._durable_at < math.inf:
            self._go_on(self._durable_at)
            self._settle()

    def _settle(self) -> None:
        self._durable_at = math.inf
        self.timer.in_flight_since(None)
        self.timer.saved(self.save_s + self.held_s)
        self.trigger.saved(self._steps)
        self._look_at = self._pass_at = self.now

    def _go_on(self, until: float) -> None:
        """Advance the clock; the guard polls meanwhile, and a save in flight may become durable."""
        while (event := min(self._durable_at, self._look_at if self.wanted is None else math.inf)) < until:
            self.now = max(self.now, event)
            if event == self._durable_at:
                self._check()
                self._settle()
            else:
                self._look()
        self.now = until
        self._check()

    def _used_mib(self) -> float:
        saving = float(self._durable_at < math.inf)
        if self._save_began is not None:
            saving = min(1.0, 2 * (self.now - self._save_began) / self.save_s)
        trained_s = min(self.now, self._entered) - self._waited_s
        return self.use_mib(self.now) + self.training_mib(trained_s) + saving * self.save_mib

    def _check(self) -> None:
        self.was_killed = self.was_killed or self._used_mib() > self.limit_mib

    def _look(self) -> None:
        if self.now >= self._pass_at:
            self.timer.sample(self.now, (self._steps, 0))
            self._pass_at = self.now + POLL_S
        used = self._used_mib()
        cache = min(self.cache_mib(self.now), max(0.0, self.limit_mib - used))  # the kernel reclaims cache first
        self._write("memory.current", f"{int((used + cache) * MIB):<30}\n")
        self._write("memory.stat", STAT.format(int(cache * MIB)))
        self._check()
        self.looks.append(self.now)
        self.wanted = self.trigger.poll()
        if self.wanted is not None:
            self.wanted_at = self.now
        self._look_at = min(self._pass_at, self.now + next_poll_s(self.trigger))

    def _write(self, name: str, text: str) -> None:
        with (self._job / name).open("r+") as file:  # overwrites: truncating takes 1 ms on ext4
            file.write(text)
