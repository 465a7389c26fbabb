"""The crontab is replaced whole or not at all, and never over somebody else's change."""

from __future__ import annotations

import os
import stat
from pathlib import Path

import pytest

from resilience.cron.edit import LIMIT_BYTES, parse, read_crontab, replace_crontab
from resilience.cron.project import open_cron
from resilience.errors import ResilError
from tests.lab.fakes import make_project


def test_a_crontab_that_is_not_there_is_empty_and_can_be_made(tmp_path: Path) -> None:
    path = tmp_path / "cron" / "crontab"
    assert read_crontab(path) == b""
    before = os.umask(0o077)
    try:
        replace_crontab(path, b"", b"# mine\n")
    finally:
        os.umask(before)
    assert path.read_bytes() == b"# mine\n" and stat.S_IMODE(path.stat().st_mode) == 0o644


def test_a_change_in_between_is_not_overwritten(tmp_path: Path) -> None:
    path = tmp_path / "crontab"
    path.write_bytes(b"# theirs\n")
    with pytest.raises(ResilError, match="changed in the meantime") as raised:
        replace_crontab(path, b"# mine\n", b"# mine, and more\n")
    assert raised.value.transient and path.read_bytes() == b"# theirs\n"


def test_other_files_are_not_read_as_a_crontab(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "crontab")
    with pytest.raises(ResilError, match="not a regular file"):
        read_crontab(tmp_path / "crontab")
    (tmp_path / "large").write_bytes(b"#" * (LIMIT_BYTES + 1))
    with pytest.raises(ResilError, match="too large"):
        read_crontab(tmp_path / "large")


def test_it_means_what_the_scheduler_reads(tmp_path: Path) -> None:
    cron = open_cron(make_project(tmp_path))
    table = parse(cron, b"0 8 * * *  /bin/true  # resil: name=tea\nnonsense\n")
    assert [entry.place for entry in table.entries] == ["cron/crontab:1"] and table.ignored[0].place == "cron/crontab:2"
