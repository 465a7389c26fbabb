"""Dead man's switch: a request at the end of each tick; the service alerts when requests stop.

Uses the protocol of healthchecks.io, which other services share: `URL` for success, `URL/fail` for a tick that failed
(https://healthchecks.io/docs/http_api/). A tick that cannot vouch for the alerts requests neither, and the service
alerts after its grace time. A detached child sends the request, so no server delays a tick.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING
from urllib.parse import urlsplit, urlunsplit

from resilience.cron.records import Outcome
from resilience.errors import ResilError, SettingsError
from resilience.messages import plural
from resilience.quantities import format_duration
from resilience.records import from_record, to_record
from resilience.system.files import make_directory, read_regular, write_atomic

if TYPE_CHECKING:
    from resilience.cron.project import CronProject
    from resilience.settings.cron_settings import CronSettings

PING_S = 5.0
"""Time limit of the request, from name resolution to the last byte."""
CHILD_S = 60.0
"""The child is killed after this time, on a file system that hangs too."""
BODY_BYTES = 10_000
"""Healthchecks keeps the first 100 kB of a body; a summary needs less."""
STUCK_S = 900.0
"""An alert queued for longer than this does not reach anybody."""
UNKNOWN_CODE = 3
"""Exit code of a watchdog that could not look (Nagios plugin API)."""
STATE = "ping"
"""In `<state_dir>/.cron`: result of the last ping."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PingState:
    """Result of the last ping.

    Attributes:
        time: when, seconds since the epoch.
        error: why no success was reported; empty if one was.
        well: time of the last success; 0: none yet.
    """

    time: float
    error: str = ""
    well: float = 0.0


def check_ping(settings: CronSettings) -> None:
    """Raise SettingsError for an invalid address, without revealing it."""
    from resilience.system.http import check_url

    if settings.ping_url and settings.ping_url_file:
        raise SettingsError("[cron] sets both ping_url and ping_url_file", hint="keep only one; the file is safer")
    if settings.ping_url:
        check_url(settings.ping_url, "[cron] ping_url", allow_http=settings.ping_allow_http, key="ping_allow_http")


def ping_state(cron: CronProject) -> PingState | None:
    """Return the result of the last ping; None if there was none or it cannot be read. Never raises."""
    import json

    with suppress(ResilError, ValueError, TypeError):
        found = read_regular(cron.state.path / STATE)
        if found is not None:
            return from_record(PingState, json.loads(found[0]), strict=True)
    return None


def ping_url(url: str, word: str) -> str:
    """Return the URL for `fail` or, with an empty word, success. Keeps the query. Pure."""
    parts = urlsplit(url)
    path = parts.path.rstrip("/") + (f"/{word}" if word else "")
    return urlunsplit((parts.scheme, parts.netloc, path or "/", parts.query, ""))


def ping(cron: CronProject, summary: str, *, is_well: bool) -> None:
    """Report a tick, and write the result for `resil cron status`. Never raises. The summary must not contain secrets.

    A tick that ended well reports nothing if a watchdog could not look, or alerts are stuck.
    """
    import json

    before, now, secrets = ping_state(cron), cron.project.system.clock.now(), [cron.settings.ping_url]
    try:
        from resilience.system.redaction import redact

        error = "; ".join(doubts(cron, now)) if is_well else ""
        if error:
            error = f"no success reported: {error}"
        else:
            secrets = [_address(cron)]
            error = _send(cron, secrets[0], "" if is_well else "fail", redact(summary))
    except ResilError as problem:
        error = redact(problem.message, secrets)
    except Exception as problem:
        error = redact(f"{type(problem).__name__}: {problem}", secrets)
    well = before.well if before is not None else 0.0
    state = PingState(time=now, error=error, well=now if is_well and not error else well)
    with suppress(ResilError):
        make_directory(cron.state.path, mode=cron.state.directory_mode)
        text = json.dumps(to_record(state, complete=True)) + "\n"
        write_atomic(cron.state.path / STATE, text, mode=cron.state.file_mode, durable=False)


def doubts(cron: CronProject, now: float) -> Iterator[str]:
    """Yield why a tick that ended well cannot vouch for the alerts: a watchdog that could not look, stuck messages.

    Raise ResilError if that cannot be read.
    """
    from resilience.alerts.routes import routes_of
    from resilience.alerts.state import open_alert_state
    from resilience.cron.checks.cron import fold, read_table_file

    names, _ = read_table_file(cron.state.path)
    for key in cron.state.keys():  # noqa: SIM118 - no mapping
        last = fold(cron.state.history(key)).last
        if last is None or (names is not None and last.name not in names):
            continue
        if last.outcome is Outcome.DONE and last.exit_code == UNKNOWN_CODE:
            yield f"{last.name} ended UNKNOWN"
    outbox, routes = open_alert_state(cron.project, touch=False).outbox, routes_of(cron.project)
    waiting = [one for one in outbox.pending() if routes.get(one.channel) is not None]  # not of another project
    oldest_s = now - min((one.queued for one in waiting), default=now)
    if oldest_s > STUCK_S:
        yield f"{plural(len(waiting), 'alert')} queued, for up to {format_duration(oldest_s)}: resil alert list"
    if outbox.error:
        yield outbox.error


def _address(cron: CronProject) -> str:
    from resilience.system.http import check_url
    from resilience.system.secrets import read_secret

    check_ping(cron.settings)
    found = read_secret(cron.settings, "ping_url", cron.project.system)
    if found is None:
        return cron.settings.ping_url
    url, what = found.reveal(), "the content of [cron] ping_url_file"
    check_url(url, what, allow_http=cron.settings.ping_allow_http, key="ping_allow_http")
    return url


def _send(cron: CronProject, url: str, word: str, body: str) -> str:
    """Send the request; return why the server refused it. Raise ResilError if it cannot be sent."""
    from resilience.system.http import refusal, request

    answer = request(
        ping_url(url, word),
        body.encode("utf-8", "replace")[:BODY_BYTES],
        environ=cron.project.system.environ,
        timeout_s=PING_S,
        headers={"Content-Type": "text/plain; charset=utf-8", "User-Agent": "resil"},
        secrets=[url],
    )
    refused = refusal(answer, urlsplit(url).hostname or "the server", [url])
    return refused.message if refused is not None else ""
