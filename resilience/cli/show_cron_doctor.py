"""Prints what `resil cron doctor` found."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import TYPE_CHECKING, Any

from resilience.cli.output import clean, paint, table
from resilience.cli.show_cron import ignored_to_json
from resilience.finding import Verdict

if TYPE_CHECKING:
    from resilience.doctor.cron import CronExamination

_COLOURS = {Verdict.OK: "", Verdict.WARNING: "yellow", Verdict.UNKNOWN: "yellow", Verdict.CRITICAL: "red"}


def show_found(found: CronExamination) -> None:
    """A line for each thing that was looked at, and one for each that is ignored, with what to do."""
    cells: list[tuple[str, ...]] = []
    colours: list[str] = []
    for diagnosis in found.diagnoses:
        cells.append((diagnosis.verdict.value, diagnosis.topic, diagnosis.text))
        colours.append(_COLOURS[diagnosis.verdict])
        if diagnosis.advice:
            cells.append(("", "", f"-> {diagnosis.advice}"))
            colours.append("dim")
    for ignored in sorted(found.ignored, key=lambda one: not one.is_fault):
        cells.append(("CRITICAL" if ignored.is_fault else "ignored", ignored.place, ignored.reason))
        colours.append("red" if ignored.is_fault else "dim")
        if ignored.hint:
            cells.append(("", "", f"-> {ignored.hint}"))
            colours.append("dim")
    print("\n".join(table(("VERDICT", "TOPIC", "FOUND"), cells, colours)))
    if found.is_broken:
        print(paint("something that is meant to run does not: see CRITICAL", "red"))


def examination_to_json(found: CronExamination) -> dict[str, Any]:
    """The examination as JSON's own types."""
    return {
        "is_broken": found.is_broken,
        "diagnoses": [
            {"topic": d.topic, "verdict": d.verdict.value, "text": d.text, "advice": d.advice} for d in found.diagnoses
        ],
        "ignored": [ignored_to_json(ignored) for ignored in found.ignored],
    }


def show_environment(variables: Mapping[str, str], secret: Collection[str] = ()) -> None:
    """`NAME=value` lines; left out are the values of secrets, and of the variables that are named in `secret`."""
    for name, value in sorted(_shown(variables, secret).items()):
        print(clean(f"{name}={value}"))


def environment_to_json(variables: Mapping[str, str], secret: Collection[str] = ()) -> dict[str, Any]:
    """The environment as JSON's own types, as `show_environment`."""
    return {"environment": dict(sorted(_shown(variables, secret).items()))}


def _shown(variables: Mapping[str, str], secret: Collection[str]) -> dict[str, str]:
    from resilience.cron.table.environment import secrets_of
    from resilience.system.redaction import REDACTED

    secrets = set(secrets_of(variables, secret))
    return {name: REDACTED if value in secrets else value for name, value in variables.items()}
