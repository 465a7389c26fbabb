"""`resil nodes`: what is known of the nodes that trainings run on; excludes and allows them, and checks them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from resilience.cli.nodes_check import check
from resilience.cli.options import ConfigOption, JsonOption, SchedulerOption, duration_s, open_project
from resilience.cli.output import clean, print_json, print_table, say
from resilience.errors import ResilError, SchedulerUnavailable, UsageError
from resilience.messages import suggest

if TYPE_CHECKING:
    from collections.abc import Sequence

    from resilience.nodes.evidence import Source
    from resilience.nodes.standing import Standing
    from resilience.runs.project import Project

NodesArgument = Annotated[str, typer.Argument(metavar="NODES", help="Nodes as in sinfo: n7, or n[1-3,7].")]
WhyOption = Annotated[str, typer.Option("--why", "-m", metavar="TEXT", help="The reason, for other users.")]
_COLOURS = {"excluded": "red", "probation": "yellow", "suspect": "yellow", "good": "green"}
LONGEST_S = 30 * 86400.0

app = typer.Typer(add_completion=False, rich_markup_mode=None)


@app.callback(
    invoke_without_command=True,
    epilog="Examples: resil nodes; resil nodes exclude n7 --why 'slow disk' --for 24h; resil nodes report n7",
)
def nodes_group(context: typer.Context, as_json: JsonOption = False, config: ConfigOption = None) -> None:
    """Show which nodes are bad or suspect, why, and until when jobs avoid them; exclude, allow and check nodes.

    Without a command: the nodes of which anything is known, the worst first.
    """
    if context.invoked_subcommand is None:
        _show(open_project(config), as_json=as_json)


app.command(
    epilog="Examples: resil nodes check; resil nodes check gpt --json; resil nodes check --with gpu --with 'm*'"
)(check)


@app.command(epilog="Examples: resil nodes exclude n7 --why 'slow disk'; resil nodes exclude n[1-3] --for 3d")
def exclude(
    nodes: NodesArgument,
    why: WhyOption = "",
    for_: Annotated[str, typer.Option("--for", metavar="TIME", help="How long: 12h, 3d.")] = "24h",
    config: ConfigOption = None,
    scheduler: SchedulerOption = "",
) -> None:
    """Keep the jobs of all runs away from nodes, for some time: those that are queued, and those submitted later."""
    from resilience.nodes.evidence import Source

    seconds = duration_s("--for", for_, least_s=60.0, most_s=LONGEST_S)
    project = open_project(config, scheduler)
    _decide(project, _known(project, nodes), Source.EXCLUDED, why, seconds)


@app.command(epilog="Examples: resil nodes allow n7; resil nodes allow n[1-3] --why 'new GPUs'")
def allow(
    nodes: NodesArgument, why: WhyOption = "", config: ConfigOption = None, scheduler: SchedulerOption = ""
) -> None:
    """Let jobs use nodes again, for instance after a repair: what was before counts no more."""
    from resilience.nodes.evidence import Source

    project = open_project(config, scheduler)
    wanted, known = _names(nodes), {one.node for one in _standings(project)}
    if not known.issuperset(wanted):  # a breaker may have excluded a node without evidence
        known = known.union(_nodes_of(project) or wanted)
    for node in wanted:
        if node not in known:
            raise UsageError(
                f"nothing is known of node {node}, and the scheduler has none", hint=suggest(node, sorted(known)[:50])
            )
    _decide(project, wanted, Source.ALLOWED, why)


@app.command(epilog="Examples: resil nodes report n7; resil nodes report n7 | mail -s 'node n7' support@example.org")
def report(
    node: Annotated[str, typer.Argument(metavar="NODE", help="A node of the table.")], config: ConfigOption = None
) -> None:
    """Write a message about a node for the administrators, with each observation: time, job, what was seen."""
    from contextlib import suppress

    from resilience.nodes.message import compose
    from resilience.nodes.standing import WEIGHTS, State

    project = open_project(config)
    standings = {one.node: one for one in _standings(project)}
    if node not in standings:
        raise UsageError(
            f"nothing is known of node {node}", hint=suggest(node, standings) if standings else "resil nodes"
        )
    if standings[node].state is State.GOOD and not any(one.source in WEIGHTS for one in standings[node].evidence):
        raise UsageError(f"nothing was seen of node {node}, and it is not excluded", hint="resil nodes")
    cluster = ""
    with suppress(ResilError):
        cluster = project.scheduler().config().cluster
    print("\n".join(map(clean, compose(standings[node], cluster, project.system.host.user).split("\n"))))


def _show(project: Project, *, as_json: bool) -> None:
    from resilience.nodes.evidence import Source, evidence_folder
    from resilience.quantities import format_duration

    standings, folder = _standings(project), evidence_folder(project)
    if as_json:
        print_json("nodes", {"directory": folder.path, "nodes": standings})
        return
    rows, now = [], project.system.clock.now()
    for one in standings:
        left = f"{format_duration(one.until - now)} left" if one.until > now else ""
        rows.append((one.node, f"{one.score:g}", one.state.value, left, one.why or "nothing counts against it now"))
        since = (e for e in one.evidence if e.source in (Source.AVOIDED, Source.USED) and e.time >= one.since > 0)
        rows += [("", "", "", "", f"-> {last.why}") for last in [*since][-1:]]
    if not rows:
        print(f"nothing is known of any node ({folder.path})")
        return
    colours = [_COLOURS.get(row[2], "dim") for row in rows]
    print_table(("NODE", "SCORE", "STATE", "EXCLUDED", "WHY"), rows, colours)
    if not project.loaded.settings.act.enabled and any(one.until > now for one in standings):
        print("nothing is excluded, this only tells: to have it done, set enabled = true under [act] in resil.toml")


def _standings(project: Project) -> Sequence[Standing]:
    from resilience.nodes.evidence import evidence_folder
    from resilience.nodes.standing import judge

    now, folder = project.system.clock.now(), evidence_folder(project)
    found = folder.read(now)
    if found.damaged:
        say(f"skipped {len(found.damaged)} damaged files in {folder.path}: {', '.join(found.damaged[:3])}")
    if found.ahead:
        say(f"{len(found.ahead)} files in {folder.path} do not count yet, by clocks that are ahead: {found.ahead[0]}")
    if found.older:
        say(f"{found.older} older records in {folder.path} were not read")
    return judge(found.evidence, now)


def _names(text: str) -> list[str]:
    """Return the nodes of a list, each once. Raise UsageError for what cannot be the name of one."""
    from resilience.hostlist import expand
    from resilience.nodes.evidence import is_node_name

    names = list(dict.fromkeys(expand(text)))
    for name in names or [text]:
        if not is_node_name(name):
            raise UsageError(f"{name!r} cannot be the name of a node", hint="names as in sinfo: n7, or n[1-3,7]")
    return names


def _known(project: Project, text: str) -> list[str]:
    """Return the nodes. Raise UsageError for one that the scheduler does not know."""
    wanted = _names(text)
    known = _nodes_of(project) or wanted
    for node in wanted:
        if node not in known:
            raise UsageError(f"there is no node {node!r}", hint=suggest(node, known[:50]))
    return wanted


def _nodes_of(project: Project) -> list[str]:
    """Return the nodes that there are; none if the scheduler does not answer, and that is said."""
    try:
        return [node.name for node in project.scheduler().nodes()]
    except SchedulerUnavailable as error:
        say(f"not checked whether there are such nodes: {error.message}")
        return []


def _decide(project: Project, nodes: Sequence[str], source: Source, why: str, seconds: float = 0.0) -> None:
    """Record the decision of this user, and make the queued jobs follow it."""
    from resilience.attempts.elsewhere import apply_standings
    from resilience.hostlist import fold
    from resilience.nodes.evidence import Evidence, evidence_folder
    from resilience.quantities import format_duration

    now, user = project.system.clock.now(), project.system.host.user
    folder = evidence_folder(project)
    folder.add([Evidence(node=node, time=now, source=source, why=why, about=f"{user} {now}", by=user,
                         until=now + seconds if seconds else 0.0) for node in nodes], now)  # fmt: skip
    how = f"excluded for {format_duration(seconds)}" if seconds else "allowed again"
    print(f"{clean(fold(nodes))}: {how}, for all runs that use {folder.path}")
    if not project.loaded.settings.act.enabled:
        print("  this only tells: to have it done, set enabled = true under [act] in resil.toml")
    try:
        for said in apply_standings(project):
            print(f"  {clean(said)}")
    except SchedulerUnavailable as error:
        raise SchedulerUnavailable(
            f"that is recorded; queued jobs are not changed yet: {error.message}",
            hint="the next `resil watch job` does it",
        ) from error
