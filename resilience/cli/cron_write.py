"""The commands of `resil cron` that write in the cron folder: add, remove, prune."""

from __future__ import annotations

from typing import Annotated

import typer

from resilience.cli.cron_options import complete_entries, open_cron_project
from resilience.cli.options import ConfigOption, JsonOption

_DryRun = Annotated[bool, typer.Option("--dry-run", help="Show what would be done, and do nothing.")]


def add(
    name: Annotated[str, typer.Argument(metavar="NAME", help="Letters, digits, - and _.")],
    command: Annotated[list[str] | None, typer.Argument(metavar="-- COMMAND...", help="What to run.")] = None,
    minutely: Annotated[bool, typer.Option("--minutely", help="Every minute.")] = False,
    quarter_hourly: Annotated[bool, typer.Option("--quarter-hourly", help="At :00, :15, :30 and :45.")] = False,
    hourly: Annotated[bool, typer.Option("--hourly", help="At the full hour.")] = False,
    daily: Annotated[bool, typer.Option("--daily", help="At midnight.")] = False,
    weekly: Annotated[bool, typer.Option("--weekly", help="On Sunday at midnight.")] = False,
    monthly: Annotated[bool, typer.Option("--monthly", help="On the first at midnight.")] = False,
    schedule: Annotated[
        str, typer.Option("--cron", metavar="SCHEDULE", help='Five fields, or "@every 90s", "@reboot", "@daily" ...')
    ] = "",
    timeout: Annotated[str, typer.Option("--timeout", metavar="DURATION", help="End it after so long.")] = "",
    overlap: Annotated[
        str, typer.Option("--overlap", metavar="POLICY", help="While the last still runs: skip, allow or replace.")
    ] = "",
    catch_up: Annotated[
        str, typer.Option("--catch-up", metavar="POLICY", help="Missed slots: none, once, or all<=N.")
    ] = "",
    jitter: Annotated[str, typer.Option("--jitter", metavar="DURATION", help="Start up to so long after.")] = "",
    ok: Annotated[str, typer.Option("--ok", metavar="CODES", help="Exit codes that are no failure: 0-3.")] = "",
    rerun: Annotated[bool, typer.Option("--rerun", help="Safe to repeat: run again what was cut short.")] = False,
    shell: Annotated[bool, typer.Option("--shell", help="The command is one line for /bin/sh.")] = False,
    submit: Annotated[bool, typer.Option("--submit", help="As a job of its own, with sbatch.")] = False,
    dry_run: _DryRun = False,
    as_json: JsonOption = False,
    config: ConfigOption = None,
) -> None:
    """Schedule a command: as a drop-in of a folder, or with --cron as a line of the crontab. Shows its next runs."""
    from resilience.cli.show_cron_change import show_add
    from resilience.cron.add import NewEntry

    folders = {"minutely": minutely, "quarter_hourly": quarter_hourly, "hourly": hourly,
               "daily": daily, "weekly": weekly, "monthly": monthly}  # fmt: skip
    options = {"timeout": timeout, "overlap": overlap, "catch_up": catch_up, "jitter": jitter, "ok": ok}
    wanted = NewEntry(
        name=name,
        command=tuple(command or ()),
        folders=tuple(folder for folder, is_wanted in folders.items() if is_wanted),
        schedule=schedule,
        options={key: value for key, value in options.items() if value} | ({"rerun": ""} if rerun else {}),
        shell=shell,
        submit=submit,
    )
    show_add(open_cron_project(config), wanted, dry_run=dry_run, as_json=as_json)


def remove(
    names: Annotated[
        list[str], typer.Argument(metavar="NAME...", help="Entries.", autocompletion=complete_entries)
    ],
    dry_run: _DryRun = False,
    as_json: JsonOption = False,
    config: ConfigOption = None,
) -> None:  # fmt: skip
    """Schedule something no more: removes the drop-in (of a symbolic link, the link alone) or the crontab's line.

    What runs right now is left to end; histories and outputs stay until `resil cron prune`.
    """
    from resilience.cli.show_cron_change import show_remove

    show_remove(open_cron_project(config), names, dry_run=dry_run, as_json=as_json)


def prune(dry_run: _DryRun = False, as_json: JsonOption = False, config: ConfigOption = None) -> None:
    """Remove what is kept for too long: old outputs and histories, what belongs to entries gone for 30 days, and marks
    of runs that are dead."""
    from resilience.cli.show_cron_change import show_prune

    show_prune(open_cron_project(config), dry_run=dry_run, as_json=as_json)
