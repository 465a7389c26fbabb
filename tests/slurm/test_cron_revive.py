"""A training on a real SLURM whose batch shell finds the scheduler's chain dead, and starts it again."""

from __future__ import annotations

import json
import signal
import time
from collections.abc import Iterator

import pytest

from resilience.system.files import read_lines
from tests.lab.slurm.cluster import Cluster
from tests.lab.slurm.cron_site import Site
from tests.lab.slurm.processes import Process, later, until

TRAINING = """\
[run]
name = "gpt"
command = "sleep 600"
[attempt]
beat_s = 0.5
[sbatch]
time = "10"
mem = "100M"
"""


@pytest.fixture(scope="module")
def site() -> Iterator[Site]:
    with Cluster(nodes=2) as cluster:
        slow = "@every 4s /bin/true # resil: name=beat catch_up=none\n"
        made = Site(cluster, "watched", cluster.users[0], limit_s=180, crontab=slow).make()
        text = (made.directory / "resil.toml").read_text()
        made.write("resil.toml", text.replace("jitter_s = 0\n", "jitter_s = 0\nrevive = true\n", 1) + TRAINING)
        made.install()
        until(made.is_whole, "the chain to be whole", every_s=0.2)
        until((made.state / "heartbeat").exists, "the scheduler to begin", every_s=0.2)
        yield made


def test_a_training_starts_a_dead_chain_again(site: Site) -> None:
    scheduler = Process.of(json.loads((site.state / "heartbeat").read_text())["pid"])
    assert scheduler is not None
    scheduler.send(signal.SIGSTOP)  # on a busy machine it takes so long until it submits its successors and ends
    with later(3, lambda: scheduler.send(signal.SIGCONT)):
        site.cancel()
    site.cron.unstop()  # as the jobs were cancelled together
    for name, changes in (("heartbeat", {"time": -3600, "expected": -3540}), ("driver.json", {"time": -7200})):
        record = json.loads((site.state / name).read_text())
        record |= {key: time.time() + seconds for key, seconds in changes.items()}
        site.write(f".resil/.cron/{name}", json.dumps(record))
    assert "dead" in site.resil("status").stdout
    submitted = site.resil("submit")
    assert submitted.returncode == 0 and "the cron scheduler is dead" in submitted.stderr

    journal = site.directory / ".resil" / "gpt" / "journal"

    def is_revived() -> bool:
        lines = [line for path in journal.glob("*.batch.jsonl") for line in read_lines(path)]
        return any(line.get("event") == "cron_revived" for line in lines)

    until(is_revived, "the training to start it again", every_s=0.2)
    until(site.is_whole, "the chain to be whole again", every_s=0.2)
    site.ticks_on()
    assert site.resil("watch", "cron").returncode == 0
    site.resil("cancel", "gpt")
