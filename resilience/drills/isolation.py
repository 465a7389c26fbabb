"""Keeps a drill away from the real run: settings of its own, what would still touch the real run, and a look at its
files before and after.

The training of a drill is the user's own command, which may write anywhere. resil can redirect what it hands to the
training: the state directory, the directory of checkpoints in [checkpoints], and RESIL_DRILL_DIR for everything else.
"""

from __future__ import annotations

import os
import re
import shlex
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from resilience.drills.words import Facts

VARIABLE, DIRECTORY_VARIABLE = "RESIL_DRILL", "RESIL_DRILL_DIR"
"""Set in the jobs of a drill: its name, and a directory of its own. A command may use them."""
SUFFIX = "-drill"
MOST_FILES = 20_000
"""Of the real run's checkpoints, that are looked at before and after."""
_OUTPUT = re.compile(
    r"(?i)^-{0,2}[\w.-]*(?:out(?:put)?|save|ckpt|checkpoints?|logs?|logdir|results?|tensorboard|wandb)[_-]?"
    r"(?:dir|path|folder|root|to|file|s)?(?:=(?P<value>.+))?$"
)
"""A word of a command line that names what the training writes: `--output_dir`, `save=`, `--ckpt-path=/scratch/x`."""
_RUN_ID = re.compile(r"(?:^|_)(?:RUN|EXPERIMENT)_(?:ID|KEY|HASH)$")
"""Variables by which a tracker goes on with a run: WANDB_RUN_ID, MLFLOW_RUN_ID, NEPTUNE_CUSTOM_RUN_ID, ..."""


@dataclass(frozen=True, slots=True)
class Tempo:
    """How fast a drill is played: intervals that a training of weeks has longer.

    Attributes:
        poll_s: interval at which the guard reads its switches and writes its heartbeat.
        watch_s: interval of the watchdogs.
        lead_s: how long before the time limit the signal comes.
        cut_s: how much time is left to a job whose time limit is cut.
        hang_s: the least time without progress that counts as hung.
    """

    poll_s: float
    watch_s: float
    lead_s: float
    cut_s: float
    hang_s: float


LOCAL_TEMPO = Tempo(0.2, 1.0, 5.0, 12.0, 4.0)
SLURM_TEMPO = Tempo(1.0, 3.0, 30.0, 75.0, 15.0)
"""SLURM looks at time limits every 30 s."""


def isolated(facts: Facts, drill: str, scratch: Path, tempo: Tempo) -> dict[str, str]:
    """Return the environment variables that give a drill's project settings of its own. Pure.

    Everything else in resil.toml applies as it is: the launch, sbatch's options, [act], the watchdogs.
    """
    lead_s = min(facts.lead_s, tempo.lead_s)
    own = {
        "RUN__NAME": drill_run(facts.run),
        "RUN__STATE_DIR": str(scratch / "state"),
        "RUN__GROUP": "",
        "RUN__COMMAND": facts.command,
        "NODES__EVIDENCE": str(scratch / "evidence"),
        "ATTEMPT__BEAT_S": "1",
        "GUARD__POLL_S": f"{tempo.poll_s:g}",
        "GUARD__BEAT_S": f"{tempo.poll_s:g}",
        "SUBMIT__SIGNAL_LEAD_S": f"{lead_s:g}",
        "ALERT__CHANNELS": "console",  # the output of the drill's own watchdog: nobody is woken by a drill
        "ALERT__ESCALATION": "1d: console",
        "ALERT__GROUP_S": "0",
        "ALERT__UNKNOWN_FOR_S": "0",
        "ALERT__QUIET_HOURS": "",
        "ENVIRONMENT__" + VARIABLE: drill,
        "ENVIRONMENT__" + DIRECTORY_VARIABLE: str(scratch / "output"),
    }
    if facts.store:
        own["CHECKPOINTS__PATH"] = str(scratch / "checkpoints")
    return {f"RESIL_{name}": text for name, text in own.items()}


def preloaded(command: str, template: str, python: str) -> str:
    """Return a command that starts with the library of `resil inject preload`; itself if its template launches only
    scripts of Python. Pure."""
    if template not in ("python", "srun"):
        return command
    return shlex.join([python, "-m", "resilience", "inject", "preload", "--", "bash", "-c", command])


def drill_run(run: str) -> str:
    """Return the name of a drill's run. Pure."""
    return run[: 100 - len(SUFFIX)] + SUFFIX


def hazards(facts: Facts, project: Path, command: str) -> tuple[str, ...]:
    """Return, a sentence each, how a drill's training could touch files of the real run; empty: not that it is known.

    Pure. A command that uses RESIL_DRILL_DIR has been written for drills: its author has thought of that.
    """
    if VARIABLE in command:
        return ()
    found = []
    if not facts.store:
        found.append(
            "[checkpoints] path is not set, so the training saves where it always does: it would go on from the real "
            "run's checkpoints, and overwrite them"
        )
    elif not facts.is_own_store:
        found.append(
            "pattern in [checkpoints] says that a framework saves there, which resil cannot tell to save elsewhere: it "
            "would go on from the real run's checkpoints, and overwrite them"
        )
    found += [
        f"{name} in [environment] is that of the real run: the drill would report into it"
        for name in facts.environment
        if _RUN_ID.search(name)
    ]
    words = _words(command)
    if facts.store:
        relative = os.path.relpath(facts.store, project)
        named = [word for word in words if _names(word, facts.store, relative)]
        if named:
            found.append(f"the command names the real run's directory of checkpoints: {named[0]}")
    for index, word in enumerate(words):
        match = _OUTPUT.match(word)
        if match is None or _names(word, facts.store, facts.store):
            continue
        value = match["value"] or (words[index + 1] if index + 1 < len(words) and word.startswith("-") else "")
        if value and not value.startswith("-"):
            found.append(f"the command writes where the real run does: {word if match['value'] else f'{word} {value}'}")
    return tuple(found)


def _words(command: str) -> list[str]:
    try:
        return shlex.split(command)
    except ValueError:  # quotes of a shell construct
        return command.split()


def _names(word: str, store: str, relative: str) -> bool:
    path = word.rpartition("=")[2].rstrip("/")
    return bool(store) and path not in ("", ".") and (path == store or f"{path}/".startswith(f"{store}/")
                                                      or os.path.normpath(path) == relative)  # fmt: skip


Fingerprint = Mapping[str, tuple[int, int]]


def fingerprint(directory: Path | None) -> Fingerprint:
    """Return size and time of change of each file in a directory, at most MOST_FILES; empty if there is none."""
    found: dict[str, tuple[int, int]] = {}
    if directory is None:
        return found
    for root, _, names in os.walk(directory):
        for name in names:
            path = Path(root, name)
            try:
                state = path.lstat()
            except OSError:
                continue
            found[str(path)] = (state.st_size, state.st_mtime_ns)
            if len(found) >= MOST_FILES:
                return found
    return found


def changed(before: Fingerprint, after: Fingerprint) -> tuple[str, ...]:
    """Return the files that were changed, removed or added, sorted. Pure."""
    return tuple(sorted(name for name in {*before, *after} if before.get(name) != after.get(name)))
