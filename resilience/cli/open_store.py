"""Which directory of checkpoints a command of `resil ckpt` works on: options, settings, completions."""

from __future__ import annotations

import errno
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext, suppress
from pathlib import Path
from typing import Annotated, NamedTuple

import typer

from resilience.checkpoints.directory import Checkpoint, StoreDirectory
from resilience.checkpoints.names import BAD
from resilience.checkpoints.quarantine import reason
from resilience.checkpoints.settings import CheckpointSettings, read_store_settings
from resilience.cli.output import patience
from resilience.errors import CheckpointError, ResilError, UsageError
from resilience.system.files import FULL
from resilience.system.ports import System


class Opened(NamedTuple):
    """The directory of checkpoints that a command works on.

    Attributes:
        store: the directory.
        settings: [checkpoints]; None if they are of another directory.
        run: name of the run of these settings; empty without any.
        now: seconds since the epoch.
    """

    store: StoreDirectory
    settings: CheckpointSettings | None
    run: str
    now: float

    def of_run(self) -> CheckpointSettings:
        """Return the settings for this directory, for what changes it. Raise UsageError, CheckpointError."""
        if self.settings is None:
            raise UsageError(
                f"no resil.toml here sets path = {str(self.store.path)!r} under [checkpoints]",
                hint="run it in the project of that run, or name its file: --config FILE",
            )
        if (owner := self.store.run()) and self.run and owner != self.run:
            raise CheckpointError(
                f"{self.store.path} holds the checkpoints of the run {owner}, not of {self.run}",
                hint="give each run a directory of its own: [checkpoints] path",
            )
        return self.settings


@contextmanager
def opened(
    path: Path | None, config: Path | None, *names: str, must_exist: bool = True, reads: bool = False
) -> Iterator[Opened]:
    """Open the directory of a command. Errors of reading become words, and end with EX_TEMPFAIL.

    Raise CheckpointError if it is none; UsageError if no option and no setting names one; StateDirectoryError if its
    file system does not respond. `names`: of checkpoints, one of which may be a path. `reads`: the command reads whole
    checkpoints, which takes long.
    """
    from resilience.runs.open_project import check_path

    system = System()
    parents = (system.cwd / Path(name).expanduser().parent for name in names if "/" in name.rstrip("/"))
    directories = {one.parent if one.name == BAD else one for one in parents}
    if path is None and directories:
        path = min(directories)
    named, settings, run = configured_store(system, config, is_needed=path is None)
    is_guess = path is None and named is None
    if path is not None:
        path = system.cwd / path.expanduser()
        settings = settings if named is not None and _is_same(named, path) else None
    else:
        path = named or system.cwd
    check_path(system, path)
    for one in directories - {path}:
        check_path(system, one)
        if not _is_same(one, path):
            raise UsageError(f"{one} is not {path}", hint="name checkpoints of one directory at a time")
    store = StoreDirectory(path)
    try:
        if is_guess and not store.is_there():
            raise UsageError(
                "no directory of checkpoints is known here",
                hint='name it: --store PATH, or set path = "checkpoints" under [checkpoints] in resil.toml',
            )
        with nullcontext() if reads else patience(f"{store.path} has not answered for 5 s; still waiting for it"):
            if must_exist or store.is_there():
                store.run()
            yield Opened(store, settings, run if settings is not None else "", system.clock.now())
    except OSError as error:
        where, hint = error.filename or store.path, "the file system is faulty; retry, or look from another node"
        if error.errno == errno.ENOTDIR:
            raise UsageError(f"{path} is not a directory", hint="name one: --store PATH") from None
        if error.errno in FULL:
            hint = "free space (and inodes): resil ckpt prune"
        elif error.errno == errno.EROFS:
            hint = "the file system is mounted read-only here: try from another node"
        elif error.errno in (errno.EACCES, errno.EPERM):
            hint = "ask the owner for permission"
        raise CheckpointError(f"{where}: {error.strerror or error}", hint=hint, transient=True) from error


def _is_same(one: Path, other: Path) -> bool:
    with suppress(OSError):
        return one.samefile(other)
    return one == other


def configured_store(
    system: System, config: Path | None, *, is_needed: bool
) -> tuple[Path | None, CheckpointSettings | None, str]:
    """Return the directory that the settings name, the settings, and the run. In a job, they are those of the job."""
    from resilience.runs.open_project import open_in_child

    environ = system.environ
    if "RESIL_ATTEMPT" in environ and config is None:
        job = read_store_settings(environ)
        if job.path:
            return system.cwd / job.path, job, environ.get("RESIL_RUN", "")
    try:
        project = open_in_child(system, path=config)
        run = project.default_run()
        return project.loaded.store_path(run), project.loaded.settings.checkpoints, run
    except ResilError:
        if is_needed or config is not None:
            raise
        return None, None, ""  # --store PATH beside a resil.toml that is broken


def complete_checkpoints(context: typer.Context, incomplete: str) -> list[str]:
    """Return names of checkpoints, the newest first. No error reaches the shell's prompt."""
    with suppress(Exception), opened(context.params.get("store"), context.params.get("config")) as found:
        return [one.name for one in reversed(found.store.checkpoints()) if one.name.startswith(incomplete)]
    return []


def complete_bad(context: typer.Context, incomplete: str) -> list[str]:
    """Return names of checkpoints that were set aside."""
    with suppress(Exception), opened(context.params.get("store"), context.params.get("config")) as found:
        return [name for name in found.store.bad() if name.startswith(incomplete)]
    return []


StoreOption = Annotated[
    Path | None,
    # Not Typer's parser: it checks the directory, which may be on a disk that hangs.
    typer.Option("--store", metavar="PATH", parser=Path, help="The directory of checkpoints."),
]
_NAME_HELP = "A checkpoint: its name, step or path."
NameArgument = Annotated[str, typer.Argument(metavar="NAME", help=_NAME_HELP, autocompletion=complete_checkpoints)]
NewestArgument = Annotated[
    str,
    typer.Argument(
        metavar="[NAME]", help=f"{_NAME_HELP} Default: the newest.", autocompletion=complete_checkpoints,
        show_default=False,
    ),
]  # fmt: skip
NamesArgument = Annotated[
    list[str] | None,
    typer.Argument(
        metavar="[NAME]...", help="Checkpoints: names, steps or paths. Default: the newest.",
        autocompletion=complete_checkpoints, show_default=False,
    ),
]  # fmt: skip
WhyOption = Annotated[str, typer.Option("--why", "-m", metavar="TEXT", help="The reason, for other users.")]


def find_bad(store: StoreDirectory, name: str) -> str:
    """Return the name in `.bad/` of a name, step or path, the last one set aside of a step; empty if there is none.
    Raise OSError."""
    last, bad = Path(name).name, store.bad()
    if last in bad or not (last.isascii() and last.isdecimal()):
        return last if last in bad else ""
    records = [(reason(store, one), one) for one in bad]
    of_step = [(str(record.get("at")), one) for record, one in records if record.get("step") == int(last)]
    return max(of_step, default=("", ""))[1]


def find(store: StoreDirectory, name: str) -> Checkpoint:
    """Return the checkpoint of a name, step or path; without one the newest. Raise CheckpointError, OSError."""
    if name:
        return store.find(Path(name).name if "/" in name else name)
    found = store.checkpoints()
    if not found:
        raise CheckpointError(f"no checkpoint yet in {store.path}", hint="resil ckpt list")
    return found[-1]
