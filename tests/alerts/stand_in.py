"""A channel for tests, controlled by a file since it runs in a child process; records the messages it accepts."""

from __future__ import annotations

import json
import os
import socket
import threading
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from resilience.alerts.alert import Alert, Notice, Reason
from resilience.alerts.outbox import Outbox
from resilience.alerts.routes import Route
from resilience.errors import DeliveryError, SettingsError
from resilience.finding import Verdict
from resilience.system.fallback_directory import FallbackDirectory
from resilience.system.ports import System
from tests.alerts.channels.servers import serving
from tests.lab.fakes import NOW

SECRET = "https://hooks.example/T000/canary-secret"


@dataclass(frozen=True)
class Settings:
    """Nothing to set."""


@dataclass
class StandIn:
    """Takes messages into `<directory>/<name>.taken`; `<directory>/<name>.order` says what it does instead."""

    directory: Path
    name: str
    summary: str = "takes messages into a file"
    Settings: type = Settings

    @property
    def route(self) -> Route:
        return lambda: (self, Settings())

    def order(self, what: str = "") -> None:
        (self.directory / f"{self.name}.order").write_text(what)

    @property
    def taken(self) -> list[dict[str, Any]]:
        """The messages, in order."""
        path = self.directory / f"{self.name}.taken"
        return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []

    @property
    def ids(self) -> list[str]:
        return [message["id"] for message in self.taken]

    def check(self, settings: Any) -> None:
        if self._order() == "settings":
            raise SettingsError("the secret file may be read by others", hint="chmod 600 it")

    def compose(self, alert: Alert, settings: Any, thread: Mapping[str, str]) -> dict[str, Any]:
        return {
            "id": alert.id,
            "reason": alert.reason.value,
            "verdict": alert.verdict.value,
            "total": alert.total,
            "said": [f"{notice.reason} {notice.subject}: {notice.summary}" for notice in alert.notices],
            "thread": dict(thread),
            "at": time.time(),
        }

    def send(self, message: Any, settings: Any, system: System) -> Mapping[str, str]:
        what, _, more = self._order().partition(" ")
        if what == "down":
            raise DeliveryError("the server does not answer", hint="wait")
        if what == "partly":
            raise DeliveryError("it was taken for ada, and not for bob", memory={"served": "ada"})
        if what == "refuse":
            raise DeliveryError("there is no such recipient", hint="write another", transient=False)
        if what == "busy":
            raise DeliveryError("too many messages", retry_after_s=float(more) if more else None)
        if what == "bad" and message["id"] == more:
            raise DeliveryError("this message is not to my liking")
        if what == "hang":
            time.sleep(1000)
        if what == "abort":
            os.abort()
        if what == "raise":
            raise RuntimeError(f"cannot reach {SECRET}")
        if what == "exit":
            raise SystemExit(0)
        if what == "print":
            print("a channel that prints", flush=True)
            os.write(1, b"and writes\n")
        with open(self.directory / f"{self.name}.taken", "a") as file:
            file.write(json.dumps(message) + "\n")
        return {"answer": "taken", "ts": f"ts-{message['id']}"}

    def _order(self) -> str:
        path = self.directory / f"{self.name}.order"
        return path.read_text() if path.exists() else ""


@dataclass
class SocketChannel:
    """Sends the alert's id over a real connection, and waits for a reply."""

    port: int
    summary: str = "a line over TCP"
    Settings: type = Settings

    def check(self, settings: Any) -> None:
        """Nothing."""

    def compose(self, alert: Alert, settings: Any, thread: Mapping[str, str]) -> str:
        return alert.id

    def send(self, message: Any, settings: Any, system: System) -> Mapping[str, str]:
        with socket.create_connection(("127.0.0.1", self.port), timeout=10) as connection:
            connection.sendall(message.encode() + b"\n")
            if connection.recv(10) != b"ok":
                raise DeliveryError("no word back")
        return {"answer": "ok"}


@dataclass
class Receiver:
    """What a server on loopback was sent."""

    port: int = 0
    lines: list[str] = field(default_factory=list)


@contextmanager
def receiver() -> Iterator[Receiver]:
    """A server on loopback that takes lines."""
    made = Receiver()

    def take(connection: socket.socket, stop: threading.Event) -> None:
        line = connection.makefile().readline()
        if line.endswith("\n"):
            made.lines.append(line.strip())
            connection.sendall(b"ok")

    with serving(take) as made.port:
        yield made


def an_alert(
    id: str = "a1",
    *,
    thread: str = "",
    reason: Reason = Reason.FIRST,
    verdict: Verdict = Verdict.WARNING,
    time: float = NOW,
    subject: str = "/scratch",
    episode: str = "",
    project: str = "/project",
    **fields: Any,
) -> Alert:
    """An alert about one incident."""
    over = reason is Reason.RESOLVED
    notice = Notice(
        episode=episode or thread or id,
        fingerprint="f" * 16,
        reason=reason,
        check="fs",
        subject=subject,
        fault="space",
        verdict=Verdict.OK if over else verdict,
        summary=fields.pop("summary", "91% used"),
        since=fields.pop("since", NOW),
        evidence=fields.pop("evidence", ()),
    )
    return Alert.of(notice, id=id, thread=thread or id, time=time, host="login1", project=project, **fields)


def an_outbox(directory: Path, spare: Path | None = None) -> Outbox:
    """An outbox below a directory."""
    return Outbox(FallbackDirectory(directory / "alerts" / "outbox", spare / "outbox" if spare is not None else None))
