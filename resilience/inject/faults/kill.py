"""Ends processes of a training by a signal: a crash, an out-of-memory kill, a node that goes away."""

from __future__ import annotations

import signal
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from resilience.errors import UsageError
from resilience.inject import Plan, Scene
from resilience.inject.signals import base_state
from resilience.inject.targets import TargetSettings, check_sent, choose, look_at_processes, signal_processes

_STOPS = (signal.SIGSTOP, signal.SIGTSTP, signal.SIGTTIN, signal.SIGTTOU)
_HARMLESS = (signal.SIGCONT, signal.SIGCHLD, signal.SIGURG, signal.SIGWINCH)
"""Ignored by a process that does not ask for them (signal(7))."""


@dataclass(frozen=True, slots=True, kw_only=True)
class KillSettings(TargetSettings):
    """What is hit, and by which signal.

    Attributes:
        signal: the signal to send: KILL, SEGV, TERM, ...
    """

    signal: str = "KILL"


class Kill:
    """Ends processes by a signal."""

    summary = "end processes by a signal: a rank, the step, a node or the batch shell"
    Settings = KillSettings
    argument = ""
    example = "resil inject kill --rank 3; resil inject kill --node node7; resil inject kill --rank 0 --signal SEGV"
    length_s = 0.0

    def look(self, settings: KillSettings, scene: Scene) -> Mapping[str, Any]:
        """Find the processes."""
        return look_at_processes(settings, scene)

    def plan(self, settings: KillSettings, seen: Mapping[str, Any]) -> Plan:
        """Plan one signal to each process."""
        name = settings.signal.upper().removeprefix("SIG")
        number = next((int(one) for one in signal.Signals if one.name == f"SIG{name}"), 0)
        if not number:
            raise UsageError(f"there is no signal {settings.signal!r}", hint="for instance --signal SEGV")
        if number in _STOPS:
            raise UsageError(
                f"SIG{name} stops a process and does not end it", hint="for a while: resil inject stop --rank 0"
            )
        if number in _HARMLESS:
            raise UsageError(f"SIG{name} ends no process", hint="for instance --signal SEGV")
        target = choose(settings, seen)
        return Plan(
            target=target.words,
            does=f"sends SIG{name} to {target.words}",
            state={**base_state(target, seen), "signal": number},
        )

    def start(self, state: Mapping[str, Any], scene: Scene) -> Mapping[str, Any]:
        """Send the signals."""
        found = signal_processes(state["signal"], state, scene)
        check_sent(found, str(state["job"]))
        return {}

    def undo(self, state: Mapping[str, Any], scene: Scene) -> None:
        """Do nothing: what has ended stays so."""


FAULT = Kill()
