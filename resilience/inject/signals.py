"""Stops processes by signals and lets them go on, and asks guards for faults that only their own process can make."""

from __future__ import annotations

import json
import signal
import sys
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from resilience import layout
from resilience.base.processes import is_same, start_ticks
from resilience.errors import ResilError, UsageError
from resilience.inject import Plan, Scene, stopping
from resilience.inject.holding import start_holders
from resilience.inject.hosts import command
from resilience.inject.targets import Target, TargetSettings, choose, look_at_processes, signal_processes
from resilience.messages import plural
from resilience.runs.run_directory import RunDirectory
from resilience.system.files import read_regular

ANSWER_S = 20.0
"""How long a guard may take to see a record: it looks four times a second, a file server may take longer."""
POLL_S = 0.1
HOLDER_S = 5.0
"""How long the program that stopped processes may take to say that they go on; then they are signalled from here."""
LOOK_S = 1.0
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
        if "guarded" not in state:
            return stop_processes(state, scene)
        wait_for_guards(state, scene)
        return {}

    def tend(self, state: Mapping[str, Any], scene: Scene) -> float:
        """Raise ResilError if those who hold the processes are gone: they cannot let them go on any more."""
        if "client" in state and not is_same(*state["client"]):
            raise ResilError("what had stopped the processes has ended, as its job may have")
        return LOOK_S

    def undo(self, state: Mapping[str, Any], scene: Scene) -> None:
        """Let the processes go on; guards end a fault when its record has ended."""
        (forget_answers if "guarded" in state else continue_processes)(state, scene)


def base_state(target: Target, seen: Mapping[str, Any]) -> dict[str, Any]:
    """Return what the faults of processes record: which, where, and of which job. Pure."""
    return {"pids": target.pids, **{key: seen[key] for key in ("job", "srun_job", "attempt")}}


def stop_state(target: Target, seen: Mapping[str, Any], *, trees: bool = False) -> dict[str, Any]:
    """Return that of the faults that stop processes, which no other may stop meanwhile. Pure."""
    pids = target.trees if trees else target.pids
    alone = [f"process {pid} on {host}" for host, some in pids.items() for pid, _ in some]
    return {**base_state(target, seen), "pids": pids, "alone": alone}


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
    """Remove what guards, and those who stopped processes, have answered."""
    for name in (*state.get("guarded", ()), *state["pids"]):
        with suppress(OSError):
            _record(scene).with_name(f"{scene.id}.{name}").unlink()


def stop_processes(state: Mapping[str, Any], scene: Scene) -> dict[str, Any]:
    """Have a program on each node stop the processes, which lets them go on; return its client here.

    Raise ResilError if it does not start, or if the processes do not get the signal.
    """
    assert scene.until is not None
    pids = state["pids"]
    order = {"record": str(_record(scene)), "left_s": scene.until - time.time(), "pids": pids,
             "factor": state.get("factor", 0.0)}  # fmt: skip
    argv = [*command(state["srun_job"], list(pids)), sys.executable, "-m", stopping.MODULE, json.dumps(order)]
    client = start_holders([*argv, *(() if state["srun_job"] else pids)], len(pids)).pid
    return {"client": [client, start_ticks(client) or 0]}


def continue_processes(state: Mapping[str, Any], scene: Scene) -> None:
    """Let the processes go on: who stopped them sees it in the record, and says so; else they are signalled from here.

    Raise ResilError if a node does not answer although the attempt lives: a job that was requeued may have other nodes.
    """
    until = time.monotonic() + (HOLDER_S if "client" in state else 0.0)
    while not (have_answered := _have_answered(state, scene)) and time.monotonic() < until:
        time.sleep(POLL_S)
    if not have_answered:
        signal_processes(signal.SIGCONT, state, scene, is_undo=True)
    forget_answers(state, scene)


def _have_answered(state: Mapping[str, Any], scene: Scene) -> bool:
    with suppress(OSError):  # a run directory that cannot be read has no answers
        return {f"{scene.id}.{host}" for host in state["pids"]} <= {one.name for one in _record(scene).parent.iterdir()}
    return False


def _record(scene: Scene) -> Path:
    return scene.directory.path / layout.INJECTIONS / f"{scene.id}.json"
