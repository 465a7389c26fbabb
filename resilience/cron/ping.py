"""Dead man's switch: a request at the end of each tick; the service alerts when requests stop.

Uses the protocol of healthchecks.io, which other services share: `URL` for success, `URL/fail` for a tick that failed
(https://healthchecks.io/docs/http_api/). A tick that cannot vouch for the alerts requests neither, and the service
alerts after its grace time. A detached child sends the request, so no server delays a tick.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import suppress
from typing import TYPE_CHECKING
from urllib.parse import urlsplit, urlunsplit

from resilience.cron.records import Outcome
from resilience.errors import ResilError, SettingsError
from resilience.messages import plural
from resilience.quantities import format_duration
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
REJECTED_S = 86400.0
"""A channel that rejected an alert more recently, and accepted none since, does not work."""
UNKNOWN_CODE = 3
"""Exit code of a watchdog that could not look (Nagios plugin API)."""
STATE = "ping"
"""In `<state_dir>/.cron`: result of the last ping."""


def check_ping(settings: CronSettings) -> None:
    """Raise SettingsError for an invalid address, without revealing it."""
    from resilience.system.http import check_url

    if settings.ping_url and settings.ping_url_file:
        raise SettingsError("[cron] sets both ping_url and ping_url_file", hint="keep only one; the file is safer")
    if settings.ping_url:
        check_url(settings.ping_url, "[cron] ping_url", allow_http=settings.ping_allow_http, key="ping_allow_http")


def last_ping(cron: CronProject) -> tuple[float, str]:
    """Return when the last ping was due, and why no success was reported; (0, "") if there was none. Never raises."""
    with suppress(ResilError, ValueError, TypeError, KeyError):
        if (found := read_regular(cron.state.path / STATE)) is not None:
            record = json.loads(found[0])
            return float(record["time"]), str(record["error"])
    return 0.0, ""


def ping_url(url: str, word: str) -> str:
    """Return the URL for `fail` or, with an empty word, success. Keeps the query. Pure."""
    parts = urlsplit(url)
    path = parts.path.rstrip("/") + (f"/{word}" if word else "")
    return urlunsplit((parts.scheme, parts.netloc, path or "/", parts.query, ""))


def ping(cron: CronProject, summary: str, *, is_well: bool, doubt: str = "") -> None:
    """Report a tick, and write the result for `resil cron status`. Never raises. The summary must not contain secrets.

    A tick that ended well reports nothing if there is a `doubt`, a watchdog could not look, or alerts are stuck.
    """
    from resilience.system.redaction import redact

    now, error = cron.project.system.clock.now(), ""
    try:
        found = [*([doubt] if doubt else []), *doubts(cron, now)] if is_well else []
        word = "" if is_well else "fail"
        error = f"no success reported: {'; '.join(found)}" if found else _send(cron, word, redact(summary))
    except Exception as problem:  # reading the address registers it as a secret
        text = problem.message if isinstance(problem, ResilError) else f"{type(problem).__name__}: {problem}"
        error = redact(text, [cron.settings.ping_url])
    with suppress(ResilError):
        make_directory(cron.state.path, mode=cron.state.directory_mode)
        text = json.dumps({"time": now, "error": error}) + "\n"
        write_atomic(cron.state.path / STATE, text, mode=cron.state.file_mode, durable=False)


def doubts(cron: CronProject, now: float) -> Iterator[str]:
    """Yield why a tick that ended well cannot vouch for the alerts: a watchdog could not look, messages do not arrive.

    Raise ResilError if that cannot be read.
    """
    from resilience.alerts.routes import routes_of
    from resilience.alerts.state import open_alert_state
    from resilience.cron.checks.cron import fold, read_table_file

    names, _ = read_table_file(cron.state.path)
    for key in cron.state.keys():  # noqa: SIM118 - no mapping
        last = fold(cron.state.history(key)).last
        is_entry = last is not None and (names is None or last.name in names)
        if last is not None and is_entry and (last.outcome, last.exit_code) == (Outcome.DONE, UNKNOWN_CODE):
            yield f"{last.name} ended UNKNOWN"
    outbox, routes = open_alert_state(cron.project, touch=False).outbox, routes_of(cron.project)
    waiting, dead = ([one for one in found if routes.get(one.channel) is not None]  # not of another project
                     for found in (outbox.pending(), outbox.dead()))  # fmt: skip
    oldest_s = now - min((one.queued for one in waiting), default=now)
    if oldest_s > STUCK_S:
        yield f"{plural(len(waiting), 'alert')} queued, for up to {format_duration(oldest_s)}: resil alert list"
    rejected = max((one.ended for one in dead), default=0.0)
    if rejected > now - REJECTED_S and rejected > max((one.ended for one in outbox.sent()), default=0.0):
        yield "the last alert was rejected by its channel: resil alert list"
    if outbox.error:
        yield outbox.error


def _send(cron: CronProject, word: str, body: str) -> str:
    """Send the request; return why the server refused it. Raise ResilError if it cannot be sent."""
    from resilience.system.http import check_url, refusal, request
    from resilience.system.secrets import read_secret

    check_ping(cron.settings)
    secret, what = read_secret(cron.settings, "ping_url", cron.project.system), "the content of [cron] ping_url_file"
    url = secret.reveal() if secret is not None else cron.settings.ping_url
    check_url(url, what, allow_http=cron.settings.ping_allow_http, key="ping_allow_http")
    answer = request(
        ping_url(url, word), body.encode("utf-8", "replace")[:BODY_BYTES], environ=cron.project.system.environ,
        timeout_s=PING_S, secrets=[url],
        headers={"Content-Type": "text/plain; charset=utf-8", "User-Agent": "resil"},
    )  # fmt: skip
    refused = refusal(answer, urlsplit(url).hostname or "the server", [url])
    return refused.message if refused is not None else ""
