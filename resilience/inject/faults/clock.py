"""Shifts the clock that resil's own processes of a project see, as on a host whose clock is wrong."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from resilience.errors import UsageError
from resilience.inject import Plan, Scene
from resilience.quantities import format_duration
from resilience.runs.injected import set_injected, unset_injected


@dataclass(frozen=True, slots=True, kw_only=True)
class ClockSettings:
    """How the clock is wrong.

    Attributes:
        direction: forward or back.
        by_s: by how much.
    """

    direction: str = ""
    by_s: float = 3600.0


class ShiftClock:
    """Shifts the clock."""

    summary = "set the clock that resil sees forward or back"
    Settings = ClockSettings
    argument = "direction"
    choices = ("forward", "back")
    example = "resil inject clock forward --by 2h --for 10m; resil inject clock back --by 10m"
    length_s = 60.0

    def look(self, settings: ClockSettings, scene: Scene) -> Mapping[str, Any]:
        """Find the state directory."""
        state_dir = scene.project.loaded.state_dir
        return {"state_dir": str(state_dir)}

    def plan(self, settings: ClockSettings, seen: Mapping[str, Any]) -> Plan:
        """Plan the shift."""
        if settings.direction not in self.choices:
            raise UsageError(f"{settings.direction!r} is no direction of a clock", hint="forward or back")
        if not settings.by_s:
            raise UsageError("a clock is shifted by some time", hint="--by 1h")
        by = f"{format_duration(settings.by_s)} {'fast' if settings.direction == 'forward' else 'slow'}"
        return Plan(
            target=f"the clock that resil's commands and watchdogs of this project see ({by})",
            does=f"the clock is {by}",
            undoes="the clock is right again",
            state={
                "alone": ["the clock"],
                "shift_s": settings.by_s * (1 if settings.direction == "forward" else -1),
                "state_dir": seen["state_dir"],
            },
            notes=(
                "not shifted: the host, the scheduler, batch shells, trainings and their guards, the times of files, "
                "processes that run already",
            ),
        )

    def start(self, state: Mapping[str, Any], scene: Scene) -> Mapping[str, Any]:
        """Shift it for processes that start from now on."""
        change = {"id": scene.id, "shift_s": state["shift_s"], "until": scene.until}
        set_injected(Path(state["state_dir"]), "clock", change)
        return {}

    def undo(self, state: Mapping[str, Any], scene: Scene) -> None:
        """Set it right."""
        unset_injected(Path(state["state_dir"]), "clock", scene.id)


FAULT = ShiftClock()
