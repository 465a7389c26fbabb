"""Finds plugins by file name: the name of the file is the name of the plugin, and the file exports one constant."""

from __future__ import annotations

import importlib
import importlib.machinery
import os
import sys
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn

from resilience.errors import UsageError
from resilience.messages import nearest, suggest

if TYPE_CHECKING:  # importlib.metadata takes 15 ms to import
    from importlib.metadata import EntryPoint

PLUGIN_PATH = "RESIL_PLUGINS"
"""Environment variable: directories (separated by `:`) with `<family>/<name>.py` files."""


PACKAGES = {
    "schedulers": ("resilience.schedulers",),
    "checks": ("resilience.watch.checks", "resilience.cron.checks"),
    "channels": ("resilience.alerts.channels",),
    "drivers": ("resilience.cron.drivers",),
    "node_checks": ("resilience.nodes.checks",),
    "faults": ("resilience.inject.faults",),
    "drills": ("resilience.drills.library",),
}
"""Packages of the built-in plugins of each family."""


_SINGULAR = {
    "schedulers": "scheduler",
    "checks": "watchdog",
    "channels": "kind of channel",
    "drivers": "backend of cron",
    "node_checks": "check of nodes",
    "faults": "fault",
    "drills": "drill",
}


class Family:
    """One kind of plugin.

    Sources, later ones override earlier ones: the modules of the built-in packages; entry points of the group
    `resil.<name>`; `<directory>/<name>/*.py` for each directory of $RESIL_PLUGINS. Names that start with an underscore
    are helpers, not plugins. A plugin that is not built in is checked against the protocol of its family when it is
    loaded; its error names the file, the line and the expectation, and concerns this plugin only.

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

    def missing_directories(self) -> UsageError | None:
        """Return an error about the directories of $RESIL_PLUGINS that are none: their plugins are missing."""
        missing = [str(directory) for directory in self.directories if not directory.is_dir()]
        if not missing:
            return None
        what = "is not a directory" if len(missing) == 1 else "are not directories"
        return UsageError(
            f"{', '.join(missing)} of ${PLUGIN_PATH} {what}: the watchdogs and channels there are missing",
            hint=f"correct {PLUGIN_PATH}: directories with checks/NAME.py, channels/NAME.py, ...",
        )

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
        if isinstance(source, str):
            return getattr(importlib.import_module(source), self.constant)
        where = str(source) if isinstance(source, Path) else source.value
        try:
            with exit_refused():
                found: Any = self._constant_of(self._import_file(source)) if isinstance(source, Path) else source.load()
            self._check_contract(found)
        except (Exception, SystemExit) as error:
            is_ours = isinstance(error, _ContractError)
            place = (error.place if isinstance(error, _ContractError) else _line_in(error, where)) or where
            failure = UsageError(
                f"the {_SINGULAR[self.name]} {name!r} cannot be loaded: {place}: "
                f"{'' if is_ours else type(error).__name__ + ': '}{error}",
                hint=getattr(error, "hint", "") or "correct the file; all other plugins keep working",
            )
            failure.__cause__ = error
            return failure
        return found

    def _constant_of(self, module: Any) -> Any:
        if hasattr(module, self.constant):
            return getattr(module, self.constant)
        near = nearest(self.constant, [name for name in vars(module) if name.isupper()])
        raise _ContractError(
            f"there is no {self.constant}", hint=f"did you mean {near}?" if near else f"export {self.constant} = ..."
        )

    def _check_contract(self, found: Any) -> None:
        """Raise _ContractError unless a plugin has the attributes and methods of its family's protocol."""
        protocol = getattr(importlib.import_module(PACKAGES[self.name][0]), self.constant.capitalize(), None)
        if protocol is None:
            return
        if hasattr(protocol, "__dataclass_fields__"):  # a value with functions in it, no object with methods
            if not isinstance(found, protocol):
                raise _ContractError(
                    f"{self.constant} = {found!r:.60} must be a {protocol.__name__}",
                    hint=f"{self.constant} = {protocol.__module__}.{protocol.__name__}(...)",
                )
            return
        is_class, owner = isinstance(found, type), found if isinstance(found, type) else type(found)
        if (
            self.name == "schedulers" and not is_class
        ):  # called with the doors to the machine, and returns the scheduler
            if not callable(found):
                raise _ContractError(
                    f"{self.constant} = {found!r:.60} must be a class", hint=f"{self.constant} = MyClass"
                )
            return
        if self.name != "schedulers" and is_class:
            raise _ContractError(
                f"{self.constant} is the class {found.__name__}, not an object of this class", found,
                hint=f"{self.constant} = {found.__name__}()",
            )  # fmt: skip
        if hasattr(owner, "__getattr__"):  # hands its methods on to another object
            return
        methods = {
            name: member for name, member in vars(protocol).items() if callable(member) and not name.startswith("_")
        }
        attributes = {} if is_class else protocol.__annotations__
        for name in (*attributes, *methods):
            if not hasattr(found, name):
                near = nearest(name, [other for other in dir(found) if other not in methods], cutoff=0.7)
                wanted = f"method {name}{_signature(methods[name])}" if name in methods else f"attribute {name}"
                raise _ContractError(
                    f"{owner.__name__} has no {wanted}", owner, near,
                    hint=f"rename {near} to {name}" if near else f"add {name} to {owner.__name__}",
                )  # fmt: skip
        for name, kind in attributes.items():
            if wrong := _mistyped(getattr(found, name), kind):
                raise _ContractError(f"{owner.__name__}.{name} {wrong}", owner, name)
        for name, method in methods.items():
            if wrong := _miscalled(getattr(found, name), method, is_bound=not is_class):
                raise _ContractError(
                    f"{owner.__name__}.{name} {wrong}", owner, name, hint=f"def {name}{_signature(method)}"
                )
        if "Settings" in attributes:
            field, why = _misfielded(found.Settings)
            if field:
                raise _ContractError(f"{found.Settings.__name__}.{field} {why}", found.Settings, field)
        argument = getattr(found, "argument", "") if self.name == "checks" else ""
        if argument and argument not in found.Settings.__dataclass_fields__:
            raise _ContractError(
                f"{owner.__name__}.argument = {argument!r} is no field of {found.Settings.__name__}", owner, "argument",
                hint=f"its fields are {', '.join(found.Settings.__dataclass_fields__)}",
            )  # fmt: skip

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


@contextmanager
def exit_refused() -> Iterator[None]:
    """Make os._exit() raise SystemExit, as sys.exit() does, while code of a plugin runs in this process.

    Without this, os._exit(0) in a plugin would end `resil watch` without a word and with the exit code of OK. A child
    that is forked meanwhile can exit. Code in C that calls exit() cannot be stopped.
    """
    leave, pid = os._exit, os.getpid()

    def refuse(status: int) -> NoReturn:
        if os.getpid() != pid:
            leave(status)
        raise SystemExit(f"it called os._exit({status})")

    os._exit = refuse
    try:
        yield
    finally:
        os._exit = leave


class _ContractError(Exception):
    """A plugin lacks something that its family requires.

    Attributes:
        place: `FILE:LINE`; empty if unknown.
        hint: how to correct it.
    """

    def __init__(self, text: str, owner: type | None = None, attribute: str = "", *, hint: str = "") -> None:
        super().__init__(text)
        self.place, self.hint = _place_of(owner, attribute) if owner is not None else "", hint


def _line_in(error: BaseException, where: str) -> str:
    """Return `FILE:LINE` of a plugin at which its import failed; empty if unknown."""
    if isinstance(error, SyntaxError) and error.filename == where:
        return f"{where}:{error.lineno}"
    line, trace = 0, error.__traceback__
    while trace is not None:
        if trace.tb_frame.f_code.co_filename == where:
            line = trace.tb_lineno
        trace = trace.tb_next
    return f"{where}:{line}" if line else ""


def _place_of(owner: type, attribute: str = "") -> str:
    """Return `FILE:LINE` at which a class, or an attribute in its body, is defined; empty if unknown."""
    import ast
    import inspect
    import textwrap

    try:
        lines, begin = inspect.getsourcelines(owner)
        file, tree = inspect.getfile(owner), ast.parse(textwrap.dedent("".join(lines)))
    except (OSError, TypeError, SyntaxError):
        return ""
    for node in ast.walk(tree):
        targets = node.targets if isinstance(node, ast.Assign) else [getattr(node, "target", None)]
        names = {getattr(target, "id", "") for target in targets} | {getattr(node, "name", "")}
        if attribute and attribute in names:
            return f"{file}:{begin + node.lineno - 1}"  # type: ignore[attr-defined]
    return f"{file}:{begin}"


_PLAIN: dict[str, tuple[Any, str]] = {
    "str": (str, "a text"),
    "int": (int, "a whole number"),
    "float": ((int, float), "a number"),
}


def _mistyped(value: Any, kind: str) -> str:
    """Return why an attribute has not the type that the protocol names; empty if it has."""
    if kind in _PLAIN:
        expected, words = _PLAIN[kind]
        return "" if isinstance(value, expected) else f"= {value!r:.60} must be {words}"
    if kind != "type":
        return "" if type(value).__name__ == kind else f"= {value!r:.60} must be a {kind} (of resilience.plugin)"
    from dataclasses import is_dataclass

    return "" if isinstance(value, type) and is_dataclass(value) else f"= {value!r:.60} must be a frozen dataclass"


def _misfielded(settings: Any) -> tuple[str, str]:
    """Return a field of a plugin's Settings that resil.toml cannot set, and why; empty if there is none."""
    from dataclasses import MISSING, fields
    from typing import get_origin, get_type_hints

    hints = get_type_hints(settings)
    for field in fields(settings):
        if field.default is field.default_factory is MISSING:
            return field.name, "needs a default, because a plugin works without configuration"
        if (get_origin(hints[field.name]) or hints[field.name]) in (list, set, frozenset):
            return field.name, "must be a tuple[str, ...]"
    return "", ""


def _miscalled(method: Any, expected: Any, *, is_bound: bool) -> str:
    """Return why a method cannot be called as the protocol says; empty if it can."""
    import inspect

    if not callable(method):
        return f"= {method!r:.60} must be a method"
    try:
        own = inspect.signature(method)
    except (TypeError, ValueError):  # built in
        return ""
    wanted = [*inspect.signature(expected).parameters.values()][is_bound:]
    given = [each for each in wanted if each.kind is not each.KEYWORD_ONLY]
    try:
        own.bind(*given, **{each.name: each for each in wanted if each.kind is each.KEYWORD_ONLY})
    except TypeError as error:
        return f"cannot be called with ({', '.join(each.name for each in wanted)}): {error}"
    return ""


def _signature(method: Any) -> str:
    """Return `(self, target, settings)`."""
    import inspect

    return f"({', '.join(inspect.signature(method).parameters)})"


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
