"""The `with` block around a save: nested, failing, and in flight, durable long after the block was left."""

from __future__ import annotations

import concurrent.futures
import contextlib
import functools
import json
import multiprocessing
import os
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from resilience.guard import GuardError, Request, TrainingGuard
from resilience.guard.rank_info import RankInfo
from resilience.guard.saves import SaveNotDurable, handles_in, poll_of
from resilience.guard.settings import GuardSettings
from tests.guard.guards import Requester, make_guard, save, train
from tests.guard.ranks import REPOSITORY
from tests.lab.waiting import until

Future = concurrent.futures.Future
SAVE = Request("requester", "please", stop=False)


def events(run: Path, *names: str) -> list[dict[str, Any]]:
    """The lines of the journal, or those of these kinds."""
    path = run / "journal" / "12.0.jsonl"
    lines = path.read_text().splitlines(keepends=True) if path.exists() else []
    found = [json.loads(line) for line in lines if line.endswith("\n")]  # the last one may be incomplete
    return [event for event in found if not names or event["event"] in names]


def kinds(run: Path) -> list[str]:
    return [event["event"] for event in events(run) if event["event"].startswith(("save", "end", "decision"))]


@pytest.fixture
def future() -> Future[None]:
    return Future()


def soon(act: Callable[..., None], *arguments: object) -> None:
    """Run the action while the training waits."""
    threading.Timer(0.3, act, arguments).start()


# ---- blocks ----------------------------------------------------------------------------------------------------------


def test_a_save_inside_a_save_is_one_save(run: Path) -> None:
    requester = Requester(SAVE)
    with make_guard(run, triggers=[requester]) as guard:
        train(guard)
        with guard.saving(), guard.saving():
            assert requester.outcomes == []
        until(lambda: requester.outcomes == ["saved"])
    assert len(events(run, "save")) == 1


def test_phases_nest_and_return_and_a_save_without_a_request_is_measured_too(run: Path) -> None:
    with make_guard(run) as guard:
        guard.step()
        with guard.phase("eval"):
            save(guard)
            guard.phase("generate")
        assert guard._loop.phase == "train"
    assert len(events(run, "save")) == 1


def test_an_exception_in_a_save_passes_through(run: Path) -> None:
    with make_guard(run) as guard, pytest.raises(OSError, match="disk full"), guard.saving():
        raise OSError("disk full")
    assert events(run, "save_failed")[0]["error"] == "OSError('disk full')"


# ---- in flight -------------------------------------------------------------------------------------------------------


def test_a_save_in_flight_counts_when_durable_and_the_training_continues_meanwhile(
    run: Path, future: Future[None]
) -> None:
    (run / "switches" / "save").touch()
    with make_guard(run) as guard:
        train(guard)
        save(guard, future)
        for _ in range(100):
            guard.step()
            time.sleep(0.001)
        assert (run / "switches" / "save").exists(), "nothing is saved yet"
        until(lambda: kinds(run)[-1:] == ["save_staged"])
        assert guard._runtime is not None
        assert guard._runtime._timer.slowest_save_s is None
        time.sleep(0.3)
        future.set_result(None)
        until(lambda: not (run / "switches" / "save").exists())
        timer = guard._runtime._timer
        assert timer.slowest_stall_s is not None and timer.slowest_save_s is not None
        assert timer.slowest_save_s >= 0.3 and timer.slowest_save_s > timer.slowest_stall_s
    assert kinds(run) == ["decision", "save_begin", "save_staged", "save", "end"]
    (staged,), (saved,) = events(run, "save_staged"), events(run, "save")
    assert staged["seconds"] < saved["seconds"] and saved["seconds"] >= 0.3
    assert guard.exit_code == 0


def test_a_save_in_flight_that_fails_leaves_the_switch_and_is_reported(
    run: Path, said: list[str], future: Future[None]
) -> None:
    (run / "switches" / "save").touch()
    with make_guard(run, say=said.append) as guard:
        decision = train(guard)
        save(guard, future)
        future.set_exception(OSError(28, "No space left on device"))
        until(lambda: "save_failed" in kinds(run))
        assert (run / "switches" / "save").exists()
        assert "save" not in kinds(run)
        sentence = f"the save of step {decision.step} is not durable: OSError(28, 'No space left on device')"
        until(lambda: any(sentence in one for one in said))
    assert guard.exit_code == 1, "the last save is not there, whoever has swallowed the exception"
    assert events(run, "end")[0] == events(run, "end")[0] | {"exit_code": 1, "stopped": False, "why": sentence}


def test_a_later_durable_save_clears_a_failed_one(run: Path) -> None:
    with make_guard(run, say=lambda text: None) as guard:
        guard.step()
        save(guard, failed(ValueError("once")))
        until(lambda: "save_failed" in kinds(run))
        guard.step()
        save(guard, done())
    assert guard.exit_code == 0
    assert "why" not in events(run, "end")[0]


def test_a_stop_is_decided_while_a_save_is_in_flight(run: Path, future: Future[None]) -> None:
    requester = Requester(SAVE)
    with make_guard(run, triggers=[requester], say=lambda text: None) as guard:
        train(guard)
        save(guard, future)
        (run / "switches" / "kill").touch()
        decision = train(guard, until=lambda decision: decision.stop)
        assert decision.save and requester.outcomes == []
        soon(future.set_result, None)
        with guard.saving():  # waits for the one in flight
            assert future.done()
    assert requester.outcomes == ["saved"]
    assert [event["step"] for event in events(run, "save")] == sorted(event["step"] for event in events(run, "save"))
    assert guard.exit_code == 75


@pytest.mark.parametrize("overlap", ["wait", "skip"])
def test_a_second_save_waits_or_is_skipped_as_set(run: Path, overlap: str) -> None:
    requester, future = Requester(SAVE), Future[None]()
    with make_guard(run, triggers=[requester], say=lambda text: None, save_overlap=overlap) as guard:
        train(guard)
        save(guard, future)
        (run / "switches" / "save").touch()
        if overlap == "skip":
            for _ in range(200):
                assert not guard.step()
                time.sleep(0.001)
            assert len(events(run, "save_skipped")) == 1, "said once, however often it is asked for"
            assert (run / "switches" / "save").exists()
            future.set_result(None)
            until(lambda: requester.outcomes == ["saved"])
            train(guard)  # the request is followed now
        else:
            train(guard)
            soon(future.set_result, None)
        with guard.saving():
            assert future.done()
        until(lambda: not (run / "switches" / "save").exists())
    assert [event["event"] for event in events(run, "save", "save_failed")] == ["save", "save"]
    assert len(events(run, "switch")) == 1


def test_until_waits_for_all_handles(run: Path) -> None:
    first, second = Future[None](), Future[None]()
    with make_guard(run) as guard:
        guard.step()
        with guard.saving() as saving:
            saving.until(first, None)
            save(guard, second)
        first.set_result(None)
        time.sleep(0.2)
        assert "save" not in kinds(run)
        second.set_result(None)
        until(lambda: "save" in kinds(run))


def test_without_handles_a_save_is_durable_at_once(run: Path) -> None:
    with make_guard(run) as guard:
        guard.step()
        save(guard, None)
    assert kinds(run) == ["save_begin", "save", "end"]


def test_an_unsupported_handle_is_an_error_and_so_is_until_outside_of_its_block(run: Path) -> None:
    with make_guard(run) as guard:
        guard.step()
        with pytest.raises(GuardError, match="does not support int"):
            save(guard, 5)
        with guard.saving() as saving:
            pass
        with pytest.raises(GuardError, match="outside of its block"):
            saving.until(done())
    assert len(events(run, "save_failed")) == 1


def test_several_saves_may_be_in_flight_and_the_next_waits_for_any_of_them(run: Path) -> None:
    futures = [Future[None]() for _ in range(3)]
    with make_guard(run, saves_in_flight=2) as guard:
        for future in futures[:2]:
            guard.step()
            save(guard, future)
        assert [saving.step for saving in guard._loop.in_flight] == [1, 2]
        guard.step()
        soon(futures[1].set_result, None)
        save(guard, futures[2])
        assert [saving.step for saving in guard._loop.in_flight] == [1, 3], "the newer one was faster"
        futures[0].set_exception(OSError("slow, and late"))
        futures[2].set_result(None)
    assert sorted(event["step"] for event in events(run, "save")) == [2, 3]
    assert guard.exit_code == 0, "a newer one is durable"


@pytest.mark.parametrize("order", ["the older first", "the newer first"])
def test_of_several_in_flight_the_one_that_began_last_decides_whether_the_state_is_saved(run: Path, order: str) -> None:
    older, newer = Future[None](), Future[None]()
    with make_guard(run, saves_in_flight=2, say=lambda text: None) as guard:
        for future in (older, newer):
            guard.step()
            save(guard, future)
        if order == "the older first":
            older.set_result(None)
            until(lambda: len(guard._loop.in_flight) == 1)
        newer.set_exception(OSError("disk full"))
        until(lambda: guard._loop.in_flight[1:] == () and bool(events(run, "save_failed")))
        if not older.done():
            older.set_result(None)
    assert guard.exit_code == 1


@pytest.mark.parametrize(("allowed", "skipped"), [(1, 1), (2, 0)])
def test_a_save_is_skipped_only_while_as_many_as_allowed_are_in_flight(
    run: Path, future: Future[None], allowed: int, skipped: int
) -> None:
    with make_guard(run, saves_in_flight=allowed, save_overlap="skip", say=lambda text: None) as guard:
        guard.step()
        save(guard, future)
        (run / "switches" / "save").touch()
        until(lambda: bool(guard.step()) or bool(events(run, "save_skipped")))
        future.set_result(None)
    assert len(events(run, "save_skipped")) == skipped


# ---- the end ---------------------------------------------------------------------------------------------------------


def test_leaving_the_guard_waits_for_a_save_in_flight(run: Path, future: Future[None]) -> None:
    with make_guard(run, triggers=[Requester("enough")], say=lambda text: None) as guard:
        train(guard)
        save(guard, future)
        soon(future.set_result, None)
    assert future.done() and guard.exit_code == 75
    assert kinds(run)[-2:] == ["save", "end"]
    assert events(run, "end")[0]["stopped"]


def test_the_exit_code_is_not_known_before_the_last_save_is_durable(run: Path) -> None:
    guard = make_guard(run, triggers=[Requester("enough")], say=lambda text: None)
    guard.start()
    train(guard)
    future: Future[None] = Future()
    save(guard, future)
    soon(future.set_exception, OSError("gone"))
    assert guard.exit_code == 1  # of a loop without `with`: sys.exit(guard.exit_code)
    guard.close()


def test_a_run_is_finished_when_its_last_save_is_durable(run: Path, future: Future[None], said: list[str]) -> None:
    with make_guard(run, say=said.append) as guard:
        guard.step()
        save(guard, future)
        soon(future.set_result, None)
        guard.finished()
        assert future.done() and (run / "finished").exists()
        (run / "finished").unlink()
        save(guard, failed(OSError("gone")))
        guard.finished()
        assert not (run / "finished").exists()
    assert any("not marked as finished: the save of step 1 is not durable" in sentence for sentence in said)
    assert guard.exit_code == 1


def test_a_save_not_durable_shortly_before_the_jobs_end_is_cut_off_and_reported(run: Path, said: list[str]) -> None:
    with make_guard(run, triggers=[Requester("enough")], say=said.append) as guard:
        train(guard)
        save(guard, lambda: False)
        guard.place.end_time = time.time() + 2.0
        began = time.monotonic()
    assert time.monotonic() - began < 5
    assert guard.exit_code == 1
    (cut,) = [sentence for sentence in said if "is not durable" in sentence]
    assert "cut off after" in cut
    assert not events(run, "end")[0]["stopped"]


def test_the_wait_is_bounded_by_the_duration_of_saves_and_shorter_after_an_error(run: Path) -> None:
    with make_guard(run, exit_timeout_s=900.0, say=lambda text: None) as guard:
        guard.step()
        runtime = guard._runtime
        assert runtime is not None
        assert runtime.drain.limit_s() == 900.0
        runtime._timer.saved(400.0)
        assert runtime.drain.limit_s() == 1200.0
        guard.place.end_time = time.time() + 100.0
        assert 90.0 < runtime.drain.limit_s() <= 95.0
        guard.place.end_time = time.time() + 4.0
        assert 2.5 < runtime.drain.limit_s() <= 3.0, "what is left is used, also when it is short"
        guard.place.end_time = None
        runtime._loop.failed("RuntimeError('shape')")
        assert runtime.drain.limit_s() == 1200.0
        runtime._timer._saves.clear()
        assert runtime.drain.limit_s() == 60.0
    assert guard.exit_code == 1


def test_a_save_that_failed_does_not_cut_the_next_one_short(run: Path, said: list[str]) -> None:
    slow = threading.Thread(target=time.sleep, args=(4.0,))
    with make_guard(run, exit_timeout_s=60.0, say=said.append) as guard:
        for handle in (done(), failed(OSError("disk full"))):
            guard.step()
            save(guard, handle)
            until(lambda: guard._loop.saves is not None and guard._loop.saves.newest is None)
        guard.step()
        with guard.saving() as saving:
            slow.start()
            saving.until(slow)
    assert [event["step"] for event in events(run, "save")] == [1, 3], said
    assert guard.exit_code == 0


def test_a_hung_save_no_longer_counts_once_a_later_one_is_durable(run: Path, said: list[str]) -> None:
    """Otherwise code after the guard would be cut short because of a save that hung days ago."""
    told = []
    with make_guard(run, exit_timeout_s=0.3, say=said.append) as guard:
        guard.step()
        save(guard, lambda: False)
        saves = guard._loop.saves
        assert saves is not None
        guard.step()
        with guard.saving():
            told.append(saves.has_cut_off)
        told.append(saves.has_cut_off)
    assert told == [True, False]
    assert guard.exit_code == 0


def test_a_long_wait_is_reported_every_half_minute(run: Path, said: list[str]) -> None:
    with make_guard(run, say=said.append) as guard:
        guard.step()
        runtime = guard._runtime
        assert runtime is not None
        runtime._timer.saved(41.0)
        saving = guard.saving()
        saving.step = 400
        for waited_s in range(100):
            runtime.drain.report(saving, float(waited_s))
    told = [sentence for sentence in said if "durable" in sentence]
    assert len(told) == 3 and "the save of step 400" in told[0] and "the slowest save took 41 s" in told[0]


def test_a_save_behind_the_block_is_waited_for_when_the_interpreter_exits(tmp_path: Path) -> None:
    program = (
        "import sys, threading, time\n"
        "from resilience.guard import TrainingGuard\n"
        "def write(): time.sleep(0.5); open(sys.argv[1], 'w').write('it')\n"
        "with TrainingGuard.from_env(host_memory=False, walltime=False) as guard: guard.step()\n"
        "with guard.saving() as save:\n"
        "    writer = threading.Thread(target=write, daemon=True); writer.start(); save.until(writer)\n"
    )
    environ = {name: text for name, text in os.environ.items() if not name.startswith(("RESIL", "SLURM"))}
    for mode in ("on", "off"):
        file = tmp_path / mode
        code = f"{program}\nsys.exit(guard.exit_code)" if mode == "off" else program
        argv = [sys.executable, "-c", code, str(file)]
        subprocess.run(argv, env={**environ, "RESIL_GUARD": mode}, cwd=REPOSITORY, check=True, timeout=60)
        assert file.read_text() == "it", f"RESIL_GUARD={mode}"


# ---- handles ---------------------------------------------------------------------------------------------------------


def done() -> Future[None]:
    future: Future[None] = Future()
    future.set_result(None)
    return future


def failed(error: BaseException) -> Future[None]:
    future: Future[None] = Future()
    future.set_exception(error)
    return future


def cancelled() -> Future[None]:
    future: Future[None] = Future()
    future.cancel()
    return future


def raise_oserror() -> None:
    raise OSError("as asked")


def ended_thread(target: Callable[[], None]) -> threading.Thread:
    thread = threading.Thread(target=target)
    thread.start()
    thread.join()
    return thread


def ended_process(code: int) -> Any:
    process = multiprocessing.get_context("fork").Process(target=os._exit, args=(code,))
    process.start()
    process.join()
    return process


def ended_program(code: int) -> subprocess.Popen[bytes]:
    program = subprocess.Popen([sys.executable, "-S", "-c", f"import os; os._exit({code})"])
    program.wait()
    return program


class TorchFuture:
    """Behaves like torch.futures.Future."""

    def __init__(self, error: Exception | None = None) -> None:
        self.error = error

    def done(self) -> bool:
        return True

    def value(self) -> None:
        if self.error is not None:
            raise self.error


class Response:
    """Has the attributes of torch.distributed.checkpoint.AsyncSaveResponse."""

    def __init__(self, upload: Any, staging: Any = None) -> None:
        self.upload_completion = upload
        self.staging_completion = staging


class Manager:
    """Behaves like Orbax managers and checkpointers."""

    def __init__(self, error: Exception | None = None) -> None:
        self.error = error
        self.release = threading.Event()

    def wait_until_finished(self) -> None:
        self.release.wait(20)

    def check_for_errors(self) -> None:
        if self.error is not None:
            raise self.error


class Model:
    """A callable that is not a handle."""

    def __call__(self) -> bool:
        raise AssertionError


GOOD: dict[str, Callable[[], Any]] = {
    "future": done,
    "torch future": TorchFuture,
    "response": lambda: Response(done(), done()),
    "response without staging": lambda: Response(done()),
    "thread": lambda: ended_thread(lambda: None),
    "process": lambda: ended_process(0),
    "program": lambda: ended_program(0),
    "function": lambda: lambda: True,
    "callable object": lambda: type("Callable", (), {"__call__": lambda self: True})(),
}
BAD: dict[str, tuple[Callable[[], Any], type[BaseException], str]] = {
    "future": (lambda: failed(OSError("as asked")), OSError, "as asked"),
    "cancelled future": (cancelled, concurrent.futures.CancelledError, ""),
    "torch future": (lambda: TorchFuture(OSError("as asked")), OSError, "as asked"),
    "response": (lambda: Response(failed(OSError("as asked"))), OSError, "as asked"),
    "staging": (lambda: Response(done(), failed(OSError("as asked"))), OSError, "as asked"),
    "thread": (lambda: ended_thread(raise_oserror), OSError, "as asked"),
    "process": (lambda: ended_process(3), SaveNotDurable, "the process of the save exited with code 3"),
    "program": (lambda: ended_program(4), SaveNotDurable, "the process of the save exited with code 4"),
    "function": (lambda: raise_oserror, OSError, "as asked"),
}


@pytest.mark.parametrize("kind", GOOD)
def test_a_handle_that_has_ended_well_is_durable(kind: str) -> None:
    assert poll_of(GOOD[kind]())()


@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")
@pytest.mark.parametrize("kind", BAD)
def test_a_failed_handle_raises_its_error(kind: str, run: Path) -> None:
    make, expected, text = BAD[kind]
    with make_guard(run, say=lambda text: None) as guard:
        guard.step()
        save(guard, make())
        until(lambda: "save_failed" in kinds(run))
    assert (
        text in events(run, "save_failed")[0]["error"] and expected.__name__ in events(run, "save_failed")[0]["error"]
    )


def test_a_running_handle_is_not_durable() -> None:
    release = threading.Event()
    thread = threading.Thread(target=release.wait)
    thread.start()
    process = subprocess.Popen([sys.executable, "-S", "-c", "input()"], stdin=subprocess.PIPE)
    manager = Manager()
    polls = [poll_of(handle) for handle in (Future[None](), thread, process, manager, lambda: None, Response(Future()))]
    try:
        assert [poll() for poll in polls] == [False] * len(polls)
    finally:
        release.set()
        manager.release.set()
        process.communicate(b"\n")
        thread.join()
    until(lambda: [poll() for poll in polls[1:4]] == [True] * 3)


def test_a_failed_orbax_manager_raises_its_error() -> None:
    manager = Manager(ValueError("shard 3"))
    poll = poll_of(manager)
    manager.release.set()
    with pytest.raises(ValueError, match="shard 3"):
        until(poll)


def test_only_unambiguous_return_values_of_a_save_function_are_handles() -> None:
    handles = (done(), ended_thread(lambda: None), Response(done()), Manager(), lambda: True, done().done)
    assert all(handles_in(handle) == [handle] for handle in handles)
    things = (None, "checkpoint-400", Path("x"), 5, {"step": 4}, Model(), Model)
    assert not any(handles_in(thing) for thing in things)
    assert handles_in((None, [handles[0]], "checkpoint-400", handles[4])) == [handles[0], handles[4]]
    assert len(handles_in(functools.partial(done))) == 1


def test_a_save_function_that_is_async_was_not_run_at_all(run: Path) -> None:
    async def save() -> None:
        raise AssertionError("nobody runs it")

    with make_guard(run, triggers=[Requester("enough")]) as guard, pytest.raises(GuardError, match="`async`"):
        for _ in guard.steps(range(10**9), save=save):
            time.sleep(0.001)
    assert guard.exit_code == 1


def test_a_failed_nested_block_is_a_failed_save_unless_retried(run: Path, said: list[str]) -> None:
    with make_guard(run, say=said.append) as guard:
        for tries in (1, 2):
            guard.step()
            with guard.saving():
                for number in range(tries):
                    with contextlib.suppress(OSError), guard.saving():
                        if number == 0:
                            raise OSError("disk full")
    assert [(event["event"], event["step"]) for event in events(run, "save", "save_failed")] == [
        ("save_failed", 1),
        ("save", 2),
    ]


@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")
def test_a_thread_that_fell_before_the_first_save_is_reported_as_well(run: Path, said: list[str]) -> None:
    with make_guard(run, say=said.append) as guard:
        fallen = ended_thread(raise_oserror)
        guard.step()
        save(guard, fallen)
    assert guard.exit_code == 1 and events(run, "save_failed")


def test_the_short_form_uses_the_handles_that_save_returns(run: Path, future: Future[None]) -> None:

    def save(label: str) -> Future[None]:
        soon(future.set_result, None)
        return future

    guard = make_guard(run, triggers=[Requester("enough")], say=lambda text: None)
    for _ in guard.steps(range(10**9), save=save):
        time.sleep(0.001)
    assert future.done(), "the loop ends when its last save is durable"
    assert guard.exit_code == 75
    guard.close()
    assert kinds(run) == ["decision", "save_begin", "save_staged", "save", "end"]


def test_the_short_form_with_a_save_that_fails_in_the_background_is_exit_code_1(run: Path) -> None:
    guard = make_guard(run, triggers=[Requester("enough")], say=lambda text: None)
    for _ in guard.steps(range(10**9), save=lambda: failed(OSError("gone"))):
        time.sleep(0.001)
    assert guard.exit_code == 1
    guard.close()


def test_the_settings_of_overlapping_saves_are_checked() -> None:
    assert GuardSettings(save_overlap="skip").save_overlap == "skip"
    with pytest.raises(GuardError, match="save_overlap = 'drop' is invalid"):
        GuardSettings(save_overlap="drop")


def test_a_guard_that_is_off_waits_for_saves_in_flight_all_the_same() -> None:
    guard = TrainingGuard(RankInfo(), GuardSettings(), inert=True)
    future: Future[None] = Future()
    soon(future.set_result, None)
    with guard, guard.saving() as save:
        save.until(future)
    assert future.done()
