"""What an entry may ask for in a comment: `# resil: timeout=10m catch_up=none overlap=skip`. Pure."""

from __future__ import annotations

from dataclasses import dataclass

from resilience.errors import UsageError
from resilience.model.cron import EntryOptions
from resilience.model.cron_settings import CronSettings


class OptionError(UsageError, ValueError):
    """An option that nobody knows, or a value that it cannot have."""


@dataclass(frozen=True, slots=True)
class Options:
    """Options as parsed, and the name that a line may give itself (empty: none)."""

    options: EntryOptions
    name: str = ""


def default_options(settings: CronSettings, *, is_drop_in: bool) -> EntryOptions:
    """What counts where an entry says nothing."""
    return EntryOptions(timeout_s=settings.timeout_s, jitter_s=settings.jitter_s if is_drop_in else 0.0)


def parse_options(text: str, default: EntryOptions) -> Options:
    """Given `timeout=10m rerun`, return it on top of `default`. Raise OptionError with what to write."""
    return Options(default)
