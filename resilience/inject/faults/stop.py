"""Stops processes of a training by SIGSTOP, as a node does that freezes; SIGCONT lets them go on."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from resilience.inject import Plan, Scene
from resilience.inject.signals import base_state, continue_processes, refuse_stopped, stop_processes
from resilience.inject.targets import TargetSettings, choose, look_at_processes


class Stop:
    """Stops processes."""

    summary = "stop processes by SIGSTOP: a rank, the step, a node or the batch shell"
    Settings = TargetSettings
    argument = ""
    example = "resil inject stop --rank 3 --for 2m; resil inject stop --batch --for 30s; resil inject stop --node node7"
    length_s = 60.0

    def look(self, settings: TargetSettings, scene: Scene) -> Mapping[str, Any]:
        """Find the processes."""
        return look_at_processes(settings, scene)

    def plan(self, settings: TargetSettings, seen: Mapping[str, Any]) -> Plan:
        """Plan one SIGSTOP to each process."""
        target = choose(settings, seen)
        state = base_state(target, seen)
        refuse_stopped(state, seen)
        return Plan(
            target=target.words,
            does=f"sends SIGSTOP to {target.words}",
            undoes=f"sends SIGCONT to {target.words}",
            state=state,
            job=seen["job"],
            attempt=seen["attempt"],
        )

    def start(self, state: Mapping[str, Any], scene: Scene) -> Mapping[str, Any]:
        """Stop them."""
        stop_processes(state, scene)
        return {}

    def undo(self, state: Mapping[str, Any], scene: Scene) -> None:
        """Let them go on."""
        continue_processes(state, scene)


FAULT = Stop()
