"""Replaces secrets, and parts of secrets, by REDACTED in messages and logs.

`requests`, `urllib3`, `smtplib` and `slack_sdk` put addresses and servers' replies into exceptions and log records. The
host of an address is kept, because users need it (as in Alertmanager, config/common: `RedactedURL`).
"""

from __future__ import annotations

import base64
import re
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any
from urllib.parse import quote, quote_plus, unquote, urlsplit

if TYPE_CHECKING:  # takes 6 ms to import
    from logging import LogRecord

REDACTED = "REDACTED"

MIN_LENGTH = 4
"""Minimum length of a secret: replacing shorter texts would garble messages."""

FORMS = r"""(?xa)
    (?P<scheme>://)[^/@\s'"]+(?P<at>@)                                       # https://name:password@host
  | \b(?:AKIA|ASIA|ABIA|ACCA)[A-Z2-7]{16}\b                                  # AWS
  | \b(?:gh[pousr]_[0-9A-Za-z]{36,255}|github_pat_[0-9A-Za-z_]{22,255})
  | \bgl(?:pat|ptt|rt|dt|cbt|soat|ft|imt|agent|oas)-[0-9A-Za-z_.-]{20,300}    # GitLab
  | \b(?:xox[abeoprs]|xapp)-[0-9A-Za-z-]{10,300}                             # Slack
  | \b(?:hf|api_org)_[0-9A-Za-z]{30,60}\b                                         # Hugging Face
  | \bsk-[0-9A-Za-z_-]{20,300}                                               # OpenAI, Anthropic
  | \beyJ[\w-]{10,4000}\.eyJ[\w-]{10,4000}(?:\.[\w-]{0,4000})?               # JSON web tokens
  | -----BEGIN[ ][A-Z0-9 ]{0,40}PRIVATE[ ]KEY(?:[ ]BLOCK)?-----(?:(?!-----)[\s\S]){0,7000}
        (?:-----END[ ][A-Z0-9 ]{0,60}-----)?
  | (?P<name>(?:(?i:passwo?r?d|passphrase|api[_-]?key|secret(?:[_-]?access)?(?:[_-]?key)?|access[_-]?key|auth[_-]?token
                    |access[_-]?token)|_TOKEN|[?&](?:token|sig|key))
      (?:["']?[ ]{0,3}=[ ]{0,3}["']?|["'][ ]{0,3}:[ ]{0,3}["']))
    (?!None\b|null\b|true\b|false\b|REDACTED|[$<{*])[^\s"'&;,]{6,500}
"""
"""The forms of secrets that a program may print, whoever has read them: the ten that gitleaks finds most (gitleaks,
config/gitleaks.toml), and credentials in an address. Each match is at most FORM_BYTES long."""

FORM_BYTES = 8192

_FORMS = re.compile(FORMS)

_LOOKS_RANDOM = re.compile(r"(?=.*(?:[0-9]|[a-z].*[A-Z]|[A-Z].*[a-z])).{8,}|.{20,}")
"""Parts of an address that are secret: not `services` and `webhooks`, which are common words."""

_known: dict[str, str] = {}
"""The texts that reveal a secret read in this process, with their replacements."""

_is_installed = False


def needles(secret: str) -> dict[str, str]:
    """Return the texts that reveal a secret, with their replacements.

    For an address also its path and the long parts of the path; for any secret its percent-encoded and base64 forms.
    """
    found = {secret: REDACTED, base64.b64encode(secret.encode("utf-8", "replace")).decode(): REDACTED}
    if re.match(r"[A-Za-z][A-Za-z0-9+.-]*://", secret):
        try:
            parts = urlsplit(secret)
            port = f":{parts.port}" if parts.port else ""
            found[secret] = f"{parts.scheme}://{parts.hostname or ''}{port}/{REDACTED}"
        except ValueError:
            parts = urlsplit("")
        path = secret.partition("://")[2].partition("/")[2]
        if path:
            found[f"/{path}"] = f"/{REDACTED}"
        for piece in re.split(r"[/?&=;#]", path):
            if _LOOKS_RANDOM.fullmatch(piece):
                found[piece] = REDACTED
        for piece in (parts.username, parts.password):
            if piece:
                found[piece] = found[unquote(piece)] = REDACTED
    for needle, instead in list(found.items()):
        for coded in (quote(needle), quote(needle, safe=""), quote_plus(needle), repr(needle)[1:-1]):
            found.setdefault(coded, instead)
    return {needle: instead for needle, instead in found.items() if len(needle) >= MIN_LENGTH}


def redact(text: str, secrets: Iterable[str] = ()) -> str:
    """Return a text without `secrets`, without the secrets read in this process, and without those of a known form.

    For instance, `https://hooks.slack.com/services/T0/B0/xyz` gives `https://hooks.slack.com/REDACTED`.
    """
    table = all_needles(secrets)
    for needle in sorted(table, key=len, reverse=True):
        if needle in text:
            text = text.replace(needle, table[needle])
    return _FORMS.sub(lambda found: (found["scheme"] or found["name"] or "") + REDACTED + (found["at"] or ""), text)


def all_needles(secrets: Iterable[str] = ()) -> dict[str, str]:
    """Return the texts that reveal `secrets` or the secrets read in this process, as `needles`."""
    table = dict(_known)
    for secret in secrets:
        table |= needles(secret)
    return table


def remember(secret: str) -> None:
    """Redact this secret in all further log records of this process."""
    global _known
    _known = _known | needles(secret)
    _guard_logs()


def _guard_logs() -> None:
    """Redact log records at creation.

    A filter of a logger does not apply to records of child loggers, as used by urllib3, slack_sdk and apprise; a filter
    of a handler does not apply to handlers added later. All records pass through the record factory.
    """
    global _is_installed
    if _is_installed:
        return
    import logging

    make = logging.getLogRecordFactory()

    def make_redacted(*arguments: Any, **keywords: Any) -> LogRecord:
        record = make(*arguments, **keywords)
        try:
            _redact_record(record)
        except Exception:  # logging must never break the program
            record.msg, record.args, record.exc_info, record.exc_text = REDACTED, (), None, None
        return record

    logging.setLogRecordFactory(make_redacted)
    _is_installed = True


def _redact_record(record: LogRecord) -> None:
    said = record.getMessage()
    if (redacted := redact(said)) != said:
        record.msg, record.args = redacted, ()
    if record.exc_info and record.exc_info[0] is not None:
        import traceback

        trace = "".join(traceback.format_exception(*record.exc_info))
        if (redacted := redact(trace)) != trace:
            record.exc_info, record.exc_text = None, redacted
