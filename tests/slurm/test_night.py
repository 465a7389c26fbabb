"""`make night`: a training on a real cluster meets fifteen faults one after the other, and finishes by itself.

Four ranks of gloo on two nodes. Each attempt makes 30 steps, and saves, before the next fault: real kills, a full disk,
a hung controller, sockets that are refused, memory beyond the cgroup, a rank that is stopped, a slow one, a node on
which everything fails. Two watchdogs look every few seconds, as from two login nodes, and tell a webhook. Of what only
a person can do, the test does one thing: it frees the disk and closes the breaker.

The table is printed (`pytest -s`). RESIL_NIGHT_SVG names a file for the timeline that `resil attempts --svg` draws;
beside it are the report of the run, with `.html` instead of `.svg`, and `hang.html`, the page about the hang.
"""

from __future__ import annotations

import json
import os
import re
import socket
import struct
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest

from resilience.demo.receivers import receivers
from resilience.hostlist import expand
from resilience.layout import SUBMISSIONS
from resilience.system.files import read_lines
from tests.lab.disks import disk_of, fill
from tests.lab.slurm.cluster import Cluster
from tests.lab.slurm.training_run import SETTINGS, TrainingRun

pytestmark = [
    pytest.mark.soak,
    pytest.mark.skipif(os.environ.get("RESIL_SOAK") != "1", reason="takes minutes: set RESIL_SOAK=1"),
    pytest.mark.skipif(find_spec("torch") is None, reason="torch is not installed: pip install torch (extra `torch`)"),
    pytest.mark.timeout(1800),
]
NODES, BAD_NODE = 2, "n1"
HANGS, SLOW = 3, 2
"""Ranks; the other faults are of rank 0."""

# Guards look at their ranks 20 times a second, instead of once, so that a slow rank is found within a minute. Attempts
# fail one after the other, and each is told by itself.
PARALLEL = (
    SETTINGS.replace('"python train.py"\n', '"python train.py"\ntemplate = "srun"\n')
    .replace('["job", "log"]', '["job", "log", "ranks"]\n[watch.log]\ntimeout_s = 120\non_hang = "restart_step"')
    .replace("poll_s = 0.3", "poll_s = 0.05")
    .replace("group_s = 0", "group_s = 0\nflap_count = 0")
    .replace('mem = "400M"', f'mem = "1500M"\nnodes = {NODES}\nntasks-per-node = 2')
)

# Each fault comes once: its name is written down before. `ask` is for what only something outside can do.
FAULTS_PY = """\
import os, signal, socket, time
from pathlib import Path
from typing import Any
import torch
import torch.distributed as dist
from train import load, newest

PORT, FAULTS, LAST = {port}, {faults}, {last}
RANK, ATTEMPT, NODE = int(os.environ["RANK"]), os.environ["RESIL_ATTEMPT"], os.environ["SLURMD_NODENAME"]
OF_RANK = {{"hang": {hangs}}}
left = [fault for fault in FAULTS if not Path(f"met.{{fault}}").exists()]
begins = 30
torch.set_num_threads(1)
meeting = f"file://{{os.environ['RESIL_RUN_DIR']}}/meeting.{{ATTEMPT}}"
dist.init_process_group("gloo", init_method=meeting, rank=RANK, world_size=int(os.environ["WORLD_SIZE"]))


def is_last(step, resumed):
    return not left and step == (LAST or resumed + 30)


def meet(step, resumed):
    loss = None
    if RANK == 0 and NODE == "{bad_node}" and (step == resumed + 3 or step % 10 == 0):
        bad_node(step)
    if left and step == resumed + begins and RANK == OF_RANK.get(left[0], 0):
        loss = begin(step)
    if FAULTS:
        straggle(step - resumed)
    average(step)
    return loss


def begin(step):
    Path(f"met.{{left[0]}}").write_text(f"{{step}} {{time.time()}} {{ATTEMPT}}")
    return globals()[left[0]](step)


def average(step):
    total = torch.tensor([step])
    dist.all_reduce(total)
    if total.item() != step * dist.get_world_size():
        raise AssertionError("the ranks are not at the same step")


def ask(name):
    Path(f"asked.{{name}}").touch()
    while not Path(f"done.{{name}}").exists():
        time.sleep(0.05)


def bad_node(step):
    if left[0] == "bad_node":
        Path("met.bad_node").write_text(f"{{step}} {{time.time()}} {{ATTEMPT}}")
    else:
        ask("bad_node")
    raise OSError(5, "Input/output error", "/scratch/tokens.bin")


def hang(step):
    Path("asked.hang").touch()
    os.kill(os.getpid(), signal.SIGSTOP)


def straggler(step):
    Path("asked.straggler").touch()


def straggle(steps):
    global begins
    if RANK == {slow} and Path("asked.straggler").exists() and not Path("eased.straggler").exists():
        time.sleep(0.04)
    if RANK == 0 and left and left[0] == "straggler" and Path("done.straggler").exists():
        del left[0]
        begins = steps + 30


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

    def met(self, fault: str) -> tuple[int, float, int]:
        """Step, time and attempt at which a fault came."""
        step, at, attempt = (self.project / f"met.{fault}").read_text().split()
        return int(step), float(at), int(attempt)

    def trains_again_s(self, fault: str) -> float:
        """Seconds from a fault to the first step of a later attempt that was not made before."""
        step, at, attempt = self.met(fault)
        rows = [line.split() for line in (self.project / "steps").read_text().splitlines()]
        return next(float(row[1]) for row in rows if int(row[0]) > step and int(row[2]) > attempt) - at

    def incident(self, fault: str) -> dict[str, Any]:
        """The incident of this fault; empty before there is one."""
        return next((one for one in self.incidents() if one["fault"] == fault), {})

    def excluded(self) -> list[set[str]]:
        """For each queued job, the nodes that it avoids."""
        shown = self.cluster.run(["scontrol", "-o", "show", "job"], self.user, check=True).stdout
        waiting = [line for line in shown.splitlines() if f"JobName={self.name} " in line and "=PENDING" in line]
        lists = [line.split("ExcNodeList=")[1].split()[0] for line in waiting]
        return [set(expand(names)) if names != "(null)" else set() for names in lists]


def lose_node(night: Night) -> None:
    node = expand(night.running()[1])[0]
    night.cluster.fail_node(node)
    night.cluster.start_slurmd(node)


def hang_controller(night: Night) -> None:
    attempt = night.met("controller")[2]
    night.cluster.stop_controller()
    (night.project / "done.controller").touch()
    night.until(lambda: night.end(attempt), "the end to be recorded without SLURM")
    night.cluster.continue_controller()


def requeue(night: Night) -> None:
    night.cluster.resume(BAD_NODE)
    for node in night.cluster.nodes[NODES:]:  # so that SLURM takes it
        night.cluster.drain(node)
    job, _ = night.running()
    night.cluster.run(["scontrol", "requeue", job], night.user, check=True)


def leave_bad_node(night: Night) -> None:
    """Let the second attempt fail there; the next one waits in the queue until a watchdog has looked."""
    for node in night.cluster.nodes[NODES:]:
        night.cluster.resume(node)
    night.cluster.run(["scontrol", "update", "partitionname=main", "state=down"], check=True)
    (night.project / "done.bad_node").touch()
    night.until(lambda: (given := night.excluded()) and all(BAD_NODE in one for one in given), "the exclusion")
    night.cluster.run(["scontrol", "update", "partitionname=main", "state=up"], check=True)


def wait_for_act(night: Night) -> None:
    night.until(lambda: any((night.directory / "hangs").glob("*.acted")), "a watchdog to end what hangs")


def ease(night: Night) -> None:
    night.until(lambda: night.incident("straggler"), "the slow rank to be named")
    (night.project / "eased.straggler").touch()
    night.until(lambda: night.incident("straggler")["resolved"], "the rank to be as fast as the others")


def shorten(night: Night) -> None:
    job, _ = night.running()
    night.cluster.run(["scontrol", "update", f"jobid={job}", "EndTime=now+12"], night.user, check=True)


def fill_disk(night: Night) -> None:
    ballast = fill(night.disk)
    (night.project / "done.disk").touch()
    night.until(lambda: any("the breaker is open" in text for text in night.inbox.texts), "the alert about the disk")
    ballast.unlink()
    if "no job of it was held" in night.ask("breaker", "close") and not night.queued:
        night.submit()


@dataclass(frozen=True)
class Fault:
    """A fault of the night.

    Attributes:
        name: of its function in FAULTS_PY.
        says: for the table.
        expected: its class in `resil attempts`, or one of two; none if it ends no attempt.
        outside: does what the training asks for.
        burns: so many attempts at most.
    """

    name: str
    says: str
    expected: tuple[str, ...]
    outside: Callable[[Night], None] | None = None
    burns: int = 1


FAULTS = (
    Fault("exception", "an exception of the program, once", ("exception",)),
    Fault("gpu_memory", "CUDA out of memory", ("gpu_oom",)),
    Fault("node", "the node dies: slurmd and the job are killed", ("node_failure",), lose_node),
    Fault("port", "the port is in use", ("port_in_use",)),
    Fault("controller", "slurmctld hangs while a job ends", ("exception",), hang_controller),
    Fault("network", "the peer resets the connection", ("network",)),
    Fault("disk", "the disk is full until a person frees it", ("disk_full",), fill_disk, burns=4),
    Fault("requeue", "`scontrol requeue`, as preemption does", ("stopped", "preempted"), requeue),
    Fault("bad_node", "a node on which everything fails", ("io_error",), leave_bad_node, burns=2),
    Fault("hang", "a rank is stopped (SIGSTOP), the others wait for it", ("collective_timeout",), wait_for_act),
    Fault("straggler", "a rank computes three times as long", (), ease, burns=0),
    Fault("nan", "the loss is NaN, once", ("nan_loss",)),
    Fault("walltime", "the time limit", ("stopped",), shorten),
    Fault("memory", "the kernel kills in the job's cgroup", ("host_oom",)),
    Fault("cut", "the newest checkpoint is cut in half", ("checkpoint",)),
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
    """What one fault cost: attempts that it ended, their classes, and seconds until a later one went on (0: none)."""

    fault: Fault
    burnt: int
    classes: set[str]
    again_s: float
    told: tuple[str, ...]

    def __str__(self) -> str:
        classes = ", ".join(sorted(self.classes)).replace("_", " ")
        times = Counter(self.told).items()
        told = ", ".join(f"{what} ({count} times)" if count > 1 else what for what, count in times)
        again = f"{self.again_s:.0f} s" if self.again_s else "trains on"
        return f"| {self.fault.says} | {classes} | {self.burnt} | {again} | {told} |"


def costs_of(night: Night, rows: list[dict[str, Any]], incidents: list[dict[str, Any]]) -> list[Cost]:
    """Each attempt and incident belongs to the last fault before it."""
    met = [night.met(fault.name) for fault in FAULTS]
    found = []
    for fault, (_, begin, first), (_, end, after) in zip(FAULTS, met, [*met[1:], NEVER], strict=True):
        launched = [row for row in rows if night.end(row["attempt"]).get("launched", True)]
        ended = [row["failure"]["failure"] for row in launched if first <= row["attempt"] < after]
        ended = [name for name in ended if name != "finished"]
        told = tuple(f"{one['check']}: {one['fault']}" for one in incidents if begin <= one["opened"] < end)
        again_s = night.trains_again_s(fault.name) if ended else 0.0
        found.append(Cost(fault, len(ended), set(ended), again_s, told))
    return found


def check_hang(night: Night, rows: list[dict[str, Any]]) -> str:
    """The page is written once, before the one act, and all that know of the hang name the right rank. Return it."""
    attempt = night.met("hang")[2]
    row = next(one for one in rows if one["attempt"] == attempt)
    node = expand(row["nodes"])[HANGS // 2]
    (page,), (text,), (acted,) = (
        sorted((night.directory / "hangs").glob(f"*.{kind}")) for kind in ("html", "txt", "acted")
    )
    record = json.loads(acted.read_text())
    assert (record["rank"], record["host"], record["on_hang"]) == (HANGS, node, "restart_step"), record
    assert "failed" not in record["did"] and page.stat().st_mtime <= record["time"] < row["end_time"] + 1, (
        "evidence first"
    )
    assert (row["failure"]["rank"], row["failure"]["host"]) == (HANGS, node)
    who = f"rank {HANGS} on {node}: "
    assert f"a watchdog ended it because it hung: {who}stopped by a signal" in night.ask("why", row["job"])
    assert who in page.read_text() and who in text.read_text()
    (_,) = [one for one in night.inbox.texts if f"{who}stopped by a signal" in one and "RESOLVED" not in one]
    assert {record["did"], f"evidence: {page}"} <= {*night.incident("no-progress")["evidence"]}
    assert night.end(attempt)["burnt"] <= 1, "it had made progress"
    return page.read_text()


def check_nodes(night: Night, rows: list[dict[str, Any]]) -> None:
    """The bad node was avoided as from the third attempt, and the node of the slow rank is known, and was not."""
    nodes = {one["node"]: one for one in json.loads(night.ask("nodes", "--json"))["nodes"]}
    first = night.met("bad_node")[2]
    there = [row["attempt"] for row in rows if BAD_NODE in expand(row["nodes"])]
    assert there == [first, first + 1], "two attempts, and none after them"
    assert nodes[BAD_NODE]["state"] == "excluded", nodes
    assert f"attempt {first + 2} " in night.ask("nodes", "report", BAD_NODE), "the proof"
    slow = next(row for row in rows if row["attempt"] == night.met("straggler")[2])
    node = expand(slow["nodes"])[SLOW // 2]
    assert night.incident("straggler")["summary"].startswith(f"rank {SLOW} on {node} takes "), night.incident(
        "straggler"
    )
    assert "slow" in {fact["source"] for fact in nodes[node]["evidence"]} and nodes[node]["state"] != "excluded", nodes


def check_told(night: Night) -> None:
    """Whatever is told is told once for each verdict, and so is its end."""
    heads = [text.splitlines()[0] for text in night.inbox.texts]
    heads = [head for head in heads if " incidents, first " not in head]  # each of them ends by itself
    ids = {match[1] for head in heads if (match := re.search(r"\(([0-9a-f]{6,})\)$", head))}
    for one in ids:
        verdicts = [head.split(":")[0] for head in heads if head.endswith(f"({one})")]
        assert len(verdicts) == len(set(verdicts)) and sum("RESOLVED" in word for word in verdicts) == 1, (one, heads)


OUTSIDE = {"finished", "stopped", "preempted", "node_failure"}
"""Classes of ends that are no failure of the training."""


def check_report(night: Night, rows: list[dict[str, Any]], took_s: float) -> None:
    """The page says what the ledgers of attempts, incidents and time say, and time is the wall clock."""
    said = night.ask("report", "-o", "report.html").splitlines()[0].removeprefix(f"{night.name}: ")
    page, report = (night.project / "report.html").read_text(), json.loads(night.ask("report", "--json"))
    print(said, *(f"{one['say']} {one['because']}" for one in report["advice"]), sep="\n")
    failed = sum(row["failure"]["failure"] not in OUTSIDE for row in rows)
    known = night.incidents()
    newest = {one["fingerprint"]: one for one in sorted(known, key=lambda one: one["number"])}.values()
    assert said.startswith(f"finished; {len(rows)} attempts, {failed} of them failed; {len(known)} incidents"), said
    assert said[0].upper() + said[1:] in page.replace("\N{NO-BREAK SPACE}", " ")
    assert [one["attempt"] for one in report["attempts"]] == [row["attempt"] for row in rows]
    lines = {one["episode"]: one for one in report["incidents"]}
    assert {name: one["times"] for name, one in lines.items()} == {one["episode"]: one["number"] for one in newest}
    heads = [text.splitlines()[0] for text in night.inbox.texts if "RESOLVED" not in text.splitlines()[0]]
    together = sum(" incidents, first " in head for head in heads)
    for name, one in lines.items():
        own = sum(head.endswith(f"({name})") for head in heads)
        assert own - together <= one["messages"] <= own + together, (one, heads)

    goodput = json.loads(night.ask("goodput", "--json"))["goodput"]
    wall_ms = goodput["end_ms"] - goodput["start_ms"]
    assert sum(goodput["ms"].values()) == wall_ms and goodput["ms"] == report["time"]["ms"]
    assert abs(wall_ms / 1000 - took_s) < 60, "from the first submit to the end of the last attempt"
    assert goodput["ms"]["hang"] > 60_000, goodput["ms"]


def test_a_training_meets_fifteen_faults_in_a_night_and_finishes_by_itself() -> None:
    with receivers() as inbox, peer() as port, disk_of(Cluster.users[0]) as disk, Cluster(nodes=5) as cluster:
        if cluster.proctrack != "cgroup":
            pytest.skip("the cluster has no memory cgroup here, which one of the faults needs")
        night = Night(cluster, "gpt", inbox=inbox)
        night.disk = disk
        cluster.run(["mkdir", str(night.project)], night.user, check=True)
        cluster.run(["ln", "-s", str(disk), "checkpoints"], night.user, night.project, check=True)
        cluster.drain(BAD_NODE)
        began = time.monotonic()
        known = {"port": port, "bad_node": BAD_NODE, "hangs": HANGS, "slow": SLOW}
        with night.watched():
            faults = FAULTS_PY.format(faults=[fault.name for fault in FAULTS], last=0, **known)
            night.begin(faults, array="3", keep_queued=6, settings=PARALLEL)
            for fault in FAULTS:
                if fault.outside is not None:
                    night.until((night.project / f"asked.{fault.name}").exists, f"the fault {fault.name}")
                    fault.outside(night)
                    (night.project / f"done.{fault.name}").touch()
            night.until(lambda: night.is_finished, "the run to finish by itself")
            took_s = time.monotonic() - began
            night.until(lambda: all(one["resolved"] for one in night.incidents()), "all incidents to be resolved")
        calm = TrainingRun(cluster, "calm")
        faults = FAULTS_PY.format(faults=[], last=int(night.final.split()[0]), **known | {"bad_node": ""})
        calm.begin(faults, array="1", settings=PARALLEL)
        calm.until(lambda: calm.is_finished, "the same training without faults")
        rows, incidents, ends = night.attempts(), night.incidents(), (night.final, calm.final)
        submitted = {one["token"] for one in read_lines(night.directory / SUBMISSIONS) if one["event"] == "submitted"}

        costs = costs_of(night, rows, incidents)
        print(f"\n{len(rows)} attempts in {took_s:.0f} s; jobs were queued {len(submitted)} times\n")
        print("| fault | class | jobs burnt | trains again after | told |\n|---|---|---|---|---|")
        print(*costs, *(text.splitlines()[0] for text in inbox.texts), sep="\n")
        page = check_hang(night, rows)
        if svg := os.environ.get("RESIL_NIGHT_SVG"):
            night.ask("attempts", "--svg", "night.svg")
            night.ask("report", "-o", "night.html")
            Path(svg).parent.mkdir(parents=True, exist_ok=True)
            for suffix in (".svg", ".html"):
                Path(svg).with_suffix(suffix).write_text((night.project / f"night{suffix}").read_text())
            Path(svg).with_name("hang.html").write_text(page)
        check_nodes(night, rows)
        check_told(night)
        check_report(night, rows, took_s)

    assert ends[0] == ends[1], "the state is that of a training without faults"
    for cost in costs:
        assert cost.classes in ([{name} for name in cost.fault.expected] or [set()]), cost
        assert cost.burnt == cost.fault.burns or (cost.fault.name == "disk" and cost.burnt == 3), cost
    assert rows[-1]["failure"]["failure"] == "finished"
    told = {cost.fault.name: Counter(cost.told) for cost in costs}
    assert told["hang"]["log: no-progress"] == told["straggler"]["ranks: straggler"] == 1, told
    for cost in costs:
        most = max(told[cost.fault.name].values(), default=0)
        assert most <= max(1, cost.burnt), f"one of each watchdog's faults for each attempt: {cost}"
    assert len(submitted) > 2, "an array of three does not last for the night"
