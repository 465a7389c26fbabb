"""Every way to end, under `srun` of a real SLURM: two ranks on two nodes, and the second of them fails.

The table is that of tests/integrations/test_ways_to_end.py. Each row is a run of its own: a job that fails, the task of
its array after it, and where that is kept by a kill switch, a job after `resil clear`. All begin at once.
"""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from tests.integrations.test_ways_to_end import ENDS, FORMS, TRAINING, End
from tests.lab.disks import small_disk
from tests.lab.slurm.cluster import Cluster
from tests.lab.slurm.cluster_run import ClusterRun
from tests.lab.slurm.processes import until

AT_ONCE = ("step raises", "sys.exit(3)", "SIGINT")
"""The other faults come in the save before a stop by the kill switch."""
IN_CI = [
    *(("with", fault) for fault in ("kill", "save raises", "save hangs", "sys.exit(3)", "disk full")),
    ("without", "save raises"),
]
ROWS = [(form, fault) for form in FORMS for fault in ("", *ENDS)]
EXIT_TIMEOUT_S = 5
BOUND_S = 15
"""From the fault to the end of the attempt: a rank that left by an exception holds nobody."""
KILL_WAIT_S = 120
"""SLURM kills a rank that is deaf so late that the bound would show it."""
FINISHED = End(0, "finished", "")
CRASHES = {1, 143}
"""Of a job of which one rank has failed, besides that rank's own: srun's, when it ends the other one."""
SETTINGS = """\
[run]
name = "{name}"
command = '''{python} {training} {disk} {form} "$([ $RESIL_ATTEMPT -gt 1 ] || echo '{fault}')"'''
template = "srun"
[environment]
FAULT_RANK = 1
[attempt]
beat_s = 1
[guard]
exit_timeout_s = {exit_timeout_s}
force_exit = "on"
[sbatch]
time = "10"
nodes = 2
ntasks-per-node = 1
"""


@dataclass
class Story(ClusterRun):
    """A run whose ranks write to `disk`."""

    disk: Path = Path()

    def journal(self, who: str, event: str, attempt: int = 1) -> list[dict[str, Any]]:
        return [record for record in self.events(who, attempt) if record["event"] == event]

    def diary(self, rank: int, word: str) -> list[tuple[float, str]]:
        """When a rank has written lines that begin with a word, and the rest of them."""
        path = self.disk / f"diary.{rank}"
        lines = [line.partition(" ") for line in path.read_text().splitlines()] if path.exists() else []
        return [(float(time), text[len(word) + 1 :]) for time, _, text in lines if text.startswith(word)]


Stories = dict[tuple[str, str], Story]


@pytest.fixture(scope="module")
def stories() -> Iterator[Stories]:
    with ExitStack() as stack:
        disks = Path(tempfile.mkdtemp(prefix="resil-disks-", dir="/tmp"))
        stack.callback(shutil.rmtree, disks)
        disks.chmod(0o755)
        rows = ROWS if "RESIL_SOAK" in os.environ else IN_CI
        try:
            for form in FORMS:  # before the nodes boot: they have mount namespaces of their own
                stack.enter_context(small_disk(disks / form, "256k", mode="1777"))
        except pytest.skip.Exception:
            rows = [row for row in rows if row[1] != "disk full"]
        cluster = stack.enter_context(Cluster(kill_wait=KILL_WAIT_S))
        shutil.copy(TRAINING, cluster.shared)
        yield {row: begin(cluster, disks, *row) for row in rows}


def begin(cluster: Cluster, disks: Path, form: str, fault: str) -> Story:
    name = f"{form}-{fault}".replace(" ", "-").replace("(", "").replace(")", "")
    story = Story(cluster, name, disk=disks / form if fault == "disk full" else cluster.shared / name)
    settings = SETTINGS.format(
        name=name, python=cluster.python, training=cluster.shared / TRAINING.name, disk=story.disk, form=form,
        fault=fault, exit_timeout_s=EXIT_TIMEOUT_S,
    )  # fmt: skip
    story.write("resil.toml", settings)
    story.submit("--array", "2")
    return story


def rows() -> list[Any]:
    soak = pytest.mark.skipif("RESIL_SOAK" not in os.environ, reason="a minute and a half: set RESIL_SOAK=1")
    return [pytest.param(*row, marks=[] if row in IN_CI else [pytest.mark.soak, soak]) for row in ROWS]


@pytest.mark.parametrize(("form", "fault"), rows())
def test_one_of_two_ranks(stories: Stories, form: str, fault: str) -> None:
    if (form, fault) not in stories:
        pytest.skip("cannot mount a tmpfs here")
    story, expected = stories[form, fault], ENDS.get(fault, FINISHED)
    check_attempt(story, fault, expected)
    saved = [[int(step) for _, step in story.diary(rank, "saved")] for rank in range(2)]
    assert (max(saved[1]) > 2) is expected.saved

    story.cluster.wait_for(story.job, {"COMPLETED", "FAILED"})
    if not fault:
        assert f"the run {story.name} is finished; nothing to do" in story.log
    elif fault not in AT_ONCE:
        assert f"exiting with 75; to continue the run: resil clear {story.name}" in story.log
        assert not (story.directory / "attempts" / "0002").exists(), "it trains nothing until the switch is cleared"
        story.ask("clear")
        story.ask("submit")
    if fault:
        assert (story.until_end(2)["end"], story.end(2)["exit_code"]) == ("finished", 0), story.log
    for rank in range(2):
        begun = [int(step) for _, step in story.diary(rank, "begins")]
        assert begun == [0, *saved[rank][-1:]][: 2 if fault else 1], story.log


def check_attempt(story: Story, fault: str, expected: End) -> None:
    """The record, rank 0's last word and the batch shell's say the same, and soon."""
    end = story.until_end()
    codes = {expected.code} if expected.code in (0, 75) else CRASHES | {expected.code}
    assert end["end"] == expected.end and end["exit_code"] in codes, f"{end}\n{story.log}"
    (last,) = story.journal("0", "end")
    assert (last["ranks"], last["stopped"]) == (2, expected.end == "stopped"), last
    if expected.code in (0, 75):  # who finishes waits for no good-byes
        assert last["exit_code"] == expected.code and (last["well"] == 2 or not fault) and "why" not in last, last
    else:
        # A disk that rank 1 has filled may refuse rank 0's save of the same moment, too: then it says so itself.
        whys = ("rank 1", expected.why) if fault == "disk full" else ("rank 1",)
        assert last["exit_code"] == 1 and last["well"] < 2 and any(why in last["why"] for why in whys), last
        assert end["why"], story.log
    until(lambda: bool(story.journal("batch", "attempt_end")), "the last word of the batch shell")
    (told,) = story.journal("batch", "attempt_end")
    assert (told["end"], told["exit_code"]) == (end["end"], end["exit_code"])
    if fault:
        ((began, what),) = story.diary(1, "fault")
        bound_s = BOUND_S + (EXIT_TIMEOUT_S if fault == "save hangs" else 0)
        assert what == fault and told["time"] - began <= bound_s, story.log
