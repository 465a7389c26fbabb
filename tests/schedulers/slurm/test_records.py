"""scontrol's and sinfo's text, and SLURM's JSON in both shapes: recorded answers are read, damaged ones are refused."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from resilience.cluster import Node
from resilience.errors import NotSupported, SchedulerUnavailable
from resilience.job import ExitCode, Job, JobId, JobState
from resilience.schedulers._slurm import records
from resilience.schedulers._slurm.records import parse_document, parse_exit_code, parse_states
from tests.schedulers.answers import RELEASES, in_seconds, recorded


def jobs(release: str) -> dict[tuple[JobId, int], Job]:
    parsed = records.parse_jobs(in_seconds(recorded(release, "scontrol_jobs.txt")))
    return {(job.id, job.raw_id): job for job in parsed}


@pytest.mark.parametrize("release", RELEASES)
def test_every_recorded_job_of_every_release_is_read(release: str) -> None:
    found = jobs(release)
    named = {job.name: job for job in found.values()}
    assert len(found) == 30
    assert (named["failed255"].exit_code, named["oom"].exit_code) == (ExitCode(255), ExitCode(0, 125))
    assert named["completing"].state is JobState.COMPLETING and named["begin"].start_time
    waiting = [job for job in found.values() if job.is_array_record]
    assert {(job.id.task, job.task_count) for job in waiting} >= {(None, 9), (None, 3)}
    assert named['na|me with "q" é'].time_limit_s == 217860
    assert named["array"].comment == "a b=c"
    assert named["requeued"].restarts == 1
    assert named["held"].start_time is None and named["held"].end_time is None
    assert named["nodefail"].reason == "NodeDown" and named["nodefail"].state is JobState.NODE_FAIL


@pytest.mark.parametrize(
    ("release", "document"),
    [("22.05", "squeue_all.json"), ("24.11", "scontrol_jobs.json"), ("26.05", "scontrol_jobs.json")],
)
def test_text_and_json_of_one_moment_say_the_same(release: str, document: str) -> None:
    from_json = {(job.id, job.raw_id): job for job in parse_document(recorded(release, document))}
    assert jobs(release) == from_json


def test_a_name_with_newlines_separators_and_quotes_is_read() -> None:
    parsed = records.parse_jobs(recorded("22.05", "scontrol_client.txt"))
    assert {job.name for job in parsed if job.id.array == 8} == {"new\nline"}
    odd = next(job for job in parsed if job.id.array == 1)
    assert odd.name == 'na|me "q" é\x1fu' and odd.comment == 'a|b c "q" é \tx\\ny'
    assert odd.stdout == f"/cluster/shared/slurm-{odd.id}.out"
    whole = next(job for job in parsed if job.is_array_record and job.id.array == 2)
    assert whole.stdout == "/cluster/shared/slurm-2_%a.out"


RECORD = (
    "JobId=7 JobName={name} UserId=alice(1001) GroupId=alice(1001) MCS_label=N/A Priority=1 Nice=0 Account=lab "
    "QOS=normal JobState=RUNNING Reason=None Dependency=(null) Requeue=1 Restarts=0 BatchFlag=1 Reboot=0 ExitCode=0:0 "
    "RunTime=00:00:19 TimeLimit=00:10:00 TimeMin=N/A SubmitTime=1795168484 EligibleTime=1795168484 AccrueTime=1 "
    "StartTime=1795168486 EndTime=1795169086 Deadline=N/A SuspendTime=None SecsPreSuspend=0 LastSchedEval=1 "
    "Scheduler=Backfill Partition=main AllocNode:Sid=localhost:2236 ReqNodeList=n3 ExcNodeList=(null) NodeList=n3 "
    "BatchHost=n3 NumNodes=1 NumCPUs=1 NumTasks=1 CPUs/Task=1 ReqB:S:C:T=0:0:*:* Licenses=(null) Network=(null) "
    "Command={command} WorkDir=/home/alice Comment={comment}  StdErr=/o ut StdIn=/dev/null StdOut=/o ut Power= \n"
)


@pytest.mark.parametrize(
    "trap",
    [
        "JobState=COMPLETED",
        "x JobState=FAILED Reason=None Dependency=(null) Requeue=1",
        "x UserId=bob",
        "JobId=8 JobName=y",
        "two  blanks",
        "a=b c=d",
        "ExitCode=3:0 EndTime=1 Restarts=9",
        "",
    ],
)
def test_a_name_or_comment_that_looks_like_a_record_fools_nobody(trap: str) -> None:
    for name, comment in ((trap, "c"), ("n", trap), (f"x\n{trap}", "c")):
        (job,) = records.parse_jobs(RECORD.format(name=name, comment=comment, command="/a b/c.sh d WorkingDir=x"))
        assert (job.name, job.state, job.user, job.raw_id) == (name, JobState.RUNNING, "alice", 7)
        assert (job.restarts, job.end_time, job.command) == (0, 1795169086.0, "/a b/c.sh d WorkingDir=x")
        assert job.stdout == "/o ut"
        if name == "n":
            assert job.comment == comment


@given(st.integers(0, 10**4))
def test_a_record_cut_anywhere_is_no_job(length: int) -> None:
    text = RECORD.format(name="n", comment="c", command="/c.sh")
    with pytest.raises(SchedulerUnavailable):
        records.parse_jobs(text[: length % (len(text) - 1)])


@given(st.text())
def test_garbage_is_a_typed_error(text: str) -> None:
    for parse in (records.parse_jobs, records.parse_settings, records.parse_raw_config):
        with pytest.raises(SchedulerUnavailable):
            parse(text)
    try:
        records.parse_nodes(text)
        records.parse_partitions(text)
    except SchedulerUnavailable:
        pass


@pytest.mark.parametrize(
    ("select_type", "share", "is_whole"),
    [
        ("select/cons_tres", "NO", False),
        ("select/cons_tres", "EXCLUSIVE", True),
        ("select/cons_tres", "YES:4", False),
        ("select/linear", "NO", True),
        ("select/linear", "YES:4", True),
        ("select/linear", "FORCE:2", False),
        ("", "NO", False),
    ],
)
def test_it_is_known_which_partitions_give_whole_nodes(select_type: str, share: str, is_whole: bool) -> None:
    text = recorded("22.05", "scontrol_partitions.txt").replace("OverSubscribe=NO", "OverSubscribe=FORCE:1")
    text = text.replace("OverSubscribe=FORCE:1", f"OverSubscribe={share}", 1)
    assert records.parse_whole_nodes(text, select_type) == (("main",) if is_whole else ())
    assert records.parse_whole_nodes("No partitions in the system\n", select_type) == ()


def test_no_records_at_all_are_no_answer() -> None:
    with pytest.raises(SchedulerUnavailable):
        records.parse_jobs("")
    with pytest.raises(SchedulerUnavailable):
        records.parse_jobs("No jobs in the system\n")


@pytest.mark.parametrize(
    ("text", "seconds"),
    [
        ("1.batch|00:00:00|1\n1.0|00:00:14|2\n", 28.0),
        ("7_3.0|1-02:00:01|4\n", 4 * 93601.0),
        ("1.0|00:01:00.500|1\n", 60.5),
        ("1.extern|00:00:00|1\n", 0.0),
    ],
)
def test_the_cpu_time_is_of_all_tasks_of_all_steps(text: str, seconds: float) -> None:
    assert records.parse_cpu_seconds(text) == seconds


def test_a_cpu_time_that_slurm_does_not_measure_is_none() -> None:
    """SLURM 22.05 with jobacct_gather/none."""
    with pytest.raises(NotSupported, match="does not measure"):
        records.parse_cpu_seconds("1.batch|213503982334-14:25:51|0\n1.0|213503982334-14:25:51|0\n")
    with pytest.raises(NotSupported):
        records.parse_cpu_seconds("")
    with pytest.raises(SchedulerUnavailable):
        records.parse_cpu_seconds("Welcome to the cluster\n")


@pytest.mark.parametrize("release", RELEASES)
def test_a_ping_is_up_only_when_it_says_so(release: str) -> None:
    assert records.parse_ping(recorded(release, "scontrol_ping.txt"))
    assert not records.parse_ping("Slurmctld(primary) at vm is DOWN\n")
    assert records.parse_ping("Slurmctld(primary) at a is DOWN\nSlurmctld(backup) at b is UP\n")
    assert not records.parse_ping("")


def test_the_configuration_of_a_cluster() -> None:
    config = records.parse_config(
        recorded("22.05", "scontrol_config.txt"), recorded("22.05", "scontrol_partitions.txt")
    )
    assert (config.version, config.cluster, config.accounting, config.scrontab) == ("22.05.8", "resil", False, False)
    assert (config.kill_wait_s, config.message_timeout_s, config.max_array_size) == (5, 5, 1001)
    assert (config.job_requeue, config.over_time_limit_min, config.preempt_type) == (True, 0, "none")
    assert config.partitions == {"main": "UP", "short": "UP", "closed": "DOWN"} and config.default_partition == "main"
    assert records.controller_age_s(config.raw) == 1063


def test_keys_of_other_releases_are_read_or_unknown() -> None:
    def config(*lines: str) -> object:
        text = "Configuration data as of 1\nSLURM_VERSION           = 26.05.5\n" + "\n".join(lines)
        return records.parse_config(text, "")

    new = records.parse_config(
        "SLURM_VERSION = 26.05.5\nAccountingStorageType = (null)\nScronParameters = enable,explicit_scancel\n"
        "PreemptType = (null)\nPreemptParameters = send_user_signal\nOverTimeLimit = UNLIMITED\nKillWait = 30 sec\n",
        "",
    )
    assert (new.accounting, new.scrontab, new.preempt_type, new.send_user_signal) == (False, True, "none", True)
    assert (new.over_time_limit_min, new.kill_wait_s, new.job_requeue) == (None, 30, None)
    old = records.parse_config("SLURM_VERSION = 20.11.4\nAccountingStorageType = accounting_storage/slurmdbd\n", "")
    assert (old.accounting, old.scrontab) == (True, False)
    assert config() is not None


@pytest.mark.parametrize(
    ("text", "state", "flags"),
    [
        ("idle", "IDLE", ()),
        ("mixed*", "MIXED", ("NOT_RESPONDING",)),
        ("allocated", "ALLOCATED", ()),
        ("draining", "MIXED", ("DRAIN",)),
        ("drained*", "IDLE", ("DRAIN", "NOT_RESPONDING")),
        ("down*", "DOWN", ("NOT_RESPONDING",)),
        ("idle~", "IDLE", ("POWERED_DOWN",)),
        ("mixed#", "MIXED", ("POWERING_UP",)),
        ("mixed-", "MIXED", ("PLANNED",)),
        ("idle@", "IDLE", ("REBOOT_REQUESTED",)),
        ("maint", "IDLE", ("MAINTENANCE",)),
        ("fail", "IDLE", ("FAIL",)),
        ("unknown", "UNKNOWN", ()),
        ("unk*", "UNKNOWN", ("NOT_RESPONDING",)),
        ("allocated+", "ALLOCATED", ("COMPLETING",)),
    ],
)
def test_node_states_with_their_marks(text: str, state: str, flags: tuple[str, ...]) -> None:
    assert records.parse_node_state(text) == (state, flags)
    usable = state in {"IDLE", "MIXED", "ALLOCATED"} and not {"DRAIN", "NOT_RESPONDING", "FAIL", "MAINTENANCE",
                                                             "POWERED_DOWN"}.intersection(flags)  # fmt: skip
    assert Node("n1", state, flags).is_usable is usable


def test_a_node_in_three_partitions_is_one_node() -> None:
    nodes = records.parse_nodes(recorded("22.05", "sinfo_client.txt"))
    assert [node.name for node in nodes] == ["n1", "n2", "n3", "n4"]
    assert {node.partitions for node in nodes} == {("main", "short", "closed")}


def test_reasons_may_hold_anything() -> None:
    (node,) = records.parse_nodes("n2\x1fdrained\x1fmain\x1fecc: gpu 3 | bad\nsee ticket\x1e\n")
    assert node.reason == "ecc: gpu 3 | bad\nsee ticket" and not node.is_usable
    with pytest.raises(SchedulerUnavailable):
        records.parse_nodes("n2\x1fdrained\x1fmain\x1fecc")
    with pytest.raises(SchedulerUnavailable):
        records.parse_nodes("Welcome!\nn2\x1fdrained\x1fmain\x1fecc\x1e\n")


DOWN_22_05 = """{"meta": {"Slurm": {"version": {"major": 22, "micro": 8, "minor": 5}}}, "jobs": [], "errors": [
    {"description": "Failed while looking for jobs", "error_number": -1, "error": "Unspecified error",
     "source": "slurm_load_jobs"}]}"""


def test_an_error_inside_a_document_is_not_an_empty_queue() -> None:
    """22.05 ends with 0 and `"jobs": []` when the controller is down."""
    with pytest.raises(SchedulerUnavailable, match="Failed while looking for jobs"):
        parse_document(DOWN_22_05)


@pytest.mark.parametrize(
    ("states", "shown"),
    [
        ("RUNNING", JobState.RUNNING),
        (["RUNNING"], JobState.RUNNING),
        (["CANCELLED", "COMPLETING"], JobState.COMPLETING),
        (["TIMEOUT", "COMPLETING"], JobState.COMPLETING),
        (["PENDING", "SPECIAL_EXIT"], JobState.SPECIAL_EXIT),
        (["PENDING", "REQUEUED"], JobState.REQUEUED),
        (["DREAMING"], JobState.UNKNOWN),
    ],
)
def test_states_are_shown_as_squeue_shows_them(states: str | list[str], shown: JobState) -> None:
    assert parse_states(states) is shown


def test_exit_codes_of_both_shapes() -> None:
    assert parse_exit_code(768) == ExitCode(3)
    assert parse_exit_code(253) == ExitCode(0, 125)
    unset = {"set": False, "infinite": False, "number": 0}
    three = {"set": True, "infinite": False, "number": 3}
    assert parse_exit_code({"status": ["ERROR"], "return_code": three, "signal": {"id": unset}}) == ExitCode(3)
    assert parse_exit_code({"status": ["SIGNALED"], "return_code": unset, "signal": {"id": three}}) == ExitCode(0, 3)
    assert parse_exit_code(None) is None


@given(st.data())
def test_a_document_cut_anywhere_is_a_typed_error(data: st.DataObject) -> None:
    text = recorded("24.11", "scontrol_jobs.json")
    cut = data.draw(st.integers(0, len(text.rstrip()) - 1))
    with pytest.raises(SchedulerUnavailable):
        parse_document(text[:cut])


@pytest.mark.parametrize(
    "text",
    ["", "[]", "null", "{}", '{"jobs": null}', '{"jobs": [1]}', '{"jobs": [{}]}', "Welcome\n{}", "\x00", "[" * 20000],
)
def test_a_document_of_another_shape_is_a_typed_error(text: str) -> None:
    with pytest.raises(SchedulerUnavailable):
        parse_document(text)


@given(
    st.recursive(
        st.none() | st.booleans() | st.integers() | st.text(max_size=5),
        lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
        max_leaves=8,
    ),
    st.sampled_from(["job_id", "job_state", "name", "time_limit", "exit_code", "node_count", "array_task_string"]),
)
def test_a_field_of_any_type_is_read_or_a_typed_error(value: object, name: str) -> None:
    document = json.loads(recorded("26.05", "scontrol_jobs.json"))
    document["jobs"] = [document["jobs"][0] | {name: value}]
    try:
        (job,) = parse_document(json.dumps(document))
        assert isinstance(job.id, JobId)
    except SchedulerUnavailable:
        pass
