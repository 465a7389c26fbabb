"""The demo's mail server and its Slack: two small servers on loopback that store received messages."""

from __future__ import annotations

import json
import socketserver
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from email import message_from_bytes, policy
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, cast

MESSAGE_LIMIT_BYTES = 2**20


@dataclass(slots=True)
class Inbox:
    """The received messages.

    Attributes:
        smtp_port: port of the mail server on 127.0.0.1.
        slack_url: URL of the Slack webhook.
        subjects: of the mails, in order.
        texts: of the Slack messages, in order.
    """

    smtp_port: int = 0
    slack_url: str = ""
    subjects: list[str] = field(default_factory=list)
    texts: list[str] = field(default_factory=list)


class _Mail(socketserver.StreamRequestHandler):
    """The part of SMTP (https://www.rfc-editor.org/rfc/rfc5321) that a well-behaved client needs."""

    timeout = 10.0

    def handle(self) -> None:
        inbox = cast("_MailServer", self.server).inbox
        self._answer("220 demo")
        while line := self.rfile.readline(MESSAGE_LIMIT_BYTES):
            verb = line.strip().upper()
            if verb == b"DATA":
                self._answer("354 send the message")
                message = message_from_bytes(self._body(), policy=policy.default)
                inbox.subjects.append(str(message["Subject"]))
                self._answer("250 kept")
            elif verb == b"QUIT":
                self._answer("221 bye")
                return
            else:
                self._answer("250 demo")

    def _body(self) -> bytes:
        lines = []
        while (line := self.rfile.readline(MESSAGE_LIMIT_BYTES)) not in (b".\r\n", b".\n", b""):
            lines.append(line.removeprefix(b"."))
        return b"".join(lines)

    def _answer(self, text: str) -> None:
        self.wfile.write(text.encode() + b"\r\n")


class _MailServer(socketserver.ThreadingTCPServer):
    daemon_threads = True
    allow_reuse_address = True

    def __init__(self, inbox: Inbox) -> None:
        super().__init__(("127.0.0.1", 0), _Mail)
        self.inbox = inbox


class _Slack(BaseHTTPRequestHandler):
    """Accepts the requests of an incoming webhook (https://docs.slack.dev/messaging/sending-messages-using-incoming-webhooks)."""

    def do_POST(self) -> None:
        size = min(int(self.headers.get("Content-Length", 0)), MESSAGE_LIMIT_BYTES)
        cast("_SlackServer", self.server).inbox.texts.append(_text(self.rfile.read(size)))
        self.send_response(200)
        self.end_headers()
        self.wfile.write(b"ok")

    def log_message(self, format: str, *args: Any) -> None:
        """Do nothing: the demo prints its own output."""


class _SlackServer(ThreadingHTTPServer):
    daemon_threads = True

    def __init__(self, inbox: Inbox) -> None:
        super().__init__(("127.0.0.1", 0), _Slack)
        self.inbox = inbox


def _text(body: bytes) -> str:
    """Return the text of a Slack message, which notifications show instead of its blocks."""
    try:
        return str(json.loads(body).get("text", ""))
    except (ValueError, AttributeError):
        return body.decode("utf-8", "replace")


@contextmanager
def receivers() -> Iterator[Inbox]:
    """Run both servers on free ports."""
    inbox = Inbox()
    servers: tuple[socketserver.BaseServer, ...] = (_MailServer(inbox), _SlackServer(inbox))
    inbox.smtp_port = servers[0].server_address[1]  # type: ignore[index, assignment]
    inbox.slack_url = f"http://127.0.0.1:{servers[1].server_address[1]}/services/demo"  # type: ignore[index]
    for server in servers:
        threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05}, daemon=True).start()
    try:
        yield inbox
    finally:
        for server in servers:
            server.shutdown()
            server.server_close()
