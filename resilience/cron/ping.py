"""Dead man's switch: a request at the start and the end of each tick; the service alerts when requests stop.

Uses the protocol of healthchecks.io, which other services share: `URL/start`, `URL`, `URL/fail`, each with `?rid=` of
the tick (https://healthchecks.io/docs/http_api/). A detached child sends the requests, so no server delays a tick.
"""

from __future__ import annotations

import json
import os
import select
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING
from urllib.parse import parse_qsl, urlencode, urlsplit, urlunsplit

from resilience.errors import ResilError, SettingsError
from resilience.system.child import Detached, start_detached
from resilience.system.files import make_directory, read_regular, write_atomic

if TYPE_CHECKING:
    from resilience.cron.project import CronProject
    from resilience.settings.cron_settings import CronSettings
    from resilience.system.secrets import Secret

PING_S = 5.0
"""Time limit of one request, from name resolution to the last byte."""
LONGEST_TICK_S = 2 * 86400.0
"""The child waits this long for the end of a tick."""
BODY_BYTES = 10_000
"""Healthchecks keeps the first 100 kB of a body; a summary needs less."""
STATE = "ping"
"""In `<state_dir>/.cron`: result of the last ping."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PingState:
    """Result of the last ping.

    Attributes:
        time: when, seconds since the epoch.
        error: why it failed; empty if it succeeded.
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
    with suppress(ResilError, ValueError, TypeError, KeyError):
        found = read_regular(cron.state.path / STATE)
        if found is not None:
            record = json.loads(found[0])
            return PingState(
                time=float(record["time"]), error=str(record.get("error", "")), well=float(record.get("well", 0))
            )
    return None


def ping_url(url: str, word: str, rid: str) -> str:
    """Return the URL for `start`, `fail` or, with an empty word, success. Keeps the query. Pure."""
    parts = urlsplit(url)
    path = parts.path.rstrip("/") + (f"/{word}" if word else "")
    query = urlencode([*parse_qsl(parts.query, keep_blank_values=True), ("rid", rid)])
    return urlunsplit((parts.scheme, parts.netloc, path or "/", query, ""))


class Ping:
    """The pings of one tick, sent by a child that waits for its end."""

    def __init__(self, cron: CronProject) -> None:
        """Start the child, which reports the start of the tick. Never raises, and does not block."""
        self._pipe = -1
        self._child: Detached | None = None
        if not (cron.settings.ping_url or cron.settings.ping_url_file):
            return
        try:
            reading, writing = os.pipe2(os.O_CLOEXEC)
        except OSError:
            return
        try:
            self._child = start_detached(lambda: _ping_start_and_end(cron, reading), LONGEST_TICK_S, keep=reading)
            self._pipe = writing
        except OSError:
            os.close(writing)
        finally:
            os.close(reading)

    def ended(self, summary: str, *, is_well: bool) -> None:
        """Report the end of the tick; the summary must not contain secrets."""
        if self._pipe < 0:
            return
        line = f"{'well' if is_well else 'fail'} {summary}".encode("utf-8", "replace")[:BODY_BYTES]
        with suppress(OSError):  # PIPE_BUF is larger than the line; the child may be gone
            os.write(self._pipe, line.replace(b"\0", b" ") + b"\0")
        os.close(self._pipe)
        self._pipe = -1

    def wait(self, seconds: float) -> None:
        """Wait for the child, for at most `seconds`: for callers whose end kills their children."""
        if self._child is not None:
            self._child.wait(seconds)

    def forget(self) -> None:
        """Detach from the child."""
        if self._pipe >= 0:
            os.close(self._pipe)
            self._pipe = -1
        if self._child is not None:
            self._child.forget()


def _ping_start_and_end(cron: CronProject, reading: int) -> None:
    """In the child: send the start, then the end."""
    from uuid import uuid4

    rid = str(uuid4())
    try:
        url = _address(cron)
    except ResilError as error:
        _record(cron, error.message)
        return
    began = _send(cron, url, "start", rid, "")
    word, _, summary = _read_result(reading).partition(" ")
    ended = _send(cron, url, "" if word == "well" else "fail", rid, summary or "the tick died")
    _record(cron, ended or began)


def _address(cron: CronProject) -> Secret:
    from resilience.system.http import check_url
    from resilience.system.secrets import Secret, read_secret

    check_ping(cron.settings)
    found = read_secret(cron.settings, "ping_url", cron.project.system)
    if found is None:
        return Secret(cron.settings.ping_url)
    check_url(
        found.reveal(), "the content of [cron] ping_url_file",
        allow_http=cron.settings.ping_allow_http, key="ping_allow_http",
    )  # fmt: skip
    return found


def _read_result(reading: int) -> str:
    """Return the line that the tick writes at its end; empty if the tick died."""
    received = b""
    while not received.endswith(b"\0"):
        select.select([reading], [], [])
        chunk = os.read(reading, 65536)
        if not chunk:
            break
        received += chunk
    return received.rstrip(b"\0").decode("utf-8", "replace")


def _send(cron: CronProject, url: Secret, word: str, rid: str, body: str) -> str:
    """Send one request; return why it failed, without the address."""
    from resilience.system.http import refusal, request
    from resilience.system.redaction import redact

    environ: Mapping[str, str] = cron.project.system.environ
    try:
        answer = request(
            ping_url(url.reveal(), word, rid),
            redact(body).encode("utf-8", "replace")[:BODY_BYTES],
            environ=environ,
            timeout_s=PING_S,
            headers={"Content-Type": "text/plain; charset=utf-8", "User-Agent": "resil"},
            secrets=[url.reveal()],
        )
        refused = refusal(answer, urlsplit(url.reveal()).hostname or "the server", [url.reveal()])
        return refused.message if refused is not None else ""
    except ResilError as error:
        return redact(error.message, [url.reveal()])
    except Exception as error:
        return redact(f"{type(error).__name__}: {error}", [url.reveal()])


def _record(cron: CronProject, error: str) -> None:
    """Write the result for `resil cron status`."""
    now = cron.project.system.clock.now()
    before = ping_state(cron)
    well = now if not error else before.well if before is not None else 0.0
    with suppress(ResilError):
        make_directory(cron.state.path, mode=cron.state.directory_mode)
        record = {"time": now, "error": error, "well": well}
        write_atomic(cron.state.path / STATE, json.dumps(record) + "\n", mode=cron.state.file_mode, durable=False)
