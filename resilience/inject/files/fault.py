"""What the faults of files have in common: where they look, what they plan, and how they begin and end."""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from resilience.errors import ResilError, UsageError
from resilience.inject import Plan, Scene
from resilience.inject.files import choice, holder
from resilience.inject.files.behaviour import Behaviour
from resilience.inject.files.place import Facts, answer
from resilience.inject.holding import start_holders
from resilience.inject.hosts import ask, ask_to_undo, command, hosts_of, place_of
from resilience.records import from_record

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
        place = place_of(scene)
        named = settings.directory or project.loaded.store_path(directory.run)
        if not named:
            raise UsageError(
                "no directory of checkpoints is known here",
                hint="name it: --directory; or set path below [checkpoints] in resil.toml",
            )
        path = str(project.system.cwd / named)
        job = place.job if place.is_slurm else ""
        return {
            "srun_job": job, "attempt": place.attempt,
            "facts": ask(scene, job, {host: {"look": path} for host in hosts_of(scene, place)}, answer),
            "device": directory.path.stat().st_dev,
            "control": str(control_file(directory.path)),
            "is_preloaded": (control_file(directory.path).parent / f"attempt-{place.attempt}").exists(),
            "keep": [str(path.resolve()) for path in (
                directory.path, Path(sys.prefix), Path(sys.base_prefix), Path(__file__), Path.home(),
            )],
        }  # fmt: skip

    def plan(self, settings: Any, seen: Mapping[str, Any]) -> Plan:
        """Choose the means, and say what is hit and what is not."""
        behaviour = self.behaviour(settings)
        facts = {host: from_record(Facts, one) for host, one in seen["facts"].items()}
        choice.check_directory(facts, seen["keep"])
        how, not_by = choice.choose(
            behaviour, facts, settings.by, is_preloaded=seen["is_preloaded"], device=seen["device"]
        )  # fmt: skip
        one = next(iter(facts.values()))
        where = ", ".join(facts)
        seen_by = {
            "fill": "Everybody who writes to this file system meets it",
            "mount": f"Every process on {where} meets it, in files that it opens from now on",
            "preload": "Only the training meets it, on all its nodes",
        }
        notes = tuple(f"{text[0].upper()}{text[1:]}." for text in (seen_by[how], *not_by))
        return Plan(
            target=f"{one.directory} on {where}",
            does=f"{one.directory} on {where} {choice.describe(behaviour)}; {choice.MEANS[how]}",
            undoes={
                "fill": "the file goes with the process that holds it",
                "mount": "the file system is unmounted; files that were opened meanwhile keep working",
                "preload": "the library lets all calls pass",
            }[how],
            state={
                "alone": [one.directory],
                "how": how, "directory": one.directory, "behaviour": behaviour.to_json(),
                "control": seen["control"] if how == "preload" else "",
                "srun_job": seen["srun_job"] if how != "preload" else "", "attempt": seen["attempt"],
                "hosts": list(facts)[: 1 if how == "preload" else None],
            },
            notes=notes,
        )  # fmt: skip

    def start(self, state: Mapping[str, Any], scene: Scene) -> Mapping[str, Any]:
        """Start the holder on each host, and wait until it says that the fault is there."""
        argv = [
            *command(state["srun_job"], state["hosts"]), sys.executable, "-m", holder.MODULE, scene.id, state["how"],
            state["directory"], str(scene.until), state["behaviour"], *([state["control"]] if state["control"] else ()),
        ]  # fmt: skip
        start_holders(argv, len(state["hosts"]))
        return {}

    def undo(self, state: Mapping[str, Any], scene: Scene) -> None:
        """End the holders; do it instead of those that were killed."""
        order = {"stop": [scene.id, state["how"], state["directory"], state["control"]]}
        found = ask_to_undo(scene, state, dict.fromkeys(state["hosts"], order), answer)
        if errors := [f"{host}: {one['error']}" for host, one in found.items() if one["error"]]:
            raise ResilError("; ".join(errors))


def control_file(run_directory: Path) -> Path:
    """Return the file by which the library of preload.c is told what to do."""
    from resilience import layout

    return run_directory / layout.INJECTIONS / FOLDER / "now"
