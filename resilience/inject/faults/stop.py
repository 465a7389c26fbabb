"""Stops processes of a training by SIGSTOP, as a node does that freezes; SIGCONT lets them go on."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from resilience.inject import Plan
from resilience.inject.signals import ProcessFault, stop_state
from resilience.inject.targets import TargetSettings, choose


def _plan(settings: TargetSettings, seen: Mapping[str, Any]) -> Plan:
    """Plan one SIGSTOP to each process."""
    target = choose(settings, seen)
    state = stop_state(target, seen)
    return Plan(
        target=target.words,
        does=f"sends SIGSTOP to {target.words}",
        undoes=f"sends SIGCONT to {target.words}",
        state=state,
    )


FAULT = ProcessFault(
    summary="stop processes by SIGSTOP: a rank, the step, a node or the batch shell",
    Settings=TargetSettings,
    example="resil inject stop --rank 3 --for 2m; resil inject stop --batch --for 30s; resil inject stop --node node7",
    plan=_plan,
    length_s=60.0,
)
