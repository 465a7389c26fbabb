"""A signal to a training sets a flag and nothing else, whenever it comes; whoever was there before is still served."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from resilience.guard.gate import Gate
from resilience.guard.rank_info import RankInfo
from resilience.guard.recorder import Recorder
from resilience.guard.settings import GuardSettings
from resilience.guard.triggers.signals import AGAIN_S, Signals

ROOT = Path(__file__).parents[3]

PRELUDE = """
import os, signal, sys, threading, time
from resilience.guard import TrainingGuard
QUIET = dict(host_memory=False, gpu_memory="off", walltime=False, poll_s=0.05)

def guarded(**settings):
    say = lambda text: print("said", text, flush=True)
    return TrainingGuard.from_env({}, say=say, **{**QUIET, **settings})

def train(guard, steps=2000):
    for _ in range(steps):
        decision = guard.step()
        if decision:
            print("decided", decision, flush=True)
            return decision
        time.sleep(0.005)
    print("undecided", flush=True)

def ready():
    print("ready", flush=True)
"""


class Training:
    """A process whose lines are read as they come."""

    def __init__(self, script: str, **options: Any) -> None:
        self.process = subprocess.Popen(
            [sys.executable, "-u", "-c", PRELUDE + script],
            cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, stdin=subprocess.DEVNULL, text=True, **options,
        )  # fmt: skip
        self.lines: list[str] = []

    def until(self, begin: str) -> str:
        """The next line that begins so."""
        assert self.process.stdout is not None
        line: str
        for line in self.process.stdout:
            self.lines.append(line)
            if line.startswith(begin):
                return line
        raise AssertionError(f"no line {begin!r} in:\n{''.join(self.lines)}")

    def send(self, *numbers: int) -> None:
        for number in numbers:
            self.process.send_signal(number)

    def end(self) -> tuple[int, str]:
        """Exit code and all that was printed."""
        rest, _ = self.process.communicate(timeout=60)
        return self.process.returncode, "".join(self.lines) + rest


@contextmanager
def training(script: str, **options: Any) -> Iterator[Training]:
    run = Training(script, **options)
    try:
        yield run
    finally:
        run.process.kill()
        run.process.communicate()


# ---- in this process: the object itself


class Heard:
    def __init__(self) -> None:
        self.said: list[str] = []

    def __call__(self, text: str) -> None:
        self.said.append(text)

    def __contains__(self, pattern: str) -> bool:
        return any(re.search(pattern, text) for text in self.said)


@pytest.fixture
def heard() -> Heard:
    return Heard()


@contextmanager
def signals(heard: Heard, *names: str, gate: Gate | None = None) -> Iterator[Signals]:
    place = RankInfo()
    watched = Signals(place, GuardSettings(signals=names), Recorder(place, heard), gate or Gate())
    before = {number: signal.getsignal(number) for number in range(1, signal.NSIG) if number not in (9, 19)}
    watched.install()
    try:
        yield watched
    finally:
        watched.restore()
        for number, handler in before.items():
            if handler is not None and signal.getsignal(number) is not handler:
                signal.signal(number, handler)


def test_a_signal_makes_the_next_step_ask_and_is_told_as_a_sentence(heard: Heard) -> None:
    gate = Gate()
    gate.open()
    with signals(heard, "USR1", gate=gate) as watched:
        os.kill(os.getpid(), signal.SIGUSR1)
        assert (gate.urgent, gate.limit, gate.poll_limit) == (True, 0, 0)
        (request,) = watched.take()
    assert request.why == "SIGUSR1 came: the job's time is nearly over"
    assert (request.save, request.stop) == (True, True)
    assert heard.said == []


def test_the_sentence_is_the_same_on_every_rank(heard: Heard) -> None:
    with signals(heard, "TERM") as watched:
        os.kill(os.getpid(), signal.SIGTERM)
        why = watched.take()[0].why
    assert str(os.getpid()) not in why and not re.search(r"\d", why)


def test_a_thousand_signals_are_one_wish(heard: Heard) -> None:
    with signals(heard, "USR1", "USR2") as watched:
        for _ in range(1000):
            os.kill(os.getpid(), signal.SIGUSR1)
        os.kill(os.getpid(), signal.SIGUSR2)
        assert [request.why.split()[0] for request in watched.take()] == ["SIGUSR1", "SIGUSR2"]
        os.kill(os.getpid(), signal.SIGUSR1)
        assert watched.take() == []
        watched.done("obeyed")
        os.kill(os.getpid(), signal.SIGUSR1)
        assert len(watched.take()) == 1


def test_a_training_that_does_not_step_is_asked_for_by_the_watching_thread(heard: Heard) -> None:
    with signals(heard, "USR1") as watched:
        assert watched.poll() is None
        os.kill(os.getpid(), signal.SIGUSR1)
        request = watched.poll()
        assert request is not None and "SIGUSR1" in request.why


def test_the_handler_that_was_there_is_called_as_well_and_comes_back(heard: Heard) -> None:
    calls: list[int] = []

    def mine(number: int, frame: object) -> None:
        calls.append(number)

    before = signal.signal(signal.SIGUSR1, mine)
    try:
        with signals(heard, "USR1") as watched:
            os.kill(os.getpid(), signal.SIGUSR1)
            assert (calls, len(watched.take())) == ([signal.SIGUSR1], 1)
        assert signal.getsignal(signal.SIGUSR1) is mine
    finally:
        signal.signal(signal.SIGUSR1, before)


def test_everything_is_given_back(heard: Heard) -> None:
    names = ("USR1", "USR2", "TERM", "HUP", "INT")
    before = {name: signal.getsignal(getattr(signal, f"SIG{name}")) for name in names}
    with signals(heard, *names):
        assert all(signal.getsignal(getattr(signal, f"SIG{name}")) != before[name] for name in names)
    assert {name: signal.getsignal(getattr(signal, f"SIG{name}")) for name in names} == before


def test_a_signal_to_another_thread_reaches_the_training_all_the_same(heard: Heard) -> None:
    is_over = threading.Event()
    thread = threading.Thread(target=is_over.wait)
    with signals(heard, "USR1") as watched:
        thread.start()
        assert thread.ident is not None
        signal.pthread_kill(thread.ident, signal.SIGUSR1)
        end = time.monotonic() + 10
        while not (taken := watched.take()) and time.monotonic() < end:
            time.sleep(0.001)
        is_over.set()
        thread.join()
    assert len(taken) == 1


def test_what_was_ignored_stays_ignored(heard: Heard) -> None:
    """nohup and the shells' background jobs mean it."""
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN), signal.signal(signal.SIGUSR2, signal.SIG_IGN)
    try:
        with signals(heard, "HUP", "USR2") as watched:
            os.kill(os.getpid(), signal.SIGHUP)
            assert (signal.getsignal(signal.SIGHUP), watched.take()) == (signal.SIG_IGN, [])
    finally:
        signal.signal(signal.SIGHUP, before[0])
        signal.signal(signal.SIGUSR2, before[1])
    assert "SIGUSR2 is ignored in this process" in heard
    assert "SIGHUP" not in heard


def test_a_handler_of_somebody_else_is_reported_once_by_its_name_and_left_alone(heard: Heard) -> None:
    def take_over(number: int, frame: object) -> None: ...

    with signals(heard, "USR1") as watched:
        watched.poll()
        assert heard.said == []
        signal.signal(signal.SIGUSR1, take_over)
        for _ in range(3):
            watched.poll()
        (said,) = heard.said
        assert re.search(r"SIGUSR1 was replaced by tests\.guard\.triggers\.test_signals\..*take_over", said)
        assert "stop file, the clock and the switches still do" in said and "RESIL_GUARD__SIGNALS" in said
        watched.restore()
        assert signal.getsignal(signal.SIGUSR1) is take_over


@pytest.mark.parametrize(("handler", "who"), [(signal.SIG_DFL, "the default action"), (signal.SIG_IGN, "SIG_IGN")])
def test_a_signal_reset_by_somebody_is_reported(heard: Heard, handler: Any, who: str) -> None:
    with signals(heard, "USR1") as watched:
        signal.signal(signal.SIGUSR1, handler)
        watched.poll()
    assert f"SIGUSR1 was replaced by {who}" in heard


class _Framework:
    """Keeps the handlers that were there, and calls them: as Lightning does."""

    def __init__(self, *kept: Any) -> None:
        self.signal_handlers = list(kept)

    def __call__(self, number: int, frame: Any) -> None:
        for handler in self.signal_handlers:
            handler(number, frame)


def _by_closure(kept: Any) -> Any:
    return lambda number, frame: kept(number, frame)


def _by_default(kept: Any) -> Any:
    def handler(number: int, frame: Any, before: Any = kept) -> None:
        before(number, frame)

    return handler


def _by_attribute(kept: Any) -> Any:
    framework = _Framework()
    framework.signal_handlers = kept
    return _Method(framework).handle


class _Method:
    def __init__(self, framework: _Framework) -> None:
        self.before = framework.signal_handlers

    def handle(self, number: int, frame: Any) -> None:
        self.before(number, frame)  # type: ignore[operator]


_kept_global: Any = None


def _by_global(kept: Any) -> Any:
    global _kept_global
    _kept_global = kept
    return lambda number, frame: _kept_global(number, frame)


@pytest.mark.parametrize("chain", [_Framework, _by_closure, _by_default, _by_attribute, _by_global])
def test_a_handler_that_calls_ours_is_no_replacement(heard: Heard, chain: Any) -> None:
    with signals(heard, "USR1") as watched:
        signal.signal(signal.SIGUSR1, chain(signal.getsignal(signal.SIGUSR1)))
        watched.poll()
        os.kill(os.getpid(), signal.SIGUSR1)
        assert len(watched.take()) == 1
    assert heard.said == []


def test_a_handler_that_calls_ours_after_the_guards_end_finds_nobody_there(heard: Heard) -> None:
    with signals(heard, "USR1") as watched:
        signal.signal(signal.SIGUSR1, _by_closure(signal.getsignal(signal.SIGUSR1)))
        watched.restore()
        os.kill(os.getpid(), signal.SIGUSR1)
        assert watched.take() == []


def test_handlers_are_taken_back_on_request_and_serve_whoever_took_them(heard: Heard) -> None:
    calls: list[int] = []
    with signals(heard, "USR1", "USR2") as watched:
        signal.signal(signal.SIGUSR1, lambda number, frame: calls.append(number))
        assert watched.reinstall() == ["SIGUSR1"]
        os.kill(os.getpid(), signal.SIGUSR1)
        assert (calls, len(watched.take())) == ([signal.SIGUSR1], 1)
        assert watched.reinstall() == []


def test_two_handlers_that_call_each_other_do_not_go_round_for_ever(heard: Heard) -> None:
    with signals(heard, "USR1") as watched:
        ours = signal.getsignal(signal.SIGUSR1)
        signal.signal(signal.SIGUSR1, _by_closure(ours))
        watched.reinstall()
        os.kill(os.getpid(), signal.SIGUSR1)
        assert len(watched.take()) == 1


def test_in_another_thread_it_is_said_that_signals_do_not_come(heard: Heard) -> None:
    place = RankInfo()
    watched = Signals(place, GuardSettings(signals=("USR1", "TERM")), Recorder(place, heard), Gate())
    before = signal.getsignal(signal.SIGUSR1)
    for act in (watched.install, watched.poll, watched.restore):
        thread = threading.Thread(target=act)
        thread.start()
        thread.join()
    (said,) = heard.said
    assert re.search(r"thread other than the main one.*SIGUSR1, SIGTERM do not reach it.*guard\.start\(\)", said)
    assert signal.getsignal(signal.SIGUSR1) is before


def test_a_blocked_signal_is_named(heard: Heard) -> None:
    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGUSR1})
    try:
        with signals(heard, "USR1"):
            pass
    finally:
        signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGUSR1})
    assert "SIGUSR1 is blocked" in heard


# ---- real trainings, real signals


@pytest.mark.parametrize("name", ["USR1", "USR2", "TERM", "HUP"])
def test_each_signal_that_is_set_stops_at_the_next_step(name: str) -> None:
    with training(
        """
        with guarded(signals=("USR1", "USR2", "TERM", "HUP")) as guard:
            ready()
            train(guard)
        sys.exit(guard.exit_code)
        """.replace("\n        ", "\n")
    ) as run:
        run.until("ready")
        run.send(getattr(signal, f"SIG{name}"))
        decided = run.until("decided")
        assert f"save and stop, because SIG{name} came" in decided
        assert run.end()[0] == 75


def test_slurms_usr1_and_cont_in_any_order() -> None:
    with training("with guarded() as guard:\n    ready()\n    train(guard)\nsys.exit(guard.exit_code)") as run:
        run.until("ready")
        run.send(signal.SIGCONT, signal.SIGUSR1, signal.SIGCONT)
        run.until("decided")
        assert run.end()[0] == 75


def test_slurms_two_terms_do_not_end_the_save() -> None:
    """slurmstepd and srun both tell a task that it ends."""
    with training(
        """
with guarded() as guard:
    ready()
    if train(guard).save:
        with guard.saving():
            ready()
            time.sleep(2.5)
            print("saved", flush=True)
sys.exit(guard.exit_code)
"""
    ) as run:
        run.until("ready")
        run.send(signal.SIGTERM)
        time.sleep(0.2)  # else the kernel makes one of two; within the second in which SLURM sends both
        run.send(signal.SIGTERM)
        run.until("ready")
        time.sleep(AGAIN_S + 0.1)
        run.send(signal.SIGTERM)  # later than that, but a save is running
        code, said = run.end()
    assert (code, "saved" in said) == (75, True)


def test_slurms_two_terms_are_one_outside_of_a_save_too() -> None:
    with training(
        """
with guarded() as guard:
    ready()
    end = time.monotonic() + 1.5
    while time.monotonic() < end: time.sleep(0.01)
    train(guard)
sys.exit(guard.exit_code)
"""
    ) as run:
        run.until("ready")
        run.send(signal.SIGTERM)
        time.sleep(0.2)
        run.send(signal.SIGTERM)
        run.until("decided")
        assert run.end()[0] == 75


def test_a_second_term_takes_effect_at_once() -> None:
    with training("with guarded() as guard:\n    ready()\n    while True: time.sleep(0.01)") as run:
        run.until("ready")
        run.send(signal.SIGTERM)
        time.sleep(AGAIN_S + 0.1)
        assert run.process.poll() is None
        run.send(signal.SIGTERM)
        assert run.end()[0] == -signal.SIGTERM


def test_int_twice_is_now_and_once_is_a_stop() -> None:
    with training(
        """
with guarded(signals=("INT",)) as guard:
    signal.set_wakeup_fd(os.open("/dev/null", os.O_WRONLY | os.O_NONBLOCK))
    ready()
    while not guard.urgent: time.sleep(0.005)
    print("flagged", flush=True)
    time.sleep(60)
"""
    ) as run:
        run.until("ready")
        run.send(signal.SIGINT)
        run.until("flagged")
        run.send(signal.SIGINT)
        code, said = run.end()
    assert (code, "KeyboardInterrupt" in said) == (-signal.SIGINT, True)


def test_a_signal_during_imports_waits_for_the_first_step(tmp_path: Path) -> None:
    (tmp_path / "heavy.py").write_text("import time\nprint('ready', flush=True)\ntime.sleep(1)\n")
    with training(
        f"""
sys.path.insert(0, {str(tmp_path)!r})
with guarded() as guard:
    import heavy
    train(guard)
sys.exit(guard.exit_code)
"""
    ) as run:
        run.until("ready")
        run.send(signal.SIGUSR1)
        assert "step 1: save and stop" in run.until("decided")


def test_a_signal_during_a_long_call_into_c_waits_for_its_end() -> None:
    with training(
        """
import ctypes
sleep = ctypes.PyDLL(None).usleep  # holds the interpreter's lock
with guarded() as guard:
    guard.step()
    ready()
    sleep(1_000_000)
    train(guard)
sys.exit(guard.exit_code)
"""
    ) as run:
        run.until("ready")
        run.send(signal.SIGUSR1)
        run.until("decided")
        assert run.end()[0] == 75


def test_c_code_that_cannot_bear_eintr_is_not_interrupted_by_usr1() -> None:
    with training(
        """
import ctypes
libc = ctypes.CDLL(None, use_errno=True)
ours, theirs = os.pipe()
with guarded() as guard:
    threading.Timer(0.6, lambda: os.write(theirs, b"x")).start()
    threading.Timer(0.2, lambda: os.kill(os.getpid(), signal.SIGUSR1)).start()
    print("read", libc.read(ours, ctypes.create_string_buffer(1), 1), flush=True)
    train(guard)
"""
    ) as run:
        assert run.until("read").split() == ["read", "1"]
        run.until("decided")


def test_a_signal_in_a_save_does_not_disturb_it() -> None:
    with training(
        """
with guarded() as guard:
    with guard.saving():
        ready()
        end = time.monotonic() + 0.5
        while time.monotonic() < end: pass
        print("saved", flush=True)
    train(guard)
sys.exit(guard.exit_code)
"""
    ) as run:
        run.until("ready")
        run.send(signal.SIGUSR1, signal.SIGTERM)
        run.until("saved")
        decided = run.until("decided")
        assert "SIGUSR1 came" in decided and "SIGTERM came" in decided


def test_a_burst_while_threads_run_and_the_main_thread_holds_locks() -> None:
    with training(
        """
import logging
logging.basicConfig(stream=open(os.devnull, "w"))
lock = threading.Lock()
def work():
    while True:
        with lock: logging.warning("x")
for _ in range(3): threading.Thread(target=work, daemon=True).start()
with guarded() as guard:
    ready()
    decision = None
    while not decision:
        with lock, logging.root.handlers[0].lock:
            end = time.monotonic() + 0.005
            while time.monotonic() < end: pass
        decision = guard.step()
    print("decided", decision, flush=True)
    sys.stdout.flush()
    os._exit(guard.decided.exit_code)
"""
    ) as run:
        run.until("ready")
        for _ in range(1000):
            run.send(signal.SIGUSR1)
        run.until("decided")
        assert run.end()[0] == 75


def test_a_signal_to_a_training_that_hangs_before_its_first_step_is_wished_nevertheless() -> None:
    with training(
        """
with guarded() as guard:
    ready()
    end = time.monotonic() + 20
    while not guard._runtime.agreement._requests and time.monotonic() < end: time.sleep(0.01)
    print("wished", guard._runtime.agreement._requests, flush=True)
"""
    ) as run:
        run.until("ready")
        run.send(signal.SIGUSR1)
        assert "SIGUSR1 came" in run.until("wished")


STUCK = """
import ctypes
def wait_in_c():  # a mutex (pthread_mutex_lock(3)) goes on waiting after a signal: Python's own handler is not called
    mutex = ctypes.create_string_buffer(64)
    ctypes.CDLL(None).pthread_mutex_lock(mutex)
    ready()
    ctypes.CDLL(None).pthread_mutex_lock(mutex)
def report():
    while not guard._runtime.agreement._requests: time.sleep(0.01)
    print("wished", guard._runtime.agreement._requests, flush=True)
guard = guarded()
"""


def test_a_signal_is_noticed_while_the_training_waits_in_a_library() -> None:
    script = STUCK + "with guard:\n    threading.Thread(target=report, daemon=True, name='r').start()\n    wait_in_c()"
    with training(script) as run:
        run.until("ready")
        run.send(signal.SIGUSR1)
        assert "SIGUSR1 came" in run.until("wished")
        run.process.kill()


def test_a_second_term_ends_a_training_that_waits_in_a_library() -> None:
    script = STUCK + "with guard:\n    threading.Thread(target=report, daemon=True, name='r').start()\n    wait_in_c()"
    with training(script) as run:
        run.until("ready")
        run.send(signal.SIGTERM)
        assert "SIGTERM came" in run.until("wished")
        time.sleep(AGAIN_S)
        assert run.process.poll() is None
        run.send(signal.SIGTERM)
        code, said = run.end()
    assert (code, "it ends now" in said) == (-signal.SIGTERM, True)


@pytest.mark.parametrize("launcher", ["is gone", "is there"])
def test_a_second_term_in_a_save_counts_where_nobody_will_ask_again(launcher: str) -> None:
    save = "with guarded() as guard, guard.saving():\n    print('ready', os.getpid(), flush=True)\n    time.sleep(4)\n"
    program = f"{PRELUDE}{save}print('saved', flush=True)"
    shell = subprocess.Popen(  # it stands between us and the training
        ["sh", "-c", '"$0" -u -c "$1" & wait; exit 3', sys.executable, program],
        cwd=ROOT, stdout=subprocess.PIPE, stdin=subprocess.DEVNULL, text=True,
    )  # fmt: skip
    assert shell.stdout is not None
    try:
        pid = int(next(line for line in shell.stdout if line.startswith("ready")).split()[1])
        if launcher == "is gone":
            shell.kill()
            shell.wait(20)
        os.kill(pid, signal.SIGTERM)
        time.sleep(AGAIN_S + 0.2)
        os.kill(pid, signal.SIGTERM)
        assert ("saved" in shell.stdout.read()) is (launcher == "is there")
    finally:
        shell.kill()
        shell.wait(20)
        shell.stdout.close()


def test_a_signal_to_a_forked_child_does_not_count_in_its_parent() -> None:
    with training(
        """
with guarded() as guard:
    guard.step()
    child = os.fork()
    if child == 0:
        signal.signal(signal.SIGTERM, lambda *_: os._exit(0))
        time.sleep(30)
    time.sleep(0.2)
    os.kill(child, signal.SIGTERM)
    os.waitpid(child, 0)
    time.sleep(0.5)
    print("heard", guard._runtime.signals._heard, guard.urgent, flush=True)
"""
    ) as run:
        assert run.until("heard").split(maxsplit=1)[1].strip() == "{} False"


def test_a_loop_of_asyncio_keeps_its_own_way_of_hearing_signals() -> None:
    with training(
        """
import asyncio
async def main():
    with guarded() as guard:
        asyncio.get_running_loop().add_signal_handler(signal.SIGUSR2, lambda: print("usr2", flush=True))
        ready()
        while not guard.urgent: await asyncio.sleep(0.01)
        train(guard)
asyncio.run(main())
"""
    ) as run:
        run.until("ready")
        run.send(signal.SIGUSR2)
        run.until("usr2")
        run.send(signal.SIGUSR1)
        run.until("decided")
        assert run.end()[0] == 0


def test_who_waits_at_the_end_is_hurried_by_another_signal_and_not_by_slurms_second_one(heard: Heard) -> None:
    since = 100.0
    found = Signals(RankInfo(), GuardSettings(), Recorder(RankInfo(), heard), Gate())
    table = [
        # (first, last, hurries)
        (0.0, 0.0, False),
        (99.0, 99.5, False),  # all before the end
        (99.5, 100.2, False),  # SLURM's two
        (99.5, 100.9, True),
        (100.3, 100.3, True),  # the first one of all
    ]
    for first, last, expected in table:
        found._first[signal.SIGTERM], found._last[signal.SIGTERM] = first, last
        assert found.hurries(since) is expected, (first, last)
    assert not found.hurries(0.0), "nobody leaves"


def test_a_guard_that_its_first_step_starts_says_that_this_is_late(heard: Heard) -> None:
    gate = Gate()
    gate.count = 1
    place = RankInfo(job_id="12")
    watched = Signals(place, GuardSettings(signals=("USR1",)), Recorder(place, heard), gate)
    watched.install()
    watched.restore()
    assert "started by its first step" in heard


# ---- below Python


def test_a_c_handler_set_later_is_found_and_its_library_named() -> None:
    """As NCCL did with SIGUSR1 in 2022."""
    with training(
        """
import ctypes, faulthandler
with guarded() as guard:
    time.sleep(0.5)  # the first look
    faulthandler.register(signal.SIGUSR1, file=open(os.devnull, "w"))
    ready()
    time.sleep(3)
"""
    ) as run:
        said = run.until("said")
        assert re.search(r"SIGUSR1 was replaced by (lib)?python", said), said


def test_a_c_handler_that_was_there_is_named_and_given_back() -> None:
    with training(
        """
import faulthandler
file = open(os.devnull, "w")
faulthandler.register(signal.SIGUSR1, file=file, all_threads=False)
from resilience.guard.signal_actions import address_of, read_action
before = address_of(read_action(signal.SIGUSR1))
with guarded() as guard:
    assert address_of(read_action(signal.SIGUSR1)) != before
    os.kill(os.getpid(), signal.SIGUSR1)
    train(guard)
assert address_of(read_action(signal.SIGUSR1)) == before
os.kill(os.getpid(), signal.SIGUSR1)
print("alive", flush=True)
"""
    ) as run:
        assert re.search(r"SIGUSR1 was handled by .*before the guard came", run.until("said"))
        run.until("decided")
        run.until("alive")


def test_a_handler_taken_away_below_python_is_reported(heard: Heard) -> None:
    import ctypes

    libc = ctypes.CDLL(None)
    libc.signal.argtypes, libc.signal.restype = [ctypes.c_int, ctypes.c_void_p], ctypes.c_void_p
    with signals(heard, "USR1", "USR2") as watched:
        watched.poll()
        ours = libc.signal(signal.SIGUSR1, 0)
        libc.signal(signal.SIGUSR2, 1)
        watched.poll()
        libc.signal(signal.SIGUSR1, ours)
        libc.signal(signal.SIGUSR2, ours)
    assert "SIGUSR1 was replaced by the default action" in heard
    assert "SIGUSR2 was replaced by SIG_IGN" in heard


def test_without_ctypes_proc_tells_that_nobody_handles_it(heard: Heard, monkeypatch: pytest.MonkeyPatch) -> None:
    import ctypes

    libc = ctypes.CDLL(None)
    libc.signal.argtypes, libc.signal.restype = [ctypes.c_int, ctypes.c_void_p], ctypes.c_void_p
    monkeypatch.setattr("resilience.guard.signal_actions.read_action", lambda number: None)
    with signals(heard, "USR1") as watched:
        watched.poll()
        assert heard.said == []
        ours = libc.signal(signal.SIGUSR1, 0)
        watched.poll()
        libc.signal(signal.SIGUSR1, ours)
    assert "SIGUSR1 was replaced by nobody" in heard


# ---- forked children


def test_a_forked_worker_dies_of_term_in_the_middle_of_a_call_into_c() -> None:
    """Where no Python handler can run: so it must be the kernel's default again."""
    with training(
        """
import itertools
with guarded() as guard:
    ours, theirs = os.pipe()
    child = os.fork()
    if child == 0:
        os.write(theirs, b"x")
        sum(itertools.repeat(1, 10**9))
        os._exit(7)
    os.read(ours, 1)
    time.sleep(0.3)  # by then it is in the middle of its sum
    os.kill(child, signal.SIGTERM)
    end = time.monotonic() + 3
    while not (ended := os.waitpid(child, os.WNOHANG))[0] and time.monotonic() < end: time.sleep(0.01)
    if not ended[0]: os.kill(child, signal.SIGKILL)
    print("child", os.waitstatus_to_exitcode(ended[1]) if ended[0] else "lives", flush=True)
"""
    ) as run:
        assert run.until("child").split()[1] == str(-signal.SIGTERM)


@pytest.mark.parametrize(
    ("name", "code"), [("TERM", -signal.SIGTERM), ("HUP", -signal.SIGHUP), ("USR1", 7), ("USR2", 7)]
)
def test_a_forked_worker_dies_of_term_and_does_not_hear_usr1(name: str, code: int) -> None:
    with training(
        f"""
with guarded(signals=("USR1", "USR2", "TERM", "HUP")) as guard:
    ours, theirs = os.pipe()
    child = os.fork()
    if child == 0:
        os.write(theirs, b"x")
        time.sleep(0.5)
        os._exit(7)
    os.read(ours, 1)
    os.kill(child, signal.SIG{name})
    print("child", os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), flush=True)
    print("parent", train(guard, steps=20), flush=True)
"""
    ) as run:
        assert int(run.until("child").split()[1]) == code
        assert run.until("parent").split()[1] == "None"


def test_a_child_forked_past_pythons_hooks_dies_of_term_too() -> None:
    with training(
        """
import ctypes
with guarded(signals=("USR1", "TERM")) as guard:
    ours, theirs = os.pipe()
    child = ctypes.PyDLL(None).fork()
    if child == 0:
        os.kill(os.getpid(), signal.SIGUSR1)
        os.write(theirs, b"x")
        for _ in range(100): time.sleep(0.05)
        os._exit(7)
    os.read(ours, 1)
    os.kill(child, signal.SIGTERM)
    print("child", os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), flush=True)
"""
    ) as run:
        assert int(run.until("child").split()[1]) == -signal.SIGTERM


def test_a_program_started_by_a_forked_worker_inherits_nothing() -> None:
    with training(
        """
import subprocess
with guarded() as guard:
    child = os.fork()
    if child == 0:
        os.execv("/bin/sh", ["sh", "-c", "kill -USR1 $$; exit 7"])
    print("child", os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), flush=True)
"""
    ) as run:
        assert int(run.until("child").split()[1]) == -signal.SIGUSR1


def test_workers_of_a_torch_loader_end_at_terms_and_pass_over_usr1() -> None:
    pytest.importorskip("torch", reason="torch is not installed: scripts/environment dev")
    with training(
        """
import torch.utils.data as data
class Numbers(data.Dataset):
    def __len__(self): return 64
    def __getitem__(self, index): time.sleep(0.005); return index
with guarded() as guard:
    loader = data.DataLoader(Numbers(), batch_size=2, num_workers=2, multiprocessing_context="fork")
    batches = iter(loader)
    count = 1 + (next(batches) is None)
    workers = [worker.pid for worker in batches._workers]
    for worker in workers: os.kill(worker, signal.SIGUSR1)
    count += sum(1 for _ in batches)
    print("batches", count, flush=True)
    batches = iter(loader)
    next(batches)
    doomed = batches._workers[0]
    doomed.terminate()
    doomed.join(10)
    print("worker", doomed.exitcode, flush=True)
    print("parent", train(guard, steps=20), flush=True)
    os._exit(0)
"""
    ) as run:
        assert run.until("batches").split()[1] == "32"
        assert run.until("worker").split()[1] in ("0", "-15")  # torch's own handler of SIGTERM exits with 0
        assert run.until("parent").split()[1] == "None"
