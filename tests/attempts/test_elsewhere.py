"""Queued jobs avoid a host that two attempts found bad; what people excluded stays, and the last node is spared."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from resilience.attempts.acting import close_by_hand
from resilience.attempts.elsewhere import (
    NO_NODE,
    avoid,
    describe_exclusion,
    note_submitted,
    read_excluded,
    read_standings,
)
from resilience.attempts.never_dry import keep_queued
from resilience.attempts.without import without_bad_nodes
from resilience.cluster import Node
from resilience.errors import NotSupported, SchedulerUnavailable
from resilience.job import JobState
from resilience.nodes.evidence import Evidence, Source, evidence_folder
from resilience.nodes.standing import State
from resilience.runs.breaker_file import read_breaker
from resilience.runs.submit import perform, prepare
from resilience.runs.submit_plan import SubmitRequest
from tests.attempts.test_acting import DISK, ENABLED, NETWORK, Run
from tests.lab.fakes import DOWN, NOW

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


@pytest.mark.parametrize("is_before", [True, False])
@pytest.mark.parametrize("question", ["jobs", "job", "nodes"])
def test_of_two_watchdogs_that_exclude_a_host_at_once_the_slower_one_keeps_what_the_faster_one_wrote(
    run: Run, monkeypatch: pytest.MonkeyPatch, question: str, is_before: bool
) -> None:
    run.fails(GPU, GPU, node="n7")
    ask = getattr(run.queue, question)

    def slow(*words: Any) -> Any:
        monkeypatch.undo()
        answer = ask(*words) if is_before else None
        assert "excluded n7 from job 50" in run.act(), "the faster one"
        run.clock.time += 5
        return answer if is_before else ask(*words)

    monkeypatch.setattr(run.queue, question, slow)
    since = run.clock.time
    run.act()
    (one,) = read_excluded(run.directory)
    assert (one.host, one.jobs, one.left, one.since) == ("n7", ("50",), (), since)
    assert close_by_hand(run.project, run.directory).changed == "job 50 may use n7 again"


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


def test_queued_jobs_avoid_a_host_that_failed_a_check_and_are_named_if_they_can(run: Run) -> None:
    run.has(60, reason="Priority", excluded="n7", partition="gpu")
    run.has(70, reason="Priority", partition="gpu", node_count=3)
    assert avoid(run.project, run.directory, {"n7": "/scratch is full"}) == ("50", "60")
    assert excluded(run) == {"50": "n7", "60": "n7", "70": ""}, "a job of three nodes has no other"
    assert run.act() == "" and excluded(run)["50"] == "n7", "not taken back"
    assert avoid(run.project, run.directory, {"n8": "slow", "n9": "slow"}) == ()


# ---- what is known of nodes from other runs, checks and people ------------------------------------------------------

XID = "NVRM: Xid (PCI:0000:3b:00): 79, pid=4711, name=python3, GPU has fallen off the bus.\n"


def knows(run: Run, source: Source, node: str = "n7", *, hours: float = 24.0, why: str = "broken") -> None:
    now = run.clock.now()
    until = now + hours * 3600 if source is Source.EXCLUDED else 0.0
    one = Evidence(node=node, time=now, source=source, why=why, about=f"{node} {now}", by="bob", until=until)
    assert evidence_folder(run.project).add([one], now) == 1


def state_of(run: Run, node: str = "n7") -> State:
    return next(one.state for one in read_standings(run.project) if one.node == node)


def test_the_queue_avoids_a_node_that_another_run_found_bad_and_may_use_it_again_a_day_later(run: Run) -> None:
    knows(run, Source.CHECK, why="/scratch is full")
    assert run.act() == "excluded n7 from job 50: a check failed: /scratch is full"
    assert excluded(run) == {"50": "n7"} and run.act() == ""
    run.fails("", end="terminated", save=10, node="n8")
    assert run.act() == "" and excluded(run) == {"50": "n7"}
    run.clock.time += 86400
    assert run.act() == "job 50 may use n7 again" and excluded(run) == {"50": ""}
    assert state_of(run) is State.PROBATION


def test_one_hard_xid_is_enough_and_it_is_kept_for_the_other_runs(run: Run) -> None:
    run.fails(XID, node="n7")
    assert "excluded n7 from job 50: the driver of its GPUs says: attempt 1 of gpt: Xid 79" in run.act()
    assert state_of(run) is State.EXCLUDED
    other = made(run.project.system.host.home.parent / "project")
    object.__setattr__(other.project.loaded.settings.nodes, "evidence", str(evidence_folder(run.project).path))
    assert "excluded n7 from job 50" in other.act() and excluded(other) == {"50": "n7"}


def test_without_leave_what_others_know_is_only_told(tmp_path: Path) -> None:
    run = made(tmp_path, ENABLED.replace("true", "false"))
    knows(run, Source.CHECK)
    assert run.act() == "it would exclude n7 from the queued jobs of gpt if [act] were enabled"
    assert run.act() == "" and run.queue.calls == []


def test_the_next_attempt_proves_that_it_avoided_the_node(run: Run) -> None:
    run.fails(XID, node="n7")
    run.act()
    assert read_excluded(run.directory)[0].proof == ""
    run.fails("", end="terminated", save=10, node="n[8-9]", ago_s=-60)
    run.clock.time += 60
    run.act()
    (one,) = read_excluded(run.directory)
    assert one.proof == "attempt 2 (job 102) began on n[8-9], without it"
    assert "and is excluded from job 50" in describe_exclusion(one) and describe_exclusion(one).endswith(one.proof)
    run.act()
    seen = [e for e in evidence_folder(run.project).read(run.clock.now()).evidence if e.source is Source.AVOIDED]
    assert [(e.node, e.job, e.run) for e in seen] == [("n7", "102", "gpt")]


@pytest.mark.parametrize(("nodes", "is_proof"), [("n[8-9]", True), ("n[7-8]", False)])
def test_an_attempt_that_begins_in_the_second_of_the_exclusion_proves_only_that_it_avoided_the_node(
    run: Run, nodes: str, is_proof: bool
) -> None:
    run.fails(XID, node="n7")
    run.clock.time += 0.7
    run.act()
    run.fails("", end="terminated", save=10, node=nodes, ago_s=-10)  # began at the whole second
    run.act()
    assert bool(read_excluded(run.directory)[0].proof) == is_proof


def test_an_attempt_that_ran_there_all_the_same_is_told_as_well(run: Run) -> None:
    run.fails(XID, node="n7")
    run.act()
    run.fails("", end="terminated", save=10, node="n[7-8]", ago_s=-60)
    run.act()
    assert read_excluded(run.directory)[0].proof.endswith("began on n[7-8], which it was to avoid")


def test_a_person_who_allows_a_node_has_the_last_word_until_it_fails_again(run: Run) -> None:
    run.fails(GPU, GPU, node="n7")
    run.act()
    run.clock.time += 60
    knows(run, Source.ALLOWED)
    assert run.act() == "job 50 may use n7 again" and run.act() == ""
    run.fails(GPU, node="n7", ago_s=-100)
    run.clock.time += 60
    assert "excluded n7" in run.act()


def test_whoever_closes_the_breaker_allows_its_nodes_for_all_runs_but_not_those_that_people_excluded(run: Run) -> None:
    run.fails(XID, node="n7")
    knows(run, Source.EXCLUDED, "n8")
    run.act()
    assert excluded(run) == {"50": "n[7-8]"}
    run.clock.time += 60
    assert close_by_hand(run.project, run.directory).changed == "job 50 may use n7 again"
    assert (state_of(run), state_of(run, "n8")) == (State.GOOD, State.EXCLUDED)
    assert run.act() == "" and excluded(run) == {"50": "n8"}


def test_a_node_without_which_the_run_made_progress_is_not_allowed_with_the_breaker(run: Run) -> None:
    """The breaker opened for something else since, and closing it brought the bad node back."""
    run.fails("", end="terminated", save=10, node="n8")
    run.fails(GPU, GPU, node="n7")
    run.act()
    run.fails("", end="terminated", save=20, node="n8", ago_s=-60)
    run.clock.time += 80
    run.fails(DISK, node="n9", ago_s=-90)
    run.clock.time += 30
    assert "opens" in run.act() and excluded(run) == {"50": "n7"}
    assert close_by_hand(run.project, run.directory).changed == ""
    assert excluded(run) == {"50": "n7"} and state_of(run) is State.EXCLUDED


def test_beyond_the_cap_nodes_stay_in_use(run: Run) -> None:
    run.queue.cluster = tuple(replace(node, state="ALLOCATED") for node in run.queue.cluster)
    knows(run, Source.CHECK, "n7")
    knows(run, Source.CHECK, "n8")
    run.act()
    assert excluded(run) == {"50": "n7"}, "one of three"


def test_evidence_that_cannot_be_read_takes_nothing_back_and_stops_no_breaker(run: Run) -> None:
    knows(run, Source.CHECK)
    run.fails("", end="terminated", save=10, node="n8")
    run.act()
    folder = evidence_folder(run.project).path
    folder.rename(folder.with_name("away"))
    folder.write_text("")
    assert run.act() == "" and excluded(run) == {"50": "n7"}
    run.fails(DISK, node="n8")
    assert "held job 50" in run.act() and excluded(run) == {"50": "n7"}


def test_a_disk_that_is_full_on_one_node_holds_no_job_that_runs_elsewhere(run: Run) -> None:
    """What the check before the launch found is no failure of the training that no restart heals."""
    why = (
        "the check before the start failed; job 50 will run without n7 (n7: mounts: /scratch: No space left on device)"
    )
    for count in (1, 2, 3):
        run.fails("resil: nodes: FAIL n7: mounts: /scratch: No space left on device\n", node=f"n{6 + count}")
        end = run.directory.path / "attempts" / f"{count:04d}.end"
        end.write_text(f'end = "exited"\nexit_code = 75\ntime = {NOW - 1}\nwhy = "{why}"\n')
        said = run.act()
        assert ("opens: 3 attempts in a row" in said) == (count == 3), "and it is bounded"
    assert "disk full" not in said and f"the last: unknown (attempt 3): {why[:30]}" in said


def test_a_warning_of_the_check_is_no_cause_of_a_later_failure(run: Run) -> None:
    run.fails("resil: nodes: WARN n7: gpu: No space left on device\nValueError: bad shape\n", node="n7")
    assert "disk full" not in run.act()


def test_a_node_that_failed_a_check_is_given_back_with_its_evidence(run: Run) -> None:
    knows(run, Source.CHECK)
    run.fails("", end="terminated", save=10, node="n8")
    assert avoid(run.project, run.directory, {"n7": "/scratch is full"}) == ("50",)
    assert run.act() == "" and excluded(run) == {"50": "n7"}
    run.clock.time += 86400
    assert run.act() == "job 50 may use n7 again"


# ---- submissions ----------------------------------------------------------------------------------------------------


def request(**fields: Any) -> SubmitRequest:
    return SubmitRequest(run="gpt", force=True, **fields)


def test_a_submission_excludes_bad_nodes_besides_those_of_the_user(run: Run) -> None:
    knows(run, Source.CHECK)
    found = without_bad_nodes(run.project, request(exclude="n9"))
    assert (found.request.avoid, [*found.avoided]) == ("n7", ["n7"])
    assert found.notes == ("without n7 (n7: a check failed: broken)",)
    assert prepare(run.project, found.request).plan.options["exclude"] == "n[7,9]"
    assert without_bad_nodes(run.project, request(exclude="n[7,9]")).notes == ()


def test_an_exclusion_in_a_users_own_script_is_kept(run: Run) -> None:
    """An option of the command line replaces a directive."""
    script = run.project.loaded.project / "my.sbatch"
    script.write_text("#!/bin/bash\n#SBATCH -x n9 -p gpu\ntrue\n")
    knows(run, Source.CHECK)
    found = without_bad_nodes(run.project, request(script=script))
    assert prepare(run.project, found.request).plan.options["exclude"] == "n[7,9]"
    found = without_bad_nodes(run.project, request(script=script, extra_args=("--exclude=n8",)))
    assert found.request.avoid == "" and found.notes == ("--exclude after -- replaces that of n7",)


@pytest.mark.parametrize(
    ("nodes", "note"),
    [
        ("3", "n7 is excluded, but the run needs 3 nodes, and no other is left: it may be used"),
        ("2-4", "without n7 (n7: a check failed: broken)"),
    ],
)
def test_a_run_that_needs_all_nodes_is_told(run: Run, nodes: str, note: str) -> None:
    knows(run, Source.CHECK)
    assert without_bad_nodes(run.project, request(extra_args=("--nodes", nodes))).notes == (note,)


def test_what_the_user_excludes_counts_when_a_run_needs_the_other_nodes(run: Run) -> None:
    """A job that excludes all nodes of its partition waits for ever."""
    knows(run, Source.CHECK)
    found = without_bad_nodes(run.project, request(exclude="n[8-9]"))
    note = "n7 is excluded, but the run needs 1 node, and no other is left: it may be used"
    assert (found.request.avoid, found.notes) == ("", (note,))
    found = without_bad_nodes(run.project, request(exclude="n[8-9]", extra_args=("--partition=gpu",)))
    assert found.request.avoid == ""


def test_a_node_that_the_user_asks_for_by_name_is_used(run: Run) -> None:
    """sbatch refuses a job that both wants and excludes a node."""
    knows(run, Source.CHECK)
    for words in (("--nodelist=n[7-8]",), ("-w", "n7")):
        found = without_bad_nodes(run.project, request(extra_args=words))
        assert found.request.avoid == ""
        assert found.notes == ("n7 is excluded, but --nodelist asks for it: a check failed: broken",)


def test_a_node_that_is_gone_is_not_excluded_as_sbatch_would_refuse_the_job(run: Run) -> None:
    knows(run, Source.CHECK, "gone")
    note = "gone is excluded, but the scheduler does not know it (any more)"
    assert without_bad_nodes(run.project, request()) == (request(), {}, (note,))


def test_without_an_answer_it_is_submitted_and_said(run: Run) -> None:
    knows(run, Source.CHECK)
    run.queue.trouble = DOWN
    found = without_bad_nodes(run.project, request())
    assert found.request.avoid == "" and "submitted with n7, which should be avoided: squeue did not" in found.notes[0]


def test_what_a_submission_excluded_is_taken_back_when_the_node_is_good_again(run: Run) -> None:
    knows(run, Source.CHECK)
    found = without_bad_nodes(run.project, request(exclude="n9"))
    result = perform(run.project, prepare(run.project, found.request))
    note_submitted(run.directory, result.ids, found.avoided, run.clock.now())
    run.queue.records[-1] = replace(run.queue.records[-1], excluded="n[7,9]", partition="gpu")
    assert run.act() == "excluded n7 from job 50: a check failed: broken", "of the new job it is already"
    run.clock.time += 86400
    assert run.act() == "job 50 may use n7 again; job 101 may use n7 again"
    assert excluded(run) == {"50": "", "101": "n9"}


def test_a_job_that_is_requeued_after_an_exclusion_has_expired_may_use_the_node_again(run: Run) -> None:
    """A requeued job keeps the list that it had when it began."""
    knows(run, Source.CHECK)
    run.act()
    assert excluded(run) == {"50": "n7"}
    waiting = run.queue.records[0]
    run.queue.records[0] = replace(waiting, state=JobState.RUNNING, nodes="n8", task_count=1)
    run.clock.time += 86400
    assert run.act() == "" and excluded(run) == {"50": "n7"} and read_excluded(run.directory) == ()
    run.queue.records[0] = replace(waiting, excluded="n[7,9]")
    assert run.act() == "job 50 may use n7 again" and excluded(run) == {"50": "n9"}
    calls = len(run.queue.calls)
    assert run.act() == "" and len(run.queue.calls) == calls, "nothing is left to do"


def test_a_node_that_is_bad_again_meanwhile_stays_excluded_from_the_requeued_job(run: Run) -> None:
    knows(run, Source.CHECK)
    run.act()
    waiting = run.queue.records[0]
    run.queue.records[0] = replace(waiting, state=JobState.RUNNING, nodes="n8", task_count=1)
    run.clock.time += 86400
    run.act()
    knows(run, Source.XID)
    run.act()
    run.queue.records[0] = waiting
    assert "may use" not in run.act() and excluded(run) == {"50": "n7"}
    run.clock.time += 8 * 86400
    assert run.act() == "job 50 may use n7 again"


def test_the_next_jobs_of_the_chain_exclude_what_is_bad_then(tmp_path: Path) -> None:
    run = made(tmp_path, ENABLED + "keep_queued = 1\n")
    run.queue.records.clear()
    knows(run, Source.CHECK)
    found = without_bad_nodes(run.project, request(exclude="n9"))
    perform(run.project, prepare(run.project, found.request))
    run.queue.records[0] = replace(run.queue.records[0], state=JobState.RUNNING)
    keep_queued(run.project, run.directory)
    assert run.queue.submissions[-1].options["exclude"] == "n[7,9]"
    run.queue.records[0] = replace(run.queue.records[0], state=JobState.COMPLETED)
    run.queue.records[1] = replace(run.queue.records[1], state=JobState.RUNNING)
    run.clock.time += 86400
    keep_queued(run.project, run.directory)
    assert run.queue.submissions[-1].options["exclude"] == "n9", "that of the user"


def test_a_node_that_is_gone_leaves_the_lists_of_jobs_as_slurm_would_refuse_them(tmp_path: Path) -> None:
    run = made(tmp_path, ENABLED + "keep_queued = 1\n")
    run.queue.records[0] = replace(run.queue.records[0], excluded="n[9,77]")
    knows(run, Source.CHECK)
    assert "excluded n7 from job 50" in run.act() and excluded(run) == {"50": "n[7,9]"}
    run.queue.records.clear()
    perform(run.project, prepare(run.project, request(exclude="n[9,77]")))
    run.queue.records[0] = replace(run.queue.records[0], state=JobState.RUNNING)
    keep_queued(run.project, run.directory)
    assert run.queue.submissions[-1].options["exclude"] == "n[7,9]"


def test_jobs_with_spares_are_queued_one_by_one(tmp_path: Path) -> None:
    """SLURM starts the next task of an array when the running one loses a node."""
    run = made(tmp_path, ENABLED + "keep_queued = 2\n[nodes]\nspares = 1\n[sbatch]\nnodes = 1\n")
    run.queue.records.clear()
    perform(run.project, prepare(run.project, request(template="srun")))
    run.queue.records[0] = replace(run.queue.records[0], state=JobState.RUNNING)
    for count in (2, 3):
        assert "queued 1 job behind" in keep_queued(run.project, run.directory)
        assert len(run.queue.submissions) == count
        assert run.queue.submissions[-1].options["array"] == "1%1"
        run.clock.time += 600
    assert keep_queued(run.project, run.directory) == ""
