"""OK, WARNING, UNKNOWN, CRITICAL: the Nagios plugin API's words. Pure.

Ordered by meaning, OK < WARNING < UNKNOWN < CRITICAL, which is not the order of their exit codes.
Source: https://www.monitoring-plugins.org/doc/guidelines.html, "Plugin Return Codes".
"""

from __future__ import annotations

from enum import Enum
from functools import total_ordering


@total_ordering
class Verdict(Enum):
    """What a look amounts to."""

    OK = "OK"
    WARNING = "WARNING"
    UNKNOWN = "UNKNOWN"
    CRITICAL = "CRITICAL"

    @property
    def exit_code(self) -> int:
        """The exit code of a Nagios plugin: 0, 1, 3 for UNKNOWN, 2 for CRITICAL."""
        return {"OK": 0, "WARNING": 1, "CRITICAL": 2, "UNKNOWN": 3}[self.value]

    def __lt__(self, other: object) -> bool:
        if not isinstance(other, Verdict):
            return NotImplemented
        order = list(Verdict)
        return order.index(self) < order.index(other)
