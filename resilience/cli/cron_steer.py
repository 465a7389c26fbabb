"""The commands of `resil cron` that start, stop and are the scheduler: install, run, tick, stop, uninstall, canary."""

from __future__ import annotations

from typing import Annotated

import typer

from resilience.cli.cron_options import complete_backends, duration_s, open_cron_project
from resilience.cli.options import ConfigOption, JsonOption

_DryRun = Annotated[bool, typer.Option("--dry-run", help="Show what would be done, and do nothing.")]


def install(
    backend: Annotated[
        str,
        typer.Option(
            "--backend", "-b", metavar="NAME", autocompletion=complete_backends,
            help="Who makes the ticks: auto, scrontab, crontab, systemd, slurm or foreground. Default: [cron] backend.",
        ),
    ] = "",
    mode: Annotated[
        str,
        typer.Option(
            "--mode", metavar="MODE",
            help="Of the backend slurm: daemon, one small job that ticks, or pulse, a short job for each tick.",
        ),
    ] = "",
    replace: Annotated[
        bool, typer.Option("--replace", help="Take out what is installed already, if it is another backend.")
    ] = False,
    dry_run: _DryRun = False,
    as_json: JsonOption = False,
    config: ConfigOption = None,
) -> None:  # fmt: skip
    """Have ticks made from now on, by the best that this site offers, and say what was chosen and why.

    Doing it again does nothing; after `resil cron stop` it goes on. Never touches a line that it did not write.
    """
    from resilience.cli.show_cron_driver import show_install

    overrides = {"cron.mode": mode} if mode else {}
    cron = open_cron_project(config, overrides=overrides)
    raise typer.Exit(show_install(cron, backend=backend, replace=replace, dry_run=dry_run, as_json=as_json))


def uninstall(
    force: Annotated[
        bool, typer.Option("--force", help="Forget it also where it could not be taken out: its host is gone.")
    ] = False,
    dry_run: _DryRun = False,
    as_json: JsonOption = False,
    config: ConfigOption = None,
) -> None:
    """Undo `resil cron install`: no tick comes any more. The cron folder and the histories stay."""
    from resilience.cli.show_cron_driver import show_uninstall

    raise typer.Exit(show_uninstall(open_cron_project(config), force=force, dry_run=dry_run, as_json=as_json))


def stop(
    why: Annotated[str, typer.Option("--why", "-m", metavar="TEXT", help="For those who find it stopped.")] = "",
    as_json: JsonOption = False,
    config: ConfigOption = None,
) -> None:
    """Stop for good: nothing runs any more, queued scheduler jobs are cancelled, and none is submitted again.

    What runs right now is left to end. It stays stopped until `resil cron install`.
    """
    from resilience.cli.show_cron_driver import show_stop

    raise typer.Exit(show_stop(open_cron_project(config), why=why, as_json=as_json))


def run(
    once: Annotated[bool, typer.Option("--once", help="One tick, and wait for what it started.")] = False,
    driver: Annotated[str, typer.Option("--driver", metavar="NAME", help="Who calls, for the heartbeat.")] = "",
    config: ConfigOption = None,
) -> None:
    """Be the scheduler, here in the foreground: for tmux, a container, a login node. SIGTERM and Ctrl-C end it cleanly.

    A second one does no harm: each slot runs once.
    """
    from resilience.cli.run_cron import run_loop

    raise typer.Exit(run_loop(open_cron_project(config), driver=driver, once=once))


def tick(
    wait: Annotated[bool, typer.Option("--wait/--no-wait", help="Return when all that was started has ended.")] = True,
    driver: Annotated[str, typer.Option("--driver", metavar="NAME", help="Who calls, for the heartbeat.")] = "",
    dry_run: _DryRun = False,
    as_json: JsonOption = False,
    config: ConfigOption = None,
) -> None:
    """Look once: run and submit what is due, and leave a sign of life. What any other scheduler calls.

    Exits with 0 also when something that ran has failed: that is told by the alerts, and by `resil cron history`.
    """
    from resilience.cli.run_cron import run_tick

    cron = open_cron_project(config)
    raise typer.Exit(run_tick(cron, driver=driver, wait=wait, dry_run=dry_run, as_json=as_json))


def canary(
    wait: Annotated[
        str, typer.Option("--wait", metavar="DURATION", help="How long to wait until it was delivered.")
    ] = "5m",
    as_json: JsonOption = False,
    config: ConfigOption = None,
) -> None:
    """Have the scheduler itself send an alert, and wait until it has arrived: proof that the whole way works.

    Exits with 0 when it was delivered, 1 when a channel refused it, 75 when it did not come in time.
    """
    from resilience.cli.show_cron_driver import show_canary

    wait_s = duration_s("--wait", wait)
    raise typer.Exit(show_canary(open_cron_project(config), wait_s=wait_s, as_json=as_json))


def job(context: typer.Context, config: ConfigOption = None) -> None:
    """Be the scheduler's own job: what the batch script of the backend slurm calls."""
    from resilience.cron.job import main

    raise typer.Exit(main(open_cron_project(config), context.args))
