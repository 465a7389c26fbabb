"""The requests, and the messages of ranks and of rank 0, from which the tests of the pure protocol are made."""

from __future__ import annotations

from typing import Any

from resilience.guard.agreement.messages import check_coordinator_message
from resilience.guard.decision import DONE, SAVED, Request

SAVE = Request("save switch", "alice wants a checkpoint", stop=False)
STOP = Request("kill switch", "bob stops the run")


def verdict(steps: int, *requests: Request, polls: int = 0, answers: tuple[str, ...] = ()) -> dict[str, Any]:
    fields = [request.as_dict() for request in requests]
    return {"steps": steps, "polls": polls, "requests": fields, "answers": list(answers)}


# ---- from a rank ---------------------------------------------------------------------------------------------------


def join(rank: int, incarnation: str = "", **more: Any) -> dict[str, Any]:
    joining = {"say": "join", "rank": rank, "incarnation": incarnation or f"life{rank}", "steps": 0, "polls": 0}
    return {**joining, "round": 0, "state": "free", "verdict": {}, "requests": {}, **more}


def requested(request: Request, name: str = "w1") -> dict[str, Any]:
    return {"say": "request", "id": name, "request": request.as_dict()}


def promise(steps: int, number: int = 1, polls: int = 0, step_s: float = 0.0) -> dict[str, Any]:
    return {"say": "promise", "round": number, "steps": steps, "polls": polls, "step_s": step_s}


def done(outcome: str = SAVED, number: int = 1, seconds: float = 1.0, say: str = "done") -> dict[str, Any]:
    return {"say": say, "round": number, "outcome": outcome, "seconds": seconds}


def saved(outcome: str = SAVED, number: int = 1, seconds: float = 1.0) -> dict[str, Any]:
    return done(outcome, number, seconds, say="saved")


def report(key: str, fault: str = "", text: str = "") -> dict[str, Any]:
    return {"say": "report", "key": key, "fault": fault, "text": text}


def goodbye(steps: int, how: str = DONE, why: str = "") -> dict[str, Any]:
    return {"say": "leave", "steps": steps, "how": how, "why": why}


# ---- from rank 0 ---------------------------------------------------------------------------------------------------


def prepare(number: int = 1) -> dict[str, Any]:
    return {"say": "prepare", "round": number}


def abort(number: int = 1) -> dict[str, Any]:
    return {"say": "abort", "round": number}


def commit(
    steps: int, *requests: Request, polls: int = 0, number: int = 1, answers: tuple[str, ...] = ()
) -> dict[str, Any]:
    decided = verdict(steps, *(requests or (STOP,)), polls=polls, answers=answers)
    return {"say": "commit", "round": number, "verdict": decided}


def sent(messages: list[tuple[int, dict[str, Any]]]) -> str:
    """Messages of rank 0 in good form, in brief and in their order: "welcome 2, commit 0 1 2"."""
    kinds: list[tuple[str, list[int]]] = []
    for rank, message in messages:
        check_coordinator_message(message)
        if not kinds or kinds[-1][0] != message["say"]:
            kinds.append((message["say"], []))
        kinds[-1][1].append(rank)
    return ", ".join(" ".join([kind, *map(str, ranks)]) for kind, ranks in kinds)
