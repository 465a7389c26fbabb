"""Whether a rank still has rank 0, and when people must hear that it has not. Pure."""

from __future__ import annotations

from resilience.guard.agreement.heard import Heard
from resilience.guard.agreement.messages import PROMISED

TYPE_CHECKING = False
if TYPE_CHECKING:
    from resilience.guard.agreement.member import Member


GONE_S = 5.0
"""When nobody has listened for so long where rank 0 did, its process is no more. torchrun sends SIGTERM when a rank
dies, and SIGKILL 30 s later: there must be time for a save in between. A rank that still trains so long after rank 0
has said good-bye is on its own as well; most end in the same moment."""


class Contact:
    """A rank's connection to rank 0, as people see it. All times are monotonic seconds.

    Each time that the connection is lost they hear of it once, and once more when a wish comes later and waits.

    Args:
        absent_s: after how long without rank 0 people are told.
        round_s: after how long when something is wished here, which nobody hears.
        lost_s: after how long without a word rank 0 is given up although nothing tells what has become of it.

    Attributes:
        heard: news for the host, which takes them away.
        is_alone: whether this rank does without rank 0 now.
    """

    def __init__(self, absent_s: float, round_s: float, lost_s: float = 300.0) -> None:
        self.heard: list[Heard] = []
        self.is_alone = False
        self._absent_s = absent_s
        self._lost_s = lost_s
        self._round_s = min(round_s, absent_s)
        self._was_up = False
        self._since: float | None = None  # rank 0 is missing since then
        self._wishing_since: float | None = None
        self._is_told = False
        self._is_wish_told = False

    def look(self, now: float, is_up: bool, member: Member) -> None:
        """Whether the connection is there at `now`, and what the rank waits for."""
        if is_up or not member.may_hear_more():
            if is_up and self._is_told and self._since is not None:
                found = "is connected to rank 0 again" if self._was_up else "has found rank 0"
                self.heard.append(Heard("back", f"rank {member.rank} {found}, after {now - self._since:.0f} s"))
            self._was_up = self._was_up or is_up
            self._since = self._wishing_since = None
            self._is_told = self._is_wish_told = False
            return
        if self._since is None:
            self._since = now
        if not member.wishes:
            self._wishing_since = None
        elif self._wishing_since is None:
            self._wishing_since = now
        due = self.next_deadline()
        if due is not None and now >= due and not self.is_alone:
            self._tell(member, now - self._since)

    def gone(self, now: float, member: Member, *, is_refused: bool) -> str:
        """Why rank 0 is gone for good, as a sentence; empty while it may come again. To be asked after `look`.

        `is_refused`: its node answers, and says that nobody listens. Silence alone tells nothing for a long time: the
        network between the nodes may be down, and a rank that has promised to wait keeps its promise then.
        """
        lost_s = 0.0 if self._since is None else now - self._since
        if self._since is None or not self._was_up:
            return ""
        if member.leader_left:
            return "rank 0 has ended" if lost_s >= GONE_S else ""
        if is_refused and lost_s >= GONE_S:
            return f"rank 0 is gone: nobody has listened there for {lost_s:.0f} s"
        if lost_s >= self._lost_s and member.state != PROMISED:
            return f"rank 0 has not been reached for {lost_s:.0f} s"
        return ""

    def next_deadline(self) -> float | None:
        """When `look` may have something to say, or None."""
        if self._since is None or self._is_wish_told or self.is_alone:
            return None
        due = [] if self._is_told else [self._since + self._absent_s]
        if self._wishing_since is not None:
            due.append(self._wishing_since + self._round_s)
        return min(due, default=None)

    def _tell(self, member: Member, lost_s: float) -> None:
        self._is_told = True
        self._is_wish_told = bool(member.wishes)
        what = "has had no connection to rank 0" if self._was_up else "has not found rank 0"
        text = f"rank {member.rank} {what} for {lost_s:.0f} s: nothing can be decided until it is "
        text += "back" if self._was_up else "there"
        whys = [request.why for request in member.wishes.values()]
        if whys:
            text += f". This waits: {whys[0]}" + (f" (and {len(whys) - 1} more)" if len(whys) > 1 else "")
        self.heard.append(Heard("lost", text))
