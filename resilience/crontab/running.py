"""The marks of what runs now, `<state_dir>/.cron/running/<key>@<slot>`: for the overlap policy, and for who comes later."""

from __future__ import annotations

from typing import NamedTuple

from resilience.model.presence import Liveness
from resilience.system.cron_folder import CronFolder


class Mark(NamedTuple):
    """One run under way, as its supervisor said.

    Attributes:
        name, key, slot: of the entry.
        host, boot, namespace: where its process number means something.
        pid, ticks: the supervisor: its number, and when it began in clock ticks of the machine.
        started: seconds since the epoch.
        until: by when it has ended, whatever happens; None: it may take for ever.
    """

    name: str
    key: str
    slot: int
    host: str
    boot: str
    namespace: str
    pid: int
    ticks: int
    started: float
    until: float | None


def marks(folder: CronFolder) -> tuple[Mark, ...]:
    """All marks, oldest slot first. Raise StateDirectoryError if they cannot be read."""
    raise NotImplementedError


def liveness(mark: Mark, *, now: float, host: str = "") -> tuple[Liveness, str]:
    """Whether that run is under way, and how we know. UNKNOWN (another host) counts as running until its time is over."""
    raise NotImplementedError


def is_running(folder: CronFolder, key: str, *, now: float, host: str = "") -> tuple[Liveness, str]:
    """Whether any run of an entry is under way: ALIVE, GONE or UNKNOWN, with one sentence."""
    raise NotImplementedError
