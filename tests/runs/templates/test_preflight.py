"""The check of the nodes before the launch, in the batch shell: it ends a job that goes on elsewhere, and no other."""

from __future__ import annotations

import signal

import pytest

from resilience.settings.sections import ActSettings
from tests.runs.templates.batch import Batch

SHORTER = """\
#!/bin/bash
[ "$3" != 60 ] || set -- -k 1 1 "${@:4}"
exec /usr/bin/timeout "$@"
"""
"""A `timeout` that does not wait for a minute."""
BAD = "echo 'FAIL n3: mounts: full'; echo 'job 8 will run without n3'; exit 75"


def test_a_job_with_a_bad_node_ends_before_the_launch_and_says_why(batch: Batch) -> None:
    script = batch.run("touch launched", preflight=BAD)
    assert script.wait() == 75 and not (batch.root / "launched").exists()
    end = batch.end(1)
    assert (end["end"], end["launched"], end["why"]) == ("exited", False, "job 8 will run without n3")
    assert "resil: nodes: FAIL n3: mounts: full\nresil: nodes: job 8" in script.text
    (event,) = [record for record in batch.journal() if record["event"] == "nodes_checked"]
    assert (event["code"], event["said"]) == (75, "job 8 will run without n3")


@pytest.mark.parametrize("check", ["echo fine", "echo told; exit 1", "no-such-program", "exit 0", "kill -KILL $$"])
def test_a_check_that_says_nothing_else_lets_the_training_begin(batch: Batch, check: str) -> None:
    assert batch.run("exit 3", preflight=check).wait() == 3
    assert batch.events().index("nodes_checked") < batch.events().index("launch")


@pytest.mark.parametrize(("check", "code"), [("sleep 60", 124), ("trap '' TERM; while :; do sleep 1; done", 137)])
def test_a_check_that_hangs_does_not_keep_the_training_from_its_launch(batch: Batch, check: str, code: int) -> None:
    shorter = batch.program("timeout", SHORTER)
    assert batch.run("exit 3", preflight=check, environment=shorter).wait() == 3
    (event,) = [record for record in batch.journal() if record["event"] == "nodes_checked"]
    assert (event["code"], event["said"]) == (code, "no answer")


def test_without_the_setting_nothing_is_checked(batch: Batch) -> None:
    assert batch.run("exit 3").wait() == 3 and "nodes_checked" not in batch.events()


def test_three_jobs_that_end_so_open_the_breaker(batch: Batch) -> None:
    for job in (7, 8, 9):
        batch.run("true", job, preflight=BAD, act=ActSettings(enabled=True))
    assert (batch.run_dir / "attempts" / "breaker").exists()


def test_the_end_of_a_job_does_not_wait_for_the_check(batch: Batch) -> None:
    script = batch.start("touch launched", preflight="echo begun >begun; sleep 4")
    script.until_says("START attempt")
    assert script.wait_after(signal.SIGTERM) == 75
    assert batch.end(1)["why"] == "requested to stop before the launch"
    assert "launch" not in batch.events()
