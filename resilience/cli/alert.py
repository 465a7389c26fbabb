"""`resil alert list|show|ack|silence|unsilence|flush|test`."""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime
from typing import Annotated, Any

import typer

from resilience.alerts import commands as alerts
from resilience.alerts.commands import NO_CHANNEL, Details, IncidentStatus, Listing
from resilience.alerts.delivery import Delivery
from resilience.alerts.incident import Incident, Silence
from resilience.alerts.outbox import Entry
from resilience.alerts.sending import DeliveryStatus, Outcome
from resilience.cli.options import ConfigOption, JsonOption, completion, open_project
from resilience.cli.output import (
    chosen,
    clean,
    paint,
    patience,
    plain,
    print_indented,
    print_json,
    print_table,
    verdict_colour,
)
from resilience.errors import EX_TEMPFAIL, QuantityError, UsageError
from resilience.messages import cut, plural
from resilience.quantities import format_duration, parse_duration_s
from resilience.runs.project import Project

app = typer.Typer(add_completion=False, rich_markup_mode=None)


@completion
def complete_incidents() -> Iterable[str]:
    """Return the ids of open incidents."""
    return alerts.incident_ids(open_project(banner=False))


@completion
def complete_silences() -> Iterable[str]:
    """Return the ids of silences."""
    return alerts.silence_ids(open_project(banner=False))


@completion
def complete_channels() -> Iterable[str]:
    """Return the names of channels."""
    from resilience.alerts.routes import routes_of

    return routes_of(open_project(banner=False))


@completion
def complete_subjects() -> Iterable[str]:
    """Return the subjects of open incidents."""
    return sorted({known.incident.subject for known in alerts.listing(open_project(banner=False)).known})


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
    everything: Annotated[bool, typer.Option("--all", "-a", help="Show recently resolved incidents as well.")] = False,
    as_json: JsonOption = False,
    config: ConfigOption = None,
) -> None:
    """Show the incidents, and the channels that were notified.

    Exits with 75 when the alert state could not be read, and there may be more.
    """
    project = open_project(config, banner=False)
    found = alerts.listing(project, everything=everything)
    if as_json:
        print_json("alerts", listing_to_json(found))
    else:
        show_listing(found, project.system.clock.now(), everything=everything)
    if found.is_partial:
        raise typer.Exit(EX_TEMPFAIL)


@app.command(epilog="Examples: resil alert show 3f9a1c04; resil alert show 3f9 --json")
def show(incident: IncidentArgument, as_json: JsonOption = False, config: ConfigOption = None) -> None:
    """Show the history of one incident, with its evidence."""
    project = open_project(config, banner=False)
    found = alerts.details(project, incident)
    if as_json:
        print_json("alert", details_to_json(found))
    else:
        show_details(found, project.system.clock.now())


@app.command(
    epilog='Examples: resil alert ack 3f9a1c04; resil alert ack 3f9 77e -m "deleting old checkpoints"; '
    "resil alert ack --check fs"
)
def ack(
    ids: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="ID...",
            help="Incidents or messages, or the beginnings of their ids.",
            autocompletion=complete_incidents,
            show_default=False,
        ),
    ] = None,
    everything: Annotated[bool, typer.Option("--all", "-a", help="Acknowledge all open incidents.")] = False,
    check: Annotated[str, typer.Option("--check", metavar="PATTERN", help="Acknowledge those of a watchdog.")] = "",
    note: Annotated[str, typer.Option("--note", "-m", metavar="TEXT", help="Note for other users.")] = "",
    undo: Annotated[bool, typer.Option("--undo", help="Remove the acknowledgement: reminders resume.")] = False,
    config: ConfigOption = None,
) -> None:
    """Acknowledge incidents: reminders and escalation stop.

    The resolution is still notified. The id of a message stands for all incidents in the message. Anyone with write
    access to the state directory can acknowledge.
    """
    if sum(map(bool, (ids, everything, check))) != 1:
        raise UsageError(
            "name incidents, or give one of --all and --check", hint="resil alert ack --all; their ids: resil alert"
        )
    project = open_project(config, banner=False)
    changed = alerts.acknowledge(project, ids or (), note, check=check, everything=everything, undo=undo)
    for incident in changed:
        state = "acknowledgement removed" if undo else f"acknowledged by {incident.acknowledged_by}"
        print(f"{incident.episode} {clean(incident_text(incident))}: {clean(state)}")
    if not changed:
        print(f"no {'acknowledged' if undo else 'unacknowledged'} incident{f' of {clean(check)}' if check else ''}")


@app.command(
    epilog='Examples: resil alert silence 3f9a1c04 --for 2h; resil alert silence --subject "/scratch*" --until 07:30'
)
def silence(
    incident: Annotated[
        str,
        typer.Argument(metavar="[ID]", help="One incident.", autocompletion=complete_incidents, show_default=False),
    ] = "",
    check: Annotated[str, typer.Option("--check", metavar="PATTERN", help="Only these watchdogs: fs, job ...")] = "",
    subject: Annotated[
        str,
        typer.Option(
            "--subject", metavar="PATTERN", help="Only this subject: /scratch*.", autocompletion=complete_subjects
        ),
    ] = "",
    run: Annotated[str, typer.Option("--run", "-r", metavar="PATTERN", help="Only these runs.")] = "",
    fault: Annotated[str, typer.Option("--fault", metavar="PATTERN", help="Only this fault: space, inodes ...")] = "",
    duration: Annotated[str, typer.Option("--for", metavar="DURATION", help="How long: 30m, 2h, 3d.")] = "",
    until: Annotated[
        str, typer.Option("--until", metavar="TIME", help="Until when: 2026-12-24T18:00, or 07:30, the next one.")
    ] = "",
    why: Annotated[str, typer.Option("--why", "-m", metavar="TEXT", help="The reason, for other users.")] = "",
    show_all: Annotated[bool, typer.Option("--list", help="List the active silences.")] = False,
    config: ConfigOption = None,
) -> None:
    """Suppress notifications for a while. Incidents are still recorded, and notified when the silence ends.

    All given patterns must match. Every silence expires.
    """
    project = open_project(config, banner=False)
    now = project.system.clock.now()
    if show_all:
        found = alerts.listing(project).silences
        show_silences(found, now)
        if not found:
            print("no active silence")
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
    print(f"silence {made.id} for {format_duration(made.until - now)}: {clean(scope(made))}")
    for one in covered:
        print(f"  covers {one.episode} {clean(incident_text(one))}")
    if not covered:
        print("  no open incident matches it now; later ones may")
    print(f"  to end it: resil alert unsilence {made.id}")


def _end(duration: str, until: str, now: float) -> float:
    """Return when a silence ends. Raise UsageError if the end is missing, given twice, or invalid."""
    if bool(duration) == bool(until):
        message = "--for and --until cannot be given together" if duration else "a silence must have an end"
        raise UsageError(message, hint="give a duration: --for 2h; or a time: --until 07:30")
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
        raise QuantityError(f"{until!r} is not a time", hint="for instance 2026-12-24T18:00, or 07:30") from None


@app.command(epilog="Examples: resil alert unsilence 77e0d2b1; see them: resil alert silence --list")
def unsilence(
    silences: Annotated[
        list[str], typer.Argument(metavar="ID...", help="Their ids.", autocompletion=complete_silences)
    ],
    config: ConfigOption = None,
) -> None:
    """End silences now."""
    for ended in alerts.unsilence(open_project(config, banner=False), silences):
        print(f"silence {ended.id} ended: {clean(scope(ended))}")


@app.command(epilog="Examples: resil alert flush; resil alert flush --dry-run; resil alert flush --retry-dead")
def flush(
    due: Annotated[bool, typer.Option("--due", help="For cron: skip channels that failed recently.")] = False,
    retry_dead: Annotated[bool, typer.Option("--retry-dead", help="Also retry the dead letters.")] = False,
    discard_dead: Annotated[bool, typer.Option("--discard-dead", help="Delete the dead letters.")] = False,
    dry_run: Annotated[bool, typer.Option("--dry-run", "-n", help="Show the queue without sending.")] = False,
    config: ConfigOption = None,
) -> None:
    """Deliver the queued messages now.

    Any node that reaches the channels can do that. Exits with 0 when the queue is empty, 75 when messages are still
    queued, 1 when a channel rejected a message for good.
    """
    project = open_project(config, banner=False)
    if retry_dead and discard_dead:
        raise UsageError("--retry-dead and --discard-dead cannot be given together")
    if dry_run:
        _show_drafts(project)
        return
    if discard_dead:
        print(f"{plural(len(alerts.discard(project)), 'dead letter')} removed")
    if retry_dead:
        print(f"{plural(len(alerts.requeue(project)), 'dead letter')} queued again")
    raise typer.Exit(_flush(project, patient=due))


def _flush(project: Project, *, patient: bool) -> int:
    sent = dead = 0
    last = None
    from resilience.cron import late as notes

    with patience("a channel is slow to respond; unsent messages stay queued"):
        for last in alerts.deliver(project, notes=notes, patient=patient):
            for delivery in (*last.sent, *last.failed, *last.dead):
                print(delivery_line(delivery), flush=True)
            sent += len(last.sent)
            dead += len(last.dead)
    assert last is not None, "there is always one round"
    for channel, why in last.paused.items():
        print(f"{channel}: skipped: {clean(why)}")
    if last.error:
        print(f"  {clean(last.error)}")
    if last.waiting:
        print(f"{plural(last.waiting, 'message')} still queued")
    elif not sent and not dead and last.error:
        print("the outbox could not be read")
        return EX_TEMPFAIL
    elif not sent and not dead:
        print("nothing is queued")
    return 1 if dead else EX_TEMPFAIL if last.waiting else 0


def _show_drafts(project: Project) -> None:
    found = alerts.preview(project)
    for entry, text in found:
        print(f"{entry.channel}: {entry.alert.id}" + ("" if text is not None else " (after the previous message)"))
        print_indented((text or "").splitlines())
    if not found:
        print("nothing is queued")


@app.command(epilog="Examples: resil alert test; resil alert test email; resil alert test slack --dry-run")
def test(
    channel: Annotated[
        str,
        typer.Argument(metavar="[CHANNEL]", help="Default: all.", autocompletion=complete_channels, show_default=False),
    ] = "",
    dry_run: Annotated[bool, typer.Option("--dry-run", "-n", help="Show the message without sending.")] = False,
    as_json: JsonOption = False,
    config: ConfigOption = None,
) -> None:
    """Send a test message through each channel.

    Prints the responses. Exits with 1 when a channel did not deliver it.
    """
    project = open_project(config, banner=False)
    routes = alerts.routes_to_test(project, channel)
    if dry_run:
        for name, text in alerts.compose_tests(project, routes):
            print(f"{name}:")
            print_indented(text.splitlines())
        return
    outcomes = {}
    with patience("a channel is slow to respond"):
        for name, outcome in alerts.send_tests(project, routes):
            outcomes[name] = outcome
            if not as_json:
                print(trial_line(name, outcome), flush=True)
    if as_json:
        print_json("alert-test", trial_to_json(outcomes))
    if any(outcome.error for outcome in outcomes.values()):
        raise typer.Exit(1)


_HEADERS = ("ID", "VERDICT", "WHAT", "SINCE", "NOTIFIED", "ACKNOWLEDGED", "SUMMARY")
_SUMMARY_CHARACTERS = 100


def show_listing(found: Listing, now: float, *, everything: bool) -> None:
    """Print the incidents, then silences, queued messages and dead letters."""
    for sentence in found.errors:
        print(paint(f"  {clean(sentence)}", "yellow"))
    if found.known:
        colours = [verdict_colour(k.incident.verdict) if k.incident.gone is None else "dim" for k in found.known]
        print_table(_HEADERS, [_row(known, now) for known in found.known], colours)
    elif found.is_partial:
        print("no incident is known: the alert state could not be read")
    else:
        print("no incident" if everything else "no open incident (resolved ones: resil alert list --all)")
    show_silences(found.silences, now)
    for channel, count in found.waiting.items():
        state = found.failing.get(channel)
        why = f": {clean(state.error)}" if state is not None else ""
        print(f"{channel}: {plural(count, 'message')} queued{why}")
    if found.waiting:
        print("  deliver now: resil alert flush")
    for entry in found.dead:
        print(f"{entry.channel} rejected {_entry_text(entry)}: {clean(entry.error)}")
        if entry.hint:
            print(f"  try: {clean(entry.hint)}")
    if found.dead:
        print("  retry: resil alert flush --retry-dead; delete: resil alert flush --discard-dead")
    if not found.channels:
        print(NO_CHANNEL)


def _row(known: IncidentStatus, now: float) -> tuple[str, ...]:
    incident = known.incident
    verdict = _state_text(incident)
    since = f"{_age(now - incident.opened)} ago"
    if incident.resolved is not None:
        since = f"resolved {_age(now - incident.resolved)} ago"
    elif incident.gone is not None:
        since = f"recovered {_age(now - incident.gone)} ago"
    elif incident.is_expired(now):
        since += ", not checked recently"
    summary = cut(clean(incident.summary), _SUMMARY_CHARACTERS)
    return (
        incident.episode,
        verdict,
        incident_text(incident),
        since,
        _notified(known),
        incident.acknowledged_by,
        summary,
    )


def _state_text(incident: Incident) -> str:
    """Return the verdict of a fault that is present, else `recovered, was CRITICAL` or `was CRITICAL`."""
    if incident.state == "faulty":
        return incident.verdict.value
    return f"{'recovered, ' if incident.is_open else ''}was {incident.worst.value}"


def incident_text(incident: Incident) -> str:
    """Return check, subject and fault: `fs /scratch space`."""
    return " ".join(filter(None, (incident.check, incident.subject, incident.fault)))


def _notified(known: IncidentStatus) -> str:
    parts = [", ".join(known.accepted)] if known.accepted else []
    if known.silence is not None:
        parts.append("silenced")
    if known.waiting:
        parts.append(f"queued for {', '.join(known.waiting)}")
    if known.dead:
        parts.append(f"rejected by {', '.join(known.dead)}")
    if not parts and known.incident.told is not None:
        parts.append("long ago")  # delivered messages are kept for a week
    return "; ".join(parts) or "no"


def show_silences(silences: Sequence[Silence], now: float) -> None:
    """Print a line for each silence, with the time left."""
    for silence in silences:
        why = f": {clean(silence.why)}" if silence.why else ""
        left = _age(silence.until - now)
        print(f"silence {silence.id} of {clean(silence.by)} for {left} more: {clean(scope(silence))}{why}")


def scope(silence: Silence) -> str:
    """Return the scope of a silence, in the words of the options. Pure."""
    named = (("incident", silence.episode), ("check", silence.check), ("subject", silence.subject))
    parts = (*named, ("run", silence.run), ("fault", silence.fault))
    return ", ".join(f"{name} {value}" for name, value in parts if value)


def listing_to_json(found: Listing) -> dict[str, Any]:
    """Return the listing for a JSON document."""
    return chosen(found, "silences", "waiting", "channels") | {
        "incidents": [_known_to_json(known) for known in found.known],
        "dead": [entry_to_json(entry) for entry in found.dead],
        "trouble": found.errors,
    }


def _known_to_json(known: IncidentStatus) -> dict[str, Any]:
    record: dict[str, Any] = plain(known.incident)
    return record | {
        "open": known.incident.is_open,
        "state": known.incident.state,
        "silenced_by": known.silence.id if known.silence is not None else None,
        "accepted_by": known.accepted,
        "waiting_for": known.waiting,
        "refused_by": known.dead,
    }


def entry_to_json(entry: Entry) -> dict[str, Any]:
    """Return one message for a JSON document, without its text."""
    return chosen(entry, "channel", "queued", "tries", "answer", "error", "hint", "host") | {
        "id": entry.alert.id,
        "reason": entry.alert.reason,
        "episodes": [line.episode for line in entry.incidents()],
        "ended": entry.ended or None,
    }


def show_details(found: Details, now: float) -> None:
    """Print the history of one incident."""
    incident, silence = found.known.incident, found.known.silence
    verdict = f"{'' if incident.is_open else 'resolved, '}{_state_text(incident)}"
    painted = paint(verdict, verdict_colour(incident.verdict) if incident.state == "faulty" else "dim")
    print(f"{paint(incident.episode, 'bold')}  {painted}  {clean(incident_text(incident))}")
    print(f"  {clean(incident.summary)}")
    if incident.advice and incident.is_open:
        print(f"  try: {clean(incident.advice)}")
    lines: list[tuple[float, str]] = [(incident.opened, f"opened, seen from {incident.host or 'an unknown host'}")]
    if incident.run:
        print(f"  run: {clean(incident.run)}")
    if incident.acknowledged_at is not None:
        note = f": {incident.acknowledged_note}" if incident.acknowledged_note else ""
        lines.append((incident.acknowledged_at, f"acknowledged by {incident.acknowledged_by}{note}"))
    if incident.changed and incident.changed != incident.opened:
        lines.append((incident.changed, f"changed to {incident.verdict.value}"))
    for entry in found.sent:
        answer = f" ({entry.answer})" if entry.answer else ""
        lines.append((entry.ended, f"{entry.channel} delivered {_entry_text(entry)} from {entry.host}{answer}"))
    for entry in found.dead:
        lines.append((entry.ended, f"{entry.channel} rejected {_entry_text(entry)}: {entry.error}"))
    if incident.gone is not None:
        lines.append((incident.gone, "recovered: the check no longer found the fault"))
    if incident.resolved is not None:
        lines.append((incident.resolved, "resolved"))
    lines.append((incident.seen, "last seen"))
    cells = [(_moment(at), f"{_age(now - at)} ago", text) for at, text in sorted(lines)]
    print_table(("", "", ""), cells, indent=2)
    for entry in found.waiting:
        tries = f", {plural(entry.tries, 'failed try')}: {entry.error}" if entry.tries else ""
        print(f"  {_entry_text(entry)} queued for {entry.channel} since {_moment(entry.queued)}{clean(tries)}")
    if silence is not None:
        print(f"  silenced until {_moment(silence.until)} by {clean(silence.by)}: resil alert unsilence {silence.id}")
    if incident.evidence:
        print("  evidence:")
        print_indented(incident.evidence, 4)
    print_indented(found.errors)


def details_to_json(found: Details) -> dict[str, Any]:
    """Return the details for a JSON document."""
    messages = {"sent": found.sent, "waiting": found.waiting, "dead": found.dead}
    return _known_to_json(found.known) | {
        **{key: [entry_to_json(entry) for entry in entries] for key, entries in messages.items()},
        "trouble": found.errors,
    }


def delivery_line(delivery: Delivery) -> str:
    """Return one line about a delivery. Pure."""
    outcome, text = delivery.outcome, _entry_text(delivery.entry)
    if outcome.status is DeliveryStatus.SENT:
        answer = f": {clean(outcome.answer)}" if outcome.answer else ""
        return f"{delivery.channel} delivered {text} in {outcome.took_s:.1f} s{answer}"
    failed = "rejected" if outcome.status is DeliveryStatus.REFUSED else "did not deliver"
    hint = f"\n  try: {clean(outcome.hint)}" if outcome.hint else ""
    return f"{delivery.channel} {failed} {text}: {clean(outcome.error)}{hint}"


def trial_line(channel: str, outcome: Outcome) -> str:
    """Return one line about a test message. Pure."""
    if outcome.status is DeliveryStatus.SENT:
        return f"{channel}: delivered in {outcome.took_s:.1f} s: {clean(outcome.answer) or 'no response text'}"
    hint = f"\n  try: {clean(outcome.hint)}" if outcome.hint else ""
    return f"{channel}: FAILED after {outcome.took_s:.1f} s: {clean(outcome.error)}{hint}"


def trial_to_json(outcomes: Mapping[str, Outcome]) -> dict[str, Any]:
    """Return the outcomes of test messages for a JSON document."""
    return {
        "channels": {
            name: chosen(outcome, "answer", "error", "hint")
            | {"taken": outcome.status is DeliveryStatus.SENT, "took_s": round(outcome.took_s, 3)}
            for name, outcome in outcomes.items()
        }
    }


def _entry_text(entry: Entry) -> str:
    """Return `FIRST fs /scratch space (3f9a1c04)`, or the size of a digest."""
    if entry.alert.title:
        return clean(entry.alert.title)
    lines = entry.incidents()
    if entry.is_digest:
        return f"a digest of {plural(entry.alert.total, 'incident')}"
    if not lines:
        return entry.alert.id
    first = lines[0]
    more = f" and {entry.alert.total - 1} more" if entry.alert.total > 1 else ""
    named = " ".join(filter(None, (first.check, first.subject, first.fault)))
    return clean(f"{entry.alert.reason.value} {named}{more} ({first.episode})")


def _age(seconds: float) -> str:
    return format_duration(round(max(0.0, seconds)))


def _moment(seconds: float) -> str:
    """Return the local time; `?` for a damaged time."""
    try:
        return time.strftime("%Y-%m-%d %H:%M", time.localtime(seconds))
    except (ValueError, OverflowError, OSError):
        return "?"
