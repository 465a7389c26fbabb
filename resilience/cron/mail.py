"""MAILTO: mails the output of entries through the outbox, so that no mail is lost.

As in cron (crontab(5)), a run without output sends nothing, and `MAILTO=""` sends nothing. Unlike cron, no MAILTO means
no mail: accounts of a cluster read no local mail. Mail is sent as configured in [channel.email], or by this machine's
sendmail without such a table.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

from resilience.alerts.routes import MAILTO_DIRECTORY, mail_channel, mail_error
from resilience.cron.records import Outcome
from resilience.errors import ResilError, SettingsError
from resilience.system.files import make_directory, read_regular, write_atomic

if TYPE_CHECKING:
    from resilience.cron.project import CronProject
    from resilience.cron.records import Entry, RunRecord

BODY_BYTES = 8000
"""Bytes mailed of the beginning and of the end of an output; `resil cron logs` shows all."""
MOST_ADDRESSES = 10
MOST_AT_ONCE = 100
_ENDED = frozenset({Outcome.DONE, Outcome.FAILED, Outcome.TIMEOUT, Outcome.CUT_SHORT})


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


def mail_news(cron: CronProject, entry: Entry, ended: Sequence[RunRecord]) -> tuple[str, ...]:
    """Queue the mails about all runs of an entry that ended since the last call; return error messages.

    `ended`: runs that this tick knows of. Others are in the history: their tick was killed before it queued the mail.
    Mails that cannot be queued now are queued next time. Never raises.
    """
    recipients = addresses(entry.mail_to)
    if not recipients:
        return ()
    mark = _mark(cron, entry)
    said: list[str] = []
    try:
        since = _since(mark)
        history = cron.state.history(entry.key) if since is not None else ()
        late = [run for run in history if run.output and since is not None and run.time > since]
        runs = {(run.slot, run.output): run for run in (*late, *ended) if run.outcome in _ENDED}
        for run in sorted(runs.values(), key=lambda run: run.time)[-MOST_AT_ONCE:]:
            said += [line for line in mail(cron, entry, run) if line not in said]
        newest = max((run.time for run in runs.values()), default=0.0)
        make_directory(mark.parent, mode=cron.state.directory_mode)
        at_least = since if since is not None else 0.0 if newest else cron.project.system.clock.now()
        write_atomic(mark, f"{max(newest, at_least):.6f}\n", mode=cron.state.file_mode)
    except ResilError as error:
        said.append(f"{entry.place}: could not mail its output to {', '.join(recipients)}: {error.message}")
    return tuple(said)


def has_news(cron: CronProject, entry: Entry) -> bool:
    """Return whether an entry's history changed since its mails were last queued: two stat calls."""
    try:
        written = (cron.state.path / "history" / entry.key).stat().st_mtime_ns
        return written > _mark(cron, entry).stat().st_mtime_ns
    except OSError:  # nothing ran yet, or no mail yet: the tick knows the run that ends
        return False


def _mark(cron: CronProject, entry: Entry) -> Path:
    name = hashlib.sha256(entry.key.encode("utf-8", "replace")).hexdigest()[:16]
    return cron.state.path / MAILTO_DIRECTORY / f"{name}.since"


def _since(mark: Path) -> float | None:
    found = read_regular(mark)
    try:
        return float(found[0]) if found is not None else None
    except ValueError:
        return None


def mail(cron: CronProject, entry: Entry, record: RunRecord) -> tuple[str, ...]:
    """Queue the mails about one run that ended; return error messages.

    Raise StateDirectoryError if they cannot be queued now.
    """
    recipients = addresses(entry.mail_to)
    if not recipients or not record.output:
        return ()
    body = _output(cron.state.path / "output" / entry.key / record.output)
    if not any(line.strip() for line in body):
        return ()
    if problem := mail_error(cron.project):
        return (f"{entry.place}: {problem}",)
    return _queue(cron, entry, record, recipients, body)


def _queue(
    cron: CronProject, entry: Entry, record: RunRecord, recipients: tuple[str, ...], body: tuple[str, ...]
) -> tuple[str, ...]:
    from resilience.alerts.alert import Alert
    from resilience.alerts.state import open_alert_state

    system, now = cron.project.system, cron.project.system.clock.now()
    digest = hashlib.sha256(f"{entry.key}\0{record.slot}\0{record.output}".encode("utf-8", "replace")).hexdigest()[:16]
    code = f", exit code {record.exit_code}" if record.exit_code else ""
    alert = Alert.of(
        id=f"cron-mail-{digest}",
        thread=f"cron-mail-{hashlib.sha256(entry.key.encode('utf-8', 'replace')).hexdigest()[:16]}",
        time=now,
        host=record.host or system.host.name,
        project=str(cron.project.loaded.project),
        title=f"Cron <{system.host.user}@{record.host or system.host.name}> {entry.name}: {record.outcome}{code}",
        body=body,
    )
    outbox, said = open_alert_state(cron.project).outbox, []
    for address in recipients:
        try:
            outbox.put(alert, mail_channel(cron.project, address), now)
        except SettingsError as error:
            said.append(f"{entry.place}: could not mail its output to {address[:80]}: {error.message}")
    return tuple(said)


def _output(path: Path) -> tuple[str, ...]:
    """Return the beginning and the end of a run's output, which was redacted when it was saved."""
    from resilience.system.redaction import redact

    with suppress(OSError):
        descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC)
        with os.fdopen(descriptor, "rb") as file:
            size = file.seek(0, os.SEEK_END)
            file.seek(0)
            if size <= 2 * BODY_BYTES:
                return tuple(redact(file.read().decode("utf-8", "replace")).splitlines())
            head = file.read(BODY_BYTES).decode("utf-8", "replace")
            file.seek(size - BODY_BYTES)
            tail = file.read().decode("utf-8", "replace")
        left_out = f"... ({size - 2 * BODY_BYTES} bytes omitted: resil cron logs) ..."
        return (*redact(head).splitlines(), left_out, *redact(tail).splitlines())
    return ()
