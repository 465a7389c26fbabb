"""Sends alerts by a channel as a delivery does, and catches the errors that it raises."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import pytest

from resilience.alerts.alert import Alert
from resilience.errors import DeliveryError, SettingsError
from resilience.system.ports import System
from tests.alerts.channels.alerts import an_alert


@dataclass(frozen=True)
class Sender:
    """Sends by one channel; the alert is about a full disk unless one is given."""

    channel: Any

    def send(
        self, settings: Any, system: System, alert: Alert | None = None, thread: Mapping[str, str] | None = None
    ) -> dict[str, str]:
        """Check the settings, compose and send; return what the channel remembers, its answer included."""
        self.channel.check(settings)
        return dict(
            self.channel.send(self.channel.compose(alert or an_alert(), settings, thread or {}), settings, system)
        )

    def refused(self, settings: Any, system: System, thread: Mapping[str, str] | None = None) -> DeliveryError:
        """Send what is not taken; return the error."""
        with pytest.raises(DeliveryError) as caught:
            self.send(settings, system, thread=thread)
        return caught.value

    def objection(self, settings: Any) -> str:
        """What the check of settings that cannot be meant says, its hint included."""
        with pytest.raises(SettingsError) as caught:
            self.channel.check(settings)
        return caught.value.message + caught.value.hint
