"""Queued jobs avoid a host that two attempts found bad; what people excluded stays, and the last node is spared."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from resilience.attempts.acting import close_by_hand
from resilience.attempts.elsewhere import NO_NODE, read_excluded
from resilience.cluster import Node
from resilience.errors import NotSupported, SchedulerUnavailable
from resilience.job import JobState
from resilience.runs.breaker_file import read_breaker
from tests.attempts.test_acting import DISK, ENABLED, NETWORK, Run
from tests.lab.fakes import DOWN

GPU = "RuntimeError: CUDA error: uncorrectable ECC error encountered\n"
HOSTS = ("n7", "n8", "n9")


@pytest.fixture
def run(tmp_path: Path) -> Run:
    return made(tmp_path)


def made(tmp_path: Path, settings: str = ENABLED) -> Run:
    run = Run(tmp_path, settings)
    run.has(50, tasks="4-10%1", task_count=7, reason="Priority", partition="gpu", node_count=1)
    run.queue.cluster = tuple(Node(name, "IDLE", partitions=("gpu",)) for name in HOSTS)
    return run


def excluded(run: Run) -> dict[str, str]:
    return {str(job.id): job.excluded for job in run.queue.records}


def test_the_queue_avoids_a_host_that_two_attempts_name_for_a_cause_of_hosts(run: Run) -> None:
    run.fails(GPU, node="n7")
    assert run.act() == "" and excluded(run) == {"50": ""}, "a single one proves nothing"
    run.fails(GPU, node="n8")
    assert run.act() == "" and excluded(run) == {"50": ""}
    run.fails("", end="terminated", save=10, node="n7")
    run.fails(GPU, node="n7")
    assert run.act() == "excluded n7 from job 50: 2 attempts ended by gpu fault there"
    assert excluded(run) == {"50": "n7"}
    calls = len(run.queue.calls)
    assert run.act() == "" and run.queue.calls[calls:] == ["jobs"], "done once, with one query of the queue since"


@pytest.mark.parametrize("cause", ["", NETWORK])
def test_the_queue_avoids_a_host_where_everything_fails_while_others_are_fine(run: Run, cause: str) -> None:
    run.fails("", end="terminated", save=10, node="n8")
    run.fails(cause, cause, node="n7")
    assert "all 2 attempts there failed, while others made progress" in run.act()
    assert excluded(run) == {"50": "n7"}


def test_one_more_may_try_elsewhere_although_only_a_person_could_heal_the_cause(run: Run) -> None:
    run.fails("", end="terminated", save=10, node="n8")
    run.fails("", "", "", node="n7")
    assert "excluded n7 from job 50" in run.act()
    run.clock.time += 10
    assert "released job 50_4" in run.act()
    run.queue.records[0] = replace(run.queue.records[0], state=JobState.FAILED)
    run.fails("", ago_s=-9, node="n8")
    run.clock.time += 1000
    assert "released" not in run.act() and run.queue.records[1].reason == "JobHeldUser", "it is not the host"


def test_a_failing_program_is_no_fault_of_its_host(run: Run) -> None:
    run.fails("", end="terminated", save=10, node="n8")
    run.fails(DISK, DISK, node="n7")
    run.act()
    assert excluded(run) == {"50": ""}


def test_while_an_attempt_trains_the_queued_jobs_behind_it_avoid_the_host(run: Run) -> None:
    run.fails("", end="terminated", save=10, node="n8")
    run.fails("", "", "", node="n7")
    (run.directory.path / "attempts" / "0004.end").unlink()
    assert "excluded n7" in run.act() and "hold" not in run.queue.calls


def test_what_a_person_excluded_stays_also_when_the_breaker_is_closed(run: Run) -> None:
    run.queue.records[0] = replace(run.queue.records[0], excluded="n9")
    run.has(60, reason="JobHeldUser", excluded="n7", partition="gpu")
    run.fails(GPU, GPU, node="n7")
    run.act()
    assert excluded(run) == {"50": "n[7,9]", "60": "n7"}
    assert close_by_hand(run.project, run.directory).changed == "job 50 may use n7 again"
    assert excluded(run) == {"50": "n9", "60": "n7"} and read_excluded(run.directory) == ()


def test_a_person_who_allows_the_host_again_has_the_last_word(run: Run) -> None:
    run.fails(GPU, GPU, node="n7")
    run.act()
    run.queue.records[0] = replace(run.queue.records[0], excluded="")
    assert run.act() == "" and excluded(run) == {"50": ""}


def test_failures_of_yesterday_are_forgiven(run: Run) -> None:
    run.fails(GPU, GPU, node="n7")
    run.act()
    run.clock.time += 86400
    assert run.act() == "job 50 may use n7 again" and excluded(run) == {"50": ""}


@pytest.mark.parametrize(
    "others",
    [(), (Node("n8", "IDLE", ("DRAIN",), partitions=("gpu",)),), (Node("n8", "IDLE", partitions=("cpu",)),)],
    ids=["alone", "drained", "elsewhere"],
)
def test_the_last_node_that_could_run_a_job_is_never_excluded(run: Run, others: tuple[Node, ...]) -> None:
    run.queue.cluster = (run.queue.cluster[0], *others)
    run.fails(GPU, GPU, node="n7")
    assert run.act() == "" and excluded(run) == {"50": ""}
    assert read_excluded(run.directory)[0].left == ("50",)


def test_an_exclusion_after_which_no_node_is_left_is_taken_back(run: Run) -> None:
    """Of features and GPUs only SLURM knows: it accepts the change, and then the job cannot start."""
    run.fails(GPU, GPU, node="n7")
    run.act()
    run.queue.records[0] = replace(run.queue.records[0], reason=NO_NODE)
    assert run.act() == "job 50 may use n7 again"
    run.queue.records[0] = replace(run.queue.records[0], reason="Priority")
    assert run.act() == "" and excluded(run) == {"50": ""}, "for good"


def test_many_bad_hosts_are_none(run: Run) -> None:
    run.queue.cluster = tuple(Node(f"n{number}", "IDLE", partitions=("gpu",)) for number in range(1, 9))
    for number in (1, 2, 3):
        run.fails(GPU, GPU, node=f"n{number}", save=number)
    run.act()
    assert excluded(run) == {"50": "n[1-3]"}
    run.fails(GPU, GPU, node="n4", save=4)
    run.act()
    assert excluded(run) == {"50": ""}


def test_a_host_that_the_scheduler_does_not_know_is_not_excluded(run: Run) -> None:
    run.fails(GPU, GPU, node="gone")
    assert run.act() == "" and excluded(run) == {"50": ""}


def test_without_leave_it_is_told_once_and_nothing_is_asked(tmp_path: Path) -> None:
    run = made(tmp_path, ENABLED.replace("true", "false"))
    run.fails(GPU, GPU, node="n7")
    assert run.act() == "it would exclude n7 from the queued jobs of gpt if [act] were enabled"
    assert run.act() == "" and run.queue.calls == []


def test_where_it_is_refused_it_is_told_once(run: Run) -> None:
    run.queue.troubles["update"] = NotSupported("only this host")
    run.fails(GPU, GPU, node="n7")
    assert "n7 cannot be excluded from job 50: only this host" in run.act()
    assert run.act() == "" and run.queue.calls.count("update") == 1
    assert read_excluded(run.directory)[0].jobs == ()


def test_without_an_answer_the_next_tick_completes_it(run: Run) -> None:
    run.fails(GPU, GPU, node="n7")
    run.queue.troubles["update"] = DOWN
    with pytest.raises(SchedulerUnavailable):
        run.act()
    run.queue.troubles.clear()
    assert "excluded n7" in run.act() and excluded(run) == {"50": "n7"}


def test_a_new_job_of_the_run_avoids_the_host_as_well(run: Run) -> None:
    run.fails(GPU, GPU, node="n7")
    run.act()
    run.has(70, reason="Priority", partition="gpu")
    assert "excluded n7 from job 70" in run.act() and excluded(run) == {"50": "n7", "70": "n7"}


@pytest.mark.parametrize("text", ["", "{", '{"hosts": 7}', '{"hosts": [{"host": 7}]}', "[]"])
def test_a_damaged_file_is_none(run: Run, text: str) -> None:
    (run.directory.path / "attempts" / "excluded.json").write_text(text)
    assert read_excluded(run.directory) == ()


def test_the_breaker_opens_although_the_scheduler_does_not_answer_which_hosts_there_are(run: Run) -> None:
    run.fails(GPU, GPU, GPU, node="n7")
    run.queue.trouble = DOWN
    with pytest.raises(SchedulerUnavailable):
        run.act()
    assert read_breaker(run.directory) is not None
    run.queue.trouble = None
    assert "held job 50; excluded n7 from job 50" in run.act()
