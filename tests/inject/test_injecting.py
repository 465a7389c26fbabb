"""`resil inject` with a fault of a test: refused without permission, recorded first, and undone whoever is killed."""

from __future__ import annotations

import json
import multiprocessing
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from resilience.errors import ResilError, UsageError
from resilience.inject import fault_plugins, keeper
from resilience.inject.injecting import inject, prepare
from resilience.runs.injected import set_injected
from resilience.runs.injections import (
    Injection,
    describe_injection,
    fold_injections,
    journalled,
    keep_injection,
    read_injections,
)
from tests.inject.marks import allow, end_of, start_injector
from tests.lab.shell import Shell, make_shell
from tests.lab.waiting import until


@pytest.fixture
def shell(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Iterator[Shell]:
    fault_plugins.cache_clear()
    yield make_shell(tmp_path, monkeypatch, capsys)
    fault_plugins.cache_clear()


def keeper_of(injection: Injection) -> int:
    """The pid of the process that would undo it."""
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            words = path.read_bytes().split(b"\0")
        except OSError:
            continue
        if b"resilience.inject.keeper" in words and injection.id.encode() in words:
            return int(path.parent.name)
    return 0


# ---- what is refused ------------------------------------------------------------------------------------------------


def test_a_run_that_does_not_allow_it_is_left_alone_and_the_line_to_write_is_named(shell: Shell) -> None:
    directory = allow(shell, allowed=False)
    mark = shell.directory / "mark"
    said = shell.resil("inject", "big-mark", str(mark))
    assert said.code == 2 and "allow_inject = true" in said.err and not mark.exists()
    shell.settings("[run]\nname = 'gpt'\nallow_inject = true\n")
    said = shell.resil("inject", "big-mark", str(mark))
    assert said.code == 2 and "submit again" in said.err, "what counts is what the attempt was submitted with"
    assert read_injections(directory) == ()


def test_a_run_of_somebody_else_is_never_touched(shell: Shell, monkeypatch: pytest.MonkeyPatch) -> None:
    allow(shell)
    monkeypatch.setattr(os, "geteuid", lambda: 4711)
    said = shell.resil("inject", "big-mark", str(shell.directory / "mark"))
    assert said.code == 2 and "belongs to" in said.err


def test_what_cannot_be_done_is_refused_before_anything_is_written(shell: Shell) -> None:
    directory = allow(shell)
    for words, expected in [
        (["big-mark", "/nowhere/mark"], "there is no directory"),
        (["big-mark", "mark", "--count", "x"], "whole number"),
        (["big-mark", "mark", "--for", "0"], "at least"),
        (["big-mar", "mark"], "Did you mean 'big-mark'"),
        (["undo"], "name one fault, or all"),
    ]:
        said = shell.resil("inject", *words)
        assert said.code == 2 and expected in said.err, said
    assert shell.resil("inject", "undo", "big-mark-0000").code == 1
    assert read_injections(directory) == ()


def test_a_dry_run_says_what_would_be_done_and_does_nothing(shell: Shell) -> None:
    directory, mark = allow(shell), shell.directory / "mark"
    said = shell.resil("inject", "big-mark", "mark", "--for", "3m", "--dry-run")
    assert said.code == 0 and f"makes {mark}" in said.out and f"after 3 min: removes {mark}" in said.out
    found = shell.resil("inject", "big-mark", "mark", "--dry-run", "--json").json
    assert (found["kind"], found["does"], found["length_s"]) == ("injection", f"makes {mark}", 60.0)
    assert not mark.exists() and read_injections(directory) == ()


def test_of_two_injections_into_one_target_at_the_same_moment_at_most_one_stays(shell: Shell) -> None:
    directory, mark = allow(shell), shell.directory / "mark"

    def inject_at_once(barrier: Any) -> None:
        prepared = prepare(shell.project, directory, "big-mark", {"path": str(mark)})
        barrier.wait()  # both have looked, and neither has begun
        try:
            with inject(prepared):
                barrier.wait()
                with open(f"{mark}.begun", "a") as file:
                    file.write("x")
        except UsageError:
            barrier.wait()

    fork = multiprocessing.get_context("fork")
    barrier = fork.Barrier(2, timeout=60)
    both = [fork.Process(target=inject_at_once, args=(barrier,)) for _ in range(2)]
    for one in both:
        one.start()
    for one in both:
        one.join()
    begun = Path(f"{mark}.begun")
    assert not begun.exists() or begun.read_text() == "x", "both may give way"
    assert len(read_injections(directory)) == 2 and not any(one.is_on for one in read_injections(directory))


def test_a_second_injection_into_the_same_target_is_refused_also_if_it_has_looked_before(shell: Shell) -> None:
    directory, mark = allow(shell), shell.directory / "mark"
    first, second = (prepare(shell.project, directory, "big-mark", {"path": str(mark)}) for _ in range(2))
    with inject(first) as running:
        with pytest.raises(UsageError, match=f"{mark} has a fault already: {running.injection.id}"):
            inject(second)
        assert mark.exists() and shell.resil("inject", "big-mark", "mark", "--dry-run").code == 2
    _, gave_way = read_injections(directory)
    assert "it did not start" in gave_way.how and not mark.exists()


# ---- what is done, and undone ---------------------------------------------------------------------------------------


def test_a_fault_is_recorded_lasts_its_time_and_is_undone(shell: Shell) -> None:
    directory, mark = allow(shell), shell.directory / "mark"
    said = shell.resil("inject", "big-mark", "mark", "--for", "200ms", "--json")
    assert said.code == 0 and not mark.exists()
    assert said.json["how"] == "its time was over" and said.json["ended"] >= said.json["until"]
    (one,) = read_injections(directory)
    assert one.state["made"] is True and one.settings["path"] == "mark"
    begin, end = [json.loads(line) for line in (directory.path / "journal" / "inject.jsonl").read_text().splitlines()]
    assert (begin["event"], end["event"], begin["attempt"]) == ("inject_begin", "inject_end", 0)
    (told,) = journalled(directory)
    assert (told.id, told.target, told.ended) == (one.id, str(mark), end["time"])
    assert "undone" in shell.resil("inject", "list").out
    assert shell.resil("inject", "undo", one.id).out == f"{one.id} is not on\n"


def test_a_fault_that_is_tended_gets_its_pauses(shell: Shell) -> None:
    allow(shell)
    assert shell.resil("inject", "big-mark", "mark", "--for", "600ms").code == 0
    lines = (shell.directory / "mark.tended").read_text().splitlines()
    times = [tuple(map(float, line.split())) for line in lines]
    assert len(times) >= 2
    assert all(after[0] - before[1] >= 0.05 for before, after in pairwise(times)), "or a slow process never runs"


def test_a_fault_that_fails_half_way_is_undone_and_says_why(shell: Shell) -> None:
    directory, mark = allow(shell), shell.directory / "mark"
    said = shell.resil("inject", "big-mark", "mark", "--fails", "start")
    assert said.code == 1 and "no mark can be made" in said.err and not mark.exists()
    (one,) = read_injections(directory)
    assert not one.is_on and "did not start: no mark can be made" in one.how
    assert [describe_injection(one) for one in journalled(directory)] == [f"big-mark: {mark} (it did not start)"]


def test_an_interrupt_undoes_the_fault_before_the_command_ends(shell: Shell) -> None:
    directory, mark = allow(shell), shell.directory / "mark"
    for number in (signal.SIGINT, signal.SIGTERM):
        injector = start_injector(shell, mark)
        assert mark.exists()
        injector.send_signal(number)
        assert end_of(injector) == 130 and not mark.exists()
    assert {one.how for one in read_injections(directory)} == {"its injector was interrupted"}


def test_a_fault_is_undone_when_its_injector_is_killed(shell: Shell) -> None:
    directory, mark = allow(shell), shell.directory / "mark"
    injector = start_injector(shell, mark)
    injector.kill()
    end_of(injector)
    until(lambda: not read_injections(directory)[0].is_on, "the keeper")
    (one,) = read_injections(directory)
    assert not mark.exists() and one.how == "its injector was killed"


def test_the_injector_undoes_the_fault_itself_if_the_keeper_is_killed(shell: Shell) -> None:
    directory, mark = allow(shell), shell.directory / "mark"
    injector = start_injector(shell, mark)
    os.kill(keeper_of(read_injections(directory)[0]), signal.SIGKILL)
    assert end_of(injector) == 0
    assert not mark.exists() and not read_injections(directory)[0].is_on


def test_what_is_undone_by_hand_is_tended_no_more_and_ends_its_injector(shell: Shell) -> None:
    directory, mark = allow(shell), shell.directory / "mark"
    injector = start_injector(shell, mark, "--for", "1h")
    (one,) = read_injections(directory)
    keeper = keeper_of(one)
    assert shell.resil("inject", "undo", one.id).code == 0 and not mark.exists()
    assert end_of(injector) == 0 and not Path(f"/proc/{keeper}").exists()
    (one,) = read_injections(directory)
    assert one.how == "undone by hand"
    lines = (directory.path / "journal" / "inject.jsonl").read_text().splitlines()
    assert len(lines) == 2, "it began once and ended once"


def test_the_list_of_faults_does_not_believe_a_shifted_clock(shell: Shell) -> None:
    allow(shell)
    kill_both(shell, shell.directory / "mark", "--for", "1h")
    set_injected(shell.project.loaded.state_dir, "clock", {"id": "x", "shift_s": 7200.0, "until": time.time() + 60})
    assert "left" in (said := shell.resil("inject", "list").out) and "overdue" not in said
    assert shell.resil("inject", "undo", "--all").code == 0


def kill_both(shell: Shell, mark: Path, *words: str) -> None:
    injector = start_injector(shell, mark, *words)
    (on,) = [one for one in read_injections(shell.project.directory("gpt")) if one.is_on]
    os.kill(injector.pid, signal.SIGSTOP)  # neither may notice the end of the other
    os.kill(keeper_of(on), signal.SIGKILL)
    injector.kill()
    end_of(injector)


def test_if_both_are_killed_the_record_remains_and_undoes_it(shell: Shell) -> None:
    directory, mark = allow(shell), shell.directory / "mark"
    kill_both(shell, mark, "--for", "1h")
    (one,) = read_injections(directory)
    assert mark.exists() and one.is_on
    assert "on, " in shell.resil("inject", "list").out
    said = shell.resil("inject", "undo", "--all", "--json")
    assert said.code == 0 and [found["id"] for found in said.json["injections"]] == [one.id]
    assert not mark.exists() and shell.resil("inject", "undo", "--all").out == "nothing is on\n"


def test_a_fault_that_a_job_of_slurm_holds_is_over_with_its_attempt(shell: Shell) -> None:
    directory, mark = allow(shell), shell.directory / "mark"
    attempts = directory.path / "attempts"
    (attempts / "0001").write_text('job_id = 101\nrestart = 0\nhost = "n1"\npid = 7\nstart = 1000\n')
    with inject(prepare(shell.project, directory, "big-mark", {"path": str(mark)}, 3600.0)) as running:
        held = {**running.injection.state, "srun_job": "101", "attempt": 1}
        keep_injection(directory, replace(running.injection, state=held))
        (attempts / "0001.end").write_text('end = "exited"\nexit_code = 1\ntime = 1060\n')
        until(lambda: not read_injections(directory)[0].is_on)
    assert read_injections(directory)[0].how == "the attempt that it hit is over" and not mark.exists()


def test_the_next_injection_undoes_what_is_overdue(shell: Shell) -> None:
    directory, old = allow(shell), shell.directory / "old"
    kill_both(shell, old)
    (one,) = read_injections(directory)
    keep_injection(directory, replace(one, until=one.begun - 100))
    assert "overdue" in shell.resil("inject", "list").out
    said = shell.resil("inject", "big-mark", "new", "--for", "100ms")
    assert said.code == 0 and f"undone, as nobody had: {one.id}" in said.err and not old.exists()


def test_an_undo_that_fails_says_so_and_can_be_tried_again(shell: Shell) -> None:
    directory, mark = allow(shell), shell.directory / "mark"
    kill_both(shell, mark, "--fails", "undo")
    locked = Path(f"{mark}.locked")
    locked.touch()
    said = shell.resil("inject", "undo", "--all")
    assert said.code == 1 and "the mark is locked" in said.err and "resil inject undo" in said.err
    assert "remove" in said.err and "injections/big-mark-" in said.err.replace("\n", "").replace(" ", ""), "the way out"
    (one,) = read_injections(directory)
    assert one.is_on and "the mark is locked" in one.error
    locked.unlink()
    assert shell.resil("inject", "undo", one.id).code == 0 and not mark.exists()


def test_a_keeper_tries_for_an_hour_as_the_controller_may_be_down(
    shell: Shell, monkeypatch: pytest.MonkeyPatch
) -> None:
    directory, pauses = allow(shell), list[float]()

    def undo(*_: object) -> None:
        if sum(pauses) < 3000:
            raise ResilError("n2 did not answer")

    monkeypatch.setattr(keeper, "undo", undo)
    monkeypatch.setattr(keeper, "time", SimpleNamespace(sleep=pauses.append))
    assert keeper._undo(shell.project, directory, Injection("stop-1", "stop"), "its time was over")
    assert pauses[0] < 5 and max(pauses) <= 60


def test_no_process_is_left(shell: Shell) -> None:
    directory = allow(shell)
    assert shell.resil("inject", "big-mark", "mark", "--for", "100ms").code == 0
    assert keeper_of(read_injections(directory)[0]) == 0


# ---- the journal ----------------------------------------------------------------------------------------------------


def test_injections_are_folded_from_events_and_damaged_ones_are_skipped() -> None:
    begin = {"event": "inject_begin", "time": 5.0, "id": "stop-1", "fault": "stop", "target": "rank 1", "attempt": 3}
    end = {"event": "inject_end", "time": 9.0, "id": "stop-1", "how": "its time was over"}
    (one,) = fold_injections(
        [{"id": 3}, {"event": "inject_end", "id": "x"}, begin, {"event": 7}, end, {**end, "time": 99}]
    )
    assert (one.id, one.begun, one.ended, one.attempt) == ("stop-1", 5.0, 9.0, 3)
    assert fold_injections([{**begin, "time": "soon"}]) == ()
    assert fold_injections([begin])[0].is_on


def test_the_keeper_of_a_record_that_is_gone_ends() -> None:
    done = subprocess.run(
        [sys.executable, "-m", "resilience.inject.keeper", "/nowhere", "kill-0000"],
        stdin=subprocess.DEVNULL, capture_output=True, timeout=60,
    )  # fmt: skip
    assert done.returncode == 1
