"""MAILTO: hands the output of a run to the outbox, as one alert for the channel of each address.

As in cron (crontab(5)), a run without output sends nothing, and `MAILTO=""` sends nothing. Unlike cron, no MAILTO means
no mail: accounts of a cluster read no local mail. Mail is sent as configured in [channel.email], or by this machine's
sendmail without such a table. The outbox shortens a long output in its middle; `resil cron logs` shows all.

The id of an alert names the run, and the outbox accepts an id once, so a run may be handed over again: after a crash,
and by two schedulers.
"""

from __future__ import annotations

import os
from collections.abc import Iterable
from typing import TYPE_CHECKING

from resilience.cron.records import Outcome
from resilience.errors import ResilError, SettingsError, StateDirectoryError

if TYPE_CHECKING:
    from resilience.alerts.outbox import Outbox
    from resilience.cron.project import CronProject
    from resilience.cron.records import Entry, RunRecord

MOST_ADDRESSES = 10
MOST_AT_ONCE = 100
LATE_S = 86400.0
"""Older output is not mailed any more."""
SKEW_S = 120.0
"""Tolerance for the clock of another host, which may have recorded a run."""
_MAILED = frozenset({Outcome.DONE, Outcome.FAILED, Outcome.TIMEOUT, Outcome.CUT_SHORT})


def addresses(mail_to: str | None) -> tuple[str, ...]:
    """Return the addresses in MAILTO: cron accepts several, separated by commas. Pure."""
    found = (address.strip() for address in (mail_to or "").split(","))
    return tuple(dict.fromkeys(filter(None, found)))[:MOST_ADDRESSES]


def wrong_address(mail_to: str) -> str:
    """Return why the first invalid address in MAILTO cannot be mailed; empty if all are valid. Pure."""
    from resilience.alerts.channels.email import envelope_address

    try:
        for address in addresses(mail_to):
            envelope_address(address)
    except SettingsError as error:
        return error.message
    return ""


def queue_mails(
    cron: CronProject, entries: Iterable[Entry], ended: Iterable[RunRecord], since: float
) -> tuple[tuple[str, ...], bool]:
    """Queue the mails of the runs that ended; return error messages, and whether every mail is queued. Never raises.

    Args:
        ended: runs that this tick knows of.
        since: runs in the histories that ended later are mailed too, up to a day: the tick that started them may have
            been killed; 0: none.
    """
    from resilience.alerts.state import open_alert_state

    outbox, ended = open_alert_state(cron.project).outbox, tuple(ended)
    after = max(since - SKEW_S, cron.project.system.clock.now() - LATE_S)
    said: dict[str, None] = {}
    is_complete = True
    for entry in entries:
        try:
            past = cron.state.history(entry.key) if since and addresses(entry.mail_to) else ()
            late = [run for run in past if run.time > after]
            runs = {(run.slot, run.output): run for run in (*late, *ended) if run.name == entry.name}
            for run in sorted(runs.values(), key=lambda run: run.time)[-MOST_AT_ONCE:]:
                said |= dict.fromkeys(_queue(cron, outbox, entry, run))
        except StateDirectoryError as error:
            is_complete = False
            said[f"{entry.place}: could not mail its output to {entry.mail_to}: {error.message}"] = None
    return tuple(said), is_complete


def _queue(cron: CronProject, outbox: Outbox, entry: Entry, run: RunRecord) -> Iterable[str]:
    """Queue the mails about one run; yield error messages. Raise StateDirectoryError if they cannot be queued now."""
    from resilience.alerts.alert import Alert
    from resilience.alerts.routes import mail_channel, mail_error
    from resilience.cron.logs import read_text
    from resilience.system.files import short_digest
    from resilience.system.redaction import redact

    if run.outcome not in _MAILED or not run.output or not addresses(entry.mail_to):
        return
    try:
        path = cron.state.path / "output" / entry.key / run.output
        text = read_text(path, flags=os.O_NOFOLLOW)[0]
    except ResilError:
        return  # removed meanwhile
    if not text.strip():
        return
    if problem := mail_error(cron.project):
        yield f"{entry.place}: {problem}"
        return
    host, now = run.host or cron.project.system.host.name, cron.project.system.clock.now()
    code = f", exit code {run.exit_code}" if run.exit_code else ""
    alert = Alert.of(
        id=f"cron-mail-{short_digest(f'{entry.key} {run.slot} {run.output}'.encode('utf-8', 'replace'))}",
        thread=f"cron-mail-{short_digest(entry.key.encode('utf-8', 'replace'))}",
        time=now, host=host, project=str(cron.project.loaded.project),
        title=f"Cron <{cron.project.system.host.user}@{host}> {entry.name}: {run.outcome}{code}",
        body=tuple(redact(text).splitlines()),
    )  # fmt: skip
    for address in addresses(entry.mail_to):
        try:
            outbox.put(alert, mail_channel(cron.project, address), now)
        except SettingsError as error:
            yield f"{entry.place}: could not mail its output to {address[:80]}: {error.message}"
