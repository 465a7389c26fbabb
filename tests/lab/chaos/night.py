"""One night of `make chaos` on a real cluster: it submits the run, does the faults that come from outside, plays the
person where one is needed, and collects the facts."""

from __future__ import annotations

import json
import os
import pwd
import shutil
import threading
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from resilience.checkpoints.names import parse_committed
from resilience.inject.files import mounting
from resilience.system.files import read_lines
from tests.lab.chaos import training
from tests.lab.chaos.acts import ACTS, person
from tests.lab.chaos.judge import Attempt, Facts
from tests.lab.chaos.plan import Night
from tests.lab.chaos.run import PATIENCE_S, ChaosRun, Waited, is_held, webhook
from tests.lab.disks import make_read_only
from tests.lab.slurm.cluster import Cluster
from tests.lab.slurm.processes import Process, program


def live(cluster: Cluster, disk: Path, night: Night, given_up: threading.Event) -> tuple[Facts, ChaosRun]:
    """Live through a night on a cluster that has nothing else to do, and whose nodes see that small disk."""
    cluster.reset()
    make_read_only(disk, False)
    for entry in disk.iterdir():
        shutil.rmtree(entry) if entry.is_dir() else entry.unlink()
    owner = pwd.getpwnam("root" if night.is_roots else cluster.users[0])
    os.chown(disk, owner.pw_uid, owner.pw_gid)
    cluster.home("root").mkdir(exist_ok=True)
    mounts = _mounts(cluster, disk)
    with webhook() as (url, messages):
        run = ChaosRun(cluster, f"night-{night.seed}", night=night, disk=disk, url=url, messages=messages)
        run.given_up = given_up
        waited = ""
        run.start()
        with run.over:
            with run.looked_after():
                try:
                    _go_through(run)
                except Exception as error:  # whatever it is, the injections are ended
                    waited = str(error) if isinstance(error, (Waited, TimeoutError)) else repr(error)
            left = run.end_injections() + _left_running(run)
            left += [f"mount {line}" for line in _mounts(cluster, disk) - mounts]
            return _collect(run, waited, left), run


def _mounts(cluster: Cluster, disk: Path) -> set[str]:
    """The mounts below the cluster's directory and on the disk, here and, of faults, where the nodes' jobs run."""
    here = Path("/proc/self/mounts").read_text().splitlines()
    nodes = [Path(f"/proc/{cluster.daemon(node).pid}/mounts").read_text().splitlines() for node in cluster.nodes]
    faults = {line for lines in nodes for line in lines if mounting.TYPE in line and str(disk) in line}
    return faults | {line for line in here if str(cluster.root) in line or str(disk) in line}


def _go_through(run: ChaosRun) -> None:
    """Do what the training asks for until the run has ended, or nothing happens any more."""
    undone = [fault for fault in run.night.faults if fault.kind in ACTS]
    seen, since = "", time.monotonic()
    while True:
        if run.is_finished:
            run.until(lambda: not run.queued, "the rest of the queue to end")
            run.wait_for_looks(2)  # one that began before the end may tell yet
            run.until(lambda: all(one["resolved"] for one in run.incidents()), "all incidents to be resolved")
            return
        run.incidents()
        if undone and (found := run.asked(undone[0])):
            fault = undone.pop(0)
            ACTS[fault.kind](run, fault, *found)
            since = time.monotonic()
        person(run)
        if not run.mends and run.is_open and run.is_told("breaker-open") and run.is_idle:
            time.sleep(5)  # whether it stays so
            if run.is_open and run.is_idle:
                return
        files = [len([*run.directory.glob(name)]) for name in ("attempts/*", "journal/*")]
        news = f"{files} {run.lines_of('steps.0')[-1:]}"
        if news != seen:
            seen, since = news, time.monotonic()
        if run.given_up.is_set() or time.monotonic() - since > PATIENCE_S:
            raise Waited(f"a step or an attempt; queued: {run.queued}")
        time.sleep(0.1)


def _left_running(run: ChaosRun) -> list[str]:
    daemons = {process.pid for process in run.cluster._daemons.values()}

    def left() -> set[int]:
        others = run.cluster.processes() - daemons
        return {pid for pid in others if Process.of(pid) and program(pid) != "slurmscriptd"}  # slurmctld's own

    deadline = time.monotonic() + 60
    while (found := left()) and time.monotonic() < deadline and not run.given_up.is_set():
        time.sleep(0.2)
    shown = []
    for pid in found:
        try:
            shown.append(f"process {pid} {Path(f'/proc/{pid}/cmdline').read_bytes().replace(bytes(1), b' ').decode()}")
        except OSError:
            continue
    shown += [f"job {row}" for row in run.queued if not is_held(row)]
    shown += [f"file {path}" for name in ("*.tmp", "*.bin") for path in run.project.rglob(name)]
    return shown


def _collect(run: ChaosRun, waited: str, left: list[str]) -> Facts:
    told = json.loads(run.ask("attempts", "--json"))
    resumed: dict[int, list[int]] = {}
    for rank in range(training.WORLD):
        for row in run.lines_of(f"begins.{rank}"):
            attempt, step = map(int, row.split())
            resumed.setdefault(attempt, []).append(step)
    journals = [one for path in (run.directory / "journal").glob("*.0.jsonl") for one in read_lines(path)]
    rows = [row.split() for row in run.lines_of("steps.0")]
    outbox = run.project / ".resil" / ".alerts" / "outbox"
    final = run.project / "final"
    return Facts(
        night=run.night,
        alone=training.alone(run.night.steps),
        final=final.read_text() if run.is_finished and final.exists() else "",
        reason=told["breaker"]["reason"] if run.is_open else "",
        attempts=tuple(
            Attempt(
                row["attempt"], (row["failure"] or {}).get("failure", ""), run.end(row["attempt"]).get("launched", True)
            )
            for row in told["attempts"]
        ),
        met={fault.number: run.met(fault) for fault in run.night.faults},
        resumed={attempt: tuple(ranks) for attempt, ranks in resumed.items()},
        stepped=tuple((int(row[0]), int(row[1]), float(row[2]), row[3]) for row in rows),
        saved=tuple(
            (one["attempt"], parse_committed(one["name"]) or 0) for one in journals if one["event"] == "checkpoint"
        ),
        corrupted=tuple((one["step"], one["verdict"]) for one in journals if one["event"] == "sdc"),
        damaged=tuple(run.damaged),
        messages=tuple(run.messages),
        incidents=tuple(run.incidents()),
        undelivered=tuple(path.name for path in outbox.glob("*") if path.is_file()) if outbox.exists() else (),
        said="\n".join([*(path.read_text() for path in run.project.glob("watch.[0-9]")), *_batch_lines(run)]),
        left=tuple(left),
        waited=waited,
    )


def _batch_lines(run: ChaosRun) -> list[str]:
    """What the logs have that is not the training's own."""
    return [line for line in run.log.splitlines() if "slurm_script" in line or line.startswith("resil: ")]


def _told(message: Mapping[str, Any]) -> str:
    return f"{message['headline']} {[(one['episode'], one['fault'], one['reason']) for one in message['notices']]}"


def keep(run: ChaosRun, facts: Facts, violations: list[str], directory: Path) -> Path:
    """Keep what is needed to understand a night that went wrong."""
    place = directory / f"seed-{run.night.seed}"
    shutil.rmtree(place, ignore_errors=True)
    shutil.copytree(run.project, place, symlinks=True, ignore=lambda *_: {"checkpoints"})
    text = [
        str(run.night),
        *violations,
        "",
        *map(_told, facts.messages),
        "",
        *map(str, facts.attempts),
        "",
        run.cluster.logs(40),
    ]
    (place / "violations.txt").write_text("\n".join(text))
    return place
