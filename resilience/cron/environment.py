"""The environment that ticks need, as it is when the project is installed: theirs will be nearly empty."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from resilience.base.mounts import LASTING
from resilience.cron.table.environment import short_path
from resilience.errors import ResilError
from resilience.system.child import run_apart

if TYPE_CHECKING:
    from resilience.runs.project import Project
    from resilience.system.ports import System

VARIABLE = "$"
"""Facts of an installation whose names begin so are environment variables of its ticks: `$PATH`."""

PROGRAMS = ("resil", "sbatch", "squeue", "scontrol")
"""Whose directories belong to the PATH of the ticks."""

_SEARCH_S = 5.0
_START_S = 60.0
_KEPT = (
    *("LANG", "LC_ALL", "TZ"),
    *("RESIL_PLUGINS", "RESIL_LOCAL_SPOOL"),
    *("XDG_CONFIG_HOME", "XDG_CACHE_HOME", "XDG_STATE_HOME", "XDG_DATA_HOME"),
    # Where SLURM's commands find it, and where jobs go: sbatch(1), "INPUT ENVIRONMENT VARIABLES".
    *("SLURM_CONF", "SLURM_CONF_SERVER", "SLURM_CLUSTERS", "SLURM_SACK_SOCKET"),
    *("SBATCH_ACCOUNT", "SBATCH_PARTITION", "SBATCH_QOS", "SBATCH_RESERVATION", "SBATCH_CONSTRAINT", "SBATCH_CLUSTERS"),
    # How alerts leave the site.
    *("http_proxy", "https_proxy", "no_proxy", "HTTP_PROXY", "HTTPS_PROXY", "NO_PROXY", "ALL_PROXY", "all_proxy"),
    *("SSL_CERT_FILE", "SSL_CERT_DIR", "REQUESTS_CA_BUNDLE"),
    # What the watchdogs look at, where the settings name no paths.
    *LASTING,
)
_LOADER = ("PYTHONPATH", "LD_LIBRARY_PATH")
"""Kept only where the interpreter does not start without."""


def facts_of(project: Project) -> dict[str, str]:
    """The environment variables of the ticks, as facts of an installation.

    Raise ResilError if this interpreter does not start in that environment.
    """
    system, loaded = project.system, project.loaded
    directories = _program_directories(system)
    variables = plan_environment(
        system.environ,
        user=system.host.user,
        home=system.host.home,
        # Without a file of its own the project is looked for each time: it may get one.
        config=loaded.path if loaded.path != system.config_home / "resil" / "config.toml" else None,
        directories=(*([str(Path(sys.executable).parent)] if sys.executable else ()), *directories),
    )
    variables |= _loader(variables, system)
    return {f"{VARIABLE}{name}": value for name, value in sorted(variables.items())}


def plan_environment(
    environ: Mapping[str, str], *, user: str, home: Path, config: Path | None, directories: Iterable[str]
) -> dict[str, str]:
    """Given the environment of who installs, return what its ticks get.

    No secret: what holds a password (a proxy's address) or a token that runs out (SLURM_JWT) is left out, because this
    ends in tables and in lists of processes.
    """
    kept = {name: environ[name] for name in _KEPT if environ.get(name)}
    kept |= {name: value for name, value in environ.items() if name.startswith("RESIL_") and "__" in name}
    kept = {name: value for name, value in kept.items() if not ("://" in value and "@" in value)}
    kept |= {"HOME": str(home), "LOGNAME": user, "USER": user, "SHELL": "/bin/sh"}
    if config is not None:
        kept["RESIL_CONFIG"] = str(config)
    kept["PATH"] = short_path(path for path in directories if path.startswith("/") and ":" not in path)
    return kept


def _program_directories(system: System) -> tuple[str, ...]:
    """The directories of our command and of SLURM's. A directory of PATH may hang: then none is found."""
    import shutil

    path = system.environ.get("PATH")
    if path in _directories:
        return _directories[path]

    def find() -> list[str]:
        found = [shutil.which(program, path=path) for program in PROGRAMS]
        return [str(Path(name).parent.absolute()) for name in found if name]

    ((_, answer),) = run_apart({"PATH": (find, _SEARCH_S)})
    _directories[path] = tuple(answer.value) if answer.error is None else ()
    return _directories[path]


_directories: dict[str | None, tuple[str, ...]] = {}
"""What was found in this process, by PATH."""


def _loader(base: Mapping[str, str], system: System) -> Mapping[str, str]:
    """What of PYTHONPATH and LD_LIBRARY_PATH this interpreter needs to start: mostly nothing.

    A module system (`module load python`) sets the second, a checkout that was never installed needs the first.
    """
    given = {name: system.environ[name] for name in _LOADER if system.environ.get(name)}
    key = (sys.executable, tuple(sorted(given.items())))
    if key not in _known:
        library = {name: value for name, value in given.items() if name == "LD_LIBRARY_PATH"}
        python = {"PYTHONPATH": given.get("PYTHONPATH") or str(Path(__file__).resolve().parents[2])}
        said = ""
        for more in ({}, library, python, python | library):
            argv = [sys.executable or "python3", "-P", "-c", "import resilience.cli.main"]
            done = system.runner.run(argv, timeout_s=_START_S, env={**base, **more}, cwd="/")
            if done.returncode == 0:
                _known[key] = more
                break
            said = said or done.stderr.strip().rpartition("\n")[2][:200]
        else:
            raise ResilError(
                f"{sys.executable} does not start resil without your environment: {said}",
                hint="install resil into a virtual environment of its own, and call that one's `resil`",
            )
    return _known[key]


_known: dict[tuple[str, tuple[tuple[str, str], ...]], Mapping[str, str]] = {}
"""What was found out in this process: it costs the start of an interpreter."""
