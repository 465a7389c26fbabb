"""The object a training asks once per step. A tower of its own: standard library only, importable alone.

    from resilience.guard import TrainingGuard

Importing it costs milliseconds; what only some trainings need (sockets, signals, memory limits) comes when it is used.
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

_LATER = {
    "SingleProcess": "resilience.guard.agreement.base",
    "Collective": "resilience.guard.agreement.collective",
    "GuardSettings": "resilience.guard.settings",
}


def __getattr__(name: str) -> object:
    if name in _LATER:
        import importlib

        return getattr(importlib.import_module(_LATER[name]), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
