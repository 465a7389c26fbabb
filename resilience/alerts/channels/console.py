"""Writes one line per alert to standard error, a file or a terminal: for first steps, and as a log."""

from __future__ import annotations

import errno
import os
import stat
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from resilience.alerts.alert import Alert
from resilience.alerts.message import SELF_CHECK, acknowledge_command, headline, moment
from resilience.errors import DeliveryError, SettingsError
from resilience.system.ports import System

_TRANSIENT = {errno.ENOSPC, errno.EDQUOT, errno.EIO, errno.ESTALE, errno.EAGAIN, errno.ENXIO, errno.ETIMEDOUT}


@dataclass(frozen=True, slots=True, kw_only=True)
class ConsoleSettings:
    """[channel.console]: one line per alert.

    Attributes:
        path: absolute path of a file to append to, or of a terminal such as `/dev/pts/3`. Default: standard error of
            the command that sends the alert.
    """

    path: str = ""


class ConsoleChannel:
    """Writes one line per alert."""

    summary = "a line on standard error, in a file or on a terminal"
    Settings = ConsoleSettings

    def check(self, settings: ConsoleSettings) -> None:
        """Raise SettingsError for a relative path."""
        if settings.path and (not settings.path.startswith(("/", "~/")) or "\0" in settings.path):
            raise SettingsError(
                f"path = {settings.path!r} must be an absolute path", hint='path = "~/resil-alerts.log"'
            )

    def compose(self, alert: Alert, settings: ConsoleSettings, thread: Mapping[str, str]) -> str:
        """Return the line, with the time and the command to acknowledge."""
        line = f"{moment(alert.time)} [resil] {headline(alert, 300)}"
        is_incident = any(notice.check != SELF_CHECK for notice in alert.notices)
        if is_incident and not alert.is_resolved and not alert.is_test:
            line += f" - {acknowledge_command(alert)}"
        return line

    def send(self, message: str, settings: ConsoleSettings, system: System) -> Mapping[str, str]:
        """Write the line and flush. Raise DeliveryError if the line cannot be written."""
        if not settings.path:
            try:
                sys.stderr.write(message + "\n")
                sys.stderr.flush()
            except (OSError, ValueError) as error:
                raise DeliveryError(f"cannot write standard error: {error}") from None
            return {"answer": "written to standard error"}
        home = system.host.home
        path = home / settings.path[2:] if settings.path.startswith("~/") else Path(settings.path)
        try:
            _append(path, f"{message}\n".encode())
        except OSError as error:
            why = os.strerror(error.errno) if error.errno else str(error)
            raise DeliveryError(f"cannot write {path}: {why}", transient=error.errno in _TRANSIENT) from None
        return {"answer": f"written to {path}"}


def _append(path: Path, line: bytes) -> None:
    """Append a line with one write, so that lines of concurrent writers do not mix. Raise OSError."""
    flags = os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC
    descriptor = os.open(path, flags, 0o600)
    try:
        if not (stat.S_ISREG(mode := os.fstat(descriptor).st_mode) or stat.S_ISCHR(mode) or stat.S_ISFIFO(mode)):
            raise OSError(errno.EINVAL, os.strerror(errno.EINVAL))
        if os.write(descriptor, line) != len(line):
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
    finally:
        os.close(descriptor)


CHANNEL = ConsoleChannel()
