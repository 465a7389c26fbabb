"""A switch: a file by which people steer a run. Pure."""

from __future__ import annotations

import re
from dataclasses import dataclass
from enum import StrEnum

LABEL = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,99}")
"""What may name a checkpoint; any other label is refused when it is written, and passed over when it is read."""


class Scope(StrEnum):
    """How far a kill switch reaches. While it lies there, no job of the run trains: a queued job that starts sees
    it and exits in seconds. `ALL` makes the first job that sees it cancel its queued siblings as well."""

    JOB = "job"
    ALL = "all"


class OwnerPolicy(StrEnum):
    """Whose switches are obeyed: the run owner's only, the group's as well, or anybody's."""

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
