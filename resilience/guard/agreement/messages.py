"""The messages of the agreement: small dictionaries of JSON types, validated on receipt. Pure."""

from __future__ import annotations

import math

from resilience.guard.decision import DONE, FAILED, IN_FLIGHT, OBEYED, SAVED, STOPPED, Decision, Request

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping
    from typing import Any, TypeAlias

    Message: TypeAlias = dict[str, Any]

# The states of a member: see `member.py`.
FREE = "free"
PROMISED = "promised"
COMMITTED = "committed"
OBEYING = "obeying"

LARGEST_NUMBER = 1 << 62
WHY_LIMIT = 500
LABEL_LIMIT = 100
TRIGGER_LIMIT = 64
"""Longest texts of a request, in characters: a verdict with 16 of them fits into the largest frame."""
MOST_AHEAD = 10_000
"""A wanted step is a few seconds ahead: this many of the fastest steps."""
KEY_LIMIT = 200
FAULT_LIMIT = 500
TEXT_LIMIT = 1000
MOST_FAULTS = 8
"""Longest texts of a report, in characters, and the most faults of an answer: it fits into a frame as well."""

# From a member to the coordinator: the keys of each message besides `say`, and their types.
_MEMBER_SAYS: dict[str, dict[str, type]] = {
    "join": {
        "rank": int,
        "incarnation": str,
        "steps": int,
        "polls": int,
        "round": int,
        "state": str,
        "verdict": dict,
        "requests": dict,
    },
    "request": {"id": str, "request": dict},
    "promise": {"round": int, "steps": int, "polls": int, "step_s": float},
    "done": {"round": int, "outcome": str, "seconds": float},
    "saved": {"round": int, "outcome": str, "seconds": float},
    "leave": {"steps": int, "how": str, "why": str},
    "resume": {"round": int},
    "aborted": {"round": int},
    "report": {"key": str, "fault": str, "text": str},
}
_WORDS = {
    "done": ("outcome", (SAVED, FAILED, OBEYED, IN_FLIGHT)),
    "saved": ("outcome", (SAVED, FAILED)),
    "leave": ("how", (DONE, STOPPED, FAILED)),
}
# From the coordinator to a member.
_COORDINATOR_SAYS: dict[str, dict[str, type]] = {
    "welcome": {"round": int, "incarnation": str, "restarts": int},
    "start": {"decision": dict},
    "prepare": {"round": int},
    "commit": {"round": int, "verdict": dict},
    "abort": {"round": int},
    "bye": {},
    "reported": {"key": str, "faults": list, "text": str},
}
# Inside `commit` and `join`: the position, the requests to apply, and the names of the answered requests.
_VERDICT: dict[str, type] = {"steps": int, "polls": int, "requests": list, "answers": list}
_DECISION: dict[str, type] = {
    "save": bool,
    "stop": bool,
    "label": str,
    "reasons": list,
    "step": int,
    "exit_code": int,
    "triggers": list,
}


def check_member_message(message: object) -> Message:
    """Return a valid message of a member. Raise ValueError if it is malformed."""
    checked = _check(message, _MEMBER_SAYS)
    says = checked["say"]
    if says == "join":
        if checked["state"] not in (FREE, PROMISED, COMMITTED, OBEYING):
            raise ValueError(f"join: unknown state {checked['state']!r}")
        if checked["verdict"]:
            _check_verdict(checked["verdict"])
        elif checked["state"] in (COMMITTED, OBEYING):
            raise ValueError(f"join: {checked['state']} to nothing")
        for fields in checked["requests"].values():
            read_request(fields)
    elif says == "request":
        read_request(checked["request"])
    elif says == "report":
        _check_lengths(checked["key"], [checked["fault"]], checked["text"])
    elif says in _WORDS:
        field, words = _WORDS[says]
        if checked[field] not in words:
            raise ValueError(f"{says}: unknown {field} {checked[field]!r}")
    for field in ("seconds", "step_s"):
        if not (math.isfinite(checked.get(field, 0.0)) and checked.get(field, 0.0) >= 0):
            raise ValueError(f"{says}: {field} is out of range")
    return checked


def check_coordinator_message(message: object) -> Message:
    """Return a valid message of the coordinator. Raise ValueError if it is malformed."""
    checked = _check(message, _COORDINATOR_SAYS)
    if checked["say"] == "commit":
        _check_verdict(checked["verdict"])
    elif checked["say"] == "start":
        read_decision(checked["decision"])
    elif checked["say"] == "reported":
        _check_lengths(checked["key"], checked["faults"], checked["text"])
    return checked


def read_decision(fields: object) -> Decision:
    """Return the decision that `Decision.as_dict` encoded. Raise ValueError if malformed: it comes from the network."""
    rest = dict(fields) if isinstance(fields, dict) else {}
    earlier = rest.pop("earlier", [])
    if not isinstance(earlier, list) or not all(isinstance(one, dict) for one in earlier):
        raise ValueError("decision: earlier is no list of tables")
    checked = _check_fields("decision", rest, _DECISION)
    if not all(type(text) is str for name in ("reasons", "triggers") for text in checked[name]):
        raise ValueError("decision: not only texts")
    return Decision(**checked, earlier=earlier)


def read_request(fields: object) -> Request:
    """Return the request that `Request.as_dict` encoded. Raise ValueError if malformed or with too long texts."""
    if not isinstance(fields, dict):
        raise ValueError("a request is a table")
    request = Request.from_dict(fields)
    numbers = (request.exit_code, request.rank, request.step, request.since, request.at)
    if any(abs(one) >= LARGEST_NUMBER for one in numbers):
        raise ValueError("request: a number is out of range")
    if len(request.why) > WHY_LIMIT or len(request.label) > LABEL_LIMIT or len(request.trigger) > TRIGGER_LIMIT:
        raise ValueError("request: a text is too long")
    return request


def sendable(request: Request, rank: int, steps: int = 0) -> Request:
    """Return a request of any trigger as `rank` may send it after `steps` steps: with valid types and limited lengths,
    and without a wanted step that has passed or lies far ahead."""
    code = request.exit_code
    return Request(
        str(request.trigger)[:TRIGGER_LIMIT],
        str(request.why)[:WHY_LIMIT],
        save=bool(request.save),
        stop=bool(request.stop),
        label=str(request.label or "")[:LABEL_LIMIT],
        discard=bool(request.discard),
        exit_code=int(code) if isinstance(code, int) and 0 <= code < 256 else 1,
        rank=rank,
        step=_step(request.step),
        since=_step(request.since),
        at=at if steps < (at := _step(request.at)) <= steps + MOST_AHEAD else 0,
    )


def cut_report(key: str, fault: str, text: str) -> Message:
    """Return the report of a rank, with texts of limited lengths."""
    return {"say": "report", "key": key[:KEY_LIMIT], "fault": fault[:FAULT_LIMIT], "text": text[:TEXT_LIMIT]}


def _check_lengths(key: str, faults: list[Any], text: str) -> None:
    if not all(type(fault) is str and len(fault) <= FAULT_LIMIT for fault in faults) or len(faults) > MOST_FAULTS:
        raise ValueError("report: not only short faults")
    if len(key) > KEY_LIMIT or len(text) > TEXT_LIMIT:
        raise ValueError("report: a text is too long")


def _step(value: object) -> int:
    return int(value) if isinstance(value, int) and 0 <= value < LARGEST_NUMBER else 0


def _check_verdict(fields: object) -> None:
    verdict = _check_fields("verdict", fields, _VERDICT)
    for request in verdict["requests"]:
        read_request(request)
    if not all(type(name) is str for name in verdict["answers"]):
        raise ValueError("verdict: a request has no name")


def _check(message: object, known: dict[str, dict[str, type]]) -> Message:
    if not isinstance(message, dict):
        raise ValueError("a message is a table")
    says = message.get("say")
    fields = known.get(says) if isinstance(says, str) else None
    if fields is None:
        raise ValueError(f"unknown message {says!r}"[:200])
    _check_fields(str(says), {name: value for name, value in message.items() if name != "say"}, fields)
    return message


def _check_fields(what: str, fields: object, expected: Mapping[str, type]) -> dict[str, Any]:
    """Return the fields if they have exactly these keys and types, and numbers in range. Raise ValueError."""
    if not isinstance(fields, dict):
        raise ValueError(f"{what}: not a table")
    if set(fields) != set(expected):
        raise ValueError(f"{what}: wrong keys {sorted(map(str, fields))}"[:200])
    for name, kind in expected.items():
        value = fields[name]
        if type(value) is not kind and not (kind is float and type(value) is int):
            raise ValueError(f"{what}: {name} is no {kind.__name__}")
        if type(value) is int and not 0 <= value < LARGEST_NUMBER:
            raise ValueError(f"{what}: {name} is out of range")
    return fields
