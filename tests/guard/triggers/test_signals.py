"""A signal to a training sets a flag and nothing else, whenever it comes; whoever was there before is still served."""

from __future__ import annotations

import ctypes
import os
import re
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from resilience.guard.gate import Gate
from resilience.guard.rank_info import RankInfo
from resilience.guard.recorder import Recorder
from resilience.guard.settings import GuardSettings
from resilience.guard.triggers.signals import AGAIN_S, Signals

ROOT = Path(__file__).parents[3]

TERM, HUP, INT, USR1, USR2 = signal.SIGTERM, signal.SIGHUP, signal.SIGINT, signal.SIGUSR1, signal.SIGUSR2

PRELUDE = """
import ctypes, os, signal, sys, threading, time
from resilience.guard import TrainingGuard
QUIET = dict(host_memory=False, gpu_memory="off", walltime=False, poll_s=0.05)

def say(*words):
    os.write(1, (" ".join(map(str, words)) + "\\n").encode())  # in one piece: the guard's thread says something, too

def guarded(**settings):
    return TrainingGuard.from_env({}, say=lambda text: say("said", text), **{**QUIET, **settings})

def train(guard, steps=2000):
    for _ in range(steps):
        decision = guard.step()
        if decision:
            say("decided", decision)
            return decision
        time.sleep(0.005)
    say("undecided")

def spin(seconds):
    end = time.monotonic() + seconds
    while time.monotonic() < end: pass

def fork(work, fork=os.fork):
    '''A child that is in `work` when this returns, and exits with 7 after it.'''
    ours, theirs = os.pipe()
    child = fork()
    if child == 0:
        os.write(theirs, b"x")
        work()
        os._exit(7)
    os.read(ours, 1)
    return child

def say_how_it_ended(child):
    say("child", os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
"""
EXIT = "\nsys.exit(guard.exit_code)\n"
TRAINS = "with guarded() as guard:\n    say('ready')\n    train(guard)"


class Training:
    """A process whose lines are read as they come; it exits with the guard's exit code."""

    def __init__(self, script: str) -> None:
        self.process = subprocess.Popen(
            [sys.executable, "-u", "-c", PRELUDE + script + EXIT],
            cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, stdin=subprocess.DEVNULL, text=True,
        )  # fmt: skip
        self.lines: list[str] = []

    def wait_for(self, begin: str) -> str:
        """Return the next line that begins so."""
        assert self.process.stdout is not None
        line: str
        for line in self.process.stdout:
            self.lines.append(line)
            if line.startswith(begin):
                return line
        raise AssertionError(f"no line {begin!r} in:\n{''.join(self.lines)}")


class Played(NamedTuple):
    exit_code: int
    line: str
    """The last line that was waited for."""
    output: str


def play(script: str, *story: str | signal.Signals | float, ends: bool = True) -> Played:
    """Run a training along a story: wait for a line (a text), send a signal, or let seconds pass. Then wait for its
    end, or kill it."""
    training, line = Training(script), ""
    try:
        for event in story:
            if isinstance(event, str):
                line = training.wait_for(event)
            elif isinstance(event, signal.Signals):
                training.process.send_signal(event)
            else:
                time.sleep(event)
                assert training.process.poll() is None, "it ended too early"
        if not ends:
            training.process.kill()
        rest, _ = training.process.communicate(timeout=60)
        return Played(training.process.returncode, line, "".join(training.lines) + rest)
    finally:
        training.process.kill()
        training.process.communicate()


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
def signals(
    heard: Heard,
    *names: str,
    gate: Gate | None = None,
    place: RankInfo = RankInfo(),  # noqa: B008
) -> Iterator[Signals]:
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


@contextmanager
def handled_by(handler: Any, *numbers: int) -> Iterator[None]:
    before = {number: signal.signal(number, handler) for number in numbers}
    try:
        yield
    finally:
        for number, earlier in before.items():
            signal.signal(number, earlier)


def test_a_signal_makes_the_next_step_ask_and_is_explained_by_a_sentence(heard: Heard) -> None:
    gate = Gate()
    gate.open()
    with signals(heard, "USR1", gate=gate) as watched:
        os.kill(os.getpid(), USR1)
        assert (gate.urgent, gate.limit, gate.poll_limit) == (True, 0, 0)
        (request,) = watched.take()
    assert request.why == "SIGUSR1 received: the job's time is nearly over"
    assert (request.save, request.stop) == (True, True)
    assert heard.said == []


def test_the_sentence_is_the_same_on_every_rank(heard: Heard) -> None:
    with signals(heard, "TERM") as watched:
        os.kill(os.getpid(), TERM)
        why = watched.take()[0].why
    assert str(os.getpid()) not in why and not re.search(r"\d", why)


def test_a_thousand_signals_are_one_wish(heard: Heard) -> None:
    with signals(heard, "USR1", "USR2") as watched:
        for _ in range(1000):
            os.kill(os.getpid(), USR1)
        os.kill(os.getpid(), USR2)
        assert [request.why.split()[0] for request in watched.take()] == ["SIGUSR1", "SIGUSR2"]
        os.kill(os.getpid(), USR1)
        assert watched.take() == []
        watched.done("obeyed")
        os.kill(os.getpid(), USR1)
        assert len(watched.take()) == 1


def test_a_training_that_does_not_step_is_asked_for_by_the_watching_thread(heard: Heard) -> None:
    with signals(heard, "USR1") as watched:
        assert watched.poll() is None
        os.kill(os.getpid(), USR1)
        request = watched.poll()
        assert request is not None and "SIGUSR1" in request.why


def test_the_handler_that_was_there_is_called_as_well_and_comes_back(heard: Heard) -> None:
    calls: list[int] = []

    def mine(number: int, frame: object) -> None:
        calls.append(number)

    with handled_by(mine, USR1):
        with signals(heard, "USR1") as watched:
            os.kill(os.getpid(), USR1)
            assert (calls, len(watched.take())) == ([USR1], 1)
        assert signal.getsignal(USR1) is mine


def test_everything_is_given_back(heard: Heard) -> None:
    numbers = (USR1, USR2, TERM, HUP, INT)
    before = [signal.getsignal(number) for number in numbers]
    with signals(heard, *(number.name.removeprefix("SIG") for number in numbers)):
        assert not {signal.getsignal(number) for number in numbers} & set(before)
    assert [signal.getsignal(number) for number in numbers] == before


def test_a_signal_to_another_thread_reaches_the_training_all_the_same(heard: Heard) -> None:
    is_over = threading.Event()
    thread = threading.Thread(target=is_over.wait)
    with signals(heard, "USR1") as watched:
        thread.start()
        assert thread.ident is not None
        signal.pthread_kill(thread.ident, USR1)
        end = time.monotonic() + 10
        while not (taken := watched.take()) and time.monotonic() < end:
            time.sleep(0.001)
        is_over.set()
        thread.join()
    assert len(taken) == 1


def test_what_was_ignored_stays_ignored(heard: Heard) -> None:
    """nohup and the shells' background jobs mean it."""
    with handled_by(signal.SIG_IGN, HUP, USR2), signals(heard, "HUP", "USR2") as watched:
        os.kill(os.getpid(), HUP)
        assert (signal.getsignal(HUP), watched.take()) == (signal.SIG_IGN, [])
    assert "SIGUSR2 was ignored when this process started" in heard
    assert "SIGHUP" not in heard


def test_a_handler_of_somebody_else_is_reported_once_by_its_name_and_left_alone(heard: Heard) -> None:
    def take_over(number: int, frame: object) -> None: ...

    with signals(heard, "USR1") as watched:
        watched.poll()
        assert heard.said == []
        signal.signal(USR1, take_over)
        for _ in range(3):
            watched.poll()
        (said,) = heard.said
        assert re.search(r"SIGUSR1 was replaced by tests\.guard\.triggers\.test_signals\..*take_over", said)
        assert "stop file, the guard's clock and the switches still work" in said and "RESIL_GUARD__SIGNALS" in said
        watched.restore()
        assert signal.getsignal(USR1) is take_over


@pytest.mark.parametrize(("handler", "who"), [(signal.SIG_DFL, "the default action"), (signal.SIG_IGN, "SIG_IGN")])
def test_a_signal_reset_by_somebody_is_reported(heard: Heard, handler: Any, who: str) -> None:
    with signals(heard, "USR1") as watched:
        signal.signal(USR1, handler)
        watched.poll()
    assert f"SIGUSR1 was replaced by {who}" in heard


class Framework:
    """Keeps the handlers that were there, and calls them: as Lightning does."""

    def __init__(self, *kept: Any) -> None:
        self.signal_handlers = list(kept)

    def __call__(self, number: int, frame: Any) -> None:
        for handler in self.signal_handlers:
            handler(number, frame)


class Method:
    def __init__(self, kept: Any) -> None:
        self.before = kept

    def handle(self, number: int, frame: Any) -> None:
        self.before(number, frame)


kept_global: Any = None


def by_global(kept: Any) -> Any:
    global kept_global
    kept_global = kept
    return lambda number, frame: kept_global(number, frame)


CHAINS: dict[str, Callable[[Any], Any]] = {
    "a list": Framework,
    "a closure": lambda kept: lambda number, frame: kept(number, frame),
    "a default": lambda kept: lambda number, frame, before=kept: before(number, frame),
    "an attribute": lambda kept: Method(kept).handle,
    "a global": by_global,
}


@pytest.mark.parametrize("kept_by", CHAINS)
def test_a_handler_that_calls_ours_is_no_replacement(heard: Heard, kept_by: str) -> None:
    with signals(heard, "USR1") as watched:
        signal.signal(USR1, CHAINS[kept_by](signal.getsignal(USR1)))
        watched.poll()
        os.kill(os.getpid(), USR1)
        assert len(watched.take()) == 1
    assert heard.said == []


def test_a_handler_that_calls_ours_after_the_guards_end_finds_nobody_there(heard: Heard) -> None:
    with signals(heard, "USR1") as watched:
        signal.signal(USR1, CHAINS["a closure"](signal.getsignal(USR1)))
        watched.restore()
        os.kill(os.getpid(), USR1)
        assert watched.take() == []


def test_handlers_are_taken_back_on_request_and_serve_whoever_took_them(heard: Heard) -> None:
    calls: list[int] = []
    with signals(heard, "USR1", "USR2") as watched:
        signal.signal(USR1, lambda number, frame: calls.append(number))
        assert watched.reinstall() == ["SIGUSR1"]
        os.kill(os.getpid(), USR1)
        assert (calls, len(watched.take())) == ([USR1], 1)
        assert watched.reinstall() == []


def test_two_handlers_that_call_each_other_do_not_go_round_for_ever(heard: Heard) -> None:
    with signals(heard, "USR1") as watched:
        ours = signal.getsignal(USR1)
        signal.signal(USR1, CHAINS["a closure"](ours))
        watched.reinstall()
        os.kill(os.getpid(), USR1)
        assert len(watched.take()) == 1


def test_in_another_thread_it_is_said_that_signals_do_not_come(heard: Heard) -> None:
    watched = Signals(RankInfo(), GuardSettings(signals=("USR1", "TERM")), Recorder(RankInfo(), heard), Gate())
    before = signal.getsignal(USR1)
    for act in (watched.install, watched.poll, watched.restore):
        thread = threading.Thread(target=act)
        thread.start()
        thread.join()
    (said,) = heard.said
    assert re.search(r"started outside the main thread.*SIGUSR1, SIGTERM do not reach it.*guard\.start\(\)", said)
    assert signal.getsignal(USR1) is before


def test_a_blocked_signal_is_named(heard: Heard) -> None:
    signal.pthread_sigmask(signal.SIG_BLOCK, {USR1})
    try:
        with signals(heard, "USR1"):
            pass
    finally:
        signal.pthread_sigmask(signal.SIG_UNBLOCK, {USR1})
    assert "SIGUSR1 is blocked" in heard


# ---- real trainings, real signals


@pytest.mark.parametrize("name", ["USR1", "USR2", "TERM", "HUP"])
def test_each_signal_that_is_set_stops_at_the_next_step(name: str) -> None:
    script = TRAINS.replace("guarded()", 'guarded(signals=("USR1", "USR2", "TERM", "HUP"))')
    played = play(script, "ready", signal.Signals[f"SIG{name}"], "decided")
    assert f"save and stop, because SIG{name} received" in played.line
    assert played.exit_code == 75


def test_slurms_usr1_and_cont_in_any_order() -> None:
    assert play(TRAINS, "ready", signal.SIGCONT, USR1, signal.SIGCONT, "decided").exit_code == 75


def test_slurms_two_terms_do_not_end_the_save() -> None:
    """slurmstepd and srun both tell a task that it ends."""
    script = """
with guarded() as guard:
    say("ready")
    if train(guard).save:
        with guard.saving():
            say("saves")
            time.sleep(2.5)
            say("saved")
"""
    pause_s = 0.2  # else the kernel makes one of two; within the second in which SLURM sends both
    played = play(script, "ready", TERM, pause_s, TERM, "saves", AGAIN_S + 0.1, TERM)  # the last in a running save
    assert (played.exit_code, "saved" in played.output) == (75, True)


def test_slurms_two_terms_are_one_outside_of_a_save_too() -> None:
    script = TRAINS.replace("train(", "time.sleep(1.5); train(")
    assert play(script, "ready", TERM, 0.2, TERM, "decided").exit_code == 75


def test_a_second_term_takes_effect_at_once() -> None:
    script = "with guarded() as guard:\n    say('ready')\n    while True: time.sleep(0.01)"
    assert play(script, "ready", TERM, AGAIN_S + 0.1, TERM).exit_code == -TERM


def test_int_twice_is_now_and_once_is_a_stop() -> None:
    script = """
with guarded(signals=("INT",)) as guard:
    signal.set_wakeup_fd(os.open("/dev/null", os.O_WRONLY | os.O_NONBLOCK))
    say("ready")
    while not guard.urgent: time.sleep(0.005)
    say("flagged")
    time.sleep(60)
"""
    played = play(script, "ready", INT, "flagged", INT)
    assert (played.exit_code, "KeyboardInterrupt" in played.output) == (-INT, True)


def test_a_signal_during_imports_waits_for_the_first_step(tmp_path: Path) -> None:
    (tmp_path / "heavy.py").write_text("import time\nprint('ready', flush=True)\ntime.sleep(1)\n")
    script = f"""
sys.path.insert(0, {str(tmp_path)!r})
with guarded() as guard:
    import heavy
    train(guard)
"""
    assert "step 1: save and stop" in play(script, "ready", USR1, "decided").line


def test_a_signal_during_a_long_call_into_c_waits_for_its_end() -> None:
    script = """
sleep = ctypes.PyDLL(None).usleep  # holds the interpreter's lock
with guarded() as guard:
    guard.step()
    say("ready")
    sleep(1_000_000)
    train(guard)
"""
    assert play(script, "ready", USR1, "decided").exit_code == 75


def test_c_code_that_cannot_bear_eintr_is_not_interrupted_by_usr1() -> None:
    script = """
libc = ctypes.CDLL(None, use_errno=True)
ours, theirs = os.pipe()
with guarded() as guard:
    threading.Timer(0.6, lambda: os.write(theirs, b"x")).start()
    threading.Timer(0.2, lambda: os.kill(os.getpid(), signal.SIGUSR1)).start()
    say("read", libc.read(ours, ctypes.create_string_buffer(1), 1))
    train(guard)
"""
    assert "read 1\n" in play(script, "read", "decided").output


def test_a_signal_in_a_save_does_not_disturb_it() -> None:
    script = """
with guarded() as guard:
    with guard.saving():
        say("ready")
        spin(0.5)
        say("saved")
    train(guard)
"""
    decided = play(script, "ready", USR1, TERM, "saved", "decided").line
    assert "SIGUSR1 received" in decided and "SIGTERM received" in decided


def test_a_burst_while_threads_run_and_the_main_thread_holds_locks() -> None:
    script = """
import logging
logging.basicConfig(stream=open(os.devnull, "w"))
lock = threading.Lock()
def work():
    while True:
        with lock: logging.warning("x")
for _ in range(3): threading.Thread(target=work, daemon=True).start()
with guarded() as guard:
    say("ready")
    decision = None
    while not decision:
        with lock, logging.root.handlers[0].lock: spin(0.005)
        decision = guard.step()
    say("decided", decision)
    os._exit(guard.decided.exit_code)
"""
    assert play(script, "ready", *[USR1] * 1000, "decided").exit_code == 75


REPORT = """
def report():
    while not guard._runtime.agreement._requests: time.sleep(0.01)
    say("wished", guard._runtime.agreement._requests)
"""
STUCK = f"""
def wait_in_c():  # a mutex (pthread_mutex_lock(3)) goes on waiting after a signal: Python's own handler is not called
    mutex = ctypes.create_string_buffer(64)
    ctypes.CDLL(None).pthread_mutex_lock(mutex)
    say("ready")
    ctypes.CDLL(None).pthread_mutex_lock(mutex)
{REPORT}
guard = guarded()
with guard:
    threading.Thread(target=report, daemon=True, name="r").start()
    wait_in_c()
"""


def test_a_signal_to_a_training_that_hangs_before_its_first_step_is_wished_nevertheless() -> None:
    script = f"{REPORT}\nwith guarded() as guard:\n    say('ready')\n    report()"
    assert "SIGUSR1 received" in play(script, "ready", USR1, "wished").line


def test_a_signal_is_noticed_while_the_training_waits_in_a_library() -> None:
    assert "SIGUSR1 received" in play(STUCK, "ready", USR1, "wished", ends=False).line


def test_a_second_term_ends_a_training_that_waits_in_a_library() -> None:
    played = play(STUCK, "ready", TERM, "wished", AGAIN_S, TERM)
    assert "SIGTERM received" in played.line
    assert (played.exit_code, "ending the process" in played.output) == (-TERM, True)


@pytest.mark.parametrize("launcher", ["is gone", "is there"])
def test_a_second_term_in_a_save_counts_where_nobody_will_ask_again(launcher: str) -> None:
    save = "with guarded() as guard, guard.saving():\n    say('ready', os.getpid())\n    time.sleep(4)\n"
    program = f"{PRELUDE}{save}say('saved')"
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
        os.kill(pid, TERM)
        time.sleep(AGAIN_S + 0.2)
        os.kill(pid, TERM)
        assert ("saved" in shell.stdout.read()) is (launcher == "is there")
    finally:
        shell.kill()
        shell.wait(20)
        shell.stdout.close()


def test_a_signal_to_a_forked_child_does_not_count_in_its_parent() -> None:
    script = """
def wait_for_term():
    signal.signal(signal.SIGTERM, lambda *_: os._exit(0))
    time.sleep(30)
with guarded() as guard:
    guard.step()
    child = fork(wait_for_term)
    time.sleep(0.2)
    os.kill(child, signal.SIGTERM)
    os.waitpid(child, 0)
    time.sleep(0.5)
    say("piped", guard._runtime.signals._piped, guard.urgent)
"""
    assert play(script, "piped").line == "piped {} False\n"


def test_a_loop_of_asyncio_keeps_its_own_way_of_hearing_signals() -> None:
    script = """
import asyncio
guard = guarded()
async def main():
    with guard:
        asyncio.get_running_loop().add_signal_handler(signal.SIGUSR2, lambda: say("usr2"))
        say("ready")
        while not guard.urgent: await asyncio.sleep(0.01)
        train(guard)
asyncio.run(main())
"""
    assert play(script, "ready", USR2, "usr2", USR1, "decided").exit_code == 75


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
        found._first[TERM], found._last[TERM] = first, last
        assert found.hurries(since) is expected, (first, last)
    assert not found.hurries(0.0), "nobody leaves"


def test_a_guard_that_its_first_step_starts_says_that_this_is_late(heard: Heard) -> None:
    gate = Gate()
    gate.count = 1
    with signals(heard, "USR1", gate=gate, place=RankInfo(job_id="12")):
        pass
    assert "started by its first step" in heard


# ---- below Python


def test_a_c_handler_set_later_is_found_and_its_library_named() -> None:
    """As NCCL did with SIGUSR1 in 2022."""
    script = """
import faulthandler
with guarded() as guard:
    time.sleep(0.5)  # the first look
    faulthandler.register(signal.SIGUSR1, file=open(os.devnull, "w"))
    say("ready")
    time.sleep(3)
"""
    assert re.search(r"SIGUSR1 was replaced by (lib)?python", play(script, "said", ends=False).line)


def test_a_c_handler_that_was_there_is_named_and_given_back() -> None:
    script = """
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
say("alive")
"""
    output = play(script, "said", "decided", "alive").output
    assert re.search(r"said .*SIGUSR1 was handled by .*the guard replaces that handler", output)


@pytest.fixture
def libc() -> Any:
    libc = ctypes.CDLL(None)
    libc.signal.argtypes, libc.signal.restype = [ctypes.c_int, ctypes.c_void_p], ctypes.c_void_p
    return libc


def test_a_handler_taken_away_below_python_is_reported(heard: Heard, libc: Any) -> None:
    with signals(heard, "USR1", "USR2") as watched:
        watched.poll()
        ours = libc.signal(USR1, 0)
        libc.signal(USR2, 1)
        watched.poll()
        libc.signal(USR1, ours)
        libc.signal(USR2, ours)
    assert "SIGUSR1 was replaced by the default action" in heard
    assert "SIGUSR2 was replaced by SIG_IGN" in heard


def test_without_ctypes_proc_shows_a_missing_handler(heard: Heard, libc: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("resilience.guard.signal_actions.read_action", lambda number: None)
    with signals(heard, "USR1") as watched:
        watched.poll()
        assert heard.said == []
        ours = libc.signal(USR1, 0)
        watched.poll()
        libc.signal(USR1, ours)
    assert "SIGUSR1 was replaced by nothing" in heard


# ---- forked children


def test_a_forked_worker_dies_of_term_in_the_middle_of_a_call_into_c() -> None:
    """Where no Python handler can run: so it must be the kernel's default again."""
    script = """
import itertools
with guarded() as guard:
    child = fork(lambda: sum(itertools.repeat(1, 10**9)))
    time.sleep(0.3)  # by then it is in the middle of its sum
    os.kill(child, signal.SIGTERM)
    end = time.monotonic() + 3
    while not (ended := os.waitpid(child, os.WNOHANG))[0] and time.monotonic() < end: time.sleep(0.01)
    if not ended[0]: os.kill(child, signal.SIGKILL)
    say("child", os.waitstatus_to_exitcode(ended[1]) if ended[0] else "lives")
"""
    assert play(script, "child").line == f"child {-TERM}\n"


@pytest.mark.parametrize(("name", "code"), [("TERM", -TERM), ("HUP", -HUP), ("USR1", 7), ("USR2", 7)])
def test_a_forked_worker_dies_of_term_and_does_not_hear_usr1(name: str, code: int) -> None:
    script = f"""
with guarded(signals=("USR1", "USR2", "TERM", "HUP")) as guard:
    child = fork(lambda: time.sleep(0.5))
    os.kill(child, signal.SIG{name})
    say_how_it_ended(child)
    say("parent", train(guard, steps=20))
"""
    played = play(script, "child", "parent")
    assert f"child {code}\n" in played.output and played.line == "parent None\n"


def test_a_child_forked_past_pythons_hooks_dies_of_term_too() -> None:
    script = """
def hear_usr1():
    os.kill(os.getpid(), signal.SIGUSR1)
    os.write(theirs, b"y")
    for _ in range(100): time.sleep(0.05)
ours, theirs = os.pipe()
with guarded(signals=("USR1", "TERM")) as guard:
    child = fork(hear_usr1, ctypes.PyDLL(None).fork)
    os.read(ours, 1)
    os.kill(child, signal.SIGTERM)
    say_how_it_ended(child)
"""
    assert play(script, "child").line == f"child {-TERM}\n"


def test_a_program_started_by_a_forked_worker_inherits_nothing() -> None:
    script = """
with guarded() as guard:
    say_how_it_ended(fork(lambda: os.execv("/bin/sh", ["sh", "-c", "kill -USR1 $$; exit 7"])))
"""
    assert play(script, "child").line == f"child {-USR1}\n"


def test_workers_of_a_torch_loader_end_at_terms_and_pass_over_usr1() -> None:
    pytest.importorskip("torch", reason="torch is not installed: scripts/environment dev")
    script = """
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
    say("batches", count)
    batches = iter(loader)
    next(batches)
    doomed = batches._workers[0]
    doomed.terminate()
    doomed.join(10)
    say("worker", doomed.exitcode)
    say("parent", train(guard, steps=20))
    os._exit(0)
"""
    played = play(script, "batches", "worker", "parent")
    assert "batches 32\n" in played.output and played.line == "parent None\n"
    assert re.search("^worker (0|-15)$", played.output, re.MULTILINE)  # torch's own handler of SIGTERM exits with 0
