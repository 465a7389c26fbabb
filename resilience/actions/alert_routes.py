"""The ways out for alerts: every channel that the settings name, and how it is reached.

Nothing is imported here: a channel is loaded in the child process that uses it, where it harms nobody.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from resilience.actions.project import Project
    from resilience.alerting.sending import Route
    from resilience.plugins import Family
    from resilience.system.ports import Channel


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
        from resilience.actions.cron.mail import mail_route

        return mail_route(self._project, name) or default


def routes_of(project: Project, also: str = "") -> dict[str, Route]:
    """A route for each channel: those that [alert] names, every table [channel.NAME], and `also`, which was typed."""
    from resilience.alerting.sending import Route

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
        from resilience.settings.plugin_table import plugin_settings

        table = project.loaded.settings.channels.get(name)
        channel = channels().load(table.kind if table is not None else name)
        settings = plugin_settings(channel.Settings, "channel", name, table, origins=project.loaded.origins)
        return channel, settings

    return load
