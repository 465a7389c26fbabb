"""The tutorial, typed as it stands on a real cluster, ends with every watchdog OK."""

from __future__ import annotations

from tests.lab.slurm.cluster import Cluster
from tests.lab.slurm.cluster_run import ClusterRun
from tests.lab.tutorial import Typist


def test_the_tutorial_typed_as_it_stands_ends_with_every_watchdog_ok(cluster: Cluster) -> None:
    run = ClusterRun(cluster, "tiny")
    last = Typist(lambda words: run.resil(*words), run.write, run.project).type_all()
    assert any("finished" in line for line in last if line.startswith("JOB OK - tiny")), last
    assert any(line.startswith("LOG OK - ") for line in last), last
