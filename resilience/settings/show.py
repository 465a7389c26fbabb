"""The settings as rows for people, each with where it came from. Pure."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, fields, is_dataclass

from resilience.guard.settings import GuardSettings
from resilience.quantities import quote_toml
from resilience.settings.load import Loaded
from resilience.settings.sections import PluginTable

_BARE_KEY = re.compile(r"[A-Za-z0-9_-]+")
"""What needs no quotes: https://toml.io/en/v1.0.0#keys."""


_WRITTEN = {"launcher": "template", "watches": "watch", "channels": "channel"}
"""How a table is called in the file, where that differs from the field's name."""


@dataclass(frozen=True, slots=True)
class SettingRow:
    """One setting. `origin` is a file, a variable, `command line` or `default`."""

    key: str
    value: object
    origin: str


def rows(loaded: Loaded) -> Iterator[SettingRow]:
    """Yield every setting, tables in their order."""
    for section in fields(loaded.settings):
        owner = getattr(loaded.settings, section.name)
        if section.name == "guard" and owner is None:
            owner = GuardSettings()
        if section.name == "cron":
            owner = loaded.settings.cron_settings
        name = _WRITTEN.get(section.name, section.name)
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
    """The resolved settings as TOML, for `run.toml`: what counted at the last submit."""
    lines = [f"# The settings of run {run} at its last submit. Written by resil; edit resil.toml instead."]
    section = ""
    for row in rows(loaded):
        name, _, key = _split(row.key)
        if name in ("watch", "alert", "cron") or name.startswith(("watch.", "channel.")):
            continue  # whoever looks has settings of their own; the run keeps what counted for the run
        if name != section:
            lines += ["", f"[{name}]"]
            section = name
        value = run if row.key == "run.name" else row.value
        if value is not None:
            lines.append(f"{key if _BARE_KEY.fullmatch(key) else quote_toml(key)} = {_toml(value)}")
    return "\n".join(lines) + "\n"


def _split(dotted: str) -> tuple[str, str, str]:
    """The table and the key: `watch.fs.paths` lies in `watch.fs`."""
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
    return quote_toml(str(value))
