"""A run that does not run dry, in the batch shell: what a starting job queues, and a job that requeues itself."""

from __future__ import annotations

import json
import signal
from typing import Any

import pytest

from resilience.settings.sections import ActSettings
from tests.lab.waiting import until
from tests.runs.templates.batch import Batch, Script
from tests.runs.templates.test_breaker import CAN_HOLD, MAY_NOT

REQUEUES = ActSettings(enabled=True, requeue=True)
WAITS = 'while [ ! -e "$RESIL_RUN_DIR/go" ]; do sleep 0.05; done; exit 75'


def asked(batch: Batch) -> list[str]:
    """What scontrol was asked for."""
    path = batch.root / "scontrol.asked"
    return path.read_text().splitlines() if path.exists() else []


def run(batch: Batch, command: str, job: int = 7, act: ActSettings = REQUEUES, **wishes: Any) -> Script:
    variables = batch.program("scontrol", wishes.pop("scontrol", CAN_HOLD)) | wishes.pop("environment", {})
    script = batch.start(command, job, environment=variables, act=act, **wishes)
    if not wishes.get("says"):
        script.wait()
    return script


# ---- what a starting job queues ------------------------------------------------------------------------------------


def queue(batch: Batch, said: str, code: int = 0) -> str:
    return f"echo x >>{batch.root}/looked; echo warning; echo '{said}'; exit {code}"


@pytest.mark.parametrize(("code", "is_said"), [(0, True), (75, False), (127, False)])
def test_a_starting_job_queues_what_is_missing_once_and_trains_meanwhile(
    batch: Batch, code: int, is_said: bool
) -> None:
    script = batch.start(WAITS, keep_queued=queue(batch, "queued 2 jobs", code))
    until(lambda: {"keep_queued", "launch"} <= set(batch.events()), "the queue to be checked beside the launch")
    (batch.run_dir / "go").touch()
    assert script.wait() == 75 and (batch.root / "looked").read_text() == "x\n"
    (event,) = [record for record in batch.journal() if record["event"] == "keep_queued"]
    assert (event["code"], event["said"]) == (code, "queued 2 jobs")
    assert ("queued 2 jobs" in script.text) is is_said, "without a Python here it is silent"


def test_a_check_that_hangs_delays_neither_start_nor_end(batch: Batch) -> None:
    script = batch.run("exit 75", keep_queued="sleep 3600")
    assert script.wait() == 75 and batch.end(1)["end"] == "stopped"
    assert not [pid for pid in batch.processes() if pid != script.process.pid]


def test_a_job_that_may_not_train_queues_nothing(batch: Batch) -> None:
    (batch.run_dir / "finished").touch()
    batch.run("touch launched", keep_queued=queue(batch, "queued 2 jobs"))
    assert not (batch.root / "looked").exists()


# ---- requeue -------------------------------------------------------------------------------------------------------


def test_a_job_whose_attempt_ends_requeues_itself_and_its_exit_code_is_in_the_ledger(batch: Batch) -> None:
    assert run(batch, "exit 75").wait() == 75 and asked(batch) == ["requeue 7"]
    assert run(batch, "exit 3").wait() == 3 and asked(batch) == ["requeue 7"] * 2
    assert [batch.end(number)["exit_code"] for number in (1, 2)] == [75, 3]
    assert batch.events().count("requeued") == 2


def test_of_an_array_it_requeues_the_task_alone(batch: Batch) -> None:
    """The raw id of the last task that starts is that of the array."""
    run(batch, "exit 75", environment={"SLURM_ARRAY_JOB_ID": "7", "SLURM_ARRAY_TASK_ID": "10"})
    assert asked(batch) == ["requeue 7_10"]


def test_a_run_that_is_finished_or_killed_requeues_nothing(batch: Batch) -> None:
    batch.switch("kill").write_text('why = "enough"\n')
    assert run(batch, "true").wait() == 75
    batch.switch("kill").unlink()
    assert run(batch, f"touch {batch.switch('kill')}; exit 75").wait() == 75
    batch.switch("kill").unlink()
    assert run(batch, "exit 0").wait() == 0 and batch.is_finished
    assert run(batch, "exit 1").wait() == 0
    assert asked(batch) == []


def test_an_open_breaker_holds_the_job_that_requeues_itself(batch: Batch) -> None:
    for _ in range(2):
        run(batch, "exit 1")
    script = run(batch, "exit 1")
    held = batch.run_dir / "attempts" / "breaker.held"
    assert asked(batch) == ["requeue 7", "requeue 7", "requeuehold 7"] and held.read_text() == "7\n"
    script = run(batch, "touch launched", job=8)
    assert script.wait() == 75 and not batch.launched and asked(batch)[3:] == ["requeuehold 8"], "also at its start"
    assert held.read_text() == "7\n8\n", "so that `resil breaker close` releases both"


def test_without_leave_it_says_that_it_would_requeue(batch: Batch) -> None:
    script = run(batch, "exit 75", act=ActSettings(requeue=True))
    assert asked(batch) == [] and "it would requeue this job; to let it: enabled = true under [act]" in script.text
    assert "requeue" not in run(batch, "exit 75", act=ActSettings(enabled=True)).text and asked(batch) == []


def test_a_cancelled_job_does_not_run_again_and_one_at_its_time_limit_does(batch: Batch) -> None:
    for end, seconds in (("2000000000", 0), ("1000000000", 1)):
        script = run(batch, "echo ready; exec sleep 60", says="ready", environment={"SLURM_JOB_END_TIME": end})
        assert script.wait_after(signal.SIGTERM) == 143
        assert len(asked(batch)) == seconds and batch.end(1)["end"] == "terminated"


SQUEUE = '#!/bin/sh\ncase "$*" in *%r*) echo {reason} ;; *) echo "$SLURM_JOB_ID RUNNING" ;; esac\n'


@pytest.mark.parametrize(("reason", "requeues"), [("TimeLimit", ["requeue 7"]), ("None", []), ("", [])])
def test_slurm_tells_the_time_limit_from_a_cancel(batch: Batch, reason: str, requeues: list[str]) -> None:
    batch.program("squeue", SQUEUE.format(reason=reason))
    script = run(batch, "echo ready; exec sleep 60", says="ready", environment={"RESIL_SCHEDULER": ""})
    assert script.wait_after(signal.SIGTERM) == 143 and asked(batch) == requeues


def test_where_a_job_may_not_requeue_itself_it_is_said_once(batch: Batch) -> None:
    refused = MAY_NOT.replace("Access/permission denied", "Requested operation is presently disabled for job 7")
    script = run(batch, "exit 75", scontrol=refused)
    assert script.wait() == 75 and asked(batch) == ["requeue 7"]
    assert "this job cannot be requeued here (Requested operation is presently disabled" in script.text


def test_a_controller_that_does_not_answer_is_asked_again_and_a_late_answer_counts(batch: Batch) -> None:
    late = """#!/bin/sh
echo "$@" >>scontrol.asked
case $(grep -c . scontrol.asked) in
  1) echo "slurm_update error: Unable to contact slurm controller (connect failure)" >&2 ;;
  *) echo "Job is pending execution for job 7" >&2 ;;
esac
exit 1
"""
    script = run(batch, "exit 75", scontrol=late)
    assert asked(batch) == ["requeue 7"] * 2 and "cannot be requeued" not in script.text
    assert json.dumps("requeue") in json.dumps(batch.journal()[-1]) and batch.events()[-1] == "requeued"


def test_a_silent_controller_has_not_requeued_it(batch: Batch) -> None:
    script = run(batch, "exit 75", scontrol=CAN_HOLD + "exit 1\n")
    assert asked(batch) == ["requeue 7"] * 3 and batch.events()[-1] == "not_requeued"
    assert "this job cannot be requeued here (scontrol did not answer)" in script.text


def test_a_job_that_could_take_no_number_does_not_run_again_and_again(batch: Batch) -> None:
    (batch.run_dir / "attempts").rmdir()
    (batch.run_dir / "attempts").write_text("")
    assert run(batch, "touch launched").wait() == 75 and asked(batch) == []
