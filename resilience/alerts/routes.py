"""Routes: every channel named in the settings, and how to load it.

No channel is imported here. The child process that sends through a channel loads the plugin, which isolates a broken
one.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping
from functools import cache
from typing import TYPE_CHECKING, Any

from resilience.errors import SettingsError
from resilience.system.files import make_directory, read_regular, write_atomic

if TYPE_CHECKING:
    from resilience.alerts.channels import Channel
    from resilience.plugins import Family
    from resilience.runs.project import Project


MAILTO_PREFIX = "mailto-"
"""Prefix of a MAILTO channel's name in the outbox; a hash of the address follows."""
MAILTO_DIRECTORY = "mailto"
"""In `<state_dir>/.cron`: the address of each of these channels."""
NO_MAIL_TRANSPORT = "there is no [channel.email] and no sendmail"


Route = Callable[[], "tuple[Channel, Any]"]
"""Returns a channel and its settings; called in the child process, where an exception becomes the outcome."""


@cache
def channels() -> Family:
    """Return the family of channel plugins."""
    from resilience.plugins import Family

    return Family("channels", "CHANNEL")


class Routes(dict[str, Route]):
    """Routes by channel name. MAILTO channels are not in the settings and are created on access."""

    def __init__(self, project: Project, known: dict[str, Route]) -> None:
        super().__init__(known)
        self._project = project

    def __missing__(self, name: str) -> Route:
        if not name.startswith(MAILTO_PREFIX):
            raise KeyError(name)
        return _mailto_route(self._project, name)

    def get(self, name: str, default: Any = None) -> Any:
        """As `dict.get`, including MAILTO channels."""
        try:
            return self[name]
        except KeyError:
            return default


def routes_of(project: Project, also: str = "") -> dict[str, Route]:
    """Return a route for each channel in [alert], each table [channel.NAME], and `also`, a name from the user."""
    settings = project.loaded.settings
    escalated = escalation_channels(settings.alert.escalation)
    names = dict.fromkeys((*settings.alert.channels, *escalated, *settings.channels, also))
    return Routes(project, {name: _route(project, name) for name in names if name})


def escalation_channels(steps: tuple[str, ...]) -> tuple[str, ...]:
    """Return the channels in escalation steps such as `["1h: list, oncall"]`. Malformed steps fail in the policy."""
    named = (name.strip() for step in steps for name in step.partition(":")[2].split(","))
    return tuple(dict.fromkeys(name for name in named if name))


def _route(project: Project, name: str) -> Route:
    def load() -> tuple[Channel, Any]:
        from resilience.settings.convert import plugin_settings

        table = project.loaded.settings.channels.get(name)
        channel = channels().load(table.kind if table is not None else name)
        settings = plugin_settings(channel.Settings, "channel", name, table, origins=project.loaded.origins)
        return channel, settings

    return load


def mail_error(project: Project) -> str:
    """Return why this node cannot send mail for MAILTO, or an empty text. Searches for sendmail."""
    if _email_table(project) is not None or _has_sendmail():
        return ""
    return f"cannot send mail for MAILTO from this node: {NO_MAIL_TRANSPORT}"


def mail_channel(project: Project, address: str) -> str:
    """Return the channel of an address, and save the address for the process that delivers.

    Raise SettingsError for an invalid address.
    """
    from resilience.alerts.channels.email import envelope_address
    from resilience.runs.run_directory import RunDirectory

    envelope_address(address)
    name = hashlib.sha256(address.encode("utf-8", "replace")).hexdigest()[:16]
    directory = project.loaded.state_dir / ".cron" / MAILTO_DIRECTORY
    if not (directory / name).exists():
        modes = RunDirectory(directory, project.loaded.settings.run.group)
        make_directory(directory, mode=modes.directory_mode)
        write_atomic(directory / name, address + "\n", mode=modes.file_mode)
    return MAILTO_PREFIX + name


def _mailto_route(project: Project, channel: str) -> Route:
    def load() -> tuple[Channel, Any]:
        from dataclasses import replace

        from resilience.settings.convert import plugin_settings

        found = read_regular(
            project.loaded.state_dir / ".cron" / MAILTO_DIRECTORY / channel.removeprefix(MAILTO_PREFIX)
        )
        if found is None:
            raise SettingsError(f"the address file of {channel} is missing")
        table = _email_table(project)
        email = channels().load("email")
        if table is None:
            settings = email.Settings()
        else:
            settings = plugin_settings(email.Settings, "channel", table[0], table[1], origins=project.loaded.origins)
        return email, replace(settings, to=(found[0].decode("utf-8", "replace").strip(),))

    return load


def _email_table(project: Project) -> tuple[str, Any] | None:
    """Return the table with the mail server: [channel.email], or the first one of that kind."""
    tables: Mapping[str, Any] = project.loaded.settings.channels
    mine = [(name, table) for name, table in tables.items() if table.kind == "email"]
    return next((one for one in mine if one[0] == "email"), mine[0] if mine else None)


def _has_sendmail() -> bool:
    import shutil

    return any(map(shutil.which, ("/usr/sbin/sendmail", "/usr/lib/sendmail", "sendmail")))
