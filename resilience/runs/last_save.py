"""How far the saves of a run have come, as its guard journals them, in sentences. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from resilience.switch import describe_age, printable


@dataclass(frozen=True, slots=True)
class LastSave:
    """What the guard of rank 0 has written of its saves.

    Attributes:
        step: of the newest save that is durable; None while none is known.
        time: when it was, in seconds since the epoch, as all times here; 0 when that is not known.
        pending_step: of a save that began after it and is not durable yet; None when there is none.
        pending_since: when that began.
        in_flight: whether the training goes on meanwhile.
        failed_step: of a save that failed after it; None when there is none.
        why: what made that one fail.
        attempt, failed_attempt, pending_attempt: whose saves these were, 0 for none.
        failed_time: when that one failed.
        is_whole: whether all journals were read; if not, an older save may be durable although `step` is None.
    """

    step: int | None = None
    time: float = 0.0
    pending_step: int | None = None
    pending_since: float = 0.0
    in_flight: bool = False
    failed_step: int | None = None
    why: str = ""
    attempt: int = 0
    failed_attempt: int = 0
    failed_time: float = 0.0
    is_whole: bool = True
    pending_attempt: int = 0


def last_save(events: Iterable[Mapping[str, Any]]) -> LastSave | None:
    """Given rank 0's journal in order, of one attempt or of several, return its last word; None when it has none."""
    step: int | None = None
    pending: int | None = None
    failed: int | None = None
    saved_at = began_at = failed_at = 0.0
    saved_in = failed_in = pending_in = 0
    in_flight, why = False, ""
    for event in events:
        name, at, number = event.get("event"), _seconds(event.get("time")), _whole(event.get("step"))
        attempt = _whole(event.get("attempt")) or 0
        if name == "start":  # another attempt: what was pending in the one before never will be durable
            pending = None
        elif number is None:
            continue
        elif name == "save_begin":
            pending, began_at, pending_in, in_flight = number, at, attempt, False
        elif name == "save_staged" and number == pending:
            in_flight = True
        elif name == "save":
            step, saved_at, saved_in, failed = number, at, attempt, None
            pending = None if number == pending else pending
        elif name == "save_failed":
            failed, failed_at, failed_in, why = number, at, attempt, printable(str(event.get("error", "")))
            pending = None if number == pending else pending
    if step is None and pending is None and failed is None:
        return None
    return LastSave(
        step, saved_at, pending, began_at if pending is not None else 0.0, in_flight and pending is not None,
        failed, why if failed is not None else "", saved_in,
        failed_in if failed is not None else 0, failed_at if failed is not None else 0.0,
        pending_attempt=pending_in if pending is not None else 0,
    )  # fmt: skip


def describe_save(save: LastSave, now: float, *, is_running: bool) -> str:
    """For people: `step 1200, 12 min ago; that of step 1300 in flight, begun 40 s ago`.

    `is_running`: whether the attempt of the pending save runs.
    """
    nothing = "nothing yet" if save.is_whole else "no durable one in the newest journals"
    parts = [f"step {save.step}{when(save.time, now)}" if save.step is not None else nothing]
    if save.failed_step is not None:
        parts.append(f"that of step {save.failed_step} failed" + (f": {save.why}" if save.why else ""))
    if save.pending_step is not None and is_running:
        how = "is in flight" if save.in_flight else "has begun"
        parts.append(f"that of step {save.pending_step} {how}{when(save.pending_since, now)}")
    elif save.pending_step is not None:
        parts.append(f"that of step {save.pending_step} was cut off")
    return "; ".join(parts)


def when(time: float, now: float) -> str:
    """For instance, `, 12 min ago`; empty for a time that is not known."""
    return f",{describe_age(now - time) or ' just now'}" if time else ""


def _whole(value: object) -> int | None:
    return value if isinstance(value, int) and not isinstance(value, bool) and 0 <= value < 2**62 else None


def _seconds(value: object) -> float:
    is_time = isinstance(value, int | float) and not isinstance(value, bool) and 0 <= value < 2**40
    return float(value) if is_time else 0.0  # type: ignore[arg-type]
