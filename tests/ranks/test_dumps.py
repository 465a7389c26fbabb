"""Dumps of the flight recorder are listed, and read by torch's own program unless others may have written them."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from resilience.ranks import dumps as module
from resilience.ranks.dumps import find_dumps, read_dumps
from resilience.runs.run_directory import RunDirectory
from resilience.system.ports import System


@pytest.fixture
def directory(tmp_path: Path) -> RunDirectory:
    for start, ranks in (("12.0", 3), ("12.1", 2), ("13.0", 1), ("12.2", 0)):
        folder = tmp_path / "gpt" / "traces" / start
        folder.mkdir(parents=True, mode=0o700)
        for rank in range(ranks):
            path = folder / f"rank_{rank}"
            path.write_bytes(b"a pickle")
            path.chmod(0o600)
            os.utime(path, (1800000000 + len(start + str(ranks)), 1800000000 + int(start[-1])))
        (folder / "rank_0.tmp").write_text("")
    return RunDirectory(tmp_path / "gpt")


def system(path: Path, program: str = "") -> System:
    if program:
        (path / "torchfrtrace").write_text(f"#!/bin/sh\n{program}\n")
        (path / "torchfrtrace").chmod(0o755)
    return System(environ={"PATH": str(path)})


def test_the_dumps_of_the_newest_start_of_a_job_are_listed(directory: RunDirectory, tmp_path: Path) -> None:
    found = find_dumps(directory, "12")
    assert [(one.rank, one.path.parent.name, one.bytes) for one in found] == [(0, "12.1", 8), (1, "12.1", 8)]
    first, second = read_dumps(system(tmp_path), found)
    assert first == "torch's flight recorder has written 2 dumps, 16 B, the newest at 2027-01-15T08:00:01"
    assert second == f"to read them: torchfrtrace --allow-incomplete-ranks --prefix rank_ {found[0].path.parent}"
    assert find_dumps(directory, "14") == () and read_dumps(system(tmp_path), ()) == ()


def test_torchfrtrace_reads_them_within_a_bound(
    directory: RunDirectory, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    found = find_dumps(directory, "12")
    said = read_dumps(system(tmp_path, 'echo; echo "culprit $4"; echo no tabulate >&2'), found)
    assert said[2:] == (f"culprit {found[0].path.parent}",)
    said = read_dumps(system(tmp_path, "echo 'Traceback'; echo 'KeyError: 0' >&2; exit 1"), found)
    assert said[2:] == ("torchfrtrace ended with 1: KeyError: 0",)
    monkeypatch.setattr(module, "READ_S", 0.2)
    assert "did not end within 0.2 s" in read_dumps(system(tmp_path, "exec /bin/sleep 60"), found)[2]


@pytest.mark.parametrize("writable", ["file", "directory", "link"])
def test_dumps_that_others_may_write_are_not_read(directory: RunDirectory, tmp_path: Path, writable: str) -> None:
    path = directory.path / "traces" / "12.1"
    if writable == "link":
        (path / "rank_1").rename(tmp_path / "elsewhere")
        (path / "rank_1").symlink_to(tmp_path / "elsewhere")
        assert [one.rank for one in find_dumps(directory, "12")] == [0]
        return
    (path / "rank_1" if writable == "file" else path).chmod(0o770)
    said = read_dumps(system(tmp_path, "echo unpickled"), find_dumps(directory, "12"))
    assert said[2:] == ("they are not read here: others may write them, and reading a pickle executes it",)
