"""The public API for plugins: types of checks, channels, drivers and schedulers, and their errors.

    from resilience.plugin import Context, Finding, ProbeError, Target

Part of the stable surface (docs/reference/stability.md), wherever the names are defined. Each name is imported at its
first use: a watchdog does not import modules that only schedulers need.
"""

from __future__ import annotations

TYPE_CHECKING = False
if TYPE_CHECKING:
    from resilience.alerts.alert import Alert as Alert
    from resilience.alerts.alert import Notice as Notice
    from resilience.alerts.alert import Reason as Reason
    from resilience.alerts.channels import Channel as Channel
    from resilience.cluster import ClusterConfig as ClusterConfig
    from resilience.cluster import Node as Node
    from resilience.cron.drivers import Availability as Availability
    from resilience.cron.drivers import Driver as Driver
    from resilience.cron.drivers import DriverState as DriverState
    from resilience.cron.drivers import Step as Step
    from resilience.cron.records import Installation as Installation
    from resilience.errors import DeliveryError as DeliveryError
    from resilience.errors import NoSuchJob as NoSuchJob
    from resilience.errors import NotSupported as NotSupported
    from resilience.errors import ProbeError as ProbeError
    from resilience.errors import ResilError as ResilError
    from resilience.errors import SchedulerError as SchedulerError
    from resilience.errors import SchedulerUnavailable as SchedulerUnavailable
    from resilience.errors import SettingsError as SettingsError
    from resilience.errors import SubmissionUncertain as SubmissionUncertain
    from resilience.errors import UsageError as UsageError
    from resilience.finding import Figure as Figure
    from resilience.finding import Finding as Finding
    from resilience.finding import Verdict as Verdict
    from resilience.job import ExitCode as ExitCode
    from resilience.job import Job as Job
    from resilience.job import JobId as JobId
    from resilience.job import JobState as JobState
    from resilience.job import JobUpdate as JobUpdate
    from resilience.job import Liveness as Liveness
    from resilience.job import Presence as Presence
    from resilience.plugins import Family as Family
    from resilience.runs.context import Context as Context
    from resilience.schedulers import Scheduler as Scheduler
    from resilience.schedulers.local import LocalScheduler as LocalScheduler
    from resilience.schedulers.slurm import Slurm as Slurm
    from resilience.settings.cron_settings import CronSettings as CronSettings
    from resilience.submission import ArrayExpression as ArrayExpression
    from resilience.submission import Submission as Submission
    from resilience.submission import Submitted as Submitted
    from resilience.system.files import read_regular as read_regular
    from resilience.system.files import write_atomic as write_atomic
    from resilience.system.ports import Clock as Clock
    from resilience.system.ports import Host as Host
    from resilience.system.ports import Runner as Runner
    from resilience.system.ports import System as System
    from resilience.system.ports import SystemClock as SystemClock
    from resilience.system.process import ProcessRunner as ProcessRunner
    from resilience.system.secrets import Secret as Secret
    from resilience.system.secrets import check_secret as check_secret
    from resilience.system.secrets import read_secret as read_secret
    from resilience.watch.checks import Check as Check
    from resilience.watch.reading import NO_MEMORY as NO_MEMORY
    from resilience.watch.reading import Memory as Memory
    from resilience.watch.reading import Target as Target
    from resilience.watch.reading import Timed as Timed

_HOMES = {
    "resilience.alerts.alert": "Alert Notice Reason",
    "resilience.alerts.channels": "Channel",
    "resilience.cluster": "ClusterConfig Node",
    "resilience.cron.drivers": "Availability Driver DriverState Step",
    "resilience.cron.records": "Installation",
    "resilience.errors": "DeliveryError NoSuchJob NotSupported ProbeError ResilError SchedulerError "
    "SchedulerUnavailable SettingsError SubmissionUncertain UsageError",
    "resilience.finding": "Figure Finding Verdict",
    "resilience.job": "ExitCode Job JobId JobState JobUpdate Liveness Presence",
    "resilience.plugins": "Family",
    "resilience.runs.context": "Context",
    "resilience.schedulers": "Scheduler",
    "resilience.schedulers.local": "LocalScheduler",
    "resilience.schedulers.slurm": "Slurm",
    "resilience.settings.cron_settings": "CronSettings",
    "resilience.submission": "ArrayExpression Submission Submitted",
    "resilience.system.files": "read_regular write_atomic",
    "resilience.system.process": "ProcessRunner",
    "resilience.system.secrets": "Secret check_secret read_secret",
    "resilience.system.ports": "Clock Host Runner SystemClock System",
    "resilience.watch.checks": "Check",
    "resilience.watch.reading": "NO_MEMORY Memory Target Timed",
}
_HOME_OF = {name: module for module, names in _HOMES.items() for name in names.split()}

__all__ = sorted(_HOME_OF)


def __getattr__(name: str) -> object:
    """Import a name from the module that defines it. Raise AttributeError for a name outside the API."""
    if name not in _HOME_OF:
        raise AttributeError(f"resilience.plugin offers no {name!r}; it offers: {', '.join(__all__)}")
    from importlib import import_module

    globals()[name] = found = getattr(import_module(_HOME_OF[name]), name)
    return found


def __dir__() -> list[str]:
    return [*__all__]
