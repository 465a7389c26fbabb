"""At most one look hangs at a place, over ticks and processes; it is said at once; a mount that is back clears it."""

from __future__ import annotations

import ctypes
import json
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from resilience.base.processes import blocked_at, is_alive, is_waiting_in_kernel, start_ticks
from resilience.errors import UsageError
from resilience.system import stuck
from resilience.system.child import Answer
from resilience.system.ports import SystemClock
from resilience.system.stuck import ChildProbe, Stuck, StuckMemory, probe_in_child
from tests.lab.fakes import NOW, FakeClock, make_system
from tests.lab.hung import hung_directory

REPOSITORY = Path(__file__).parents[2]


@pytest.fixture
def memory(tmp_path: Path) -> StuckMemory:
    return StuckMemory([tmp_path / "own" / "stuck"])


def look(memory: StuckMemory, work: Callable[[], Any], *, clock: Any = None, deadline_s: float = 1.0) -> Answer:
    """One tick of one place, with a memory read afresh, as another process would."""
    fresh = StuckMemory(memory._directories)
    ((_, answer),) = probe_in_child({0: ChildProbe("fs /scratch", work, deadline_s)}, fresh, clock or SystemClock())
    return answer


@pytest.fixture
def hung(tmp_path: Path) -> Iterator[Path]:
    with hung_directory(tmp_path / "hung") as directory:
        yield directory


def test_a_thousand_ticks_at_a_hung_mount_leave_one_child_and_the_next_say_so_at_once(
    memory: StuckMemory, tmp_path: Path
) -> None:
    with hung_directory(tmp_path / "hung") as directory:

        def work() -> int:
            return os.statvfs(directory).f_bsize

        first = look(memory, work)
        assert first.is_overdue and len(first.abandoned) == 1 and first.error is not None
        assert first.error.message == f"{directory} does not respond: no answer within 1 s"
        assert "kernel" in first.error.hint
        started = time.monotonic()
        for _ in range(1000):
            answer = look(memory, work)
            assert answer.abandoned == first.abandoned
        assert time.monotonic() - started < 10  # 10 ms each at the most; the deadline is 500
        assert answer.error is not None and answer.error.message.startswith("STUCK since ")
        assert f"process {first.abandoned[0]} still waits" in answer.error.message
        assert answer.error.hint == "after a repair, probe at once: resil watch --all --retry"
        assert is_waiting_in_kernel(first.abandoned[0])
    until_it_is_dead(first.abandoned[0])  # the mount is gone: whoever waited there is told so
    assert look(memory, lambda: "here").value == "here"
    assert memory.find("fs /scratch", time.time()) is None
    assert not list((tmp_path / "own" / "stuck").iterdir())


def test_a_mount_that_was_repaired_is_probed_although_a_child_still_waits_for_the_old_one(
    memory: StuckMemory, hung: Path
) -> None:
    libc = ctypes.CDLL(None)

    def work() -> int:
        return len(list((hung / "checkpoints").iterdir()))

    first = look(memory, work)
    assert first.error is not None and first.error.message.startswith(f"{hung}/checkpoints does not respond")
    assert look(memory, work).error is not None
    libc.umount2(bytes(hung), 2)  # umount -l: the server still says nothing, and the child waits on
    try:
        assert libc.mount(b"none", bytes(hung), b"tmpfs", 0, b"size=64k") == 0
        (hung / "checkpoints").mkdir()
        assert is_alive(first.abandoned[0])
        assert look(memory, work).value == 0
        assert memory.find("fs /scratch", time.time()) is None
    finally:
        libc.umount2(bytes(hung), 2)


def test_a_second_child_probes_after_a_while_and_the_third_after_twice_as_long(memory: StuckMemory, hung: Path) -> None:
    clock = FakeClock()
    children: list[int] = []
    for minutes, expected in ((0, 1), (5, 1), (11, 2), (20, 2), (32, 3), (60, 3), (73, 4)):
        clock.time = NOW + 60 * minutes
        answer = look(memory, lambda: os.statvfs(hung).f_bsize, clock=clock, deadline_s=1.0)
        children = list(dict.fromkeys((*children, *answer.abandoned)))
        assert len(children) == expected, minutes
    assert answer.error is not None and "STUCK since" in answer.error.message


def test_a_user_who_repaired_the_server_has_it_probed_at_once(memory: StuckMemory, tmp_path: Path) -> None:
    with subprocess.Popen(["sleep", "100"]) as waiting:
        memory.note("fs /scratch", Stuck(time.time() - 60, (waiting.pid,), tried=time.time()), time.time())
        assert look(memory, lambda: 1).error is not None
        StuckMemory(memory._directories).release()
        assert look(memory, lambda: 1).value == 1
        waiting.kill()


def test_a_process_that_waits_elsewhere_or_is_gone_names_no_path(tmp_path: Path) -> None:
    with subprocess.Popen(["sleep", "100"]) as waiting:
        assert blocked_at(waiting.pid) == ""
        waiting.kill()
    assert blocked_at(waiting.pid) == ""


def test_a_hung_mount_keeps_no_pipe_of_the_caller_open(hung: Path, tmp_path: Path) -> None:
    program = (
        "import os; from resilience.system.child import run_in_child\n"
        f"((_, answer),) = run_in_child({{0: (lambda: os.statvfs(r'{hung}'), 0.5)}})\n"
        "print(answer.is_overdue, len(answer.abandoned), flush=True)\n"
    )
    started = time.monotonic()
    done = subprocess.run(  # returns when the pipes are closed: an abandoned child must not hold them
        [sys.executable, "-c", program], cwd=REPOSITORY, capture_output=True, text=True, timeout=60
    )
    assert (done.returncode, done.stdout, done.stderr) == (0, "True 1\n", "")
    assert time.monotonic() - started < 10


def test_a_look_that_could_be_ended_is_tried_again_and_says_since_when(memory: StuckMemory) -> None:
    clock = FakeClock()
    first = look(memory, lambda: time.sleep(100), clock=clock)
    assert first.error is not None and "the probe was ended" in first.error.hint
    clock.sleep(300)
    again = look(memory, lambda: time.sleep(100), clock=clock)
    assert again.error is not None and "no answer within 1 s; STUCK since " in again.error.message
    assert "(5 min)" in again.error.message
    clock.sleep(60)
    assert look(memory, lambda: 1, clock=clock).value == 1
    third = look(memory, lambda: time.sleep(100), clock=clock)
    assert third.error is not None and "STUCK" not in third.error.message


def test_what_did_not_answer_long_ago_begins_anew(memory: StuckMemory) -> None:
    memory.note("x", Stuck(1000.0), 1000.0)
    assert memory.find("x", 1000.0 + stuck.FRESH_S - 1) == Stuck(1000.0)
    assert memory.find("x", 1000.0 + stuck.FRESH_S + 1) is None


def test_an_error_is_an_answer(memory: StuckMemory) -> None:
    def refuse() -> None:
        raise UsageError("no")

    look(memory, lambda: time.sleep(100))
    assert isinstance(look(memory, refuse).error, UsageError)
    assert memory.find("fs /scratch", time.time()) is None


def test_one_stuck_place_does_not_keep_others_from_being_looked_at(memory: StuckMemory) -> None:
    with subprocess.Popen(["sleep", "100"]) as waiting:
        memory.note("bad", Stuck(time.time() - 60, (waiting.pid,), tried=time.time() - 60), time.time())
        looks = {"bad": ChildProbe("bad", lambda: 1, 5.0), "good": ChildProbe("good", lambda: 2, 5.0)}
        answers = dict(probe_in_child(looks, memory, SystemClock()))
        waiting.kill()
    assert answers["good"].value == 2 and answers["bad"].abandoned == (waiting.pid,)
    until_it_is_dead(waiting.pid)
    found = memory.find("bad", time.time())
    assert found is not None and found.pids == ()  # so it is looked at again


def until_it_is_dead(pid: int) -> None:
    end = time.monotonic() + 10
    while is_alive(pid):
        assert time.monotonic() < end
        time.sleep(0.01)


def test_a_process_number_that_was_given_out_again_is_not_the_one_that_hung(memory: StuckMemory) -> None:
    memory.note("x", Stuck(5.0, (os.getpid(),)), 5.0)
    assert memory.find("x", 5.0) == Stuck(5.0, (os.getpid(),))
    (path,) = memory._directories[0].iterdir()
    record = json.loads(path.read_text())
    record["processes"] = {str(os.getpid()): (start_ticks(os.getpid()) or 0) - 1}
    path.write_text(json.dumps(record))
    assert memory.find("x", 5.0) == Stuck(5.0, ())


@pytest.mark.parametrize("key", ["boot", "namespace"])
def test_a_record_of_another_boot_or_container_says_nothing(memory: StuckMemory, key: str) -> None:
    memory.note("x", Stuck(5.0, (os.getpid(),)), 5.0)
    (path,) = memory._directories[0].iterdir()
    path.write_text(json.dumps(json.loads(path.read_text()) | {key: "another"}))
    assert memory.find("x", 5.0) is None


@pytest.mark.parametrize("text", ["", "{", "[]", "7", '{"place": "x"}', "\x00" * 50, '{"place": "x", "processes": 3}'])
def test_a_damaged_record_says_nothing_and_is_written_anew(memory: StuckMemory, text: str) -> None:
    memory.note("x", Stuck(5.0), 5.0)
    (path,) = memory._directories[0].iterdir()
    path.write_text(text)
    assert memory.find("x", 5.0) is None
    memory.note("x", Stuck(6.0), 6.0)
    assert memory.find("x", 6.0) == Stuck(6.0)


def test_a_directory_that_others_may_write_in_is_not_believed(tmp_path: Path) -> None:
    memory = StuckMemory([tmp_path / "stuck"])
    memory.note("x", Stuck(5.0, (os.getpid(),)), 5.0)
    (tmp_path / "stuck").chmod(0o777)
    assert StuckMemory([tmp_path / "stuck"]).find("x", 5.0) is None


def test_a_link_in_the_directories_place_is_not_followed(tmp_path: Path) -> None:
    (tmp_path / "real").mkdir()
    (tmp_path / "own").symlink_to(tmp_path / "real")
    memory = StuckMemory([tmp_path / "own" / "stuck"])
    memory.note("x", Stuck(5.0), 5.0)
    assert not list((tmp_path / "real").iterdir())


def test_where_one_directory_takes_nothing_the_next_does(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    memory = StuckMemory([tmp_path / "file" / "stuck", tmp_path / "b" / "stuck"])
    memory.note("x", Stuck(5.0), 5.0)
    assert memory.find("x", 5.0) == Stuck(5.0)
    assert (tmp_path / "b" / "stuck").stat().st_mode & 0o777 == 0o700


def test_two_processes_that_hang_at_once_are_both_known(memory: StuckMemory) -> None:
    memory.note("x", Stuck(5.0, (os.getpid(),)), 5.0)
    memory.note("x", Stuck(6.0, (os.getppid(),)), 6.0)
    found = memory.find("x", 6.0)
    assert found is not None and found.since == 5.0 and set(found.pids) == {os.getpid(), os.getppid()}


def test_old_records_of_places_that_nobody_asks_for_are_removed_and_living_ones_kept(memory: StuckMemory) -> None:
    memory.note("old", Stuck(5.0), 5.0)
    memory.note("living", Stuck(5.0, (os.getpid(),)), 5.0)
    for path in memory._directories[0].iterdir():
        os.utime(path, (5.0, 5.0))
    memory.note("new", Stuck(1e6), 1e6)
    left = {json.loads(path.read_text())["place"] for path in memory._directories[0].iterdir()}
    assert left == {"living", "new"}


def test_the_memory_of_a_node_lies_where_cron_and_people_both_see_it(tmp_path: Path) -> None:
    with_session = StuckMemory.of(make_system(tmp_path, {"XDG_RUNTIME_DIR": str(tmp_path)}))
    without = StuckMemory.of(make_system(tmp_path))
    assert with_session._directories[0] == without._directories[0] == Path(f"/tmp/resil-{os.getuid()}/stuck")
    assert tmp_path / "resil" / "stuck" in with_session._directories
