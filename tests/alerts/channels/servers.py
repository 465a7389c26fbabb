"""Servers that misbehave: certificates made on the spot, sockets that drip, go silent or hang up; SMTP that refuses."""

from __future__ import annotations

import contextlib
import re
import shutil
import socket
import ssl
import subprocess
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from aiosmtpd.controller import Controller
from aiosmtpd.smtp import SMTP, AuthResult, Envelope, LoginPassword, Session

NO_OPENSSL = "no openssl program to make a certificate with"
HAS_OPENSSL = shutil.which("openssl") is not None

Handler = Callable[[socket.socket, threading.Event], None]


@dataclass(frozen=True)
class Certificate:
    """A certificate that signs itself.

    Attributes:
        file: the certificate, which may serve as the authority too.
        key: its key.
    """

    file: Path
    key: Path

    def server_context(self) -> ssl.SSLContext:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(self.file, self.key)
        return context


def make_certificate(directory: Path, names: str = "DNS:localhost,IP:127.0.0.1", days: int = 2) -> Certificate:
    """Make one with the openssl program."""
    made = Certificate(directory / "cert.pem", directory / "key.pem")
    subprocess.run(
        ["openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes",
         "-keyout", str(made.key), "-out", str(made.file), "-days", str(days), "-subj", "/CN=resil test",
         "-addext", f"subjectAltName={names}"],
        check=True, capture_output=True, timeout=60,
    )  # fmt: skip
    return made


@contextmanager
def serving(handler: Handler, context: ssl.SSLContext | None = None) -> Iterator[int]:
    """A server on a free port of 127.0.0.1 that gives each connection to the handler."""
    stop = threading.Event()
    listener = socket.create_server(("127.0.0.1", 0))
    listener.settimeout(0.05)
    threads: list[threading.Thread] = []

    def serve(connection: socket.socket) -> None:
        with contextlib.suppress(OSError), connection:
            connection.settimeout(10)
            if context is not None:
                connection = context.wrap_socket(connection, server_side=True)
            with connection:
                handler(connection, stop)

    def accept() -> None:
        while not stop.is_set():
            with contextlib.suppress(TimeoutError):
                connection, _ = listener.accept()
                threads.append(threading.Thread(target=serve, args=(connection,), daemon=True))
                threads[-1].start()

    acceptor = threading.Thread(target=accept, daemon=True)
    acceptor.start()
    try:
        yield listener.getsockname()[1]
    finally:
        stop.set()
        acceptor.join(5)
        for thread in threads:
            thread.join(5)
        listener.close()


def silent(connection: socket.socket, stop: threading.Event) -> None:
    """Accept a connection and never answer."""
    stop.wait(10)


def hangs_up(connection: socket.socket, stop: threading.Event) -> None:
    """Reset the connection."""
    connection.recv(1)
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\1\0\0\0\0\0\0\0")


def drips(text: bytes, pause_s: float = 0.05) -> Handler:
    """Say it one byte at a time, over and over: each read succeeds, and it never ends."""

    def handler(connection: socket.socket, stop: threading.Event) -> None:
        for number in range(10_000):
            if stop.wait(pause_s):
                return
            connection.sendall(text[number % len(text) :][:1])

    return handler


def says(answer: bytes, then: Handler | None = None) -> Handler:
    """Read a request, answer, and keep sending."""

    def handler(connection: socket.socket, stop: threading.Event) -> None:
        head = b""
        while b"\r\n\r\n" not in head:
            head += connection.recv(65536)
        head, _, body = head.partition(b"\r\n\r\n")
        length = re.search(rb"(?i)content-length: (\d+)", head)
        while length is not None and len(body) < int(length[1]):  # unread, it would turn the end into a reset
            body += connection.recv(65536)
        connection.sendall(answer)
        if then is not None:
            then(connection, stop)

    return handler


@dataclass
class Mailbox:
    """Records the commands of an SMTP server and sets its replies.

    Attributes:
        refuse: replies to RCPT by address.
        data_reply: the reply after DATA.
        drop_after_data: whether the connection is cut instead.
        sender_reply: the reply to MAIL.
    """

    refuse: dict[str, str] = field(default_factory=dict)
    data_reply: str = "250 OK"
    drop_after_data: bool = False
    sender_reply: str = ""
    envelopes: list[Envelope] = field(default_factory=list)
    logins: list[tuple[str, str]] = field(default_factory=list)

    async def handle_MAIL(
        self, server: SMTP, session: Session, envelope: Envelope, address: str, options: list[str]
    ) -> str:
        if self.sender_reply:
            return self.sender_reply
        envelope.mail_from = address
        envelope.mail_options.extend(options)
        return "250 OK"

    async def handle_RCPT(
        self, server: SMTP, session: Session, envelope: Envelope, address: str, options: list[str]
    ) -> str:
        if address in self.refuse:
            return self.refuse[address]
        envelope.rcpt_tos.append(address)
        return "250 OK"

    async def handle_DATA(self, server: SMTP, session: Session, envelope: Envelope) -> str:
        self.envelopes.append(envelope)
        if self.drop_after_data:
            assert server.transport is not None
            server.transport.abort()  # type: ignore[attr-defined]
        return self.data_reply


@contextmanager
def smtp_server(mailbox: Mailbox, **options: Any) -> Iterator[int]:
    """A real SMTP server on a free port. `tls_context`, `require_starttls`, `password` and `implicit` as named."""
    password: str | None = options.pop("password", None)
    implicit: ssl.SSLContext | None = options.pop("implicit", None)

    def authenticate(server: SMTP, session: Session, envelope: Envelope, mechanism: str, data: Any) -> AuthResult:
        assert isinstance(data, LoginPassword)
        mailbox.logins.append((data.login.decode(), data.password.decode()))
        return AuthResult(success=data.password.decode() == password, handled=False)

    if password is not None:
        options |= {"authenticator": authenticate, "auth_required": True}
    port = free_port()
    controller = Controller(
        mailbox, hostname="127.0.0.1", port=port, ssl_context=implicit, server_hostname="test.local", **options
    )
    controller.start()
    try:
        yield port
    finally:
        controller.stop()


def free_port() -> int:
    """A port that nothing listens at."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        return int(listener.getsockname()[1])


@contextmanager
def takes_at_most(seconds: float) -> Iterator[None]:
    """Fail where the work inside takes longer."""
    began = time.monotonic()
    yield
    took = time.monotonic() - began
    assert took < seconds, f"it took {took:.2f} s"
