"""The last lines of `resil submit`: is there a guard, which log is watched, how does the run stop?"""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path

from resilience.errors import StateDirectoryError
from resilience.job import JobId
from resilience.runs.kill_outlook import ever_saw_guard, is_supervised
from resilience.runs.project import Project
from resilience.runs.run_logs import Start, array_glob, output_globs
from resilience.runs.submit import Prepared, output_of
from resilience.runs.templates.directives import parse_directives
from resilience.system.files import read_regular

_IMPORTS_GUARD = re.compile(r"\bresilience\.(guard|integrations)\b")
_PYTHON_FILE = re.compile(r"[\w./~+-]+\.py\b")
_MODULE = re.compile(r"\bpython[\d.]*\s+(?:-u\s+)?-m\s+([\w.]+)")
_FILES_READ = 8
_FILE_BYTES = 2**20


class GuardEvidence(StrEnum):
    """How resil knows of the training's guard."""

    SEEN = "seen"
    """An earlier attempt of the run had a guard."""
    IMPORTED = "imported"
    """A file that the script or the command names imports a guard."""
    ABSENT = "absent"
    """Such files were read, and none imports one; a module of theirs may."""
    UNKNOWN = "unknown"


@dataclass(frozen=True, slots=True)
class SubmitOutlook:
    """What resil can do for a submitted run.

    Attributes:
        guard: the evidence of a guard.
        source: the file that imports the guard, or the first that was read; empty if none was.
        log: the file of the job's output: with sbatch's fields such as %j, or a pattern of the shell for a known job.
        has_own_script: whether the user's own script is queued, which does not read the switches.
        is_supervised: whether that calls `resil run`, which does.
    """

    run: str
    guard: GuardEvidence
    source: str
    log: str
    has_own_script: bool
    is_supervised: bool = False


def read_submit_outlook(project: Project, prepared: Prepared, job_id: JobId | None = None) -> SubmitOutlook:
    """Read the run directory, and the Python files that the script or the command names. Never raises for a file that
    cannot be read. `job_id`: of the queued job or array."""
    is_own = prepared.request.script is not None
    base = project.system.cwd if is_own else project.loaded.project
    guard, source = GuardEvidence.SEEN, ""
    has_supervisor = is_own and is_supervised(prepared.script)  # whose heartbeats are no guard's
    if has_supervisor or not ever_saw_guard(prepared.directory):
        settings = project.loaded.settings.run
        text = prepared.script if is_own else "\n".join((*settings.setup, settings.command))
        guard, source = _find_guard(text, base)
    pattern = output_of(project, prepared, prepared.submissions[0])
    log = pattern.replace("%%", "%")
    if job_id is not None:
        is_array = "array" in {**prepared.plan.options, **dict(parse_directives(prepared.script).options)}
        array, user = job_id.array, project.system.host.user
        start = Start(array, raw=array)
        log = array_glob(pattern, array, user) if is_array else output_globs(pattern, start, user)[0]
    return SubmitOutlook(prepared.directory.run, guard, source, log, is_own, has_supervisor)


def describe_submit_outlook(outlook: SubmitOutlook) -> list[str]:
    """Return the lines about guard, log and stop. Pure."""
    run, source = outlook.run, outlook.source
    unsaved = "nothing is saved before a stop, unless the training does so itself"
    guard = {
        GuardEvidence.SEEN: "seen in an earlier attempt",
        GuardEvidence.IMPORTED: f"{source} imports it; the first attempt will show it",
        GuardEvidence.ABSENT: f"{source} imports none: {unsaved}",
        GuardEvidence.UNKNOWN: f"none seen yet; without one {unsaved}",
    }[outlook.guard]
    effect = {
        GuardEvidence.ABSENT: "" if outlook.has_own_script else "SIGTERM after some minutes, no save",
        GuardEvidence.UNKNOWN: "works with a guard only"
        if outlook.has_own_script
        else "saves first if there is a guard",
    }.get(outlook.guard, "saves first; a hang is not ended" if outlook.has_own_script else "saves first")
    if outlook.is_supervised:
        effect = "asks the command as --stop of `resil run` says, else by SIGTERM"
    kill = f"resil kill {run} ({effect}); " if effect else ""
    is_lost = outlook.log == "/dev/null"
    return [
        f"guard   {guard}",
        "log     none: the output goes to /dev/null"
        if is_lost
        else f"log     {outlook.log} (judged by resil watch log)",
        f"stop    {kill}resil cancel {run} (at once)",
    ]


def _find_guard(text: str, base: Path) -> tuple[GuardEvidence, str]:
    if _IMPORTS_GUARD.search(text):
        return GuardEvidence.IMPORTED, "the script"
    first = ""
    for path in _python_files(text, base):
        with suppress(StateDirectoryError, OSError):
            found = read_regular(path, limit_bytes=_FILE_BYTES)
            if found is not None:
                if _IMPORTS_GUARD.search(found[0].decode("utf-8", "replace")):
                    return GuardEvidence.IMPORTED, path.name
                first = first or path.name
    return (GuardEvidence.ABSENT if first else GuardEvidence.UNKNOWN), first


def _python_files(text: str, base: Path) -> Iterator[Path]:
    """Yield the files that a command line or a script may run: `train.py`, and `pkg/train.py` for `-m pkg.train`."""
    names = [match[0] for match in _PYTHON_FILE.finditer(text)]
    for match in _MODULE.finditer(text):
        bare = match[1].replace(".", "/")
        names += [f"{bare}.py", f"{bare}/__main__.py"]
    for name in list(dict.fromkeys(names))[:_FILES_READ]:
        with suppress(RuntimeError):  # `~` without a home directory
            yield (base / Path(name).expanduser()).resolve()
