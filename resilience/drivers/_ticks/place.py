"""Where an installation lives, where its ticks write, and how it stands in a table."""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path

from resilience.drivers._ticks.editing import disabled, ours
from resilience.errors import ResilError, StateDirectoryError
from resilience.model.cron import Installation
from resilience.model.driver import DriverState
from resilience.model.presence import Liveness
from resilience.system.cron_folder import FOLDER
from resilience.system.files import make_folder
from resilience.system.scene import Scene


class Elsewhere(ResilError):
    """It lives on another machine, or belongs to another person: from here it can be neither seen nor changed."""


def wrong_host(installation: Installation, scene: Scene, name: str) -> None:
    """Raise Elsewhere if an installation that lives on one machine lives on another one than this."""
    host = scene.world.host
    if installation.host != host.name:
        raise Elsewhere(
            f"it lives in the {name} of {installation.host}, and this is {host.name}",
            hint=f"go there: ssh {installation.host}",
        )
    wrong_person(installation, scene, name)


def wrong_person(installation: Installation, scene: Scene, name: str) -> None:
    """Raise Elsewhere if an installation belongs to somebody else."""
    host = scene.world.host
    if installation.by != host.user:
        raise Elsewhere(
            f"it lives in the {name} of {installation.by}, and you are {host.user}",
            hint=f"ask {installation.by}; everybody of the project can stop it: resil cron stop",
        )


def output_file(scene: Scene, name: str, *, make: bool = True) -> str:
    """The file that has what the last tick wrote; its folder is made, unless `make` is False."""
    folder = scene.state_dir / FOLDER / "driver"
    if make:
        make_folder(folder, mode=0o2770 if scene.group else 0o700)
    return str(folder / f"{name}.out")


def last_words(scene: Scene, name: str) -> str:
    """The last line that a tick wrote before it ended; empty: there is none."""
    with suppress(OSError, StateDirectoryError):
        raw = Path(output_file(scene, name, make=False)).read_bytes()[-2000:]
        lines = [line.strip() for line in raw.decode("utf-8", "replace").splitlines() if line.strip(" \0\t")]
        return lines[-1][:200] if lines else ""
    return ""


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
