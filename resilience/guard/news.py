"""What becomes of what the agreement tells: some is for people, some for the journal, some for triggers."""

from __future__ import annotations

from resilience.guard.decision import FAILED

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable

    from resilience.guard.agreement.heard import Heard
    from resilience.guard.decision import Decision
    from resilience.guard.pace import Pace
    from resilience.guard.recorder import Recorder

FOR_PEOPLE = ("absent", "lost", "skew", "twins", "fault", "broken")
MOST_ABORTS = 3
"""So many rounds in a row that come to nothing are told to people: what was wished waits."""


class News:
    """Hears the agreement, mostly on rank 0.

    Attributes:
        went_wrong: whether the last save failed on some rank, or the training was left by an exception.
    """

    def __init__(
        self,
        recorder: Recorder,
        pace: Pace,
        obeyed: Callable[[Decision, str], None],
        has_stopped: Callable[[], bool],
    ) -> None:
        """`obeyed` is called with each decision that all ranks have obeyed, and how its save went; `has_stopped` tells
        whether this training was stopped in its loop. One that was stopped before it had nothing to save."""
        self.went_wrong = False
        self._recorder = recorder
        self._pace = pace
        self._obeyed = obeyed
        self._has_stopped = has_stopped
        self._aborts = 0

    def hear(self, heard: Heard) -> None:
        """One piece of news. Never waits: it comes from the thread that agrees."""
        if heard.kind == "outcome" and heard.decision is not None:
            if heard.decision.stop and heard.outcome == FAILED and self._has_stopped():
                self.went_wrong = True
            if heard.seconds:
                self._pace.saved(heard.seconds)
            self._obeyed(heard.decision, heard.outcome)
        elif heard.kind in FOR_PEOPLE:
            self._recorder.warn(heard.text)
        elif heard.kind == "committed":
            self._aborts = 0
        else:
            self._recorder.event(heard.kind, text=heard.text)
            if heard.kind == "back":
                self._recorder.say(heard.text)
            self._aborts += heard.kind == "aborted"
            if self._aborts == MOST_ABORTS:
                self._recorder.warn(heard.text, key="aborted")
