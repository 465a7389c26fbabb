"""A reason code is said in words, with what to do; one nobody knows is passed on as it is."""

from __future__ import annotations

import pytest

from resilience.pending_reason import _EXACT, _STARTS, explain_reason

WAITS, OTHERS, NEVER = "waits", "others", "never"
SAID = [
    ("Priority", "others are before it in the queue", "", WAITS),
    ("Resources", "waits for free nodes", "", WAITS),
    ("JobArrayTaskLimit", "waits for its turn in the array", "", WAITS),
    ("Dependency", "waits for the job before it", "", WAITS),
    ("BeginTime", "not before its begin time", "", WAITS),
    ("JobHeldUser", "held by its owner", "release it: scontrol release 12_3", NEVER),
    ("JobHeldAdmin", "held by an administrator", "ask them", NEVER),
    ("DependencyNeverSatisfied", "its dependency can never be satisfied", "submit again", NEVER),
    ("BadConstraints", "no node satisfies", "--constraint", NEVER),
    ("JobLaunchFailure", "could not be started", "sinfo -R", NEVER),
    ("InvalidAccount", "account is not valid", "sacctmgr", NEVER),
    ("InvalidQOS", "QOS is not valid", "sacctmgr", NEVER),
    ("PartitionTimeLimit", "more time than the partition", "--time", NEVER),
    ("PartitionDown", "the partition is down", "sinfo", OTHERS),
    ("PartitionInactive", "the partition is closed", "another partition", OTHERS),
    ("ReqNodeNotAvail, UnavailableNodes:n[1-3]", "a node it needs is not available", "sinfo -R", OTHERS),
    ("ReqNodeNotAvail, UnavailableNodes:n1,BeginTime", "a node it needs is not available", "sinfo -R", OTHERS),
    ("ReqNodeNotAvail(Unavailable:n1)", "a node it needs is not available", "sinfo -R", OTHERS),
    ("BeginTime,JobHeldUser", "held by its owner", "scontrol release 12_3", NEVER),
    ("Nodes required for job are DOWN, DRAINED or reserved for jobs in higher priority partitions",
     "all nodes it could use are down or drained", "sinfo -R", OTHERS),
    ("job requeued in held state", "requeued and held", "scontrol release 12_3", NEVER),
    ("launch failed requeued held", "its start failed", "scontrol release 12_3", NEVER),
    ("AssocGrpCpuLimit", "AssocGrpCpuLimit", "others end", OTHERS),
    ("AssocMaxJobsLimit", "AssocMaxJobsLimit", "your other jobs", OTHERS),
    ("QOSGrpJobsLimit", "QOSGrpJobsLimit", "others end", OTHERS),
    ("QOSMaxJobsPerUserLimit", "QOSMaxJobsPerUserLimit", "wait", OTHERS),
    ("QOSMaxGRESPerUser", "QOSMaxGRESPerUser", "wait", OTHERS),
    ("MaxGRESPerAccount", "MaxGRESPerAccount", "your other jobs", OTHERS),
    ("AssocMaxWallDurationPerJobLimit", "more than one job may have", "shorter --time", NEVER),
    ("QOSMaxNodePerJobLimit", "more than one job may have", "fewer nodes", NEVER),
    ("AssocGrpCPUMinutesLimit", "are used up", "ask for more", NEVER),
    ("AssocGrpGRESMinutes", "AssocGrpGRESMinutes", "ask for more", NEVER),
    ("AssocGrpCPURunMinutesLimit", "AssocGrpCPURunMinutesLimit", "others end", OTHERS),
    ("QOSMinGRES", "less than the QOS takes", "ask for more", NEVER),
    ("MaxMemPerLimit", "more memory", "--mem", NEVER),
]  # fmt: skip


@pytest.mark.parametrize(("reason", "words", "advice", "kind"), SAID)
def test_a_reason_is_said_in_words_with_what_to_do(reason: str, words: str, advice: str, kind: str) -> None:
    found = explain_reason(reason, "12_3")
    assert words in found.words and advice in found.advice
    assert (found.blocks_for_ever, found.needs_others) == (kind == NEVER, kind == OTHERS)


@pytest.mark.parametrize("reason", ["", "SomethingOf2031", "{job} {reason}", "a sentence, of the site's"])
def test_a_reason_that_is_not_known_is_passed_on_as_it_is(reason: str) -> None:
    assert explain_reason(reason, "12").words == reason


def test_what_never_starts_by_itself_always_comes_with_advice() -> None:
    assert not [reason for reason, found in (*_EXACT.items(), *_STARTS) if found.blocks_for_ever and not found.advice]
