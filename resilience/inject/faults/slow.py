"""Makes ranks slow: they work for a tenth of a second, then wait. Without a guard, by SIGSTOP and SIGCONT in turn."""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from resilience.errors import UsageError
from resilience.inject import Plan, Scene
from resilience.inject.signals import (
    UNGUARDED,
    base_state,
    continue_processes,
    forget_answers,
    plan_by_guard,
    refuse_batch,
    refuse_stopped,
    stop_processes,
    wait_for_guards,
)
from resilience.inject.targets import TargetSettings, choose, look_at_processes

SLICE_S = 0.1
MOST = 1000.0


@dataclass(frozen=True, slots=True, kw_only=True)
class SlowSettings(TargetSettings):
    """What is slow, and how slow.

    Attributes:
        factor: how many times as long everything takes.
    """

    factor: float = 2.0


class Slow:
    """Makes ranks slow."""

    summary = "make a rank slow: everything takes so many times as long"
    Settings = SlowSettings
    argument = ""
    example = "resil inject slow --rank 3 --factor 1.5 --for 10m"
    length_s = 60.0

    def look(self, settings: SlowSettings, scene: Scene) -> Mapping[str, Any]:
        """Find the processes."""
        return look_at_processes(settings, scene)

    def plan(self, settings: SlowSettings, seen: Mapping[str, Any]) -> Plan:
        """Plan pauses by the guards; of programs without one on this host, by signals in turn."""
        refuse_batch("be slow", settings, "resil inject stop --batch --for 10s")
        if not 1 < settings.factor <= MOST:
            raise UsageError(
                f"--factor {settings.factor:g} must be more than 1 and at most {MOST:g}", hint="--factor 2"
            )
        target = choose(settings, seen)
        if target.guarded:
            does = f"lets everything take {settings.factor:g} times as long"
            return plan_by_guard("be slow", settings, seen, does=does, undoes="the pauses end")
        if not seen["is_local"]:
            raise UsageError(
                f"{target.words} cannot be slow: {UNGUARDED}, and signals to another node take too long",
                hint="resil inject stop --for 10s",
            )
        state = base_state(target, seen, trees=True)
        refuse_stopped(state, seen)
        return Plan(
            target=target.words,
            does=f"sends SIGSTOP and SIGCONT in turn to {target.words} and the processes below, so that everything "
            f"takes {settings.factor:g} times as long",
            undoes=f"sends SIGCONT to {target.words} and the processes below",
            state={**state, "factor": settings.factor},
            notes=(f"{UNGUARDED}, so it is stopped and continued from outside",),
            job=seen["job"],
            attempt=seen["attempt"],
        )

    def start(self, state: Mapping[str, Any], scene: Scene) -> Mapping[str, Any]:
        """Have the guards begin; without them the keeper does it."""
        if "guarded" in state:
            wait_for_guards(state, scene)
        return {}

    def tend(self, state: Mapping[str, Any], scene: Scene) -> float:
        """Stop the processes for a moment."""
        if "guarded" in state:
            return 3600.0
        stop_processes(state, scene)
        time.sleep(SLICE_S * (float(state["factor"]) - 1))
        continue_processes(state, scene)
        return SLICE_S

    def undo(self, state: Mapping[str, Any], scene: Scene) -> None:
        """Let them go on."""
        if "guarded" in state:
            forget_answers(state, scene)
        else:
            continue_processes(state, scene)


FAULT = Slow()
