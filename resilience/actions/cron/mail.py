"""MAILTO: what an entry writes is mailed to whoever its crontab names, through the outbox, so that no mail is lost.

As cron does (crontab(5)): a run that writes nothing sends nothing, `MAILTO=""` sends nothing, and without MAILTO nobody
is mailed: an account of a cluster reads no local mail. The mail leaves as those of [channel.email] do, or by this
machine's sendmail where there is no such table.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

from resilience.errors import ResilError, SettingsError
from resilience.model.cron import Outcome
from resilience.system.files import make_folder, read_regular, write_atomic

if TYPE_CHECKING:
    from resilience.actions.cron.project import CronProject
    from resilience.actions.project import Project
    from resilience.alerting.sending import Route
    from resilience.model.cron import Entry, RunRecord
    from resilience.system.ports import Channel

PREFIX = "mailto-"
"""How the outbox calls such a channel; what follows stands for the address."""
FOLDER = "mailto"
"""In `<state_dir>/.cron`: the address of each of these channels."""
BODY_BYTES = 8000
"""So much of an output's beginning, and of its end, is mailed; all of it is in `resil cron logs`."""
MOST_ADDRESSES = 10
MOST_AT_ONCE = 100
_ENDED = frozenset({Outcome.DONE, Outcome.FAILED, Outcome.TIMEOUT, Outcome.CUT_SHORT})
NO_WAY = "there is no [channel.email] and no sendmail"


def addresses(mail_to: str | None) -> tuple[str, ...]:
    """Given MAILTO, return its addresses: cron takes several, with commas between. Pure."""
    found = (address.strip() for address in (mail_to or "").split(","))
    return tuple(dict.fromkeys(filter(None, found)))[:MOST_ADDRESSES]


def wrong_address(mail_to: str) -> str:
    """Why the first address of MAILTO that is none cannot be mailed; empty: all of them can. Pure."""
    from resilience.channels.email import envelope_address

    try:
        for address in addresses(mail_to):
            envelope_address(address)
    except SettingsError as error:
        return error.message
    return ""


def mail_trouble(project: Project) -> str:
    """Why no mail of MAILTO could leave from here, one sentence; empty: it can. Looks at this machine's sendmail."""
    if _email_table(project) is not None or _has_sendmail():
        return ""
    return f"what MAILTO names gets no mail from here: {NO_WAY}"


def mail_news(cron: CronProject, entry: Entry, ended: Sequence[RunRecord]) -> tuple[str, ...]:
    """Queue the mails about all runs of an entry that ended since this was last asked; return what to tell people.

    `ended`: those that this tick knows of. The others are in the history: their tick was killed before it came here.
    What cannot be queued now is queued the next time. Never raises.
    """
    people = addresses(entry.mail_to)
    if not people:
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
        make_folder(mark.parent, mode=cron.state.folder_mode)
        at_least = since if since is not None else 0.0 if newest else cron.project.world.clock.now()
        write_atomic(mark, f"{max(newest, at_least):.6f}\n", mode=cron.state.file_mode)
    except ResilError as error:
        said.append(f"{entry.place}: its output was not mailed to {', '.join(people)}: {error.message}")
    return tuple(said)


def has_news(cron: CronProject, entry: Entry) -> bool:
    """Whether an entry's history was written since its mails were last looked after: two looks at files."""
    try:
        written = (cron.state.path / "history" / f"{entry.key}.jsonl").stat().st_mtime_ns
        return written > _mark(cron, entry).stat().st_mtime_ns
    except OSError:  # nothing ran yet, or it was never looked after: then the run that ends is known to its tick
        return False


def _mark(cron: CronProject, entry: Entry) -> Path:
    name = hashlib.sha256(entry.key.encode("utf-8", "replace")).hexdigest()[:16]
    return cron.state.path / FOLDER / f"{name}.since"


def _since(mark: Path) -> float | None:
    found = read_regular(mark)
    try:
        return float(found[0]) if found is not None else None
    except ValueError:
        return None


def mail(cron: CronProject, entry: Entry, record: RunRecord) -> tuple[str, ...]:
    """Queue the mails about one run that ended; return what to tell people.

    Raise StateDirectoryError if they cannot be queued now.
    """
    people = addresses(entry.mail_to)
    if not people or not record.output:
        return ()
    body = _output(cron.state.path / "output" / entry.key / record.output)
    if not any(line.strip() for line in body):
        return ()
    if trouble := mail_trouble(cron.project):
        return (f"{entry.place}: {trouble}",)
    return _queue(cron, entry, record, people, body)


def _queue(
    cron: CronProject, entry: Entry, record: RunRecord, people: tuple[str, ...], body: tuple[str, ...]
) -> tuple[str, ...]:
    from resilience.actions.alert_state import open_alert_state
    from resilience.model.alert import Alert, Reason
    from resilience.model.verdict import Verdict

    world, now = cron.project.world, cron.project.world.clock.now()
    digest = hashlib.sha256(f"{entry.key}\0{record.slot}\0{record.output}".encode("utf-8", "replace")).hexdigest()[:16]
    code = f", exit code {record.exit_code}" if record.exit_code else ""
    alert = Alert(
        id=f"cron-mail-{digest}",
        thread=f"cron-mail-{hashlib.sha256(entry.key.encode('utf-8', 'replace')).hexdigest()[:16]}",
        reason=Reason.FIRST,
        verdict=Verdict.OK,
        time=now,
        host=record.host or world.host.name,
        project=str(cron.project.loaded.project),
        notices=(),
        total=0,
        title=f"Cron <{world.host.user}@{record.host or world.host.name}> {entry.name}: {record.outcome}{code}",
        body=body,
    )
    outbox, said = open_alert_state(cron.project).outbox, []
    for address in people:
        try:
            outbox.put(alert, _remember(cron, address), now)
        except SettingsError as error:
            said.append(f"{entry.place}: its output was not mailed to {address[:80]}: {error.message}")
    return tuple(said)


def _remember(cron: CronProject, address: str) -> str:
    """The channel of an address, written down for whoever delivers. Raise SettingsError if it is no address."""
    from resilience.channels.email import envelope_address

    envelope_address(address)
    name = hashlib.sha256(address.encode("utf-8", "replace")).hexdigest()[:16]
    folder = cron.state.path / FOLDER
    if not (folder / name).exists():
        make_folder(folder, mode=cron.state.folder_mode)
        write_atomic(folder / name, address + "\n", mode=cron.state.file_mode)
    return PREFIX + name


def mail_route(project: Project, channel: str) -> Route | None:
    """The way to one address; None: it is no channel of ours. Touches nothing before it is used."""
    if not channel.startswith(PREFIX):
        return None
    from resilience.alerting.sending import Route

    return Route(_loader(project, channel))


def _loader(project: Project, channel: str) -> Callable[[], tuple[Channel, Any]]:
    def load() -> tuple[Channel, Any]:
        from dataclasses import replace

        from resilience.actions.alert_routes import channels
        from resilience.settings.plugin_table import plugin_settings

        found = read_regular(project.loaded.state_dir / ".cron" / FOLDER / channel.removeprefix(PREFIX))
        if found is None:
            raise SettingsError(f"whom {channel} stands for is not known any more")
        table = _email_table(project)
        email = channels().load("email")
        if table is None:
            settings = email.Settings()
        else:
            settings = plugin_settings(email.Settings, "channel", table[0], table[1], origins=project.loaded.origins)
        return email, replace(settings, to=(found[0].decode("utf-8", "replace").strip(),))

    return load


def _email_table(project: Project) -> tuple[str, Any] | None:
    """The table whose server mail leaves by: [channel.email], or the first of that kind."""
    tables: Mapping[str, Any] = project.loaded.settings.channels
    mine = [(name, table) for name, table in tables.items() if table.kind == "email"]
    return next((one for one in mine if one[0] == "email"), mine[0] if mine else None)


def _has_sendmail() -> bool:
    import shutil

    return any(map(shutil.which, ("/usr/sbin/sendmail", "/usr/lib/sendmail", "sendmail")))


def _output(path: Path) -> tuple[str, ...]:
    """What a run wrote, its beginning and its end; it was redacted as it was kept."""
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
        left_out = f"... ({size - 2 * BODY_BYTES} bytes left out: resil cron logs) ..."
        return (*redact(head).splitlines(), left_out, *redact(tail).splitlines())
    return ()
