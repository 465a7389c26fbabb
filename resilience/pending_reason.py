"""Explains SLURM's pending reasons, with advice. Pure.

Sources: squeue(1) "JOB REASON CODES", https://slurm.schedmd.com/job_reason_codes.html, and texts recorded from 20.11
to 26.05. Limits: https://slurm.schedmd.com/resource_limits.html.
"""

from __future__ import annotations

from typing import NamedTuple


class PendingReason(NamedTuple):
    """The explanation of a pending reason.

    Attributes:
        words: the meaning of the reason.
        advice: advice for the user, or empty if only waiting helps.
        blocks_for_ever: whether the job never starts unless it is changed.
        needs_others: whether the start depends on others at an unknown time: a partition comes up, a node is repaired,
            a limit is no longer reached.
    """

    words: str
    advice: str = ""
    blocks_for_ever: bool = False
    needs_others: bool = False


def _never(words: str, advice: str) -> PendingReason:
    return PendingReason(words, advice, blocks_for_ever=True)


def _others(words: str, advice: str = "") -> PendingReason:
    return PendingReason(words, advice, needs_others=True)


_RELEASE = "release it: scontrol release {job}"
_ASSOCIATIONS = "see `sacctmgr show assoc user=$USER`"
_EXACT = {
    "None": PendingReason("about to be scheduled"),
    "Priority": PendingReason("others are before it in the queue"),
    "Resources": PendingReason("waits for free nodes"),
    "Dependency": PendingReason("waits for the job before it"),
    "DependencyNeverSatisfied": _never(
        "its dependency can never be satisfied", "cancel it and submit again with afterany"
    ),
    "JobArrayTaskLimit": PendingReason("waits for its turn in the array"),
    "BeginTime": PendingReason("not before its begin time"),
    "JobHeldUser": _never("held by its owner", _RELEASE),
    "JobHeldAdmin": _never("held by an administrator", "ask them why"),
    "BadConstraints": _never("no node satisfies its constraints", "change --constraint, --nodes or --gres"),
    "Constraints": _others("no free node satisfies its constraints now", "see `sinfo`"),
    "PartitionDown": _others("the partition is down", "see `sinfo`; another partition may be up"),
    "PartitionInactive": _others("the partition is closed", "see `sinfo`; choose another partition"),
    "PartitionNodeLimit": _never("asks for more nodes than the partition allows", "ask for fewer"),
    "PartitionTimeLimit": _never("asks for more time than the partition allows", "shorten --time"),
    "PartitionConfig": _never("asks for what the partition does not have", "see `scontrol show partition`"),
    "ReqNodeNotAvail": _others("a node it needs is not available", "see `sinfo -R`"),
    "NodeDown": _others("a node it needs is down", "see `sinfo -R`"),
    "Reservation": PendingReason("waits for its reservation to begin"),
    "ReservationDeleted": _never("its reservation was deleted", "submit again without it"),
    "JobLaunchFailure": _never("could not be started", "see its output directory and `sinfo -R`"),
    "NonZeroExitCode": PendingReason("ended with an error and goes back into the queue"),
    "InvalidAccount": _never("the account is not valid", _ASSOCIATIONS),
    "InvalidQOS": _never("the QOS is not valid", _ASSOCIATIONS),
    "Licenses": PendingReason("waits for a licence"),
    "Cleaning": PendingReason("its last run is still being cleaned up"),
    "Prolog": PendingReason("its prolog runs"),
    "MaxRequeue": _never("was requeued too often", "find out why it fails, then release it"),
    "JobHoldMaxRequeue": _never("was requeued too often", f"find out why it fails, then {_RELEASE}"),
    "FrontEndDown": _others("no front end can run it", "ask the administrators"),
    "QOSNotAllowed": _never("the QOS may not use this partition", "choose another QOS"),
    "AccountNotAllowed": _never("the account may not use this partition", "choose another account"),
    "SystemFailure": _others("SLURM itself failed", "ask the administrators"),
    "DeadLine": _never("its deadline has passed", "submit again with a later --deadline"),
    "AssociationJobLimit": _others("your account runs as many jobs as it may", "it starts when your other jobs end"),
    "AssociationResourceLimit": _others("your account uses as much as it may", "it starts when your other jobs end"),
    "AssociationTimeLimit": _never("your account has used up its time", "ask for more, or use another account"),
    "QOSJobLimit": _others("the QOS runs as many jobs as it may", "it starts when others end"),
    "QOSResourceLimit": _others("the QOS is used up", "it starts when others end"),
    "QOSTimeLimit": _never("the QOS has used up its time", "choose another QOS"),
    "QOSUsageThreshold": _never("your share is below what the QOS asks for", "choose another QOS"),
    "AccountingPolicy": _others("a limit of your account or QOS", _ASSOCIATIONS),
}
_STARTS = (
    ("ReqNodeNotAvail", _EXACT["ReqNodeNotAvail"]),
    ("Nodes required for job are DOWN", _others("all nodes it could use are down or drained", "see `sinfo -R`")),
    ("job requeued in held state", _never("was requeued and held", _RELEASE)),
    (
        "launch failed requeued held",
        _never("its start failed, and SLURM holds it", "see `sinfo -R`, then: scontrol release {job}"),
    ),
    (
        "launch failure limit exceeded",
        _never("could not be started, again and again", f"see `sinfo -R`, then {_RELEASE}"),
    ),
    ("Job's account not permitted", _EXACT["AccountNotAllowed"]),
    ("Job's QOS not permitted", _EXACT["QOSNotAllowed"]),
    ("AssocGrp", _others("your group has used up a limit ({reason})", "it starts when others end")),
    ("AssocMax", _others("a limit of your account ({reason})", "it starts when your other jobs end")),
    ("QOSGrp", _others("the QOS is used up ({reason})", "it starts when others end")),
    ("QOSMax", _others("a limit of the QOS ({reason})", "ask for less, or wait for your other jobs")),
    ("QOSMin", _never("asks for less than the QOS takes ({reason})", "ask for more, or choose another QOS")),
    ("MaxMemPerLimit", _never("asks for more memory than allowed", "lower --mem")),
    ("Max", _others("a limit of the QOS for your account ({reason})", "it starts when your other jobs end")),
)
_USED_UP = _never(
    "the hours of your account or QOS are used up ({reason})",
    "ask for more, or use another account: `sshare`, `sreport`",
)
_TOO_MUCH = _never("asks for more than one job may have ({reason})", "ask for less: fewer nodes, or a shorter --time")


def explain_reason(reason: str, job: str = "") -> PendingReason:
    """Return the explanation of SLURM's reason. An unknown reason is returned unchanged."""
    found = _find(reason)
    if found is None:
        return PendingReason(reason)
    words = found.words.replace("{reason}", reason)
    return PendingReason(words, found.advice.replace("{job}", job), found.blocks_for_ever, found.needs_others)


def _find(reason: str) -> PendingReason | None:
    """Return the explanation of a reason, or None. Of several reasons (of an array's tasks), the worst applies."""
    found = _EXACT.get(reason) or _limit(reason)
    if found is None:
        found = next((meaning for start, meaning in _STARTS if reason.startswith(start)), None)
    if "," in reason:
        parts = (_EXACT.get(part.strip()) for part in reason.split(","))
        known = [part for part in (found, *parts) if part is not None]
        found = max(known, key=lambda part: (part.blocks_for_ever, part.needs_others), default=None)
    return found


def _limit(reason: str) -> PendingReason | None:
    """Explain a limit by its name: a job never starts beyond a per-job limit, or when all hours are used."""
    if not reason.startswith(("AssocGrp", "AssocMax", "QOSGrp", "QOSMax")) or " " in reason:
        return None
    if "PerJob" in reason or "PerNode" in reason:
        return _TOO_MUCH
    if "Minutes" in reason and "RunMinutes" not in reason:
        return _USED_UP
    return None
