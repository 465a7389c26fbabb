"""[watch.NAME] and [channel.NAME]: tables that belong to plugins, read by the plugin's own dataclass. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from resilience.errors import SettingsError
from resilience.settings.convert import convert_table
from resilience.settings.sections import PluginTable


def read_table(section: str, name: str, table: Mapping[str, Any], where: str) -> PluginTable:
    """Given a table as it was written, return it with its kind. Its keys are looked at when its plugin reads it.

    Raise SettingsError if the name cannot be typed on a command line, a key is written twice, or the kind is no text.
    """
    if not name.replace("-", "").replace("_", "").isalnum() or not name.isascii():
        raise SettingsError(f"[{section}.{name}] in {where}: a name has letters, digits, - and _ only")
    kind = table.get("kind", name)
    if not isinstance(kind, str) or not kind:
        raise SettingsError(f"kind = {kind!r} in [{section}.{name}] ({where}) must be a text")
    values: dict[str, Any] = {}
    for key, value in table.items():
        written = key.replace("-", "_")
        if written in values:
            raise SettingsError(
                f"{written!r} in [{section}.{name}] ({where}) is written twice", hint="with - and with _"
            )
        values[written] = value
    values.pop("kind", None)
    return PluginTable(kind, values)


def plugin_settings(
    owner: type,
    section: str,
    name: str,
    table: PluginTable | None,
    *,
    origins: Mapping[str, str] | None = None,
    overrides: Mapping[str, object] | None = None,
) -> Any:
    """Given a plugin's dataclass and its table (None: none was written), return its settings.

    `overrides` are the command line's and win. Raise SettingsError if a key is unknown, naming the nearest, or a value
    has the wrong type.
    """
    values = dict(table.values) if table is not None else {}
    places = {key: (origins or {}).get(f"{section}.{name}.{key}", "resil.toml") for key in values}
    for key, value in (overrides or {}).items():
        values[key] = value
        places[key] = "command line"

    def where(key: str) -> str:
        return f"[{section}.{name}] ({places[key]})"

    return owner(**convert_table(owner, values, where))
