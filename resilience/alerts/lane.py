"""One channel while its messages are delivered: what is known of it, and whether it may be used on."""

from __future__ import annotations

from resilience.alerts.backoff import Health, Standing
from resilience.alerts.channel_memory import ChannelMemory
from resilience.alerts.claims import Claim


class Lane:
    """One channel in one flush.

    Attributes:
        claim: the claim that is held on it.
        health: how it fares from this node; standing: what all nodes know of it.
        is_open: whether it may take another message in this flush.
        last_sent: monotonic seconds of its last message.
    """

    def __init__(self, memory: ChannelMemory, channel: str, held: Claim, host: str) -> None:
        self._memory, self._channel, self._host, self.claim = memory, channel, host, held
        self.health = memory.health(channel, host)
        self.standing = memory.standing(channel)
        self.is_open = True
        self.last_sent = float("-inf")

    def keep(self, health: Health, standing: Standing, now: float) -> None:
        """Remember how it fares now."""
        if health != self.health:
            self._memory.keep_health(self._channel, self._host, health, now)
        if standing != self.standing:
            self._memory.keep_standing(self._channel, standing)
        self.health, self.standing = health, standing
