"""Lets ranks end by themselves with an exit code."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from resilience.errors import UsageError
from resilience.inject import Plan, Scene
from resilience.inject.signals import forget_answers, plan_by_guard, refuse_batch, wait_for_guards
from resilience.inject.targets import TargetSettings, look_at_processes


@dataclass(frozen=True, slots=True, kw_only=True)
class ExitSettings(TargetSettings):
    """What ends, and with which code.

    Attributes:
        code: the exit code.
    """

    code: int = 1


class Exit:
    """Lets ranks end by themselves."""

    summary = "let a rank end by itself with an exit code"
    Settings = ExitSettings
    argument = ""
    example = "resil inject exit --rank 3 --code 1"
    length_s = 0.0

    def look(self, settings: ExitSettings, scene: Scene) -> Mapping[str, Any]:
        """Find the processes."""
        return look_at_processes(settings, scene)

    def plan(self, settings: ExitSettings, seen: Mapping[str, Any]) -> Plan:
        """Plan it by the guards."""
        refuse_batch("exit by itself", settings, "resil inject kill --batch")
        if not 0 <= settings.code <= 255:
            raise UsageError(f"--code {settings.code} must be from 0 to 255", hint="--code 1")
        return plan_by_guard("exit by itself", settings, seen, does=f"raises SystemExit({settings.code})", undoes="")

    def start(self, state: Mapping[str, Any], scene: Scene) -> Mapping[str, Any]:
        """Have the guards do it."""
        wait_for_guards(state, scene)
        return {}

    def undo(self, state: Mapping[str, Any], scene: Scene) -> None:
        """Do nothing: what has ended stays so."""
        forget_answers(state, scene)


FAULT = Exit()
