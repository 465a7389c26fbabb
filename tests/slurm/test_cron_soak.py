"""Long stories of the scheduler's chain, with RESIL_SOAK=1: minutes each; they print what they measured (`pytest -s`).

RESIL_SOAK_HANDOVERS (20) and RESIL_SOAK_SLOTS (1000) say how long; RESIL_SOAK_KEEP, where the state directory is kept.
"""

from __future__ import annotations

import os
import random
import shutil
import statistics
import subprocess
import threading
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager, suppress

import pytest

from resilience.cron.records import Outcome, RunRecord
from tests.lab.disks import disk_of, fill
from tests.lab.slurm.cluster import Cluster
from tests.lab.slurm.cron_site import Site
from tests.lab.slurm.processes import until

pytestmark = [
    pytest.mark.soak,
    pytest.mark.skipif(os.environ.get("RESIL_SOAK") != "1", reason="takes half an hour: set RESIL_SOAK=1"),
    pytest.mark.timeout(7200),
]
HANDOVERS = int(os.environ.get("RESIL_SOAK_HANDOVERS", "20"))
SLOTS = int(os.environ.get("RESIL_SOAK_SLOTS", "1000"))
BEAT = "@every 2s /bin/true # resil: name=beat catch_up=all<=1000 timeout=10s\n"
WITNESSED = BEAT.replace("/bin/true", "echo $RESIL_CRON_SLOT >> ran; exec sleep 0.5")


@contextmanager
def full(cluster: Cluster, user: str) -> Iterator[None]:
    """Keep every CPU busy with jobs of half a minute, and some of them waiting."""
    over = threading.Event()

    def fill() -> None:
        dice = random.Random(1)
        while not over.wait(0.5):
            with suppress(subprocess.SubprocessError, OSError, RuntimeError):
                there = cluster.run(["squeue", "-h", "-u", user, "-t", "PD,R", "-o", "%A"]).stdout.split()
                for _ in range(11 - len(there)):
                    seconds = dice.randint(10, 40)
                    cluster.run(["sbatch", "-o", "/dev/null", "--wrap", f"sleep {seconds}"], user)

    thread = threading.Thread(target=fill)
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join()


def lateness(runs: list[RunRecord]) -> str:
    late = sorted(run.started - run.slot for run in runs if run.started)
    ranks = {f"p{p}": late[min(len(late) - 1, len(late) * p // 100)] for p in (50, 95, 99)}
    figures = {"mean": statistics.fmean(late), **ranks, "max": late[-1]}
    return ", ".join(f"{name} {seconds:.2f} s" for name, seconds in figures.items())


def test_no_slot_is_lost_at_the_hand_overs_of_a_full_cluster() -> None:
    with Cluster(nodes=1) as cluster:
        site = Site(cluster, "busy", cluster.users[0], limit_s=120, more="keep_runs = 5\n", crontab=BEAT).make()
        site.install()
        with full(cluster, cluster.users[1]):
            done: set[str] = set()

            def handed_over() -> bool:
                done.update(row.id for row in site.rows() if row.state == "COMPLETED")
                return len(done) >= HANDOVERS

            deadline = time.monotonic() + HANDOVERS * 180
            while not handed_over():
                assert time.monotonic() < deadline, site.log()
                time.sleep(2)
        missed = [run for run in site.cron.history("crontab+beat") if run.outcome is Outcome.MISSED]
        slots = {run.slot for run in site.runs()}
        lost = len(range(min(slots), max(slots), 2)) - len(slots) + 1
        late = lateness(site.runs())
        print(f"\n{len(done)} hand-overs, {len(slots)} slots, {lost} lost, {len(missed)} missed; late: {late}")
        site.each_slot_ran_once()
        assert (lost, missed) == (0, [])


def test_a_thousand_slots_under_random_faults() -> None:
    """A node crashes, slurmctld hangs, jobs are cancelled, the disk of the state directory is full, and hand-overs come
    each two minutes."""
    dice = random.Random(7)
    cluster = Cluster(nodes=3)
    with disk_of(cluster.users[0]) as disk, cluster:
        site = Site(cluster, "faults", cluster.users[0], limit_s=180, more="keep_runs = 5\n", crontab=WITNESSED).make()
        cluster.run(["ln", "-s", str(disk), str(site.directory / ".resil")], site.user, check=True)
        site.install()
        began = time.time()
        told: Counter[str] = Counter()
        ended: set[str] = set()
        records: dict[int, RunRecord] = {}

        def collect() -> list[RunRecord]:
            """All records by slot: the history keeps those of the last half of an hour or so."""
            records.update({run.slot: run for run in site.cron.history("crontab+beat")})
            return [records[slot] for slot in sorted(records)]

        def crash() -> None:
            for row in site.running()[:1]:
                cluster.fail_node(row.node)
                time.sleep(20)
                cluster.start_slurmd(row.node)

        def hang() -> None:
            cluster.stop_controller()
            time.sleep(dice.randint(3, 15))
            cluster.continue_controller()

        def cancel_one() -> None:
            if rows := [*site.running(), *site.waiting()]:
                cluster.run(["scancel", dice.choice(rows).id], site.user)

        def fill_disk() -> None:
            ballast = fill(disk)
            time.sleep(dice.randint(3, 15))
            ballast.unlink()

        while time.time() - began < SLOTS * 2:
            time.sleep(dice.randint(10, 30))
            fault = dice.choice([crash, hang, cancel_one, cancel_one, fill_disk])
            told[fault.__name__] += 1
            fault()
            collect()
            ended |= {row.id for row in site.rows() if row.state == "COMPLETED"}
            with suppress(RuntimeError):
                cluster._nodes_restored()
        until(lambda: max(run.slot for run in site.runs()) > time.time() - 10, "it to be on time again", every_s=1)

        def untold() -> list[int]:
            """Slots that no record tells of: neither run, nor skipped or missed with others, nor cut short."""
            runs = collect()
            known = {slot for run in runs for slot in range(run.slot, run.slot - 2 * run.count, -2)}
            known |= {slot - 1 for slot in known}  # missed slots are recorded a second before the one that runs
            return sorted(set(range(runs[0].slot, runs[-1].slot, 2)) - known)

        with suppress(TimeoutError):
            until(lambda: not untold(), "each slot to be told", every_s=2)
        runs = collect()
        outcomes = Counter(str(run.outcome) for run in runs)
        others = [(run.slot, str(run.outcome), run.count, run.summary) for run in runs if run.outcome != Outcome.DONE]
        ran = Counter(map(int, (site.directory / "ran").read_text().split()))
        print(
            f"\n{len(runs)} records, {len(ran)} slots ran; {dict(told)}, {len(ended)} hand-overs: {dict(outcomes)}, "
            f"{len(untold())} without a word; late: {lateness(runs)}; {others}"
        )
        if keep := os.environ.get("RESIL_SOAK_KEEP"):
            shutil.copytree(disk, keep)
        assert [slot for slot, times in ran.items() if times > 1] == []
        assert {run.slot for run in runs if run.outcome is Outcome.DONE} <= set(ran), "what is told as done was run"
        assert untold() == []
