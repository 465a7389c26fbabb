"""Channels: each file is one way to notify people, and exports it as CHANNEL."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:
    from resilience.alerts.alert import Alert
    from resilience.system.http import Answer
    from resilience.system.ports import System


class Channel(Protocol):
    """One way to notify people: a file in channels/ (or in a plugin directory) that exports it as CHANNEL.

    `Settings` is a frozen dataclass: the keys of [channel.NAME] in resil.toml. Secrets are never among them, only where
    they lie: a field `x_file` (a file of mode 0600) or `x_variable` (the name of an environment variable).

    Attributes:
        summary: one line for people.
        Settings: dataclass whose every field has a default.
    """

    summary: str
    Settings: type

    def check(self, settings: Any) -> None:
        """Raise SettingsError for settings that cannot work: no recipient, no address. No I/O."""
        ...

    def compose(self, alert: Alert, settings: Any, thread: Mapping[str, str]) -> Any:
        """The message, in the channel's own type. Pure.

        `thread` is what `send` returned for earlier alerts of the same thread (the ts of a Slack message, for
        instance); empty for the first.
        """
        ...

    def send(self, message: Any, settings: Any, system: System) -> Mapping[str, str]:
        """Deliver the message and return what the thread's next message needs; "answer" is the answer, for people.

        Raise DeliveryError if it was not accepted. No secret may stand in any exception's text.
        """
        ...


def check_timeout(timeout_s: float) -> None:
    """Raise SettingsError for a time that is none."""
    if timeout_s <= 0:
        from resilience.errors import SettingsError

        raise SettingsError(f"timeout_s = {timeout_s:g} must be more than 0")


def check_answer(answer: Answer, host: str, secrets: Sequence[str], *, may_be_page: bool = False) -> None:
    """Raise DeliveryError unless a web server took the message. A proxy's log-in page comes with 200 as well."""
    from resilience.errors import DeliveryError
    from resilience.system.http import refusal

    if error := refusal(answer, host, secrets):
        raise error
    if answer.body.lstrip().startswith("<") and not may_be_page:
        raise DeliveryError(
            f"{host} answered {answer.status} with a web page: something in between answered in its place",
            hint="does this node reach the network without logging in?",
        )
