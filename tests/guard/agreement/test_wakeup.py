from __future__ import annotations

import select

from resilience.guard.agreement.wakeup import Wakeup


def is_ringing(wakeup: Wakeup) -> bool:
    return bool(select.select([wakeup.ear], [], [], 0)[0])


def test_it_rings_until_it_was_heard_however_often_somebody_rang() -> None:
    wakeup = Wakeup()
    assert not is_ringing(wakeup)
    for _ in range(100_000):  # more than a socket holds: nobody waits
        wakeup.ring()
    assert is_ringing(wakeup)
    wakeup.heard()
    assert not is_ringing(wakeup)
    wakeup.close()


def test_to_ring_when_it_is_over_is_nothing() -> None:
    wakeup = Wakeup()
    wakeup.close()
    wakeup.ring()
