"""Files of the kernel that are read again and again."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from resilience.guard.memory.kept_file import KeptFile
from tests.guard.memory.memory_cgroups import count_descriptors


def test_each_reading_shows_what_is_there_now(tmp_path: Path) -> None:
    path = tmp_path / "usage"
    path.write_text("1\n")
    kept = KeptFile(str(path))
    assert kept.read() == "1\n"
    path.write_text("22\n")
    assert kept.read() == "22\n"
    kept.close()


def test_the_descriptor_is_kept_and_given_back() -> None:
    before = count_descriptors()
    kept = KeptFile("/proc/meminfo")
    for _ in range(50):
        assert kept.read().startswith("MemTotal")
    assert count_descriptors() == before + 1
    kept.close()
    kept.close()
    assert count_descriptors() == before


def test_a_descriptor_that_went_bad_is_replaced(tmp_path: Path) -> None:
    path = tmp_path / "usage"
    path.write_text("1\n")
    kept = KeptFile(str(path))
    kept.read()
    os.close(kept._descriptor)
    assert kept.read() == "1\n"
    kept.close()


def test_a_file_that_is_not_there_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError):
        KeptFile(str(tmp_path / "nothing")).read()


def test_a_fifo_does_not_block(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "fifo")
    with pytest.raises(OSError, match="Illegal seek"):
        KeptFile(str(tmp_path / "fifo")).read()


def test_a_descriptor_that_is_somebody_elses_by_now_is_left_alone(tmp_path: Path) -> None:
    """Something closes all descriptors of the process, as daemons do, and opens a pipe under the same number."""
    (tmp_path / "usage").write_text("1\n")
    kept = KeptFile(str(tmp_path / "usage"))
    kept.read()
    ours = kept._descriptor
    reader, writer = os.pipe()
    os.dup2(reader, ours)
    assert kept.read() == "1\n"
    os.write(writer, b"theirs")
    assert os.read(ours, 6) == b"theirs"
    for descriptor in (reader, writer, ours):
        os.close(descriptor)
    kept.close()
