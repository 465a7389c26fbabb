"""The ways out for alerts: every channel that the settings name, and how it is reached.

Nothing is imported here: a channel is loaded in the child process that uses it, where it harms nobody.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping
from functools import cache
from typing import TYPE_CHECKING, Any

from resilience.errors import SettingsError
from resilience.system.files import make_folder, read_regular, write_atomic

if TYPE_CHECKING:
    from resilience.alerts.channels import Channel
    from resilience.alerts.sending import Route
    from resilience.plugins import Family
    from resilience.runs.project import Project


@cache
def channels() -> Family:
    """The channels there are."""
    from resilience.plugins import Family

    return Family("channels", "CHANNEL")


class Routes(dict[str, "Route"]):
    """Routes by channel. Those of MAILTO are in no settings: they are found when something waits for them."""

    def __init__(self, project: Project, known: dict[str, Route]) -> None:
        super().__init__(known)
        self._project = project

    def __missing__(self, name: str) -> Route:
        route: Route | None = self.get(name)
        if route is None:
            raise KeyError(name)
        return route

    def get(self, name: str, default: Any = None) -> Any:
        """As of a dict."""
        if name in self:
            return self[name]

        return mail_route(self._project, name) or default


def routes_of(project: Project, also: str = "") -> dict[str, Route]:
    """A route for each channel: those that [alert] names, every table [channel.NAME], and `also`, which was typed."""
    from resilience.alerts.sending import Route

    settings = project.loaded.settings
    names = dict.fromkeys(
        (
            *settings.alert.channels,
            *escalation_channels(settings.alert.escalation),
            *settings.channels,
            *filter(None, [also]),
        )
    )
    return Routes(project, {name: Route(_loader(project, name)) for name in names})


def escalation_channels(steps: tuple[str, ...]) -> tuple[str, ...]:
    """Given `["1h: list, oncall"]`, return the channels in it. What makes no sense is left to the policy to refuse."""
    named = (name.strip() for step in steps for name in step.partition(":")[2].split(","))
    return tuple(dict.fromkeys(name for name in named if name))


def _loader(project: Project, name: str) -> Callable[[], tuple[Channel, Any]]:
    def load() -> tuple[Channel, Any]:
        from resilience.settings.convert import plugin_settings

        table = project.loaded.settings.channels.get(name)
        channel = channels().load(table.kind if table is not None else name)
        settings = plugin_settings(channel.Settings, "channel", name, table, origins=project.loaded.origins)
        return channel, settings

    return load


MAILTO_PREFIX = "mailto-"
"""How the outbox calls such a channel; what follows stands for the address."""
MAILTO_FOLDER = "mailto"
"""In `<state_dir>/.cron`: the address of each of these channels."""
NO_WAY = "there is no [channel.email] and no sendmail"


def mail_trouble(project: Project) -> str:
    """Why no mail of MAILTO could leave from here, one sentence; empty: it can. Looks at this machine's sendmail."""
    if _email_table(project) is not None or _has_sendmail():
        return ""
    return f"what MAILTO names gets no mail from here: {NO_WAY}"


def mail_channel(project: Project, address: str) -> str:
    """The channel of an address, written down for whoever delivers. Raise SettingsError if it is no address."""
    from resilience.alerts.channels.email import envelope_address
    from resilience.runs.run_directory import RunDirectory

    envelope_address(address)
    name = hashlib.sha256(address.encode("utf-8", "replace")).hexdigest()[:16]
    folder = project.loaded.state_dir / ".cron" / MAILTO_FOLDER
    if not (folder / name).exists():
        modes = RunDirectory(folder, project.loaded.settings.run.group)
        make_folder(folder, mode=modes.folder_mode)
        write_atomic(folder / name, address + "\n", mode=modes.file_mode)
    return MAILTO_PREFIX + name


def mail_route(project: Project, channel: str) -> Route | None:
    """The way to one address; None: it is no channel of ours. Touches nothing before it is used."""
    if not channel.startswith(MAILTO_PREFIX):
        return None
    from resilience.alerts.sending import Route

    return Route(_mailto_loader(project, channel))


def _mailto_loader(project: Project, channel: str) -> Callable[[], tuple[Channel, Any]]:
    def load() -> tuple[Channel, Any]:
        from dataclasses import replace

        from resilience.settings.convert import plugin_settings

        found = read_regular(project.loaded.state_dir / ".cron" / MAILTO_FOLDER / channel.removeprefix(MAILTO_PREFIX))
        if found is None:
            raise SettingsError(f"whom {channel} stands for is not known any more")
        table = _email_table(project)
        email = channels().load("email")
        if table is None:
            settings = email.Settings()
        else:
            settings = plugin_settings(email.Settings, "channel", table[0], table[1], origins=project.loaded.origins)
        return email, replace(settings, to=(found[0].decode("utf-8", "replace").strip(),))

    return load


def _email_table(project: Project) -> tuple[str, Any] | None:
    """The table whose server mail leaves by: [channel.email], or the first of that kind."""
    tables: Mapping[str, Any] = project.loaded.settings.channels
    mine = [(name, table) for name, table in tables.items() if table.kind == "email"]
    return next((one for one in mine if one[0] == "email"), mine[0] if mine else None)


def _has_sendmail() -> bool:
    import shutil

    return any(map(shutil.which, ("/usr/sbin/sendmail", "/usr/lib/sendmail", "sendmail")))
