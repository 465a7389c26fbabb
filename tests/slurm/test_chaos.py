"""`make chaos`: nights of random faults on a real cluster, each drawn from its seed. A training of four ranks on two
nodes always ends with the loss of one left alone, or is held with the true reason; nothing is told twice, nothing is
lost, and nothing is left behind.

RESIL_CHAOS_SEED=17 replays one night, 17-20 four: the same faults at the same steps, on the same ranks.
RESIL_CHAOS_NIGHTS=200 are as many, and 20 by default (`make soak`); RESIL_CHAOS_CLUSTERS=2 are side by side, four by
default. RESIL_CHAOS_TABLE is the file of the table; what a night that went wrong has left is kept beside it.
"""

from __future__ import annotations

import os
import queue
import signal
import tempfile
import threading
import time
import traceback
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.lab.chaos.judge import Facts, judge
from tests.lab.chaos.night import keep, live
from tests.lab.chaos.plan import KINDS, plan
from tests.lab.disks import disk_of
from tests.lab.slurm.cluster import Cluster

pytestmark = [
    pytest.mark.soak,
    pytest.mark.skipif(os.environ.get("RESIL_SOAK") != "1", reason="takes an hour: set RESIL_SOAK=1"),
    pytest.mark.timeout(4 * 3600),
]
NIGHTS, CLUSTERS = int(os.environ.get("RESIL_CHAOS_NIGHTS", "20")), int(os.environ.get("RESIL_CHAOS_CLUSTERS", "4"))
FIRST, _, LAST = (os.environ.get("RESIL_CHAOS_SEED") or f"1-{NIGHTS}").partition("-")
SEEDS = range(int(FIRST), int(LAST or FIRST) + 1)
TABLE = Path(os.environ.get("RESIL_CHAOS_TABLE") or Path(tempfile.gettempdir(), "resil-chaos", "chaos.md"))


def row_of(facts: Facts, wrong: list[str], took_s: float) -> str:
    end = (
        "as left alone" if facts.final == facts.alone else f"held: {facts.night.lasting}" if facts.reason else "neither"
    )
    faults = ", ".join(map(str, facts.night.faults))
    launched = sum(one.launched for one in facts.attempts)
    cells = (facts.night.seed, faults, end, launched, len(facts.messages), f"{took_s:.0f} s", "; ".join(wrong) or "-")
    return f"| {' | '.join(map(str, cells))} |"


class Campaign:
    """The nights that are left, and what is known of the others."""

    def __init__(self) -> None:
        self.rows: dict[int, str] = {}
        self.wrong: dict[int, list[str]] = {}
        self._seeds: queue.SimpleQueue[int] = queue.SimpleQueue()
        self._clusters: list[Cluster] = []
        self._over = threading.Event()
        for seed in SEEDS:
            self._seeds.put(seed)

    def work(self) -> None:
        """Live through nights on one cluster until none is left."""
        with disk_of(Cluster.users[0]) as disk, Cluster() as cluster:
            self._clusters.append(cluster)
            while not self._over.is_set():
                try:
                    night = plan(self._seeds.get_nowait())
                except queue.Empty:
                    return
                began = time.monotonic()
                try:
                    facts, run = live(cluster, disk, night, self._over)
                except Exception as error:  # the others go on
                    self.wrong[night.seed] = [f"the night broke off: {error!r}"]
                    traceback.print_exc()
                    continue
                self.wrong[night.seed] = wrong = judge(facts)
                self.rows[night.seed] = row_of(facts, wrong, time.monotonic() - began)
                place = f" {keep(run, facts, wrong, TABLE.parent)}" if wrong else ""
                print(f"{self.rows[night.seed]}{place}", flush=True)

    def give_up(self) -> None:
        """End all clusters, and so the nights that wait for them."""
        self._over.set()
        for cluster in self._clusters:
            cluster.stop()

    def write(self) -> None:
        """Write the table of the nights so far."""
        head = "| seed | faults | the end | attempts | messages | took | wrong |\n|---|---|---|---|---|---|---|\n"
        TABLE.parent.mkdir(parents=True, exist_ok=True)
        TABLE.write_text(head + "\n".join(row for _, row in sorted(self.rows.items())) + "\n")


@contextmanager
def ended_by_term() -> Iterator[None]:
    """Let SIGTERM end the test as Ctrl-C does, so that nothing stays behind."""

    def interrupt(number: int, frame: object) -> None:
        raise KeyboardInterrupt

    before = signal.signal(signal.SIGTERM, interrupt)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


def test_each_night_ends_as_if_nothing_had_happened_or_is_held_with_the_true_reason() -> None:
    campaign = Campaign()
    print()
    with ended_by_term(), ThreadPoolExecutor(min(CLUSTERS, len(SEEDS))) as pool:
        workers = [pool.submit(campaign.work) for _ in range(min(CLUSTERS, len(SEEDS)))]
        try:
            for worker in workers:
                worker.result()
        except BaseException:
            campaign.give_up()
            raise
        finally:
            campaign.write()
    came = {fault.kind for seed in SEEDS for fault in plan(seed).faults}
    print(f"{len(campaign.rows)} nights with {len(came)} of {len(KINDS)} kinds of faults; the table: {TABLE}")
    wrong = {seed: sentences for seed, sentences in campaign.wrong.items() if sentences}
    assert not wrong, "\n".join(
        f"RESIL_CHAOS_SEED={seed} make chaos: {sentence}" for seed, sentences in wrong.items() for sentence in sentences
    )
