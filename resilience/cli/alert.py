"""`resil alert list|show|ack|silence|unsilence|flush|test`."""

from __future__ import annotations

from datetime import datetime
from typing import Annotated

import typer

from resilience.alerts import commands as alerts
from resilience.cli import show_alert
from resilience.cli.options import ConfigOption, JsonOption, open_project
from resilience.cli.output import clean, patience, print_json
from resilience.errors import EX_TEMPFAIL, QuantityError, UsageError
from resilience.quantities import format_duration, parse_duration_s
from resilience.runs.project import Project

app = typer.Typer(add_completion=False, rich_markup_mode=None)


def complete_incidents(incomplete: str) -> list[str]:
    """Ids of open incidents for tab completion."""
    try:
        return [id for id in alerts.incident_ids(open_project(banner=False)) if id.startswith(incomplete)]
    except Exception:  # completion must never print a traceback into somebody's prompt
        return []


def complete_silences(incomplete: str) -> list[str]:
    """Ids of silences for tab completion."""
    try:
        return [id for id in alerts.silence_ids(open_project(banner=False)) if id.startswith(incomplete)]
    except Exception:
        return []


def complete_channels(incomplete: str) -> list[str]:
    """Names of channels for tab completion."""
    try:
        from resilience.alerts.routes import routes_of

        return [name for name in routes_of(open_project(banner=False)) if name.startswith(incomplete)]
    except Exception:
        return []


def complete_subjects(incomplete: str) -> list[str]:
    """Subjects of open incidents for tab completion."""
    try:
        known = alerts.listing(open_project(banner=False)).known
        return sorted({k.incident.subject for k in known if k.incident.subject.startswith(incomplete)})
    except Exception:
        return []


IncidentArgument = Annotated[
    str,
    typer.Argument(metavar="ID", help="The incident, or the beginning of its id.", autocompletion=complete_incidents),
]


@app.callback(
    invoke_without_command=True,
    epilog="Examples: resil alert; resil alert ack 3f9a1c04; resil alert silence --check fs --for 2h; resil alert test",
)
def alert_group(context: typer.Context) -> None:
    """List, acknowledge and silence incidents; deliver queued messages; test the channels.

    Without a command: `resil alert list`.
    """
    if context.invoked_subcommand is None:
        list_incidents()


@app.command("list", epilog="Examples: resil alert list; resil alert list --all; resil alert list --json")
def list_incidents(
    everything: Annotated[bool, typer.Option("--all", "-a", help="Those that ended of late as well.")] = False,
    as_json: JsonOption = False,
    config: ConfigOption = None,
) -> None:
    """Show the incidents: verdict, subject, age, notifications, and acknowledgement.

    Exits with 75 when the alert state could not be read, and there may be more.
    """
    project = open_project(config, banner=False)
    found = alerts.listing(project, everything=everything)
    if as_json:
        print_json("alerts", show_alert.listing_to_json(found))
    else:
        show_alert.show_listing(found, project.world.clock.now(), everything=everything)
    if found.is_partial:
        raise typer.Exit(EX_TEMPFAIL)


@app.command(epilog="Examples: resil alert show 3f9a1c04; resil alert show 3f9 --json")
def show(incident: IncidentArgument, as_json: JsonOption = False, config: ConfigOption = None) -> None:
    """Show the life of one incident: its evidence, and every notification."""
    project = open_project(config, banner=False)
    found = alerts.details(project, incident)
    if as_json:
        print_json("alert", show_alert.details_to_json(found))
    else:
        show_alert.show_details(found, project.world.clock.now())


@app.command(epilog='Examples: resil alert ack 3f9a1c04; resil alert ack 3f9 77e -m "deleting old checkpoints"')
def ack(
    incidents: Annotated[
        list[str],
        typer.Argument(metavar="ID...", help="Incidents, or beginnings of ids.", autocompletion=complete_incidents),
    ],
    note: Annotated[str, typer.Option("--note", "-m", metavar="TEXT", help="For the others.")] = "",
    undo: Annotated[bool, typer.Option("--undo", help="Remove the acknowledgement: reminders go on.")] = False,
    config: ConfigOption = None,
) -> None:
    """Acknowledge incidents: reminders and escalation stop. The end of an incident is still notified.

    Anybody who may write in the state directory can acknowledge.
    """
    for incident in alerts.acknowledge(open_project(config, banner=False), incidents, note, undo=undo):
        said = "acknowledgement removed" if undo else f"acknowledged by {incident.acknowledged_by}"
        print(f"{incident.episode} {clean(show_alert.what(incident))}: {clean(said)}")


@app.command(
    epilog='Examples: resil alert silence 3f9a1c04 --for 2h; resil alert silence --subject "/scratch*" --until 07:30'
)
def silence(
    incident: Annotated[
        str,
        typer.Argument(metavar="[ID]", help="One incident.", autocompletion=complete_incidents, show_default=False),
    ] = "",
    check: Annotated[str, typer.Option("--check", metavar="PATTERN", help="Of these watchdogs: fs, job ...")] = "",
    subject: Annotated[
        str,
        typer.Option("--subject", metavar="PATTERN", help="About this: /scratch*", autocompletion=complete_subjects),
    ] = "",
    run: Annotated[str, typer.Option("--run", "-r", metavar="PATTERN", help="About these runs.")] = "",
    fault: Annotated[str, typer.Option("--fault", metavar="PATTERN", help="Only this fault: space, inodes ...")] = "",
    duration: Annotated[str, typer.Option("--for", metavar="DURATION", help="How long: 30m, 2h, 3d.")] = "",
    until: Annotated[
        str, typer.Option("--until", metavar="TIME", help="Until when: 2026-12-24T18:00, or 07:30, the next one.")
    ] = "",
    why: Annotated[str, typer.Option("--why", "-m", metavar="TEXT", help="For the others.")] = "",
    show_all: Annotated[bool, typer.Option("--list", help="Show the silences that hold now.")] = False,
    config: ConfigOption = None,
) -> None:
    """Hold notifications back for a while. Incidents are still recorded, and notified when the silence ends.

    All patterns that are given must match. A silence always has an end.
    """
    project = open_project(config, banner=False)
    now = project.world.clock.now()
    if show_all:
        found = alerts.listing(project).silences
        show_alert.show_silences(found, now)
        if not found:
            print("nothing is silenced")
        return
    made, covered = alerts.silence(
        project,
        incident_id=incident,
        check=check,
        subject=subject,
        run=run,
        fault=fault,
        until=_end(duration, until, now),
        why=why,
    )
    print(f"silence {made.id} for {format_duration(made.until - now)}: {clean(show_alert.scope(made))}")
    for one in covered:
        print(f"  it covers {one.episode} {clean(show_alert.what(one))}")
    if not covered:
        print("  no open incident fits it now; what comes will")
    print(f"  end it: resil alert unsilence {made.id}")


def _end(duration: str, until: str, now: float) -> float:
    """When a silence ends. Raise UsageError if that is not said, said twice, or cannot be understood."""
    if bool(duration) == bool(until):
        said = "--for and --until cannot be given together" if duration else "a silence must have an end"
        raise UsageError(said, hint="say for how long: --for 2h; or until when: --until 07:30")
    if duration:
        return now + parse_duration_s(duration)
    try:
        if len(until) <= 5 and ":" in until:
            local = datetime.fromtimestamp(now).astimezone()
            clock = datetime.strptime(until, "%H:%M")  # noqa: DTZ007 - only its hour and minute are used
            end = local.replace(hour=clock.hour, minute=clock.minute, second=0, microsecond=0).timestamp()
            return end if end > now else end + 86400.0
        return datetime.fromisoformat(until).astimezone().timestamp()
    except (ValueError, OverflowError, OSError):
        raise QuantityError(f"{until!r} is no time", hint="write for instance 2026-12-24T18:00, or 07:30") from None


@app.command(epilog="Examples: resil alert unsilence 77e0d2b1; see them: resil alert silence --list")
def unsilence(
    silences: Annotated[list[str], typer.Argument(metavar="ID...", help="Silences.", autocompletion=complete_silences)],
    config: ConfigOption = None,
) -> None:
    """End silences now."""
    for ended in alerts.unsilence(open_project(config, banner=False), silences):
        print(f"silence {ended.id} ended: {clean(show_alert.scope(ended))}")


@app.command(epilog="Examples: resil alert flush; resil alert flush --dry-run; resil alert flush --retry-dead")
def flush(
    due: Annotated[bool, typer.Option("--due", help="For cron: skip channels that failed a moment ago.")] = False,
    retry_dead: Annotated[bool, typer.Option("--retry-dead", help="Try the dead letters again as well.")] = False,
    discard_dead: Annotated[bool, typer.Option("--discard-dead", help="Remove the dead letters for good.")] = False,
    dry_run: Annotated[bool, typer.Option("--dry-run", "-n", help="Show the queue, and send nothing.")] = False,
    config: ConfigOption = None,
) -> None:
    """Deliver the queued messages now, from any node that reaches the channels.

    Exits with 0 when nothing is queued any more, 75 when something is, 1 when a channel refused a message for good.
    """
    project = open_project(config, banner=False)
    if retry_dead and discard_dead:
        raise UsageError("--retry-dead and --discard-dead cannot be given together")
    if dry_run:
        _show_drafts(project)
        return
    if discard_dead:
        print(f"{_letters(len(alerts.discard(project)))} removed")
    if retry_dead:
        print(f"{_letters(len(alerts.requeue(project)))} queued again")
    raise typer.Exit(_flush(project, patient=due))


def _letters(count: int) -> str:
    return "1 dead letter" if count == 1 else f"{count} dead letters"


def _flush(project: Project, *, patient: bool) -> int:
    sent = dead = 0
    last = None
    from resilience.cron import notes

    with patience("a channel takes its time; messages that are not sent stay queued"):
        for last in alerts.deliver(project, notes=notes, patient=patient):
            for delivery in (*last.sent, *last.failed, *last.dead):
                print(show_alert.delivery_line(delivery), flush=True)
            sent += len(last.sent)
            dead += len(last.dead)
    assert last is not None, "there is always one round"
    for channel, why in last.paused.items():
        print(f"{channel}: left alone: {clean(why)}")
    if last.error:
        print(f"  {clean(last.error)}")
    if last.waiting:
        print(f"{last.waiting} {'message' if last.waiting == 1 else 'messages'} still queued")
    elif not sent and not dead and last.error:
        print("the outbox cannot be read")
        return EX_TEMPFAIL
    elif not sent and not dead:
        print("nothing is queued")
    return 1 if dead else EX_TEMPFAIL if last.waiting else 0


def _show_drafts(project: Project) -> None:
    found = alerts.drafts(project)
    for entry, text in found:
        print(f"{entry.channel}: {entry.alert.id}" + ("" if text is not None else " (after the one before it)"))
        for line in (text or "").splitlines():
            print(f"  {clean(line)}")
    if not found:
        print("nothing is queued")


@app.command(epilog="Examples: resil alert test; resil alert test email; resil alert test slack --dry-run")
def test(
    channel: Annotated[
        str,
        typer.Argument(metavar="[CHANNEL]", help="Default: all.", autocompletion=complete_channels, show_default=False),
    ] = "",
    dry_run: Annotated[bool, typer.Option("--dry-run", "-n", help="Show the message, and send nothing.")] = False,
    as_json: JsonOption = False,
    config: ConfigOption = None,
) -> None:
    """Send a real message through each channel and print the answers. Exits with 1 when a channel did not take it."""
    project = open_project(config, banner=False)
    routes = alerts.routes_to_test(project, channel)
    if dry_run:
        for name, text in alerts.compose_tests(project, routes):
            print(f"{name}:")
            for line in text.splitlines():
                print(f"  {clean(line)}")
        return
    outcomes = {}
    with patience("a channel takes its time"):
        for name, outcome in alerts.send_tests(project, routes):
            outcomes[name] = outcome
            if not as_json:
                print(show_alert.trial_line(name, outcome), flush=True)
    if as_json:
        print_json("alert-test", show_alert.trial_to_json(outcomes))
    if any(outcome.error for outcome in outcomes.values()):
        raise typer.Exit(1)
