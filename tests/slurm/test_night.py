"""`make night`: a training on a real cluster meets a dozen faults one after the other, and finishes by itself.

Each attempt makes 30 steps, and saves, before the next fault: real kills, a full disk, a hung controller, sockets that
are refused, memory beyond the cgroup. Two watchdogs look every few seconds, as from two login nodes, and tell a
webhook. Of what only a person can do, the test does one thing: it frees the disk and closes the breaker.

The table is printed (`pytest -s`). RESIL_NIGHT_SVG names a file for the timeline that `resil attempts --svg` draws.
"""

from __future__ import annotations

import os
import socket
import struct
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from resilience.demo.receivers import receivers
from resilience.layout import SUBMISSIONS
from resilience.system.files import read_lines
from tests.lab.disks import disk_of, fill
from tests.lab.slurm.cluster import Cluster
from tests.lab.slurm.training_run import TrainingRun

pytestmark = [
    pytest.mark.soak,
    pytest.mark.skipif(os.environ.get("RESIL_SOAK") != "1", reason="takes minutes: set RESIL_SOAK=1"),
    pytest.mark.timeout(1800),
]

# Each fault comes once: its name is written down before. `ask` is for what only something outside can do.
FAULTS_PY = """\
import os, socket, time
from pathlib import Path
from typing import Any
from train import load, newest

PORT, FAULTS, LAST = {port}, {faults}, {last}
left = [fault for fault in FAULTS if not Path(f"met.{{fault}}").exists()]


def is_last(step, resumed):
    return not left and step == (LAST or resumed + 30)


def meet(step, resumed):
    if left and step == resumed + 30:
        Path(f"met.{{left[0]}}").write_text(f"{{step}} {{time.time()}} {{os.environ['RESIL_ATTEMPT']}}")
        return globals()[left[0]](step)


def ask(name):
    Path(f"asked.{{name}}").touch()
    while not Path(f"done.{{name}}").exists():
        time.sleep(0.05)


def exception(step):
    return {{0: "a batch"}}[step]


def gpu_memory(step):
    raise RuntimeError("CUDA out of memory. Tried to allocate 2.00 GiB. GPU 0 has a total capacity of 79.10 GiB")


def node(step):
    ask("node")


def port(step):
    socket.create_server(("127.0.0.1", PORT))


def controller(step):
    ask("controller")
    raise RuntimeError("the data loader has lost its index")


def network(step):
    socket.create_connection(("127.0.0.1", PORT)).recv(1)


def requeue(step):
    ask("requeue")


def nan(step):
    return float("nan")


def walltime(step):
    ask("walltime")


def memory(step):
    [b"x" * 2**28 for _ in range(8)]


def cut(step):
    os.truncate(newest()[-1], newest()[-1].stat().st_size // 2)
    load(newest()[-1])


def disk(step):
    ask("disk")
"""


NEVER = (0, float("inf"), 10**9)


class Night(TrainingRun):
    """The run, and what the faults have left."""

    disk: Path
    ballast: Path

    def met(self, fault: str) -> tuple[int, float, int]:
        """Step, time and attempt at which a fault came."""
        step, at, attempt = (self.project / f"met.{fault}").read_text().split()
        return int(step), float(at), int(attempt)

    def trains_again_s(self, fault: str) -> float:
        """Seconds from a fault to the first step of a later attempt that was not made before."""
        step, at, attempt = self.met(fault)
        rows = [line.split() for line in (self.project / "steps").read_text().splitlines()]
        return next(float(row[1]) for row in rows if int(row[0]) > step and int(row[2]) > attempt) - at


def lose_node(night: Night) -> None:
    _, node = night.running()
    night.cluster.fail_node(node)
    night.cluster.start_slurmd(node)


def hang_controller(night: Night) -> None:
    attempt = night.met("controller")[2]
    night.cluster.stop_controller()
    (night.project / "done.controller").touch()
    night.until(lambda: night.end(attempt), "the end to be recorded without SLURM")
    night.cluster.continue_controller()


def requeue(night: Night) -> None:
    job, _ = night.running()
    night.cluster.run(["scontrol", "requeue", job], night.user, check=True)


def shorten(night: Night) -> None:
    job, _ = night.running()
    night.cluster.run(["scontrol", "update", f"jobid={job}", "EndTime=now+12"], night.user, check=True)


def fill_disk(night: Night) -> None:
    night.ballast = fill(night.disk)


@dataclass(frozen=True)
class Fault:
    """A fault of the night.

    Attributes:
        name: of its function in FAULTS_PY.
        says: for the table.
        expected: its class in `resil attempts`.
        outside: does what the training asks for.
    """

    name: str
    says: str
    expected: str
    outside: Callable[[Night], None] | None = None


FAULTS = (
    Fault("exception", "an exception of the program, once", "exception"),
    Fault("gpu_memory", "CUDA out of memory", "gpu_oom"),
    Fault("node", "the node dies: slurmd and the job are killed", "node_failure", lose_node),
    Fault("port", "the port is in use", "port_in_use"),
    Fault("controller", "slurmctld hangs while a job ends", "exception", hang_controller),
    Fault("network", "the peer resets the connection", "network"),
    Fault("requeue", "`scontrol requeue`, as preemption does", "stopped", requeue),
    Fault("nan", "the loss is NaN, once", "nan_loss"),
    Fault("walltime", "the time limit", "stopped", shorten),
    Fault("memory", "the kernel kills in the job's cgroup", "host_oom"),
    Fault("cut", "the newest checkpoint is cut in half", "checkpoint"),
    Fault("disk", "the disk is full until a person frees it", "disk_full", fill_disk),
)


@contextmanager
def peer() -> Iterator[int]:
    """A port that is in use, and whose owner resets each connection."""
    over = threading.Event()
    with socket.create_server(("127.0.0.1", 0)) as server:
        server.settimeout(0.2)

        def serve() -> None:
            while not over.is_set():
                try:
                    client, _ = server.accept()
                except TimeoutError:
                    continue
                client.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
                client.close()

        thread = threading.Thread(target=serve)
        thread.start()
        try:
            yield server.getsockname()[1]
        finally:
            over.set()
            thread.join()


@dataclass(frozen=True)
class Cost:
    """What one fault cost: attempts that it ended, their classes, and seconds until a later attempt went on."""

    fault: Fault
    burnt: int
    classes: set[str]
    again_s: float
    told: tuple[str, ...]

    def __str__(self) -> str:
        classes = ", ".join(sorted(self.classes)).replace("_", " ")
        told = ", ".join(self.told)
        return f"| {self.fault.says} | {classes} | {self.burnt} | {self.again_s:.0f} s | {told} |"


def costs_of(night: Night, rows: list[dict[str, Any]], incidents: list[dict[str, Any]]) -> list[Cost]:
    """Each attempt and incident belongs to the last fault before it."""
    met = [night.met(fault.name) for fault in FAULTS]
    found = []
    for fault, (_, begin, first), (_, end, after) in zip(FAULTS, met, [*met[1:], NEVER], strict=True):
        launched = [row for row in rows if night.end(row["attempt"]).get("launched", True)]
        ended = [row["failure"]["failure"] for row in launched if first <= row["attempt"] < after]
        ended = [name for name in ended if name != "finished"]
        told = tuple(f"{one['check']}: {one['fault']}" for one in incidents if begin <= one["opened"] < end)
        found.append(Cost(fault, len(ended), set(ended), night.trains_again_s(fault.name), told))
    return found


def test_a_training_meets_a_dozen_faults_in_a_night_and_finishes_by_itself() -> None:
    with receivers() as inbox, peer() as port, disk_of(Cluster.users[0]) as disk, Cluster(nodes=3) as cluster:
        if cluster.proctrack != "cgroup":
            pytest.skip("the cluster has no memory cgroup here, which one of the faults needs")
        night = Night(cluster, "gpt", inbox=inbox)
        night.disk = disk
        cluster.run(["mkdir", str(night.project)], night.user, check=True)
        cluster.run(["ln", "-s", str(disk), "checkpoints"], night.user, night.project, check=True)
        began = time.monotonic()
        with night.watched():
            faults = FAULTS_PY.format(port=port, faults=[fault.name for fault in FAULTS], last=0)
            night.begin(faults, array="3", keep_queued=6)
            for fault in FAULTS:
                if fault.outside is not None:
                    night.until((night.project / f"asked.{fault.name}").exists, f"the fault {fault.name}")
                    fault.outside(night)
                    (night.project / f"done.{fault.name}").touch()
            night.until(lambda: any("the breaker is open" in text for text in inbox.texts), "the alert about the disk")
            night.ballast.unlink()
            if "no job of it was held" in night.ask("breaker", "close") and not night.queued:
                night.submit()
            night.until(lambda: night.is_finished, "the run to finish by itself")
            took_s = time.monotonic() - began
            night.until(lambda: all(one["resolved"] for one in night.incidents()), "all incidents to be resolved")
        if svg := os.environ.get("RESIL_NIGHT_SVG"):
            night.ask("attempts", "--svg", "night.svg")
            Path(svg).parent.mkdir(parents=True, exist_ok=True)
            Path(svg).write_text((night.project / "night.svg").read_text())
        calm = TrainingRun(cluster, "calm")
        calm.begin(FAULTS_PY.format(port=port, faults=[], last=int(night.final.split()[0])), array="1")
        calm.until(lambda: calm.is_finished, "the same training without faults")
        rows, incidents, ends = night.attempts(), night.incidents(), (night.final, calm.final)
        submitted = {one["token"] for one in read_lines(night.directory / SUBMISSIONS) if one["event"] == "submitted"}

        costs = costs_of(night, rows, incidents)

    print(f"\n{len(rows)} attempts in {took_s:.0f} s; jobs were queued {len(submitted)} times\n")
    print("| fault | class | jobs burnt | trains again after | told |\n|---|---|---|---|---|")
    print(*costs, *(text.splitlines()[0] for text in inbox.texts), sep="\n")
    assert ends[0] == ends[1], "the state is that of a training without faults"
    assert [cost.classes for cost in costs] == [{fault.expected} for fault in FAULTS]
    assert [cost.burnt for cost in costs[:-1]] == [1] * (len(FAULTS) - 1) and costs[-1].burnt <= 4, (
        "three without progress"
    )
    assert rows[-1]["failure"]["failure"] == "finished"
    assert max(len(cost.told) for cost in costs[:-1]) <= 1, "one incident at the most"
    assert len(set(costs[-1].told)) == len(costs[-1].told), "and of the disk, one of each watchdog's faults"
    assert len(submitted) > 2, "an array of three does not last for the night"
