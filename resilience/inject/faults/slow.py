"""Makes ranks slow: they work for a tenth of a second, then wait. Without a guard, by SIGSTOP and SIGCONT in turn."""

from __future__ import annotations

import signal
import time
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from resilience.errors import UsageError
from resilience.inject import Plan, Scene
from resilience.inject.signals import (
    UNGUARDED,
    ProcessFault,
    plan_by_guard,
    refuse_batch,
    stop_state,
)
from resilience.inject.targets import TargetSettings, check_sent, choose, signal_processes

SLICE_S = 0.1
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
    if seen["srun_job"]:
        raise UsageError(
            f"{target.words} cannot be slow: {UNGUARDED}, and signals to another node take too long",
            hint="resil inject stop --for 10s",
        )
    state = stop_state(target, seen, trees=True)
    return Plan(
        target=target.words,
        does=f"sends SIGSTOP and SIGCONT in turn to {target.words} and the processes below, so that everything "
        f"takes {settings.factor:g} times as long",
        undoes=f"sends SIGCONT to {target.words} and the processes below",
        state={**state, "factor": settings.factor},
        notes=(f"{UNGUARDED}, so it is stopped and continued from outside",),
    )


class Slow(ProcessFault):
    """Slow ranks; the keeper tends those without a guard."""

    def tend(self, state: Mapping[str, Any], scene: Scene) -> float:
        """Stop the processes for a moment."""
        if "guarded" in state:
            return 3600.0
        check_sent(signal_processes(signal.SIGSTOP, state, scene), str(state["job"]))
        time.sleep(SLICE_S * (float(state["factor"]) - 1))
        signal_processes(signal.SIGCONT, state, scene)
        return SLICE_S


FAULT = Slow(
    summary="make a rank slow: everything takes so many times as long",
    Settings=SlowSettings,
    example="resil inject slow --rank 3 --factor 1.5 --for 10m",
    plan=_plan,
    length_s=60.0,
)
