"""Hands one message to its channel, in a child process with a deadline: what the channel does there harms nobody.

The plugin is imported, asked and run in that child alone. It may hang, crash the interpreter, print, or raise with a
secret in its text: what comes back is a plain outcome.
"""

from __future__ import annotations

import signal
import sys
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any

from resilience.alerts.alert import Alert
from resilience.alerts.channels import Channel
from resilience.errors import DeliveryError, ResilError, UsageError
from resilience.system.child import Answer, run_apart
from resilience.system.world import World

SEND_S = 15.0
"""How long a channel may take for one message."""
_LAST_RESORT_S = 5
"""So long after its deadline the kernel ends a child whose parent is gone."""
_TEXT_MOST, _SAID_MOST = 500, 4000


@dataclass(frozen=True, slots=True)
class Route:
    """How a channel is reached.

    Attributes:
        load: gives the channel and its settings; called in the child. Whatever it raises is the outcome.
    """

    load: Callable[[], tuple[Channel, Any]]

    @classmethod
    def of(cls, channel: Channel, settings: Any) -> Route:
        """A route to a channel that is there already."""
        return cls(lambda: (channel, settings))


class Ending(StrEnum):
    """How handing over one message ended."""

    SENT = "sent"
    FAILED = "failed"
    """It may be taken later."""
    REFUSED = "refused"
    """It will never be taken: a dead letter."""
    FAULT = "fault"
    """The settings, the secret or the plugin are at fault; once they are right, it may be taken."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """What became of one message.

    Attributes:
        answer: what the channel said when it took it, for people.
        memory: what it wants to know when the next message of this thread goes out, or this one is tried again.
        error, hint: why it was not taken.
        retry_after_s: how long the other side asked us to stay away, or None.
        took_s: how long it took.
    """

    ending: Ending
    answer: str = ""
    memory: Mapping[str, str] = field(default_factory=dict)
    error: str = ""
    hint: str = ""
    retry_after_s: float | None = None
    took_s: float = 0.0


@dataclass(frozen=True, slots=True)
class Errand:
    """One message for one channel.

    Attributes:
        thread: what the channel remembers of the alert's thread.
        deadline_s: how long it may take.
    """

    alert: Alert
    route: Route
    thread: Mapping[str, str] = field(default_factory=dict)
    deadline_s: float = SEND_S


def send_apart(errands: Mapping[str, Errand], world: World) -> Iterator[tuple[str, Outcome]]:
    """Hand over several messages at once, each in a child of its own; yield (key, outcome) as they end."""
    works = {key: (lambda errand=errand: _send(errand, world), errand.deadline_s) for key, errand in errands.items()}
    for key, answer in run_apart(works):
        if answer.said:  # the channel `console` speaks there; nothing of it belongs in the output of a watchdog
            sys.stderr.write(answer.said[:_SAID_MOST])
            sys.stderr.flush()
        yield key, _outcome(answer, errands[key].deadline_s)


def compose_apart(errands: Mapping[str, Errand]) -> Iterator[tuple[str, str]]:
    """As `send_apart`, but nothing is sent: what would be, as text for people. An error is told in its place."""
    works = {key: (lambda errand=errand: _compose(errand), errand.deadline_s) for key, errand in errands.items()}
    for key, answer in run_apart(works):
        if isinstance(answer.value, str):
            yield key, answer.value
        else:
            error = _outcome(answer, errands[key].deadline_s)
            yield key, f"cannot be composed: {error.error}" + (f" (try: {error.hint})" if error.hint else "")


def _send(errand: Errand, world: World) -> dict[str, Any]:
    """In the child: the whole of it, and plain data of what came of it."""
    _settle_child(errand.deadline_s)
    try:
        channel, settings = errand.route.load()
        channel.check(settings)
        message = channel.compose(errand.alert, settings, errand.thread)
        memory = channel.send(message, settings, world)
        return {"ending": "sent", "memory": {str(key): str(value) for key, value in (memory or {}).items()}}
    except BaseException as error:
        return _trouble(error)


def _compose(errand: Errand) -> str | dict[str, Any]:
    _settle_child(errand.deadline_s)
    try:
        channel, settings = errand.route.load()
        channel.check(settings)
        message = channel.compose(errand.alert, settings, errand.thread)
        return readable(message)
    except BaseException as error:
        return _trouble(error)


def readable(message: object) -> str:
    """A composed message as people read it: a mail as it goes out, everything else as JSON or its own text. Pure."""
    if isinstance(message, str):
        return message
    as_mail = getattr(message, "as_string", None)
    if callable(as_mail):
        return str(as_mail())
    import json
    from dataclasses import asdict, is_dataclass

    plain = asdict(message) if is_dataclass(message) and not isinstance(message, type) else message
    try:
        return json.dumps(plain, indent=2, ensure_ascii=False, default=str)
    except (TypeError, ValueError):
        return str(message)


def _settle_child(deadline_s: float) -> None:
    """Should whoever sends be killed, the child must not wait for a server for ever."""
    signal.signal(signal.SIGALRM, signal.SIG_DFL)
    signal.alarm(int(deadline_s) + _LAST_RESORT_S)


def _trouble(error: BaseException) -> dict[str, Any]:
    """What was raised, as plain data. The text of an exception that is not ours may hold a secret, and is not told."""
    if isinstance(error, DeliveryError):
        ending = "failed" if error.transient else "refused"
        return _told(ending, error) | {"retry_after_s": error.retry_after_s, "memory": error.memory}
    if isinstance(error, UsageError):
        return _told("fault", error)
    if isinstance(error, ResilError):
        return _told("failed" if error.transient else "fault", error)
    frames = error.__traceback__
    while frames is not None and frames.tb_next is not None:
        frames = frames.tb_next
    where = f" at {frames.tb_frame.f_code.co_filename}:{frames.tb_lineno}" if frames is not None else ""
    said = f"the channel's own code failed: {type(error).__name__}{where}"
    return {"ending": "fault", "error": said, "hint": "this is a bug of the channel"}


def _told(ending: str, error: ResilError) -> dict[str, Any]:
    return {"ending": ending, "error": error.message[:_TEXT_MOST], "hint": error.hint[:_TEXT_MOST]}


def _outcome(answer: Answer, deadline_s: float) -> Outcome:
    value = answer.value
    if not isinstance(value, dict):
        # It gave no answer: too late, or the process itself went down.
        error = "the channel crashed while it sent"
        if answer.is_overdue:
            error = f"no answer within {deadline_s:g} s"
        elif answer.error is not None and answer.error.transient:
            error = answer.error.message  # no process could be started
        return Outcome(ending=Ending.FAILED, error=error, took_s=answer.took_s)
    memory = value.get("memory", {})
    return Outcome(
        ending=Ending(value["ending"]),
        answer=memory.get("answer", "") if isinstance(memory, dict) else "",
        memory=memory if isinstance(memory, dict) else {},
        error=value.get("error", ""),
        hint=value.get("hint", ""),
        retry_after_s=value.get("retry_after_s"),
        took_s=answer.took_s,
    )
