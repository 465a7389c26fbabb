"""Stops processes by signals and lets them go on, and asks guards for faults that only their own process can make."""

from __future__ import annotations

import json
import signal
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

from resilience import layout
from resilience.errors import ProbeError, ResilError, SchedulerError, UsageError
from resilience.inject import Plan, Scene
from resilience.inject.targets import Target, TargetSettings, check_sent, choose, look_at_processes, nodes_of
from resilience.job import JobId, Liveness
from resilience.messages import plural
from resilience.runs.run_directory import RunDirectory
from resilience.runs.run_files import read_attempts
from resilience.system.files import read_regular

ANSWER_S = 20.0
"""How long a guard may take to see a record: it looks four times a second, a file server may take longer."""
POLL_S = 0.1
UNGUARDED = "no guard sends heartbeats from it"


@dataclass
class ProcessFault:
    """A fault of processes that their guards make, or SIGSTOP: the protocol is resilience.inject.Fault."""

    summary: str
    Settings: type
    example: str
    plan: Callable[[Any, Mapping[str, Any]], Plan]
    length_s: float = 0.0
    argument: str = ""

    def look(self, settings: Any, scene: Scene) -> Mapping[str, Any]:
        """Find the processes."""
        return look_at_processes(settings, scene)

    def start(self, state: Mapping[str, Any], scene: Scene) -> Mapping[str, Any]:
        """Have the guards begin, or stop the processes."""
        (wait_for_guards if "guarded" in state else stop_processes)(state, scene)
        return {}

    def undo(self, state: Mapping[str, Any], scene: Scene) -> None:
        """Let the processes go on; guards end a fault when its record has ended."""
        (forget_answers if "guarded" in state else continue_processes)(state, scene)


def base_state(target: Target, seen: Mapping[str, Any], *, trees: bool = False) -> dict[str, Any]:
    """Return what the faults of processes record: which, where, and of which job. Pure."""
    return {"pids": target.trees if trees else target.pids, "job": seen["job"], "is_local": seen["is_local"],
            "start": seen["start"], "scheduler": seen["scheduler"], "attempt": seen["attempt"]}  # fmt: skip


def refuse_stopped(state: Mapping[str, Any], seen: Mapping[str, Any]) -> None:
    """Raise UsageError if another fault stops one of these processes: the end of the one would end the other. Pure."""
    stopped = seen.get("stopped", {})
    for pid, _ in (one for some in state["pids"].values() for one in some):
        if name := stopped.get(str(pid)):
            raise UsageError(
                f"process {pid} is stopped already by {name}", hint=f"end that first: resil inject undo {name}"
            )


def refuse_batch(name: str, settings: TargetSettings, instead: str) -> None:
    """Raise UsageError if the batch shell is meant, of a fault that it cannot have. Pure."""
    if settings.batch:
        raise UsageError(f"a batch shell has no guard, so it cannot {name}", hint=instead)


def plan_by_guard(
    name: str, settings: TargetSettings, seen: Mapping[str, Any], *, does: str, undoes: str, otherwise: str = ""
) -> Plan:
    """Return the plan of a fault that the guards of the ranks make; `otherwise`: what to try if one refuses.

    Raise UsageError if a rank has no guard. Pure.
    """
    target = choose(settings, seen)
    without = [rank for rank in target.ranks if rank not in target.guarded]
    if without or not target.ranks:
        which = f"rank {without[0]}" if without else target.words
        raise UsageError(
            f"{which} cannot {name}: {UNGUARDED}, and only the process itself can do it",
            hint="give the training a guard: docs/how-to; or end it from outside: resil inject kill",
        )
    return Plan(
        target=target.words, does=f"{does} in {target.words}, by its guard", undoes=undoes,
        state={**base_state(target, seen), "guarded": list(target.ranks), "otherwise": otherwise},
        job=seen["job"], attempt=seen["attempt"],
    )  # fmt: skip


def wait_for_guards(state: Mapping[str, Any], scene: Scene) -> None:
    """Return when all guards have taken a fault. Raise ResilError if one refuses, or does not answer."""
    waiting, until = set(state["guarded"]), time.monotonic() + ANSWER_S
    while waiting:
        for rank in sorted(waiting):
            answer = _answer(scene.directory, scene.id, rank)
            if answer is None:
                continue
            if answer.get("refused"):
                raise ResilError(f"rank {rank} refuses: {answer['refused']}", hint=state.get("otherwise", ""))
            waiting.discard(rank)
        if waiting and time.monotonic() > until:
            first = sorted(waiting)[0]
            raise ResilError(
                f"the guard of rank {first} has not seen it within {ANSWER_S:g} s"
                + (f", nor have {plural(len(waiting) - 1, 'other')}" if len(waiting) > 1 else ""),
                hint="does the rank run? was its job submitted with allow_inject? see: resil ranks, resil stacks",
                transient=True,
            )
        time.sleep(POLL_S)


def _answer(directory: RunDirectory, name: str, rank: int) -> dict[str, Any] | None:
    found = read_regular(directory.path / layout.INJECTIONS / f"{name}.{rank}")
    with suppress(ValueError, TypeError):
        answer = None if found is None else json.loads(found[0])
        return answer if isinstance(answer, dict) else None
    return None


def forget_answers(state: Mapping[str, Any], scene: Scene) -> None:
    """Remove what the guards have answered."""
    for rank in state.get("guarded", ()):
        with suppress(OSError):
            (scene.directory.path / layout.INJECTIONS / f"{scene.id}.{rank}").unlink()


def stop_processes(state: Mapping[str, Any], scene: Scene) -> None:
    """Send SIGSTOP. Raise ResilError if no process got it."""
    check_sent(nodes_of(state, scene).send(signal.SIGSTOP, state["pids"]), str(state["job"]))


def continue_processes(state: Mapping[str, Any], scene: Scene) -> None:
    """Send SIGCONT to those that are still there. Raise ResilError if a node does not answer although the attempt
    lives: a job that was requeued may have other nodes."""
    pids: Mapping[str, Sequence[Sequence[int]]] = state["pids"]
    try:
        nodes_of(state, scene).send(signal.SIGCONT, pids)
    except ProbeError:
        with suppress(SchedulerError):
            array, task = state["start"]
            presence = scene.project.scheduler(state["scheduler"]).presence(JobId(array, task))
            is_queued = presence.job is not None and not presence.job.state.may_have_processes
            if presence.liveness is Liveness.GONE or is_queued or _is_over(state, scene):
                return
        raise


def _is_over(state: Mapping[str, Any], scene: Scene) -> bool:
    """Return whether the attempt that was hit has ended, and its processes with it."""
    newest = next(iter(read_attempts(scene.directory, newest=1)), None)
    hit = int(state.get("attempt", 0))
    return newest is not None and (newest.number > hit or (newest.number == hit and newest.end is not None))
