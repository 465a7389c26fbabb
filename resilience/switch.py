"""A switch: a file by which people steer a run; what its content and its owner mean. Pure."""

from __future__ import annotations

import re
from dataclasses import dataclass
from enum import StrEnum

LABEL = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,99}")
"""The form of a checkpoint's name; any other label is refused when written, and passed over when read."""

TEXT_LIMIT = 500
"""Characters shown of a text in a switch file."""


class Scope(StrEnum):
    """How far a kill switch reaches. While it lies there, no job of the run trains: a queued job that starts sees
    it and exits in seconds. `ALL` makes the first job that sees it cancel its queued siblings as well."""

    JOB = "job"
    ALL = "all"


class OwnerPolicy(StrEnum):
    """The owners whose switches are obeyed: the run's owner only, the group as well, or anybody."""

    OWNER = "owner"
    GROUP = "group"
    ANY = "any"


@dataclass(frozen=True, slots=True)
class Switch:
    """One switch file.

    Attributes:
        kind: `kill`, `save` or `stop`.
        who: login name of the person, or of the batch shell's user.
        when: seconds since the epoch.
        why: a sentence, may be empty (a bare `touch` is a switch too).
        scope: for `kill`.
        label: for `save`: the name the checkpoint shall get.
        honoured: False when the file breaks the owner policy; `refusal` says why.
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
    """Given what stands in a switch file, and who owns it, return the switch. Whatever stands there, it is one.

    Args:
        who: login name of the file's owner. That is a fact; the name inside is a claim, and not shown.
        written: when the file was last written, in seconds since the epoch: taken where no time stands inside.
        run: name of the run that reads it. A switch that names another one is not honoured: it was copied here.
        refusal: why the owner may not throw it; empty when he may.
    """
    fields = parse_fields(content)
    meant = fields.get("run", "")
    if run and meant and meant != run:
        refusal = refusal or f"it is meant for run {meant}, not for {run}"
    scope = fields.get("scope", Scope.JOB.value)
    label = fields.get("label", "")
    return Switch(
        kind=kind,
        who=who,
        when=_moment(fields.get("when", ""), written),
        why=fields.get("why", ""),
        scope=Scope(scope) if scope in set(Scope) else Scope.JOB,
        # A label becomes part of a directory's name, so it is a plain word or nothing.
        label=label if LABEL.fullmatch(label) else "",
        honoured=not refusal,
        refusal=refusal,
    )


def parse_fields(content: bytes) -> dict[str, str]:
    """Given what stands in a small file that others write, return its texts, each as one short printable line.

    A bare `touch` has none; a note in free text is the `why`.
    """
    text = content.decode("utf-8", "replace")
    if not text.strip():
        return {}
    import tomllib  # milliseconds that only those pay who find a switch

    try:
        return {key: printable(str(value)) for key, value in tomllib.loads(text).items()}
    except (ValueError, RecursionError):  # ValueError: not TOML, or a number of a thousand digits
        return {"why": printable(text)}


def printable(text: str) -> str:
    """One short line that can be shown on a terminal: others write these files."""
    return " ".join("".join(character if character.isprintable() else " " for character in text).split())[:TEXT_LIMIT]


def policy_of_mode(mode: int) -> OwnerPolicy:
    """Given the permissions of the directory of the switches, return whose are accepted: who may write may set them."""
    if mode & 0o002:
        return OwnerPolicy.ANY
    return OwnerPolicy.GROUP if mode & 0o020 else OwnerPolicy.OWNER


def is_obeyed(policy: OwnerPolicy, *, uid: int, gid: int, run_uid: int, run_gid: int) -> bool:
    """Return whether a switch that belongs to `uid` and `gid` may steer the run of `run_uid` and `run_gid`.

    The run's owner and root always may.
    """
    if policy is OwnerPolicy.ANY or uid in (run_uid, 0):
        return True
    return policy is OwnerPolicy.GROUP and gid == run_gid


def refuse_owner(policy: OwnerPolicy, who: str, group: str) -> str:
    """Why the switch of somebody who may not steer the run is not obeyed, with the file's owner and group by name."""
    besides = f" and its group {group} is not the run's" if policy is OwnerPolicy.GROUP else ""
    return f"it belongs to {who}{besides}; this run obeys policy `{policy.value}`"


def describe_age(seconds: float) -> str:
    """Given an age, return ` 3 days ago`; nothing when it lies in the future, because clocks differ."""
    for unit_s, unit in ((86400, "day"), (3600, "h"), (60, "min"), (1, "s")):
        if seconds >= unit_s:
            count = int(seconds // unit_s)
            return f" {count} {unit}{'s' if unit == 'day' and count > 1 else ''} ago"
    return ""


def _moment(text: str, otherwise: float) -> float:
    """ISO time with an offset, in seconds since the epoch; anything else gives way."""
    if not text:
        return otherwise
    from datetime import datetime

    try:
        moment = datetime.fromisoformat(text)
        return otherwise if moment.tzinfo is None else moment.timestamp()
    except (ValueError, OverflowError):
        return otherwise
