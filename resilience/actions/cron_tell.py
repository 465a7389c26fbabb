"""What a tick of cron tells, and whom: the dead man's switch, the mails of MAILTO, the daily word, canaries, alerts.

Nothing here delays a tick: all of it happens in children that nobody waits for.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from resilience.actions.cron_project import CronProject
    from resilience.actions.cron_tick import Ticked
    from resilience.model.cron import Table


class Teller:
    """Tells of the ticks of one scheduler process: made once, and asked twice for each tick."""

    def __init__(self, cron: CronProject) -> None:
        self._cron = cron

    def begins(self) -> None:
        """A tick begins. Never raises, and waits for nothing."""

    def ended(self, ticked: Ticked, table: Table | None, *, trouble: str = "") -> tuple[str, ...]:
        """A tick has ended; `trouble`: why it failed as a whole. Return what to say on standard error.

        Never raises, and waits for nothing: whatever is sent is sent by a child.
        """
        return ()

    def close(self) -> None:
        """The process is about to end: wait for children where their end would be theirs too (a job of SLURM, a unit
        of systemd), and at most a minute. Elsewhere return at once."""
