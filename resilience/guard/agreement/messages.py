"""What ranks say to each other: small dictionaries of JSON types, checked when they arrive. Pure."""

from __future__ import annotations

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, TypeAlias

    Message: TypeAlias = dict[str, Any]

FREE = "free"
PROMISED = "promised"
COMMITTED = "committed"

# From a member to the coordinator: the keys of each message besides `say`, and their types.
_MEMBER_SAYS: dict[str, dict[str, type]] = {
    "join": {"rank": int, "life": str, "steps": int, "polls": int, "round": int, "state": str, "verdict": dict},
    "wish": {"id": str, "request": dict},
    "promise": {"round": int, "steps": int, "polls": int},
    "done": {"round": int, "outcome": str, "seconds": float},
    "leave": {},
}
# From the coordinator to a member.
_COORDINATOR_SAYS: dict[str, dict[str, type]] = {
    "welcome": {"round": int},
    "start": {"decision": dict},
    "prepare": {"round": int},
    "commit": {"round": int, "verdict": dict},
    "abort": {"round": int},
}
# Inside `commit` and `join`: the position, the wishes that it answers, and what all ranks shall do.
_VERDICT: dict[str, type] = {"steps": int, "polls": int, "requests": list, "wishes": list}


def check_member_message(message: object) -> Message:
    """Return what a member said. Raise ValueError if it is nothing that a member says."""
    return _check(message, _MEMBER_SAYS)


def check_coordinator_message(message: object) -> Message:
    """Return what the coordinator said. Raise ValueError if it is nothing that a coordinator says."""
    return _check(message, _COORDINATOR_SAYS)


def _check(message: object, known: dict[str, dict[str, type]]) -> Message:
    if not isinstance(message, dict):
        raise ValueError("a message is a table")
    says = message.get("say")
    fields = known.get(says) if isinstance(says, str) else None
    if fields is None:
        raise ValueError(f"unknown message {says!r}")
    if set(message) != {"say", *fields}:
        raise ValueError(f"{says}: wrong keys {sorted(map(str, message))}")
    for name, kind in fields.items():
        if type(message[name]) is not kind and not (kind is float and type(message[name]) is int):
            raise ValueError(f"{says}: {name} is no {kind.__name__}")
        if kind is int and not 0 <= message[name] < 1 << 62:
            raise ValueError(f"{says}: {name} is out of range")
    verdict = message.get("verdict")
    if verdict and (
        set(verdict) != set(_VERDICT) or any(type(verdict[name]) is not kind for name, kind in _VERDICT.items())
    ):
        raise ValueError(f"{says}: not a verdict")
    return message
