"""Finds and loads resil.toml. Precedence, lowest first: file, environment, command line."""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Mapping
from dataclasses import replace
from math import isfinite
from pathlib import Path
from types import MappingProxyType
from typing import Any, NamedTuple

from resilience.errors import SettingsError, StateDirectoryError
from resilience.messages import cut
from resilience.settings.alert_policy import AlertPolicy
from resilience.settings.convert import convert_table, read_table, refuse_control_characters, unknown_key
from resilience.settings.sections import (
    ActSettings,
    AttemptSettings,
    NodeSettings,
    RunSettings,
    SchedulerSettings,
    Settings,
    SubmitSettings,
    WatchSettings,
    tables_with,
)
from resilience.system.files import explain_os_error, read_regular
from resilience.system.ports import System

FILE_NAME = "resil.toml"
CONFIG_VARIABLE = "RESIL_CONFIG"
_JOB_VARIABLE = "RESIL_ATTEMPT"
"""Set in jobs of a template, together with the guard's settings of that job."""
LIMIT_BYTES = 2**20
"""Maximum size of a settings file."""
_FREE_TABLES = {"sbatch": "sbatch", "environment": "environment", "template": "launcher"}
"""Tables whose keys are defined elsewhere: by sbatch, the training's environment, the template."""
_PATH_BYTES, _NAME_BYTES = 3800, 255
"""PATH_MAX and NAME_MAX of Linux, less 296 bytes for the files of a run."""
_VARIABLE = r"\$(\w|\{)"
_OWNERS: dict[str, type] = {
    "run": RunSettings,
    "submit": SubmitSettings,
    "attempt": AttemptSettings,
    "act": ActSettings,
    "nodes": NodeSettings,
    "scheduler": SchedulerSettings,
    "watch": WatchSettings,
    "alert": AlertPolicy,
}
_GUARD = "guard"
"""The guard reads its own table (settings/convert.py), and is only imported if the table exists."""
_CHECKPOINTS = "checkpoints"
"""So does the store."""
_CRON = "cron"
"""Also imported only if the table exists: a watchdog that cron runs every minute does not need it."""
_OWN_TABLES = frozenset({*_OWNERS, _GUARD, _CHECKPOINTS, _CRON})
"""Tables whose keys are resil's."""
_PLUGIN_TABLES = {"watch": "watches", "channel": "channels"}
"""Tables of tables: [watch.fs], [channel.email]. Each inner one belongs to a plugin."""


class Loaded(NamedTuple):
    """Settings with the origin of each value.

    Attributes:
        settings: the effective settings.
        path: the settings file; None if there is none, all settings then have their defaults.
        project: the directory that relative paths refer to.
        origins: the file, variable or option that set a key such as `run.name`. Absent keys have their defaults.
    """

    settings: Settings
    path: Path | None
    project: Path
    origins: Mapping[str, str] = MappingProxyType({})

    @property
    def state_dir(self) -> Path:
        """Return the absolute path of the state directory."""
        return self.project / Path(self.settings.run.state_dir)

    def evidence_path(self, home: Path) -> Path:
        """Return the absolute path of the evidence about nodes: [nodes] `evidence`, else in the state directory."""
        text = self.settings.nodes.evidence
        first, *rest = Path(text).parts or ("",)
        path = home.joinpath(*rest) if first == "~" else Path(text)
        return self.project / path if text else self.state_dir / "nodes" / "evidence"

    def store_path(self, run: str) -> Path | None:
        """Return the absolute path of a run's directory of checkpoints, or None if [checkpoints] has no path."""
        settings = self.settings.checkpoints
        if settings is None or not settings.path:
            return None
        return self.project / settings.path.replace("{run}", run)


def find_file(system: System, named: Path | None = None) -> Path | None:
    """Return the path of the settings file: `named`, $RESIL_CONFIG, resil.toml here or in a parent directory, or the
    user's config.toml.

    Raise SettingsError if a named file does not exist, or if the path is not a regular file.
    """
    for source, choice in (("--config", named), (CONFIG_VARIABLE, system.environ.get(CONFIG_VARIABLE))):
        if choice:
            path = system.cwd / _home_expanded(str(choice), system.host.home, source)
            if not _is_there(path):
                raise SettingsError(f"{source} names {path}, and there is no such file", hint="make one: resil init")
            return path
    for directory in (system.cwd, *system.cwd.parents):
        if _is_there(directory / FILE_NAME):
            return directory / FILE_NAME
        if directory == system.host.home:
            break
    own = system.config_home / "resil" / "config.toml"
    return own if _is_there(own) else None


class Source(NamedTuple):
    """The path and content of the settings file. `path` is None if there is no file."""

    path: Path | None = None
    content: bytes = b""


def find_source(system: System, named: Path | None = None) -> Source:
    """Find and read the settings file: the only file access of `load`. Raise SettingsError on failure."""
    path = find_file(system, named)
    return Source(path, _read(path)) if path is not None else Source()


def load(
    system: System,
    *,
    named: Path | None = None,
    overrides: Mapping[str, str] | None = None,
    source: Source | None = None,
) -> Loaded:
    """Return the settings. `overrides` come from the command line (`run.name` to a string); `source` is an already
    read settings file.

    Raise SettingsError if the file cannot be read or is invalid.
    """
    source = source or find_source(system, named)
    tables = _read_tables(system, source, overrides or {}, _refuse)
    settings = _build(tables.values, tables.origins, source.path, system.host.home)
    return Loaded(settings, source.path, _project_of(system, source.path), tables.origins)


def check(system: System, source: Source) -> tuple[Loaded, tuple[SettingsError, ...]]:
    """Return the settings without the invalid ones, and an error for each of these.

    Raise SettingsError if the file is not TOML.
    """
    errors: list[SettingsError] = []
    tables = _read_tables(system, source, {}, errors.append)

    def build(values: Mapping[str, dict[str, Any]]) -> Settings:
        try:
            return _build(values, tables.origins, source.path, system.host.home)
        except SettingsError as error:
            errors.append(error)
            return Settings()

    valid: dict[str, dict[str, Any]] = {}
    for name, table in tables.values.items():
        for part in [{key: value} for key, value in table.items()] or [{}]:
            count = len(errors)
            build({name: part})
            if len(errors) == count:
                valid.setdefault(name, {}).update(part)
    settings = build(valid)  # keys that contradict each other
    unique = {error.message: error for error in errors}
    return Loaded(settings, source.path, _project_of(system, source.path), tables.origins), tuple(unique.values())


def _project_of(system: System, path: Path | None) -> Path:
    return path.parent if path is not None and path.name == FILE_NAME else system.cwd


class _Tables(NamedTuple):
    """The tables of the file, the environment and the command line, and the origin of each key."""

    values: dict[str, dict[str, Any]]
    origins: dict[str, str]


def _refuse(error: SettingsError) -> None:
    raise error


def _read_tables(
    system: System, source: Source, overrides: Mapping[str, str], report: Callable[[SettingsError], None]
) -> _Tables:
    """Return the unconverted tables. `report` gets each error; if it returns, the key is left out."""
    path = source.path
    tables: dict[str, dict[str, Any]] = {}
    origins: dict[str, str] = {}
    for name, table in (_parse(source.content, path) if path is not None else {}).items():
        if not isinstance(table, dict):
            report(_stray(name, path))
            continue
        tables[name] = {}
        for key, value in table.items():
            written = key if isinstance(value, dict) else _written(name, key)
            if written in tables[name]:
                message = f"{written!r} in [{name}] ({path}) is given twice"
                report(SettingsError(message, hint="once with - and once with _"))
                continue
            tables[name][written] = value
            origins[f"{name}.{written}"] = str(path)
            if isinstance(value, dict) and name in _PLUGIN_TABLES:
                origins |= {f"{name}.{written}.{inner.replace('-', '_')}": str(path) for inner in value}
    for variable, value in system.environ.items():
        section, separator, key = variable.removeprefix("RESIL_").partition("__")
        if variable.startswith("RESIL_") and separator:
            section = section.lower()
            if section in (_GUARD, _CHECKPOINTS) and _JOB_VARIABLE in system.environ:
                continue  # set for the surrounding job; a submission from inside the job may be for another run
            # The names in [environment] are the training's variables, in capitals.
            key = _written(section, key if section == "environment" else key.lower())
            inner, nested, inner_key = key.partition("__")
            if nested and section in _PLUGIN_TABLES:  # RESIL_WATCH__FS__WARN_PERCENT
                try:
                    _inner_table(tables.setdefault(section, {}), section, inner, variable)[inner_key] = value
                except SettingsError as error:
                    report(error)
                origins[f"{section}.{inner}.{inner_key}"] = f"${variable}"
                continue
            tables.setdefault(section, {})[key] = _plain(value) if section == "sbatch" else value
            origins[f"{section}.{key}"] = f"${variable}"
    for dotted, value in overrides.items():
        section, _, key = dotted.partition(".")
        tables.setdefault(section, {})[key] = value
        origins[dotted] = "command line"
    return _Tables(tables, origins)


def _is_there(path: Path) -> bool:
    """Return whether the path is a file. Raise SettingsError if the path exists and is not a regular file."""
    try:
        path.lstat()
        if path.is_file():
            return True
    except (FileNotFoundError, NotADirectoryError, PermissionError):
        return False  # an unreadable parent directory is not a project directory
    except OSError as error:
        raise SettingsError(explain_os_error(error, "look at", path).message) from error
    raise SettingsError(f"{path} is not a regular file", hint="move it away, or name another file: --config FILE")


def _read(path: Path) -> bytes:
    try:
        found = read_regular(path.resolve(), limit_bytes=LIMIT_BYTES)
    except StateDirectoryError as error:
        hint = "ask its owner for read permission" if isinstance(error.__cause__, PermissionError) else ""
        raise SettingsError(error.message, hint=hint) from error
    raw = found[0] if found else b""
    if len(raw) == LIMIT_BYTES:
        raise SettingsError(f"{path} is larger than any settings file", hint="name the right one: --config FILE")
    return raw


def _parse(raw: bytes, path: Path) -> dict[str, Any]:
    import tomllib  # 5 ms, only needed if there is a resil.toml

    try:
        return tomllib.loads(raw.decode("utf-8-sig"))  # some editors write a byte order mark
    except UnicodeDecodeError as error:
        raise SettingsError(
            f"{path} is not UTF-8 text: {error.reason} at byte {error.start}", hint="save it as UTF-8"
        ) from error
    except (ValueError, RecursionError) as error:  # ValueError: broken TOML, or a number of a thousand digits
        raise SettingsError(f"{path} is not TOML: {error}", hint="strings need quotes; see https://toml.io") from error


def _build(tables: Mapping[str, dict[str, Any]], origins: Mapping[str, str], path: Path | None, home: Path) -> Settings:
    arguments: dict[str, Any] = {}
    for name, table in tables.items():

        def where(key: str, name: str = name) -> str:
            return f"[{name}] ({origins.get(f'{name}.{key}', path)})"

        if name in _PLUGIN_TABLES:
            inner = {key: value for key, value in table.items() if isinstance(value, dict)}
            arguments[_PLUGIN_TABLES[name]] = {
                key: read_table(name, key, value, where(key)) for key, value in inner.items()
            }
            table = {key: value for key, value in table.items() if key not in inner}
        if name in _FREE_TABLES:
            arguments[_FREE_TABLES[name]] = _plain_values(name, table, where)
        elif name == _GUARD:
            if table:  # `resil init` writes an empty table
                from resilience.settings.convert import convert_guard_table

                arguments[name] = convert_guard_table(table, where)
        elif name == _CHECKPOINTS:
            if table:
                from resilience.settings.convert import convert_checkpoints_table

                arguments[name] = convert_checkpoints_table(table, where)
        elif name == _CRON:
            from resilience.settings.cron_settings import CronSettings

            arguments[name] = CronSettings(**convert_table(CronSettings, table, where))
        elif name in _OWNERS:
            arguments[name] = _OWNERS[name](**convert_table(_OWNERS[name], table, where))
        elif name in _PLUGIN_TABLES:
            for key in table:
                raise SettingsError(
                    f"{key!r} in {where(key)} belongs in the table of a {name}",
                    hint=f"move it below [{name}.NAME]",
                )
        else:
            source = next((origins[f"{name}.{key}"] for key in table), str(path))
            raise unknown_key(name, sorted({*_OWN_TABLES, *_FREE_TABLES, *_PLUGIN_TABLES}), f"the tables of {source}")
    settings = _one_owner_policy(Settings(**arguments))
    state_dir = _state_dir(settings.run.state_dir, home, origins.get("run.state_dir", "default"))
    settings = replace(settings, run=replace(settings.run, state_dir=state_dir))
    if (store := settings.checkpoints) is not None and store.path.startswith("~"):
        source = f"path in [checkpoints] ({origins.get('checkpoints.path')})"
        expanded = str(_home_expanded(store.path, home, source))
        settings = replace(settings, checkpoints=replace(store, path=expanded))
    return settings


def _one_owner_policy(settings: Settings) -> Settings:
    """Apply one owner policy to the batch shell and the guard, set in either of the two tables."""
    run = settings.run
    of_guard = settings.guard.switch_owners if settings.guard is not None else ""
    if of_guard and run.switch_owners and of_guard != run.switch_owners:
        raise SettingsError(
            f"switch_owners is {run.switch_owners!r} in [run] and {of_guard!r} in [guard]",
            hint="set it in [run] only; it applies to the batch shell and the guard",
        )
    return replace(settings, run=replace(run, switch_owners=run.switch_owners or of_guard))


def _inner_table(table: dict[str, Any], section: str, name: str, variable: str) -> dict[str, Any]:
    inner = table.setdefault(name, {})
    if not isinstance(inner, dict):
        raise SettingsError(
            f"${variable} sets a key of [{section}.{name}], and {name!r} is a plain value in [{section}]"
        )
    return inner


def _written(section: str, key: str) -> str:
    """Return the canonical form of a key: resil's keys with `_`, sbatch's options with `-`, others unchanged."""
    if section == "sbatch":
        return key.replace("_", "-")
    return key.replace("-", "_") if section in _OWN_TABLES else key


def _plain(text: str) -> str | bool:
    """Return a flag of sbatch from the environment as a bool: sbatch does not accept `--exclusive=true`."""
    return {"true": True, "false": False}.get(text.lower(), text)


def _plain_values(name: str, table: Mapping[str, Any], where: Callable[[str], str]) -> dict[str, Any]:
    for key, value in table.items():
        if isinstance(value, dict):
            raise SettingsError(
                f"{key!r} in {where(key)} is a table, but only plain values are allowed",
                hint="a dot in a key creates a table; quote the key, or remove the dot",
            )
        if not isinstance(value, str | int | float | bool):
            raise SettingsError(f"{key} in {where(key)} must be a string, a number, true or false")
        if isinstance(value, float) and not isfinite(value):
            raise SettingsError(f"{key} = {value} in {where(key)} must be a finite number")
        if name != "environment" or "\0" in str(value):  # a variable may hold escape sequences
            refuse_control_characters(key, value, where(key))
    if name == "environment":  # variables are strings: `true`, not Python's `True`
        return {key: str(value).lower() if isinstance(value, bool) else str(value) for key, value in table.items()}
    return dict(table)


def _stray(name: str, path: Path | None) -> SettingsError:
    if name in {*_OWN_TABLES, *_FREE_TABLES, *_PLUGIN_TABLES}:
        return SettingsError(f"{name!r} in {path} must be a table", hint=f"write [{name}] on a line of its own")
    home = next(iter(tables_with(name)), "sbatch")
    return SettingsError(f"{name!r} in {path} is outside any table", hint=f"move it below [{home}]")


def _state_dir(text: str, home: Path, source: str) -> str:
    """Return the state directory with `~` expanded. Raise SettingsError for a `$`, which would not be expanded."""
    if "$" in text and re.search(_VARIABLE, text):
        raise SettingsError(
            f"state_dir = {text!r} in [run] ({source}): variables are not expanded",
            hint='write the path out, or export RESIL_RUN__STATE_DIR="$SCRATCH/resil"',
        )
    if any(ord(character) < 32 or ord(character) == 127 for character in text):
        raise SettingsError(f"state_dir = {text!r} in [run] ({source}) contains a control character")
    if len(os.fsencode(text)) > _PATH_BYTES or any(len(os.fsencode(part)) > _NAME_BYTES for part in text.split("/")):
        raise SettingsError(
            f"state_dir = {cut(text, 80)!r} in [run] ({source}) is longer than a path may be",
            hint=f"a path has at most {_PATH_BYTES} bytes, and each name in it at most {_NAME_BYTES}",
        )
    return str(_home_expanded(text, home, f"state_dir in [run] ({source})")) if text.startswith("~") else text


def _home_expanded(text: str, home: Path, source: str) -> Path:
    first, *rest = Path(text).parts or ("",)
    if first == "~":
        return home.joinpath(*rest)
    try:
        return Path(text).expanduser()
    except RuntimeError:
        raise SettingsError(f"{source}: there is no user {first[1:]!r} on this machine", hint="write ~/...") from None
