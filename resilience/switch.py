"""Switch files, which control a run: their content and the policy for their owners. Pure."""

from __future__ import annotations

import re
from dataclasses import dataclass
from enum import StrEnum

LABEL = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,99}")
"""Valid names of a checkpoint. Other labels are rejected when written, and ignored when read."""

TEXT_LIMIT = 500
"""Maximum length of a text from a switch file."""


class Scope(StrEnum):
    """The scope of a kill switch. While the switch is set, no job of the run trains: a queued job that starts finds the
    switch and exits within seconds. With `ALL`, the first job that finds the switch also cancels the queued jobs."""

    JOB = "job"
    ALL = "all"


class OwnerPolicy(StrEnum):
    """The owners whose switches are accepted: the run's owner, also the group, or any user."""

    OWNER = "owner"
    GROUP = "group"
    ANY = "any"


@dataclass(frozen=True, slots=True)
class Switch:
    """One switch file.

    Attributes:
        kind: `kill`, `save` or `stop`.
        who: login name of the file's owner.
        when: seconds since the epoch.
        why: the reason, may be empty (`touch` also sets a switch).
        scope: for `kill`: the scope.
        label: for `save`: the name of the checkpoint.
        honoured: whether the switch is accepted; False if the file violates the owner policy.
        refusal: why the switch is not accepted, or empty.
    """

    kind: str
    who: str
    when: float
    why: str = ""
    scope: Scope = Scope.JOB
    label: str = ""
    honoured: bool = True
    refusal: str = ""


def parse_switch(kind: str, content: bytes, *, who: str, written: float, run: str = "", refusal: str = "") -> Switch:
    """Return the switch for the content of a switch file. Any content is valid.

    Args:
        who: login name of the file's owner. The name in the file is not verified, and not shown.
        written: modification time of the file, in seconds since the epoch: the default of `when`.
        run: name of the run. A switch that names another run was copied here, and is not accepted.
        refusal: why the owner may not set the switch, or empty.
    """
    fields = parse_fields(content)
    meant = fields.get("run", "")
    if run and meant and meant != run:
        refusal = refusal or f"it is for run {meant}, not for {run}"
    scope = fields.get("scope", Scope.JOB.value)
    label = fields.get("label", "")
    return Switch(
        kind=kind,
        who=who,
        when=_moment(fields.get("when", ""), written),
        why=fields.get("why", ""),
        scope=Scope(scope) if scope in set(Scope) else Scope.JOB,
        # A label becomes part of a directory's name, so only a plain word is accepted.
        label=label if LABEL.fullmatch(label) else "",
        honoured=not refusal,
        refusal=refusal,
    )


def parse_fields(content: bytes) -> dict[str, str]:
    """Return the fields of a switch file, each as one short printable line.

    An empty file has no fields; the content of a file that is not TOML is the field `why`.
    """
    text = content.decode("utf-8", "replace")
    if not text.strip():
        return {}
    import tomllib  # slow to import; only needed if there is a switch

    try:
        return {key: printable(str(value)) for key, value in tomllib.loads(text).items()}
    except (ValueError, RecursionError):  # ValueError: not TOML, or a number of a thousand digits
        return {"why": printable(text)}


def printable(text: str) -> str:
    """Return the text as one short line that is safe to print on a terminal."""
    return " ".join("".join(character if character.isprintable() else " " for character in text).split())[:TEXT_LIMIT]


def policy_of_mode(mode: int) -> OwnerPolicy:
    """Return the owner policy for the permissions of the switch directory: users with write access may set switches."""
    if mode & 0o002:
        return OwnerPolicy.ANY
    return OwnerPolicy.GROUP if mode & 0o020 else OwnerPolicy.OWNER


def is_accepted(policy: OwnerPolicy, *, uid: int, gid: int, run_uid: int, run_gid: int) -> bool:
    """Return whether a switch owned by `uid` and `gid` may control the run of `run_uid` and `run_gid`.

    Switches of the run's owner and of root are always accepted.
    """
    if policy is OwnerPolicy.ANY or uid in (run_uid, 0):
        return True
    return policy is OwnerPolicy.GROUP and gid == run_gid


def explain_refusal(policy: OwnerPolicy, who: str, group: str) -> str:
    """Return why a switch that violates the policy is not accepted, with the names of the file's owner and group."""
    besides = f" and its group {group} is not the run's" if policy is OwnerPolicy.GROUP else ""
    return f"it belongs to {who}{besides}; this run has policy `{policy.value}`"


def describe_age(seconds: float) -> str:
    """Return an age such as ` 3 days ago`; an empty text for a negative age, because clocks differ."""
    for unit_s, unit in ((86400, "day"), (3600, "h"), (60, "min"), (1, "s")):
        if seconds >= unit_s:
            count = int(seconds // unit_s)
            return f" {count} {unit}{'s' if unit == 'day' and count > 1 else ''} ago"
    return ""


def _moment(text: str, otherwise: float) -> float:
    """Return an ISO time with offset as seconds since the epoch, and `otherwise` for any other text."""
    if not text:
        return otherwise
    from datetime import datetime

    try:
        moment = datetime.fromisoformat(text)
        return otherwise if moment.tzinfo is None else moment.timestamp()
    except (ValueError, OverflowError):
        return otherwise
