"""What a node remembers of the open incidents when the disk that has them does not answer."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from resilience.alerts.incident import Incident, incident_to_json
from resilience.alerts.ledger import FRESH_S, LedgerCopy
from tests.alerts.test_ledger import NOW, incident
from tests.system.people import NOBODY, needs_root


def contents(*incidents: Incident) -> list[bytes]:
    return [json.dumps(incident_to_json(one)).encode() for one in incidents]


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "node" / "ledger-copy.json"


def test_what_was_open_is_remembered(path: Path) -> None:
    given = (incident("/a"), incident("/b"))
    LedgerCopy(path).save(contents(*given), NOW)
    assert LedgerCopy(path).load(NOW + 60) == given
    LedgerCopy(path).save([], NOW)
    assert LedgerCopy(path).load(NOW) == ()


@pytest.mark.parametrize(("later_s", "count"), [(FRESH_S - 1, 1), (FRESH_S, 0), (-FRESH_S, 0)])
def test_an_old_copy_is_not_believed(path: Path, later_s: float, count: int) -> None:
    LedgerCopy(path).save(contents(incident()), NOW)
    assert len(LedgerCopy(path).load(NOW + later_s)) == count


@pytest.mark.parametrize("content", [b"", b"{}", b"[]", b"\xff", b"[" * 100_000, b'{"time": 1e999, "incidents": []}'])
def test_a_damaged_copy_is_as_if_there_were_none(path: Path, content: bytes) -> None:
    LedgerCopy(path).save(contents(incident()), NOW)
    path.write_bytes(content)
    assert LedgerCopy(path).load(NOW) == ()


def test_only_this_user_reads_it(path: Path) -> None:
    LedgerCopy(path).save(contents(incident()), NOW)
    assert path.stat().st_mode & 0o077 == 0
    assert path.parent.stat().st_mode & 0o077 == 0


@needs_root
def test_a_copy_that_somebody_else_wrote_is_not_believed(path: Path) -> None:
    LedgerCopy(path).save(contents(incident()), NOW)
    os.chown(path, NOBODY, NOBODY)
    assert LedgerCopy(path).load(NOW) == ()


def test_where_there_is_no_place_for_it_nothing_is_kept_and_nothing_raised(tmp_path: Path) -> None:
    (tmp_path / "node").write_text("not a folder")
    copy = LedgerCopy(tmp_path / "node" / "ledger-copy.json")
    copy.save(contents(incident()), NOW)
    assert copy.load(NOW) == ()
