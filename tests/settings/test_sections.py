"""The tables have defaults that work, and say in their docstrings what each key is."""

from __future__ import annotations

import inspect
import re
from dataclasses import FrozenInstanceError, fields

import pytest

from resilience.guard.settings import GuardSettings
from resilience.settings.sections import AttemptSettings, RunSettings, SchedulerSettings, Settings, SubmitSettings

OWNERS = [RunSettings, SubmitSettings, AttemptSettings, GuardSettings, SchedulerSettings]


@pytest.mark.parametrize("owner", OWNERS)
def test_every_key_is_explained_and_has_a_default(owner: type) -> None:
    explained = re.findall(r"^ {4}(\w+):", inspect.getdoc(owner) or "", re.MULTILINE)  # dedented since Python 3.13
    assert explained == [field.name for field in fields(owner)]
    owner()


def test_without_any_file_a_run_is_private_serial_and_stops_five_minutes_early() -> None:
    settings = Settings()
    assert (settings.run.state_dir, settings.run.group, settings.scheduler.name) == (".resil", "", "auto")
    assert (settings.submit.signal, settings.submit.signal_lead_s, settings.submit.requeue) == ("USR1", 300.0, None)


def test_settings_do_not_change_under_ones_feet() -> None:
    with pytest.raises(FrozenInstanceError):
        Settings().run.name = "other"  # type: ignore[misc]
