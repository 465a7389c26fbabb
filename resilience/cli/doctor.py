"""`resil doctor`."""

from __future__ import annotations

import typer

from resilience.cli.options import ConfigOption, JsonOption, SchedulerOption, open_project
from resilience.cli.output import print_json, table
from resilience.doctor.doctor import examine
from resilience.finding import Verdict

_COLOURS = {Verdict.OK: "", Verdict.WARNING: "yellow", Verdict.UNKNOWN: "yellow", Verdict.CRITICAL: "red"}

app = typer.Typer(add_completion=False, rich_markup_mode=None)


@app.command(epilog="Examples: resil doctor; resil doctor --scheduler slurm --json")
def command(as_json: JsonOption = False, config: ConfigOption = None, scheduler: SchedulerOption = "") -> None:
    """Say what this cluster supports and what would bite: one line each, with a verdict and what to do.

    Exits with 1 when something is CRITICAL, else 0.
    """
    found = examine(open_project(config, scheduler))
    if as_json:
        lines = [
            {"topic": d.topic, "verdict": d.verdict.value, "text": d.text, "advice": d.advice} for d in found.diagnoses
        ]
        print_json("doctor", {"verdict": found.worst.value, "diagnoses": lines})
    else:
        cells, colours = [], []
        for diagnosis in found.diagnoses:
            cells.append((diagnosis.verdict.value, diagnosis.topic, diagnosis.text))
            colours.append(_COLOURS[diagnosis.verdict])
            if diagnosis.advice:
                cells.append(("", "", f"-> {diagnosis.advice}"))
                colours.append("dim")
        print("\n".join(table(("VERDICT", "TOPIC", "FOUND"), cells, colours)))
    if found.worst is Verdict.CRITICAL:
        raise typer.Exit(1)
