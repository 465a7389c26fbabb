"""What the guard writes is whole or not there, and has the modes of the run directory."""

from __future__ import annotations

import contextlib
import json
import math
import os
import stat
import threading
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from resilience.base.files import remove_stale, replace_file
from resilience.guard.heartbeat.beat import Progress, RankBeat
from resilience.guard.heartbeat.run_directory import (
    LONGEST_LINE,
    RunDirectoryWriter,
    append_journal,
    as_line,
    file_mode,
    subfolder,
)
from tests.lab.disks import fill, make_read_only, small_disk
from tests.system.writer import writer

MERELY_READ = {"brk", "mmap", "munmap", "mremap", "futex", "read", "newfstatat", "fstat", "lseek", "getdents64"}


def mode_of(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


def names(directory: Path) -> list[str]:
    return sorted(path.name for path in directory.iterdir())


@pytest.mark.parametrize(
    ("directory", "file"), [(0o700, 0o600), (0o2770, 0o660), (0o770, 0o600), (0o2750, 0o600), (0o2775, 0o660)]
)
def test_only_a_directory_made_for_a_group_gives_its_files_to_the_group(
    tmp_path: Path, directory: int, file: int
) -> None:
    tmp_path.chmod(directory)
    assert file_mode(str(tmp_path)) == file
    tmp_path.chmod(0o700)


def test_a_missing_directory_is_made_with_the_runs_mode_but_never_the_run_itself(tmp_path: Path) -> None:
    run = tmp_path / "run"
    with pytest.raises(FileNotFoundError):
        subfolder(str(run), "beats")
    assert not run.exists()
    run.mkdir()
    run.chmod(0o2770)
    assert mode_of(Path(subfolder(str(run), "beats"))) == 0o2770
    run.chmod(0o700)
    assert mode_of(Path(subfolder(str(run), "journal"))) == 0o700


def test_a_link_in_place_of_the_file_is_replaced_and_not_followed(tmp_path: Path) -> None:
    (tmp_path / "victim").write_text("mine")
    (tmp_path / "beat").symlink_to(tmp_path / "victim")
    replace_file(str(tmp_path / "beat"), "new", mode=0o600)
    assert (tmp_path / "victim").read_text() == "mine"
    assert (tmp_path / "beat").read_text() == "new" and not (tmp_path / "beat").is_symlink()
    assert names(tmp_path) == ["beat", "victim"]


def test_two_writers_of_one_file_never_mix_their_texts(tmp_path: Path) -> None:
    path = str(tmp_path / "beat")
    texts = ["a" * 5000, "b" * 9000]
    seen: set[str] = set()

    def write(text: str) -> None:
        for _ in range(300):
            replace_file(path, text, mode=0o600)

    writers = [threading.Thread(target=write, args=(text,)) for text in texts]
    for writing in writers:
        writing.start()
    while any(writing.is_alive() for writing in writers):
        with contextlib.suppress(FileNotFoundError):
            seen.add((tmp_path / "beat").read_text())
    assert seen <= set(texts)
    assert names(tmp_path) == ["beat"]


def test_what_killed_writers_left_is_removed_once_it_is_old(tmp_path: Path) -> None:
    for name in (".12.n1.aa.tmp", ".12.n2.bb.tmp", "12.n1", ".hidden"):
        (tmp_path / name).touch()
    os.utime(tmp_path / ".12.n1.aa.tmp", (1000.0, 1000.0))
    os.utime(tmp_path / "12.n1", (1000.0, 1000.0))
    remove_stale(str(tmp_path), time.time())
    assert names(tmp_path) == [".12.n2.bb.tmp", ".hidden", "12.n1"]
    remove_stale(str(tmp_path / "gone"), time.time())


def test_a_full_disk_leaves_the_old_file_and_no_other(tmp_path: Path) -> None:
    with small_disk(tmp_path / "disk") as disk:
        path = disk / "beat"
        replace_file(str(path), "old", mode=0o600)
        fill(disk)
        with pytest.raises(OSError, match="No space left"):
            replace_file(str(path), "new" * 10_000, mode=0o600)
        assert path.read_text() == "old"
        assert names(disk) == ["ballast", "beat"]


def test_a_writer_killed_at_any_system_call_leaves_the_old_file_or_the_new_one(tmp_path: Path) -> None:
    path = tmp_path / "finished"
    module = "resilience.base.files"
    request = f"from {module} import *; replace_file({str(path)!r}, 'new', mode=0o600, durable=True)"
    with writer(tmp_path / "strace.log") as process:
        seen = set()
        path.write_text("old")
        for name, count in process.kill_points(request):
            if name in MERELY_READ:
                continue
            path.write_text("old")
            process.run(request, f"{name}:signal=KILL:when={count}")
            seen.add(path.read_text())
        assert seen == {"old", "new"}
        remove_stale(str(tmp_path), time.time() + 1000.0)
        assert names(tmp_path) == ["finished", "strace.log"]


def append(run: Path, *events: str, **fields: Any) -> None:
    append_journal(str(run), "12", 0, [as_line({"event": event, **fields}) for event in events])


def lines_of(run: Path, rank: int = 0) -> list[str]:
    return (run / "journal" / f"12.{rank}.jsonl").read_text().splitlines()


def refuse(constant: str) -> None:
    raise AssertionError(f"{constant} is no JSON")


@given(
    st.recursive(
        st.none() | st.booleans() | st.integers() | st.floats() | st.text() | st.binary(),
        lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner) | st.tuples(inner),
        max_leaves=20,
    )
)
def test_every_value_makes_one_line_of_strict_json(value: object) -> None:
    line = as_line({"event": "x", "value": value})
    assert line.endswith(b"\n") and line.count(b"\n") == 1
    assert json.loads(line, parse_constant=refuse)["event"] == "x"


def test_numbers_that_are_none_stay_readable() -> None:
    told = json.loads(as_line({"event": "loss", "a": math.nan, "b": math.inf, "c": -math.inf, "d": 0.5}))
    assert told == {"event": "loss", "a": "nan", "b": "inf", "c": "-inf", "d": 0.5}


def test_a_tensor_is_named_and_not_read() -> None:
    class Tensor:
        def _fail(self, *args: object) -> Any:
            raise AssertionError("this would wait for the device")

        item = __float__ = __index__ = __repr__ = __str__ = _fail

    assert json.loads(as_line({"event": "x", "loss": Tensor()}))["loss"] == "<Tensor>"


def test_a_numpy_number_is_a_number() -> None:
    float32 = type("float32", (), {"__module__": "numpy", "ndim": 0, "item": lambda self: 0.5})
    array = type("ndarray", (), {"__module__": "numpy", "ndim": 2, "item": lambda self: 1 / 0})
    told = json.loads(as_line({"event": "x", "a": float32(), "b": array()}))
    assert told == {"event": "x", "a": 0.5, "b": "<ndarray>"}


def test_what_is_much_too_long_is_cut_and_says_so() -> None:
    line = as_line({"event": "error", "time": 5.0, "rank": 3, "texts": ["x" * 3000] * 50})
    assert len(line) <= LONGEST_LINE
    assert json.loads(line) == {"event": "error", "time": 5.0, "attempt": None, "rank": 3, "host": None, "cut": True}
    assert len(as_line({"event": "error", "error": "y" * 10**6})) < 5000


def test_a_table_that_holds_itself_is_survived() -> None:
    knot: dict[str, Any] = {"event": "x"}
    knot["self"] = knot
    assert json.loads(as_line(knot))["event"] == "x"


def test_a_line_that_a_crash_has_cut_is_closed_off_by_the_next(tmp_path: Path) -> None:
    append(tmp_path, "start")
    with open(tmp_path / "journal" / "12.0.jsonl", "a") as file:
        file.write('{"event":"sa')
    append(tmp_path, "end")
    assert lines_of(tmp_path) == ['{"event":"start"}', '{"event":"sa', '{"event":"end"}']


def test_a_writer_killed_at_any_system_call_spoils_no_other_line(tmp_path: Path) -> None:
    request = (
        "from resilience.guard.heartbeat.run_directory import *; "
        f"append_journal({str(tmp_path)!r}, '12', 0, [b'{{}}\\n'] * 3)"
    )
    append(tmp_path, "first")
    with writer(tmp_path / "strace.log") as process:
        for name, count in process.kill_points(request):
            if name in {"pread64", "write", "fsync", "openat", "close"}:
                process.run(request, f"{name}:signal=KILL:when={count}")
                append(tmp_path, "next")
    told = [json.loads(line) for line in lines_of(tmp_path)]
    assert told[0] == {"event": "first"} and told[-1] == {"event": "next"}


def test_a_full_disk_takes_all_lines_or_none(tmp_path: Path) -> None:
    with small_disk(tmp_path / "disk") as disk:
        append(disk, "start")
        ballast = fill(disk)
        with pytest.raises(OSError, match="No space left"):
            append(disk, *["save"] * 20, text="x" * 3000)
        assert lines_of(disk) == ['{"event":"start"}']
        ballast.unlink()
        append(disk, "end")
        assert lines_of(disk) == ['{"event":"start"}', '{"event":"end"}']


def test_a_read_only_disk_is_an_error_of_the_caller(tmp_path: Path) -> None:
    with small_disk(tmp_path / "disk") as disk:
        append(disk, "start")
        make_read_only(disk, True)
        with pytest.raises(OSError, match="Read-only"):
            append(disk, "save")
        make_read_only(disk, False)
        append(disk, "end")
        assert len(lines_of(disk)) == 2


@pytest.mark.parametrize("kind", ["link", "fifo", "directory"])
def test_nothing_but_a_regular_file_is_written_to(tmp_path: Path, kind: str) -> None:
    (tmp_path / "journal").mkdir()
    path = tmp_path / "journal" / "12.0.jsonl"
    if kind == "link":
        (tmp_path / "victim").write_text("mine\n")
        path.symlink_to(tmp_path / "victim")
    elif kind == "fifo":
        os.mkfifo(path)
    else:
        path.mkdir()
    with pytest.raises(OSError):
        append_journal(str(tmp_path), "12", 0, [b"{}\n"])
    if kind == "link":
        assert (tmp_path / "victim").read_text() == "mine\n"


@pytest.mark.parametrize(("directory", "file"), [(0o700, 0o600), (0o2770, 0o660)])
def test_a_journal_has_the_runs_mode(tmp_path: Path, directory: int, file: int) -> None:
    tmp_path.chmod(directory)
    append_journal(str(tmp_path), "12", 0, [b"{}\n"])
    assert mode_of(tmp_path / "journal" / "12.0.jsonl") == file
    tmp_path.chmod(0o700)


def test_what_a_twin_has_written_behind_us_is_not_cut_off(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    append_journal(str(tmp_path), "12", 0, [b'{"event":"start"}\n'])
    path = tmp_path / "journal" / "12.0.jsonl"

    def fsync_fails(descriptor: int) -> None:
        with open(path, "ab") as twin:
            twin.write(b'{"event":"twin"}\n')
        raise OSError(5, "Input/output error")

    with monkeypatch.context() as patched:
        patched.setattr(os, "fsync", fsync_fails)
        with pytest.raises(OSError, match="Input/output"):
            append_journal(str(tmp_path), "12", 0, [b'{"event":"ours"}\n'])
    assert lines_of(tmp_path)[-1] == '{"event":"twin"}'


def test_a_line_of_progress_is_added_each_minute_in_which_rank_0_has_stepped(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    now = [100.0]
    clock = SimpleNamespace(monotonic=lambda: now[0], time=time.time)
    monkeypatch.setattr("resilience.guard.heartbeat.run_directory.time", clock)
    writer = RunDirectoryWriter(str(tmp_path), "12", 3, "n1", most_lines=9)
    progress = Progress(5.0)
    for after_s, step in ((0, 0), (1, 7), (30, 8), (61, 9), (61, 9), (90, 9), (122, 12)):
        now[0] = 100.0 + after_s
        progress.steps = step
        assert writer.write({0: RankBeat(77, progress), 1: RankBeat(78, Progress(5.0))}) == ""
    assert writer.write({1: RankBeat(78, progress)}) == "", "another node's ranks"
    lines = [json.loads(line) for line in (tmp_path / "journal" / "12.progress.jsonl").read_text().splitlines()]
    assert [line["step"] for line in lines] == [7, 9, 12]
    assert {(line["event"], line["attempt"]) for line in lines} == {("progress", 3)}
