"""A person's project on the test cluster whose scheduler is a chain of jobs, and what can be seen of it."""

from __future__ import annotations

import json
import subprocess
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path
from typing import NamedTuple

from resilience.cron.drivers._slurm.keeper import trouble_of
from resilience.cron.records import Outcome, RunRecord
from resilience.cron.state_directory import CronDirectory
from resilience.job import JobState
from tests.lab.slurm.cluster import Cluster
from tests.lab.slurm.processes import until

SETTINGS = """\
[cron]
backend = "slurm"
mode = "{mode}"
tick_s = 1
pulse_s = {pulse_s}
time_limit_s = {limit_s}
pulse_limit_s = 60
jitter_s = 0
{more}
[cron.sbatch]
mem = "500M"
{sbatch}
"""


class Row(NamedTuple):
    """One job of the chain, as squeue shows it."""

    id: str
    state: str
    comment: str
    reason: str
    node: str


@dataclass
class Site:
    """One project directory of one user."""

    cluster: Cluster
    name: str
    user: str
    mode: str = "daemon"
    pulse_s: int = 3
    limit_s: int = 600
    crontab: str = "@every 2s /bin/true # resil: name=beat catch_up=none\n"
    more: str = ""
    sbatch: str = ""
    env: Mapping[str, str] = field(default_factory=dict)

    @property
    def directory(self) -> Path:
        return self.cluster.shared / self.name

    @property
    def state(self) -> Path:
        return self.directory / ".resil" / ".cron"

    @property
    def cron(self) -> CronDirectory:
        return CronDirectory(self.directory / ".resil")

    def write(self, name: str, text: str) -> None:
        path = self.directory / name
        self.cluster.run(["mkdir", "-p", str(path.parent)], self.user, cwd="/", check=True)
        self.cluster.run(["tee", str(path)], self.user, cwd="/", input=text, check=True)

    def make(self) -> Site:
        settings = SETTINGS.format(
            mode=self.mode, pulse_s=self.pulse_s, limit_s=self.limit_s, more=self.more, sbatch=self.sbatch
        )
        self.write("resil.toml", settings)
        self.write("cron/crontab", self.crontab)
        return self

    def resil(self, *words: str) -> subprocess.CompletedProcess[str]:
        return self.cluster.run(["resil", *words], user=self.user, cwd=self.directory, env=self.env)

    def install(self, *words: str) -> str:
        done = self.resil("cron", "install", "--backend", "slurm", *words)
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout

    def revive(self) -> subprocess.CompletedProcess[str]:
        return self.cluster.run(["bash", str(self.state / "revive.bash")], self.user, cwd="/")

    def cancel(self) -> None:
        """Cancel the whole chain, and the successors that a job of it submits as its last word."""

        def is_gone() -> bool:
            alive = [row.id for row in self.rows() if JobState.parse(row.state).is_alive]
            if alive:
                self.cluster.run(["scancel", *alive], self.user)
            return not alive

        until(is_gone, "the whole chain to be cancelled", every_s=0.2)

    # ---- what can be seen -------------------------------------------------------------------------------------

    @property
    def token(self) -> str:
        return str(json.loads((self.state / "driver.json").read_text())["token"])

    def rows(self) -> list[Row]:
        """All jobs of the chain that SLURM remembers, oldest first. (No name says so: this project's token does.)"""
        mark = f"resil:.cron:{self.token}-"
        rows = [Row(*line.split("|")) for line in self.cluster.squeue("%A|%T|%k|%r|%N", "-u", self.user)]
        return sorted((row for row in rows if mark in row.comment), key=lambda row: int(row.id))

    def waiting(self) -> list[Row]:
        return [row for row in self.rows() if row.state == "PENDING"]

    def running(self) -> list[Row]:
        return [row for row in self.rows() if row.state == "RUNNING"]

    def is_whole(self) -> bool:
        return len(self.running()) == 1 and len(self.waiting()) == 2

    def runs(self, key: str = "crontab+beat") -> list[RunRecord]:
        return [run for run in self.cron.history(key) if run.outcome is not Outcome.MISSED]

    def trouble(self) -> str:
        """What is wrong with the chain, as its last job noted it."""
        return trouble_of(self.state)[0]

    def kinds(self) -> list[str]:
        """The kinds of what waits, oldest first: s, h; p, p."""
        return [row.comment.partition(f"{self.token}-")[2][:1] for row in self.waiting()]

    def gaps(self) -> list[tuple[int, int]]:
        """(slot, slots that are missing before it) of the entry `beat` every two seconds."""
        slots = sorted({run.slot for run in self.runs()})
        return [(b, (b - a) // 2 - 1) for a, b in pairwise(slots) if b - a > 2]

    def log(self) -> str:
        parts = sorted((self.state / "driver").glob("*.out"), key=lambda path: int(path.stem))
        return "".join(f"--- {path.name}\n{path.read_text(errors='replace')}" for path in parts)

    def ticks_on(self, what: str = "the scheduler to tick on") -> None:
        """Wait for a run whose slot is after now."""
        before = max((run.slot for run in self.runs()), default=0)
        try:
            until(lambda: max((run.slot for run in self.runs()), default=0) > before + 2, what, every_s=0.1)
        except TimeoutError as error:
            raise TimeoutError(f"{error}\n{self.rows()}\n{self.log()}") from None

    def each_slot_ran_once(self, key: str = "crontab+beat") -> None:
        """By the records themselves, of which there is one for each end."""
        directory = self.state / "history" / key
        lines = [line for path in directory.glob("*.jsonl") for line in path.read_text().splitlines()]
        slots = [record["slot"] for record in map(json.loads, lines) if record["outcome"] in ("done", "failed")]
        slots += [int(path.name.partition("@")[0]) for path in directory.glob("*@*@[DF][OA]*")]
        ends = Counter(slots)
        assert ends
        assert set(ends.values()) == {1}, {slot: count for slot, count in ends.items() if count > 1}
