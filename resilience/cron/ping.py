"""A dead man's switch for the scheduler: told at the start and at the end of each tick, it speaks up when it hears
nothing.

As healthchecks.io has it, and everything that speaks its language: `URL/start`, `URL`, `URL/fail`, each with `?rid=` of
the tick (https://healthchecks.io/docs/http_api/). A child does it that nobody waits for, so no server delays a tick.
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
"""How long one request may take, from the look-up of the name to the last byte."""
LONGEST_TICK_S = 2 * 86400.0
"""A child that waits for the end of a tick waits no longer."""
BODY_BYTES = 10_000
"""Healthchecks keeps the first 100 kB of what it is sent; a summary needs less."""
STATE = "ping"
"""In `<state_dir>/.cron`: how the last one went."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PingState:
    """How the dead man's switch was reached last.

    Attributes:
        time: when, seconds since the epoch.
        error: why it was not reached; empty: it was.
        well: when it was reached last; 0: never yet.
    """

    time: float
    error: str = ""
    well: float = 0.0


def check_ping(settings: CronSettings) -> None:
    """Raise SettingsError for an address that cannot be meant, without showing it."""
    from resilience.system.http import check_url

    if settings.ping_url and settings.ping_url_file:
        raise SettingsError("[cron] has both ping_url and ping_url_file", hint="keep one of them: the file is safer")
    if settings.ping_url:
        check_url(settings.ping_url, "[cron] ping_url", allow_http=settings.ping_allow_http)


def ping_state(cron: CronProject) -> PingState | None:
    """How it went last; None: it was never tried, or nobody can tell. Never raises."""
    with suppress(ResilError, ValueError, TypeError, KeyError):
        found = read_regular(cron.state.path / STATE)
        if found is not None:
            record = json.loads(found[0])
            return PingState(
                time=float(record["time"]), error=str(record.get("error", "")), well=float(record.get("well", 0))
            )
    return None


def ping_url(url: str, word: str, rid: str) -> str:
    """The address for `start`, `fail` or, an empty word, success. Pure. What stands behind `?` is kept."""
    parts = urlsplit(url)
    path = parts.path.rstrip("/") + (f"/{word}" if word else "")
    query = urlencode([*parse_qsl(parts.query, keep_blank_values=True), ("rid", rid)])
    return urlunsplit((parts.scheme, parts.netloc, path or "/", query, ""))


class Ping:
    """The word of one tick: begun by a child that waits for its end."""

    def __init__(self, cron: CronProject) -> None:
        """Tell that a tick begins. Never raises, and waits for nothing."""
        self._pipe = -1
        self._child: Detached | None = None
        if not (cron.settings.ping_url or cron.settings.ping_url_file):
            return
        try:
            reading, writing = os.pipe2(os.O_CLOEXEC)
        except OSError:
            return
        try:
            self._child = start_detached(lambda: _tell(cron, reading), LONGEST_TICK_S, keep=reading)
            self._pipe = writing
        except OSError:
            os.close(writing)
        finally:
            os.close(reading)

    def ended(self, summary: str, *, is_well: bool) -> None:
        """Tell how the tick ended: the summary is for people, and has no secrets in it."""
        if self._pipe < 0:
            return
        line = f"{'well' if is_well else 'fail'} {summary}".encode("utf-8", "replace")[:BODY_BYTES]
        with suppress(OSError):  # a pipe takes so much at once, or the child is gone
            os.write(self._pipe, line.replace(b"\0", b" ") + b"\0")
        os.close(self._pipe)
        self._pipe = -1

    def wait(self, seconds: float) -> None:
        """Wait for the child, so long at most: for who takes all children with it when it ends."""
        if self._child is not None:
            self._child.wait(seconds)

    def forget(self) -> None:
        """Let the child be."""
        if self._pipe >= 0:
            os.close(self._pipe)
            self._pipe = -1
        if self._child is not None:
            self._child.forget()


def _tell(cron: CronProject, reading: int) -> None:
    """In the child: the start, and then the end, whatever it will be."""
    from uuid import uuid4

    rid = str(uuid4())
    try:
        url = _address(cron)
    except ResilError as error:
        _keep(cron, error.message)
        return
    began = _send(cron, url, "start", rid, "")
    word, _, summary = _hear(reading).partition(" ")
    ended = _send(cron, url, "" if word == "well" else "fail", rid, summary or "the tick ended without a word")
    _keep(cron, ended or began)


def _address(cron: CronProject) -> Secret:
    from resilience.system.http import check_url
    from resilience.system.secrets import Secret, read_secret

    check_ping(cron.settings)
    found = read_secret(cron.settings, "ping_url", cron.project.system)
    if found is None:
        return Secret(cron.settings.ping_url)
    check_url(found.reveal(), "what [cron] ping_url_file holds", allow_http=cron.settings.ping_allow_http)
    return found


def _hear(reading: int) -> str:
    """What the tick says at its end; nothing where it dies without a word."""
    heard = b""
    while not heard.endswith(b"\0"):
        select.select([reading], [], [])
        chunk = os.read(reading, 65536)
        if not chunk:
            break
        heard += chunk
    return heard.rstrip(b"\0").decode("utf-8", "replace")


def _send(cron: CronProject, url: Secret, word: str, rid: str, body: str) -> str:
    """Send one word; return why it did not arrive, without the address."""
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


def _keep(cron: CronProject, error: str) -> None:
    """Write down how it went, for `resil cron status`."""
    now = cron.project.system.clock.now()
    before = ping_state(cron)
    well = now if not error else before.well if before is not None else 0.0
    with suppress(ResilError):
        make_directory(cron.state.path, mode=cron.state.directory_mode)
        record = {"time": now, "error": error, "well": well}
        write_atomic(cron.state.path / STATE, json.dumps(record) + "\n", mode=cron.state.file_mode, durable=False)
