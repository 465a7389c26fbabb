"""Sends alerts to a program of your own, which reads the alert as JSON from standard input."""

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
    """[channel.command]: a program that accepts alerts. Exit code 0: accepted; 64 to 68 and 76 to 78 (sysexits.h):
    rejected permanently; any other: retry later.

    Attributes:
        argv: the program and its arguments, one text each, run without a shell: `["/opt/pager/send", "--now"]`.
        environment: names of environment variables passed to the program besides PATH, HOME and the like.
        timeout_s: time limit, after which the program and all its children are killed.
    """

    argv: tuple[str, ...] = ()
    environment: tuple[str, ...] = ()
    timeout_s: float = 12.0


class CommandChannel:
    """Runs the program once per alert."""

    summary = "a program of your own, with the alert as JSON on its standard input"
    Settings = CommandSettings

    def check(self, settings: CommandSettings) -> None:
        """Raise SettingsError without a program, or for a shell command line."""
        if not settings.argv or not settings.argv[0]:
            raise SettingsError("the command channel needs a program", hint='argv = ["/opt/pager/send", "--now"]')
        if len(settings.argv) == 1 and any(c in settings.argv[0] for c in " \t|;&<>$"):
            raise SettingsError(
                f"argv = {settings.argv[0]!r} is a shell command line, and the program runs without a shell",
                hint='one text for each argument; for a shell: argv = ["bash", "-c", "..."]',
            )
        if any("\0" in part for part in settings.argv):
            raise SettingsError("argv contains a NUL byte")
        check_timeout(settings.timeout_s)

    def compose(self, alert: Alert, settings: CommandSettings, thread: Mapping[str, str]) -> str:
        """Return one line of JSON: the alert's fields, its headline and its text."""
        record = alert_record(alert, lambda text: cut(text, TEXT_LIMIT), text=plain_text(alert))
        return json.dumps(record)  # ASCII, so that lone surrogates are escaped

    def send(self, message: str, settings: CommandSettings, system: System) -> Mapping[str, str]:
        """Run the program. Raise DeliveryError unless it exits with 0 in time."""
        environment = scrubbed_environment(system.environ, settings.environment)
        done = run_with_input(
            settings.argv, message + "\n", system.runner.run, timeout_s=settings.timeout_s, environment=environment
        )
        said = said_by(done)
        return {"answer": f"{settings.argv[0]} accepted the message" + (f": {said}" if said else "")}


CHANNEL = CommandChannel()
