"""The second witness with real processes: an idle job makes a hang that its log shows CRITICAL, a busy one does not."""

from __future__ import annotations

import time

import pytest

from resilience.errors import SchedulerError
from resilience.runs.run_directory import RunDirectory
from resilience.runs.submissions import Intent, Outcome, record_intent, record_result
from tests.contract.test_schedulers import Place, place  # noqa: F401 - a fixture
from tests.lab.fakes import ME, FakeClock
from tests.slurm.conftest import cluster  # noqa: F401 - a fixture
from tests.watch.checks.log.watcher import LogWatcher
from tests.watch.checks.outcome import outcome

TRAINING = """\
srun -n 1 bash -c '
computes() {{ until [ -e {0}/$1 ]; do :; done; }}
for step in $(seq 60); do echo "step $step loss 1"; done; computes hangs
echo "step 61 loss 1"; touch {0}/hung; until [ -e {0}/goes-on ]; do sleep 1; done
echo "step 62 loss 1"; touch {0}/went-on; computes forever'
"""


@pytest.mark.timeout(300)
def test_a_silent_job_that_computes_is_no_page_and_an_idle_one_is_critical(place: Place) -> None:  # noqa: F811
    clock = FakeClock(time.time())
    directory = RunDirectory(place.directory / "runs" / "gpt")
    directory.create("")
    submission = place.submission(TRAINING.format(place.directory), output="train.log")
    log = place.directory / "train.log"
    intent = Intent(submission.token, "", submission.script, (), clock.now(), by=ME, output=str(log))
    record_intent(directory, intent)
    job = place.scheduler.submit(submission).id
    record_result(directory, submission.token, Outcome.SUBMITTED, clock.now(), job_id=job)
    watchdog = LogWatcher(place.directory, "gpt", clock=clock, scheduler=lambda *_, **__: place.scheduler)

    def seconds() -> float:
        try:
            return place.scheduler.cpu_seconds(job)
        except SchedulerError:  # the step has not begun
            return 0.0

    def look(later_s: float) -> tuple[str, str]:
        clock.sleep(later_s)
        found = watchdog.finding()
        return outcome(found), found.summary

    place.until(lambda: "step 60 " in place.text("train.log") and seconds() >= 1, "the job to compute")
    assert look(1)[0] == "OK"
    (place.directory / "hangs").touch()
    place.until((place.directory / "hung").exists, "the job to sleep")
    assert [look(1)[0], look(400)[0]] == ["OK", "OK"]
    found, summary = look(400)
    assert found == "CRITICAL no-progress" and "the job is idle" in summary, summary

    (place.directory / "goes-on").touch()
    place.until((place.directory / "went-on").exists, "the job to compute again")
    assert [look(1)[0], look(400)[0]] == ["OK", "OK"]
    used = seconds()
    place.until(lambda: seconds() >= used + 1, "the job to go on computing")
    assert [look(600)[0], look(800)[0]] == ["OK", "WARNING no-progress"], "a busy job proves nothing"
    place.scheduler.cancel([job])
    place.ended(job)
