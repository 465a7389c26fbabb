"""Children with deadlines that are real ones: each fault here is done by a real process."""

from __future__ import annotations

import contextlib
import os
import resource
import signal
import subprocess
import sys
import threading
import time
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from resilience.base.processes import is_alive
from resilience.errors import ProbeError, SchedulerUnavailable, SettingsError, UsageError
from resilience.system import child
from resilience.system.child import Answer, run_in_child, start_detached
from tests.lab.descriptors import count_descriptors
from tests.lab.waiting import until

REPOSITORY = Path(__file__).parents[2]


def apart(work: Callable[[], Any], deadline_s: float = 20.0) -> Answer:
    return dict(run_in_child({"it": (work, deadline_s)}))["it"]


def children() -> list[str]:
    """The processes that are ours, zombies included."""
    return Path(f"/proc/self/task/{threading.get_native_id()}/children").read_text().split()


def children_at_rest() -> list[str]:
    """The same, once all that have answered have ended."""
    child.reap(child.GRACE_S)
    return children()


def until_children_are(wanted: list[str]) -> None:
    def are_they() -> bool:
        child.reap()
        return children() == wanted

    until(are_they)


def value_of(number: int) -> Callable[[], int]:
    return lambda: number


def test_plain_values_come_back_as_they_are() -> None:
    value = {"a": (1, 2.5, None, True, b"\xff", "ü\udcff"), "b": [{"c": ()}]}
    assert apart(lambda: value).value == value


def test_an_error_of_ours_keeps_its_words_and_what_kind_it_is() -> None:
    def raising(error: Exception) -> Callable[[], None]:
        def work() -> None:
            raise error

        return work

    for error, kind in (
        (ProbeError("no", hint="try", transient=True), ProbeError),
        (SettingsError("no", hint="try"), SettingsError),
        (UsageError("no", hint="try"), UsageError),
        (SchedulerUnavailable("no", hint="try"), SchedulerUnavailable),
    ):
        found = apart(raising(error)).error
        assert type(found) is kind and found is not None
        assert (found.message, found.hint, found.transient) == ("no", "try", error.transient)


@pytest.mark.parametrize("error", [ValueError("bad"), SystemExit(3), KeyboardInterrupt("x"), RecursionError("deep")])
def test_any_other_exception_is_no_answer_and_names_itself(error: BaseException) -> None:
    def work() -> None:
        raise error

    found = apart(work).error
    assert isinstance(found, ProbeError) and type(error).__name__ in found.message


def test_where_it_failed_is_told_to_who_asks_for_tracebacks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RESIL_TRACEBACK", "1")
    error = apart(lambda: 1 / 0).error
    assert error is not None and "ZeroDivisionError" in error.hint and "test_child.py" in error.hint


@pytest.mark.parametrize(
    ("work", "words"),
    [(object, "not plain data"), (lambda: "x" * (child.LIMIT_BYTES + 1), "bytes"),
     (lambda: os.kill(os.getpid(), signal.SIGKILL), "killed by signal 9"), (lambda: os._exit(7), "exit code 7")],
)  # fmt: skip
def test_a_look_without_an_answer_is_unknown(work: Callable[[], Any], words: str) -> None:
    answer = apart(work)
    assert answer.value is None and isinstance(answer.error, ProbeError) and words in answer.error.message


@pytest.mark.parametrize(
    "garbage", [b"", b"x", b"rsl1", b"rsl1" + bytes(12), os.urandom(1000), b"rsl1\xff" + b"\xff" * 99]
)
def test_garbage_from_a_child_is_no_answer(monkeypatch: pytest.MonkeyPatch, garbage: bytes) -> None:
    def write(descriptor: int, content: bytes) -> None:
        os.write(descriptor, garbage)

    monkeypatch.setattr(child, "write_all", write)
    answer = apart(lambda: 1)
    assert answer.value is None and isinstance(answer.error, ProbeError)


def test_an_answer_that_is_cut_short_is_no_answer(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(child, "write_all", lambda descriptor, content: os.write(descriptor, content[:-1]))
    assert isinstance(apart(lambda: [1, 2, 3]).error, ProbeError)


def test_a_child_that_sends_without_end_is_cut_off(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(child, "LIMIT_BYTES", 2**20)

    def flood(descriptor: int, content: bytes) -> None:
        os.write(descriptor, child.HEADER.pack(b"rsl1", 2**60, 0))
        while True:
            os.write(descriptor, bytes(2**16))

    monkeypatch.setattr(child, "write_all", flood)
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    answer = apart(lambda: 1, 5)
    assert isinstance(answer.error, ProbeError) and answer.took_s < 5
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 50_000


def test_the_deadline_is_kept_and_everything_that_the_look_started_ends_with_it(tmp_path: Path) -> None:
    def work() -> None:
        inner = subprocess.Popen(["sleep", "1000"])
        other = subprocess.Popen(["sh", "-c", "sleep 1000 & wait"], start_new_session=True)
        (tmp_path / "pids").write_text(f"{os.getpid()} {inner.pid} {other.pid}")
        time.sleep(1000)

    started = time.monotonic()
    answer = apart(work, 0.5)
    assert time.monotonic() - started < 0.5 + child.GRACE_S + 15
    assert answer.is_overdue and answer.error is not None and answer.error.transient and not answer.abandoned
    assert answer.error.message == "no answer within 0.5 s"
    pids = [int(word) for word in (tmp_path / "pids").read_text().split()]
    until(lambda: not any(map(is_alive, pids)))


def test_a_look_that_counts_in_circles_ends_at_its_deadline() -> None:
    def work() -> None:
        while True:
            pass

    assert apart(work, 0.3).is_overdue


def test_many_that_hang_cost_the_longest_deadline_and_not_the_sum() -> None:
    started = time.monotonic()
    works: dict[int, tuple[Callable[[], Any], float]] = {n: (lambda: time.sleep(1000), 1.0) for n in range(60)}
    works[99] = (lambda: "here", 1.0)
    answers = dict(run_in_child(works))
    assert time.monotonic() - started < 30.0  # the sum is 60 s; a busy machine needs a few
    assert answers[99].value == "here" and sum(answer.is_overdue for answer in answers.values()) == 60


def test_a_deadline_of_a_year_is_no_trouble() -> None:
    assert apart(lambda: time.sleep(0.05), 366 * 86400.0).error is None


def test_those_that_answer_come_first() -> None:
    works = {"slow": (lambda: time.sleep(0.5), 5.0), "quick": (lambda: None, 5.0)}
    assert [key for key, _ in run_in_child(works)] == ["quick", "slow"]


def test_two_hundred_targets_are_not_two_hundred_processes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(child, "MAX_STARTING", 8)
    monkeypatch.setattr(child, "STARTING_S", 60.0)  # on a busy machine none is taken for one that hangs
    monkeypatch.setattr(child, "GRACE_S", 60.0)  # and all that have answered have the time to end
    before = set(children())  # other tests of this process may have left some
    most = 0
    seen = set()
    for key, answer in run_in_child({n: (value_of(n), 20.0) for n in range(200)}):
        assert answer.value == key
        seen.add(key)
        most = max(most, len(set(children()) - before))
    assert len(seen) == 200 and most <= 8 + 8 + 2  # those that run, and those that have answered and are not reaped


def test_when_too_many_hang_the_rest_is_unknown_and_the_tick_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(child, "MAX_CHILDREN", 5)
    started = time.monotonic()
    answers = dict(run_in_child({n: (lambda: time.sleep(1000), 0.4) for n in range(100)}))
    assert len(answers) == 100 and all(answer.error is not None for answer in answers.values())
    assert time.monotonic() - started < 20


def test_where_no_process_can_be_started_the_look_is_unknown(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse() -> int:
        raise BlockingIOError(11, "Resource temporarily unavailable")

    monkeypatch.setattr(child, "fork", refuse)
    open_before = count_descriptors()
    answers = dict(run_in_child({n: (lambda: 1, 5.0) for n in range(3)}))
    assert len(answers) == 3
    for answer in answers.values():
        assert answer.error is not None and answer.error.transient and "ulimit -u" in answer.error.hint
    assert count_descriptors() <= open_before


def test_a_refused_process_is_tried_again_when_another_has_ended(monkeypatch: pytest.MonkeyPatch) -> None:
    running = [0]
    fork = child.fork

    def one_at_a_time() -> int:
        if len(children()) > running[0]:
            raise BlockingIOError(11, "Resource temporarily unavailable")
        return fork()

    running[0] = len(children_at_rest())
    monkeypatch.setattr(child, "fork", one_at_a_time)
    answers = dict(run_in_child({n: (value_of(n), 20.0) for n in range(4)}))
    assert answers[0].value == 0 and len(answers) == 4


def test_no_descriptor_and_no_child_is_left() -> None:
    before, ours = count_descriptors(), children_at_rest()
    for _ in range(20):
        list(run_in_child({1: (lambda: 1, 5.0), 2: (lambda: 1 / 0, 5.0), 3: (lambda: os._exit(1), 5.0)}))
    list(run_in_child({1: (lambda: time.sleep(1000), 0.1)}))
    assert count_descriptors() <= before
    until_children_are(ours)


def names_of_descriptors() -> list[str]:
    names = []
    for entry in Path("/proc/self/fd").iterdir():
        with contextlib.suppress(FileNotFoundError):  # the directory that is being listed
            names.append(str(entry.readlink()))
    return names


def test_a_child_inherits_no_descriptor_of_ours(tmp_path: Path) -> None:
    with open(tmp_path / "lock", "w") as lock:
        os.set_inheritable(lock.fileno(), True)
        held = apart(names_of_descriptors).value
    assert [name for name in held if not name.startswith(("pipe:", "/proc/"))] == ["/dev/null"] * 3
    assert sum(name.startswith("pipe:") for name in held) == 1


def test_what_a_child_prints_is_caught_and_what_we_had_not_yet_printed_is_printed_once() -> None:
    program = (
        "from resilience.system.child import run_in_child\n"
        "import os, sys\n"
        "print('ours', end='')\n"
        "def look():\n"
        "    print('its'); print('err', file=sys.stderr); sys.stdout.flush(); os.write(1, b'raw'); return 1\n"
        "((_, answer),) = run_in_child({1: (look, 20)})\n"
        "print(answer.said.split())\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", program], cwd=REPOSITORY, capture_output=True, text=True, timeout=60, check=True
    )
    assert (done.stdout, done.stderr) == ("ours['its', 'err']\n", "")


def test_whoever_stops_asking_ends_all_children() -> None:
    before = children_at_rest()
    works: dict[int, tuple[Callable[[], Any], float]] = {n: (lambda: time.sleep(1000), 1000.0) for n in range(4)}
    asking = run_in_child({**works, 9: (lambda: 1, 1000.0)})
    next(asking)
    assert len(children()) > len(before)
    started = time.monotonic()
    asking.close()
    assert time.monotonic() - started < 15
    until_children_are(before)


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_ends_the_parent_and_its_children_within_two_seconds(tmp_path: Path, number: int) -> None:
    program = (
        "from resilience.system.child import run_in_child\n"
        "import os, signal, sys, time\n"
        "def end(*_): sys.exit(9)\n"
        "signal.signal(signal.SIGTERM, end); signal.signal(signal.SIGINT, end)\n"
        "def look():\n"
        f"    open(r'{tmp_path}/' + str(os.getpid()), 'w').close(); time.sleep(1000)\n"
        "list(run_in_child({n: (look, 1000.0) for n in range(40)}))\n"
    )
    parent = subprocess.Popen([sys.executable, "-c", program], cwd=REPOSITORY)
    until(lambda: len(list(tmp_path.iterdir())) == 40, timeout_s=30)
    parent.send_signal(number)
    started = time.monotonic()
    assert parent.wait(10) == 9
    assert time.monotonic() - started < 9
    until(lambda: not any(is_alive(int(path.name)) for path in tmp_path.iterdir()))


def test_a_signal_that_comes_as_a_child_is_started_ends_that_child_too(tmp_path: Path) -> None:
    program = (
        "import os, signal, sys, time\n"
        "from resilience.system.child import run_in_child\n"
        "def end(*_): sys.exit(9)\n"
        "signal.signal(signal.SIGTERM, end)\n"
        "fork = os.fork\n"
        "def fork_and_be_told_to_end():\n"
        "    if pid := fork(): print(pid, flush=True); os.kill(os.getpid(), signal.SIGTERM)\n"
        "    return pid\n"
        "os.fork = fork_and_be_told_to_end\n"
        "list(run_in_child({1: (lambda: time.sleep(1000), 1000.0)}))\n"
    )
    done = subprocess.run([sys.executable, "-c", program], cwd=REPOSITORY, stdout=subprocess.PIPE, text=True)
    assert done.returncode == 9
    until(lambda: not is_alive(int(done.stdout)))


def test_a_signal_handler_of_ours_never_runs_in_a_child() -> None:
    def work() -> Any:
        os.kill(os.getpid(), signal.SIGTERM)

    before = signal.signal(signal.SIGTERM, lambda *_: pytest.fail("it ran in the child"))
    try:
        error = apart(work).error
    finally:
        signal.signal(signal.SIGTERM, before)
    assert error is not None and "killed by signal 15" in error.message


def test_forks_beside_threads_make_no_noise(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "version_info", (3, 12, 0, "final", 0))
    fork = os.fork

    def noisy() -> int:
        warnings.warn(
            "This process is multi-threaded, use of fork() may lead to deadlocks", DeprecationWarning, stacklevel=2
        )
        return fork()

    monkeypatch.setattr(os, "fork", noisy)
    assert apart(lambda: 1).value == 1  # every warning is an error here


def test_a_pipe_that_something_forked_holds_open_does_not_delay_the_answer() -> None:
    def work() -> int:
        if (holder := os.fork()) == 0:
            time.sleep(300)
            os._exit(0)
        return holder

    answer = apart(work, 200)
    os.kill(answer.value, signal.SIGKILL)
    assert answer.error is None and answer.took_s < 100


# ---- a child that nobody waits for


PATIENCE_S = 30.0


def test_nobody_waits_for_it_and_its_end_can_be_noticed(tmp_path: Path) -> None:
    go = tmp_path / "go"

    def work() -> None:
        while not go.exists():
            time.sleep(0.01)
        (tmp_path / "done").write_text("yes")

    child = start_detached(work, PATIENCE_S)
    assert not child.is_over()
    go.touch()
    assert child.wait(PATIENCE_S) and child.is_over()
    assert (tmp_path / "done").read_text() == "yes"


def test_one_that_hangs_is_killed_at_its_limit() -> None:
    child = start_detached(lambda: time.sleep(3600), 0.2)
    assert child.wait(PATIENCE_S)


def test_it_is_no_child_of_ours(tmp_path: Path) -> None:
    def work() -> None:
        (tmp_path / "parent").write_text(str(os.getppid()))

    assert start_detached(work, PATIENCE_S).wait(PATIENCE_S)
    assert int((tmp_path / "parent").read_text()) != os.getpid()


def test_it_has_nothing_of_ours_open_but_what_it_shall_keep(tmp_path: Path) -> None:
    reading, writing = os.pipe()
    kept, held = os.pipe()

    def work() -> None:
        (tmp_path / "open").write_text(" ".join(path.name for path in Path("/proc/self/fd").iterdir()))

    child = start_detached(work, PATIENCE_S, keep=kept)
    os.close(writing)
    assert os.read(reading, 1) == b"", "the other end is open nowhere else"
    assert child.wait(PATIENCE_S)
    opened = (tmp_path / "open").read_text().split()
    assert str(kept) in opened and str(held) not in opened
    for descriptor in (reading, kept, held):
        os.close(descriptor)


def test_whatever_it_raises_is_lost_and_harms_nobody() -> None:
    def work() -> None:
        raise SystemExit(3)

    assert start_detached(work, PATIENCE_S).wait(PATIENCE_S)
