"""Mail messages of alerts: subject, plain text, HTML, and the headers for threading. Pure."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Mapping
from dataclasses import dataclass
from html import escape
from typing import TYPE_CHECKING, Any

from resilience.alerts.alert import Alert, Reason
from resilience.alerts.message import (
    clean_line,
    colour_of,
    footer,
    headline,
    is_command,
    items_of,
    left_out,
    plain_text,
)

if TYPE_CHECKING:  # 20 ms
    from email.message import EmailMessage

TEXT_LIMIT = 200_000
SUBJECT_LIMIT = 180
_ATOM = re.compile(r"[A-Za-z0-9_-][A-Za-z0-9_.-]{0,98}[A-Za-z0-9_-]")

# Inline styles only: mail programs drop style sheets. The body has no background and no text colour, so that dark mode
# keeps its own; the coloured bar and the grey are readable in both.
_FONT = "font-family:-apple-system,'Segoe UI',Roboto,Helvetica,Arial,sans-serif;font-size:14px;line-height:1.45"
_CODE = "font-family:ui-monospace,Menlo,Consolas,monospace;font-size:12px;white-space:pre-wrap;word-break:break-word"


@dataclass(frozen=True, slots=True, kw_only=True)
class Mail:
    """One mail, not yet encoded.

    Attributes:
        sender: the From address; empty: `send` uses this account's own address.
        recipients: the To addresses.
        headers: all other headers, by name.
        time: the Date: when the alert was composed, also on a resend.
        served: recipients to skip: they received the mail, or their server rejected it permanently.
        tries: number of deliveries to only some of the recipients.
        files: paths of the files to attach; `attached` are their contents by name, as `send` has read them.
    """

    sender: str
    recipients: tuple[str, ...]
    subject: str
    text: str
    html: str
    time: float
    headers: dict[str, str]
    served: tuple[str, ...] = ()
    tries: int = 0
    files: tuple[str, ...] = ()
    attached: tuple[tuple[str, bytes], ...] = ()

    def as_string(self) -> str:
        """Return headers and plain text, for display."""
        head = {"From": self.sender or "this account", "To": ", ".join(self.recipients), "Subject": self.subject}
        return "\n".join(f"{name}: {value}" for name, value in (head | self.headers).items()) + f"\n\n{self.text}"

    def content(self, sender: str = "", *, utf8: bool = False) -> bytes:
        """Return the encoded mail, with CR LF line ends."""
        head, separator, body = self.mime(sender, utf8=utf8).as_bytes().partition(b"\r\n\r\n")
        # The standard library folds a header of 70 to 77 characters before its first word: some programs show a blank.
        return re.sub(rb"(?m)^([A-Za-z-]+):\r\n ", rb"\1: ", head) + separator + body

    def mime(self, sender: str = "", *, utf8: bool = False) -> EmailMessage:
        """Return the mail as an EmailMessage, which rejects line ends in headers. `utf8`: for SMTPUTF8."""
        from datetime import datetime
        from email import policy
        from email.message import EmailMessage

        message = EmailMessage(policy.SMTP.clone(utf8=utf8))
        message["From"] = [_address(self.sender or sender or "resil")]
        message["To"] = [_address(recipient) for recipient in self.recipients]
        message["Subject"] = self.subject
        message["Date"] = datetime.fromtimestamp(self.time).astimezone()
        for name, value in self.headers.items():
            message[name] = value
        # 7-bit encoding: not every server accepts 8 bits, and quoted-printable wraps long lines.
        message.set_content(self.text, charset="utf-8", cte="quoted-printable")
        message.add_alternative(self.html, subtype="html", charset="utf-8", cte="quoted-printable")
        for name, content in self.attached:
            if name.endswith(".png"):
                related: Any = message.get_body(("html",))
                related.add_related(content, "image", "png", cid=f"<{name}>", filename=name, disposition="inline")
            else:
                message.add_attachment(content, "text", "html", filename=name, params={"charset": "utf-8"})
        return message


def compose_mail(
    alert: Alert, *, sender: str, recipients: tuple[str, ...], prefix: str, thread: Mapping[str, str]
) -> Mail:
    """Return the mail for an alert.

    Message-ID is derived from the alert's id, so that a resend is recognised. All mails of a thread reference the same
    root id, derived from the thread's: mail programs thread by References even if no mail has the root id (RFC 5322,
    3.6.4, and https://www.jwz.org/doc/threading.html), so the order of arrival and lost mails do not matter.
    """
    domain = domain_of(sender) or domain_of(recipients[0] if recipients else "") or "resil.invalid"
    # The ids of announcements, such as cron's daily report, are those of another project's too.
    scope = f" {alert.project}" if alert.title else ""
    root = f"<thread.{atom(alert.thread + scope)}@{domain}>"
    first = thread.get("message_id", "")
    own = f"<alert.{atom(alert.id + scope)}@{domain}>"
    parents = [root] if first in ("", own) or not _is_message_id(first) else [root, first]
    headers = {
        "Message-ID": own,
        **({"In-Reply-To": parents[-1]} if first or alert.reason is not Reason.FIRST else {}),
        "References": " ".join(parents),
        # Suppress automatic replies: RFC 3834, 5; Exchange has a header of its own.
        "Auto-Submitted": "auto-generated",
        "X-Auto-Response-Suppress": "All",
        "X-Resil-Alert": clean_line(alert.id, 100),
        "X-Resil-Verdict": alert.verdict.value,
        "X-Resil-Reason": alert.reason.value,
    }
    if alert.notices:
        episodes = dict.fromkeys(clean_line(notice.episode, 24) for notice in alert.notices[:10])
        headers["X-Resil-Episode"] = ", ".join(episodes)
    served = thread.get("served", "").split()
    tries, addresses = (served[1], served[2:]) if len(served) > 2 and served[0] == own else ("0", [])
    return Mail(
        served=tuple(addresses),
        tries=int(tries) if tries.isdecimal() else 0,
        sender=sender,
        recipients=recipients,
        subject=clean_line(f"{prefix} {headline(alert, SUBJECT_LIMIT)}", SUBJECT_LIMIT + 60),
        text=plain_text(alert, TEXT_LIMIT),
        html=_html(alert),
        files=alert.files,
        time=alert.time if 0 <= alert.time < 253_402_300_000 else 0.0,  # the year 9999
        headers=headers,
    )


def domain_of(address: str) -> str:
    """Return the domain of an address, or an empty text if a Message-ID cannot contain it."""
    domain = address.rpartition("@")[2].strip(" >").lower() if "@" in address else ""
    return domain if re.fullmatch(r"[a-z0-9-]+(\.[a-z0-9-]+)*", domain) else ""


def atom(text: str) -> str:
    """Return an id as part of a Message-ID; an id with other characters is hashed."""
    if _ATOM.fullmatch(text) and ".." not in text:
        return text
    return hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()[:32]


def _address(text: str) -> Any:
    """Return the standard library's Address, which quotes display names."""
    from email.headerregistry import Address

    name, opened, rest = text.rpartition("<")
    local, at, domain = rest.rstrip("> ").rpartition("@")
    username, domain = (local, domain) if at else (domain, "")
    if not domain.isascii():
        domain = domain.encode("idna").decode()
    return Address(display_name=name.strip() if opened else "", username=username.strip(), domain=domain)


def _is_message_id(text: str) -> bool:
    return re.fullmatch(r"<[A-Za-z0-9_.-]{1,120}@[a-z0-9.-]{1,255}>", text) is not None


def _html(alert: Alert) -> str:
    """Return the HTML version of the text."""
    parts = [f'<p style="margin:0 0 12px;font-size:16px"><b>{escape(headline(alert))}</b></p>']
    size = 0
    for item in items_of(alert):
        if size > TEXT_LIMIT:
            parts.append("<p>… truncated; see the plain text of this mail</p>")
            break
        rows = "".join(
            '<tr><td style="padding:1px 12px 1px 0;vertical-align:top;white-space:nowrap;opacity:.7">'
            f'{escape(label)}</td><td style="padding:1px 0;vertical-align:top">{_value(label, value)}</td></tr>'
            for label, value in item.rows
        )
        title = f'<p style="margin:0 0 4px"><b>{escape(item.title)}</b></p>' if len(alert.notices) > 1 else ""
        evidence = ""
        if item.evidence:
            lines = escape("\n".join(item.evidence))
            evidence = f'<pre style="{_CODE};margin:8px 0 0;padding:8px;border:1px solid #8888">{lines}</pre>'
        parts.append(
            f'<div style="margin:0 0 16px">{title}<table role="presentation" style="border-collapse:collapse;{_FONT}">'
            f"{rows}</table>{evidence}</div>"
        )
        size += len(parts[-1])
    for name in (name for path in alert.files if (name := path.rpartition("/")[2]).endswith(".png")):
        shown = f'<img src="cid:{escape(name)}" alt="" width="600" style="max-width:100%;height:auto;border:0">'
        parts.append(f'<p style="margin:0 0 12px">{shown}</p>')
    if more := left_out(alert):
        parts.append(f"<p>{escape(more)}</p>")
    parts.append(f'<p style="margin:0;font-size:12px;opacity:.7">{escape(footer(alert))}</p>')
    return (
        '<!DOCTYPE html><html><head><meta charset="utf-8"><meta name="color-scheme" content="light dark">'
        '<meta name="supported-color-schemes" content="light dark"></head>'
        f'<body style="{_FONT}"><div style="border-left:4px solid {colour_of(alert)};padding:4px 0 4px 14px">'
        f"{''.join(parts)}</div></body></html>\n"
    )


def _value(label: str, value: str) -> str:
    shown = escape(value)
    return f'<code style="{_CODE}">{shown}</code>' if is_command(label, value) else shown
