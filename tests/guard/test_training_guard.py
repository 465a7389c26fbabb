"""The guard in a training: one process, real threads, real files, real signals."""

from __future__ import annotations

import os
import pickle
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

import resilience.guard
from resilience.guard import CONTINUE, AgreementLost, Decision, GuardError, Request, TrainingGuard
from resilience.guard.gate import NullLock
from resilience.guard.testing import script
from resilience.guard.training_guard import LockedTrainingGuard
from tests.guard.guards import QUIET, Requester, job_environ, make_guard, save, train
from tests.lab.waiting import until


@pytest.fixture(autouse=True)
def no_guard_is_left() -> Iterator[None]:
    yield
    left = resilience.guard.active()
    if left is not None:
        left.close()
    assert left is None


def test_a_step_without_a_decision_returns_continue() -> None:
    with make_guard() as guard:
        assert [guard.step() for _ in range(1000)] == [CONTINUE] * 1000
        assert guard.count == 1000
    assert guard.exit_code == 0


def test_the_documented_loop_saves_stops_and_exits_with_75(run: Path, said: list[str]) -> None:
    saved = []
    (run / "switches" / "save").touch()
    with make_guard(run, say=said.append) as guard:
        assert not guard.should_stop_early()
        for batch in range(100_000):
            time.sleep(0.001)
            decision = guard.step()
            if decision.save:
                with guard.saving():
                    saved.append((batch, decision.stop))
                if not decision.stop:
                    (run / "switches" / "kill").touch()
            if decision.stop:
                break
    assert [stop for _, stop in saved] == [False, True]
    assert guard.exit_code == 75
    assert guard.decided is not None and guard.decided.step == batch + 1
    assert not (run / "switches" / "save").exists()
    assert any("save and stop, because" in sentence for sentence in said)


def test_should_stop_early_sees_a_kill_switch_before_the_first_step(run: Path, said: list[str]) -> None:
    (run / "switches" / "kill").touch()
    with make_guard(run, say=said.append) as guard:
        assert guard.should_stop_early()
        assert guard.exit_code == 75
        assert guard.count == 0
    assert guard.decided is not None and not guard.decided.save


def test_a_run_that_is_finished_is_not_trained_again_and_exits_with_0(run: Path) -> None:
    (run / "finished").write_text("attempt = 2\n")
    with make_guard(run) as guard:
        assert guard.should_stop_early()
    assert guard.exit_code == 0


def test_finished_marks_the_run(run: Path) -> None:
    with make_guard(run) as guard:
        guard.step()
        guard.finished()
    assert guard.exit_code == 0
    assert "attempt = 3" in (run / "finished").read_text()


def test_a_run_can_be_marked_before_the_first_step_and_behind_the_block(run: Path, said: list[str]) -> None:
    guard = make_guard(run)
    guard.finished()  # resumed, with no steps left
    assert (run / "finished").exists()
    guard.close()
    (run / "finished").unlink()
    with make_guard(run, poll_s=5.0) as other:
        other.step()
    other.finished()
    assert (run / "finished").exists()
    (run / "finished").unlink()
    with make_guard(run, triggers=[Requester("enough")], say=said.append) as third:
        train(third)
    third.finished()
    assert not (run / "finished").exists()
    assert any("not marked as finished" in sentence for sentence in said)


def test_a_run_that_was_stopped_is_not_marked_as_finished_and_a_person_is_notified(run: Path, said: list[str]) -> None:
    """A loop that was stopped ends like one that is done: `for ... in guard.steps(...): ...`, then `finished()`."""
    with make_guard(run, triggers=[Requester("enough")], say=said.append) as guard:
        for _ in guard.steps(range(10**9), save=lambda: None):
            time.sleep(0.001)
        guard.finished()
    assert guard.exit_code == 75
    assert not (run / "finished").exists()
    assert any("not marked as finished" in sentence and "enough" in sentence for sentence in said)


def test_a_stop_that_is_not_followed_is_repeated_without_a_save_and_reported_once(run: Path, said: list[str]) -> None:
    with make_guard(run, triggers=[Requester("enough")], say=said.append) as guard:
        first = train(guard)
        again = [guard.step() for _ in range(5)]
    assert first.save and first.stop
    assert all(decision.stop and not decision.save for decision in again)
    assert [decision.step for decision in again] == [first.step + number for number in range(1, 6)]
    assert len([sentence for sentence in said if "enough" in sentence]) == 1


def test_a_poll_announces_a_stop_and_the_next_step_decides_it(run: Path) -> None:
    requester = Requester()
    with make_guard(run, triggers=[requester]) as guard:
        guard.step()
        with guard.phase("eval"):
            assert not guard.poll()
            requester.request = "enough"
            until(lambda: guard.poll().stop)
            announced = guard.poll()
        decision = guard.step()
    assert announced.stop and not announced.save
    assert decision.stop and decision.save
    assert decision.step == 2


def test_a_poll_never_announces_a_save(run: Path) -> None:
    with make_guard(run, triggers=[requester := Requester()]) as guard:
        guard.step()
        requester.request = Request("requester", "please", stop=False)
        until(lambda: requester.request is None and guard.limit == 0)
        assert not guard.poll()
        assert guard.step().save


def test_a_training_that_leaves_its_warm_up_because_of_a_poll_exits_with_75(run: Path) -> None:
    with make_guard(run, triggers=[Requester("enough")]) as guard:
        until(lambda: guard.poll().stop)
    assert guard.exit_code == 75


def test_a_users_trigger_receives_the_outcome_of_the_save(run: Path, said: list[str]) -> None:
    requester = Requester(Request("requester", "please", stop=False, label="before-lunch"))
    with make_guard(run, triggers=[requester], say=said.append) as guard:
        decision = train(guard)
        assert (decision.save, decision.stop, decision.label) == (True, False, "before-lunch")
        with pytest.raises(OSError), guard.saving():
            raise OSError("the disk is full")
        until(lambda: requester.outcomes == ["failed"])
        requester.request = Request("requester", "again", stop=False)
        train(guard)
        save(guard)
        until(lambda: requester.outcomes == ["failed", "saved"])
        requester.request = Request("requester", "without a block", stop=False)
        train(guard)
        guard.step()
        until(lambda: requester.outcomes == ["failed", "saved", "obeyed"])
    assert any("is not durable: OSError('the disk is full')" in sentence for sentence in said)


def test_a_text_from_a_trigger_requests_a_save_and_a_stop(run: Path) -> None:
    with make_guard(run, triggers=[Requester("the queue of experiments is empty")]) as guard:
        decision = train(guard)
    assert decision.save and decision.stop
    assert str(decision) == f"step {decision.step}: save and stop, because the queue of experiments is empty"


def exit_code_of_fork(work: Callable[[], bool]) -> int:
    """Fork a child; return 0 if `work` is true there, 2 if not, 1 if it raises."""
    child = os.fork()
    if child == 0:
        code = 1
        try:
            code = 0 if work() else 2
        finally:
            os._exit(code)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


class Broken:
    """A user's trigger that raises."""

    def __init__(self) -> None:
        self.polls = 0

    def poll(self) -> object:
        self.polls += 1
        raise RuntimeError("no such attribute")

    def done(self, outcome: str) -> None:
        """Never called."""


def test_a_broken_trigger_costs_a_warning_and_is_given_up_after_ten_failures(run: Path, said: list[str]) -> None:
    broken = Broken()
    with make_guard(run, triggers=[broken], say=said.append) as guard:
        until(lambda: any("is disabled" in sentence for sentence in said))
        time.sleep(0.1)
        assert not guard.step()
    assert broken.polls == 10
    assert sum("Broken" in sentence for sentence in said) == 2


def test_a_trigger_that_returns_an_invalid_value_is_reported(run: Path, said: list[str]) -> None:
    requester = Requester(42)  # type: ignore[arg-type]
    with make_guard(run, triggers=[requester], say=said.append):
        until(lambda: any("requester" in sentence and "int" in sentence for sentence in said))


def test_a_discarding_request_cancels_the_save_of_others(run: Path) -> None:
    first, second = Requester("time is up"), Requester(Request("second", "the loss is NaN", save=False, discard=True))
    second.name = "second"
    with make_guard(triggers=[first, second], poll_s=5.0) as guard:
        until(lambda: first.polls and second.polls)
        time.sleep(0.1)
        decision = guard.step()
    assert decision.stop and not decision.save
    assert decision.reasons == ("time is up", "the loss is NaN")


def test_a_second_guard_in_one_process_is_refused_with_what_to_do() -> None:
    with make_guard(), pytest.raises(GuardError, match="another guard") as refused:
        make_guard().start()
    assert "close()" in refused.value.hint
    with make_guard() as third:  # the first is closed
        third.step()


def test_a_guard_that_was_never_closed_can_be_closed_from_a_notebook() -> None:
    make_guard().start()
    left = resilience.guard.active()
    assert left is not None
    left.close()
    with make_guard() as guard:
        assert not guard.step()


def test_a_closed_guard_answers_continue() -> None:
    with make_guard() as guard:
        guard.step()
    assert guard.step() is CONTINUE
    assert guard.poll() is CONTINUE
    with guard.saving(), guard.phase("eval"):
        pass
    guard.close()


def test_a_guard_works_without_a_with_block(run: Path) -> None:
    guard = make_guard(run, triggers=[Requester("enough")])
    try:
        assert train(guard).stop
    finally:
        guard.close()


def test_a_guard_cannot_be_pickled_and_the_error_has_a_hint() -> None:
    with make_guard() as guard, pytest.raises(TypeError, match="in each process"):
        pickle.dumps(guard)


def test_off_is_inert_no_thread_no_handler_no_file(run: Path) -> None:
    threads, handler = threading.active_count(), signal.getsignal(signal.SIGUSR1)
    (run / "switches" / "kill").touch()
    with TrainingGuard.from_env(job_environ(run, RESIL_GUARD="off"), poll_s=0.02) as guard:
        assert not guard.should_stop_early()
        assert [guard.step(loss=float("nan")) for _ in range(100)] == [CONTINUE] * 100
        assert guard.poll() is CONTINUE
        with guard.saving(), guard.phase("eval"):
            pass
        guard.finished()
        assert threading.active_count() == threads
        assert signal.getsignal(signal.SIGUSR1) is handler
    assert guard.exit_code == 0
    assert not list((run / "beats").iterdir()) and not list((run / "journal").iterdir())
    assert not (run / "finished").exists()


class Hung(Requester):
    """A user's trigger that blocks until released."""

    shared = True

    def __init__(self) -> None:
        super().__init__()
        self.over = threading.Event()

    def poll(self) -> None:
        self.over.wait(30)


@pytest.fixture
def hung() -> Iterator[Hung]:
    trigger = Hung()
    yield trigger
    trigger.over.set()


@pytest.mark.parametrize("value", ["of", "maybe", "test", "2"])
def test_an_invalid_value_of_resil_guard_is_refused(value: str) -> None:
    with pytest.raises(GuardError, match="RESIL_GUARD"):
        TrainingGuard.from_env({"RESIL_GUARD": value})


def test_an_unknown_setting_is_refused_with_the_nearest_name() -> None:
    with pytest.raises(GuardError) as refused:
        TrainingGuard.from_env({}, host_memory_precent=90)
    assert "host_memory_percent" in refused.value.hint


def test_steps_from_two_threads_are_reported_once(said: list[str]) -> None:
    with make_guard(say=said.append) as guard:
        guard.step()
        for _ in range(3):
            guard.limit = 0  # something to do
            other = threading.Thread(target=guard.step)
            other.start()
            other.join()
    assert sum("two threads" in sentence for sentence in said) == 1


def test_a_guard_that_is_made_and_used_in_another_thread_decides(run: Path) -> None:
    decisions: list[Decision] = []

    def training() -> None:
        with make_guard(run, triggers=[Requester("enough")], signals="USR1", say=lambda text: None) as guard:
            decisions.append(train(guard))

    thread = threading.Thread(target=training)
    thread.start()
    thread.join(timeout=30)
    assert decisions and decisions[0].stop


def test_a_forked_child_is_inert_and_leaves_the_parents_guard_alone(run: Path) -> None:
    """A fork, as a data-loader worker, must not count, stop, or close the parent's files and connections."""

    def work() -> bool:
        inert = all(guard.step() is CONTINUE for _ in range(1000)) and guard.poll() is CONTINUE
        guard.finished()
        guard.close()
        return inert and resilience.guard.active() is None

    with make_guard(run, triggers=[requester := Requester()]) as guard:
        guard.step()
        assert exit_code_of_fork(work) == 0
        assert guard.count == 1
        assert guard.beat[0] == 1
        assert not (run / "finished").exists()
        requester.request = "enough"
        assert train(guard).stop


def test_a_forked_child_may_make_a_guard_of_its_own(run: Path) -> None:
    def work() -> bool:
        with make_guard(triggers=[Requester("enough")]) as own:
            return train(own).stop

    with make_guard(run) as guard:
        guard.step()
        assert exit_code_of_fork(work) == 0
        assert not guard.step()


def test_a_guard_created_before_a_fork_warns_that_it_is_inert_in_the_child(tmp_path: Path) -> None:
    guard, told = make_guard(say=lambda text: (tmp_path / "said").write_text(text) and None), tmp_path / "said"
    assert exit_code_of_fork(lambda: guard.step() is CONTINUE and guard.count == 1) == 0
    assert "created in another process" in told.read_text()


def test_a_training_that_raises_before_a_requested_save_leaves_the_switch_set(run: Path) -> None:
    (run / "switches" / "save").touch()
    with pytest.raises(ZeroDivisionError), make_guard(run, say=lambda text: None) as guard:
        train(guard, until=lambda decision: decision.save)
        raise ZeroDivisionError
    assert (run / "switches" / "save").exists()


def test_a_training_without_a_with_block_closes_its_guard_at_exit(run: Path) -> None:
    program = (
        "import sys\nfrom resilience.guard import TrainingGuard\n"
        "guard = TrainingGuard.from_env(poll_s=0.02)\n"
        "for batch in guard.steps(range(10**9), save=lambda: None): pass\n"
        "sys.exit(guard.exit_code)\n"
    )
    (run / "switches" / "save").touch()
    environ = {**job_environ(run), "PATH": os.environ["PATH"], "PYTHONPATH": str(Path.cwd())}
    process = subprocess.Popen([sys.executable, "-c", program], env=environ, stderr=subprocess.PIPE)
    try:
        until(lambda: not (run / "switches" / "save").exists())
        (run / "switches" / "kill").touch()
        assert process.wait(30) == 75
    finally:
        process.kill()
        process.communicate()
    assert '"event":"end"' in (run / "journal" / "12.0.jsonl").read_text()


def test_handlers_replaced_by_a_library_can_be_reinstalled(run: Path) -> None:
    taken = []
    with make_guard(run, signals="USR1", say=lambda text: None) as guard:
        signal.signal(signal.SIGUSR1, lambda *_: taken.append(1))
        guard.reinstall_signals()
        os.kill(os.getpid(), signal.SIGUSR1)
        assert train(guard).stop
    signal.signal(signal.SIGUSR1, signal.SIG_DFL)


def test_a_traceback_includes_the_hint() -> None:
    """A traceback shows only the text of an exception, so the text includes the hint."""
    with pytest.raises(GuardError) as refused:
        TrainingGuard.from_env({"RESIL_GUARD": "of"})
    assert str(refused.value).endswith("set on, off, or test:save@3,stop@5")


class ZeroDimensional:
    """A step as in checkpoints of torch."""

    def __index__(self) -> int:
        return 500


def test_a_step_may_be_any_integer_type(run: Path) -> None:
    with make_guard(run) as guard:
        guard.resumed(ZeroDimensional())  # type: ignore[arg-type]
        guard.step()
        assert (guard.count, type(guard.count)) == (501, int)


@pytest.mark.parametrize("step", [None, "7", 2.5, float("nan")])
def test_a_step_that_is_not_an_integer_is_refused_and_nothing_is_changed(step: object) -> None:
    with make_guard() as guard:
        with pytest.raises(GuardError, match="resumed"):
            guard.resumed(step)  # type: ignore[arg-type]
        guard.step()
        assert guard.count == 1


def test_a_failed_last_save_ends_with_1_also_when_the_training_swallows_it(run: Path) -> None:
    with make_guard(run, triggers=[Requester("enough")], say=lambda text: None) as guard:
        train(guard)
        try:
            with guard.saving():
                raise OSError("disk full")
        except OSError:
            pass
    assert guard.exit_code == 1
    assert '"exit_code":1,"stopped":false' in (run / "journal" / "12.0.jsonl").read_text().splitlines()[-1]


def test_a_training_that_caught_its_own_exception_is_not_done(run: Path) -> None:
    guard = make_guard(run)
    try:
        with guard:
            raise RuntimeError("CUDA error")
    except RuntimeError:
        pass
    assert guard.exit_code == 1


@pytest.mark.parametrize("code", [None, 0])
def test_sys_exit_without_a_code_inside_the_block_exits_with_0(run: Path, code: int | None) -> None:
    with pytest.raises(SystemExit), make_guard(run) as guard:
        sys.exit(code)
    assert guard.exit_code == 0
    assert '"error"' not in (run / "journal" / "12.0.jsonl").read_text()


def test_a_forgotten_exit_code_does_not_make_a_stop_a_failure(run: Path) -> None:
    with pytest.raises(SystemExit), make_guard(run, triggers=[Requester("enough")], say=lambda text: None) as guard:
        train(guard)
        sys.exit()
    assert guard.exit_code == 75
    assert '"exit_code":75,"stopped":true' in (run / "journal" / "12.0.jsonl").read_text()


def test_off_works_even_with_invalid_settings() -> None:
    with TrainingGuard.from_env({"RESIL_GUARD": "off", "RESIL_GUARD__POLL_S": "abc", "RESIL_GUARD__X": "1"}) as guard:
        assert guard.step() is CONTINUE


def test_a_closed_guard_warns_and_cannot_be_reentered(said: list[str]) -> None:
    with make_guard(say=said.append) as guard:
        pass
    with pytest.raises(GuardError, match="is closed"), guard:
        pass
    assert [guard.step() for _ in range(5)] == [CONTINUE] * 5
    assert sum("closed guard" in sentence for sentence in said) == 1


def test_a_users_trigger_that_hangs_or_exits_does_not_block_the_others(run: Path, said: list[str], hung: Hung) -> None:
    class Exits(Requester):
        name = "exits"

        def poll(self) -> None:
            sys.exit(3)

    with make_guard(run, triggers=[Exits(), hung], say=said.append) as guard:
        guard.step()
        (run / "switches" / "kill").touch()
        assert train(guard).stop
        hung.over.set()
    assert any("exits failed in poll()" in sentence for sentence in said)


def test_a_hung_trigger_is_reported(said: list[str], monkeypatch: pytest.MonkeyPatch, hung: Hung) -> None:
    monkeypatch.setattr("resilience.guard.watch.STUCK_S", 0.05)
    with make_guard(triggers=[hung], say=said.append):
        until(lambda: any("requester has not returned from poll()" in sentence for sentence in said))
        hung.over.set()


@pytest.mark.parametrize("why", ["", None, "two\nlines\x1b and\tmore"])
def test_a_reason_is_one_line_and_never_empty(run: Path, why: str | None) -> None:
    with make_guard(run, triggers=[Requester(Request("requester", why))], say=lambda text: None) as guard:  # type: ignore[arg-type]
        decision = train(guard)
    assert decision.why and "\n" not in decision.why and "None" not in decision.why


def test_a_child_forked_after_a_stop_was_decided_ends(run: Path) -> None:
    """faulthandler's timer would hang a child at its exit, waiting for a thread that the fork did not copy."""
    program = (
        "import os, sys\nfrom resilience.guard import TrainingGuard\n"
        "class Now:\n"
        "    def poll(self): return 'enough'\n"
        "    def done(self, outcome): pass\n"
        "with TrainingGuard.from_env(force_exit='on', exit_timeout_s=60, triggers=[Now()]) as guard:\n"
        "    while not guard.step(): pass\n"
        "    with guard.saving():\n"
        "        child = os.fork()\n"
        "        if child == 0: sys.exit(7)\n"
        "        code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])\n"
        "sys.exit(code)\n"
    )
    environ = {**job_environ(run), "PATH": os.environ["PATH"], "PYTHONPATH": str(Path.cwd())}
    done = subprocess.run([sys.executable, "-c", program], env=environ, capture_output=True, timeout=30)
    assert done.returncode == 7, done.stderr


CALLS: dict[str, Callable[[TrainingGuard], object]] = {
    "step": lambda guard: guard.step(),
    "step with a loss": lambda guard: guard.step(loss=float("nan")),
    "poll": lambda guard: guard.poll(),
    "saving": lambda guard: guard.saving().__enter__() and None,
    "phase": lambda guard: guard.phase("eval") and None,
    "resumed": lambda guard: guard.resumed(5),
    "finished": lambda guard: guard.finished(),
    "should_stop_early": lambda guard: guard.should_stop_early(),
    "reinstall_signals": lambda guard: guard.reinstall_signals(),
    "close": lambda guard: guard.close(),
}


@pytest.mark.parametrize("call", CALLS)
@pytest.mark.parametrize("part", ["agreement", "_recorder", "_writer", "_slot", "_timer", "signals", "_loss", "exit"])
def test_no_call_lets_a_fault_of_the_guard_out_into_the_training(run: Path, part: str, call: str) -> None:
    class Faulty:
        def __getattr__(self, name: str) -> object:
            raise RuntimeError("a bug")

    guard = make_guard(run, say=lambda text: None)
    guard.start()
    assert guard._runtime is not None
    kept = getattr(guard._runtime, part)
    setattr(guard._runtime, part, Faulty())
    try:
        guard.limit = guard.poll_limit = 0
        CALLS[call](guard)
    finally:
        setattr(guard._runtime, part, kept)
        guard._state = "running"
        guard.close()


class FailingAgreement:
    """An agreement that raises."""

    def __init__(self, error: Exception) -> None:
        self._error = error

    def __call__(self, *_: object) -> FailingAgreement:
        return self

    def on_step(self) -> Decision:
        raise self._error

    def __getattr__(self, name: str) -> object:
        return lambda *_: None


def test_an_error_of_the_guard_is_a_warning_and_does_not_end_the_training(said: list[str]) -> None:
    with make_guard(agreement=FailingAgreement(RuntimeError("a bug")), say=said.append) as guard:
        assert [guard.step() for _ in range(100)] == [CONTINUE] * 100
    assert sum("a bug" in sentence for sentence in said) == 1


def test_a_lost_agreement_is_raised_because_going_on_would_break_the_others() -> None:
    lost = AgreementLost("rank 0 is gone")
    with pytest.raises(AgreementLost), make_guard(agreement=FailingAgreement(lost), say=lambda text: None) as guard:
        guard.step()


def test_a_guard_that_cannot_start_lets_the_training_go_on(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def no_more_threads(*_: object, **__: object) -> None:
        raise RuntimeError("can't start new thread")

    monkeypatch.setattr("resilience.guard.watch.threading.Thread.start", no_more_threads)
    with make_guard() as guard:
        assert guard.step() is CONTINUE
    assert "continues without a guard" in capsys.readouterr().err


def test_resumed_counts_from_the_checkpoints_step(run: Path) -> None:
    with make_guard(run, triggers=[requester := Requester()]) as guard:
        guard.resumed(41_200)
        guard.step()
        requester.request = "enough"
        assert train(guard).step == guard.count > 41_200
        assert guard.beat[0] == guard.count


@pytest.mark.parametrize("step", [-1, 1 << 70])
def test_a_step_that_cannot_be_is_refused(step: int) -> None:
    with make_guard() as guard, pytest.raises(GuardError, match="resume"):
        guard.resumed(step)


def test_an_exception_in_the_training_passes_through_and_is_noted(run: Path) -> None:
    with pytest.raises(ZeroDivisionError), make_guard(run) as guard:
        guard.step()
        raise ZeroDivisionError("a user's fault")
    assert "ZeroDivisionError" in (run / "journal" / "12.0.jsonl").read_text()


def test_a_dead_file_system_at_the_start_does_not_keep_the_training_from_starting(
    run: Path, said: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The first check hangs, as on a dead mount: the training starts with a warning."""
    over = threading.Event()
    monkeypatch.setattr("resilience.guard.triggers.switches.KillSwitch.poll", lambda self: over.wait(30) and None)
    monkeypatch.setattr("resilience.guard.runtime.FIRST_CHECK_S", 0.2)
    with make_guard(run, say=said.append) as guard:
        assert not guard.should_stop_early()
        assert not guard.step()
        over.set()
    assert any("did not respond" in sentence for sentence in said)


def test_nothing_is_printed_and_no_file_is_written_outside_a_job(tmp_path: Path) -> None:
    program = (
        "from resilience.guard import TrainingGuard\n"
        "with TrainingGuard.from_env() as guard:\n"
        "    assert not guard.should_stop_early()\n"
        "    for _ in range(1000): assert not guard.step()\n"
        "raise SystemExit(guard.exit_code)\n"
    )
    environ = {"PATH": os.environ["PATH"], "PYTHONPATH": str(Path.cwd()), "HOME": str(tmp_path)}
    done = subprocess.run(
        [sys.executable, "-c", program], cwd=tmp_path, env=environ, capture_output=True, text=True, timeout=60
    )
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")
    assert list(tmp_path.iterdir()) == []


def test_a_quiet_guard_has_nothing_but_the_documented_settings() -> None:
    assert set(QUIET) <= set(TrainingGuard.from_env({}).settings.__slots__)


def test_every_batch_is_one_step() -> None:
    with make_guard() as guard:
        assert list(guard.steps("abc")) == ["a", "b", "c"]
        assert guard.count == 3
    assert guard.exit_code == 0


def test_a_save_gets_its_label_and_a_stop_ends_the_loop_and_the_loop_around_it() -> None:
    labels, batches = [], []
    with script(save_at=[2], stop_at=4, label="before-lunch"), TrainingGuard.from_env() as guard:
        for epoch in range(3):
            for batch in guard.steps(range(3), save=lambda label: labels.append(label)):
                batches.append((epoch, batch))
    assert batches == [(0, 0), (0, 1), (0, 2), (1, 0)]
    assert labels == ["before-lunch", ""]
    assert guard.exit_code == 75


def test_a_save_that_takes_no_label_is_called_without(run: Path) -> None:
    saved = []
    requester = Requester(Request("requester", "please", stop=False, label="x"))
    with make_guard(run, triggers=[requester]) as guard:
        for _ in guard.steps(range(10**9), save=lambda: saved.append(guard.count)):
            if saved:
                break
    assert len(saved) == 1


def test_a_kill_switch_before_the_start_yields_nothing(run: Path) -> None:
    (run / "switches" / "kill").touch()
    with make_guard(run, say=lambda text: None) as guard:
        assert list(guard.steps(range(5))) == []
    assert guard.exit_code == 75


def test_without_anything_to_save_with_the_save_switch_stays_and_a_person_is_notified(
    run: Path, said: list[str]
) -> None:
    (run / "switches" / "save").touch()
    with make_guard(run, say=said.append) as guard:
        for _ in guard.steps(range(10**9)):
            if any("save=save_checkpoint" in sentence for sentence in said):
                break
    assert (run / "switches" / "save").exists()


def test_without_anything_to_save_with_a_stop_is_a_stop(run: Path) -> None:
    with make_guard(run, triggers=[Requester("enough")], say=lambda text: None) as guard:
        for _ in guard.steps(range(10**9)):
            pass
    assert guard.exit_code == 75


def test_a_save_function_must_be_callable() -> None:
    with make_guard() as guard, pytest.raises(GuardError, match="not callable"):
        guard.steps("abc", save="checkpoint")  # type: ignore[arg-type]


def test_a_failing_save_passes_through() -> None:
    def save() -> None:
        raise OSError("disk full")

    with script(save_at=[1]) as record, TrainingGuard.from_env() as guard, pytest.raises(OSError, match="disk full"):
        list(guard.steps(range(3), save=save))
    assert record.failed_at == [1]


@pytest.fixture
def no_gil(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "_is_gil_enabled", lambda: False, raising=False)


@pytest.mark.usefixtures("no_gil")
def test_a_locked_guard_is_created_without_an_interpreter_lock() -> None:
    guard = make_guard()
    assert isinstance(guard, LockedTrainingGuard)
    assert not isinstance(guard.lock, NullLock)


@pytest.mark.usefixtures("no_gil")
def test_a_locked_guard_counts_and_decides_like_the_other() -> None:
    with make_guard(triggers=[requester := Requester()]) as guard:
        assert not any(guard.step() for _ in range(1000))
        assert (guard.count, guard.beat[0]) == (1000, 1000)
        requester.request = "enough"
        until(lambda: guard.poll().stop)
        assert train(guard).save


@pytest.mark.usefixtures("no_gil")
def test_its_limits_are_written_and_its_position_read_under_the_lock() -> None:
    guard = make_guard()
    guard.start()
    try:
        with guard.lock:
            assert guard.lock.locked()
        guard.hold(5, 6)
        assert (guard.limit, guard.poll_limit) == (5, 6)
        assert guard.position() == (0, 0)
    finally:
        guard.close()


def test_the_guard_of_this_process_can_be_found_until_it_is_closed() -> None:
    with make_guard() as guard:
        assert resilience.guard.active() is guard
    assert resilience.guard.active() is None


def test_a_fault_while_closing_does_not_turn_a_success_into_a_failure(
    run: Path, said: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    guard = make_guard(run, say=said.append)
    guard.start()
    assert guard._runtime is not None
    closed = guard._runtime.close

    def close_and_fail() -> None:
        closed()
        raise OSError("stale file handle")

    monkeypatch.setattr(guard._runtime, "close", close_and_fail)
    guard.close()
    assert guard.exit_code == 0
    assert any("stale file handle" in sentence for sentence in said)


def test_closing_twice_is_closing_once() -> None:
    guard = make_guard()
    guard.start()
    guard.close()
    guard.close()
    assert resilience.guard.active() is None


def test_a_guard_that_was_never_started_closes_in_silence() -> None:
    make_guard().close()
