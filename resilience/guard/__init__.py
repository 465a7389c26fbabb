"""The guard that a training calls once per step. Standard library only; importable without the rest of resil.

    from resilience.guard import TrainingGuard

The import takes milliseconds; sockets, signals and memory limits are imported on first use.
"""

from resilience.errors import AgreementLost, GuardError
from resilience.guard.decision import CONTINUE, Decision, Request
from resilience.guard.training_guard import TrainingGuard, active

TYPE_CHECKING = False
if TYPE_CHECKING:
    from resilience.guard.agreement.base import SingleProcess as SingleProcess
    from resilience.guard.agreement.collective import Collective as Collective
    from resilience.guard.settings import GuardSettings as GuardSettings

__all__ = [
    "CONTINUE",
    "AgreementLost",
    "Collective",
    "Decision",
    "GuardError",
    "GuardSettings",
    "Request",
    "SingleProcess",
    "TrainingGuard",
    "active",
]

_LAZY = {
    "Alone": "resilience.guard.agreement.base",
    "SingleProcess": "resilience.guard.agreement.base",
    "Collective": "resilience.guard.agreement.collective",
    "GuardSettings": "resilience.guard.settings",
}


def __getattr__(name: str) -> object:
    if name in _LAZY:
        import importlib

        return getattr(importlib.import_module(_LAZY[name]), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
