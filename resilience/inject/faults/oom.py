"""Lets ranks run out of memory: really, up to the limit of their job; or by an error as Python raises it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from resilience.errors import UsageError
from resilience.inject import Plan
from resilience.inject.signals import ProcessFault, plan_by_guard, refuse_batch
from resilience.inject.targets import TargetSettings

WAYS = {
    "limit": "fills memory until the kernel ends a process of the job",
    "error": "raises MemoryError",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class OomSettings(TargetSettings):
    """What runs out of memory, and how.

    Attributes:
        how: limit fills memory up to the job's limit, until the kernel ends a process; error raises MemoryError.
    """

    how: str = "limit"


def _plan(settings: OomSettings, seen: Mapping[str, Any]) -> Plan:
    """Plan it by the guards."""
    refuse_batch("run out of memory", settings, "resil inject kill --batch")
    if settings.how not in WAYS:
        raise UsageError(f"--how {settings.how} is no way to run out of memory", hint="--how limit, --how error")
    return plan_by_guard(
        "run out of memory", settings, seen, does=WAYS[settings.how], undoes="",
        otherwise="an error instead: --how error; an end as by the kernel: resil inject kill --rank 0",
    )  # fmt: skip


FAULT = ProcessFault(
    summary="let a rank run out of memory",
    Settings=OomSettings,
    example="resil inject oom --rank 3; resil inject oom --rank 3 --how error",
    plan=_plan,
)
