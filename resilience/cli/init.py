"""`resil init`."""

from __future__ import annotations

from typing import Annotated

import typer

from resilience.runs.init import init
from resilience.system.world import World

app = typer.Typer(add_completion=False, rich_markup_mode=None)


@app.command(epilog="Examples: resil init; resil init --from old.sbatch; resil init ~/runs/gpt")
def command(
    folder: Annotated[str, typer.Argument(metavar="[FOLDER]", help="Default: here.", show_default=False)] = "",
    source: Annotated[
        str, typer.Option("--from", metavar="SCRIPT", help="Take over the #SBATCH lines of a batch script.")
    ] = "",
    force: Annotated[bool, typer.Option("--force", help="Write a new resil.toml over the one there is.")] = False,
) -> None:
    """Write a commented resil.toml and the cron folder. Asks nothing; keeps what is there."""
    here = World().cwd  # the settings there are may be what is broken; they are not read
    target = (here / folder).resolve()
    script = (here / source).resolve() if source else None
    done = init(folder=target, source=script, force=force)
    for path in done.written:
        print(f"wrote {path}")
    for path in done.kept:
        print(f"kept  {path}")
    for note in done.notes:
        print(f"note: {note}")
    print("next: set `command` in resil.toml, then: resil submit --array 10 --dry-run")
    print("and:  resil cron install  # the watchdogs in cron/ look by themselves; whom they tell stands in [alert]")
