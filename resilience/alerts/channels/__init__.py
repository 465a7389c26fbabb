"""Channels: each file is one way to notify people, and exports it as CHANNEL."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:
    from resilience.alerts.alert import Alert
    from resilience.system.world import World


class Channel(Protocol):
    """One way to tell people: a file in channels/ (or in a plugin folder) that exports it as CHANNEL.

    `Settings` is a frozen dataclass: the keys of [channel.NAME] in resil.toml. Secrets are never among them, only where
    they lie: a field `x_file` (a file of mode 0600) or `x_variable` (the name of an environment variable).

    Attributes:
        summary: one line for people.
        Settings: dataclass whose every field has a default.
    """

    summary: str
    Settings: type

    def check(self, settings: Any) -> None:
        """Raise SettingsError for settings that cannot be meant: no recipient, no address. Looks at nothing."""
        ...

    def compose(self, alert: Alert, settings: Any, thread: Mapping[str, str]) -> Any:
        """The message, in the channel's own type. Pure.

        `thread` is what `send` returned for earlier alerts of the same thread (the ts of a Slack message, for
        instance); empty for the first.
        """
        ...

    def send(self, message: Any, settings: Any, world: World) -> Mapping[str, str]:
        """Deliver the message and return what to remember of this thread; "answer" is what came back, for people.

        Raise DeliveryError if it was not accepted. No secret may stand in any exception's text.
        """
        ...
