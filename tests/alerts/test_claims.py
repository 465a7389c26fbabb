"""Claims keep two nodes from delivering the same channel at once, and never keep a message back."""

from __future__ import annotations

import os
import stat
import time
from pathlib import Path

import pytest

from resilience.alerts.claims import EXPIRES_S, claim


def test_only_one_holds_a_claim_and_then_the_next(tmp_path: Path) -> None:
    with claim(tmp_path / "claims", "email", "n1 1 a") as one:
        assert one is not None
        with (
            claim(tmp_path / "claims", "email", "n2 1 b") as other,
            claim(tmp_path / "claims", "slack", "n2 1 b") as free,
        ):
            assert other is None and free is not None
    with claim(tmp_path / "claims", "email", "n2 1 b") as other:
        assert other is not None
    assert list((tmp_path / "claims").iterdir()) == []


def test_a_claim_that_is_renewed_does_not_expire(tmp_path: Path) -> None:
    path = tmp_path / "claims" / "email"
    past = time.time() - EXPIRES_S - 5
    with claim(tmp_path / "claims", "email", "n1 1 a") as one:
        assert one is not None
        os.utime(path, (past, past))
        one.renew()
        with claim(tmp_path / "claims", "email", "n2 1 b") as other:
            assert other is None


def test_a_holder_whose_claim_was_taken_over_does_not_remove_the_new_one(tmp_path: Path) -> None:
    path = tmp_path / "claims" / "email"
    past = time.time() - EXPIRES_S - 5
    with claim(tmp_path / "claims", "email", "n1 1 a"):
        os.utime(path, (past, past))
        with claim(tmp_path / "claims", "email", "n2 1 b") as other:
            assert other is not None and path.read_text() == "n2 1 b"
        with claim(tmp_path / "claims", "email", "n3 1 c"):
            pass
    with claim(tmp_path / "claims", "email", "n1 1 a") as one:
        os.utime(path, (past, past))
        with claim(tmp_path / "claims", "email", "n2 1 b"):
            del one
            assert path.read_text() == "n2 1 b"


def test_a_running_process_keeps_its_claim(tmp_path: Path) -> None:
    with (
        claim(tmp_path / "claims", "email", f"n1 {os.getpid()} a"),
        claim(tmp_path / "claims", "email", "n1 1 b") as other,
    ):
        assert other is None


@pytest.mark.parametrize("mode", [0o700, 0o2770])
def test_the_directory_has_the_mode_of_its_parent(tmp_path: Path, mode: int) -> None:
    directory = tmp_path / "alerts"
    directory.mkdir()
    directory.chmod(mode)
    with claim(directory / "claims", "email", "n1 1 a"):
        assert stat.S_IMODE((directory / "claims").stat().st_mode) == mode
        assert stat.S_IMODE((directory / "claims" / "email").stat().st_mode) == 0o644


def test_without_a_directory_delivery_goes_ahead(tmp_path: Path) -> None:
    (tmp_path / "claims").write_text("in the way")
    with claim(tmp_path / "claims", "email", "n1 1 a") as held:
        assert held is not None
        held.renew()


def test_exceptions_inside_are_raised(tmp_path: Path) -> None:
    with pytest.raises(KeyError), claim(tmp_path / "claims", "email", "n1 1 a"):
        raise KeyError
    assert list((tmp_path / "claims").iterdir()) == []
