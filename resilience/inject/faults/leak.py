"""Makes ranks leak memory, which their guards hold until the fault is undone."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from resilience.errors import UsageError
from resilience.inject import Plan
from resilience.inject.signals import ProcessFault, plan_by_guard, refuse_batch
from resilience.inject.targets import TargetSettings
from resilience.quantities import format_bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class LeakSettings(TargetSettings):
    """What leaks, and how much.

    Attributes:
        rate_bytes: how much memory it takes in each second.
        most_bytes: how much it takes at most; a tenth of the host's memory is left free in any case.
    """

    rate_bytes: float = 16 * 2**20
    most_bytes: float = 2**30


def _plan(settings: LeakSettings, seen: Mapping[str, Any]) -> Plan:
    """Plan a leak by the guards."""
    refuse_batch("leak", settings, "resil inject leak --rank 0")
    if not settings.rate_bytes or not settings.most_bytes:
        raise UsageError("a leak of nothing is none", hint="for instance --rate 16M --most 1G")
    rate, most = format_bytes(settings.rate_bytes), format_bytes(settings.most_bytes)
    return plan_by_guard(
        "leak", settings, seen, does=f"takes {rate} of memory in each second, {most} at most", undoes="it is freed"
    )


FAULT = ProcessFault(
    summary="make a rank leak memory; it is freed at the end",
    Settings=LeakSettings,
    example="resil inject leak --rank 0 --rate 100MiB --most 20GiB --for 5m",
    plan=_plan,
    length_s=60.0,
)
