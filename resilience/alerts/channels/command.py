"""Notifies people through a program of your own, which reads the alert as JSON from its standard input."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass

from resilience.alerts.alert import Alert
from resilience.alerts.channels import check_timeout
from resilience.alerts.message import alert_record, cut, plain_text
from resilience.errors import SettingsError
from resilience.system.ports import System
from resilience.system.process import run_with_input, said_by
from resilience.system.secrets import scrubbed_environment

TEXT_LIMIT = 5_000


@dataclass(frozen=True, slots=True, kw_only=True)
class CommandSettings:
    """[channel.command]: a program that takes the alert. Exit code 0: taken. 64 to 68, 76 to 78 (sysexits.h): refused
    for good. Any other: try again later.

    Attributes:
        argv: the program and its arguments, one text each; no shell is involved: `["/opt/pager/send", "--now"]`.
        environment: names of environment variables that it may see besides PATH, HOME and the like.
        timeout_s: it is killed after this, with everything that it started.
    """

    argv: tuple[str, ...] = ()
    environment: tuple[str, ...] = ()
    timeout_s: float = 12.0


class CommandChannel:
    """One run of the program for each alert."""

    summary = "a program of your own, with the alert as JSON on its standard input"
    Settings = CommandSettings

    def check(self, settings: CommandSettings) -> None:
        """Raise SettingsError where there is no program, or a shell line instead of one."""
        if not settings.argv or not settings.argv[0]:
            raise SettingsError("the command channel needs a program", hint='argv = ["/opt/pager/send", "--now"]')
        if len(settings.argv) == 1 and any(c in settings.argv[0] for c in " \t|;&<>$"):
            raise SettingsError(
                f"argv = {settings.argv[0]!r} is a shell line, and no shell is asked",
                hint='one text for each argument: argv = ["bash", "-c", "..."] where a shell is wanted',
            )
        if any("\0" in part for part in settings.argv):
            raise SettingsError("argv has a NUL byte in it")
        check_timeout(settings.timeout_s)

    def compose(self, alert: Alert, settings: CommandSettings, thread: Mapping[str, str]) -> str:
        """One line of JSON: the alert's own fields, and it as a headline and as text."""
        record = alert_record(alert, lambda text: cut(text, TEXT_LIMIT), text=plain_text(alert))
        return json.dumps(record)  # ASCII: a lone surrogate is escaped, and is no reason to fail

    def send(self, message: str, settings: CommandSettings, system: System) -> Mapping[str, str]:
        """Run the program. Raise DeliveryError if it did not end with 0 in time."""
        environment = scrubbed_environment(system.environ, settings.environment)
        done = run_with_input(
            settings.argv, message + "\n", system.runner.run, timeout_s=settings.timeout_s, environment=environment
        )
        said = said_by(done)
        return {"answer": f"{settings.argv[0]} took it" + (f": {said}" if said else "")}


CHANNEL = CommandChannel()
