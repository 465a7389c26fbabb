"""Channel state: retry back-off, message threads, and the alerts about channels that fail or recover.

Retries use exponential back-off with full jitter: the wait is uniform between 0 and a bound that doubles with each
failure, so that nodes that lost the same server do not retry in step.
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
from resilience.alerts.incident import hex_digest
from resilience.alerts.message import SELF_CHECK
from resilience.errors import StateDirectoryError
from resilience.finding import Verdict
from resilience.messages import plural, quoted
from resilience.quantities import format_duration
from resilience.records import from_record, to_record
from resilience.system.fallback_directory import FallbackDirectory

BASE_S = 30.0
CAP_S = 900.0
MIN_WAIT_S = 1.0
RETRY_AFTER_CAP_S = 3600.0
"""Upper limit of a server's Retry-After. Channels have lower limits of their own."""
FAILING_AFTER_S = 900.0
FAILING_TRIES = 3
NOTIFY_EVERY_S = 86400.0
GIVE_UP_TRIES, GIVE_UP_S = 20, 86400.0

THREAD_RETENTION_S, MAX_THREADS = 60 * 86400.0, 2000
MAX_NODES = 200
"""Maximum number of node state files; a cluster may have thousands of nodes."""
CLEANUP_EVERY_S = 3600.0
_CLEANED_UP = "swept"
_PLAIN = re.compile(r"[A-Za-z0-9_-]{1,80}")


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeState:
    """State of one channel as seen from one node: a node without network access must not pause the others.

    Attributes:
        failures: consecutive failures.
        since: time of the first of them, seconds since the epoch.
        last: time of the last of them, seconds since the epoch.
        retry_at: earliest time of the next try.
        error, hint: of the last failure.
        is_fault: the settings, the secret or the channel's own code are at fault, or the server rejected the message
            permanently: retrying does not help.
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
    """State of one channel shared by all nodes.

    Attributes:
        last_ok: time of the last delivery from any node.
        asked_until: end of the wait that the server requested (Retry-After).
        told_at: time of the last notification that this channel is broken; 0 for never.
        episode: id of that incident until its resolution is sent; empty when none is open.
        told_to: channels that received that notification.
    """

    last_ok: float = 0.0
    asked_until: float = 0.0
    told_at: float = 0.0
    episode: str = ""
    told_to: tuple[str, ...] = ()


# ---- decisions: pure


def backoff_s(failures: int, chance: float) -> float:
    """Return the back-off in seconds, given the number of consecutive failures and a random number from 0 to 1."""
    return max(MIN_WAIT_S, chance * min(CAP_S, BASE_S * 2.0 ** min(max(failures - 1, 0), 60)))


def retry_after_wait_s(retry_after_s: float) -> float:
    """Return the wait for a server's Retry-After, at least MIN_WAIT_S and at most RETRY_AFTER_CAP_S."""
    if retry_after_s != retry_after_s:  # not a number
        return MIN_WAIT_S
    return min(max(retry_after_s, MIN_WAIT_S), RETRY_AFTER_CAP_S)


def after_failure(
    state: NodeState, now: float, chance: float, *, error: str, hint: str = "", is_fault: bool = False
) -> NodeState:
    """Return the state of a channel after another failure."""
    failures = state.failures + 1
    return NodeState(
        failures=failures,
        since=state.since if state.failures else now,
        last=now,
        retry_at=now + backoff_s(failures, chance),
        error=error,
        hint=hint,
        is_fault=is_fault,
    )


def is_paused(node: NodeState, shared: SharedState, now: float, *, patient: bool) -> bool:
    """Return True if the channel must wait. With `patient` off the back-off is ignored, a server's Retry-After is not.

    A time too far in the future comes from a node with a wrong clock and is ignored.
    """
    if now < shared.asked_until <= now + RETRY_AFTER_CAP_S:
        return True
    return patient and now < node.retry_at <= now + CAP_S


def decide_reason(node: NodeState, shared: SharedState, now: float) -> Reason:
    """Return the reason to notify the other channels: FIRST (broken; at most once a day), RESOLVED or QUIET."""
    if node.failures == 0:
        return Reason.RESOLVED if shared.episode and shared.last_ok > shared.told_at else Reason.QUIET
    if shared.episode or 0 < shared.told_at <= now < shared.told_at + NOTIFY_EVERY_S:
        return Reason.QUIET
    lasts = node.failures >= FAILING_TRIES and now - node.since >= FAILING_AFTER_S
    works_elsewhere = shared.last_ok >= node.since
    return Reason.FIRST if node.is_fault or (lasts and not works_elsewhere) else Reason.QUIET


def should_give_up(tries: int, queued: float, shared: SharedState, now: float) -> bool:
    """Return True if the channel has failed this message for a day while it accepted others.

    While the channel accepts no message at all there is an outage, and no message is given up.
    """
    return tries >= GIVE_UP_TRIES and now - queued >= GIVE_UP_S and shared.last_ok > queued


# ---- alerts about a channel: pure


def failure_alert(
    channel: str, state: NodeState, *, incident_id: str, now: float, waiting: int, **origin: Any
) -> Alert:
    """Return the alert that a channel fails, with the error and a hint. `origin`: host and project."""
    lasting = f" for {format_duration(now - state.since)}" if now - state.since >= 60 else ""
    queued = f"; {plural(waiting, 'message')} queued" if waiting else ""
    return _alert(
        channel,
        incident_id,
        now,
        since=state.since,
        summary=f"delivery has failed{lasting}: {state.error}{queued}",
        advice="; ".join(filter(None, (state.hint, f"resil alert test {quoted(channel)}"))),
        **origin,
    )


def damage_alert(channel: str, names: Sequence[str], *, now: float, **origin: Any) -> Alert:
    """Return the alert that queued messages were lost to damaged files. `names`: of the files."""
    return _alert(
        channel,
        hex_digest(8, "\n".join(sorted(names))),
        now,
        since=now,
        summary=f"{plural(len(names), 'queued message')} damaged on disk and never sent; no incident was lost",
        advice="resil alert list --all",
        fault="damaged",
        **origin,
    )


def recovery_alert(channel: str, *, incident_id: str, since: float, now: float, **origin: Any) -> Alert:
    """Return the alert that a channel delivers again."""
    summary = "delivery works again"
    return _alert(channel, incident_id, now, reason=Reason.RESOLVED, since=since, summary=summary, **origin)


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
        fingerprint=f"{SELF_CHECK} {channel} {fault}",
        reason=reason,
        check=SELF_CHECK,
        subject=f"channel {channel}",
        fault=fault,
        verdict=Verdict.OK if reason is Reason.RESOLVED else Verdict.WARNING,
        **fields,
    )
    id = f"{incident_id}-{reason.value.lower()}"
    return Alert.of(notice, id=id, thread=incident_id, time=now, host=host, project=project)


# ---- files


class ChannelStore:
    """Reads and writes the directories `threads/` and `channels/` beside the outbox.

    Best effort: losing a back-off or a Slack thread does no harm.
    """

    def __init__(self, outbox: FallbackDirectory) -> None:
        self._threads = outbox.sibling("threads")
        self._channels = outbox.sibling("channels")

    def thread(self, thread: str, channel: str) -> Mapping[str, str]:
        """Return what the channel returned for earlier messages of this thread; empty for the first."""
        memory = _load(self._threads, _thread_name(thread, channel)).get("memory")
        if not isinstance(memory, dict):
            return {}
        return {str(key): value for key, value in memory.items() if isinstance(value, str)}

    def save_thread(self, thread: str, channel: str, memory: Mapping[str, str], now: float) -> None:
        """Save what the channel needs for the next message of this thread."""
        kept = {key: value for key, value in memory.items() if key != "answer"}
        if kept:
            _save(self._threads, _thread_name(thread, channel), {"time": now, "thread": thread, "memory": kept})

    def node_state(self, channel: str, host: str) -> NodeState:
        """Return the state of a channel as seen from one node."""
        return from_record(NodeState, _load(self._channels, f"{channel}@{host}"), strict=True, lenient=True)

    def save_node_state(self, channel: str, host: str, state: NodeState, now: float) -> None:
        """Save the state of a channel on one node; a channel without failures needs no file."""
        record = {"time": now} | to_record(state, complete=True) if state.failures else {}
        _save(self._channels, f"{channel}@{host}", record)

    def shared_state(self, channel: str) -> SharedState:
        """Return the state of a channel shared by all nodes."""
        return from_record(SharedState, _load(self._channels, channel), strict=True, lenient=True)

    def save_shared_state(self, channel: str, state: SharedState) -> None:
        """Save the shared state. If another node has saved a later success meanwhile, that one is kept."""
        last_ok = max(state.last_ok, self.shared_state(channel).last_ok)
        _save(self._channels, channel, to_record(replace(state, last_ok=last_ok), complete=True))

    def is_cleanup_due(self, now: float) -> bool:
        """Return True, and schedule the next cleanup, if the last one was an hour ago."""
        cleaned_up = _load(self._channels, _CLEANED_UP).get("time", 0.0)
        if isinstance(cleaned_up, int | float) and 0 <= now - cleaned_up < CLEANUP_EVERY_S:
            return False
        _save(self._channels, _CLEANED_UP, {"time": now})
        return True

    def cleanup(self, now: float) -> None:
        """Remove the state of old threads and of nodes that failed long ago."""
        expire(self._threads, "time", now - THREAD_RETENTION_S, MAX_THREADS)
        expire(self._channels, "time", now - THREAD_RETENTION_S, MAX_NODES, only="@")
        for directory in (self._threads, self._channels):
            with suppress(StateDirectoryError):
                directory.flush_fallback()


def expire(directory: FallbackDirectory, time_key: str, since: float, most: int, *, only: str = "") -> None:
    """Remove files whose recorded time is before `since`, and the oldest ones beyond `most` files."""
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
    """Return the file name of a thread; an id with unusual characters is hashed."""
    plain = thread if _PLAIN.fullmatch(thread) else hashlib.sha256(thread.encode("utf-8", "replace")).hexdigest()[:32]
    return f"{plain}.{channel}"
