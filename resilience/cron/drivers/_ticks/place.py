"""Where an installation lives, where its ticks write, and how it stands in a table."""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path
from typing import Any

from resilience.cron.drivers import DriverState
from resilience.cron.drivers._ticks.editing import disabled, ours
from resilience.cron.records import Heartbeat, Installation
from resilience.cron.state_directory import FOLDER, CronDirectory
from resilience.errors import ResilError
from resilience.job import Liveness
from resilience.runs.context import Context
from resilience.system.child import run_apart
from resilience.system.files import make_directory

LOOK_S = 10.0
"""How long the state directory may take."""

SAME_TICK_S = 300.0
"""Output that is younger than the heartbeat by no more than this may be of a tick that ended well."""


class Elsewhere(ResilError):
    """It lives on another machine, or belongs to another person: from here it can be neither seen nor changed."""


def wrong_host(installation: Installation, context: Context, name: str) -> None:
    """Raise Elsewhere if an installation that lives on one machine lives on another one than this."""
    host = context.system.host
    if installation.host != host.name:
        raise Elsewhere(
            f"it lives in the {name} of {installation.host}, and this is {host.name}",
            hint=f"go there: ssh {installation.host}",
        )
    wrong_person(installation, context, name)


def wrong_person(installation: Installation, context: Context, name: str) -> None:
    """Raise Elsewhere if an installation belongs to somebody else."""
    host = context.system.host
    if installation.by != host.user:
        raise Elsewhere(
            f"it lives in the {name} of {installation.by}, and you are {host.user}",
            hint=f"ask {installation.by}; everybody of the project can stop it: resil cron stop",
        )


def output_file(context: Context, name: str, *, make: bool = True) -> str:
    """The file that has what the last tick wrote; its directory is made, unless `make` is False."""
    directory = context.state_dir / FOLDER / "driver"
    if make:
        make_directory(directory, mode=0o2770 if context.group else 0o700)
    return str(directory / f"{name}.out")


def heartbeat(context: Context) -> Heartbeat | None:
    """The last sign of life of the scheduler; None: there never was one.

    Read by a child with a deadline: the state directory may hang. Raise ResilError if it could not be read.
    """

    def read() -> dict[str, Any]:
        beat = CronDirectory(context.state_dir, context.group).heartbeat()
        return {} if beat is None else beat.to_json()

    ((_, answer),) = run_apart({"heartbeat": (read, LOOK_S)})
    if answer.error is not None:
        raise answer.error
    return Heartbeat.from_json(answer.value) if answer.value else None


def last_words(context: Context, name: str) -> str:
    """What the last tick said before it failed: one line. Empty: it left its sign of life, or said nothing.

    A tick that cannot start (an interpreter that is gone) leaves no heartbeat after its output. Read as `heartbeat` is.
    """

    def read() -> str:
        path = Path(output_file(context, name, make=False))
        if not path.is_file() or path.stat().st_size == 0:
            return ""
        with suppress(FileNotFoundError):
            if (path.parent.parent / "heartbeat").stat().st_mtime >= path.stat().st_mtime - SAME_TICK_S:
                return ""
        lines = path.read_bytes()[-4096:].decode("utf-8", "replace").replace("\0", "").split("\n")
        said = [line.strip() for line in lines if line.strip()]
        return said[-1][:200] if said else ""

    ((_, answer),) = run_apart({"last words": (read, LOOK_S)})
    return str(answer.value) if answer.error is None else ""


def table_state(table: str, installation: Installation, where: str) -> DriverState:
    """How an installation stands in a table. Pure."""
    tokens = {installation.token}
    lines = [line for line in ours(table, tokens) if not line.startswith("# resil:")]
    if not lines:
        return DriverState(
            Liveness.GONE, f"our line is not in {where} any more", hint="put it back: resil cron install"
        )
    if off := disabled(table, tokens):
        what = "its job was cancelled" if off[0].startswith("#DISABLED") else "somebody commented it out"
        return DriverState(
            Liveness.GONE, f"our line in {where} is disabled: {what}", hint="put it back: resil cron install"
        )
    return DriverState(Liveness.ALIVE, f"our line is in {where}")
