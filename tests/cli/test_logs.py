"""`resil logs` shows the end of the newest log, byte for byte, and only that on standard output."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from resilience.runs import read_logs
from tests.cli.shell import Shell


@pytest.fixture
def log(shell: Shell) -> Path:
    shell.resil("submit")
    path = shell.run_dir / "logs" / "gpt-101.out"
    path.write_bytes(b"".join(b"line %d\n" % number for number in range(100)))
    return path


def test_the_last_forty_lines_are_shown_and_the_path_aside(shell: Shell, log: Path) -> None:
    said = shell.resil("logs")
    assert said.out.splitlines() == [f"line {number}" for number in range(60, 100)]
    assert said.err == f"==> {log} <==\n"
    assert shell.resil("logs", "gpt", "--lines", "2").out == "line 98\nline 99\n"
    assert shell.resil("logs", "--lines", "0").out == ""


def test_the_path_alone_is_for_other_programs(shell: Shell, log: Path) -> None:
    said = shell.resil("logs", "--path")
    assert (said.out, said.err) == (f"{log}\n", "")


def test_following_goes_on_where_the_last_lines_ended_and_names_each_new_log(
    shell: Shell, log: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def follow(_: object, __: object, path: Path, position: int) -> Iterator[tuple[Path, bytes]]:
        assert (path, position) == (log, log.stat().st_size)
        yield path, b"more\n"
        yield Path("/next.out"), b"next\n"
        raise KeyboardInterrupt

    monkeypatch.setattr(read_logs, "follow", follow)
    said = shell.resil("logs", "-f", "--lines", "1")
    assert (said.code, said.out) == (130, "line 99\nmore\nnext\n")
    assert said.err.splitlines()[1:] == ["==> /next.out <=="]


def test_a_run_without_a_log_fails_and_says_where_to_look(shell: Shell) -> None:
    shell.resil("submit")
    said = shell.resil("logs")
    assert said.code == 1 and "has written no log yet" in said.err and "resil status gpt" in said.err
