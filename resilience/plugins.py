"""Finds plugins by file name: the name of the file is the name of the plugin, and the file exports one constant."""

from __future__ import annotations

import importlib
import importlib.machinery
import os
import sys
from collections.abc import Iterable, Iterator
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

from resilience.errors import UsageError
from resilience.messages import suggest

if TYPE_CHECKING:  # importlib.metadata takes 15 ms to import
    from importlib.metadata import EntryPoint

PLUGIN_PATH = "RESIL_PLUGINS"
"""Environment variable: directories (separated by `:`) with `<family>/<name>.py` files."""


PACKAGES = {
    "schedulers": ("resilience.schedulers",),
    "checks": ("resilience.watch.checks", "resilience.cron.checks"),
    "channels": ("resilience.alerts.channels",),
    "drivers": ("resilience.cron.drivers",),
}
"""Packages of the built-in plugins of each family."""


_SINGULAR = {
    "schedulers": "scheduler",
    "checks": "watchdog",
    "channels": "kind of channel",
    "drivers": "backend of cron",
}


class Family:
    """One kind of plugin.

    Sources, later ones override earlier ones: the modules of the built-in packages; entry points of the group
    `resil.<name>`; `<directory>/<name>/*.py` for each directory of $RESIL_PLUGINS. Names that start with an underscore
    are helpers, not plugins. The error of a plugin that cannot be imported is raised only when the plugin is loaded.

    Attributes:
        name: name of the family in the plural, also the name of the directory: `schedulers`.
        constant: the constant that each file exports: `SCHEDULER`.
        directories: plugin directories. Default: those of $RESIL_PLUGINS.
    """

    def __init__(self, name: str, constant: str, directories: tuple[Path, ...] | None = None) -> None:
        self.name, self.constant = name, constant
        listed = os.environ.get(PLUGIN_PATH, "").split(":")
        self.directories = (
            tuple(Path(directory) for directory in listed if directory) if directories is None else directories
        )

    @cached_property
    def _sources(self) -> dict[str, Path | str | EntryPoint]:
        sources: dict[str, Path | str | EntryPoint] = {}
        for package in PACKAGES[self.name]:
            for module in sorted(_modules(importlib.import_module(package).__path__)):
                if not module.startswith("_"):
                    sources[module] = f"{package}.{module}"
        if _may_have_entry_points(f"resil.{self.name}"):
            from importlib import metadata

            for entry in metadata.entry_points(group=f"resil.{self.name}"):
                sources[entry.name] = entry
        for directory in self.directories:
            for path in sorted((directory / self.name).glob("*.py")):
                if not path.name.startswith("_"):
                    sources[path.stem] = path
        return sources

    def names(self) -> tuple[str, ...]:
        """Return the names of all plugins, sorted, without importing them."""
        return tuple(sorted(self._sources))

    def load(self, name: str) -> Any:
        """Import a plugin and return its constant.

        A plugin is loaded once: later calls return the same object, or raise the same error. Raise UsageError if there
        is no plugin of this name, or if the import fails.
        """
        if name not in self._loaded:
            self._loaded[name] = self._load(name)
        found = self._loaded[name]
        if isinstance(found, UsageError):
            raise found
        return found

    @cached_property
    def _loaded(self) -> dict[str, Any]:
        return {}

    def _load(self, name: str) -> Any:
        """Return the plugin's constant, or the UsageError that explains the failure."""
        source = self._sources.get(name)
        if source is None:
            return UsageError(f"there is no {_SINGULAR[self.name]} {name!r}", hint=suggest(name, self.names()))
        try:
            if isinstance(source, str):
                return getattr(importlib.import_module(source), self.constant)
            if isinstance(source, Path):
                return getattr(self._import_file(source), self.constant)
            return source.load()
        except (Exception, SystemExit) as error:
            where = source if isinstance(source, str | Path) else source.value
            failure = UsageError(
                f"the {self.name} plugin {name!r} ({where}) cannot be loaded: {type(error).__name__}: {error}",
                hint=f"it must export {self.constant}",
            )
            failure.__cause__ = error
            return failure

    def _import_file(self, path: Path) -> Any:
        import importlib.util

        qualified = f"resil_plugins.{self.name}.{path.stem}"
        spec = importlib.util.spec_from_file_location(qualified, path)
        if spec is None or spec.loader is None:
            raise ImportError(f"cannot import {path}")
        module = importlib.util.module_from_spec(spec)
        sys.modules[qualified] = module
        try:
            spec.loader.exec_module(module)
        except BaseException:
            del sys.modules[qualified]
            raise
        return module


def _modules(directories: Iterable[str]) -> Iterator[str]:
    """Yield the names of the modules in a package's directories. pkgutil does the same, but is slow to import."""
    for directory in directories:
        try:
            names = os.listdir(directory)  # noqa: PTH208 - names only
        except OSError:  # the package is in an archive
            import pkgutil

            yield from (module.name for module in pkgutil.iter_modules([directory]) if not module.ispkg)
            continue
        yield from (name.partition(".")[0] for name in names if name.endswith(_SUFFIXES))


_SUFFIXES = (".py", ".pyc", ".so")


def _may_have_entry_points(group: str) -> bool:
    """Return whether an installed package may have entry points of a group.

    A search of the entry point files avoids the import of importlib.metadata (20 ms) in most cases. Format:
    https://packaging.python.org/en/latest/specifications/entry-points/. Return True for locations that cannot be
    searched this way (an archive, a custom importer).
    """
    heading = f"[{group}]".encode()
    for directory in sys.path:
        try:
            names = os.listdir(directory or ".")  # noqa: PTH208 - names only
        except FileNotFoundError:
            continue
        except OSError:
            return True
        for name in names:
            if name.endswith((".dist-info", ".egg-info")):
                try:
                    with open(f"{directory or '.'}/{name}/entry_points.txt", "rb") as file:
                        if heading in file.read().replace(b" ", b""):
                            return True
                except OSError:
                    continue
    return any(hasattr(finder, "find_distributions") for finder in sys.meta_path if finder not in _STANDARD_FINDERS)


_STANDARD_FINDERS = (
    importlib.machinery.BuiltinImporter,
    importlib.machinery.FrozenImporter,
    importlib.machinery.PathFinder,
)
