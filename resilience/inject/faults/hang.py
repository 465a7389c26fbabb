"""Makes ranks hang: their main thread waits while heartbeats go on. A program without a guard is stopped instead."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from resilience.inject import Plan
from resilience.inject.signals import UNGUARDED, ProcessFault, plan_by_guard, refuse_batch, stop_state
from resilience.inject.targets import TargetSettings, choose


def _plan(settings: TargetSettings, seen: Mapping[str, Any]) -> Plan:
    """Plan a hang by the guards; of programs without one, a SIGSTOP to each with its children."""
    refuse_batch("hang", settings, "resil inject stop --batch")
    target = choose(settings, seen)
    if target.guarded:
        return plan_by_guard("hang", settings, seen, does="makes the main thread wait", undoes="the thread goes on")
    state = stop_state(target, seen, trees=True)
    return Plan(
        target=target.words,
        does=f"sends SIGSTOP to {target.words}, and to the processes below",
        undoes=f"sends SIGCONT to {target.words}, and to the processes below",
        state=state,
        notes=(f"{UNGUARDED}, so it is stopped from outside",),
    )


FAULT = ProcessFault(
    summary="make a rank hang: its main thread waits, its heartbeat goes on",
    Settings=TargetSettings,
    example="resil inject hang --rank 3 --for 5m; resil inject hang --step",
    plan=_plan,
    length_s=60.0,
)
