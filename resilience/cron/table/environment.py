"""The environment of runs: minimal, the same for every driver, and documented. Pure.

| Variable | Value |
| --- | --- |
| HOME, LOGNAME, USER | of the user it runs as |
| SHELL | `/bin/sh` |
| LANG | as of the scheduler; `C.UTF-8` by default |
| TZ, LC_ALL | as of the scheduler, if set |
| PATH | the directory of `resil`, the directories of `sbatch` and `squeue`, and `/usr/local/bin:/usr/bin:/bin` |
| XDG_* | as of the scheduler: directories of settings and caches |
| SLURM_CONF, SLURM_JWT, SBATCH_ACCOUNT ... | as of the scheduler: access to SLURM, and destination of jobs |
| RESIL_SECTION__KEY, RESIL_PLUGINS | as of the scheduler: settings, plugins |
| RESIL_LOCAL_* | as of the scheduler: location of the embedded scheduler |
| HTTPS_PROXY, SSL_CERT_FILE ... | as of the scheduler: proxies and certificates for alerts |
| PYTHONPATH, LD_LIBRARY_PATH | as of the scheduler: RESIL_PYTHON may need them to start |
| SCRATCH, WORK ... | as of the scheduler: checked by `resil watch fs` |
| named by `x_variable` of [channel.*] | as of the scheduler: secrets of channels |
| `NAME=value` lines of the crontab | as written above the line; LOGNAME and USER cannot be changed (crontab(5)) |
| RESIL_CONFIG | this project's `resil.toml` |
| RESIL_PYTHON | the interpreter that runs `resil`, absolute |
| RESIL_CRON_ENTRY, RESIL_CRON_SLOT | the entry's name, and the slot in seconds since the epoch |

Nothing else: no token of a login shell, no SLURM_JOB_ID of the scheduler's job. Working directory: the
project's. Standard input: /dev/null. umask: that of the scheduler; files are
open to the group if one operates the project.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

from resilience.base.mounts import LASTING
from resilience.cron.records import Entry

SYSTEM_PATH = ("/usr/local/bin", "/usr/bin", "/bin")

_LASTING = (
    r"LANG|LC_ALL|TZ|XDG_(CONFIG|CACHE|STATE|DATA)_HOME|RESIL_[A-Z0-9_]+?__[A-Z0-9_]+|RESIL_PLUGINS|RESIL_LOCAL_SPOOL"
    # Where SLURM's commands find it, and where jobs go: sbatch(1), "INPUT ENVIRONMENT VARIABLES".
    r"|SLURM_(CONF|CONF_SERVER|CLUSTERS|SACK_SOCKET)"
    r"|SBATCH_(ACCOUNT|PARTITION|QOS|RESERVATION|CONSTRAINT|CLUSTERS|WCKEY)"
    # Proxies and certificates for alerts, and the storage that the watchdogs check if the settings name no paths.
    r"|(HTTP|HTTPS|NO|ALL)_PROXY|(http|https|no|all)_proxy|SSL_CERT_FILE|SSL_CERT_DIR|(REQUESTS|CURL)_CA_BUNDLE"
    rf"|{'|'.join(LASTING)}"
)
_PASSED = re.compile(rf"{_LASTING}|XDG_[A-Z0-9_]+|RESIL_LOCAL_[A-Z_]+|SLURM_JWT|PYTHONPATH|LD_LIBRARY_PATH")
_NOT_CHANGED = {"LOGNAME", "USER"}
"""Vixie cron forbids setting LOGNAME, which mail and at(1) trust; programs read either."""

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
    """Return the environment of a run: the table above.

    `environ`: the scheduler's own; `tool_directories`: those of sbatch and squeue; `keep`: further variables to pass,
    which [channel.*] settings name with `*_variable`. SLURM_JOB_ID, for instance, is not passed from a scheduler in a
    SLURM job, because an `sbatch` in the drop-in would use it.
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


def lasting_variables(environ: Mapping[str, str]) -> dict[str, str]:
    """Return the variables that ticks started by cron or systemd need, and that may be written into their tables.

    Secrets are left out, such as proxy passwords or expiring tokens (SLURM_JWT).
    """
    found = {name: value for name, value in environ.items() if value and re.fullmatch(_LASTING, name)}
    return {name: value for name, value in found.items() if not ("://" in value and "@" in value)}


def short_path(directories: Iterable[str]) -> str:
    """Given directories that are needed, return the PATH of those and the system's.

    The system's come last, even where they are among the given ones (`pip install --user` gives `/usr/bin`): another
    SLURM may be installed there, beside the one whose `sbatch` the person finds first.
    """
    own = (directory for directory in directories if directory and directory not in SYSTEM_PATH)
    return ":".join(dict.fromkeys((*own, *SYSTEM_PATH)))


def secrets_of(environment: Mapping[str, str], keep: Iterable[str] = ()) -> tuple[str, ...]:
    """Return the values of an environment that must not appear in outputs: those of variables with names like secrets,
    and those named in `keep`."""
    named = frozenset(keep)
    return tuple(
        value
        for name, value in environment.items()
        if value and (name in named or (_SECRET_NAME.search(name) and not name.endswith(("_FILE", "_VARIABLE"))))
    )
