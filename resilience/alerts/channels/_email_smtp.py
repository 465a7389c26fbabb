"""Delivers one mail over SMTP (RFC 5321) within one deadline, encrypted unless configured otherwise."""

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
"""Maximum number of retries for recipients that were rejected temporarily (greylisting, for example) while others
received the mail. One full mailbox must not delay the mail of all recipients for longer."""


@dataclass(frozen=True, slots=True)
class Relay:
    """The SMTP server.

    Attributes:
        tls: starttls, implicit or none.
        context: checks certificates; None without TLS.
    """

    host: str
    port: int
    tls: str
    context: ssl.SSLContext | None
    username: str
    password: Secret | None


class _Connection(smtplib.SMTP):
    """An SMTP connection with one time limit for all its sockets. As in SMTP_SSL, `_get_socket` connects."""

    def __init__(self, relay: Relay, limit: TimeLimit) -> None:
        self._relay = relay
        self._limit = limit
        # With `local_hostname` the standard library skips the lookup of this machine's name, which has no deadline.
        super().__init__(local_hostname="localhost", timeout=limit.seconds)
        self._host = relay.host  # the name that STARTTLS checks the certificate for

    def _get_socket(self, host: str, port: int, timeout: float) -> socket.socket:
        connection = self._limit.connect(host, port)
        # An address literal (RFC 5321, 4.1.3): the server need not resolve a name.
        address = connection.getsockname()[0]
        self.local_hostname = f"[IPv6:{address}]" if ":" in address else f"[{address}]"
        if self._relay.tls == "implicit" and self._relay.context is not None:
            return self._relay.context.wrap_socket(connection, server_hostname=host)
        return connection


def deliver(mail: Mail, relay: Relay, sender: str, recipients: Sequence[str], *, timeout_s: float) -> str:
    """Deliver to all recipients that the server accepts; return a sentence with the accepted and the rejected ones.

    Raise DeliveryError: permanent for a 5xx reply, transient for all other failures. After a connection lost during
    DATA the mail may arrive twice, with the same Message-ID.
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
    raise failure  # outside the handler: no chained exception, which might hold a reply


class _Stage:
    """Stage of the conversation: determines the meaning of a lost connection."""

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
                f"{relay.host}:{relay.port} does not offer STARTTLS; nothing was sent unencrypted",
                hint='tls = "implicit" (port 465), or tls = "none" in a trusted network',
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
            f"{relay.host} does not support SMTPUTF8, required for an address that is not ASCII",
            hint="use an ASCII address or another server",
            transient=False,
        )
    options = ["SMTPUTF8", "BODY=8BITMIME"] if needs_utf8 else []
    content = mail.content(sender, utf8=needs_utf8)
    try:
        refused = _transaction(connection, sender, recipients, content, options, stage)
    except smtplib.SMTPRecipientsRefused as error:
        if not mail.served:
            raise
        refused = error.recipients  # an earlier try has served the others
    stage.name = "done"
    with suppress(Exception):
        connection.quit()  # the mail is accepted; errors of QUIT do not matter
    taken = [address for address in recipients if address not in refused]
    answer = f"{relay.host} accepted the mail for {', '.join(taken or mail.served)}"
    if not refused:
        return answer
    said = "; ".join(f"{address} ({_reply(code, text, _secrets(relay))})" for address, (code, text) in refused.items())
    later = [address for address, (code, _) in refused.items() if not 500 <= code < 600]
    if not later or mail.tries >= PARTIAL_TRIES:
        return f"{answer}; rejected: {said}"
    served = [*mail.served, *(address for address in recipients if address not in later)]
    own = mail.headers["Message-ID"]
    memory = {"message_id": own, "served": " ".join((own, str(mail.tries + 1), *served))}
    raise DeliveryError(f"{answer}, but not for {said}", transient=True, memory=memory)


def _transaction(
    connection: _Connection,
    sender: str,
    recipients: Sequence[str],
    content: bytes,
    options: Sequence[str],
    stage: _Stage,
) -> dict[str, tuple[int, bytes]]:
    """Send MAIL, RCPT and DATA; return the rejected recipients. As smtplib's sendmail, but records DATA in `stage`."""
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
    """Return an exception of smtplib as a DeliveryError without secrets."""
    twice = " (the mail may have been accepted and may arrive twice)" if stage.name == "handing over the mail" else ""
    if limit.is_over:
        return DeliveryError(f"{where} did not answer within {round(limit.seconds, 1):g} s, while {stage.name}{twice}")
    if isinstance(error, smtplib.SMTPRecipientsRefused):
        said = "; ".join(
            f"{address}: {_reply(code, text, secrets)}" for address, (code, text) in error.recipients.items()
        )
        permanent = all(500 <= code < 600 for code, _ in error.recipients.values())
        return DeliveryError(f"{where} rejected every recipient: {said[:500]}", transient=not permanent)
    if isinstance(error, smtplib.SMTPResponseException):
        code = error.smtp_code
        said = _reply(code, error.smtp_error, secrets)
        hint = ""
        if isinstance(error, smtplib.SMTPAuthenticationError):
            hint = "check username and password; some servers require an app password"
        elif isinstance(error, smtplib.SMTPSenderRefused):
            hint = "set sender in [channel.email] to an address that this server accepts"
            if code == 530:  # RFC 4954, 6
                hint = "the server requires a log-in: set username and password_file in [channel.email]"
        permanent = 500 <= code < 600
        return DeliveryError(f"{where} replied {said}, while {stage.name}", hint=hint, transient=not permanent)
    if isinstance(error, ssl.SSLError):
        why = getattr(error, "verify_message", "") or error.reason or "TLS failed"
        hint = "set ca_file to the certificate authorities to trust; certificate checks cannot be disabled"
        return DeliveryError(f"TLS to {where} failed, nothing was sent: {why}", hint=hint)
    if isinstance(error, smtplib.SMTPNotSupportedError):
        hint = "" if stage.name != "logging in" else "the server offers no log-in here: remove username or use port 587"
        said = redact(str(error), secrets)[:200]
        return DeliveryError(f"{where} does not support this: {said}", hint=hint, transient=False)
    if isinstance(error, smtplib.SMTPServerDisconnected | ConnectionError) and stage.name != "connecting":
        return DeliveryError(f"{where} closed the connection, while {stage.name}{twice}")
    if isinstance(error, socket.gaierror):
        return DeliveryError(f"cannot resolve {where}", hint="check that this node reaches the network")
    if isinstance(error, TimeoutError):
        return DeliveryError(f"{where} did not answer in time, while {stage.name}{twice}")
    if isinstance(error, OSError):
        return DeliveryError(f"cannot reach {where}: {redact(error.strerror or str(error), secrets)[:200]}")
    if isinstance(error, smtplib.SMTPException):
        return DeliveryError(f"unexpected SMTP reply from {where}: {redact(str(error), secrets)[:200]}")
    return DeliveryError(
        f"cannot encode the mail: {type(error).__name__}: {redact(str(error), secrets)[:200]}", transient=False
    )


def _reply(code: int, text: Any, secrets: list[str]) -> str:
    """Return the server's reply, redacted before truncation, since half a secret is a secret too."""
    said = text.decode("utf-8", "replace") if isinstance(text, bytes) else str(text)
    return f"{code} {quoted(said, secrets)}".strip()


def _secrets(relay: Relay) -> list[str]:
    """Return the secrets that a reply may quote: the password, and the AUTH PLAIN line that contains it."""
    if relay.password is None:
        return []
    password = relay.password.reveal()
    plain = base64.b64encode(f"\0{relay.username}\0{password}".encode()).decode()
    return [password, plain]
