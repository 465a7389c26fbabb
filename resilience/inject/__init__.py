"""Faults that people inject into their own runs on purpose: the words, and the protocol of a fault.

Each file in faults/ exports one fault as FAULT. A fault looks, plans (pure), starts, and is undone, at any time later
and from any process, with nothing but its record (runs/injections.py). The keeper (keeper.py) undoes it after its time,
and when its injector is interrupted or killed.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cache
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

if TYPE_CHECKING:
    from resilience.plugins import Family
    from resilience.runs.project import Project
    from resilience.runs.run_directory import RunDirectory


class Scene(NamedTuple):
    """Where a fault is injected.

    Attributes:
        id: of the injection; empty before it has one, in `look`.
        until: when it will be undone, in seconds since the epoch; None for a fault of a moment, and in `look`.
    """

    project: Project
    directory: RunDirectory
    id: str = ""
    until: float | None = None


@dataclass(frozen=True, slots=True)
class Plan:
    """What a fault would do.

    Attributes:
        target: what it hits: `rank 3 of job 12 (process 4242 on node7)`.
        does: what it does to it, as a sentence: `sends SIGKILL to process 4242 on node7`.
        undoes: how that is undone, as a sentence; empty: it is over in a moment, and nothing remains to be undone.
        state: what `start` and `undo` need, as JSON values; it becomes the state of the record. Of two faults with the
            same text in the list `alone` in it (`process 4242 on node7`), the second is refused.
        notes: what else users should know, as sentences: what is not affected.
        is_moment: whether it is over in a moment, although other plans of this fault last.
    """

    target: str
    does: str
    undoes: str = ""
    state: Mapping[str, Any] = field(default_factory=dict)
    notes: tuple[str, ...] = ()
    is_moment: bool = False


class Fault(Protocol):
    """One fault: a file in faults/ (or in a plugin directory) that exports it as FAULT.

    `Settings` is a frozen dataclass with a default for every field: its fields are the options of `resil inject NAME`,
    and its docstring's Attributes are their help, as for watchdogs. A name with `_` is typed with `-`.

    Attributes:
        summary: one line for `resil inject --help`: `end processes by a signal`.
        Settings: the options.
        argument: the field of Settings that takes the first positional argument; empty: none.
        example: a command line for `--help`.
        length_s: how long the fault lasts without `--for`; 0 if it is over in a moment, and has no `--for`.

    Optional: `tend(state, scene)`, which the keeper calls while the fault is on; it does a part of the fault and
    returns after how many seconds to call it again. `choices`: what the first positional argument may be, for the
    completion of shells.
    """

    summary: str
    Settings: type
    argument: str
    example: str
    length_s: float

    def look(self, settings: Any, scene: Scene) -> Mapping[str, Any]:
        """Return what `plan` needs to know. Reads only. Raise ResilError if that cannot be found out."""
        ...

    def plan(self, settings: Any, seen: Mapping[str, Any]) -> Plan:
        """Return what to do. Pure. Raise UsageError, in words, for what makes no sense or has no target."""
        ...

    def start(self, state: Mapping[str, Any], scene: Scene) -> Mapping[str, Any]:
        """Do it. Return what else the record must hold to undo it. Raise ResilError if it fails; what it has done by
        then is undone by `undo`."""
        ...

    def undo(self, state: Mapping[str, Any], scene: Scene) -> None:
        """Undo it: from any process, any number of times, also if it was never started. Raise ResilError if that fails
        and should be tried again; what is gone meanwhile needs no undoing."""
        ...


@cache
def fault_plugins() -> Family:
    """Return the plugin family of faults."""
    from resilience.plugins import Family

    return Family("faults", "FAULT")


def typed(name: str) -> str:
    """Return the name of a fault as users type it: `disk-full` of disk_full.py."""
    return name.replace("_", "-")


def written(name: str) -> str:
    """Return the name of a fault's file, from the name that users type."""
    return name.replace("-", "_")
