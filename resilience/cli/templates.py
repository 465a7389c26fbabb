"""`resil templates`."""

from __future__ import annotations

from typing import Annotated

import typer

from resilience.cli.options import ConfigOption, JsonOption, complete_templates, open_project
from resilience.cli.output import print_json, table
from resilience.runs.templates.script import template_library

app = typer.Typer(add_completion=False, rich_markup_mode=None)


@app.command(
    epilog="Examples: resil templates; resil templates torchrun; resil templates torchrun --source > my.sbatch.j2"
)
def command(
    name: Annotated[
        str,
        typer.Argument(metavar="[NAME]", help="Show this one.", autocompletion=complete_templates, show_default=False),
    ] = "",
    source: Annotated[bool, typer.Option("--source", help="Write the template's text.")] = False,
    as_json: JsonOption = False,
    config: ConfigOption = None,
) -> None:
    """List the sbatch templates, each with where it was found; or show what one is for and what it takes."""
    library = template_library(open_project(config))
    if name and source:
        print(library.source(name), end="")
        return
    if name:
        library.source(name)  # an unknown name is an error with the nearest one
    infos = [info for info in library.list() if not name or info.name == name]
    if as_json:
        content = [
            {
                "name": info.name,
                "origin": info.origin,
                "path": str(info.path),
                "summary": info.summary,
                "documentation": list(info.documentation),
                "shadowed": info.shadowed,
            }
            for info in infos
        ]
        print_json("templates", {"templates": content})
    elif name:
        info = next(info for info in infos if not info.shadowed)
        print(f"{info.name} ({info.origin}: {info.path})")
        print("\n".join(info.documentation))
    else:
        cells = [
            (info.name, info.origin + (" (shadowed)" if info.shadowed else ""), info.summary, str(info.path))
            for info in infos
        ]
        print("\n".join(table(("NAME", "FOUND", "FOR", "PATH"), cells)))
