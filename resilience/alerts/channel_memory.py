"""What is remembered of the channels: how each fares, and what it wants to know of a conversation.

All of it is best effort: a wait that was forgotten, or a Slack thread that was lost, does no harm.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import replace
from typing import Any

from resilience.alerts import backoff
from resilience.alerts.backoff import Health, Standing
from resilience.errors import StateDirectoryError
from resilience.system.spare_folder import SpareFolder

THREADS_KEPT_S, THREADS_MOST = 60 * 86400.0, 2000
NODES_MOST = 200
"""So many nodes are remembered; a cluster may have thousands."""
SWEEP_EVERY_S = 3600.0
_SWEPT = "swept"
_PLAIN = re.compile(r"[A-Za-z0-9_-]{1,80}")


class ChannelMemory:
    """The folders `threads/` and `channels/` beside the outbox."""

    def __init__(self, outbox: SpareFolder) -> None:
        self._threads = outbox.beside("threads")
        self._channels = outbox.beside("channels")

    def thread(self, thread: str, channel: str) -> Mapping[str, str]:
        """What the channel's earlier messages of this thread left; empty for the first."""
        memory = _record(self._threads, _thread_name(thread, channel)).get("memory")
        if not isinstance(memory, dict):
            return {}
        return {str(key): value for key, value in memory.items() if isinstance(value, str)}

    def keep_thread(self, thread: str, channel: str, memory: Mapping[str, str], now: float) -> None:
        """Remember what a channel wants to know when the next message of this thread goes out."""
        kept = {key: value for key, value in memory.items() if key != "answer"}
        if kept:
            _keep(self._threads, _thread_name(thread, channel), {"time": now, "thread": thread, "memory": kept})

    def health(self, channel: str, host: str) -> Health:
        """How a channel fares from one node."""
        return backoff.from_record(Health, _record(self._channels, f"{channel}@{host}"))

    def keep_health(self, channel: str, host: str, health: Health, now: float) -> None:
        """Remember it; one that is well needs no file."""
        record = {"time": now} | backoff.to_record(health) if health.failures else {}
        _keep(self._channels, f"{channel}@{host}", record)

    def standing(self, channel: str) -> Standing:
        """What all nodes know of a channel."""
        return backoff.from_record(Standing, _record(self._channels, channel))

    def keep_standing(self, channel: str, standing: Standing) -> None:
        """Remember it. Another node may have written meanwhile: what it knows of successes is not undone."""
        last_ok = max(standing.last_ok, self.standing(channel).last_ok)
        _keep(self._channels, channel, backoff.to_record(replace(standing, last_ok=last_ok)))

    def is_sweep_due(self, now: float) -> bool:
        """Whether an hour has gone by since somebody last forgot what is old; if so, it counts as done now."""
        swept = _record(self._channels, _SWEPT).get("time", 0.0)
        if isinstance(swept, int | float) and 0 <= now - swept < SWEEP_EVERY_S:
            return False
        _keep(self._channels, _SWEPT, {"time": now})
        return True

    def sweep(self, now: float) -> None:
        """Forget threads that ended long ago, and nodes that failed long ago."""
        bound(self._threads, "time", now - THREADS_KEPT_S, THREADS_MOST)
        bound(self._channels, "time", now - THREADS_KEPT_S, NODES_MOST, only="@")
        for folder in (self._threads, self._channels):
            with suppress(StateDirectoryError):
                folder.bring_home()


def bound(folder: SpareFolder, time_key: str, since: float, most: int, *, only: str = "") -> None:
    """Remove the files of a folder that are older than `since` by their own word, and the oldest beyond `most`."""
    times: dict[str, float] = {}
    for name in folder.names():
        if only in name:
            time = _record(folder, name).get(time_key)
            times[name] = float(time) if isinstance(time, int | float) else 0.0
    newest = sorted(times, key=lambda name: times[name], reverse=True)
    for number, name in enumerate(newest):
        if number >= most or times[name] < since:
            with suppress(StateDirectoryError):
                folder.remove(name)


def _record(folder: SpareFolder, name: str) -> dict[str, Any]:
    try:
        record = json.loads(folder.read(name) or b"{}")
    except (StateDirectoryError, ValueError, RecursionError):
        return {}
    return record if isinstance(record, dict) else {}


def _keep(folder: SpareFolder, name: str, record: Mapping[str, Any]) -> None:
    with suppress(StateDirectoryError):
        if record:
            folder.write(name, json.dumps(record).encode(), durable=False)
        else:
            folder.remove(name)


def _thread_name(thread: str, channel: str) -> str:
    """The name of a thread's file; an odd one is hashed."""
    plain = thread if _PLAIN.fullmatch(thread) else hashlib.sha256(thread.encode("utf-8", "replace")).hexdigest()[:32]
    return f"{plain}.{channel}"
