"""Hides what looks like a secret in settings that are shown: it does not belong there, but somebody wrote it. Pure."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import replace
from urllib.parse import urlsplit

from resilience.settings.show import SettingRow
from resilience.system.redaction import REDACTED

_PLACE = re.compile(r"(?i).*[_-](file|variable)")
"""Keys that say where a secret lies."""

_SECRET_KEY = re.compile(r"(?i).*(webhook|pass?w|passphrase|pwd|token|secret|auth|credential|cookie|signature|key$).*")
_TOKEN = re.compile(r"(?i)(xox[a-z]|xapp|gh[opsu]|github_pat|glpat|sk|pk)[-_][\w-]{6,}.*|eyJ[\w-]{8,}.*")
"""How tokens begin."""

_HEADER = re.compile(r"(?i)((?:[\w-]+:\s*)?(?:bearer|basic)\s+|[\w-]*(?:auth|token|key|cookie|secret)[\w-]*:\s*)\S.*")
"""`Authorization: Bearer ...`, as programs take it."""

_RANDOM = re.compile(r"(?=.*[0-9])(?=.*[A-Za-z])[A-Za-z0-9+/_=-]{16,}")
_ADDRESS = re.compile(r"[A-Za-z][A-Za-z0-9+.-]*://\S+")
_SPEAKING = re.compile(r"[a-z]+([-_.][a-z]+)*|v?[0-9]{1,2}|")
"""Pieces of a path that are words, or the number of a version."""


def hidden(row: SettingRow) -> SettingRow:
    """The row as it can be shown to anybody: in tables of channels and watchdogs, no value that may be a secret."""
    if row.key == "cron.ping_url" and row.value:  # whoever knows it can say that all is well
        return replace(row, value=_address(str(row.value), is_secret=True))
    if not row.key.startswith(("channel.", "watch.")):
        return row
    value = _hidden(row.key.rpartition(".")[2], row.value)
    return row if value == row.value else replace(row, value=value)


def _hidden(key: str, value: object) -> object:
    if isinstance(value, Mapping):
        return {name: _hidden(str(name), item) for name, item in value.items()}
    if isinstance(value, list | tuple):
        shown, before = [], ""
        for item in value:  # of a command, what stands behind `--token` is one
            behind = before.lstrip("-") if before.startswith("-") and "=" not in before else key
            shown.append(_hidden(behind, item))
            before = item if isinstance(item, str) else ""
        return type(value)(shown)
    if isinstance(value, int | float) and not isinstance(value, bool) and _SECRET_KEY.fullmatch(key):
        return REDACTED  # a password of digits without quotes
    return _text(key, value) if isinstance(value, str) else value


def _text(key: str, text: str) -> str:
    if _PLACE.fullmatch(key) and not _ADDRESS.match(text) and not _TOKEN.fullmatch(text):
        return text
    option, equals, behind = text.partition("=")
    if option.startswith("-") and equals:
        return f"{option}={_text(option.lstrip('-'), behind)}"
    if "{secret}" in text or not text:
        return text
    if header := _HEADER.fullmatch(text):
        return header[1] + REDACTED
    is_secret = _SECRET_KEY.fullmatch(key) is not None
    if _ADDRESS.search(text):
        return _ADDRESS.sub(lambda found: _address(found[0], is_secret=is_secret), text)
    if is_secret or _TOKEN.fullmatch(text) or (_RANDOM.fullmatch(text) and not text.startswith("/")):
        return REDACTED
    return text


def _address(text: str, *, is_secret: bool) -> str:
    """An address with its host, and with its path where that is no secret and made of words: `https://ntfy.sh/my-topic`."""
    try:
        parts = urlsplit(text)
        host, port = parts.hostname or "", f":{parts.port}" if parts.port else ""
    except ValueError:
        return REDACTED
    is_plain = parts.username is None and not parts.query and all(map(_SPEAKING.fullmatch, parts.path.split("/")))
    if is_plain and not is_secret:
        return text
    return f"{parts.scheme}://{host}{port}/{REDACTED}"
