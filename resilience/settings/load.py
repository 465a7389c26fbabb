"""Finds resil.toml and makes the settings of it: file, then environment, then command line, later ones winning."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from types import MappingProxyType
from typing import Any, NamedTuple

from resilience.errors import SettingsError, StateDirectoryError
from resilience.settings.alert_policy import AlertPolicy
from resilience.settings.convert import convert_table, read_table, unknown_key
from resilience.settings.sections import (
    AttemptSettings,
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
"""Set in jobs of a template, besides the guard's settings of that job."""
LIMIT_BYTES = 2**20
"""A settings file is never larger."""
_FREE_TABLES = {"sbatch": "sbatch", "environment": "environment", "template": "launcher"}
"""Tables whose keys belong to somebody else: sbatch, the training's environment, the template."""
_VARIABLE = r"\$(\w|\{)"
_OWNERS: dict[str, type] = {
    "run": RunSettings,
    "submit": SubmitSettings,
    "attempt": AttemptSettings,
    "scheduler": SchedulerSettings,
    "watch": WatchSettings,
    "alert": AlertPolicy,
}
_GUARD = "guard"
"""The guard reads its table itself (settings/convert.py), and is loaded only where there is one."""
_CRON = "cron"
"""Loaded only where there is one as well: a watchdog that cron runs every minute needs none of it."""
_PLUGIN_TABLES = {"watch": "watches", "channel": "channels"}
"""Tables of tables: [watch.fs], [channel.email]. Each inner one belongs to a plugin."""


class Loaded(NamedTuple):
    """Settings, and where each came from.

    Attributes:
        settings: what counts.
        path: the file, or None when there is none: everything has a default.
        project: the directory that relative paths are relative to.
        origins: `run.name` to the file, the variable or the option that set it; what is absent is a default.
    """

    settings: Settings
    path: Path | None
    project: Path
    origins: Mapping[str, str] = MappingProxyType({})

    @property
    def state_dir(self) -> Path:
        """The state directory, absolute."""
        return self.project / Path(self.settings.run.state_dir)


def find_file(system: System, wanted: Path | None = None) -> Path | None:
    """The settings file: the one named, $RESIL_CONFIG, resil.toml here or in a directory above, the user's own.

    Raise SettingsError if a file was named and is not there, or if what lies in its place cannot be read as one.
    """
    for source, named in (("--config", wanted), (CONFIG_VARIABLE, system.environ.get(CONFIG_VARIABLE))):
        if named:
            path = system.cwd / _home_expanded(str(named), system.host.home, source)
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
    """The settings file as it was found: where, and what was in it. No path: there is none."""

    path: Path | None = None
    content: bytes = b""


def find_source(system: System, wanted: Path | None = None) -> Source:
    """Find the settings file and read it: all that `load` does with a disk. Raise SettingsError if that fails."""
    path = find_file(system, wanted)
    return Source(path, _read(path)) if path is not None else Source()


def load(
    system: System,
    *,
    wanted: Path | None = None,
    overrides: Mapping[str, str] | None = None,
    source: Source | None = None,
) -> Loaded:
    """Read the settings. `overrides` are the command line's, `run.name` to a text; `source` is what was read already.

    Raise SettingsError if the file cannot be read or says something that nobody understands.
    """
    source = source or find_source(system, wanted)
    path = source.path
    tables: dict[str, dict[str, Any]] = {}
    origins: dict[str, str] = {}
    for name, table in (_parse(source.content, path) if path is not None else {}).items():
        if not isinstance(table, dict):
            raise _stray(name, path)
        tables[name] = {}
        for key, value in table.items():
            written = key if isinstance(value, dict) else _written(name, key)
            if written in tables[name]:
                raise SettingsError(f"{written!r} in [{name}] ({path}) is written twice", hint="with - and with _")
            tables[name][written] = value
            origins[f"{name}.{written}"] = str(path)
            if isinstance(value, dict) and name in _PLUGIN_TABLES:
                origins |= {f"{name}.{written}.{inner.replace('-', '_')}": str(path) for inner in value}
    for variable, value in system.environ.items():
        section, separator, key = variable.removeprefix("RESIL_").partition("__")
        if variable.startswith("RESIL_") and separator:
            section = section.lower()
            if section == "guard" and _JOB_VARIABLE in system.environ:
                continue  # those of the job that we are in: a submit from there may be one of another run
            # The names in [environment] are the training's own, and those have capitals.
            key = _written(section, key if section == "environment" else key.lower())
            inner, nested, inner_key = key.partition("__")
            if nested and section in _PLUGIN_TABLES:  # RESIL_WATCH__FS__WARN_PERCENT
                _inner_table(tables.setdefault(section, {}), section, inner, variable)[inner_key] = value
                origins[f"{section}.{inner}.{inner_key}"] = f"${variable}"
                continue
            tables.setdefault(section, {})[key] = _plain(value) if section == "sbatch" else value
            origins[f"{section}.{key}"] = f"${variable}"
    for dotted, value in (overrides or {}).items():
        section, _, key = dotted.partition(".")
        tables.setdefault(section, {})[key] = value
        origins[dotted] = "command line"
    project = path.parent if path is not None and path.name == FILE_NAME else system.cwd
    return Loaded(_build(tables, origins, path, system.host.home), path, project, origins)


def _is_there(path: Path) -> bool:
    """Return whether a settings file lies there. Raise SettingsError if something else does: it was meant as one."""
    try:
        path.lstat()
        if path.is_file():
            return True
    except (FileNotFoundError, NotADirectoryError, PermissionError):
        return False  # a directory above that we may not look into is nobody's project of ours
    except OSError as error:
        raise SettingsError(explain_os_error(error, "look at", path).message) from error
    raise SettingsError(f"{path} is not a regular file", hint="move it away, or name another: --config FILE")


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
    import tomllib  # 5 ms that nobody pays who has no resil.toml

    try:
        return tomllib.loads(raw.decode("utf-8-sig"))  # some editors put a mark of their own in front
    except UnicodeDecodeError as error:
        raise SettingsError(
            f"{path} is not UTF-8 text: {error.reason} at byte {error.start}", hint="save it as UTF-8"
        ) from error
    except (ValueError, RecursionError) as error:  # ValueError: broken TOML, or a number of a thousand digits
        raise SettingsError(f"{path} is not TOML: {error}", hint="texts need quotes; see https://toml.io") from error


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
            if table:  # `resil init` writes the heading, and nothing below it
                from resilience.settings.convert import convert_guard_table

                arguments[name] = convert_guard_table(table, where)
        elif name == _CRON:
            from resilience.settings.cron_settings import CronSettings

            arguments[name] = CronSettings(**convert_table(CronSettings, table, where))
        elif name in _OWNERS:
            arguments[name] = _OWNERS[name](**convert_table(_OWNERS[name], table, where))
        elif name in _PLUGIN_TABLES:
            for key in table:
                raise SettingsError(
                    f"{key!r} in {where(key)} belongs to a {name}, and which one is not said",
                    hint=f"write it below [{name}.NAME]",
                )
        else:
            source = next((origins[f"{name}.{key}"] for key in table), str(path))
            raise unknown_key(
                name, sorted({*_OWNERS, _GUARD, _CRON, *_FREE_TABLES, *_PLUGIN_TABLES}), f"the tables of {source}"
            )
    settings = _one_owner_policy(Settings(**arguments))
    state_dir = _state_dir(settings.run.state_dir, home, origins.get("run.state_dir", "default"))
    return replace(settings, run=replace(settings.run, state_dir=state_dir))


def _one_owner_policy(settings: Settings) -> Settings:
    """The batch shell and the guard obey the same people's switches, wherever that is written."""
    run = settings.run
    of_guard = settings.guard.switch_owners if settings.guard is not None else ""
    if of_guard and run.switch_owners and of_guard != run.switch_owners:
        raise SettingsError(
            f"switch_owners is {run.switch_owners!r} in [run] and {of_guard!r} in [guard]",
            hint="write it in [run] alone: the batch shell obeys it as well as the guard",
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
    """How a key is written: ours with `_`, sbatch's options with `-`, other people's as they are."""
    if section == "sbatch":
        return key.replace("_", "-")
    return key.replace("-", "_") if section in {*_OWNERS, _GUARD, _CRON} else key


def _plain(text: str) -> str | bool:
    """A flag of sbatch from the environment: `--exclusive=true` is not what is meant."""
    return {"true": True, "false": False}.get(text.lower(), text)


def _plain_values(name: str, table: Mapping[str, Any], where: Callable[[str], str]) -> dict[str, Any]:
    for key, value in table.items():
        if isinstance(value, dict):
            raise SettingsError(
                f"{key!r} in {where(key)} is a table of its own, and only plain values can stand there",
                hint="a dot in a key makes a table; put quotes around the key, or leave the dot out",
            )
        if not isinstance(value, str | int | float | bool):
            raise SettingsError(f"{key} in {where(key)} must be a text, a number, true or false")
    if name == "environment":  # variables are texts; Python's True is nobody's word for it
        return {key: str(value).lower() if isinstance(value, bool) else str(value) for key, value in table.items()}
    return dict(table)


def _stray(name: str, path: Path | None) -> SettingsError:
    if name in {*_OWNERS, _GUARD, _CRON, *_FREE_TABLES, *_PLUGIN_TABLES}:
        return SettingsError(f"{name!r} in {path} must be a table", hint=f"write [{name}] on a line of its own")
    home = next(iter(tables_with(name)), "sbatch")
    return SettingsError(f"{name!r} in {path} stands outside any table", hint=f"put it below [{home}]")


def _state_dir(text: str, home: Path, source: str) -> str:
    """The state directory with `~` filled in. A `$` is refused: a directory of that very name would be made instead."""
    if "$" in text and re.search(_VARIABLE, text):
        raise SettingsError(
            f"state_dir = {text!r} in [run] ({source}): variables are not filled in",
            hint='write the path out, or export RESIL_RUN__STATE_DIR="$SCRATCH/resil"',
        )
    if any(ord(character) < 32 or ord(character) == 127 for character in text):
        raise SettingsError(f"state_dir = {text!r} in [run] ({source}) holds a control character")
    return str(_home_expanded(text, home, f"state_dir in [run] ({source})")) if text.startswith("~") else text


def _home_expanded(text: str, home: Path, source: str) -> Path:
    first, *rest = Path(text).parts or ("",)
    if first == "~":
        return home.joinpath(*rest)
    try:
        return Path(text).expanduser()
    except RuntimeError:
        raise SettingsError(f"{source}: there is no user {first[1:]!r} on this machine", hint="write ~/...") from None
