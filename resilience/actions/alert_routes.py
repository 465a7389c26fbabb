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
    return {name: Route(_loader(project, name)) for name in names}


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
