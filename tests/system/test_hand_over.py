"""A program takes a message on its standard input, and says by its exit code what became of it."""

from __future__ import annotations

from pathlib import Path

import pytest

from resilience.errors import DeliveryError
from resilience.system.hand_over import hand_over, said_by
from resilience.system.process import Completed
from tests.fakes import make_world


def run(folder: Path, script: str, text: str = "", timeout_s: float = 5) -> Completed:
    environment = {"PATH": "/usr/bin:/bin"}
    argv = ["/bin/sh", "-c", script]
    return hand_over(argv, text, make_world(folder), timeout_s=timeout_s, environment=environment)


def test_the_text_arrives_whole(tmp_path: Path) -> None:
    text = "größe\n" * 100_000
    assert run(tmp_path, "cat", text).stdout == text


def test_a_program_that_reads_nothing_is_no_failure(tmp_path: Path) -> None:
    assert run(tmp_path, "exit 0", "x" * 1_000_000).returncode == 0


@pytest.mark.parametrize("code", [1, 69, 71, 75, 126, 127, 64, 65, 67, 77, 78])
def test_sysexits_say_whether_to_try_again(tmp_path: Path, code: int) -> None:
    with pytest.raises(DeliveryError) as caught:
        run(tmp_path, f"echo first >&2; echo 'it is\x1b[2J so' >&2; exit {code}")
    assert caught.value.transient is (code not in (64, 65, 67, 77, 78))
    assert f"/bin/sh ended with {code}" in caught.value.message and "it is?[2J so" in caught.value.message


def test_a_late_program_is_transient_and_may_have_done_its_work(tmp_path: Path) -> None:
    with pytest.raises(DeliveryError) as caught:
        run(tmp_path, "sleep 60", timeout_s=0.2)
    assert caught.value.transient and "may have done its work" in caught.value.hint


def test_the_last_line_of_the_errors_is_quoted() -> None:
    assert said_by(Completed(("x",), 1, "out\n", "one\ntwo\n\n")) == "two"
    assert said_by(Completed(("x",), 1, "out\n", "")) == "out"
    assert said_by(Completed(("x",), 1, "", "")) == ""
