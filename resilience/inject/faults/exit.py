"""Lets ranks end by themselves with an exit code."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from resilience.errors import UsageError
from resilience.inject import Plan
from resilience.inject.signals import ProcessFault, plan_by_guard, refuse_batch
from resilience.inject.targets import TargetSettings


@dataclass(frozen=True, slots=True, kw_only=True)
class ExitSettings(TargetSettings):
    """What ends, and with which code.

    Attributes:
        code: the exit code.
    """

    code: int = 1


def _plan(settings: ExitSettings, seen: Mapping[str, Any]) -> Plan:
    """Plan it by the guards."""
    refuse_batch("exit by itself", settings, "resil inject kill --batch")
    if not 0 <= settings.code <= 255:
        raise UsageError(f"--code {settings.code} must be from 0 to 255", hint="--code 1")
    return plan_by_guard("exit by itself", settings, seen, does=f"raises SystemExit({settings.code})", undoes="")


FAULT = ProcessFault(
    summary="let a rank end by itself with an exit code",
    Settings=ExitSettings,
    example="resil inject exit --rank 3 --code 1",
    plan=_plan,
)
