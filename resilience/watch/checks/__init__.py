"""Watchdogs: each file exports one as CHECK."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:
    from resilience.finding import Finding
    from resilience.runs.context import Context
    from resilience.watch.reading import Memory, Target, Timed


class Check(Protocol):
    """One watchdog: a file in checks/ (or in a plugin directory) that exports it as CHECK.

    `Settings` and `Reading` are frozen dataclasses. The fields of `Settings` are the keys of the table [watch.NAME] in
    resil.toml and the options of `resil watch NAME`; the docstring's Attributes are their help. The fields of
    `Reading` are plain values (texts, numbers, booleans, None, tuples and dicts of them), because readings are stored
    as JSON. They are typed as Any here, since each check has its own.

    Attributes:
        summary: one line for `resil watch --list` and `--help`.
        Settings: a dataclass with a default for every field: a watchdog works without configuration.
        Reading: a dataclass with the result of probing one subject.
        memory: how many readings of each subject `judge` receives.
        argument: the field of Settings (a tuple of texts) that takes the positional arguments:
            `resil watch fs /scratch`. Empty: none.
        example: a command line for `--help`.

    Optional: `on_nothing`, the advice if the watchdog was requested by name and has no target; `together(settings)`,
    which returns a name or an empty text: equal targets of watchdogs with the same name are probed in one child.
    """

    summary: str
    Settings: type
    Reading: type
    memory: Memory
    argument: str
    example: str

    def targets(self, settings: Any, context: Context) -> Sequence[Target]:
        """Return the targets to probe. Must not access anything that may hang; `probe` does that.

        Raise UsageError or SettingsError for invalid settings. Return an empty sequence if there is no target.
        """
        ...

    def probe(
        self, target: Target, settings: Any, context: Context, before: Mapping[str, Timed[Any]]
    ) -> Mapping[str, Any]:
        """Return a Reading for each subject of a target. The only I/O; runs in a child process with a deadline.

        `before` has the last remembered reading of each subject of this check. Raise ProbeError (or any ResilError) if
        the target could not be read: the verdict is then UNKNOWN, never OK and never dead.
        """
        ...

    def judge(self, subject: str, readings: Sequence[Timed[Any]], settings: Any, now: float) -> Sequence[Finding]:
        """Return the findings about one subject. Pure. `readings` are oldest first; the last one is new."""
        ...
