"""Sends alerts by mail: through an SMTP server, or through this machine's `sendmail` program."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from resilience.alerts.alert import Alert
from resilience.alerts.channels import check_timeout, read_files
from resilience.alerts.channels._email_message import Mail, compose_mail
from resilience.errors import DeliveryError, SettingsError
from resilience.system.http import is_loopback, readable_ca_file
from resilience.system.ports import System
from resilience.system.process import run_with_input
from resilience.system.secrets import check_secret, read_secret, scrubbed_environment

if TYPE_CHECKING:  # 20 ms, only when sending
    import ssl

TLS = ("auto", "starttls", "implicit", "none")
_ADDRESS = re.compile(r"(?:(?P<name>[^<>\"]*)<)?(?P<address>[^\s<>@,;:\"()\[\]\\]+(?:@[^\s<>@,;:\"()\\]+)?)(?(name)>)")
_SENDMAIL_PATHS = ("/usr/sbin/sendmail", "/usr/lib/sendmail")


@dataclass(frozen=True, slots=True, kw_only=True)
class EmailSettings:
    """[channel.email]: recipients, and the mail server.

    Attributes:
        to: recipients; `"Ada Lovelace <ada@example.org>"` is accepted.
        sender: the From address, which also receives bounces. Default: this account on this machine.
        host: the SMTP server. Empty: use the `sendmail` program.
        port: the server's port. Default: 465 with `tls = "implicit"`, 587 with a username, else 25.
        tls: auto, starttls, implicit or none. auto: implicit on port 465, none to localhost, else starttls, with no
            fallback to plain text.
        ca_file: certificate authorities to trust instead of the system's, as a PEM file.
        username: user name for SMTP authentication.
        password_file: file of mode 0600 with the password.
        password_variable: name of an environment variable with the password instead.
        sendmail: the program and its arguments. Default: /usr/sbin/sendmail -i.
        subject_prefix: prefix of subjects, for mail filters.
        timeout_s: time limit for one mail, from the name lookup to the last reply.
    """

    to: tuple[str, ...] = ()
    sender: str = ""
    host: str = ""
    port: int | None = None
    tls: str = "auto"
    ca_file: str = ""
    username: str = ""
    password_file: str = ""
    password_variable: str = ""
    sendmail: tuple[str, ...] = ()
    subject_prefix: str = "[resil]"
    timeout_s: float = 12.0


class EmailChannel:
    """Sends one mail per alert to all recipients."""

    summary = "mail, by an SMTP server or by this machine's sendmail"
    Settings = EmailSettings

    def check(self, settings: EmailSettings) -> None:
        """Raise SettingsError for invalid addresses, an unknown `tls`, or a password without a username."""
        if not settings.to:
            raise SettingsError("the email channel needs a recipient", hint='to = ["you@example.org"]')
        for address in (*settings.to, *([settings.sender] if settings.sender else [])):
            envelope_address(address)
        if settings.tls not in TLS:
            raise SettingsError(f"tls = {settings.tls!r} is unknown", hint=f"use one of: {', '.join(TLS)}")
        if settings.port is not None and not 0 < settings.port < 65536:
            raise SettingsError(f"port = {settings.port} is not a port number")
        check_timeout(settings.timeout_s)
        if not re.fullmatch(r"[A-Za-z0-9._:\[\]%-]*", settings.host):
            raise SettingsError(f"host = {settings.host!r} is not a host name", hint='host = "smtp.example.org"')
        if any(not c.isprintable() for c in settings.subject_prefix + settings.username):
            raise SettingsError("subject_prefix and username must each be one printable line")
        has_password = check_secret(settings, "password", required=bool(settings.username))
        if has_password and not settings.username:
            raise SettingsError("a password is set without a username", hint='username = "you"')
        if settings.host and settings.sendmail:
            raise SettingsError("host and sendmail are both set", hint="remove one of them")
        if has_password and not settings.host:
            raise SettingsError("a username is set without a host", hint='host = "smtp.example.org"')
        if has_password and tls_of(settings) == "none" and not is_loopback(settings.host):
            raise SettingsError(
                f"the password for {settings.host} would be sent unencrypted",
                hint='remove tls = "none" or the username',
            )

    def compose(self, alert: Alert, settings: EmailSettings, thread: Mapping[str, str]) -> Mail:
        """Return the mail, in plain text and HTML."""
        return compose_mail(
            alert, sender=settings.sender, recipients=settings.to, prefix=settings.subject_prefix, thread=thread
        )

    def send(self, message: Mail, settings: EmailSettings, system: System) -> Mapping[str, str]:
        """Deliver the mail. Raise DeliveryError unless the server accepted it for at least one recipient."""
        message = replace(message, attached=read_files(message.files))
        own_address = f"{system.host.user}@{system.host.name}"
        sender = envelope_address(message.sender or own_address)
        all_recipients = [envelope_address(address) for address in message.recipients]
        recipients = [address for address in all_recipients if address not in message.served] or all_recipients
        if settings.host:
            from resilience.alerts.channels._email_smtp import Relay, deliver

            password = read_secret(settings, "password", system)
            relay = Relay(
                host=settings.host.strip("[]"),
                port=port_of(settings),
                tls=tls_of(settings),
                context=_context(settings),
                username=settings.username,
                password=password,
            )
            answer = deliver(message, relay, sender, recipients, timeout_s=settings.timeout_s)
        else:
            answer = _by_sendmail(message, settings, system, sender, recipients)
        return {"answer": answer, "message_id": message.headers["Message-ID"]}


def envelope_address(text: str) -> str:
    """Return the bare address of `Name <address>`, with the domain in ASCII.

    Raise SettingsError if invalid. A leading dash is invalid, since a program would read an option.
    """
    found = _ADDRESS.fullmatch(text.strip()) if text.isprintable() else None
    address = found["address"] if found else ""
    if not address or address.startswith("-") or len(address) > 320:
        hint = "write you@example.org or You <you@example.org>"
        raise SettingsError(f"{text[:80]!r} is not a mail address", hint=hint)
    local, at, domain = address.rpartition("@")
    if not at:
        return address  # a user of this machine
    try:
        return f"{local}@{domain if domain.isascii() else domain.encode('idna').decode()}"
    except UnicodeError:
        raise SettingsError(f"{text[:80]!r} has a domain that cannot be encoded in ASCII (IDNA)") from None


def tls_of(settings: EmailSettings) -> str:
    """Return the TLS mode, with `auto` resolved. For example, `starttls` for a server on port 587."""
    if settings.tls != "auto":
        return settings.tls
    if settings.port == 465:
        return "implicit"
    return "none" if is_loopback(settings.host) else "starttls"


def port_of(settings: EmailSettings) -> int:
    """Return the port, by default as assigned by RFC 6409 and RFC 8314."""
    if settings.port is not None:
        return settings.port
    return 465 if settings.tls == "implicit" else 587 if settings.username else 25


def _context(settings: EmailSettings) -> ssl.SSLContext | None:
    if tls_of(settings) == "none":
        return None
    import ssl

    cafile = readable_ca_file(settings.ca_file) if settings.ca_file else None
    try:
        return ssl.create_default_context(cafile=cafile)
    except (OSError, ValueError) as error:  # ssl.SSLError is an OSError
        why = "not a PEM file" if isinstance(error, ssl.SSLError) else getattr(error, "strerror", "") or str(error)
        raise SettingsError(f"ca_file = {settings.ca_file!r} cannot be used: {why}") from None


def _by_sendmail(message: Mail, settings: EmailSettings, system: System, sender: str, recipients: list[str]) -> str:
    if not all(address.isascii() for address in (sender, *recipients)):
        raise DeliveryError(
            "sendmail does not accept an address that is not ASCII", transient=False,
            hint="set host to a server that supports SMTPUTF8",
        )  # fmt: skip
    argv = [*(settings.sendmail or _sendmail(system)), "-f", sender, *recipients]
    # Unix line ends: sendmail converts them to CR LF.
    text = message.content(sender).replace(b"\r\n", b"\n").decode("ascii", "surrogateescape")
    run_with_input(
        argv, text, system.runner.run, timeout_s=settings.timeout_s, environment=scrubbed_environment(system.environ)
    )
    return f"{argv[0]} accepted the mail for {', '.join(recipients)}"


def _sendmail(system: System) -> tuple[str, ...]:
    """Return the sendmail program, even if PATH lacks /usr/sbin as under cron. Raise DeliveryError if not found."""
    import shutil

    found = next((place for place in _SENDMAIL_PATHS if shutil.which(place)), None)
    found = found or shutil.which("sendmail", path=system.environ.get("PATH", ""))
    if found is None:
        raise DeliveryError(
            "this node has no sendmail program", hint="set host in [channel.email], or deliver from another node"
        )
    return found, "-i"  # a line with a single dot does not end the mail


CHANNEL = EmailChannel()
