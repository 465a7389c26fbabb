"""One mail over SMTP (RFC 5321): encrypted unless the settings say otherwise, with one deadline."""

from __future__ import annotations

import base64
import smtplib
import socket
import ssl
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

from resilience.alerts.channels._email_message import Mail
from resilience.errors import DeliveryError
from resilience.system.http import quoted
from resilience.system.redaction import redact
from resilience.system.secrets import Secret
from resilience.system.time_limit import TimeLimit

PARTIAL_TRIES = 5
"""So often it is tried again for those who were refused for now, by greylisting for instance, when others have it. One
full mailbox must not hold up everybody's mail for longer."""


@dataclass(frozen=True, slots=True)
class Relay:
    """The server that takes mail.

    Attributes:
        tls: starttls, implicit or none.
        context: how certificates are checked; None without TLS.
    """

    host: str
    port: int
    tls: str
    context: ssl.SSLContext | None
    username: str
    password: Secret | None


class _Connection(smtplib.SMTP):
    """An SMTP connection whose sockets a time limit ends. As in SMTP_SSL, `_get_socket` connects."""

    def __init__(self, relay: Relay, limit: TimeLimit) -> None:
        self._relay = relay
        self._limit = limit
        # With a name of our own the standard library does not look up this machine's: that has no deadline.
        super().__init__(local_hostname="localhost", timeout=limit.seconds)
        self._host = relay.host  # the name that STARTTLS checks the certificate for

    def _get_socket(self, host: str, port: int, timeout: float) -> socket.socket:
        connection = self._limit.connect(host, port)
        # Our address as RFC 5321, 4.1.3 writes it: the server need not resolve a name.
        address = connection.getsockname()[0]
        self.local_hostname = f"[IPv6:{address}]" if ":" in address else f"[{address}]"
        if self._relay.tls == "implicit" and self._relay.context is not None:
            return self._relay.context.wrap_socket(connection, server_hostname=host)
        return connection


def deliver(mail: Mail, relay: Relay, sender: str, recipients: Sequence[str], *, timeout_s: float) -> str:
    """Deliver to all that the server takes, and say what it answered, and whom it refused.

    Raise DeliveryError: a reply of 5xx is permanent, everything else may be better later. After a connection that is
    lost at the end the mail may come twice, with the same Message-ID.
    """
    where = f"{relay.host}:{relay.port}"
    failure: DeliveryError
    with TimeLimit(timeout_s) as limit:
        stage = _Stage()
        connection = _Connection(relay, limit)
        try:
            return _converse(connection, mail, relay, sender, recipients, stage)
        except DeliveryError as refusal:
            failure = refusal.with_traceback(None)
        except Exception as error:
            failure = _explain(error, where, limit, stage, _secrets(relay))
        finally:
            connection.close()
    raise failure  # out here: it carries no exception along that might hold a reply


class _Stage:
    """How far the conversation has come: it decides what a lost connection means."""

    name = "connecting"


def _converse(
    connection: _Connection, mail: Mail, relay: Relay, sender: str, recipients: Sequence[str], stage: _Stage
) -> str:
    code, reply = connection.connect(relay.host, relay.port)
    if code != 220:
        raise smtplib.SMTPConnectError(code, reply)
    stage.name = "greeting"
    connection.ehlo_or_helo_if_needed()
    if relay.tls == "starttls":
        if not connection.has_extn("starttls"):
            raise DeliveryError(
                f"{relay.host}:{relay.port} does not offer STARTTLS, so nothing was sent in the clear",
                hint='tls = "implicit" (port 465), or tls = "none" if that network is your own',
                transient=False,
            )
        stage.name = "starting TLS"
        connection.starttls(context=relay.context)
        connection.ehlo_or_helo_if_needed()
    if relay.username and relay.password is not None:
        stage.name = "logging in"
        connection.login(relay.username, relay.password.reveal())
    stage.name = "sending"
    needs_utf8 = not all(address.isascii() for address in (sender, *recipients))
    if needs_utf8 and not connection.has_extn("smtputf8"):
        raise DeliveryError(
            f"{relay.host} does not know SMTPUTF8, which an address that is not ASCII needs",
            hint="use an address of ASCII letters, or another server",
            transient=False,
        )
    options = ["SMTPUTF8", "BODY=8BITMIME"] if needs_utf8 else []
    content = mail.content(sender, utf8=needs_utf8)
    try:
        refused = _transaction(connection, sender, recipients, content, options, stage)
    except smtplib.SMTPRecipientsRefused as error:
        if not mail.served:
            raise
        refused = error.recipients  # the others have it since an earlier try
    stage.name = "done"
    with suppress(Exception):
        connection.quit()  # it has the mail; how it says good-bye is its own affair
    taken = [address for address in recipients if address not in refused]
    answer = f"{relay.host} took it for {', '.join(taken or mail.served)}"
    if not refused:
        return answer
    said = "; ".join(f"{address} ({_reply(code, text, _secrets(relay))})" for address, (code, text) in refused.items())
    later = [address for address, (code, _) in refused.items() if not 500 <= code < 600]
    if not later or mail.tries >= PARTIAL_TRIES:
        return f"{answer}; refused: {said}"
    served = [*mail.served, *(address for address in recipients if address not in later)]
    own = mail.headers["Message-ID"]
    memory = {"message_id": own, "served": " ".join((own, str(mail.tries + 1), *served))}
    raise DeliveryError(f"{answer}, and not for {said}", transient=True, memory=memory)


def _transaction(
    connection: _Connection,
    sender: str,
    recipients: Sequence[str],
    content: bytes,
    options: Sequence[str],
    stage: _Stage,
) -> dict[str, tuple[int, bytes]]:
    """MAIL, RCPT and DATA; return the refused recipients. As smtplib's sendmail, but `stage` shows the end of DATA."""
    if connection.has_extn("size"):
        options = [*options, f"size={len(content)}"]
    code, reply = connection.mail(sender, options)
    if code != 250:
        raise smtplib.SMTPSenderRefused(code, reply, sender)
    refused: dict[str, tuple[int, bytes]] = {}
    for address in recipients:
        code, reply = connection.rcpt(address)
        if code not in (250, 251):
            refused[address] = (code, reply)
            if code == 421:
                raise smtplib.SMTPRecipientsRefused(refused)
    if len(refused) == len(set(recipients)):
        raise smtplib.SMTPRecipientsRefused(refused)
    stage.name = "handing over the mail"
    code, reply = connection.data(content)
    if code != 250:
        raise smtplib.SMTPDataError(code, reply)
    return refused


def _explain(error: Exception, where: str, limit: TimeLimit, stage: _Stage, secrets: list[str]) -> DeliveryError:
    """An exception of smtplib as a sentence without anything secret."""
    twice = " (it may have taken the mail: it may come twice)" if stage.name == "handing over the mail" else ""
    if limit.is_over:
        return DeliveryError(f"{where} did not answer within {round(limit.seconds, 1):g} s, while {stage.name}{twice}")
    if isinstance(error, smtplib.SMTPRecipientsRefused):
        said = "; ".join(
            f"{address}: {_reply(code, text, secrets)}" for address, (code, text) in error.recipients.items()
        )
        permanent = all(500 <= code < 600 for code, _ in error.recipients.values())
        return DeliveryError(f"{where} refused every recipient: {said[:500]}", transient=not permanent)
    if isinstance(error, smtplib.SMTPResponseException):
        code = error.smtp_code
        said = _reply(code, error.smtp_error, secrets)
        hint = ""
        if isinstance(error, smtplib.SMTPAuthenticationError):
            hint = "are username and password right? Some servers want a password made for programs"
        elif isinstance(error, smtplib.SMTPSenderRefused):
            hint = "set sender in [channel.email] to an address that this server takes"
            if code == 530:  # RFC 4954, 6
                hint = "the server wants a log-in: set username and password_file in [channel.email]"
        permanent = 500 <= code < 600
        return DeliveryError(f"{where} said {said}, while {stage.name}", hint=hint, transient=not permanent)
    if isinstance(error, ssl.SSLError):
        why = getattr(error, "verify_message", "") or error.reason or "TLS failed"
        hint = "set ca_file to the authorities to trust; verification cannot be disabled, and nothing was sent"
        return DeliveryError(f"the certificate or TLS of {where} was not accepted: {why}", hint=hint)
    if isinstance(error, smtplib.SMTPNotSupportedError):
        hint = "" if stage.name != "logging in" else "it wants no log-in here: leave username out, or use port 587"
        said = redact(str(error), secrets)[:200]
        return DeliveryError(f"{where} cannot do what is wanted: {said}", hint=hint, transient=False)
    if isinstance(error, smtplib.SMTPServerDisconnected | ConnectionError) and stage.name != "connecting":
        return DeliveryError(f"{where} closed the connection, while {stage.name}{twice}")
    if isinstance(error, socket.gaierror):
        return DeliveryError(f"the name {where} is not known here", hint="does this node have network access?")
    if isinstance(error, TimeoutError):
        return DeliveryError(f"{where} did not answer in time, while {stage.name}{twice}")
    if isinstance(error, OSError):
        return DeliveryError(f"cannot reach {where}: {redact(error.strerror or str(error), secrets)[:200]}")
    if isinstance(error, smtplib.SMTPException):
        return DeliveryError(f"{where} did not speak SMTP as expected: {redact(str(error), secrets)[:200]}")
    return DeliveryError(
        f"the mail cannot be written: {type(error).__name__}: {redact(str(error), secrets)[:200]}", transient=False
    )


def _reply(code: int, text: Any, secrets: list[str]) -> str:
    """The server's reply, redacted before it is cut: half a secret is one too."""
    said = text.decode("utf-8", "replace") if isinstance(text, bytes) else str(text)
    return f"{code} {quoted(said, secrets)}".strip()


def _secrets(relay: Relay) -> list[str]:
    """The secrets that a reply may quote: the password, and the line of AUTH PLAIN that holds it."""
    if relay.password is None:
        return []
    password = relay.password.reveal()
    plain = base64.b64encode(f"\0{relay.username}\0{password}".encode()).decode()
    return [password, plain]
