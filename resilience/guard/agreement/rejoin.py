"""What a rank keeps when its training goes on from another step. Pure."""

from __future__ import annotations

from resilience.guard.agreement.member import Member
from resilience.guard.agreement.messages import COMMITTED
from resilience.guard.decision import Request

TYPE_CHECKING = False
if TYPE_CHECKING:
    from resilience.guard.agreement.messages import Message


def member_after_resume(former: Member, life: str) -> tuple[Member, list[Message]]:
    """Given the member of before, return that of a new life, and what it says besides joining.

    Promises and verdicts of before are void. What this rank wished stays wished, also what a verdict answered that it
    has not obeyed: its triggers still wait. Rank 0's triggers hear from the coordinator that it came to nothing.
    """
    member = Member(former.gate, former.rank, life)
    member.start, member.stopped = former.start, former.stopped
    wishes = list(former.wishes.values())
    if former.state == COMMITTED and former.rank != 0:
        requests = [Request.from_dict(fields) for fields in former.verdict["requests"]]
        wishes += [request for request in requests if request.rank == former.rank and request not in wishes]
    return member, [message for request in wishes for message in member.wish(request)]
