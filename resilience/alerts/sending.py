"""Sends messages through their channels, each in a child process with a deadline.

Only the child imports and runs the plugin. A plugin may hang, crash the interpreter, print, or raise an exception with
a secret in its text: the parent process gets a plain outcome.
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
from resilience.system.child import Answer, run_in_child
from resilience.system.ports import System

SEND_S = 15.0
"""Time limit of a channel for one message."""
_ALARM_MARGIN_S = 5
"""An orphaned child is killed by SIGALRM this long after its deadline."""
_MAX_TEXT, _MAX_OUTPUT = 500, 4000


class DeliveryStatus(StrEnum):
    """Result of the delivery of one message."""

    SENT = "sent"
    FAILED = "failed"
    """Temporary failure: retry."""
    REFUSED = "refused"
    """The channel rejected the message permanently: a dead letter."""
    FAULT = "fault"
    """The settings, the secret or the plugin are at fault: retry, since the fault may be fixed."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """Result of one delivery.

    Attributes:
        answer: the channel's answer to a delivered message, for display.
        memory: what the channel needs for the next message of this thread, or to retry this one.
        error, hint: why the delivery failed.
        retry_after_s: wait requested by the server, or None.
        took_s: duration of the delivery.
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
        deadline_s: time limit of the delivery.
    """

    alert: Alert
    route: Route
    thread: Mapping[str, str] = field(default_factory=dict)
    deadline_s: float = SEND_S


def send_in_child(requests: Mapping[str, DeliveryRequest], system: System) -> Iterator[tuple[str, Outcome]]:
    """Send messages concurrently, each in a child process; yield (key, outcome) as they finish."""

    def send(channel: Channel, settings: Any, message: Any) -> dict[str, Any]:
        return {"status": "sent", "memory": _texts(channel.send(message, settings, system))}

    for key, answer in _run(requests, send):
        if answer.said:  # `console` writes there; a watchdog's own output must not contain it
            sys.stderr.write(answer.said[:_MAX_OUTPUT])
            sys.stderr.flush()
        yield key, _outcome(answer, requests[key].deadline_s)


def compose_in_child(requests: Mapping[str, DeliveryRequest]) -> Iterator[tuple[str, str]]:
    """Yield (key, text) of the messages that `send_in_child` would send; for a message with an error, the error."""
    for key, answer in _run(requests, lambda channel, settings, message: readable(message)):
        if isinstance(answer.value, str):
            yield key, answer.value
        else:
            error = _outcome(answer, requests[key].deadline_s)
            yield key, f"cannot be composed: {error.error}" + (f" (try: {error.hint})" if error.hint else "")


def _run(
    requests: Mapping[str, DeliveryRequest], finish: Callable[[Channel, Any, Any], Any]
) -> Iterator[tuple[str, Answer]]:
    """Compose each message in a child process and call `finish` there; yield its result, text or plain data."""

    def work(request: DeliveryRequest) -> Any:
        # If the parent is killed, the child must not wait for a server indefinitely.
        signal.signal(signal.SIGALRM, signal.SIG_DFL)
        signal.alarm(int(request.deadline_s) + _ALARM_MARGIN_S)
        try:
            channel, settings = request.route()
            channel.check(settings)
            return finish(channel, settings, channel.compose(request.alert, settings, request.thread))
        except BaseException as error:
            return _explain(error)

    return run_in_child({key: (partial(work, request), request.deadline_s) for key, request in requests.items()})


def readable(message: object) -> str:
    """Return a composed message as readable text: a mail as sent, any other message as JSON or its own text. Pure."""
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
    """Return an exception as plain data, without the text of foreign exceptions, which may contain a secret."""
    if isinstance(error, ResilError):
        said: dict[str, Any] = {"error": error.message[:_MAX_TEXT], "hint": error.hint[:_MAX_TEXT]}
        if isinstance(error, DeliveryError):
            said |= {"retry_after_s": error.retry_after_s, "memory": _texts(error.memory)}
            return {"status": "failed" if error.transient else "refused"} | said
        return {"status": "failed" if error.transient and not isinstance(error, UsageError) else "fault"} | said
    frames = error.__traceback__
    while frames is not None and frames.tb_next is not None:
        frames = frames.tb_next
    where = f" at {frames.tb_frame.f_code.co_filename}:{frames.tb_lineno}" if frames is not None else ""
    text = f"the channel's own code failed: {type(error).__name__}{where}"
    return {"status": "fault", "error": text, "hint": "this is a bug in the channel"}


def _outcome(answer: Answer, deadline_s: float) -> Outcome:
    if isinstance(answer.value, dict):
        value = answer.value | {"status": DeliveryStatus(answer.value["status"])}
        return Outcome(answer=value.get("memory", {}).get("answer", ""), took_s=answer.took_s, **value)
    # No answer: timeout, or the child crashed.
    error = "the channel crashed while sending"
    if answer.is_overdue:
        error = f"no answer within {deadline_s:g} s"
    elif answer.error is not None and answer.error.transient:
        error = answer.error.message  # no process could be started
    return Outcome(status=DeliveryStatus.FAILED, error=error, took_s=answer.took_s)
