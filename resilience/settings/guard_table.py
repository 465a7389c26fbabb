"""[guard] of resil.toml, read as the guard itself reads it: the same units, limits and sentences. Pure."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import fields
from typing import Any

from resilience.errors import GuardError, SettingsError
from resilience.guard.settings import GuardSettings, read_settings
from resilience.settings.convert import unknown_key


def convert_guard_table(table: Mapping[str, Any], where: Callable[[str], str]) -> GuardSettings:
    """Given the table, return the guard's settings.

    Raise SettingsError if a key is unknown, naming the nearest, or if the guard would refuse its value. `where` names
    the place of a key in messages: `[guard] (resil.toml)`.
    """
    known = sorted(field.name for field in fields(GuardSettings))
    for key, value in table.items():
        if key not in known:
            raise unknown_key(key, known, where(key))
        try:  # one by one, so that the message can name the place of this very key
            read_settings({}, **{key: value})
        except GuardError as error:
            raise SettingsError(f"{error.message}, in {where(key)}", hint=error.hint) from error
    return read_settings({}, **table)
