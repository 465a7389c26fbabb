"""Jobs with spares, with a pretended SLURM: on which nodes the batch shell launches, and when it launches again."""

from __future__ import annotations

import signal
from collections.abc import Mapping
from typing import Any

import pytest

from resilience.settings.sections import ActSettings
from tests.lab.waiting import until
from tests.runs.templates.batch import Batch, Script

SRUN = """\
#!/bin/bash
echo "$1 $2 $3 $4|$SLURM_JOB_NODELIST|$SLURM_NNODES|$SLURM_NTASKS|$MASTER_ADDR|$RESIL_ATTEMPT" >>launches
while [[ $1 == -* ]]; do shift; done
exec env SLURM_PROCID=0 SLURM_LOCALID=0 "$@"
"""
SQUEUE = """\
#!/bin/bash
case "$*" in
  *'%A %N'*) echo "7 $(cat nodes)" ;;
  *) echo '7 RUNNING' ;;
esac
"""
SCONTROL = """\
#!/bin/bash
case "$1 $2" in
  'show hostnames') tr ',' '\\n' <<<"$3" ;;
  requeue*) ;;
  *) exit 1 ;;
esac
"""
LOSES = "if [ $RESIL_ATTEMPT -le {times} ]; then sed -i 's/,[^,]*//' nodes; exit {code}; fi"
"""A training whose job loses its second node in the first attempts."""


@pytest.fixture
def slurm(batch: Batch) -> Batch:
    for name, text in (("squeue", SQUEUE), ("scontrol", SCONTROL)):
        batch.program(name, text)
    (batch.root / "nodes").write_text("n1,n2,n3\n")
    return batch


def start(
    batch: Batch, command: str, *, spares: str = "false", variables: Mapping[str, str] = {}, **wishes: Any
) -> Script:
    environment: Mapping[str, str] = {
        **batch.program("srun", SRUN),
        **variables,
        "RESIL_SCHEDULER": "",
        "SLURM_JOB_NODELIST": "n1,n2,n3",
        "SLURM_NNODES": "3",
        "SLURM_NTASKS": "12",
        "SLURM_NTASKS_PER_NODE": "4",
        "SLURM_JOB_END_TIME": "1800000000",
    }
    wishes = {"launch_nodes": 2, **wishes}
    return batch.start(command, template="srun", environment=environment, spares=spares, **wishes)


def launches(batch: Batch) -> list[list[str]]:
    """Options of srun and its variables, per launch."""
    lines = (batch.root / "launches").read_text().splitlines()
    return [line.split("|") for line in lines]


def ends(batch: Batch) -> list[object]:
    found = (batch.end(number) for number in range(1, 9))
    return [end["end"] for end in found if end]


def test_the_launch_has_the_first_nodes_and_the_rest_is_spare(slurm: Batch) -> None:
    script = start(slurm, "true")
    assert script.wait() == 0 and "the launch has the nodes n1,n2; spares: n3" in script.text
    (launch,) = launches(slurm)
    assert launch[0].startswith("--nodes=2 --nodelist=n1,n2 --kill-on-bad-exit=1")
    assert launch[1:] == ["n1,n2", "2", "8", "n1", "1"]


@pytest.mark.parametrize("code", [0, 1, 137])
def test_a_lost_node_is_another_attempt_of_the_same_job(slurm: Batch, code: int) -> None:
    """Whatever code srun has, also 0; and without the Python of resil."""
    script = start(slurm, LOSES.format(times=1, code=code))
    assert script.wait() == 0 and slurm.is_finished
    first, second = launches(slurm)
    assert second[0].startswith("--nodes=2 --nodelist=n1,n3 --overlap --mem=0")
    assert (first[1:], second[1:]) == (["n1,n2", "2", "8", "n1", "1"], ["n1,n3", "2", "8", "n1", "2"])
    assert ends(slurm) == ["lost", "finished"]
    assert slurm.end(1)["why"] == "SLURM has given up node n2" and slurm.end(1)["gone"] is False


def test_without_another_spare_the_job_ends(slurm: Batch) -> None:
    script = start(slurm, LOSES.format(times=9, code=0))
    assert script.wait() == 75 and ends(slurm) == ["lost", "lost"] and not slurm.is_finished


def test_then_a_job_that_requeues_itself_does_so(slurm: Batch) -> None:
    """SLURM does not: with --no-kill the job has not failed."""
    script = start(slurm, LOSES.format(times=9, code=1), act=ActSettings(enabled=True, requeue=True))
    script.wait()
    assert ends(slurm) == ["lost", "lost"] and "requeued" in slurm.events()


def test_any_other_failure_ends_the_job_as_ever(slurm: Batch) -> None:
    assert start(slurm, "exit 3", spares="echo nothing is known").wait() == 3 and ends(slurm) == ["exited"]


@pytest.mark.parametrize(("code", "end"), [(10, "lost"), (11, "exited")])
def test_a_node_that_resil_names_is_replaced(slurm: Batch, code: int, end: str) -> None:
    said = f'echo "$RESIL_LEFT|$SLURM_NNODES" >asked; echo n1,n3 n2 is bad; exit {code}'
    script = start(slurm, "[ $RESIL_ATTEMPT != 1 ] || exit 3", spares=said)
    assert script.wait() == 0 and ends(slurm) == [end, "finished"]
    assert (slurm.root / "asked").read_text() == "2 n1 n2 n3|3\n"
    assert [launch[1] for launch in launches(slurm)] == ["n1,n2", "n1,n3"]


def test_too_few_good_nodes_end_the_job(slurm: Batch) -> None:
    script = start(slurm, "exit 3", spares="echo - n1 and n2 are bad; exit 11")
    assert script.wait() == 3 and ends(slurm) == ["exited"]


def test_a_bad_node_of_the_preflight_is_replaced_before_the_launch(slurm: Batch) -> None:
    script = start(slurm, "true", preflight="echo n2,n3 n1 is full; exit 11")
    assert script.wait() == 0 and ends(slurm) == ["finished"]
    assert launches(slurm)[0][1:] == ["n2,n3", "2", "8", "n2", "1"]


def test_a_killed_run_is_not_launched_again(slurm: Batch) -> None:
    script = start(slurm, f"touch {slurm.run_dir}/switches/kill; sed -i 's/,[^,]*//' nodes; exit 1")
    assert script.wait() == 1 and ends(slurm) == ["lost"] and len(launches(slurm)) == 1


def test_signals_reach_the_second_attempt(slurm: Batch) -> None:
    """What a shell ignores when it begins it can never trap."""
    wait = "; touch launched; until [ -e $RESIL_RUN_DIR/switches/stop.7 ]; do sleep 0.05; done; exit 75"
    script = start(slurm, LOSES.format(times=1, code=1) + wait)
    until(lambda: slurm.launched, "the second launch", 30)
    assert script.wait_after(signal.SIGUSR1) == 75 and ends(slurm) == ["lost", "stopped"]


def test_another_job_does_not_begin_with_what_is_left_of_this_one(slurm: Batch) -> None:
    """A job that this one submits inherits its environment."""
    script = start(slurm, "true", variables={"RESIL_AGAIN": "8 n9"})
    assert script.wait() == 0 and launches(slurm)[0][1] == "n1,n2"
