"""Sends alerts to any service that Apprise supports (https://github.com/caronc/apprise): an extra."""

from __future__ import annotations

import shlex
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from resilience.alerts.channels import check_timeout
from resilience.alerts.message import headline, plain_text
from resilience.errors import DeliveryError, SettingsError
from resilience.finding import Verdict
from resilience.messages import plural
from resilience.system.ports import System
from resilience.system.redaction import redact
from resilience.system.secrets import Secret, check_secret, read_secret_lines
from resilience.system.time_limit import within

if TYPE_CHECKING:
    from resilience.alerts.alert import Alert

TEXT_LIMIT = 8000
"""Apprise itself truncates texts silently."""

MISSING_HINT = shlex.join([sys.executable, "-m", "pip", "install", "apprise"])


@dataclass(frozen=True, slots=True, kw_only=True)
class AppriseSettings:
    """[channel.apprise]: services as Apprise URLs, in a file or a variable since they contain passwords.

    Attributes:
        urls_file: file of mode 0600 with one URL per line: `tgram://...`, `pover://...`, `json://...`.
        urls_variable: name of an environment variable with the URL instead.
        timeout_s: time limit for all services together.
    """

    urls_file: str = ""
    urls_variable: str = ""
    timeout_s: float = 12.0


@dataclass(frozen=True, slots=True)
class AppriseMessage:
    """A message for Apprise; `kind` is its notification type: info, success, warning, failure."""

    title: str
    body: str
    kind: str


class AppriseChannel:
    """Sends each alert to all URLs."""

    summary = "any service that Apprise supports (pip install apprise)"
    Settings = AppriseSettings

    def check(self, settings: AppriseSettings) -> None:
        """Raise SettingsError without URLs or if Apprise is not installed."""
        check_secret(settings, "urls")
        check_timeout(settings.timeout_s)
        if not is_installed():
            raise SettingsError("the apprise channel needs Apprise, which is not installed", hint=MISSING_HINT)

    def compose(self, alert: Alert, settings: AppriseSettings, thread: Mapping[str, str]) -> AppriseMessage:
        """Return title and plain text."""
        kind = {Verdict.OK: "success", Verdict.CRITICAL: "failure"}.get(alert.verdict, "warning")
        if alert.is_test or alert.title or alert.is_resolved:
            kind = "info" if alert.is_test or alert.title else "success"
        return AppriseMessage(f"[resil] {headline(alert)}", plain_text(alert, TEXT_LIMIT), kind)

    def send(self, message: AppriseMessage, settings: AppriseSettings, system: System) -> Mapping[str, str]:
        """Notify all services. Raise DeliveryError if one of them fails or the time limit passes."""
        if not is_installed():
            raise DeliveryError("Apprise is not installed", hint=MISSING_HINT, transient=False)
        urls = read_secret_lines(settings, "urls", system)
        if not urls:
            raise DeliveryError("no URLs are set for Apprise", hint="urls_file = ...", transient=False)
        try:
            taken, said = within(settings.timeout_s, lambda: _notify(urls, message))
        except TimeoutError:
            raise DeliveryError(f"Apprise's services did not answer within {settings.timeout_s:g} s") from None
        except DeliveryError:
            raise
        except Exception as error:
            failure = DeliveryError(f"Apprise failed: {redact(f'{type(error).__name__}: {error}')}")
        else:
            if taken:
                return {"answer": f"{plural(len(urls), 'service')} accepted the message"}
            failure = DeliveryError(f"Apprise could not deliver{f': {said}' if said else ''}")
        raise failure


def is_installed() -> bool:
    """Return True if Apprise can be imported, without importing the package."""
    from importlib.util import find_spec

    return find_spec("apprise") is not None


def _notify(urls: tuple[Secret, ...], message: AppriseMessage) -> tuple[bool, str]:
    """Return whether all services accepted the message, and Apprise's log, the only source of its errors."""
    import logging
    from importlib import import_module

    apprise: Any = import_module("apprise")  # an extra: mypy also runs without it
    services = apprise.Apprise()
    for number, url in enumerate(urls, 1):
        if not services.add(url.reveal()):
            raise DeliveryError(
                f"line {number} of Apprise's URLs is not a URL that Apprise supports", transient=False,
                hint="see https://github.com/caronc/apprise/wiki",
            )  # fmt: skip
    with apprise.LogCapture(level=logging.WARNING, fmt="%(message)s") as log:
        taken = bool(services.notify(title=message.title, body=message.body, notify_type=message.kind))
        lines = [line for line in log.getvalue().splitlines() if line.strip()]
    return taken, redact("; ".join(lines[:3]), [url.reveal() for url in urls])[:300]


CHANNEL = AppriseChannel()
