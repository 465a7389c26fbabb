"""Why a job waits: SLURM's reason codes in words, and what to do. Pure.

Sources: squeue(1) "JOB REASON CODES", https://slurm.schedmd.com/job_reason_codes.html, and texts recorded from 20.11
to 26.05.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class PendingReason:
    """A reason for people.

    Attributes:
        words: what it means.
        advice: what to do, or empty when waiting is all there is to do.
        blocks_for_ever: whether the job will never start unless somebody does something.
    """

    words: str
    advice: str = ""
    blocks_for_ever: bool = False


_EXACT = {
    "None": PendingReason("about to be looked at"),
    "Priority": PendingReason("others are before it in the queue"),
    "Resources": PendingReason("waits for free nodes"),
    "Dependency": PendingReason("waits for the job before it"),
    "DependencyNeverSatisfied": PendingReason(
        "what it waits for can never happen", "cancel it and submit again with afterany", True
    ),
    "JobArrayTaskLimit": PendingReason("waits for its turn in the array"),
    "BeginTime": PendingReason("not before its begin time"),
    "JobHeldUser": PendingReason("held by its owner", "release it: scontrol release {job}", True),
    "JobHeldAdmin": PendingReason("held by an administrator", "ask them why", True),
    "BadConstraints": PendingReason("no node fits what it asks for", "change --constraint, --nodes or --gres", True),
    "PartitionDown": PendingReason("the partition is down", "see `sinfo`; another partition may be up"),
    "PartitionInactive": PendingReason("the partition is closed", "see `sinfo`; choose another partition"),
    "PartitionNodeLimit": PendingReason("asks for more nodes than the partition allows", "ask for fewer", True),
    "PartitionTimeLimit": PendingReason("asks for more time than the partition allows", "shorten --time", True),
    "PartitionConfig": PendingReason(
        "asks for what the partition does not have", "see `scontrol show partition`", True
    ),
    "ReqNodeNotAvail": PendingReason("a node it needs is not available", "see `sinfo -R`"),
    "NodeDown": PendingReason("a node it needs is down", "see `sinfo -R`"),
    "Reservation": PendingReason("waits for its reservation to begin"),
    "ReservationDeleted": PendingReason("its reservation was deleted", "submit again without it", True),
    "JobLaunchFailure": PendingReason("could not be started", "see its output folder and `sinfo -R`", True),
    "NonZeroExitCode": PendingReason("ended with an error and goes back into the queue"),
    "InvalidAccount": PendingReason("the account is not valid", "see `sacctmgr show assoc user=$USER`", True),
    "InvalidQOS": PendingReason("the QOS is not valid", "see `sacctmgr show assoc user=$USER`", True),
    "Licenses": PendingReason("waits for a licence"),
    "Cleaning": PendingReason("its last run is still being cleaned up"),
    "Prolog": PendingReason("its prolog runs"),
    "MaxRequeue": PendingReason("was requeued too often", "find out why it fails, then release it", True),
    "FrontEndDown": PendingReason("no front end can run it"),
    "QOSNotAllowed": PendingReason("the QOS may not use this partition", "choose another QOS", True),
    "AccountNotAllowed": PendingReason("the account may not use this partition", "choose another account", True),
}
_STARTS = (
    ("ReqNodeNotAvail", _EXACT["ReqNodeNotAvail"]),
    ("Nodes required for job are DOWN", PendingReason("all nodes it could use are down or drained", "see `sinfo -R`")),
    ("job requeued in held state", PendingReason("was requeued and held", "release it: scontrol release {job}", True)),
    (
        "launch failed requeued held",
        PendingReason("its start failed, and SLURM holds it", "see `sinfo -R`, then: scontrol release {job}", True),
    ),
    ("Job's account not permitted", _EXACT["AccountNotAllowed"]),
    ("Job's QOS not permitted", _EXACT["QOSNotAllowed"]),
    ("AssocGrp", PendingReason("your group has used up a limit ({reason})", "it starts when others end")),
    ("AssocMax", PendingReason("a limit of your account ({reason})", "it starts when your other jobs end")),
    ("QOSGrp", PendingReason("the QOS is used up ({reason})", "it starts when others end")),
    ("QOSMax", PendingReason("a limit of the QOS ({reason})", "ask for less, or wait for your other jobs")),
    ("MaxMemPerLimit", PendingReason("asks for more memory than allowed", "lower --mem", True)),
)


def explain_reason(reason: str, job: str = "") -> PendingReason:
    """Given SLURM's reason, return it in words. A reason this table lacks is returned as it is."""
    found = _EXACT.get(reason)
    if found is None:
        found = next((meaning for start, meaning in _STARTS if reason.startswith(start)), None)
    if found is None:
        return PendingReason(reason)
    words = found.words.replace("{reason}", reason)
    return PendingReason(words, found.advice.replace("{job}", job), found.blocks_for_ever)
