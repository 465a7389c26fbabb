"""One line on standard error when alerts could not be delivered for good: the next command says so, whatever it is."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from resilience.runs.project import Project

DEADLINE_S = 0.5
"""A state directory that does not answer keeps no command up that would not have touched it."""


def warn_of_dead_letters(project: Project, *, apart: bool = True) -> None:
    """Say that there are dead letters, if there are. One listing of a folder, and never an error.

    `apart` looks in a child with a deadline: for commands that do not touch the state directory otherwise.
    """
    if "_RESIL_COMPLETE" in os.environ:  # a shell asks what to complete
        return
    try:
        count = _in_time(_counter(project)) if apart else _counter(project)()
    except Exception:
        return
    if count:
        these = "1 alert that its channel" if count == 1 else f"{count} alerts that their channels"
        print(f"resil: there {'is' if count == 1 else 'are'} {these} will never take: see resil alert", file=sys.stderr)


def _counter(project: Project) -> Callable[[], int]:
    path = project.loaded.state_dir / ".alerts"

    def count() -> int:
        if not os.path.isdir(path):  # noqa: PTH112 - nobody was ever alerted from here, and most runs end there
            return 0
        from resilience.system.spare_folder import spare_place

        names: set[str] = set()
        for folder in (path / "dead", spare_place(project.world, path) / "dead"):
            try:
                names.update(name for name in os.listdir(folder) if not name.startswith("."))  # noqa: PTH208
            except OSError:
                continue
        return len(names)

    return count


def _in_time(count: Callable[[], int]) -> int:
    from resilience.system.child import run_apart

    ((_, answer),) = run_apart({"dead letters": (count, DEADLINE_S)})
    return answer.value if isinstance(answer.value, int) else 0
