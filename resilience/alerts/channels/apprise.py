"""Notifies people through any service that Apprise knows (https://github.com/caronc/apprise): an extra."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from resilience.alerts.channels import check_timeout
from resilience.alerts.message import headline, plain_text
from resilience.errors import DeliveryError, SettingsError
from resilience.finding import Verdict
from resilience.system.ports import System
from resilience.system.redaction import redact
from resilience.system.secrets import Secret, check_secret, read_secret_lines
from resilience.system.time_limit import within

if TYPE_CHECKING:
    from resilience.alerts.alert import Alert

TEXT_LIMIT = 8000
"""Apprise cuts what a service does not take, but without a word."""

MISSING_HINT = "pip install 'resil[apprise]'"


@dataclass(frozen=True, slots=True, kw_only=True)
class AppriseSettings:
    """[channel.apprise]: services as Apprise's addresses. They hold passwords, so they lie in a file or a variable.

    Attributes:
        urls_file: file of mode 0600 with one address on each line: `tgram://...`, `pover://...`, `json://...`.
        urls_variable: name of an environment variable with the address instead.
        timeout_s: how long all of them together may take.
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
    """One notification to all the addresses."""

    summary = "any service that Apprise knows (pip install 'resil[apprise]')"
    Settings = AppriseSettings

    def check(self, settings: AppriseSettings) -> None:
        """Raise SettingsError without addresses, or without Apprise."""
        check_secret(settings, "urls")
        check_timeout(settings.timeout_s)
        if not is_installed():
            raise SettingsError("the apprise channel needs Apprise, which is not installed", hint=MISSING_HINT)

    def compose(self, alert: Alert, settings: AppriseSettings, thread: Mapping[str, str]) -> AppriseMessage:
        """Title and plain text."""
        kind = {Verdict.OK: "success", Verdict.CRITICAL: "failure"}.get(alert.verdict, "warning")
        if alert.is_test or alert.title or alert.is_resolved:
            kind = "info" if alert.is_test or alert.title else "success"
        return AppriseMessage(f"[resil] {headline(alert)}", plain_text(alert, TEXT_LIMIT), kind)

    def send(self, message: AppriseMessage, settings: AppriseSettings, system: System) -> Mapping[str, str]:
        """Notify. Raise DeliveryError if one of the services did not take it, or not in time."""
        if not is_installed():
            raise DeliveryError("Apprise is not installed", hint=MISSING_HINT, transient=False)
        urls = read_secret_lines(settings, "urls", system)
        if not urls:
            raise DeliveryError("no addresses are given for Apprise", hint="urls_file = ...", transient=False)
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
                return {"answer": f"{len(urls)} {'service' if len(urls) == 1 else 'services'} took it"}
            failure = DeliveryError(f"Apprise could not deliver{f': {said}' if said else ''}")
        raise failure


def is_installed() -> bool:
    """Whether Apprise can be imported here; this does not import it."""
    from importlib.util import find_spec

    return find_spec("apprise") is not None


def _notify(urls: tuple[Secret, ...], message: AppriseMessage) -> tuple[bool, str]:
    """Whether all services took it, and what Apprise logged about it: it says why nowhere else."""
    import logging
    from importlib import import_module

    apprise: Any = import_module("apprise")  # an extra: types are checked where it is not installed, too
    services = apprise.Apprise()
    for number, url in enumerate(urls, 1):
        if not services.add(url.reveal()):
            raise DeliveryError(
                f"line {number} of Apprise's addresses is none that it knows", transient=False,
                hint="https://github.com/caronc/apprise/wiki lists them",
            )  # fmt: skip
    with apprise.LogCapture(level=logging.WARNING, fmt="%(message)s") as log:
        taken = bool(services.notify(title=message.title, body=message.body, notify_type=message.kind))
        lines = [line for line in log.getvalue().splitlines() if line.strip()]
    return taken, redact("; ".join(lines[:3]), [url.reveal() for url in urls])[:300]


CHANNEL = AppriseChannel()
