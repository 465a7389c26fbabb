"""The settings as rows for people, each with where it came from. Pure."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, fields, is_dataclass

from resilience.settings.load import Loaded


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
        name = "template" if section.name == "launcher" else section.name
        if is_dataclass(owner):
            pairs = [(f.name, getattr(owner, f.name)) for f in fields(owner)]
        else:
            pairs = list(owner.items())
        for key, value in pairs:
            dotted = f"{name}.{key}"
            yield SettingRow(dotted, value, loaded.origins.get(dotted, "default"))
