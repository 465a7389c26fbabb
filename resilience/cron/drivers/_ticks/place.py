"""Owner and host of an installation, output of its ticks, and its state in a table."""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path
from typing import Any

from resilience.cron.drivers import DriverState
from resilience.cron.drivers._ticks.lines import disabled, ours
from resilience.cron.records import Heartbeat, Installation
from resilience.cron.state_directory import FOLDER, CronDirectory
from resilience.errors import ResilError
from resilience.job import Liveness
from resilience.runs.context import Context
from resilience.system.child import run_in_child
from resilience.system.files import make_directory

READ_S = 10.0
"""Time limit for reading the state directory."""

SAME_TICK_S = 300.0
"""Output newer than the heartbeat by at most this may belong to a tick that succeeded."""


class Elsewhere(ResilError):
    """The installation is on another machine, or belongs to another user, so it cannot be checked or changed here."""


def check_host(installation: Installation, context: Context, name: str) -> None:
    """Raise Elsewhere if an installation bound to one machine is on another one."""
    host = context.system.host
    if installation.host != host.name:
        raise Elsewhere(
            f"it is installed in the {name} of {installation.host}, and this is {host.name}",
            hint=f"log in there: ssh {installation.host}",
        )
    check_owner(installation, context, name)


def check_owner(installation: Installation, context: Context, name: str) -> None:
    """Raise Elsewhere if an installation belongs to another user."""
    host = context.system.host
    if installation.by != host.user:
        raise Elsewhere(
            f"it is installed in the {name} of {installation.by}, and you are {host.user}",
            hint=f"ask {installation.by}; every member of the project can stop it: resil cron stop",
        )


def output_file(context: Context, name: str, *, make: bool = True) -> str:
    """Return the output file of the last tick; creates its directory if `make`."""
    directory = context.state_dir / FOLDER / "driver"
    if make:
        make_directory(directory, mode=0o2770 if context.group else 0o700)
    return str(directory / f"{name}.out")


def heartbeat(context: Context) -> Heartbeat | None:
    """Return the last heartbeat of the scheduler; None: there is none.

    A child with a deadline reads it, because the state directory may hang. Raise ResilError if it cannot be read.
    """

    def read() -> dict[str, Any]:
        beat = CronDirectory(context.state_dir, context.group).heartbeat()
        return {} if beat is None else beat.to_json()

    ((_, answer),) = run_in_child({"heartbeat": (read, READ_S)})
    if answer.error is not None:
        raise answer.error
    return Heartbeat.from_json(answer.value) if answer.value else None


def last_words(context: Context, name: str) -> str:
    """Return the last line of a tick that failed; empty if it wrote its heartbeat, or no output.

    A tick that cannot start (a missing interpreter) writes output but no heartbeat. Read in a child, as in `heartbeat`.
    """

    def read() -> str:
        path = Path(output_file(context, name, make=False))
        with suppress(FileNotFoundError):
            written = path.stat().st_mtime
            lines = path.read_bytes()[-4096:].decode("utf-8", "replace").replace("\0", "").split("\n")
            said = [line.strip()[:200] for line in lines if line.strip()] or [""]
            with suppress(FileNotFoundError):
                if (path.parent.parent / "heartbeat").stat().st_mtime >= written - SAME_TICK_S:
                    return ""
            return said[-1]
        return ""

    ((_, answer),) = run_in_child({"last words": (read, READ_S)})
    return str(answer.value) if answer.error is None else ""


def table_state(table: str, installation: Installation, where: str) -> DriverState:
    """Return the state of an installation in a table. Pure."""
    tokens, again = {installation.token}, "restore it: resil cron install"
    if all(line.startswith("# resil:") for line in ours(table, tokens)):
        return DriverState(Liveness.GONE, f"our line is missing from {where}", hint=again)
    if off := disabled(table, tokens):
        reason = "its job was cancelled" if off[0].startswith("#DISABLED") else "it was commented out"
        return DriverState(Liveness.GONE, f"our line in {where} is disabled: {reason}", hint=again)
    return DriverState(Liveness.ALIVE, f"our line is in {where}")
