"""The environment of what runs: minimal, the same for every driver, and written down. Pure.

| Variable | Value |
| --- | --- |
| HOME, LOGNAME, USER | of whose rights it runs with |
| SHELL | `/bin/sh` |
| LANG | as the scheduler has it; `C.UTF-8` where it has none |
| TZ, LC_ALL | as the scheduler has them; absent where it has none |
| PATH | the directory of `resil`, the directories of `sbatch` and `squeue`, and `/usr/local/bin:/usr/bin:/bin` |
| XDG_* | as the scheduler has them: where settings and caches lie |
| SLURM_CONF, SLURM_JWT, SBATCH_ACCOUNT ... | as the scheduler has them: how to reach SLURM, and where jobs go |
| RESIL_SECTION__KEY, RESIL_PLUGINS | as the scheduler has them: settings, plugins |
| RESIL_LOCAL_* | as the scheduler has them: where the embedded scheduler is |
| HTTPS_PROXY, SSL_CERT_FILE ... | as the scheduler has them: how alerts leave the site |
| PYTHONPATH, LD_LIBRARY_PATH | as the scheduler has them: without, RESIL_PYTHON may not start |
| SCRATCH, WORK ... | as the scheduler has them: what `resil watch fs` looks at |
| what `x_variable` of [channel.*] names | as the scheduler has it: secrets of channels |
| the crontab's own `NAME=value` lines | as written above the line; LOGNAME and USER cannot be changed (crontab(5)) |
| RESIL_CONFIG | this project's `resil.toml` |
| RESIL_PYTHON | the interpreter that runs `resil`, absolute |
| RESIL_CRON_ENTRY, RESIL_CRON_SLOT | the entry's name, and the slot in seconds since the epoch |

Nothing else: no token of a login shell, no SLURM_JOB_ID of the job that the scheduler runs in. Working directory: the
project's. Standard input: /dev/null. umask: 077, and 007 where a group operates the project.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

from resilience.base.mounts import LASTING
from resilience.cron.records import Entry

SYSTEM_PATH = ("/usr/local/bin", "/usr/bin", "/bin")

_PASSED = re.compile(
    r"LANG|LC_ALL|TZ|XDG_[A-Z0-9_]+|RESIL_[A-Z0-9_]+?__[A-Z0-9_]+|RESIL_PLUGINS|RESIL_LOCAL_[A-Z_]+"
    r"|SLURM_(CONF|CONF_SERVER|CLUSTERS|SACK_SOCKET|JWT)"
    r"|SBATCH_(ACCOUNT|PARTITION|QOS|RESERVATION|CONSTRAINT|CLUSTERS|WCKEY)"
    r"|(HTTP|HTTPS|NO|ALL)_PROXY|(http|https|no|all)_proxy|SSL_CERT_FILE|SSL_CERT_DIR|(REQUESTS|CURL)_CA_BUNDLE"
    rf"|PYTHONPATH|LD_LIBRARY_PATH|{'|'.join(LASTING)}"
)
_NOT_CHANGED = {"LOGNAME", "USER"}
"""Vixie cron forbids the first: mail and at(1) believe it; programs read either."""

_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_SECRET_NAME = re.compile(r"(?i)token|secret|passw|jwt|credential|api_?key|private_?key|webhook|ping_url")


def environment_of(
    entry: Entry,
    slot: int,
    *,
    environ: Mapping[str, str],
    home: Path,
    user: str,
    config: Path,
    python: str,
    resil_directory: str,
    tool_directories: Sequence[str] = (),
    keep: Iterable[str] = (),
) -> dict[str, str]:
    """Given an entry and a slot, return what its run sees: the table above.

    `environ` is the scheduler's own; `tool_directories` are those of sbatch and squeue; `keep` names variables that
    pass as
    well: those that [channel.*] settings name with `*_variable`. For instance, a scheduler in a job of SLURM gives no
    SLURM_JOB_ID on: an `sbatch` in the drop-in would take that for its own.
    """
    kept = frozenset(keep)
    found = {"LANG": "C.UTF-8"}
    found |= {name: value for name, value in environ.items() if value and (_PASSED.fullmatch(name) or name in kept)}
    found |= {
        "HOME": str(home),
        "LOGNAME": user,
        "USER": user,
        "SHELL": "/bin/sh",
        "PATH": short_path((resil_directory, *tool_directories)),
    }
    found |= {name: value for name, value in entry.environment.items() if name not in _NOT_CHANGED}
    found |= {
        "RESIL_CONFIG": str(config),
        "RESIL_PYTHON": python,
        "RESIL_CRON_ENTRY": entry.name,
        "RESIL_CRON_SLOT": str(slot),
    }
    return {name: value for name, value in found.items() if _NAME.fullmatch(name) and "\0" not in value}


def short_path(directories: Iterable[str]) -> str:
    """Given directories that are needed, return the PATH of those and the system's.

    The system's come last, even where they are among the given ones (`pip install --user` gives `/usr/bin`): another
    SLURM may be installed there, beside the one whose `sbatch` the person finds first.
    """
    own = (directory for directory in directories if directory and directory not in SYSTEM_PATH)
    return ":".join(dict.fromkeys((*own, *SYSTEM_PATH)))


def secrets_of(environment: Mapping[str, str], keep: Iterable[str] = ()) -> tuple[str, ...]:
    """The values of an environment that must stand in no output: those of variables that are called like secrets, and
    of those named in `keep`."""
    named = frozenset(keep)
    return tuple(
        value
        for name, value in environment.items()
        if value and (name in named or (_SECRET_NAME.search(name) and not name.endswith(("_FILE", "_VARIABLE"))))
    )
