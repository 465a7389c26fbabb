"""State of the channels: failures and waits, what the next message needs, and the alerts about a channel that fails."""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, fields, replace
from enum import StrEnum
from typing import Any, TypeVar

from resilience.alerts import channel_health as backoff
from resilience.alerts.alert import Alert, Notice, Reason
from resilience.alerts.claims import Claim
from resilience.alerts.message import OURS
from resilience.errors import StateDirectoryError
from resilience.finding import Verdict
from resilience.quantities import format_duration
from resilience.system.spare_folder import SpareFolder

BASE_S = 30.0
CAP_S = 900.0
LEAST_S = 1.0
ASKED_CAP_S = 3600.0
"""However long a server asks us to wait, we ask again after an hour. (Channels have caps of their own below this.)"""
BROKEN_AFTER_S = 900.0
BROKEN_TRIES = 3
TOLD_EVERY_S = 86400.0
GIVE_UP_TRIES, GIVE_UP_S = 20, 86400.0

RecordT = TypeVar("RecordT")


@dataclass(frozen=True, slots=True, kw_only=True)
class Health:
    """How one channel fares from one node: a node without a way out must not stop those that have one.

    Attributes:
        failures: in a row.
        since: of the first of them, seconds since the epoch.
        last: when the last of them was, seconds since the epoch.
        retry_at: not before.
        error, hint: what came back last.
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
class Standing:
    """What all nodes know of one channel.

    Attributes:
        last_ok: when it last took a message, from whichever node.
        asked_until: the server asked us not to come before.
        told_at: when the others were last told that it is broken; 0 for never.
        episode: of what they were told, until they are told of its end; empty when there is nothing to end.
        told_to: the channels that were told.
    """

    last_ok: float = 0.0
    asked_until: float = 0.0
    told_at: float = 0.0
    episode: str = ""
    told_to: tuple[str, ...] = ()


class News(StrEnum):
    """What the other channels are told about one of them."""

    NONE = "none"
    BROKEN = "broken"
    MENDED = "mended"


def delay_s(failures: int, chance: float, *, base_s: float = BASE_S, cap_s: float = CAP_S) -> float:
    """Given the failures in a row and a random number from 0 to 1, return how long to wait, in seconds."""
    bound = min(cap_s, base_s * 2.0 ** min(max(failures - 1, 0), 60))
    return max(LEAST_S, chance * bound)


def asked_wait_s(retry_after_s: float) -> float:
    """How long to stay away when the server said for how long: never less than a second, never absurdly long."""
    if retry_after_s != retry_after_s:  # not a number
        return LEAST_S
    return min(max(retry_after_s, LEAST_S), ASKED_CAP_S)


def after_failure(
    health: Health, now: float, chance: float, *, error: str, hint: str = "", is_fault: bool = False
) -> Health:
    """The health of a channel that has just failed."""
    failures = health.failures + 1
    return Health(
        failures=failures,
        since=health.since if health.failures else now,
        last=now,
        retry_at=now + delay_s(failures, chance),
        error=error,
        hint=hint,
        is_fault=is_fault,
    )


def is_paused(health: Health, standing: Standing, now: float, *, patient: bool) -> bool:
    """Whether to leave a channel alone now. A person who does not want to wait (`patient` off) still heeds the server.

    A time too far ahead is another node's wrong clock, and is not believed.
    """
    if now < standing.asked_until <= now + ASKED_CAP_S:
        return True
    return patient and now < health.retry_at <= now + CAP_S


def decide_news(health: Health, standing: Standing, now: float) -> News:
    """Say whether the other channels are to be told about this one: of each breakdown once, and once a day at most."""
    if health.failures == 0:
        delivered_since = standing.last_ok > standing.told_at
        return News.MENDED if standing.episode and delivered_since else News.NONE
    if standing.episode or 0 < standing.told_at <= now < standing.told_at + TOLD_EVERY_S:
        return News.NONE
    if health.is_fault:
        return News.BROKEN
    lasts = health.failures >= BROKEN_TRIES and now - health.since >= BROKEN_AFTER_S
    works_elsewhere = standing.last_ok >= health.since
    return News.BROKEN if lasts and not works_elsewhere else News.NONE


def is_hopeless(tries: int, queued: float, standing: Standing, now: float) -> bool:
    """Whether one message is never going to be taken: others went through since, and it did not, for a day.

    While the channel takes nothing at all, no message is hopeless: that is an outage.
    """
    return tries >= GIVE_UP_TRIES and now - queued >= GIVE_UP_S and standing.last_ok > queued


def to_record(state: Health | Standing) -> dict[str, Any]:
    """As JSON's own types."""
    return asdict(state)


def from_record(owner: type[RecordT], record: Mapping[str, Any]) -> RecordT:
    """What `to_record` wrote; whatever is missing or of another type has its default. Never raises."""
    plain = owner()
    given: dict[str, Any] = {}
    for field in fields(owner):  # type: ignore[arg-type]
        value, default = record.get(field.name), getattr(plain, field.name)
        if isinstance(default, tuple):
            if isinstance(value, list) and all(isinstance(item, str) for item in value):
                given[field.name] = tuple(value)
        elif isinstance(default, bool) or isinstance(value, bool):
            if isinstance(default, bool) and isinstance(value, bool):
                given[field.name] = value
        elif isinstance(default, float):
            if isinstance(value, int | float) and value == value:
                given[field.name] = float(value)
        elif type(value) is type(default):
            given[field.name] = value
    return owner(**given)


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


class Lane:
    """One channel in one flush.

    Attributes:
        claim: the claim that is held on it.
        health: how it fares from this node; standing: what all nodes know of it.
        is_open: whether it may take another message in this flush.
        last_sent: monotonic seconds of its last message.
    """

    def __init__(self, memory: ChannelMemory, channel: str, held: Claim, host: str) -> None:
        self._memory, self._channel, self._host, self.claim = memory, channel, host, held
        self.health = memory.health(channel, host)
        self.standing = memory.standing(channel)
        self.is_open = True
        self.last_sent = float("-inf")

    def keep(self, health: Health, standing: Standing, now: float) -> None:
        """Remember how it fares now."""
        if health != self.health:
            self._memory.keep_health(self._channel, self._host, health, now)
        if standing != self.standing:
            self._memory.keep_standing(self._channel, standing)
        self.health, self.standing = health, standing


CHECK = OURS
FAULT = "delivery"


def episode_of(channel: str, now: float) -> str:
    """The id of a breakdown: the same for all nodes that notice it on the same day."""
    return hashlib.sha256(f"{channel} {int(now // TOLD_EVERY_S)}".encode()).hexdigest()[:8]


def broken(channel: str, health: Health, *, episode: str, now: float, host: str, project: str, waiting: int) -> Alert:
    """Say that a channel delivers nothing, why, and what to do."""
    lasting = f" for {format_duration(now - health.since)}" if now - health.since >= 60 else ""
    waits = f"; {waiting} of its messages {'waits' if waiting == 1 else 'wait'}" if waiting else ""
    return _alert(
        channel,
        Reason.FIRST,
        Verdict.WARNING,
        episode=episode,
        now=now,
        host=host,
        project=project,
        since=health.since,
        summary=f"it does not deliver{lasting}: {health.error}{waits}",
        advice="; ".join(filter(None, (health.hint, f"resil alert test {channel}"))),
    )


def damaged(channel: str, names: Sequence[str], *, now: float, host: str, project: str) -> Alert:
    """Say that messages were lost on the disk where they waited. `names`: of their files."""
    episode = hashlib.sha256("\n".join(sorted(names)).encode("utf-8", "surrogateescape")).hexdigest()[:8]
    what = "a message that waited for it was" if len(names) == 1 else f"{len(names)} messages that waited for it were"
    return _alert(
        channel,
        Reason.FIRST,
        Verdict.WARNING,
        episode=episode,
        now=now,
        host=host,
        project=project,
        since=now,
        summary=f"{what} damaged on the disk: somebody was not told of something; the incidents are known",
        advice="resil alert list --all",
        fault="damaged",
    )


def mended(channel: str, *, episode: str, since: float, now: float, host: str, project: str) -> Alert:
    """Say that it works again."""
    return _alert(
        channel,
        Reason.RESOLVED,
        Verdict.OK,
        episode=episode,
        now=now,
        host=host,
        project=project,
        since=since,
        summary="it delivers again",
        advice="",
    )


def _alert(
    channel: str,
    reason: Reason,
    verdict: Verdict,
    *,
    episode: str,
    now: float,
    host: str,
    project: str,
    since: float,
    summary: str,
    advice: str,
    fault: str = FAULT,
) -> Alert:
    notice = Notice(
        episode=episode,
        fingerprint=f"{CHECK} {channel} {fault}",
        reason=reason,
        check=CHECK,
        subject=f"channel {channel}",
        fault=fault,
        verdict=verdict,
        summary=summary,
        since=since,
        advice=advice,
    )
    return Alert(
        id=f"{episode}-{reason.value.lower()}",
        thread=episode,
        reason=reason,
        verdict=verdict,
        time=now,
        host=host,
        project=project,
        notices=(notice,),
    )
