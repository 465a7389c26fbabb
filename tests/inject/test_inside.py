"""Inside of faults: the guard that makes them, the embedded scheduler, the commands before SLURM's, and the clock."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from resilience.guard import injected as guard_side
from resilience.guard.injected import InjectedFaults
from resilience.guard.rank_info import RankInfo
from resilience.guard.recorder import Recorder
from resilience.inject.slurm_command import GARBAGE
from resilience.job import JobId, Liveness
from resilience.runs.injected import ShiftedClock, read_injected, set_injected, shifted, unset_injected
from resilience.schedulers._local.fault import FILE, read_fault
from resilience.schedulers.local import LocalScheduler
from resilience.system.ports import SystemClock
from resilience.system.process import ProcessRunner
from tests.lab.fakes import FakeClock
from tests.lab.waiting import until

# ---- the guard's side -----------------------------------------------------------------------------------------------


class Rank:
    """A rank of attempt 1 in this process, and the records of faults that it reads."""

    def __init__(self, path: Path) -> None:
        self.folder = path / "injections"
        self.folder.mkdir()
        self.said: list[str] = []
        place = RankInfo(rank=3, run_dir=str(path), attempt=1)
        self.faults = InjectedFaults(place, Recorder(place, self.said.append))

    def inject(
        self, fault: str, *, length_s: float | None = 60.0, attempt: int = 1, ranks: Any = (3,), **settings: Any
    ) -> str:
        name = f"{fault}-{os.urandom(2).hex()}"
        now = time.time()
        end = now + length_s if length_s else None
        record = {"id": name, "fault": fault, "begun": now, "until": end, "ended": None,
                  "attempt": attempt, "settings": settings, "state": {"guarded": list(ranks)}}  # fmt: skip
        self.write(name, record)
        return name

    def write(self, name: str, record: dict[str, Any]) -> None:
        (self.folder / "part").write_text(json.dumps(record))
        (self.folder / "part").rename(self.folder / f"{name}.json")

    def end(self, name: str) -> None:
        self.write(name, json.loads((self.folder / f"{name}.json").read_text()) | {"ended": time.time()})

    def answer(self, name: str) -> dict[str, Any]:
        path = self.folder / f"{name}.3"
        until(path.exists, "the guard's answer")
        found: dict[str, Any] = json.loads(path.read_text())
        return found


@pytest.fixture
def rank(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Rank]:
    monkeypatch.setattr(guard_side, "POLL_S", 0.01)
    before = signal.getsignal(guard_side.SIGNAL)
    made = Rank(tmp_path)
    made.faults.start()
    yield made
    made.faults.stop()
    made.faults._thread.join(10)
    signal.signal(guard_side.SIGNAL, before)


def in_background(work: Callable[[], object]) -> threading.Thread:
    thread = threading.Thread(target=work)
    thread.start()
    return thread


def test_a_hang_keeps_the_main_thread_and_lets_it_go_when_the_record_ends(rank: Rank) -> None:
    ended = list[float]()

    def undo() -> None:
        rank.answer(name)
        time.sleep(0.2)
        ended.append(time.monotonic())
        rank.end(name)

    name = rank.inject("hang")
    thread = in_background(undo)
    until(lambda: bool(ended), "the main thread to go on")  # it hangs inside, and cannot look before the end
    seen = time.monotonic()
    thread.join()
    assert seen >= ended[0]
    assert any("injected on purpose into rank 3: hang" in line for line in rank.said)


@pytest.mark.parametrize(("fault", "settings", "error"), [
    ("exit", {"code": 3}, SystemExit), ("oom", {"how": "error"}, MemoryError),
])  # fmt: skip
def test_what_ends_a_training_is_raised_in_the_main_thread_once(
    rank: Rank, fault: str, settings: dict[str, Any], error: type[BaseException]
) -> None:
    with pytest.raises(error):
        name = rank.inject(fault, length_s=None, **settings)
        until(lambda: False, "the fault")
    assert rank.answer(name)["refused"] == ""
    time.sleep(0.05)  # not again


def test_a_leak_grows_to_its_limit_and_is_freed(rank: Rank) -> None:
    name = rank.inject("leak", rate_bytes=2**30, most_bytes=2**20)
    until(lambda: sum(map(len, rank.faults._memory.get(f"{name}.json", []))) == 2**20, "the leak")
    rank.end(name)
    until(lambda: f"{name}.json" not in rank.faults._memory, "the memory to be freed")


def test_memory_is_never_filled_without_a_limit_of_the_job(rank: Rank, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(guard_side, "memory_limit", lambda: None)
    assert "no memory limit" in rank.answer(rank.inject("oom", length_s=None, how="limit"))["refused"]
    assert rank.faults._memory == {}


def test_a_slow_rank_waits_in_between(rank: Rank) -> None:
    name = rank.inject("slow", factor=3.0)
    rank.answer(name)

    def pause() -> bool:
        times = [time.monotonic()]  # of a whole second: `until` sleeps too, and would hide the pauses
        while times[-1] - times[0] < 1:
            time.sleep(0.001)
            times.append(time.monotonic())
        return any(after - before > 0.15 for before, after in pairwise(times))

    until(pause, "a pause of a fifth of a second")
    rank.end(name)


def test_records_of_other_ranks_attempts_and_users_are_left_alone(rank: Rank) -> None:
    names = [rank.inject("exit", length_s=None, ranks=(1, 2)), rank.inject("exit", length_s=None, attempt=2)]
    names.append(rank.inject("stop"))
    (rank.folder / "damaged.json").write_text("{")
    last = rank.inject("leak", most_bytes=1)
    rank.answer(last)
    assert not any((rank.folder / f"{name}.3").exists() for name in names)


# ---- the scheduler's and the clock's side ---------------------------------------------------------------------------


def scheduler_with(tmp_path: Path, **fault: Any) -> LocalScheduler:
    (tmp_path / "spool" / "jobs").mkdir(parents=True)
    (tmp_path / "spool" / FILE).write_text(json.dumps({"id": "scheduler-1", **fault}))
    environ = {**os.environ, "RESIL_LOCAL_SPOOL": str(tmp_path / "spool")}
    return LocalScheduler(clock=SystemClock(), runner=ProcessRunner(), environ=environ, deadline_s=0.05)


@pytest.mark.parametrize(("mode", "said"), [
    ("down", "Unable to contact"), ("garbage", "unexpected line"), ("hang", "did not answer in 0.05 s"),
])  # fmt: skip
def test_a_faulty_scheduler_is_unknown_and_never_dead(tmp_path: Path, mode: str, said: str) -> None:
    presence = scheduler_with(tmp_path, mode=mode, until=time.time() + 60).presence(JobId(7))
    assert presence.liveness is Liveness.UNKNOWN and said in presence.reason


def test_a_fault_of_the_scheduler_is_over_after_its_time_even_if_nobody_undoes_it(tmp_path: Path) -> None:
    scheduler_with(tmp_path, mode="down", until=time.time() - 1)
    assert read_fault(tmp_path / "spool") is None
    (tmp_path / "spool" / FILE).write_text("{")
    assert read_fault(tmp_path / "spool") is None


def test_the_clock_is_wrong_until_its_time_or_until_it_is_set_right(tmp_path: Path) -> None:
    clock = FakeClock(time.time())
    set_injected(tmp_path, "clock", {"id": "clock-1", "shift_s": -7200, "until": clock.time + 60})
    wrong = shifted(clock, tmp_path)
    assert isinstance(wrong, ShiftedClock) and wrong.now() == clock.time - 7200
    clock.time += 61
    assert wrong.now() == clock.time
    unset_injected(tmp_path, "clock", "another")
    assert "clock" in read_injected(tmp_path)
    unset_injected(tmp_path, "clock", "clock-1")
    assert shifted(clock, tmp_path) is clock


@pytest.mark.parametrize(("mode", "code", "out", "err"), [
    ("down", 1, "", "slurm_load_jobs error: Unable to contact slurm controller (connect failure)\n"),
    ("garbage", 0, GARBAGE, ""), ("lag", 0, "1\n", ""), ("over", 0, "2\n", ""),
])  # fmt: skip
def test_commands_before_those_of_slurm_answer_as_a_faulty_controller(
    tmp_path: Path, mode: str, code: int, out: str, err: str
) -> None:
    real, fake = tmp_path / "real", tmp_path / "fake"
    for directory in (real, fake):
        directory.mkdir()
    count = tmp_path / "count"
    (real / "squeue").write_text(f'#!/bin/sh\necho x >>{count}\nwc -l <{count} | tr -d " "\n')
    (real / "squeue").chmod(0o755)
    order = tmp_path / "order.json"
    until_s = time.time() + (60 if mode != "over" else -1)
    order.write_text(json.dumps({"mode": mode, "until": until_s, "lag_s": 60, "bin": str(fake)}))
    program = Path(guard_side.__file__).parents[1] / "inject" / "slurm_command.py"
    for _ in range(2):  # the second answer of a controller that lags is the first again
        done = subprocess.run(
            [sys.executable, "-IS", str(program), str(order), "squeue", "-h"], capture_output=True, text=True,
            env={"PATH": f"{fake}:{real}:{os.defpath}"}, timeout=60,
        )  # fmt: skip
    assert (done.returncode, done.stdout, done.stderr) == (code, out, err)
