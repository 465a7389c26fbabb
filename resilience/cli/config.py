"""`resil config check|show`."""

from __future__ import annotations

from typing import Annotated

import typer

from resilience.cli.options import ConfigOption, JsonOption, open_project
from resilience.cli.output import print_json, table
from resilience.settings.show import hidden, rows

app = typer.Typer(add_completion=False, rich_markup_mode=None, no_args_is_help=True)


@app.callback()
def config_group() -> None:
    """Check the settings, or show where each comes from."""


@app.command(epilog="Examples: resil config check; resil config check -c other.toml")
def check(config: ConfigOption = None) -> None:
    """Say whether the settings can be used. Exits with 2 and the reason when they cannot."""
    project = open_project(config)
    from resilience.doctor.settings import check_settings

    check_settings(project)
    path = project.loaded.path
    print(f"{path}: good" if path is not None else "there is no resil.toml; the defaults are good")


@app.command(epilog="Examples: resil config show; resil config show --origin; resil config show --json")
def show(
    origin: Annotated[bool, typer.Option("--origin", help="Where each setting comes from.")] = False,
    as_json: JsonOption = False,
    config: ConfigOption = None,
) -> None:
    """Show every setting that counts. What looks like a secret is hidden."""
    found = [hidden(row) for row in rows(open_project(config).loaded)]
    if as_json:
        print_json("config", {"settings": [{"key": r.key, "value": r.value, "origin": r.origin} for r in found]})
        return
    headers = ("SETTING", "VALUE", "FROM") if origin else ("SETTING", "VALUE")
    cells = [(row.key, _value(row.value), row.origin) for row in found]
    print("\n".join(table(headers, [cell[: len(headers)] for cell in cells])))


def _value(value: object) -> str:
    if value is None:
        return "(unset)"
    return str(list(value)) if isinstance(value, tuple) else repr(value) if isinstance(value, str) else str(value)
