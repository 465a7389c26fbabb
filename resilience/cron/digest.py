"""The daily digest: a message that the scheduler works, because silence alone does not prove that.

Exactly one digest per local day, from any scheduler, also after an outage. The key is the date, so clock changes cause
neither duplicates nor gaps: creating `YYYYMMDD.taken` succeeds once. `YYYYMMDD.queued` records that the message is in
the outbox; if a tick was killed between the two, the next tick queues a message of the same id, which the outbox
accepts once.
"""

from __future__ import annotations

import json
import re
import time
from collections.abc import Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, NamedTuple

from resilience.cron.records import Outcome, RunRecord
from resilience.errors import ResilError, SettingsError
from resilience.messages import plural
from resilience.quantities import format_duration
from resilience.system.files import make_directory, read_regular, write_atomic

if TYPE_CHECKING:
    from resilience.alerts.alert import Alert
    from resilience.cron.project import CronProject
    from resilience.cron.records import Heartbeat

DIRECTORY = "digest"
"""In `<state_dir>/.cron`: `YYYYMMDD.taken`, `YYYYMMDD.queued`, and `tally`."""
DAY_S = 86400.0
FRESH_S = 3600.0
"""The first digest is sent only within this time after `digest_at`; an installation at noon starts with tomorrow's."""
ABANDONED_S = 300.0
"""A day taken this long ago and not queued belongs to a tick that was killed."""
MOST_NAMED = 8
KEPT_DAYS = 14
_TIME = re.compile(r"([01]?\d|2[0-3]):([0-5]\d)")


class Tally(NamedTuple):
    """Counters since the last digest.

    Attributes:
        since: start of counting, seconds since the epoch.
        ticks: number of ticks.
        late_s: maximum delay of a tick.
    """

    since: float
    ticks: int = 0
    late_s: float = 0.0


class Day(NamedTuple):
    """One local day.

    Attributes:
        number: its date, such as 20261120.
        due: when its digest is due, seconds since the epoch.
    """

    number: int
    due: float


def parse_digest_at(text: str) -> tuple[int, int]:
    """Parse a time of day: `08:00` gives (8, 0). Raise SettingsError if it is invalid. Pure."""
    found = _TIME.fullmatch(text.strip())
    if found is None:
        raise SettingsError(f"[cron] digest_at = {text!r} is not a time of day", hint='digest_at = "08:00"')
    return int(found[1]), int(found[2])


def day_of(now: float, digest_at: str) -> Day:
    """Return the local day whose digest may be due now: today, or yesterday for an hour after it was due (`23:59`, and
    a tick at midnight).

    mktime(3) shifts a time that a clock change skips, and picks either of two equal times; this does not matter,
    because the date is the key.
    """
    hour, minute = parse_digest_at(digest_at)
    local = time.localtime(now)
    today = (local.tm_year, local.tm_mon, local.tm_mday)
    due = time.mktime((*today, hour, minute, 0, 0, 0, -1))
    if now < due:
        noon = time.localtime(time.mktime((*today[:2], today[2] - 1, 12, 0, 0, 0, 0, -1)))
        before = (noon.tm_year, noon.tm_mon, noon.tm_mday)
        due_before = time.mktime((*before, hour, minute, 0, 0, 0, -1))
        if now - due_before <= FRESH_S:
            today, due = before, due_before
    return Day(today[0] * 10000 + today[1] * 100 + today[2], due)


def is_due(cron: CronProject) -> bool:
    """Return whether a digest may have to be sent. At most two stat calls; never raises."""
    if not cron.settings.digest_at:
        return False
    try:
        now = cron.project.system.clock.now()
        day = day_of(now, cron.settings.digest_at)
        return now >= day.due and not (cron.state.path / DIRECTORY / f"{day.number}.queued").exists()
    except (ResilError, OSError, ValueError, OverflowError):
        return False


def count(cron: CronProject, heartbeat: Heartbeat) -> None:
    """Count a tick if digests are enabled. Never raises."""
    if not cron.settings.digest_at:
        return
    before = _tally(cron) or Tally(heartbeat.time)
    with suppress(ResilError):
        _write(cron, "tally", before._replace(ticks=before.ticks + 1, late_s=max(before.late_s, heartbeat.late_s)))


def send_digest(cron: CronProject, heartbeat: Heartbeat | None) -> bool:
    """Queue today's digest unless another scheduler has; return whether this call queued it.

    Raise ResilError if queueing fails: the next tick tries again.
    """
    now = cron.project.system.clock.now()
    day = day_of(now, cron.settings.digest_at)
    directory = cron.state.path / DIRECTORY
    make_directory(cron.state.path, mode=cron.state.directory_mode)
    make_directory(directory, mode=cron.state.directory_mode)
    is_first = not any(path.name.endswith(".queued") for path in directory.iterdir())
    if not _take(cron, day, now):
        return False
    if is_first and now - day.due > FRESH_S:
        _mark(cron, day)
        return False
    tally = _tally(cron)
    since = max(now - DAY_S, 0.0) if tally is None else tally.since
    runs = [run for key in cron.state.keys() for run in cron.state.history(key) if run.time > since]  # noqa: SIM118
    from resilience.alerts.state import open_alert_state

    state = open_alert_state(cron.project)
    incidents = [incident for incident in state.ledger.incidents(now) if incident.is_open]
    worst = [f"{i.verdict.value} {i.check} {i.subject}: {i.summary} ({i.episode})" for i in incidents[:MOST_NAMED]]
    alert = compose(
        day.number, tally or Tally(since), runs, worst, heartbeat, now,
        open_count=len(incidents), host=cron.project.system.host.name, project=str(cron.project.loaded.project),
    )  # fmt: skip
    for channel in cron.project.loaded.settings.alert.channels:
        state.outbox.put(alert, channel, now)
    _mark(cron, day)
    with suppress(ResilError):
        _write(cron, "tally", Tally(now))
    _delete_old(cron, day)
    return True


def compose(
    day: int,
    tally: Tally,
    runs: Sequence[RunRecord],
    incidents: Sequence[str],
    heartbeat: Heartbeat | None,
    now: float,
    *,
    open_count: int,
    host: str,
    project: str,
) -> Alert:
    """Return the message of one day. Pure.

    Args:
        runs: results of slots since the last digest.
        incidents: one line per open incident, at most MOST_NAMED.
    """
    from resilience.alerts.alert import Alert

    ended = [
        run
        for run in runs
        if run.name != "scheduler" and run.outcome not in (Outcome.RUNNING, Outcome.SKIPPED, Outcome.MISSED)
    ]
    failed = [run for run in ended if run.outcome.is_failure]
    late = f", late at most {format_duration(round(tally.late_s))}" if tally.ticks else ""
    first = f"{plural(tally.ticks, 'tick')} in {format_duration(max(0.0, now - tally.since))}{late}"
    entries = len({run.name for run in ended})
    second = f"{plural(len(ended), 'run')} of {plural(entries, 'entry')}"
    if ended:
        second += f": {len(ended) - len(failed)} succeeded, {len(failed)} failed"
    if failed:
        named = [f"{run.name} {_clock(run.time)}" for run in failed[-MOST_NAMED:]]
        second += f" ({', '.join(named)}{', ...' if len(failed) > MOST_NAMED else ''})"
    body = [first, second]
    for outcome, word in ((Outcome.SKIPPED, "skipped"), (Outcome.MISSED, "missed")):
        number = sum(run.count for run in runs if run.outcome is outcome)
        if number:
            body.append(f"{plural(number, 'slot')} {word}")
    body.append(f"{plural(open_count, 'open incident')}{':' if incidents else ''}")
    body += [f"  {line}" for line in incidents]
    if heartbeat is not None and heartbeat.next_slot is not None:
        body.append(f"next: {_moment(heartbeat.next_slot)}")
    title = f"resil is alive: {plural(tally.ticks, 'tick')}{late}, {len(failed)} of {plural(len(ended), 'run')} failed"
    return Alert.of(
        id=f"cron-digest-{day}", thread="cron-digest", time=now, host=host, project=project,
        title=f"{title}, {plural(open_count, 'open incident')}", body=tuple(body),
    )  # fmt: skip


def _take(cron: CronProject, day: Day, now: float) -> bool:
    """Create the file of a day; one of many succeeds. A day abandoned by a killed tick is taken over."""
    import os

    path = cron.state.path / DIRECTORY / f"{day.number}.taken"
    with suppress(FileExistsError):
        descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
        try:
            os.fchmod(descriptor, cron.state.file_mode)
        finally:
            os.close(descriptor)
        return True
    if path.with_name(f"{day.number}.queued").exists() or now - path.stat().st_mtime < ABANDONED_S:
        return False
    path.unlink(missing_ok=True)
    return _take(cron, day, now)


def _mark(cron: CronProject, day: Day) -> None:
    write_atomic(cron.state.path / DIRECTORY / f"{day.number}.queued", "", mode=cron.state.file_mode)


def _tally(cron: CronProject) -> Tally | None:
    with suppress(ResilError, ValueError, TypeError):
        found = read_regular(cron.state.path / DIRECTORY / "tally")
        if found is not None:
            since, ticks, late_s = json.loads(found[0])
            return Tally(float(since), int(ticks), float(late_s))
    return None


def _write(cron: CronProject, name: str, tally: Tally) -> None:
    directory = cron.state.path / DIRECTORY
    make_directory(directory, mode=cron.state.directory_mode)
    write_atomic(directory / name, json.dumps(list(tally)) + "\n", mode=cron.state.file_mode, durable=False)


def _delete_old(cron: CronProject, day: Day) -> None:
    """Delete old days; the names sort by date."""
    with suppress(OSError):
        names = sorted(path for path in (cron.state.path / DIRECTORY).iterdir() if path.name[:8].isdigit())
        for path in names[: -2 * KEPT_DAYS]:
            path.unlink()


def _clock(moment: float) -> str:
    return time.strftime("%H:%M", time.localtime(moment))


def _moment(moment: float) -> str:
    return time.strftime("%a %H:%M", time.localtime(moment))
