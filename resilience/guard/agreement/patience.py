"""When rank 0 tries again to get a decision made, and when what keeps it from that has lasted too long. Pure."""

from __future__ import annotations

FIRST_RETRY_S = 1.0
LAST_RETRY_S = 10.0
"""Each round that fails doubles the pause before the next, from the first to the last."""

LONG_AGO = float("-inf")


class Patience:
    """Pauses between rounds that fail. All times are monotonic seconds.

    Attributes:
        retry_at: when the next round may begin.
        retry_s: the pause after the next round that fails.
    """

    def __init__(self, absent_s: float) -> None:
        self.retry_at = LONG_AGO
        self.retry_s = FIRST_RETRY_S
        self._absent_s = absent_s
        self._missing_since: float | None = None
        self._skewed_since: float | None = None

    def failed(self, now: float) -> None:
        """A round has failed."""
        self.retry_at = now + self.retry_s
        self.retry_s = min(2 * self.retry_s, LAST_RETRY_S)

    def start_afresh(self) -> None:
        """What kept the ranks from agreeing may be over."""
        self.retry_at, self.retry_s = LONG_AGO, FIRST_RETRY_S

    def succeeded(self) -> None:
        """A round was committed."""
        self.start_afresh()
        self._skewed_since = None

    def is_missing_long(self, now: float) -> bool:
        """A decision is wanted and ranks are missing: whether they have been for `absent_s`."""
        if self._missing_since is None:
            self._missing_since = now
        return now - self._missing_since >= self._absent_s

    def none_is_missing(self) -> None:
        """All ranks are there."""
        self._missing_since = None

    def is_skewed_long(self, now: float) -> bool:
        """The ranks count differently: whether that is more than checkpoints loaded by one rank after the other."""
        if self._skewed_since is None:
            self._skewed_since = now
        return now - self._skewed_since >= LAST_RETRY_S

    def next_look(self) -> float:
        """When there is something to do about a wish: to name who is missing, or to try again."""
        return self.retry_at if self._missing_since is None else self._missing_since + self._absent_s

    def is_anybody_missing(self) -> bool:
        """Whether ranks are known to be missing."""
        return self._missing_since is not None
