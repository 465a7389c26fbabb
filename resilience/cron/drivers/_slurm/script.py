"""The batch script of the scheduler's jobs, and their sbatch options. Pure, except that it reads the script's body."""

from __future__ import annotations

import re
import shlex
from collections.abc import Mapping, Sequence
from functools import cache
from pathlib import Path

from resilience.cron.drivers._tables import unit_name
from resilience.cron.records import Installation
from resilience.cron.table.environment import short_path
from resilience.errors import SettingsError
from resilience.settings.cron_settings import CronSettings
from resilience.system.files import short_digest

SCRIPT = "driver/job.bash"
"""In the state directory: the batch script. SLURM keeps a copy for every job."""
REQUEUE_SCRIPT = "revive.bash"
"""In the state directory: run by a training's batch shell to restart a dead chain."""

MINUTE_S = 60
LEAD_S = 90
"""The signal comes this long before the time limit; SLURM checks every 30 s, so at most 30 s earlier."""
TIME_MIN_S = 3600
"""SLURM may shorten a job to this, so that the job starts before a reservation (maintenance) instead of after it."""

ON_ONE_MACHINE: Mapping[str, str | None] = {"oversubscribe": None}
"""Further options for the embedded scheduler: an idle job would reserve a CPU for days, and a training that requests
the whole machine would never start. On a cluster the site decides about sharing."""

_RESERVED = {
    "job-name": "jobs of one name run one after the other",
    "comment": "it identifies the job",
    "dependency": "it makes jobs run one after the other",
    "begin": "it is the time of the tick",
    "array": "the scheduler is one job",
    "requeue": "the chain continues by itself",
    "no-requeue": "it is set already",
    "signal": "it announces the end of the job",
    "output": "a job whose output cannot be opened is lost before its first line",
    "error": "a job whose output cannot be opened is lost before its first line",
    "time": "set [cron] time_limit_s, or pulse_limit_s for pulses",
    "export": "the scheduler sets its own environment",
    "parsable": "it is set already",
    "test-only": "nothing would be queued",
    "hold": "nothing would run",
    "wait": "nothing waits for the job",
    "kill-on-invalid-dep": "its dependency is always valid",
}
"""sbatch options that [cron] sbatch cannot set, with reasons."""

_ALSO = re.compile(r"LD_LIBRARY_PATH|PYTHONPATH|RESIL_LOCAL_[A-Z_]+")
"""Variables that jobs keep besides those of every tick: SLURM's commands may need the first."""


def time_limit_s(settings: CronSettings, mode: str) -> int:
    """Return the time limit of a job, rounded up to whole minutes, as in SLURM."""
    wanted = settings.pulse_limit_s if mode == "pulse" else settings.time_limit_s
    return max(1, -(-int(wanted) // MINUTE_S)) * MINUTE_S


def lead_s(limit_s: float) -> int:
    """Return the time between signal and time limit: at most a quarter of the limit."""
    return int(min(LEAD_S, limit_s / 4))


def sbatch_options(name: str, settings: CronSettings, limit: int) -> dict[str, str | None]:
    """Return the sbatch options of a job of the chain with a time limit in seconds, except comment, begin, dependency.

    One CPU and 2 GiB, no GPU. Raise SettingsError for an invalid [cron] sbatch. An empty value there removes a default
    (`mem = ""` at sites that account memory per CPU).
    """
    options: dict[str, str | None] = {
        "job-name": name,
        "no-requeue": None,
        "time": str(limit // MINUTE_S),
        "signal": f"B:USR1@{lead_s(limit)}",
        "nodes": "1",
        "ntasks": "1",
        "cpus-per-task": "1",
        "mem": "2G",
        "output": "/dev/null",
    }
    if limit > TIME_MIN_S:
        options["time-min"] = str(TIME_MIN_S // MINUTE_S)
    for key, value in settings.sbatch.items():
        option = key.lstrip("-").replace("_", "-")
        if option in _RESERVED:
            raise SettingsError(f"[cron] sbatch: {option} cannot be set: {_RESERVED[option]}", hint=f"remove {key}")
        if any(ord(character) < 32 for character in option + str(value)):
            raise SettingsError(f"[cron] sbatch: {key} contains a control character", hint="write it on one line")
        options.pop(option, None)
        if option in ("mem-per-cpu", "mem-per-gpu"):  # sbatch takes one of them
            options.pop("mem", None)
        if str(value) != "":
            options[option] = str(value)
    return options


def parse_mark(text: str) -> tuple[str, int, str]:
    """Return (kind, earliest start, further words) of a job's comment behind its token; without kind if invalid.
    Pure."""
    found = re.match(r"-([a-z])(\d{1,12})\.\w*(.*)", text, re.ASCII | re.DOTALL)
    return (found[1], int(found[2]), found[3].strip()) if found is not None else ("", 0, "")


@cache
def _body() -> str:
    return Path(__file__).with_name("scheduler.bash").read_text(encoding="utf-8")


def render_script(
    installation: Installation,
    settings: CronSettings,
    *,
    state: str,
    config: str,
    scheduler: str,
    environ: Mapping[str, str],
    limit: int,
    tool_directories: Sequence[str] = (),
    shared: bool = False,
    spool: str = "",
) -> str:
    """Return the batch script: its variables, and the body. Its digest is one of them: a job with another is replaced.

    Args:
        state: absolute path of `<state_dir>/.cron`.
        config: absolute path of resil.toml; empty: none.
        scheduler: name of the scheduler: `slurm`, or `local` for the embedded one.
        environ: environment of the installing user.
        limit: time limit of a job, seconds.
        tool_directories: directories of the embedded scheduler's commands.
        shared: whether a group operates the project.
        spool: directory of the embedded scheduler.
    """
    mode, name = installation.mode or settings.mode, unit_name(installation)
    wanted = {**sbatch_options(name, settings, limit), **(ON_ONE_MACHINE if scheduler == "local" else {})}
    kept = {name: value for name, value in environ.items() if value and _ALSO.fullmatch(name)}
    kept |= {"LANG": "C.UTF-8", **({"RESIL_CONFIG": config} if config else {})} | installation.environment
    path = short_path((*tool_directories, *kept.get("PATH", "").split(":"), str(Path(installation.python).parent)))
    kept |= {"PATH": path, "SHELL": "/bin/sh"}
    if spool:
        kept["RESIL_LOCAL_SPOOL"] = spool
    words = {
        "token": installation.token,
        "mode": mode,
        "name": name,
        "by": installation.by,
        "state": state,
        "project": installation.project,
        "python": installation.python,
        "scheduler": scheduler,
        "file_mask": "007" if shared else "077",
        "pulse_s": str(max(1, round(settings.pulse_s))),
        "time_limit_s": str(limit),
        "lead_s": str(lead_s(limit)),
    }
    lines = [
        *(f"{key}={shlex.quote(value)}" for key, value in words.items()),
        _array("clean", ["env", "-i", *(f"{key}={value}" for key, value in sorted(kept.items()))]),
        _array("options", [f"--{key}" if value is None else f"--{key}={value}" for key, value in wanted.items()]),
    ]
    text = "\n".join(lines) + "\n" + _body()
    head = "#!/bin/bash\n# The scheduler of resil cron. Written by `resil cron install`, which overwrites changes.\n"
    return f"{head}digest={short_digest(text.encode('utf-8', 'surrogateescape'))}\n{text}"


def render_requeue_script(state: str) -> str:
    """Return `revive.bash`, which calls the batch script."""
    return (
        "#!/bin/bash\n"
        "# Starts the scheduler again if squeue answers that it is dead. Needs no Python. Exits with 0\n"
        "# if there is nothing to do, 10 if a job was queued, 75 if the check failed or sbatch refused.\n"
        f"exec /bin/bash {shlex.quote(f'{state}/{SCRIPT}')} revive\n"
    )


def _array(name: str, words: list[str]) -> str:
    return f"{name}=({' '.join(shlex.quote(word) for word in words)})"
