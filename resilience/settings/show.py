"""Lists the settings, each with its origin, and redacts values that look like secrets. Pure."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, fields, is_dataclass, replace
from urllib.parse import urlsplit

from resilience.checkpoints.settings import CheckpointSettings
from resilience.guard.settings import GuardSettings
from resilience.quantities import quote_toml
from resilience.settings.load import Loaded
from resilience.settings.sections import PluginTable
from resilience.system.redaction import REDACTED

_BARE_KEY = re.compile(r"[A-Za-z0-9_-]+")
"""Keys without quotes: https://toml.io/en/v1.0.0#keys."""


_TABLE_NAMES = {"launcher": "template", "watches": "watch", "channels": "channel"}
"""Names of tables in the file that differ from the field's name."""


@dataclass(frozen=True, slots=True)
class SettingRow:
    """One setting. `origin` is a file, a variable, `command line` or `default`."""

    key: str
    value: object
    origin: str


def rows(loaded: Loaded) -> Iterator[SettingRow]:
    """Yield every setting, in the order of the tables."""
    for section in fields(loaded.settings):
        owner = getattr(loaded.settings, section.name)
        if section.name == "guard" and owner is None:
            owner = GuardSettings()
        if section.name == "checkpoints" and owner is None:
            owner = CheckpointSettings()
        if section.name == "cron":
            owner = loaded.settings.cron_settings
        name = _TABLE_NAMES.get(section.name, section.name)
        if name in ("watch", "channel") and not is_dataclass(owner):
            yield from _plugin_rows(name, owner, loaded)
            continue
        if is_dataclass(owner):
            pairs = [(f.name, getattr(owner, f.name)) for f in fields(owner)]
        else:
            pairs = list(owner.items())
        for key, value in pairs:
            dotted = f"{name}.{key}"
            yield SettingRow(dotted, value, loaded.origins.get(dotted, "default"))


def _plugin_rows(section: str, tables: Mapping[str, PluginTable], loaded: Loaded) -> Iterator[SettingRow]:
    for name, table in tables.items():
        for key, value in {"kind": table.kind, **table.values}.items():
            dotted = f"{section}.{name}.{key}"
            yield SettingRow(
                dotted, value, loaded.origins.get(dotted, loaded.origins.get(f"{section}.{name}", "default"))
            )


def to_toml(loaded: Loaded, run: str) -> str:
    """Return the effective settings as TOML, for `run.toml`."""
    lines = [f"# The settings of run {run} at its last submit. Written by resil; edit resil.toml instead."]
    section = ""
    for row in rows(loaded):
        name, _, key = _split(row.key)
        if name in ("watch", "alert", "cron") or name.startswith(("watch.", "channel.")):
            continue  # not part of the run: `resil watch`, `alert` and `cron` read their current settings
        if name != section:
            lines += ["", f"[{name}]"]
            section = name
        value = run if row.key == "run.name" else row.value
        if value is not None:
            lines.append(f"{key if _BARE_KEY.fullmatch(key) else quote_toml(key)} = {_toml(value)}")
    return "\n".join(lines) + "\n"


def _split(dotted: str) -> tuple[str, str, str]:
    """Return (table, dot, key): `watch.fs.paths` is in `watch.fs`."""
    if dotted.startswith(("watch.", "channel.")) and dotted.count(".") > 1:
        return dotted.rpartition(".")
    return dotted.partition(".")


def _toml(value: object) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, int | float):
        return repr(value)
    if isinstance(value, tuple):
        return "[" + ", ".join(quote_toml(str(item)) for item in value) + "]"
    if isinstance(value, Mapping):
        return "{" + ", ".join(f"{quote_toml(str(key))} = {quote_toml(str(item))}" for key, item in value.items()) + "}"
    return quote_toml(str(value))


_LOCATION_KEY = re.compile(r"(?i).*[_-](file|variable)")
"""Keys that name the location of a secret."""

_SECRET_KEY = re.compile(r"(?i).*(webhook|pass?w|passphrase|pwd|token|secret|auth|credential|cookie|signature|key$).*")
_TOKEN = re.compile(r"(?i)(xox[a-z]|xapp|gh[opsu]|github_pat|glpat|sk|pk)[-_][\w-]{6,}.*|eyJ[\w-]{8,}.*")
"""Prefixes of tokens."""

_HEADER = re.compile(r"(?i)((?:[\w-]+:\s*)?(?:bearer|basic)\s+|[\w-]*(?:auth|token|key|cookie|secret)[\w-]*:\s*)\S.*")
"""`Authorization: Bearer ...`, as a program's argument."""

_RANDOM = re.compile(r"(?=.*[0-9])(?=.*[A-Za-z])[A-Za-z0-9+/_=-]{16,}")
_ADDRESS = re.compile(r"[A-Za-z][A-Za-z0-9+.-]*://\S+")
_PLAIN_WORD = re.compile(r"[a-z]+([-_.][a-z]+)*|v?[0-9]{1,2}|")
"""Parts of a path that are words or version numbers."""


def redacted(row: SettingRow) -> SettingRow:
    """Return the row with possible secrets in tables of channels and watchdogs redacted."""
    if row.key == "cron.ping_url" and row.value:  # knowledge of the address is enough to report success
        return replace(row, value=_address(str(row.value), is_secret=True))
    if not row.key.startswith(("channel.", "watch.")):
        return row
    value = _redacted(row.key.rpartition(".")[2], row.value)
    return row if value == row.value else replace(row, value=value)


def _redacted(key: str, value: object) -> object:
    if isinstance(value, Mapping):
        return {name: _redacted(str(name), item) for name, item in value.items()}
    if isinstance(value, list | tuple):
        shown, before = [], ""
        for item in value:  # in a command, the value after `--token` is a secret
            behind = before.lstrip("-") if before.startswith("-") and "=" not in before else key
            shown.append(_redacted(behind, item))
            before = item if isinstance(item, str) else ""
        return type(value)(shown)
    if isinstance(value, int | float) and not isinstance(value, bool) and _SECRET_KEY.fullmatch(key):
        return REDACTED  # a numeric password without quotes
    return _text(key, value) if isinstance(value, str) else value


def _text(key: str, text: str) -> str:
    if _LOCATION_KEY.fullmatch(key) and not _ADDRESS.match(text) and not _TOKEN.fullmatch(text):
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
    """Return an address without user, query and path. A path of plain words is kept: `https://ntfy.sh/my-topic`."""
    try:
        parts = urlsplit(text)
        host, port = parts.hostname or "", f":{parts.port}" if parts.port else ""
    except ValueError:
        return REDACTED
    is_plain = parts.username is None and not parts.query and all(map(_PLAIN_WORD.fullmatch, parts.path.split("/")))
    if is_plain and not is_secret:
        return text
    return f"{parts.scheme}://{host}{port}/{REDACTED}"
