"""Adds the nodes that are excluded for all runs to a submission, as far as it can do without them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, NamedTuple

from resilience.attempts.elsewhere import read_standings
from resilience.errors import HostlistError, ResilError, SchedulerError, StateDirectoryError
from resilience.hostlist import expand, fold
from resilience.nodes.standing import State, choose
from resilience.runs.submit_plan import passed_options, read_own_script
from resilience.runs.templates.directives import parse_directives

if TYPE_CHECKING:
    from resilience.runs.project import Project
    from resilience.runs.submit_plan import SubmitRequest


class Without(NamedTuple):
    """A submission without bad nodes.

    Attributes:
        avoided: the nodes that were added to its exclusions, each with the reason.
        notes: what the user should know, a sentence each.
    """

    request: SubmitRequest
    avoided: Mapping[str, str]
    notes: tuple[str, ...]


def without_bad_nodes(project: Project, request: SubmitRequest) -> Without:
    """Return a submission that excludes the bad nodes besides those that the user excludes.

    Only names that the scheduler knows: sbatch refuses a job that names a node which is gone. Never raises: what cannot
    be read now, the next tick of a watchdog applies to the queued job.
    """
    try:
        standings = [one for one in read_standings(project) if one.state is State.EXCLUDED]
    except StateDirectoryError as error:
        return Without(request, {}, (f"what is known of bad nodes cannot be read: {error.message}",))
    if not standings:
        return Without(request, {}, ())
    names = fold(one.node for one in standings)
    if not project.loaded.settings.act.enabled:
        return Without(request, {}, (f"it would be submitted without {names} if [act] were enabled: resil nodes",))
    try:
        passed, options = _options(project, request)
        given = {*expand(request.exclude or options.get("exclude") or "")}
        asked_for = {*expand(options.get("nodelist") or "")}
        partitions = {*(options.get("partition") or "").split(",")}
        spares = project.loaded.settings.nodes.spares if request.script is None else 0
        needed = _first_number(options.get("nodes") or "1") + spares
        choice = choose(standings, project.scheduler().nodes(), partitions, needed, given=given)
    except HostlistError:  # sbatch says what is wrong with it
        return Without(request, {}, ())
    except SchedulerError as error:
        return Without(request, {}, (f"submitted with {names}, which should be avoided: {error.message}",))
    except ResilError:  # the script cannot be read: `prepare` says so
        return Without(request, {}, ())
    notes = (
        *(f"{node} is excluded, but {why}: it may be used" for node, why in choice.beyond.items()),
        *(f"{node} is excluded, but --nodelist asks for it: {choice.avoid[node]}"
          for node in sorted(asked_for & choice.avoid.keys())),
        *(f"{node} is excluded, but the scheduler does not know it (any more)" for node in choice.gone),
    )  # fmt: skip
    avoided = {node: why for node, why in choice.avoid.items() if node not in given | asked_for}
    if not avoided:
        return Without(request, {}, notes)
    if "exclude" in passed:
        return Without(request, {}, (*notes, f"--exclude after -- replaces that of {fold(avoided)}"))
    said = "; ".join(f"{node}: {why}" for node, why in avoided.items())
    request = replace(request, exclude=fold(given), avoid=fold(avoided))
    return Without(request, avoided, (*notes, f"without {fold(avoided)} ({said})"))


def _options(project: Project, request: SubmitRequest) -> tuple[Mapping[str, str | None], Mapping[str, str | None]]:
    """Return the options of sbatch that are passed through, and all of them: a command line replaces directives."""
    passed = passed_options(request.extra_args)
    if request.script is None:
        own = {str(key).replace("_", "-"): str(value) for key, value in project.loaded.settings.sbatch.items()}
        return passed, {**own, **passed}
    path = (project.system.cwd / request.script).resolve()
    return passed, {**dict(parse_directives(read_own_script(path)).options), **passed}


def _first_number(text: str) -> int:
    """Return the least number of nodes: 2 of `2-4`."""
    first = text.partition("-")[0]
    return int(first) if first.isdecimal() and first.isascii() else 1
