"""`resil doctor` and `resil config check|show`: checks the cluster and the settings."""

from __future__ import annotations

from collections.abc import Iterable
from contextlib import suppress
from typing import TYPE_CHECKING, Annotated

import typer

from resilience.cli.options import ConfigOption, JsonOption, SchedulerOption, duration_s, open_project, single_command
from resilience.cli.output import plain, print_json, print_table, verdict_colour, warn_of_dead_letters
from resilience.errors import UsageError

if TYPE_CHECKING:
    from resilience.doctor.diagnosis import Diagnosis


@single_command("Examples: resil doctor; resil doctor --on-node; resil doctor --scheduler slurm --json")
def doctor(
    on_node: Annotated[
        bool, typer.Option("--on-node", help="Also ask from inside a job: training's Python, state directory, mail.")
    ] = False,
    wait: Annotated[
        str, typer.Option("--wait", metavar="DURATION", help="With --on-node: how long to wait for the job.")
    ] = "10m",
    as_json: JsonOption = False,
    config: ConfigOption = None,
    scheduler: SchedulerOption = "",
) -> None:
    """Check this cluster and report likely problems: one line each, with a verdict and advice.

    Exits with 1 when something is CRITICAL, else 0.
    """
    from resilience.doctor.doctor import Examination, examine
    from resilience.finding import Verdict

    wait_s = duration_s("--wait", wait)
    project = open_project(config, scheduler)
    found = examine(project)
    if on_node:
        from resilience.cli.output import say
        from resilience.doctor.on_node import examine_on_node

        found = Examination((*found.diagnoses, *examine_on_node(project, wait_s, say)))
    if as_json:
        print_json("doctor", {"verdict": found.worst} | plain(found))
    else:
        show_diagnoses(found.diagnoses)
    if found.worst is Verdict.CRITICAL:
        raise typer.Exit(1)


def show_diagnoses(diagnoses: Iterable[Diagnosis], more: Iterable[tuple[str, str, str, str, str]] = ()) -> None:
    """Print a line for each diagnosis, with its advice below. `more`: tuples of (verdict, topic, text, advice,
    colour)."""
    cells, colours = [], []
    rows = [(d.verdict.value, d.topic, d.text, d.advice, verdict_colour(d.verdict)) for d in diagnoses]
    for verdict, topic, text, advice, colour in [*rows, *more]:
        cells.append((verdict, topic, text))
        colours.append(colour)
        if advice:
            cells.append(("", "", f"-> {advice}"))
            colours.append("dim")
    print_table(("VERDICT", "TOPIC", "FINDING"), cells, colours)


config = typer.Typer(add_completion=False, rich_markup_mode=None, no_args_is_help=True)


@config.callback()
def config_group() -> None:
    """Check the settings, or show where each comes from."""


@config.command(epilog="Examples: resil config check; resil config check -c other.toml")
def check(config: ConfigOption = None) -> None:
    """Check the settings, and print every error and warning. Exits with 2 when there is an error."""
    from resilience.cli.output import print_error, print_warnings
    from resilience.doctor.settings import act_warnings, find_errors, submit_warnings
    from resilience.messages import plural
    from resilience.system.ports import System

    project, errors = find_errors(System(), config)
    warn_of_dead_letters(project)
    path = project.loaded.path
    for error in errors:
        print_error(error)
    with suppress(UsageError):  # printed above
        print_warnings(submit_warnings(project))
        print_warnings(act_warnings(project))
    where = str(path) if path is not None else "the environment"
    if errors:
        print(f"{where}: {plural(len(errors), 'error')}")
        raise typer.Exit(2)
    print(f"{where}: valid" if path is not None else "there is no resil.toml; the defaults are valid")


@config.command(epilog="Examples: resil config show; resil config show --origin; resil config show --json")
def show(
    origin: Annotated[bool, typer.Option("--origin", help="Show where each setting comes from.")] = False,
    as_json: JsonOption = False,
    config: ConfigOption = None,
) -> None:
    """Show the effective settings. Values that look like secrets are redacted."""
    from resilience.settings.show import redacted, rows

    found = [redacted(row) for row in rows(open_project(config).loaded)]
    if as_json:
        print_json("config", {"settings": found})
        return
    headers = ("SETTING", "VALUE", "FROM") if origin else ("SETTING", "VALUE")
    print_table(headers, [(row.key, _value(row.value), row.origin)[: len(headers)] for row in found])


def _value(value: object) -> str:
    if value is None:
        return "(unset)"
    return str(list(value)) if isinstance(value, tuple) else repr(value) if isinstance(value, str) else str(value)
