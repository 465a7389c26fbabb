"""The agreement of ranks that have no way to meet: nothing is ever decided, and nothing ever waits."""

from __future__ import annotations

from resilience.guard.decision import CONTINUE, Decision

TYPE_CHECKING = False
if TYPE_CHECKING:
    from resilience.guard.decision import Request
    from resilience.guard.gate import Gate


class Nobody:
    """Safe where an agreement is impossible: a rank that acted alone would leave the others in a deadlock."""

    def __init__(self, gate: Gate) -> None:
        self._gate = gate

    def start(self) -> None:
        """Nothing to be started."""

    def wish(self, request: Request) -> None:
        """Nobody hears it."""

    def decide_start(self, decision: Decision) -> None:
        """Nobody hears it."""

    def wait_for_start(self, timeout_s: float) -> Decision | None:
        """Go on: the others do as well."""
        return CONTINUE

    def awaited(self) -> Decision | None:
        """Nothing is agreed upon."""
        return None

    def arrive(self) -> Decision:
        """Go on."""
        self.restore()
        return CONTINUE

    def arrive_at_poll(self) -> Decision:
        """Go on."""
        self.restore()
        return CONTINUE

    def finish(self, outcome: str, seconds: float) -> None:
        """Nothing was decided."""

    def restore(self) -> None:
        """Let the training run."""
        self._gate.open()
        if self._gate.urgent:
            self._gate.limit = self._gate.poll_limit = 0

    def resumed(self) -> None:
        """The counters were set anew."""
        self.restore()

    def leave(self, wait_s: float) -> None:
        """Nobody waits."""

    def forget(self) -> None:
        """In a forked child: nothing to close."""
