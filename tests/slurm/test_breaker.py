"""A job that fails at once in an array of ten burns three tasks on a real SLURM; the others are held, not cancelled."""

from __future__ import annotations

import os
import pwd
import shutil
from pathlib import Path

import pytest

from resilience.layout import FOLDERS
from resilience.runs.templates.script import ScriptSpec, render
from resilience.settings.sections import ActSettings
from tests.lab.slurm.cluster import Cluster
from tests.lab.slurm.cluster_run import ClusterRun
from tests.runs.templates.batch import SHIPPED

soak = pytest.mark.skipif("RESIL_SOAK" not in os.environ, reason="takes minutes; RESIL_SOAK=1 runs it")


class Loop(ClusterRun):
    """A run directory of its own, and an array of it."""

    @property
    def directory(self) -> Path:
        return self.cluster.shared / self.name

    def queue(self, command: str, *options: str, template: str = "python", enabled: bool = True) -> str:
        entry = pwd.getpwnam(self.user)
        if not self.directory.exists():
            for path in (self.directory, *(self.directory / name for name in FOLDERS)):
                path.mkdir(mode=0o700)
                shutil.chown(path, entry.pw_uid, entry.pw_gid)
            (self.directory / "submissions.jsonl").write_text('{"event":"intent","token":"token"}\n')
        spec = ScriptSpec(
            run=self.name, run_dir=str(self.directory), command=command, beat_s=1, signal_lead_s=20,
            act=ActSettings(enabled=enabled),
        )  # fmt: skip
        script = render(SHIPPED, template, spec)
        self.job = self.cluster.sbatch(script, "-t10", f"--comment=resil:{self.name}:token", *options)
        return self.job

    @property
    def burnt(self) -> int:
        """The attempts that launched the training."""
        ends = [self.end(number) for number in range(1, 30)]
        return sum(bool(end.get("launched")) for end in ends)

    @property
    def queued(self) -> set[str]:
        """State and reason of the tasks that have not ended."""
        return {row for row in self.cluster.squeue("%T %r", "-j", self.job) if row.split()[0] in ("PENDING", "RUNNING")}


@pytest.mark.parametrize("template", ["python", pytest.param("srun", marks=soak)])
def test_a_crash_loop_burns_three_of_ten_tasks_and_the_others_are_held(cluster: Cluster, template: str) -> None:
    loop = Loop(cluster, f"loop-{template}")
    job = loop.queue("exit 1", "--array=1-10%1", template=template)
    loop.until(lambda: loop.queued == {"PENDING JobHeldUser"}, "the rest of the array to be held")
    assert loop.burnt == 3
    assert loop.log.count("the breaker of run") == 1 and "nothing was cancelled" in loop.log
    assert (loop.directory / "attempts" / "breaker.held").read_text().split() == [job]
    later = loop.queue("touch launched", template=template)  # another job id
    loop.until(lambda: cluster.job_state(later) == "FAILED", "a later job to end at its start")
    assert loop.burnt == 3
