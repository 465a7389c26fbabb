"""State of the channels: when to retry one that failed, what its conversations need, and the alerts about a failure.

Retries use full jitter: a wait drawn evenly from nothing to the bound, and the bound doubles with each failure, so that
many nodes that lost the same server do not return in step.
Source: https://aws.amazon.com/blogs/architecture/exponential-backoff-and-jitter/.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Any

from resilience.alerts.alert import Alert, Notice, Reason
from resilience.alerts.message import OURS
from resilience.errors import StateDirectoryError
from resilience.finding import Verdict
from resilience.quantities import format_duration
from resilience.records import from_record, to_record
from resilience.system.fallback_directory import FallbackDirectory

BASE_S = 30.0
CAP_S = 900.0
LEAST_S = 1.0
ASKED_CAP_S = 3600.0
"""A server that asks for a longer wait is asked again after an hour. (Channels have caps of their own below this.)"""
BROKEN_AFTER_S = 900.0
BROKEN_TRIES = 3
NOTIFY_EVERY_S = 86400.0
GIVE_UP_TRIES, GIVE_UP_S = 20, 86400.0

THREADS_KEPT_S, THREADS_MOST = 60 * 86400.0, 2000
NODES_MOST = 200
"""So many nodes have a file; a cluster may have thousands."""
CLEANUP_EVERY_S = 3600.0
_CLEANED_UP = "swept"
_PLAIN = re.compile(r"[A-Za-z0-9_-]{1,80}")


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeState:
    """State of one channel as seen from one node: a node without a way out must not stop those that have one.

    Attributes:
        failures: in a row.
        since: of the first of them, seconds since the epoch.
        last: when the last of them was, seconds since the epoch.
        retry_at: not before.
        error, hint: of the last of them.
        is_fault: the settings, the secret or the channel's own code are at fault, or the server refused for good: no
            waiting will help.
    """

    failures: int = 0
    since: float = 0.0
    last: float = 0.0
    retry_at: float = 0.0
    error: str = ""
    hint: str = ""
    is_fault: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class SharedState:
    """State of one channel that all nodes share.

    Attributes:
        last_ok: when it last took a message, from any node.
        asked_until: the server asked for no request before.
        told_at: when the other channels were last notified that this one is broken; 0 for never.
        episode: id of that incident until its end is sent; empty when there is nothing to end.
        told_to: the channels that were notified.
    """

    last_ok: float = 0.0
    asked_until: float = 0.0
    told_at: float = 0.0
    episode: str = ""
    told_to: tuple[str, ...] = ()


# ---- decisions: pure


def delay_s(failures: int, chance: float) -> float:
    """Given the failures in a row and a random number from 0 to 1, return how long to wait, in seconds."""
    return max(LEAST_S, chance * min(CAP_S, BASE_S * 2.0 ** min(max(failures - 1, 0), 60)))


def asked_wait_s(retry_after_s: float) -> float:
    """How long to wait when the server said for how long: never less than a second, never absurdly long."""
    if retry_after_s != retry_after_s:  # not a number
        return LEAST_S
    return min(max(retry_after_s, LEAST_S), ASKED_CAP_S)


def after_failure(
    state: NodeState, now: float, chance: float, *, error: str, hint: str = "", is_fault: bool = False
) -> NodeState:
    """The state of a channel that has just failed."""
    failures = state.failures + 1
    return NodeState(
        failures=failures,
        since=state.since if state.failures else now,
        last=now,
        retry_at=now + delay_s(failures, chance),
        error=error,
        hint=hint,
        is_fault=is_fault,
    )


def is_paused(node: NodeState, shared: SharedState, now: float, *, patient: bool) -> bool:
    """Whether the channel must not be used now. `patient` off ignores the back-off, and not the server's own wish.

    A time too far ahead is another node's wrong clock and is ignored.
    """
    if now < shared.asked_until <= now + ASKED_CAP_S:
        return True
    return patient and now < node.retry_at <= now + CAP_S


def decide_reason(node: NodeState, shared: SharedState, now: float) -> Reason:
    """Why to notify the other channels about this one: FIRST when it is broken, once a day at most; RESOLVED; QUIET."""
    if node.failures == 0:
        return Reason.RESOLVED if shared.episode and shared.last_ok > shared.told_at else Reason.QUIET
    if shared.episode or 0 < shared.told_at <= now < shared.told_at + NOTIFY_EVERY_S:
        return Reason.QUIET
    lasts = node.failures >= BROKEN_TRIES and now - node.since >= BROKEN_AFTER_S
    works_elsewhere = shared.last_ok >= node.since
    return Reason.FIRST if node.is_fault or (lasts and not works_elsewhere) else Reason.QUIET


def is_hopeless(tries: int, queued: float, shared: SharedState, now: float) -> bool:
    """Whether a message will never be taken: the channel took others since, and refused this one for a day.

    While the channel takes nothing at all, no message is hopeless: that is an outage.
    """
    return tries >= GIVE_UP_TRIES and now - queued >= GIVE_UP_S and shared.last_ok > queued


# ---- alerts about a channel: pure


def incident_id_of(channel: str, now: float) -> str:
    """The id of a breakdown: the same for all nodes that notice it on the same day."""
    return _short_digest(f"{channel} {int(now // NOTIFY_EVERY_S)}")


def broken(channel: str, state: NodeState, *, incident_id: str, now: float, waiting: int, **origin: Any) -> Alert:
    """Say that a channel delivers nothing, why, and what to do. `origin`: host and project."""
    lasting = f" for {format_duration(now - state.since)}" if now - state.since >= 60 else ""
    queued = f"; {waiting} of its messages {'is' if waiting == 1 else 'are'} queued" if waiting else ""
    return _alert(
        channel,
        incident_id,
        now,
        since=state.since,
        summary=f"it does not deliver{lasting}: {state.error}{queued}",
        advice="; ".join(filter(None, (state.hint, f"resil alert test {channel}"))),
        **origin,
    )


def damaged(channel: str, names: Sequence[str], *, now: float, **origin: Any) -> Alert:
    """Say that messages were lost on the disk where they were queued. `names`: of their files."""
    lost = "a message that was queued for it was" if len(names) == 1 else f"{len(names)} queued messages were"
    return _alert(
        channel,
        _short_digest("\n".join(sorted(names))),
        now,
        since=now,
        summary=f"{lost} damaged on the disk and never sent; the incidents are known",
        advice="resil alert list --all",
        fault="damaged",
        **origin,
    )


def recovered(channel: str, *, incident_id: str, since: float, now: float, **origin: Any) -> Alert:
    """Say that a channel delivers again."""
    return _alert(channel, incident_id, now, reason=Reason.RESOLVED, since=since, summary="it delivers again", **origin)


def _alert(
    channel: str,
    incident_id: str,
    now: float,
    *,
    reason: Reason = Reason.FIRST,
    host: str,
    project: str,
    fault: str = "delivery",
    **fields: Any,
) -> Alert:
    notice = Notice(
        episode=incident_id,
        fingerprint=f"{OURS} {channel} {fault}",
        reason=reason,
        check=OURS,
        subject=f"channel {channel}",
        fault=fault,
        verdict=Verdict.OK if reason is Reason.RESOLVED else Verdict.WARNING,
        **fields,
    )
    id = f"{incident_id}-{reason.value.lower()}"
    return Alert.of(notice, id=id, thread=incident_id, time=now, host=host, project=project)


def _short_digest(text: str) -> str:
    return hashlib.sha256(text.encode("utf-8", "surrogateescape")).hexdigest()[:8]


# ---- files


class ChannelStore:
    """The directories `threads/` and `channels/` beside the outbox.

    All of it is best effort: a wait that was forgotten, or a Slack thread that was lost, does no harm.
    """

    def __init__(self, outbox: FallbackDirectory) -> None:
        self._threads = outbox.sibling("threads")
        self._channels = outbox.sibling("channels")

    def thread(self, thread: str, channel: str) -> Mapping[str, str]:
        """The memory that the channel returned for earlier messages of this thread; empty for the first."""
        memory = _load(self._threads, _thread_name(thread, channel)).get("memory")
        if not isinstance(memory, dict):
            return {}
        return {str(key): value for key, value in memory.items() if isinstance(value, str)}

    def save_thread(self, thread: str, channel: str, memory: Mapping[str, str], now: float) -> None:
        """Save what a channel needs for the next message of this thread."""
        kept = {key: value for key, value in memory.items() if key != "answer"}
        if kept:
            _save(self._threads, _thread_name(thread, channel), {"time": now, "thread": thread, "memory": kept})

    def node_state(self, channel: str, host: str) -> NodeState:
        """State of a channel as seen from one node."""
        return from_record(NodeState, _load(self._channels, f"{channel}@{host}"), strict=True, lenient=True)

    def save_node_state(self, channel: str, host: str, state: NodeState, now: float) -> None:
        """Save the state of a channel; one that works needs no file."""
        record = {"time": now} | to_record(state, complete=True) if state.failures else {}
        _save(self._channels, f"{channel}@{host}", record)

    def shared_state(self, channel: str) -> SharedState:
        """State of a channel that all nodes share."""
        return from_record(SharedState, _load(self._channels, channel), strict=True, lenient=True)

    def save_shared_state(self, channel: str, state: SharedState) -> None:
        """Save that state. Another node may have written meanwhile: a later success of that node is kept."""
        last_ok = max(state.last_ok, self.shared_state(channel).last_ok)
        _save(self._channels, channel, to_record(replace(state, last_ok=last_ok), complete=True))

    def is_cleanup_due(self, now: float) -> bool:
        """Whether the last cleanup was an hour ago; if so, the next is an hour from now."""
        cleaned_up = _load(self._channels, _CLEANED_UP).get("time", 0.0)
        if isinstance(cleaned_up, int | float) and 0 <= now - cleaned_up < CLEANUP_EVERY_S:
            return False
        _save(self._channels, _CLEANED_UP, {"time": now})
        return True

    def cleanup(self, now: float) -> None:
        """Remove threads that ended long ago, and nodes that failed long ago."""
        expire(self._threads, "time", now - THREADS_KEPT_S, THREADS_MOST)
        expire(self._channels, "time", now - THREADS_KEPT_S, NODES_MOST, only="@")
        for directory in (self._threads, self._channels):
            with suppress(StateDirectoryError):
                directory.flush_fallback()


def expire(directory: FallbackDirectory, time_key: str, since: float, most: int, *, only: str = "") -> None:
    """Remove the files that are older than `since` by the time in them, and the oldest beyond `most`."""
    times: dict[str, float] = {}
    for name in directory.names():
        if only in name:
            time = _load(directory, name).get(time_key)
            times[name] = float(time) if isinstance(time, int | float) else 0.0
    newest = sorted(times, key=lambda name: times[name], reverse=True)
    for number, name in enumerate(newest):
        if number >= most or times[name] < since:
            with suppress(StateDirectoryError):
                directory.remove(name)


def _load(directory: FallbackDirectory, name: str) -> dict[str, Any]:
    try:
        record = json.loads(directory.read(name) or b"{}")
    except (StateDirectoryError, ValueError, RecursionError):
        return {}
    return record if isinstance(record, dict) else {}


def _save(directory: FallbackDirectory, name: str, record: Mapping[str, Any]) -> None:
    with suppress(StateDirectoryError):
        if record:
            directory.write(name, json.dumps(record).encode(), durable=False)
        else:
            directory.remove(name)


def _thread_name(thread: str, channel: str) -> str:
    """The name of a thread's file; an odd one is hashed."""
    plain = thread if _PLAIN.fullmatch(thread) else hashlib.sha256(thread.encode("utf-8", "replace")).hexdigest()[:32]
    return f"{plain}.{channel}"
