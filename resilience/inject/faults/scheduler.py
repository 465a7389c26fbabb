"""Makes the scheduler answer badly: it hangs, is down, writes garbage, lags behind, or loses a node.

The embedded scheduler: for every call to it. SLURM: for resil's own calls in this project, by commands that stand
before the real ones; the cluster is untouched. With --real, for administrators of a test cluster, its daemons.
"""

from __future__ import annotations

import json
import shlex
import shutil
import signal
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from resilience import layout
from resilience.base.processes import descendants, start_ticks
from resilience.errors import UsageError
from resilience.inject import Plan, Scene, slurm_command
from resilience.inject.daemons import end, find_daemons, start_again, steps_of
from resilience.inject.holding import send
from resilience.inject.signals import continue_processes, stop_processes
from resilience.quantities import format_duration
from resilience.runs.injected import set_injected, unset_injected
from resilience.runs.injections import allows_injection
from resilience.runs.run_directory import find_runs
from resilience.runs.run_jobs import scheduler_of
from resilience.runs.submissions import read_intents
from resilience.schedulers.local import LocalScheduler
from resilience.submission import split_comment
from resilience.system.files import make_directory, write_atomic
from resilience.system.ports import SystemClock

ALONE = {"alone": ["the scheduler"]}
MODES = ("hang", "down", "garbage", "lag", "lost-node")
SAYS = {
    "hang": "no call is answered in time",
    "down": "every call fails at once: the controller cannot be reached",
    "garbage": "every answer is garbage",
}
COMMANDS = ("sbatch", "squeue", "scontrol", "scancel", "sacct", "sinfo", "sdiag", "srun", "sacctmgr")


@dataclass(frozen=True, slots=True, kw_only=True)
class SchedulerSettings:
    """What is wrong with the scheduler.

    Attributes:
        fault: hang, down, garbage, lag (old answers) or lost-node.
        lag_s: with lag, how old the answers are.
        node: with lost-node, the node to lose.
        real: hit the daemons of the SLURM on this host, which needs their rights: for test clusters.
    """

    fault: str = ""
    lag_s: float = 60.0
    node: str = ""
    real: bool = False


class SchedulerAnswers:
    """Makes the scheduler answer badly."""

    summary = "make the scheduler hang, be down, write garbage, lag, or lose a node"
    Settings = SchedulerSettings
    argument = "fault"
    choices = MODES
    example = (
        "resil inject scheduler hang --for 5m; resil inject scheduler lag --lag 2m; resil inject scheduler down --real"
    )
    length_s = 60.0

    def look(self, settings: SchedulerSettings, scene: Scene) -> Mapping[str, Any]:
        """Find the scheduler of the run, whose jobs it has, and its processes as far as they are needed."""
        project = scene.project
        name = scheduler_of(read_intents(scene.directory)) or project.scheduler_name()
        seen: dict[str, Any] = {
            "scheduler": name, "state_dir": str(project.loaded.state_dir), "host": project.system.host.name,
        }  # fmt: skip
        if name == "local":
            seen |= _look_at_spool(scene)
        elif settings.real:
            which = "slurmd" if settings.fault == "lost-node" else "slurmctld"
            seen["conf"] = project.system.environ.get("SLURM_CONF", "")
            here, found = seen["host"].partition(".")[0], find_daemons(which, seen["conf"])
            seen["daemons"] = [[*one] for one in found if which == "slurmctld" or (one.node or here) == settings.node]
        elif name == "slurm":
            path = project.system.environ.get("PATH")
            seen["commands"] = [one for one in COMMANDS if shutil.which(one, path=path)]
        return seen

    def plan(self, settings: SchedulerSettings, seen: Mapping[str, Any]) -> Plan:
        """Plan it. Raise UsageError for what this scheduler cannot suffer."""
        if settings.fault not in MODES:
            raise UsageError(f"{settings.fault!r} is no fault of a scheduler", hint=f"one of {', '.join(MODES)}")
        if settings.node and settings.fault != "lost-node":
            raise UsageError("--node is for lost-node", hint="omit it")
        says = SAYS.get(settings.fault, f"answers are those of {format_duration(settings.lag_s)} ago")
        if seen["scheduler"] == "local":
            return _plan_local(settings, seen, says)
        if seen["scheduler"] != "slurm":
            raise UsageError(f"the scheduler {seen['scheduler']} cannot be broken", hint="only slurm and local")
        return _plan_daemons(settings, seen) if settings.real else _plan_commands(settings, seen, says)

    def start(self, state: Mapping[str, Any], scene: Scene) -> Mapping[str, Any]:
        """Do it."""
        way = state["way"]
        if way == "spool":
            self.tend(state, scene)
            assert scene.until is not None
            embedded = _embedded(scene, state["spool"])
            embedded.begin_fault(state["mode"], until=scene.until, lag_s=state["lag_s"], name=scene.id)
        elif way == "commands":
            _write_commands(state, scene)
        elif way == "kill":
            for pid, ticks in state["pids"]:
                below = [(one, start_ticks(one) or 0) for one in descendants(pid)]
                steps = steps_of(state["node"], str(state["conf"])) if state.get("node") else []
                send(signal.SIGKILL, [(pid, ticks), *below, *steps])
        elif way == "stop":
            return stop_processes(state, scene)
        elif way == "end":
            end(state["pids"])
        return {}

    def tend(self, state: Mapping[str, Any], scene: Scene) -> float:
        """Keep copies of the spool, for old answers."""
        if state["way"] != "spool" or state["mode"] != "lag":
            return 3600.0
        _embedded(scene, state["spool"]).keep_answers()
        return max(1.0, float(state["lag_s"]) / 30)

    def undo(self, state: Mapping[str, Any], scene: Scene) -> None:
        """Take it back; daemons go on, or are started again."""
        way = state["way"]
        if way == "spool":
            _embedded(scene, state["spool"]).end_fault(scene.id)
        elif way == "commands":
            unset_injected(Path(state["state_dir"]), "commands", scene.id)
            shutil.rmtree(_bin(scene), ignore_errors=True)
        elif way == "stop":
            continue_processes(state, scene)
        elif way in ("end", "kill"):
            for record in state.get("daemons", ()):
                start_again(record)


def _embedded(scene: Scene, spool: str = "") -> LocalScheduler:
    """Return the embedded scheduler, of this spool if one is given."""
    system = scene.project.system
    environ = {**system.environ, "RESIL_LOCAL_SPOOL": spool} if spool else system.environ
    return LocalScheduler(clock=SystemClock(), runner=system.runner, environ=environ)


def _look_at_spool(scene: Scene) -> dict[str, Any]:
    """Return the embedded scheduler's spool, jobs of others in it, and the watchers of the run's own jobs."""
    embedded = _embedded(scene)
    allowed = {one.run for one in find_runs(scene.project.loaded.state_dir) if allows_injection(one)}
    others, watchers = set[str](), list[list[int]]()
    for job in embedded.jobs():
        run, _ = split_comment(job.comment) or ("", "")
        if run not in allowed and job.state.is_alive:
            others.add(str(job.id.whole))
        if run == scene.directory.run and job.state.may_have_processes:
            watchers += [[pid, ticks, job.raw_id] for pid, ticks in embedded.watchers(job.id)]
    return {"spool": str(embedded.spool), "others": sorted(others), "watchers": watchers}


def _plan_local(settings: SchedulerSettings, seen: Mapping[str, Any], says: str) -> Plan:
    if settings.real:
        raise UsageError("--real is for SLURM: the embedded scheduler has no other", hint="omit it")
    if seen["others"]:
        raise UsageError(
            f"the embedded scheduler also has jobs that do not allow faults: {', '.join(seen['others'][:8])}",
            hint="give this project a scheduler of its own: export RESIL_LOCAL_SPOOL=DIRECTORY, and submit again",
        )
    if settings.fault == "lost-node":
        if not seen["watchers"]:
            raise UsageError("the run has no running job, so no node can be lost", hint="see: resil status")
        if settings.node and settings.node.partition(".")[0] != seen["host"].partition(".")[0]:
            raise UsageError(
                f"{settings.node} is no node of the embedded scheduler", hint=f"its only one: --node {seen['host']}"
            )
        jobs = ", ".join(str(raw) for _, _, raw in seen["watchers"])
        return Plan(
            target=f"job {jobs} on {seen['host']}",
            does=f"ends job {jobs} with all its processes at once, as the loss of its node does",
            notes=("the scheduler requeues the job, or ends it with NODE_FAIL",),
            is_moment=True,
            state={"way": "kill", "pids": [[pid, ticks] for pid, ticks, _ in seen["watchers"]]},
        )
    return Plan(
        target=f"the embedded scheduler in {seen['spool']} ({says})",
        does=f"{says}, for resil and for squeue, sbatch and others in jobs",
        undoes="answers are right again",
        state={**ALONE, "way": "spool", "mode": settings.fault, "lag_s": settings.lag_s, "spool": seen["spool"]},
        notes=("jobs go on, start and end meanwhile",),
    )


def _plan_commands(settings: SchedulerSettings, seen: Mapping[str, Any], says: str) -> Plan:
    if settings.fault == "lost-node":
        raise UsageError(
            "a node of SLURM is only lost really",
            hint="on that node, as its administrator: --real --node NAME; else: resil inject kill --node NAME",
        )
    if not seen["commands"]:
        raise UsageError("no command of SLURM is on PATH", hint="load SLURM's module")
    return Plan(
        target=f"resil's own calls of SLURM in this project ({says})",
        does=f"{says}, for resil's own calls of {', '.join(seen['commands'])} in this project",
        undoes="resil calls the real commands again",
        state={**ALONE, "way": "commands", "mode": settings.fault, "lag_s": settings.lag_s,
               "commands": seen["commands"], "state_dir": seen["state_dir"]},
        notes=("the cluster, your own commands and those in jobs are untouched",),
    )  # fmt: skip


def _plan_daemons(settings: SchedulerSettings, seen: Mapping[str, Any]) -> Plan:
    found = seen["daemons"]
    which = "slurmd" if settings.fault == "lost-node" else "slurmctld"
    if settings.fault == "lost-node" and not settings.node:
        raise UsageError("which node is to be lost?", hint="--node NAME")
    if settings.fault in ("garbage", "lag"):
        raise UsageError(f"--real knows no {settings.fault}", hint="without --real resil's own calls get such answers")
    if not found:
        of = f" of node {settings.node}" if settings.node else ""
        raise UsageError(
            f"no {which}{of} on {seen['host']} that you may signal",
            hint="run it there, as root or as SlurmUser; without --real only resil's own calls are hit",
        )
    names = ", ".join(str(one[0]) for one in found)
    pids = [[one[0], one[1]] for one in found]
    target = f"{which} on {seen['host']} (process {names})"
    if settings.fault == "hang":
        return Plan(target=target, does=f"sends SIGSTOP to {target}", undoes=f"sends SIGCONT to {target}",
                    state={**ALONE, "way": "stop", "pids": {seen["host"]: pids}, "srun_job": ""})  # fmt: skip
    command = " ".join(map(shlex.quote, found[0][4]))
    if settings.fault == "down":
        return Plan(target=target, does=f"ends {target}", undoes=f"starts it again: {command}",
                    state={**ALONE, "way": "end", "pids": pids, "daemons": found})  # fmt: skip
    return Plan(
        target=f"node {settings.node}: {target}",
        does=f"ends {target} and all jobs there by SIGKILL",
        undoes=f"starts it again: {command}",
        state={"way": "kill", "pids": pids, "daemons": found, "node": settings.node, "conf": seen["conf"]},
        notes=("SLURM takes the node for down after SlurmdTimeout, often 5 min; before, only its processes end",),
    )


def _bin(scene: Scene) -> Path:
    return scene.directory.path / layout.INJECTIONS / f"{scene.id}.bin"


def _write_commands(state: Mapping[str, Any], scene: Scene) -> None:
    """Write the commands that stand before SLURM's, and have resil find them."""
    directory = _bin(scene)
    make_directory(directory, mode=0o700)
    order = {"mode": state["mode"], "until": scene.until, "lag_s": state["lag_s"], "bin": str(directory)}
    write_atomic(directory / "order.json", json.dumps(order))
    program = Path(slurm_command.__file__)
    for name in state["commands"]:
        words = [sys.executable, "-IS", str(program), str(directory / "order.json"), name]
        write_atomic(directory / name, f'#!/bin/sh\nexec {shlex.join(words)} "$@"\n', mode=0o700)
    change = {"id": scene.id, "bin": str(directory), "until": scene.until}
    set_injected(Path(state["state_dir"]), "commands", change)


FAULT = SchedulerAnswers()
