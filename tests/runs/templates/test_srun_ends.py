"""What the end of srun is worth: it ends with 0 when SLURM gives up one of its nodes. With a pretended SLURM."""

from __future__ import annotations

import pytest

from tests.runs.templates.batch import Batch, Script

SRUN = (
    '#!/bin/bash\nwhile [[ $1 == -* ]]; do shift; done\nexec env SLURM_PROCID=0 SLURM_LOCALID=0 SLURM_NTASKS=1 "$@"\n'
)
SQUEUE = '#!/bin/bash\necho "$@" >>{log}\ncat {answer} 2>/dev/null || exit 1\n'


class Slurm:
    """squeue and srun as programs on PATH; squeue says what the file `answer` says, and fails when there is none."""

    def __init__(self, batch: Batch) -> None:
        self.batch = batch
        self.answer = batch.root / "answer"
        self.asked = batch.root / "asked"
        batch.program("srun", SRUN)
        self.path = batch.program("squeue", SQUEUE.format(log=self.asked, answer=self.answer))

    def says(self, text: str) -> None:
        self.answer.write_text(text)

    def run(self, command: str, job: int = 7, nodes: int = 1, **spec: object) -> Script:
        environment = {
            **self.path,
            "RESIL_SCHEDULER": "",
            "SLURM_NNODES": str(nodes),
            "SLURM_JOB_END_TIME": "1800000000",
            "SQUEUE_PARTITION": "hides-everything",
        }
        return self.batch.run(command, job, template="srun", environment=environment, **spec)


@pytest.fixture
def slurm(batch: Batch) -> Slurm:
    return Slurm(batch)


def test_exit_0_of_srun_finishes_the_run_while_the_job_is_ours(slurm: Slurm) -> None:
    slurm.says("6 RUNNING\n7 RUNNING\n")
    assert slurm.run("true").wait() == 0
    assert slurm.batch.is_finished
    assert slurm.batch.end(1) | {"end": "finished", "gone": True} == slurm.batch.end(1)


@pytest.mark.parametrize("state", ["PENDING", "COMPLETING", "NODE_FAIL", "REQUEUED"])
def test_exit_0_of_srun_is_no_success_when_slurm_has_taken_the_job_away(slurm: Slurm, state: str) -> None:
    slurm.says(f"7 {state}\n")
    script = slurm.run("true")
    assert script.wait() == 75
    assert "this is not a success" in script.text
    assert not slurm.batch.is_finished
    assert slurm.batch.end(1)["end"] == "lost"


def test_exit_1_of_srun_is_no_failure_when_slurm_has_taken_the_job_away(slurm: Slurm) -> None:
    """SLURM 24.11 and 26.05: a lost node makes srun exit with 1."""
    slurm.says("7 COMPLETING\n")
    script = slurm.run("exit 1")
    assert script.wait() == 1
    assert "nor a failure of the training" in script.text
    assert slurm.batch.end(1) | {"end": "lost", "exit_code": 1} == slurm.batch.end(1)


@pytest.mark.parametrize("answer", [None, "", "8 RUNNING\n"], ids=["fails", "empty", "lacks us"])
def test_when_slurm_does_not_answer_the_code_is_kept_and_the_run_not_marked(slurm: Slurm, answer: str | None) -> None:
    if answer is not None:
        slurm.says(answer)
    script = slurm.run("true")
    assert script.wait() == 0
    assert "the run is not marked as finished" in script.text
    assert not slurm.batch.is_finished


def test_another_code_of_srun_is_kept_whatever_slurm_says(slurm: Slurm) -> None:
    slurm.says("7 COMPLETING\n")
    assert slurm.run("exit 3").wait() == 3
    assert slurm.batch.end(1)["end"] == "terminated"


def test_after_a_broken_srun_on_several_nodes_the_successor_asks_slurm_as_well(slurm: Slurm) -> None:
    slurm.says("7 COMPLETING\n")
    assert slurm.run("exit 3", nodes=2).wait() == 3
    assert slurm.batch.end(1)["gone"] is False

    slurm.says("7 COMPLETING\n8 RUNNING\n")
    script = slurm.run("touch launched", job=8, previous_wait_s=2)
    slurm.batch.launches_nothing("job 7 is COMPLETING", script=script)

    slurm.says("7 FAILED\n9 RUNNING\n")
    script = slurm.run("exit 4", job=9)
    assert script.wait() == 4
    assert slurm.batch.end(1)["end"] == "terminated", "its own record of its end is kept"


def test_squeue_is_asked_once_for_all_and_never_for_one_job(slurm: Slurm) -> None:
    slurm.says("7 RUNNING\n")
    slurm.run("exit 3")
    (line,) = slurm.asked.read_text().splitlines()
    assert "-t all" in line
    assert "-j" not in line.split()


def test_the_variables_of_a_task_are_expanded_in_the_task(slurm: Slurm) -> None:
    slurm.says("7 RUNNING\n")
    script = slurm.run('echo "rank $RANK of $WORLD_SIZE, local $LOCAL_RANK"; exit 3')
    assert "rank 0 of 1, local 0" in script.text
