"""What a fault costs until the training trains again, on one real SLURM: ours, a bare array, a self-requeueing job.

All trainings are the same shell script, and run side by side. It fails at step 5 as its fault says. A person mends the
cause some time after the first failure, the same time for all three, though only one of them tells a person; where the
job is held, the person types `resil breaker close` then. `burnt` are the jobs that failed.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from benchmarks.measure import BenchmarkError, Claim, Options, Report
from tests.lab.slurm.cluster import Cluster
from tests.lab.slurm.cluster_run import ClusterRun

TASKS = 10
MENDED_AFTER_S, HEALS_AFTER_S = 60.0, 40.0
TICK_S = 5.0
"""Between two looks of the watchdog: the crontab as shipped looks every quarter of an hour."""
NAN = float("nan")
FRAGILE = "n4"
"""The node that dies; the others run everything else."""

# argv: the fault. What it does is in FAULTS. `cause` is there while the cause lasts.
TRAINING = """\
stamp() { echo "$(date +%s.%N)" >>"$1"; }
test -e trained && exit 0
stamp starts
echo "step 4 loss 1.0"
sleep 0.5
if [ -e cause ] || { [ -e cause-once ] && mv cause-once cause-was; }; then
  stamp failures
  {fails}
fi
stamp trained
echo "step 6 loss 1.0"
"""
NETWORK = (
    "n7:4711:4800 [3] transport/net_ib.cc:1295 NCCL WARN NET/IB : Got completion from peer 10.1.2.3<4> with status=12"
)
FAULTS = {
    "an exception, once": ("cause-once", "python -c 'batch = {}; batch[7]'"),
    "the node dies": ("cause-once", "sleep 600"),
    f"the network is down for {HEALS_AFTER_S:.0f} s": ("cause", f"echo '{NETWORK}'; exit 1"),
    "the disk is full until it is freed": ("cause", "echo step 5 >/dev/full"),
    "the program is broken until it is mended": ("cause", "python -c 'batch = {}; batch[7]'"),
}
ONCE, NODE_DIES, HEALS, DISK, BROKEN = FAULTS
MOST_BURNT = {ONCE: 1, NODE_DIES: 1, HEALS: 6, DISK: 3, BROKEN: 3}
"""The targets: a budget of three, and three tries one at a time where the cause may heal by itself."""
PATIENCE_S = 300.0
SETTINGS = """\
[run]
name = "{name}"
command = "bash -e train.sh"
[act]
enabled = true
[attempt]
beat_s = 1
[submit]
array = "1-{tasks}"
[sbatch]
time = "10"
mem = "100M"
requeue = true
{where}
"""
BARE = "#!/bin/bash\nbash -e train.sh\n"
REQUEUES = "#!/bin/bash\nbash -e train.sh && exit 0\nscontrol requeue $SLURM_JOB_ID\n"
OPTIONS = ("--time=10", "--mem=100M", "--requeue", "--open-mode=append", "--output=log")


@dataclass
class Training(ClusterRun):
    """One training that meets one fault."""

    fault: str = ""

    def times(self, name: str) -> list[float]:
        path = self.project / name
        return [float(line) for line in path.read_text().split()] if path.exists() else []

    @property
    def where(self) -> tuple[str, str]:
        return ("nodelist" if self.fault == NODE_DIES else "exclude", FRAGILE)

    def begin(self) -> None:
        cause, fails = FAULTS[self.fault]
        self.write("train.sh", TRAINING.replace("{fails}", fails))
        self.write(cause, "")
        self.queue()

    def queue(self) -> None:
        where = '{} = "{}"'.format(*self.where)
        self.write("resil.toml", SETTINGS.format(name=self.name, tasks=TASKS, where=where))
        self.submit()

    def tick(self) -> None:
        self.resil("watch", "job", "--alert")

    def mend(self) -> None:
        self.cluster.run(["rm", "-f", "cause"], self.user, self.project, check=True)
        if self.fault != HEALS and (self.directory / "attempts" / "breaker").exists():
            self.ask("breaker", "close")

    @property
    def is_over(self) -> bool:
        """Whether it has trained on, or nothing of it is left in the queue."""
        alive = self.cluster.squeue("%T", "-n", self.name)
        return bool(self.times("trained")) or not [one for one in alive if one in ("PENDING", "RUNNING", "COMPLETING")]

    @property
    def again(self) -> str:
        """Time from the first failure until it trained on, or until its last job was burnt."""
        failures, trained = self.times("failures"), self.times("trained")
        return f"{trained[0] - failures[0]:.0f} s" if trained else f"never: burnt in {failures[-1] - failures[0]:.0f} s"


class Foreign(Training):
    """The same without resil: one of two batch scripts that people write."""

    script = BARE
    options: tuple[str, ...] = (f"--array=1-{TASKS}%1",)

    def queue(self) -> None:
        self.write("job.sh", self.script)
        words = ["sbatch", "--parsable", f"--job-name={self.name}", "--{}={}".format(*self.where), *OPTIONS]
        self.cluster.run([*words, *self.options, "job.sh"], self.user, self.project, check=True)

    def tick(self) -> None:
        """Do nothing: nobody looks."""

    def mend(self) -> None:
        self.cluster.run(["rm", "-f", "cause"], self.user, self.project, check=True)


class Requeues(Foreign):
    script = REQUEUES
    options = ()


METHODS: dict[str, type[Training]] = {"resil": Training, "bare array": Foreign, "requeues itself": Requeues}


def run(options: Options) -> Report:
    """Let each training meet its fault, and compare. Where there is no SLURM, say so."""
    title = (
        f"jobs burnt and time until it trains again, {TASKS} tasks each, a person comes after {MENDED_AFTER_S:.0f} s"
    )
    if reasons := Cluster.requirements():
        return Report(title, notes=(f"nothing was measured: {'; '.join(reasons)}",))
    with Cluster(nodes=4) as cluster:
        trainings = {
            (fault, method): kind(cluster, f"{method.replace(' ', '-')}-{number}", fault=fault)
            for number, fault in enumerate(FAULTS)
            for method, kind in METHODS.items()
        }
        for training in trainings.values():
            training.begin()
        with watchdogs([one for one in trainings.values() if type(one) is Training]):
            kill_node(cluster, [one for one in trainings.values() if one.fault == NODE_DIES])
            mend_each(list(trainings.values()))
        claims, notes = [], ["jobs burnt, and seconds from the first failure until it trained on:"]
        for fault in FAULTS:
            burnt = {method: len(trainings[fault, method].times("failures")) for method in METHODS}
            claims.append(Claim(f"{fault}: burnt under resil", burnt["resil"], MOST_BURNT[fault], "jobs"))
            shown = (f"{method} {burnt[method]}, {trainings[fault, method].again}" for method in METHODS)
            notes.append(f"{fault}: {'; '.join(shown)}")
    return Report(title, notes=tuple(notes), claims=tuple(claims))


def kill_node(cluster: Cluster, trainings: list[Training]) -> None:
    """Kill slurmd and all jobs of the node when all these trainings are at the fault, and start slurmd again."""
    _wait(lambda: all(one.times("failures") for one in trainings), "the trainings on the node to start")
    cluster.fail_node(FRAGILE)
    cluster.start_slurmd(FRAGILE)


def mend_each(trainings: list[Training]) -> None:
    """Mend each cause when its time has come, and return when each training has trained on or has no job left."""
    mended: set[str] = set()

    def is_over() -> bool:
        for one in trainings:
            after_s = HEALS_AFTER_S if one.fault == HEALS else MENDED_AFTER_S
            failed = one.times("failures")
            if one.name not in mended and failed and time.time() - failed[0] >= after_s:
                mended.add(one.name)
                one.mend()
        return all(one.is_over for one in trainings)

    _wait(is_over, "all trainings to train on or to have no job left")


def _wait(true: Callable[[], bool], what: str) -> None:
    deadline = time.monotonic() + PATIENCE_S
    while not true():
        if time.monotonic() > deadline:
            raise BenchmarkError(f"waited {PATIENCE_S:.0f} s for {what}")
        time.sleep(0.5)


@contextmanager
def watchdogs(trainings: list[Training]) -> Iterator[None]:
    """Look after all trainings every few seconds."""
    over = threading.Event()

    def look() -> None:
        while not over.wait(TICK_S):
            for training in trainings:
                training.tick()

    thread = threading.Thread(target=look)
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join()
