"""Makes ranks slow: they work for a tenth of a second, then wait. Without a guard, by SIGSTOP and SIGCONT in turn."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from resilience.errors import UsageError
from resilience.inject import Plan
from resilience.inject.signals import UNGUARDED, ProcessFault, plan_by_guard, refuse_batch, stop_state
from resilience.inject.targets import TargetSettings, choose

MOST = 1000.0


@dataclass(frozen=True, slots=True, kw_only=True)
class SlowSettings(TargetSettings):
    """What is slow, and how slow.

    Attributes:
        factor: how many times as long everything takes.
    """

    factor: float = 2.0


def _plan(settings: SlowSettings, seen: Mapping[str, Any]) -> Plan:
    """Plan pauses by the guards; of programs without one on this host, by signals in turn."""
    refuse_batch("be slow", settings, "resil inject stop --batch --for 10s")
    if not 1 < settings.factor <= MOST:
        raise UsageError(f"--factor {settings.factor:g} must be more than 1 and at most {MOST:g}", hint="--factor 2")
    target = choose(settings, seen)
    if target.guarded:
        does = f"lets everything take {settings.factor:g} times as long"
        return plan_by_guard("be slow", settings, seen, does=does, undoes="the pauses end")
    state = stop_state(target, seen, trees=True)
    return Plan(
        target=target.words,
        does=f"sends SIGSTOP and SIGCONT in turn to {target.words} and the processes below, so that everything "
        f"takes {settings.factor:g} times as long",
        undoes=f"sends SIGCONT to {target.words} and the processes below",
        state={**state, "factor": settings.factor},
        notes=(f"{UNGUARDED}, so it is stopped and continued from outside",),
    )


FAULT = ProcessFault(
    summary="make a rank slow: everything takes so many times as long",
    Settings=SlowSettings,
    example="resil inject slow --rank 3 --factor 1.5 --for 10m",
    plan=_plan,
    length_s=60.0,
)
