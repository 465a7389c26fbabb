"""The worker: its answers, its errors in words, its end; and how little it costs."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import pytest

from resilience.base.processes import is_alive
from resilience.checkpoints import child, fence, worker
from resilience.checkpoints.child import Worker
from resilience.checkpoints.directory import StoreDirectory
from resilience.errors import CheckpointError
from tests.checkpoints.ranks import Launch, fails
from tests.checkpoints.saves import RUN, listed, new_store, write_part
from tests.lab.disks import fill, needs_fuse, small_disk
from tests.lab.hung import hung_directory
from tests.lab.waiting import until

MOST_BYTES = 32 * 2**20


@contextmanager
def working(job: dict[str, Any]) -> Iterator[Worker]:
    running = Worker.start(job)
    try:
        yield running
    finally:
        running.kill()


def answer(job: dict[str, Any]) -> dict[str, Any]:
    """Do a job in a child, and wait for the answer."""
    with working(job) as running:
        return answer_of(running)


def answer_of(running: Worker) -> dict[str, Any]:
    found = until(running.poll, "an answer")
    assert found is not None
    return found


@pytest.fixture
def store(tmp_path: Path) -> StoreDirectory:
    return new_store(tmp_path / "ckpt")


def _job(store: StoreDirectory, what: str = "commit", step: int = 40, **more: Any) -> dict[str, Any]:
    return {"do": what, "store": str(store.path), "part": write_part(store, step), "fields": {"run": RUN}} | more


def test_a_child_commits_and_answers_again_when_asked_again(store: StoreDirectory) -> None:
    with working(_job(store)) as running:
        first = answer_of(running)
        assert (first["name"], running.poll()) == ("step-00000040", first)
    assert listed(store) == {40: 1}
    assert store.find(40).manifest().algorithm == "xxh3_128", "the child finds the package xxhash"


def test_the_nodes_of_a_job_share_the_work(store: StoreDirectory) -> None:
    job = _job(store, "share", nodes=2)
    assert sum(answer(job | {"node": node})["files"] for node in range(2)) == 3
    assert answer(job | {"do": "commit"})["outcome"] == "committed"
    assert listed(store) == {40: 1}


def test_an_error_comes_in_the_words_of_the_child(store: StoreDirectory) -> None:
    job = _job(store)
    fence.begin(store, 2)
    with working(job) as running:
        for _ in range(2):  # it is told again, like an answer
            with pytest.raises(CheckpointError, match="attempt 2 has begun, so attempt 1 no longer commits") as caught:
                until(running.poll)
        assert "resil status" in caught.value.hint and not caught.value.transient


def test_a_full_disk_is_said_with_the_path_and_what_to_do(tmp_path: Path) -> None:
    with small_disk(tmp_path / "disk", "512k") as disk:
        store = new_store(disk / "ckpt")
        job = _job(store)
        fill(disk)
        with pytest.raises(
            CheckpointError, match=r"No space left on device: /.*free space: resil ckpt prune"
        ) as caught:
            answer(job)
        assert caught.value.transient and store.checkpoints() == []


def test_a_path_that_is_no_directory_of_checkpoints_is_refused(tmp_path: Path) -> None:
    for path, words in ((tmp_path / "missing", "does not exist"), (tmp_path, "is not a directory of checkpoints")):
        with pytest.raises(CheckpointError, match=words):
            answer({"do": "commit", "store": str(path), "part": ".part-00000040.a1.1"})
        assert list(tmp_path.iterdir()) == [], "nothing is made there"


def test_a_bug_of_a_job_is_an_error_and_no_traceback(store: StoreDirectory) -> None:
    with pytest.raises(CheckpointError, match=r"^KeyError: 'part' \(report this as a bug of resil\)$"):
        answer({"do": "share", "store": str(store.path)})


def test_a_killed_child_is_an_error_that_names_the_signal(store: StoreDirectory) -> None:
    with working(_job(store)) as running:
        os.kill(running.pid, signal.SIGKILL)
        with pytest.raises(CheckpointError, match=r"commit of .part-00000040.a1.1 was killed by signal 9.*memory"):
            until(running.poll)


def test_a_child_that_cannot_start_python_is_an_error(store: StoreDirectory, monkeypatch: pytest.MonkeyPatch) -> None:
    for executable in ("", "/nowhere/python"):
        monkeypatch.setattr(sys, "executable", executable)
        with pytest.raises(CheckpointError, match="cannot start a process for the commit"):
            Worker.start(_job(store))
    monkeypatch.undo()
    monkeypatch.setattr(child, "PROGRAM", "import nonsense_of_a_test")
    with pytest.raises(CheckpointError, match="ended with code 1: ModuleNotFoundError: No module named 'nonsense"):
        answer(_job(store))


def test_the_signals_that_tell_a_training_to_save_do_not_stop_the_save(store: StoreDirectory) -> None:
    with working(_job(store)) as running:
        for number in (signal.SIGTERM, signal.SIGINT, signal.SIGUSR1, signal.SIGHUP):
            os.kill(running.pid, number)
        assert answer_of(running)["outcome"] == "committed"


def test_a_child_that_is_stopped_makes_nobody_wait_and_can_be_killed(store: StoreDirectory) -> None:
    with working(_job(store)) as running:
        os.kill(running.pid, signal.SIGSTOP)
        began = time.monotonic()
        assert running.poll() is None
        running.kill()
        assert time.monotonic() - began < 1
        with pytest.raises(CheckpointError, match="was broken off"):
            running.poll()
        until(lambda: not is_alive(running.pid), "its end")
    assert store.checkpoints() == [] and store.parts()


@needs_fuse
def test_a_commit_on_a_file_system_that_hangs_holds_up_the_child_and_not_the_training(tmp_path: Path) -> None:
    launch = Launch(tmp_path / "ckpt")
    launch.save(100)
    (part,) = launch.parts(200)
    part.written(None)
    with hung_directory(tmp_path / "ckpt", over=True):
        for _ in range(20):  # a look that waited for the disk would never end
            assert not part.look()
            time.sleep(0.02)
        part.cut_off("not durable after 60 s")
        assert fails(part) == ["not durable after 60 s"]
    launch.end(failed=True)
    after = Launch(tmp_path / "ckpt", attempt=2)
    found = after.stores[0].latest()
    assert found is not None and found.step == 100 and after.stores[0]._directory.parts() == []


def test_children_that_were_killed_are_reaped_at_the_next_start(store: StoreDirectory) -> None:
    running = Worker.start(_job(store))
    running.kill()
    until(lambda: not is_alive(running.pid), "its end")
    answer(_job(store))
    assert not Path(f"/proc/{running.pid}").exists()


def test_a_training_that_lets_the_kernel_reap_its_children_gets_the_answer(store: StoreDirectory) -> None:
    before = signal.signal(signal.SIGCHLD, signal.SIG_IGN)
    try:
        assert answer(_job(store))["outcome"] == "committed"
    finally:
        signal.signal(signal.SIGCHLD, before)


_TRAINING = """
import json, sys, time
from resilience.checkpoints import child
child.PROGRAM = child.PROGRAM.replace("from resilience.checkpoints import worker", (
    "import time; from resilience.checkpoints import worker\\n"
    "do = worker.do; worker.do = lambda job: [time.sleep(1.0), do(job)][1]"))
print(child.Worker.start(json.loads(sys.argv[1])).pid, flush=True)
time.sleep(60)
"""


@pytest.mark.parametrize("with_parent", [False, True])
def test_a_commit_outlives_a_killed_training_and_a_look_with_its_parent_does_not(
    store: StoreDirectory, with_parent: bool
) -> None:
    job = _job(store, with_parent=with_parent)
    training = subprocess.Popen([sys.executable, "-c", _TRAINING, json.dumps(job)], stdout=subprocess.PIPE)
    assert training.stdout is not None
    pid = 0
    try:
        pid = int(training.stdout.readline())
        until(lambda: os.getpriority(os.PRIO_PROCESS, pid) == worker.NICENESS, "work")
        training.kill()
        until(lambda: not is_alive(pid), "the end of the child")
    finally:
        training.kill()
        training.wait()
        training.stdout.close()
        if pid:
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
    assert listed(store) == ({} if with_parent else {40: 1})


def test_a_child_takes_little_memory_and_a_low_priority_and_imports_no_framework(store: StoreDirectory) -> None:
    job = _job(store)
    part = store.path / job["part"]
    (part / "large.bin").write_bytes(bytes(64 * 2**20))
    for number in range(200):
        (part / f"{number}.distcp").touch()
    script = (
        "import re, sys\nfrom resilience.checkpoints import worker\nsys.modules['torch'] = None  # refuses its import\n"
        "worker.main()\n"
        "peak = re.search(r'VmHWM:\\s*(\\d+) kB', open('/proc/self/status').read())[1]\n"
        "__import__('os').write(2, f'{__import__(\"os\").nice(0)} {peak}'.encode())"
    )
    done = subprocess.run(
        [sys.executable, "-c", script], input=json.dumps(job), capture_output=True, text=True, timeout=60, check=True
    )
    nice, most_kib = map(int, done.stderr.split())
    lowered = min(os.nice(0) + worker.NICENESS, 19)
    assert (nice, json.loads(done.stdout)["answer"]["outcome"]) == (lowered, "committed")
    assert most_kib * 1024 <= MOST_BYTES, f"{most_kib} KiB"
