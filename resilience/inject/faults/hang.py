"""Makes ranks hang: their main thread waits while heartbeats go on. A program without a guard is stopped instead."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

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


class Hang:
    """Makes ranks hang."""

    summary = "make a rank hang: its main thread waits, its heartbeat goes on"
    Settings = TargetSettings
    argument = ""
    example = "resil inject hang --rank 3 --for 5m; resil inject hang --step"
    length_s = 60.0

    def look(self, settings: TargetSettings, scene: Scene) -> Mapping[str, Any]:
        """Find the processes."""
        return look_at_processes(settings, scene)

    def plan(self, settings: TargetSettings, seen: Mapping[str, Any]) -> Plan:
        """Plan a hang by the guards; of programs without one, a SIGSTOP to each with its children."""
        refuse_batch("hang", settings, "resil inject stop --batch")
        target = choose(settings, seen)
        if target.guarded:
            return plan_by_guard("hang", settings, seen, does="makes the main thread wait", undoes="the thread goes on")
        state = base_state(target, seen, trees=True)
        refuse_stopped(state, seen)
        return Plan(
            target=target.words,
            does=f"sends SIGSTOP to {target.words}, and to the processes below",
            undoes=f"sends SIGCONT to {target.words}, and to the processes below",
            state=state,
            notes=(f"{UNGUARDED}, so it is stopped from outside",),
            job=seen["job"],
            attempt=seen["attempt"],
        )

    def start(self, state: Mapping[str, Any], scene: Scene) -> Mapping[str, Any]:
        """Make them hang."""
        if "guarded" in state:
            wait_for_guards(state, scene)
        else:
            stop_processes(state, scene)
        return {}

    def undo(self, state: Mapping[str, Any], scene: Scene) -> None:
        """Let them go on; guards do so when the record has ended."""
        if "guarded" in state:
            forget_answers(state, scene)
        else:
            continue_processes(state, scene)


FAULT = Hang()
