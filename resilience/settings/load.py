"""Finds resil.toml and makes the settings of it: file, then environment, then command line, later ones winning."""

from __future__ import annotations

import tomllib
from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any

from resilience.errors import SettingsError, StateDirectoryError
from resilience.settings.convert import convert_table, unknown_key
from resilience.settings.sections import (
    AttemptSettings,
    RunSettings,
    SchedulerSettings,
    Settings,
    SubmitSettings,
)
from resilience.system.files import read_regular
from resilience.system.world import World

FILE_NAME = "resil.toml"
CONFIG_VARIABLE = "RESIL_CONFIG"
_FREE_TABLES = {"sbatch": "sbatch", "environment": "environment", "template": "launcher"}
"""Tables whose keys belong to somebody else: sbatch, the training's environment, the template."""
_OWNERS: dict[str, type] = {
    "run": RunSettings,
    "submit": SubmitSettings,
    "attempt": AttemptSettings,
    "scheduler": SchedulerSettings,
}


@dataclass(frozen=True, slots=True)
class Loaded:
    """Settings, and where each came from.

    Attributes:
        settings: what counts.
        path: the file, or None when there is none: everything has a default.
        project: the folder that relative paths are relative to.
        origins: `run.name` to the file, the variable or the option that set it; what is absent is a default.
    """

    settings: Settings
    path: Path | None
    project: Path
    origins: Mapping[str, str] = field(default_factory=dict)

    @property
    def state_dir(self) -> Path:
        """The state directory, absolute."""
        return self.project / Path(self.settings.run.state_dir).expanduser()


def find_file(world: World, wanted: Path | None = None) -> Path | None:
    """The settings file: the one named, $RESIL_CONFIG, resil.toml here or in a folder above, the user's own.

    Raise SettingsError if a file was named and is not there.
    """
    for source, named in (("--config", wanted), (CONFIG_VARIABLE, world.environ.get(CONFIG_VARIABLE))):
        if named:
            path = world.cwd / Path(named).expanduser()
            if not path.is_file():
                raise SettingsError(f"{source} names {path}, and there is no such file", hint="make one: resil init")
            return path
    for folder in (world.cwd, *world.cwd.parents):
        if (folder / FILE_NAME).is_file():
            return folder / FILE_NAME
        if folder == world.host.home:
            break
    config_home = Path(world.environ.get("XDG_CONFIG_HOME") or world.host.home / ".config")
    own = config_home / "resil" / "config.toml"
    return own if own.is_file() else None


def load(world: World, *, wanted: Path | None = None, overrides: Mapping[str, str] | None = None) -> Loaded:
    """Read the settings. `overrides` are the command line's, `run.name` to a text.

    Raise SettingsError if the file cannot be read or says something that nobody understands.
    """
    path = find_file(world, wanted)
    tables: dict[str, dict[str, Any]] = {}
    origins: dict[str, str] = {}
    if path is not None:
        for name, table in _read(path).items():
            if not isinstance(table, dict):
                raise SettingsError(
                    f"{name!r} in {path} stands outside any table", hint=f"put it below [{_home_of(name)}]"
                )
            tables[name] = dict(table)
            origins.update({f"{name}.{key}": str(path) for key in table})
    for variable, value in world.environ.items():
        if variable.startswith("RESIL_") and "__" in variable:
            section, _, key = variable.removeprefix("RESIL_").lower().partition("__")
            tables.setdefault(section, {})[key] = value
            origins[f"{section}.{key}"] = f"${variable}"
    for dotted, value in (overrides or {}).items():
        section, _, key = dotted.partition(".")
        tables.setdefault(section, {})[key] = value
        origins[dotted] = "command line"
    project = path.parent if path is not None and path.name == FILE_NAME else world.cwd
    return Loaded(_build(tables, origins, path), path, project, origins)


def _read(path: Path) -> dict[str, Any]:
    try:
        found = read_regular(path.resolve(), limit_bytes=2**20)
        text = found[0].decode("utf-8") if found else ""
        return tomllib.loads(text)
    except StateDirectoryError as error:
        raise SettingsError(error.message, hint=error.hint) from error
    except UnicodeDecodeError as error:
        raise SettingsError(f"{path} is not UTF-8 text: {error.reason} at byte {error.start}") from error
    except tomllib.TOMLDecodeError as error:
        raise SettingsError(f"{path} is not TOML: {error}", hint="texts need quotes; see https://toml.io") from error


def _build(tables: Mapping[str, dict[str, Any]], origins: Mapping[str, str], path: Path | None) -> Settings:
    arguments: dict[str, Any] = {}
    for name, table in tables.items():
        source = next((origins[f"{name}.{key}"] for key in table if f"{name}.{key}" in origins), str(path))
        where = f"[{name}] ({source})"
        if name in _FREE_TABLES:
            arguments[_FREE_TABLES[name]] = _plain_values(table, where)
        elif name in _OWNERS:
            arguments[name] = _OWNERS[name](**convert_table(_OWNERS[name], table, where))
        else:
            raise unknown_key(name, sorted([*_OWNERS, *_FREE_TABLES]), f"the tables of {source}")
    return Settings(**arguments)


def _plain_values(table: Mapping[str, Any], where: str) -> dict[str, Any]:
    for key, value in table.items():
        if not isinstance(value, str | int | float | bool):
            raise SettingsError(f"{key} in {where} must be a text, a number, true or false")
    return dict(table)


def _home_of(key: str) -> str:
    """The table that a stray key belongs to, as a guess for the hint."""
    return next((name for name, owner in _OWNERS.items() if key in {f.name for f in fields(owner)}), "sbatch")
