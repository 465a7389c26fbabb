"""Dead man's switch: a request at the end of each tick; the service alerts when requests stop.

Uses the protocol of healthchecks.io, which other services share: `URL` for success, `URL/fail` for a tick that failed
(https://healthchecks.io/docs/http_api/). A tick that cannot vouch for the alerts requests neither, and the service
alerts after its grace time. A detached child sends the request, so no server delays a tick.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import suppress
from typing import TYPE_CHECKING, NamedTuple
from urllib.parse import urlsplit, urlunsplit

from resilience.errors import ResilError, SettingsError
from resilience.messages import plural
from resilience.quantities import format_duration

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


class Pinged(NamedTuple):
    """Result of the last ping.

    Attributes:
        time: when it was due, seconds since the epoch; 0: never.
        error: why no success was reported; empty if one was.
        unknown: the entries whose last run ended UNKNOWN.
    """

    time: float = 0.0
    error: str = ""
    unknown: tuple[str, ...] = ()


def last_ping(cron: CronProject) -> Pinged:
    """Return the result of the last ping; the defaults if there was none, or it cannot be read. Never raises."""
    return cron.state.recall(STATE, Pinged)


def ping_url(url: str, word: str) -> str:
    """Return the URL for `fail` or, with an empty word, success. Keeps the query. Pure."""
    parts = urlsplit(url)
    path = parts.path.rstrip("/") + (f"/{word}" if word else "")
    return urlunsplit((parts.scheme, parts.netloc, path or "/", parts.query, ""))


def ping(cron: CronProject, summary: str, ended: Mapping[str, int | None], *, is_well: bool, doubt: str = "") -> None:
    """Report a tick, and write the result for `resil cron status`. Never raises.

    A tick that ended well reports nothing if there is a `doubt`, a watchdog could not look, or alerts are stuck.

    Args:
        summary: must not contain secrets.
        ended: exit codes of the runs that ended well since the last ping, None of others, by the name of the entry.
    """
    from resilience.cron.checks.cron import read_table_file
    from resilience.system.redaction import redact

    now, error, (names, _) = cron.project.system.clock.now(), "", read_table_file(cron.state)
    codes = {**dict.fromkeys(last_ping(cron).unknown, UNKNOWN_CODE), **ended}
    unknown = [name for name, code in codes.items() if code == UNKNOWN_CODE and (names is None or name in names)]
    try:
        found = [doubt, *(f"{name} ended UNKNOWN" for name in unknown), *doubts(cron, now)] if is_well else []
        said, word = "; ".join(filter(None, found)), "" if is_well else "fail"
        error = f"no success reported: {said}" if said else _send(cron, word, redact(summary))
    except Exception as problem:  # reading the address registers it as a secret
        text = problem.message if isinstance(problem, ResilError) else f"{type(problem).__name__}: {problem}"
        error = redact(text, [cron.settings.ping_url])
    with suppress(ResilError):
        cron.state.write_record(STATE, Pinged(now, error, tuple(unknown))._asdict())


def doubts(cron: CronProject, now: float) -> Iterator[str]:
    """Yield why alerts do not arrive: stuck messages, rejected messages. Raise ResilError if that cannot be read."""
    from resilience.alerts.routes import routes_of
    from resilience.alerts.state import open_alert_state

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


def address_of(cron: CronProject) -> str:
    """Return the address of the dead man's switch, from the settings or its file. Raise ResilError for an invalid or
    unreadable one, without revealing it."""
    from resilience.system.http import check_url
    from resilience.system.secrets import read_secret

    check_ping(cron.settings)
    secret, what = read_secret(cron.settings, "ping_url", cron.project.system), "the content of [cron] ping_url_file"
    url = secret.reveal() if secret is not None else cron.settings.ping_url
    check_url(url, what, allow_http=cron.settings.ping_allow_http, key="ping_allow_http")
    return url


def _send(cron: CronProject, word: str, body: str) -> str:
    """Send the request; return why the server refused it. Raise ResilError if it cannot be sent."""
    from resilience.system.http import refusal, request

    url = address_of(cron)
    answer = request(
        ping_url(url, word), body.encode("utf-8", "replace")[:BODY_BYTES], environ=cron.project.system.environ,
        timeout_s=PING_S, secrets=[url],
        headers={"Content-Type": "text/plain; charset=utf-8", "User-Agent": "resil"},
    )  # fmt: skip
    refused = refusal(answer, urlsplit(url).hostname or "the server", [url])
    return refused.message if refused is not None else ""
