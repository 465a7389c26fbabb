"""A decided exit is forced, with all stacks; a normal exit is not delayed. All with real processes."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from resilience.guard.decision import Decision
from resilience.guard.exit import ForcedExit, is_job
from resilience.guard.rank_info import RankInfo
from resilience.guard.recorder import Recorder
from resilience.guard.settings import GuardSettings
from tests.guard.guards import make_run
from tests.guard.ranks import REPOSITORY
from tests.lab.disks import needs_fuse
from tests.lab.hung import hung_directory
from tests.lab.waiting import until

_HEAD = """
import atexit, ctypes, faulthandler, os, signal, sys, threading, time
from resilience.guard import exit as guard_exit, runtime
from resilience.guard import TrainingGuard
guard_exit.IN_C_AFTER_S, guard_exit.BY_KERNEL_AFTER_S, guard_exit.WRITE_S = {in_c}, {by_kernel}, 2.0
def save():
    {save}
def train():
    with TrainingGuard.from_env(exit_timeout_s={bound}, poll_s=0.02, host_memory=False, gpu_memory="off",
                                walltime=False, beat_s=0.1{settings}) as guard:
        while True:
            decision = guard.step()
            if decision.save:
                with guard.saving() as saving:
                    save()
                    saving.until({in_flight})
            if decision.stop:
                return guard.exit_code
            time.sleep(0.001)
code = train()
{after}
sys.exit(code)
"""


def end_of(
    run: Path, *, environ: Mapping[str, str] | None = None, settings: str = "", **program: Any
) -> tuple[int, str, float]:
    """Train with the kill switch set; return the exit code, stderr and how long it took."""
    (run / "switches" / "kill").touch()
    given = {"save": "pass", "in_flight": "None", "after": "", "bound": 0.5, "in_c": 30.0, "by_kernel": 60.0, **program}
    return run_program(run, _HEAD.format(settings=settings and f", {settings}", **given), environ)


def run_program(run: Path, program: str, environ: Mapping[str, str] | None = None) -> tuple[int, str, float]:
    """Run a training in a job; return the exit code, stderr and how long it took."""
    job = {"RESIL_RUN_DIR": str(run), "RESIL_ATTEMPT": "3", "RESIL_JOB_ID": "12", "RESIL_RUN": "demo"}
    plain = {name: value for name, value in os.environ.items() if name != "PYTEST_CURRENT_TEST"}
    began = time.monotonic()
    done = subprocess.run(
        [sys.executable, "-c", program],
        env=plain | job | dict(environ or {}), cwd=REPOSITORY, stderr=subprocess.PIPE, text=True, timeout=60,
    )  # fmt: skip
    return done.returncode, done.stderr, time.monotonic() - began


def stacks(run: Path) -> str:
    return (run / "journal" / "12.0.stacks").read_text()


def events(run: Path) -> list[str]:
    return [json.loads(line)["event"] for line in (run / "journal" / "12.0.jsonl").read_text().splitlines()]


def test_a_hung_save_is_ended_with_all_stacks_and_is_no_clean_stop(run: Path) -> None:
    code, said, took_s = end_of(run, save="time.sleep(100)")
    assert code == 1 and took_s < 20
    assert "has not happened in 0.5 s, and the last save is not known to be durable" in said
    for told in (said, stacks(run)):
        assert "in save\n" in told and "in train\n" in told and "Thread 0x" in told
    assert "pid" in stacks(run).splitlines()[0]
    assert events(run)[-2:] == ["exit", "stacks"] and "save_begin" in events(run)


def test_rank_0_names_the_rank_with_a_hung_save_before_its_own_forced_exit(run: Path) -> None:
    """A forced exit while waiting for other ranks would exit with 75, as if the saves of all were durable."""
    place = {"WORLD_SIZE": "2", "LOCAL_WORLD_SIZE": "2", "TMPDIR": str(run), "RESIL_GUARD__SKEW_STEPS": "0"}
    ranks: list[dict[str, Any]] = [{"bound": 3.0}, {"bound": 5.0, "save": "time.sleep(100)"}]
    with ThreadPoolExecutor() as threads:
        ends = [
            threads.submit(end_of, run, environ={**place, "RANK": str(rank), "LOCAL_RANK": str(rank)}, **more)
            for rank, more in enumerate(ranks)
        ]
        (_, said, _), (code, _, _) = (end.result() for end in ends)
    assert "rank 1 did not report its end: this job did not stop cleanly" in said
    told = [json.loads(line) for line in (run / "journal" / "12.0.jsonl").read_text().splitlines()]
    end = next(event for event in told if event["event"] in ("end", "exit"))
    assert (end["event"], end["exit_code"], end.get("stopped"), end.get("well")) == ("end", 1, False, 1), said
    assert code == 1


def test_a_hung_asynchronous_save_is_ended_with_all_stacks_and_is_no_clean_stop(run: Path) -> None:
    code, said, took_s = end_of(run, save="pass", in_flight="lambda: False", after="time.sleep(100)")
    assert code == 1 and took_s < 20
    assert "the save of step" in said and "cut off" in said


def test_a_training_at_its_own_end_is_not_held_up_by_a_save_that_hangs(run: Path) -> None:
    """Python joins the threads of an executor at exit, and would wait for this one forever."""
    program = (
        "import time\n"
        "from concurrent.futures import ThreadPoolExecutor\n"
        "from resilience.guard import TrainingGuard\n"
        "with TrainingGuard.from_env(exit_timeout_s=1, host_memory=False, gpu_memory='off', walltime=False) as guard:\n"
        "    guard.step()\n"
        "    with guard.saving() as saving:\n"
        "        saving.until(ThreadPoolExecutor(1).submit(time.sleep, 1000))\n"
        "    guard.finished()\n"
    )
    code, said, took_s = run_program(run, program)
    assert code == 1 and took_s < 20
    assert "the save of step 1 is not durable" in said and "cut off" in said
    assert "the exit after a save that was cut off has not happened in 1 s" in said and "_python_exit" in stacks(run)
    assert events(run)[-3:] == ["end", "exit", "stacks"] and not (run / "finished").exists()


def test_the_short_form_is_not_held_up_by_a_save_that_hangs(run: Path) -> None:
    """Without a `with` block, exit handlers run after Python has joined its threads."""
    program = (
        "import sys, time\n"
        "from concurrent.futures import ThreadPoolExecutor\n"
        "from resilience.guard import Request, TrainingGuard\n"
        "class Once:\n"
        "    def poll(self): return Request('once', 'please', stop=False)\n"
        "    def done(self, outcome): self.poll = lambda: None\n"
        "guard = TrainingGuard.from_env(triggers=[Once()], exit_timeout_s=1, poll_s=0.02, host_memory=False, "
        "gpu_memory='off', walltime=False)\n"
        "for _ in guard.steps(range(100), save=lambda: ThreadPoolExecutor(1).submit(time.sleep, 1000)):\n"
        "    time.sleep(0.02)\n"
        "guard.finished()\n"
        "sys.exit(guard.exit_code)\n"
    )
    code, said, took_s = run_program(run, program)
    assert code == 1 and took_s < 25, said
    assert "the exit after a save that was cut off has not happened in 1 s" in said
    assert "end" in events(run) and not (run / "finished").exists()


def test_a_save_that_holds_the_gil_is_ended_in_c_with_the_stacks(run: Path) -> None:
    code, said, took_s = end_of(run, save="ctypes.PyDLL(None).sleep(100)", in_c=0.5)
    assert code == 1 and took_s < 20
    assert "Timeout" in said and "in save\n" in said


def test_an_exit_handler_that_hangs_is_ended(run: Path) -> None:
    code, said, took_s = end_of(run, after="atexit.register(lambda: time.sleep(100))")
    assert code == 75 and took_s < 20
    assert "the exit after the stop" in said
    assert "time.sleep" not in stacks(run) and "lambda" in stacks(run)


LIBRARY = (
    "class Library:\n    def __del__(self, sleep=time.sleep): sleep(100)\n"
    "sys.modules['library'] = library = type(sys)('library'); library.it = Library(); del library"
)
PAUSE = "libc = ctypes.CDLL(None); libc.__cxa_atexit(libc.pause, None, None)"
HANGS: dict[str, tuple[dict[str, Any], int, list[str]]] = {
    # by the hang: (the program, the exit code, the output)
    "a thread that never ends": (
        {"after": "threading.Thread(target=time.sleep, args=(100,)).start()", "bound": 2.0}, 75, ["_shutdown"],
    ),
    "an interpreter that is taken down, in C": ({"after": LIBRARY, "in_c": 0.5}, 1, ["Timeout"]),
    "a library in the exit handlers of C, by the kernel": ({"after": PAUSE, "in_c": 0.5, "by_kernel": 1.5}, -9, []),
}  # fmt: skip


@pytest.mark.parametrize("hang", HANGS)
def test_any_hang_after_the_stop_is_ended(run: Path, hang: str) -> None:
    program, exit_code, shown = HANGS[hang]
    code, said, took_s = end_of(run, **program)
    assert code == exit_code and took_s < 20
    assert [text for text in shown if text not in said] == []


def test_a_normal_exit_is_neither_disturbed_nor_delayed(run: Path) -> None:
    code, said, took_s = end_of(run, bound=100.0)
    assert code == 75
    assert "force" not in said and "Thread" not in said
    assert not (run / "journal" / "12.0.stacks").exists()
    assert took_s < 20
    assert events(run)[-1] == "end"


def test_exit_handlers_that_finish_in_time_are_not_cut_off(run: Path) -> None:
    code, said, _ = end_of(run, after="atexit.register(lambda: (time.sleep(1.0), os.write(2, b'done')))", bound=20.0)
    assert code == 75 and said.endswith("done")


@pytest.mark.parametrize(
    ("settings", "environ"),
    [("force_exit='off'", {}), ("", {"RESIL_ATTEMPT": "0"}), ("", {"PYTEST_CURRENT_TEST": "test_x.py::test"})],
    ids=["off", "no job of a template", "a test"],
)
def test_a_forced_exit_can_be_disabled(run: Path, settings: str, environ: dict[str, str]) -> None:
    code, said, took_s = end_of(
        run, after="time.sleep(2.0)", settings=settings, in_c=0.2, by_kernel=0.4, environ=environ
    )
    assert code == 75 and took_s > 2.0
    assert "Thread" not in said


def test_on_forces_an_exit_outside_of_jobs_too(run: Path) -> None:
    code, _, _ = end_of(run, save="time.sleep(100)", settings="force_exit='on'", environ={"RESIL_ATTEMPT": "0"})
    assert code == 1


def test_a_timeout_of_zero_forces_nothing(run: Path) -> None:
    code, _, took_s = end_of(run, after="time.sleep(2.0)", bound=0.0, in_c=0.2, by_kernel=0.4)
    assert code == 75 and took_s > 2.0


def test_the_trainings_own_stack_dumps_are_left_alone_until_a_stop_is_decided(run: Path) -> None:
    save = "time.sleep(0.5)"  # decided: the guard's timer replaces the training's
    code, said, _ = end_of(run, save=save, bound=20.0, after="faulthandler.dump_traceback_later(0.2); time.sleep(1.0)")
    assert code == 75
    assert "Timeout (0:00:00.200000)" in said  # a timer set later replaces the guard's


def test_a_closed_stderr_loses_only_the_stacks_on_it(run: Path) -> None:
    code, _, took_s = end_of(run, save="os.close(2); sys.stderr = None; time.sleep(100)")
    assert code == 1 and took_s < 20
    assert "in save" in stacks(run)


def test_a_full_stderr_pipe_does_not_delay_the_exit(run: Path) -> None:
    save = (
        "r, w = os.pipe(); os.set_blocking(w, False)\n"
        "    try:\n"
        "        while True: os.write(w, bytes(4096))\n"
        "    except BlockingIOError: os.set_blocking(w, True); os.dup2(w, 2)\n"
        "    time.sleep(100)"
    )
    code, _, took_s = end_of(run, save=save)
    assert code == 1 and took_s < 20


@needs_fuse
def test_a_dead_file_system_does_not_hold_the_exit(tmp_path: Path) -> None:
    with hung_directory(tmp_path / "hung") as hung:
        run = make_run(tmp_path / "demo")
        save = f"guard_exit.ForcedExit.stacks_file = lambda self: {str(hung / 'stacks')!r}; time.sleep(100)"
        code, said, took_s = end_of(run, save=save)
        assert code == 1 and took_s < 20
        assert "in save" in said


def test_a_forked_worker_inherits_no_bound(run: Path, tmp_path: Path) -> None:
    alive = tmp_path / "alive"
    save = f"os.fork() or (time.sleep(2.5), open({str(alive)!r}, 'w').close(), os._exit(0))"
    code, _, _ = end_of(run, save=save, bound=0.5, in_c=0.5, by_kernel=1.0)
    assert code == 75
    until(alive.exists)


def test_the_stacks_are_shown_before_the_jobs_end_without_ending_anything(run: Path) -> None:
    end = str(int(time.time()) + 8)
    code, said, took_s = end_of(run, save="time.sleep(7)", bound=100.0, environ={"RESIL_END_TIME": end})
    assert code == 75 and took_s > 7
    assert "the job ends in 5 s" in said and "in save" in said
    assert "by force" not in said


def test_a_training_that_does_not_reach_the_stop_shows_its_stacks_and_is_not_ended(run: Path) -> None:
    program = (
        "import time\nfrom resilience.guard import TrainingGuard\n"
        "def a_long_evaluation(): time.sleep(4)\n"
        "with TrainingGuard.from_env(exit_timeout_s=0.3, poll_s=0.05, host_memory=False, gpu_memory='off', "
        "walltime=False) as guard:\n"
        "    guard.step()\n"
        "    a_long_evaluation()\n"
        "    decision = guard.step()\n"
        "    assert decision.save and decision.stop\n"
        "raise SystemExit(guard.exit_code)"
    )
    plain = {name: value for name, value in os.environ.items() if name != "PYTEST_CURRENT_TEST"}
    job = {"RESIL_RUN_DIR": str(run), "RESIL_ATTEMPT": "3", "RESIL_JOB_ID": "12"}
    with subprocess.Popen(
        [sys.executable, "-c", program], env=plain | job, cwd=REPOSITORY, stderr=subprocess.PIPE, text=True
    ) as training:
        until(lambda: (run / "journal" / "12.0.jsonl").exists())
        (run / "switches" / "kill").touch()
        _, said = training.communicate(timeout=60)
    assert training.returncode == 75
    assert "the training has not reached the stop decided" in said and said.count("in a_long_evaluation") == 1
    assert "in a_long_evaluation" in stacks(run)
    assert "stacks" in events(run)


# ---- pure ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("attempt", "environ", "expected"),
    [
        (3, {"RESIL_ATTEMPT": "3"}, True),
        (0, {}, False),
        (0, {"RESIL_ATTEMPT": "0"}, False),
        (3, {}, False),
        (3, {"RESIL_ATTEMPT": "4"}, False),
        (3, {"RESIL_ATTEMPT": "three"}, False),
        (3, {"RESIL_ATTEMPT": "3", "PYTEST_CURRENT_TEST": "x"}, False),
    ],
)
def test_only_the_training_of_the_job_is_a_job_process(attempt: int, environ: dict[str, str], expected: bool) -> None:
    assert is_job(RankInfo(attempt=attempt), environ) is expected


def test_a_notebook_is_none_but_a_training_that_imports_ipython_is(monkeypatch: pytest.MonkeyPatch) -> None:
    shells: list[object] = [None, object()]
    ipython = ModuleType("IPython")
    ipython.get_ipython = lambda: shells[0]  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "IPython", ipython)
    assert is_job(RankInfo(attempt=3), {"RESIL_ATTEMPT": "3"})
    shells.pop(0)
    assert not is_job(RankInfo(attempt=3), {"RESIL_ATTEMPT": "3"})


def test_a_guard_in_a_test_arms_nothing() -> None:
    place = RankInfo(attempt=3)
    armed = ForcedExit(place, GuardSettings(), Recorder(place))
    armed.arm(Decision(stop=True), 100.0)
    armed.arm_after_close(Decision(stop=True), 75)
    assert armed._armed_by == 0


def test_stacks_of_a_pending_stop_are_shown_once_and_only_while_pending(monkeypatch: pytest.MonkeyPatch) -> None:
    shown: list[str] = []
    place = RankInfo()
    armed = ForcedExit(place, GuardSettings(force_exit="on", exit_timeout_s=10.0), Recorder(place))
    monkeypatch.setattr(armed, "_show", shown.append)
    stop = Decision(stop=True, reasons=["bob says so"])
    for decision, now in [(stop, 0.0), (None, 9.0), (stop, 10.0), (stop, 19.0), (Decision(save=True), 19.5)]:
        armed.expect(decision, now)
    assert shown == []
    for now in (20.0, 31.0, 42.0):
        armed.expect(stop, now)
    assert len(shown) == 1 and "bob says so" in shown[0] and "11 s ago" in shown[0]


@pytest.mark.parametrize(("slowest_s", "bound_s"), [(None, 900.0), (10.0, 900.0), (400.0, 1200.0)])
def test_the_bound_is_three_times_the_slowest_save_at_least(
    monkeypatch: pytest.MonkeyPatch, slowest_s: float | None, bound_s: float
) -> None:
    told: list[tuple[float, int, str]] = []
    place = RankInfo()
    armed = ForcedExit(place, GuardSettings(force_exit="on"), Recorder(place))
    monkeypatch.setattr(armed, "_set", lambda *given: told.append(given))
    armed.arm(Decision(stop=True, step=7, exit_code=1), slowest_s)
    armed.arm_after_close(None, 0)
    assert told == [(bound_s, 1, "the stop decided at step 7")]
    armed.arm_after_close(Decision(stop=True, step=7), 0)
    assert told[1] == (bound_s, 0, "the exit after the stop at step 7")
