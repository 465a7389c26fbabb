"""Lets ranks run out of memory: really, up to the limit of their job; or by an error as Python raises it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from resilience.errors import UsageError
from resilience.inject import Plan, Scene
from resilience.inject.signals import forget_answers, plan_by_guard, refuse_batch, wait_for_guards
from resilience.inject.targets import TargetSettings, look_at_processes

WAYS = {
    "limit": "fills memory until the kernel ends a process of the job",
    "error": "raises MemoryError",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class OomSettings(TargetSettings):
    """What runs out of memory, and how.

    Attributes:
        how: limit fills memory up to the job's limit, until the kernel ends a process; error raises MemoryError.
    """

    how: str = "limit"


class Oom:
    """Lets ranks run out of memory."""

    summary = "let a rank run out of memory"
    Settings = OomSettings
    argument = ""
    example = "resil inject oom --rank 3; resil inject oom --rank 3 --how error"
    length_s = 0.0

    def look(self, settings: OomSettings, scene: Scene) -> Mapping[str, Any]:
        """Find the processes."""
        return look_at_processes(settings, scene)

    def plan(self, settings: OomSettings, seen: Mapping[str, Any]) -> Plan:
        """Plan it by the guards."""
        refuse_batch("run out of memory", settings, "resil inject kill --batch")
        if settings.how not in WAYS:
            raise UsageError(f"--how {settings.how} is no way to run out of memory", hint="--how limit, --how error")
        return plan_by_guard(
            "run out of memory", settings, seen, does=WAYS[settings.how], undoes="",
            otherwise="an error instead: --how error; an end as by the kernel: resil inject kill --rank 0",
        )  # fmt: skip

    def start(self, state: Mapping[str, Any], scene: Scene) -> Mapping[str, Any]:
        """Have the guards do it."""
        wait_for_guards(state, scene)
        return {}

    def undo(self, state: Mapping[str, Any], scene: Scene) -> None:
        """Do nothing: what has ended stays so."""
        forget_answers(state, scene)


FAULT = Oom()
