"""Notification channels: each file exports one as CHANNEL."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:
    from resilience.alerts.alert import Alert
    from resilience.system.http import Answer
    from resilience.system.ports import System


FILE_LIMIT_BYTES = 4 * 2**20
"""Of a file that goes with an alert: mail servers accept 10 MB, of which a third is the encoding."""


class Channel(Protocol):
    """A notification channel, exported as CHANNEL by a file in channels/ or in a plugin directory.

    `Settings` is a frozen dataclass: the keys of [channel.NAME] in resil.toml. Settings never hold a secret, only its
    location: a field `x_file` (a file of mode 0600) or `x_variable` (the name of an environment variable).

    Attributes:
        summary: one-line description.
        Settings: dataclass with a default for every field.
    """

    summary: str
    Settings: type

    def check(self, settings: Any) -> None:
        """Raise SettingsError for unusable settings: no recipient, no address. No I/O."""
        ...

    def compose(self, alert: Alert, settings: Any, thread: Mapping[str, str]) -> Any:
        """Return the message in the channel's own type. Pure.

        `thread` is what `send` returned for earlier alerts of the same thread, such as the ts of a Slack message; empty
        for the first.
        """
        ...

    def send(self, message: Any, settings: Any, system: System) -> Mapping[str, str]:
        """Deliver the message; return what the thread's next message needs, and the server's reply as "answer".

        Raise DeliveryError if the message was not accepted. No exception may contain a secret in its text.
        """
        ...


def check_timeout(timeout_s: float) -> None:
    """Raise SettingsError unless the timeout is positive."""
    if timeout_s <= 0:
        from resilience.errors import SettingsError

        raise SettingsError(f"timeout_s = {timeout_s:g} must be positive")


def read_files(paths: Sequence[str]) -> tuple[tuple[str, bytes], ...]:
    """Return name and content of the files of an alert; those that are gone or too large are left out."""
    from resilience.errors import StateDirectoryError
    from resilience.system.files import read_regular

    found = []
    for path in map(Path, paths):
        with suppress(StateDirectoryError):
            read = read_regular(path, limit_bytes=FILE_LIMIT_BYTES)
            if read is not None and read[1].st_size <= FILE_LIMIT_BYTES:
                found.append((path.name, read[0]))
    return tuple(found)


def check_answer(answer: Answer, host: str, secrets: Sequence[str], *, may_be_page: bool = False) -> None:
    """Raise DeliveryError unless a web server accepted the message. A proxy may send a log-in page with status 200."""
    from resilience.errors import DeliveryError
    from resilience.system.http import refusal

    if error := refusal(answer, host, secrets):
        raise error
    if answer.body.lstrip().startswith("<") and not may_be_page:
        raise DeliveryError(
            f"{host} answered {answer.status} with a web page, probably from a proxy",
            hint="check that this node reaches the network without a log-in page",
        )
