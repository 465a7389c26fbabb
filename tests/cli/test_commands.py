"""The table of commands and the files agree."""

from __future__ import annotations

from importlib import import_module
from pathlib import Path

import pytest

from resilience import cli
from resilience.cli.commands import COMMANDS

NO_COMMANDS = {"__init__", "banner", "commands", "cron_options", "cron_steer", "cron_write", "entry", "main", "options",
               "output", "picture", "run_cron", "run_watch", "signals", "top_document"}  # fmt: skip


def test_every_file_of_a_command_is_in_the_table() -> None:
    files = {path.stem for path in Path(cli.__file__).parent.glob("*.py")}
    assert {name for name in files - NO_COMMANDS if not name.startswith("show_")} == set(COMMANDS)


@pytest.mark.parametrize("name", COMMANDS)
def test_every_line_of_the_table_leads_to_a_command_and_fits_a_terminal(name: str) -> None:
    entry = COMMANDS[name]
    assert import_module(entry.module).app
    assert entry.summary.endswith(".") and len(entry.summary) < 62
