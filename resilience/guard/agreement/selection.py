"""Which requests a verdict carries to every rank: few, and all that make a difference to the decision. Pure."""

from __future__ import annotations

from resilience.guard.decision import Request, merge

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

MOST_REQUESTS = 16
"""How many different requests one verdict carries: it goes to every rank, and people read its reasons."""


def select(requests: Iterable[Request]) -> list[Request]:
    """One of each kind, of the lowest rank that wishes it, and not more than people read.

    `merge` makes the same decision of the result as of everything, save for reasons and names of triggers that are
    too many.
    """
    kinds: dict[tuple[object, ...], Request] = {}
    for request in sorted(requests, key=lambda request: (request.rank, request.trigger, request.why)):
        fields = request.as_dict()
        del fields["rank"]
        kinds.setdefault(tuple(fields.values()), request)
    different = list(kinds.values())
    if len(different) <= MOST_REQUESTS:
        return different
    code = merge(different, 0).exit_code
    decisive: list[Callable[[Request], bool]] = [
        lambda request: request.discard,
        lambda request: request.stop and request.exit_code == code,
        lambda request: request.stop,
        lambda request: bool(request.label),
        lambda request: request.save,
    ]
    first = [next((request for request in different if decides(request)), None) for decides in decisive]
    weighty = sorted(different, key=lambda request: (not request.discard, not request.stop, not request.save))
    chosen: list[Request] = []
    for wanted in (*first, *weighty):
        if wanted is not None and not any(wanted is other for other in chosen):
            chosen.append(wanted)
    return chosen[:MOST_REQUESTS]


def effect(request: Request) -> tuple[object, ...]:
    """What a request comes to, whoever wishes it, and however the reason is put."""
    return (request.trigger, request.save, request.stop, request.label, request.discard, request.exit_code)
