"""What the faults of files have in common: where they look, what they plan, and how they begin and end."""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from resilience.errors import UsageError
from resilience.hostlist import expand
from resilience.inject import Plan, Scene
from resilience.inject.files import choice, holder
from resilience.inject.files.behaviour import Behaviour
from resilience.inject.files.place import Facts, Hosts
from resilience.inject.holding import start_holders
from resilience.job import JobId
from resilience.records import from_record
from resilience.runs.run_files import read_attempts
from resilience.runs.run_jobs import scheduler_of
from resilience.runs.run_logs import start_of_attempt
from resilience.runs.submissions import read_intents

FOLDER = "preload"
"""In the folder of injections: the library, the control file `now`, and `attempt-N` of an attempt that has it."""
LENGTH_S = 60.0


@dataclass(frozen=True, slots=True, kw_only=True)
class FileSettings:
    """Which files are hit.

    Attributes:
        directory: the directory that is hit, with everything below it; the run's checkpoints without it.
        by: the means: fill, mount or preload; the first that works without it.
    """

    directory: str = ""
    by: str = ""


@dataclass
class FileFault:
    """A fault of a directory: the protocol is resilience.inject.Fault.

    Attributes:
        behaviour: makes the behaviour from settings; raises UsageError for those without sense.
    """

    summary: str
    Settings: type
    example: str
    behaviour: Callable[[Any], Behaviour]
    argument: str = ""
    length_s: float = LENGTH_S

    def look(self, settings: Any, scene: Scene) -> Mapping[str, Any]:
        """Look at the directory where the training runs: on the nodes of its job, or here."""
        self.behaviour(settings)  # what makes no sense is refused before anything is asked
        project, directory = scene.project, scene.directory
        job, attempt, hosts = _where(scene)
        named = settings.directory or project.loaded.store_path(directory.run)
        if not named:
            raise UsageError(
                "no directory of checkpoints is known here",
                hint="name it: --directory; or set path below [checkpoints] in resil.toml",
            )
        path = str(project.system.cwd / named)
        facts = Hosts(project.system, job, hosts).look(path)
        return {
            "job": job, "attempt": attempt, "hosts": list(hosts), "path": path,
            "facts": {host: one._asdict() for host, one in facts.items()},
            "device": directory.path.stat().st_dev,
            "control": str(control_file(directory.path)),
            "is_preloaded": (control_file(directory.path).parent / f"attempt-{attempt}").exists(),
            "keep": [str(path.resolve()) for path in (
                directory.path, Path(sys.prefix), Path(sys.base_prefix), Path(__file__), Path.home(),
            )],
        }  # fmt: skip

    def plan(self, settings: Any, seen: Mapping[str, Any]) -> Plan:
        """Choose the means, and say what is hit and what is not."""
        behaviour = self.behaviour(settings)
        facts = {host: from_record(Facts, one) for host, one in seen["facts"].items()}
        choice.check_directory(facts, seen["keep"])
        chosen = choice.choose(
            behaviour, facts, settings.by, is_preloaded=seen["is_preloaded"], device=seen["device"]
        )  # fmt: skip
        one = next(iter(facts.values()))
        where = ", ".join(facts)
        seen_by = {
            "fill": "Everybody who writes to this file system meets it",
            "mount": f"Every process on {where} meets it, in files that it opens from now on",
            "preload": "Only the training meets it, on all its nodes",
        }
        notes = [f"{seen_by[chosen.how]}.", *(f"{text[0].upper()}{text[1:]}." for text in chosen.not_by)]
        opened = sorted({name for each in facts.values() for name in each.opened})
        if chosen.how == "mount" and opened:
            notes.append(f"Already below it, and not hit in what they have open: {', '.join(opened)}.")
        return Plan(
            target=f"{one.directory} on {where}",
            does=f"{one.directory} on {where} {choice.describe(behaviour)}; {choice.MEANS[chosen.how]}",
            undoes={
                "fill": "the file goes with the process that holds it",
                "mount": "the file system is unmounted; files that were opened meanwhile keep working",
                "preload": "the library lets all calls pass",
            }[chosen.how],
            state={
                "alone": [one.directory],
                "how": chosen.how, "directory": one.directory, "behaviour": behaviour.to_json(), "job": seen["job"],
                "hosts": seen["hosts"] if chosen.how != "preload" else [],
                "control": seen["control"] if chosen.how == "preload" else "",
            },
            notes=tuple(notes), job=seen["job"], attempt=seen["attempt"],
        )  # fmt: skip

    def start(self, state: Mapping[str, Any], scene: Scene) -> Mapping[str, Any]:
        """Start the holder on each host, and wait until it says that the fault is there."""
        argv = [
            *_hosts(state, scene).command, sys.executable, "-m", holder.MODULE, scene.id, state["how"],
            state["directory"], str(scene.until), state["behaviour"], *([state["control"]] if state["control"] else ()),
        ]  # fmt: skip
        start_holders(argv, max(1, len(state["hosts"])))
        return {}

    def undo(self, state: Mapping[str, Any], scene: Scene) -> None:
        """End the holders; do it instead of those that were killed."""
        job, _, hosts = _where(scene) if state["hosts"] else ("", 0, ())
        if state["hosts"] and (job != state["job"] or not set(state["hosts"]) <= set(hosts)):
            return  # with the job, SLURM has ended its steps
        _hosts(state, scene).stop(state, scene.id)


def control_file(run_directory: Path) -> Path:
    """Return the file by which the library of preload.c is told what to do."""
    from resilience import layout

    return run_directory / layout.INJECTIONS / FOLDER / "now"


def _where(scene: Scene) -> tuple[str, int, tuple[str, ...]]:
    """Return the job that runs, its attempt, and its nodes if it is SLURM's; nothing: this host."""
    attempt = next(iter(read_attempts(scene.directory, newest=1)), None)
    if attempt is None or attempt.end is not None:
        return "", 0, ()
    scheduler = scheduler_of(read_intents(scene.directory))
    if scheduler != "slurm":
        here = scene.project.system.host.name
        if attempt.host.partition(".")[0] != here.partition(".")[0]:
            raise UsageError(
                f"job {attempt.job_id} runs on {attempt.host}", hint=f"run this command there: ssh {attempt.host}"
            )
        return str(attempt.job_id or ""), attempt.number, ()
    start = start_of_attempt(attempt)
    found = scene.project.scheduler(scheduler).job(JobId(start.array, start.task))
    return str(attempt.job_id or ""), attempt.number, tuple(expand(found.nodes) if found.nodes else [attempt.host])


def _hosts(state: Mapping[str, Any], scene: Scene) -> Hosts:
    return Hosts(scene.project.system, state["job"], state["hosts"])
