"""Sends one message through its channel, in a child process with a deadline, so that no channel can do harm.

The plugin is imported, called and run in that child alone. It may hang, crash the interpreter, print, or raise with a
secret in its text: the caller gets a plain outcome.
"""

from __future__ import annotations

import signal
import sys
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from functools import partial
from typing import Any

from resilience.alerts.alert import Alert
from resilience.alerts.channels import Channel
from resilience.alerts.routes import Route
from resilience.errors import DeliveryError, ResilError, UsageError
from resilience.system.child import Answer, run_apart
from resilience.system.ports import System

SEND_S = 15.0
"""How long a channel may take for one message."""
_LAST_RESORT_S = 5
"""So long after its deadline the kernel ends a child whose parent is gone."""
_TEXT_MOST, _OUTPUT_MOST = 500, 4000


class DeliveryStatus(StrEnum):
    """How the delivery of one message ended."""

    SENT = "sent"
    FAILED = "failed"
    """The channel may take the message later."""
    REFUSED = "refused"
    """The channel will never take the message: a dead letter."""
    FAULT = "fault"
    """The settings, the secret or the plugin are at fault; once they are right, the channel may take the message."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """Result of one delivery.

    Attributes:
        answer: the channel's answer to a message that it took, for people.
        memory: what the channel needs for the next message of this thread, or for this one's next try.
        error, hint: why the channel did not take the message.
        retry_after_s: the wait that the other side asked for, or None.
        took_s: how long the delivery took.
    """

    status: DeliveryStatus
    answer: str = ""
    memory: Mapping[str, str] = field(default_factory=dict)
    error: str = ""
    hint: str = ""
    retry_after_s: float | None = None
    took_s: float = 0.0


@dataclass(frozen=True, slots=True)
class DeliveryRequest:
    """One message for one channel.

    Attributes:
        thread: what the channel returned for earlier messages of the alert's thread.
        deadline_s: how long the delivery may take.
    """

    alert: Alert
    route: Route
    thread: Mapping[str, str] = field(default_factory=dict)
    deadline_s: float = SEND_S


def send_in_child(requests: Mapping[str, DeliveryRequest], system: System) -> Iterator[tuple[str, Outcome]]:
    """Send several messages at once, each in a child of its own; yield (key, outcome) as they end."""

    def send(channel: Channel, settings: Any, message: Any) -> dict[str, Any]:
        return {"status": "sent", "memory": _texts(channel.send(message, settings, system))}

    for key, answer in _run(requests, send):
        if answer.said:  # the channel `console` writes there; a watchdog's own output must not hold any of it
            sys.stderr.write(answer.said[:_OUTPUT_MOST])
            sys.stderr.flush()
        yield key, _outcome(answer, requests[key].deadline_s)


def compose_in_child(requests: Mapping[str, DeliveryRequest]) -> Iterator[tuple[str, str]]:
    """Yield (key, text) of the messages that `send_in_child` would send, as text for people. Errors are texts too."""
    for key, answer in _run(requests, lambda channel, settings, message: readable(message)):
        if isinstance(answer.value, str):
            yield key, answer.value
        else:
            error = _outcome(answer, requests[key].deadline_s)
            yield key, f"cannot be composed: {error.error}" + (f" (try: {error.hint})" if error.hint else "")


def _run(
    requests: Mapping[str, DeliveryRequest], finish: Callable[[Channel, Any, Any], Any]
) -> Iterator[tuple[str, Answer]]:
    """Compose each message in a child of its own and finish it there; a result that is no text is plain data."""

    def work(request: DeliveryRequest) -> Any:
        # Should the sender be killed, the child must not wait for a server for ever.
        signal.signal(signal.SIGALRM, signal.SIG_DFL)
        signal.alarm(int(request.deadline_s) + _LAST_RESORT_S)
        try:
            channel, settings = request.route.load()
            channel.check(settings)
            return finish(channel, settings, channel.compose(request.alert, settings, request.thread))
        except BaseException as error:
            return _explain(error)

    return run_apart({key: (partial(work, request), request.deadline_s) for key, request in requests.items()})


def readable(message: object) -> str:
    """A composed message as people read it: a mail as it goes out, any other as JSON or its own text. Pure."""
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


def _texts(memory: Mapping[str, str] | None) -> dict[str, str]:
    return {str(key): str(value) for key, value in (memory or {}).items()}


def _explain(error: BaseException) -> dict[str, Any]:
    """An exception as plain data. The text of one that is not ours may hold a secret and is left out."""
    if isinstance(error, ResilError):
        said: dict[str, Any] = {"error": error.message[:_TEXT_MOST], "hint": error.hint[:_TEXT_MOST]}
        if isinstance(error, DeliveryError):
            said |= {"retry_after_s": error.retry_after_s, "memory": _texts(error.memory)}
            return {"status": "failed" if error.transient else "refused"} | said
        return {"status": "failed" if error.transient and not isinstance(error, UsageError) else "fault"} | said
    frames = error.__traceback__
    while frames is not None and frames.tb_next is not None:
        frames = frames.tb_next
    where = f" at {frames.tb_frame.f_code.co_filename}:{frames.tb_lineno}" if frames is not None else ""
    text = f"the channel's own code failed: {type(error).__name__}{where}"
    return {"status": "fault", "error": text, "hint": "this is a bug of the channel"}


def _outcome(answer: Answer, deadline_s: float) -> Outcome:
    if isinstance(answer.value, dict):
        value = answer.value | {"status": DeliveryStatus(answer.value["status"])}
        return Outcome(answer=value.get("memory", {}).get("answer", ""), took_s=answer.took_s, **value)
    # No answer: too late, or the process itself went down.
    error = "the channel crashed while it sent"
    if answer.is_overdue:
        error = f"no answer within {deadline_s:g} s"
    elif answer.error is not None and answer.error.transient:
        error = answer.error.message  # no process could be started
    return Outcome(status=DeliveryStatus.FAILED, error=error, took_s=answer.took_s)
