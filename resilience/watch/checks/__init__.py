"""Watchdogs: each file is one, and exports it as CHECK."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:
    from resilience.finding import Finding
    from resilience.runs.context import Context
    from resilience.watch.reading import Memory, Target, Timed


class Check(Protocol):
    """One watchdog: a file in checks/ (or in a plugin directory) that exports it as CHECK.

    `Settings` and `Reading` are frozen dataclasses. The fields of `Settings` are the keys of its table in resil.toml
    ([watch.NAME]) and the options of `resil watch NAME`; its docstring's Attributes are their help. The fields of
    `Reading` are plain values (texts, numbers, booleans, None, tuples and dicts of them), because readings are
    remembered as JSON. Any: each check knows its own.

    Attributes:
        summary: one line for `resil watch --list` and `--help`.
        Settings: dataclass whose every field has a default: a watchdog works without configuration.
        Reading: dataclass of what a probe reads of one subject.
        memory: how many readings of each subject `judge` wants.
        argument: the field of Settings (a tuple of texts) that takes what stands after the name:
            `resil watch fs /scratch`. Empty: none does.
        example: a command line for `--help`.

    It may have a text `on_nothing` besides: the advice where it was requested and has no target.
    """

    summary: str
    Settings: type
    Reading: type
    memory: Memory
    argument: str
    example: str

    def targets(self, settings: Any, context: Context) -> Sequence[Target]:
        """The targets to probe. Must not touch anything that may hang: that is for `probe`.

        Raise UsageError or SettingsError for settings that cannot be meant. No target is an empty sequence.
        """
        ...

    def probe(
        self, target: Target, settings: Any, context: Context, before: Mapping[str, Timed[Any]]
    ) -> Mapping[str, Any]:
        """Return a Reading for each subject of a target. The only I/O; runs in a child process with a deadline.

        `before` holds what was last remembered of each subject of this check. Raise ProbeError (or any ResilError) if
        there was no answer: that is UNKNOWN, never OK and never dead.
        """
        ...

    def judge(self, subject: str, readings: Sequence[Timed[Any]], settings: Any, now: float) -> Sequence[Finding]:
        """Return the findings about one subject. Pure. The last one was just taken; older ones come before."""
        ...
