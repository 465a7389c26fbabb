"""Makes ranks leak memory, which their guards hold until the fault is undone."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from resilience.inject import Plan, Scene
from resilience.inject.signals import forget_answers, plan_by_guard, refuse_batch, wait_for_guards
from resilience.inject.targets import TargetSettings, look_at_processes
from resilience.quantities import format_bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class LeakSettings(TargetSettings):
    """What leaks, and how much.

    Attributes:
        rate_bytes: how much memory it takes in each second.
        most_bytes: how much it takes at most; a tenth of the host's memory is left free in any case.
    """

    rate_bytes: float = 16 * 2**20
    most_bytes: float = 2**30


class Leak:
    """Makes ranks leak memory."""

    summary = "make a rank leak memory; it is freed at the end"
    Settings = LeakSettings
    argument = ""
    example = "resil inject leak --rank 0 --rate 100MiB --most 20GiB --for 5m"
    length_s = 60.0

    def look(self, settings: LeakSettings, scene: Scene) -> Mapping[str, Any]:
        """Find the processes."""
        return look_at_processes(settings, scene)

    def plan(self, settings: LeakSettings, seen: Mapping[str, Any]) -> Plan:
        """Plan a leak by the guards."""
        refuse_batch("leak", settings, "resil inject leak --rank 0")
        rate, most = format_bytes(settings.rate_bytes), format_bytes(settings.most_bytes)
        return plan_by_guard(
            "leak", settings, seen, does=f"takes {rate} of memory in each second, {most} at most", undoes="it is freed"
        )

    def start(self, state: Mapping[str, Any], scene: Scene) -> Mapping[str, Any]:
        """Have the guards begin."""
        wait_for_guards(state, scene)
        return {}

    def undo(self, state: Mapping[str, Any], scene: Scene) -> None:
        """Do nothing: the guards free it when the record has ended."""
        forget_answers(state, scene)


FAULT = Leak()
