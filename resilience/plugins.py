"""Finds plugins by the name of their file: the file's name is the plugin's name, and it exports one constant."""

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

if TYPE_CHECKING:  # importlib.metadata costs 15 ms, and only those pay who look for plugins
    from importlib.metadata import EntryPoint

PLUGIN_PATH = "RESIL_PLUGINS"
"""Environment variable: directories (separated by `:`) that hold `<family>/<name>.py` files of one's own."""


PACKAGES = {
    "schedulers": ("resilience.schedulers",),
    "checks": ("resilience.watch.checks", "resilience.cron.checks"),
    "channels": ("resilience.alerts.channels",),
    "drivers": ("resilience.cron.drivers",),
}
"""Where the plugins of each family are that resil brings along."""


class Family:
    """One kind of plugin.

    Found, in this order, later ones shadowing earlier: the modules of its packages; entry points of the group
    `resil.<name>`; `<directory>/<name>/*.py` for each directory of $RESIL_PLUGINS. Names that start with an underscore
    are helpers, not plugins. A plugin that cannot be imported is remembered with its exception, and raised only when
    somebody asks for it.

    Attributes:
        name: plural of the word, also the directory's name: `schedulers`.
        constant: what each file exports: `SCHEDULER`.
        directories: those of $RESIL_PLUGINS, unless others are given.
    """

    def __init__(self, name: str, constant: str, directories: tuple[Path, ...] | None = None) -> None:
        self.name, self.constant = name, constant
        told = os.environ.get(PLUGIN_PATH, "").split(":")
        self.directories = (
            tuple(Path(directory) for directory in told if directory) if directories is None else directories
        )

    @cached_property
    def _sources(self) -> dict[str, Path | str | EntryPoint]:
        sources: dict[str, Path | str | EntryPoint] = {}
        for package in PACKAGES[self.name]:
            for module in sorted(_modules(importlib.import_module(package).__path__)):
                if not module.startswith("_"):
                    sources[module] = f"{package}.{module}"
        if _may_be_offered(f"resil.{self.name}"):
            from importlib import metadata

            for entry in metadata.entry_points(group=f"resil.{self.name}"):
                sources[entry.name] = entry
        for directory in self.directories:
            for path in sorted((directory / self.name).glob("*.py")):
                if not path.name.startswith("_"):
                    sources[path.stem] = path
        return sources

    def names(self) -> tuple[str, ...]:
        """The names of all plugins, sorted; nothing is imported."""
        return tuple(sorted(self._sources))

    def load(self, name: str) -> Any:
        """Import a plugin and return its constant.

        Loaded once: a second call gives the same object, or the same refusal. Raise UsageError if there is none of
        that name, or if it cannot be imported, saying why.
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
        """The constant, or the UsageError that says why there is none."""
        source = self._sources.get(name)
        if source is None:
            return UsageError(f"no {self.name} plugin is called {name!r}", hint=suggest(name, self.names()))
        try:
            if isinstance(source, str):
                return getattr(importlib.import_module(source), self.constant)
            if isinstance(source, Path):
                return getattr(self._import_file(source), self.constant)
            return source.load()
        except (Exception, SystemExit) as error:
            where = source if isinstance(source, str | Path) else source.value
            refusal = UsageError(
                f"the {self.name} plugin {name!r} ({where}) cannot be loaded: {type(error).__name__}: {error}",
                hint=f"it must export {self.constant}",
            )
            refusal.__cause__ = error
            return refusal

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
    """The modules in a package's directories; pkgutil says the same, and costs as much as a watchdog."""
    for directory in directories:
        try:
            names = os.listdir(directory)  # noqa: PTH208 - names only
        except OSError:  # the package lies in an archive
            import pkgutil

            yield from (module.name for module in pkgutil.iter_modules([directory]) if not module.ispkg)
            continue
        yield from (name.partition(".")[0] for name in names if name.endswith(_SUFFIXES))


_SUFFIXES = (".py", ".pyc", ".so")


def _may_be_offered(group: str) -> bool:
    """Return whether some installed package may have entry points of a group.

    importlib.metadata knows for certain, and takes 20 ms to be imported; mostly a look into the files that it would
    read says no. Format: https://packaging.python.org/en/latest/specifications/entry-points/. What cannot be looked
    into that way (an archive, an importer of somebody's own) may have some.
    """
    wanted = f"[{group}]".encode()
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
                        if wanted in file.read().replace(b" ", b""):
                            return True
                except OSError:
                    continue
    return any(hasattr(finder, "find_distributions") for finder in sys.meta_path if finder not in _STANDARD_FINDERS)


_STANDARD_FINDERS = (
    importlib.machinery.BuiltinImporter,
    importlib.machinery.FrozenImporter,
    importlib.machinery.PathFinder,
)
