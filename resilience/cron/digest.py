"""The daily digest: a message that the scheduler works, because silence alone does not prove that.

`[cron] digest_at` is an entry of the table (table/own_entries.py) that runs `resil cron digest`: with a slot for each
day, as any entry has, there is one digest a day from any scheduler, also after an outage and when clocks change. The id
of the message is that of the slot, and the outbox accepts an id once, so the entry may be rerun.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import TYPE_CHECKING

from resilience.cron.health import Health, Judgement
from resilience.cron.records import Outcome, RunRecord
from resilience.cron.table.own_entries import DIGEST
from resilience.errors import UsageError
from resilience.messages import plural
from resilience.quantities import format_duration

if TYPE_CHECKING:
    from resilience.alerts.alert import Alert
    from resilience.cron.project import CronProject
    from resilience.cron.records import Heartbeat

DAY_S = 86400.0
DELIVERY_S = 60.0
MOST_NAMED = 8


def send_digest(cron: CronProject) -> Alert:
    """Queue the digest for every channel in [alert], deliver what is queued, and return the digest.

    Raise UsageError if no channel is configured, StateDirectoryError if it cannot be queued.
    """
    from resilience.alerts.commands import deliver
    from resilience.alerts.state import open_alert_state
    from resilience.cron.status import cron_status

    project, now = cron.project, cron.project.system.clock.now()
    if not project.loaded.settings.alert.channels:
        raise UsageError("no channel is configured, so no digest can be sent", hint='[alert] channels = ["email"]')
    past = [run.time for run in cron.state.history(DIGEST.replace("/", "+")) if run.outcome is Outcome.DONE]
    since = past[-1] if past else now - DAY_S
    runs = [run for key in cron.state.keys() for run in cron.state.history(key) if run.time > since]  # noqa: SIM118
    runs.sort(key=lambda run: run.time)
    status, state = cron_status(cron), open_alert_state(project)
    incidents = [incident for incident in state.ledger.incidents(now) if incident.is_open]
    lines = [f"{i.verdict.value} {i.check} {i.subject}: {i.summary} ({i.episode})" for i in incidents]
    title, body = compose(status.judgement, status.heartbeat, runs, lines, since, now)
    from resilience.alerts.alert import Alert

    slot = project.system.environ.get("RESIL_CRON_SLOT", f"{now:.0f}")
    alert = Alert.of(
        id=f"cron-digest-{slot}", thread="cron-digest", time=now, host=project.system.host.name,
        project=str(project.loaded.project), title=title, body=body,
    )  # fmt: skip
    for channel in project.loaded.settings.alert.channels:
        state.outbox.put(alert, channel, now)
    for _ in deliver(project, patient=True, deadline_s=DELIVERY_S):
        pass
    return alert


def compose(
    judgement: Judgement,
    heartbeat: Heartbeat | None,
    runs: Sequence[RunRecord],
    incidents: Sequence[str],
    since: float,
    now: float,
) -> tuple[str, tuple[str, ...]]:
    """Return title and body. Pure, except for the time zone.

    Args:
        runs: results of slots since `since`, the last digest, oldest first.
        incidents: a line for each open incident.
    """
    # The scheduler's own jobs have no `/` in their name.
    ended = [run for run in runs if run.outcome not in (Outcome.SKIPPED, Outcome.MISSED) and "/" in run.name]
    failed = [run for run in ended if run.outcome.is_failure]
    body = [f"scheduler: {judgement.health}: {judgement.reason}"]
    if heartbeat is not None:
        alive = format_duration(max(0.0, now - heartbeat.alive_since))
        body.append(f"{plural(heartbeat.ticks, 'tick')} without a gap in {alive}")
    entries = plural(len({run.name for run in ended}), "entry")
    counts = f": {len(ended) - len(failed)} succeeded, {len(failed)} failed" if ended else ""
    names = ", ".join(f"{run.name} {time.strftime('%H:%M', time.localtime(run.time))}" for run in failed[-MOST_NAMED:])
    more = f" ({names}{', ...' if len(failed) > MOST_NAMED else ''})" if failed else ""
    body.append(f"{plural(len(ended), 'run')} of {entries} in {format_duration(now - since)}{counts}{more}")
    late_s = max((run.started - run.slot for run in ended if run.started is not None), default=None)
    late = f", late at most {format_duration(max(0, round(late_s)))}" if late_s is not None else ""
    for outcome, word in ((Outcome.SKIPPED, "skipped"), (Outcome.MISSED, "missed")):
        if number := sum(run.count for run in runs if run.outcome is outcome):
            body.append(f"{plural(number, 'slot')} {word}")
    opened = plural(len(incidents), "open incident")
    body += [f"{opened}{':' if incidents else ''}", *(f"  {line}" for line in incidents[:MOST_NAMED])]
    if heartbeat is not None and heartbeat.next_slot is not None:
        body.append(f"next: {time.strftime('%a %H:%M', time.localtime(heartbeat.next_slot))}")
    who = "resil" if judgement.health is Health.ALIVE else "the scheduler"
    title = f"{who} is {judgement.health}: {len(failed)} of {plural(len(ended), 'run')} failed{late}, {opened}"
    return title, tuple(body)
