"""A newer attempt of our own job stops us without a save; a second copy that waits for us does not."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from resilience.guard.decision import OBEYED
from resilience.guard.rank_info import RankInfo
from resilience.guard.recorder import Recorder
from resilience.guard.triggers.superseded import Superseded
from tests.guard.guards import make_guard, make_run, train
from tests.lab.waiting import until
from tests.system.people import acting_as, needs_root, open_the_way


class Bench:
    def __init__(self, run: Path) -> None:
        self.attempts = run / "attempts"
        self.said: list[str] = []
        place = RankInfo(run="demo", run_dir=str(run), job_id="12", attempt=3)
        self.trigger = Superseded(place, Recorder(place, self.said.append))
        self.take(3, 12)

    def take(self, number: int, job: int, label: str = "") -> None:
        """As resil_take_number in slurm_templates/_attempt.bash writes it."""
        (self.attempts / f"{number:04d}").write_text(
            f'number = {number}\njob_id = {job}\nlabel = "{label or job}"\nrestart = 1\nhost = "n17"\npid = 40711\n'
            "start = 1795171582\nuser = 'ada'\n"
        )

    def end(self, number: int, text: str) -> None:
        (self.attempts / f"{number:04d}.end").write_text(text)

    def asks(self) -> str:
        request = self.trigger.poll()
        if request is None:
            return ""
        assert (request.save, request.stop, request.discard, request.exit_code) == (False, True, True, 75)
        return request.why


@pytest.fixture
def bench(tmp_path: Path) -> Bench:
    return Bench(make_run(tmp_path / "demo"))


def test_alone_nobody_supersedes_us(bench: Bench) -> None:
    bench.take(2, 11)
    bench.end(2, 'end = "stopped"\n')
    assert bench.asks() == ""


def test_the_twin_of_a_requeued_job_stops_us_without_a_save_and_is_named(bench: Bench) -> None:
    bench.take(4, 12, "10_2")
    assert bench.asks() == "attempt 4 of job 10_2 has started on n17: this attempt 3 stops without saving"


def test_it_asks_once(bench: Bench) -> None:
    bench.take(4, 12)
    assert bench.asks()
    bench.trigger.done(OBEYED)
    assert not bench.asks()


def test_a_second_copy_of_another_job_waits_for_us_and_does_not_stop_us(bench: Bench) -> None:
    bench.take(4, 13)
    assert [bench.asks() for _ in range(3)] == ["", "", ""]
    bench.take(5, 12)
    assert "attempt 5" in bench.asks()


def test_a_twin_that_is_over_does_not_count(bench: Bench) -> None:
    bench.take(4, 12)
    bench.end(4, 'end = "stopped"\n')
    assert not bench.asks()


def test_an_end_that_another_attempt_wrote_for_us_says_that_we_are_taken_for_lost(bench: Bench) -> None:
    """As resil_mark_lost writes it, once the scheduler no longer has our job and our heartbeat is still."""
    bench.take(4, 13)
    assert not bench.asks()
    bench.end(3, 'end = "lost"\ntime = 1795189802\nseen_by = 4\n')
    assert bench.asks() == ("attempt 4 has started and declared this job lost: this attempt 3 stops without saving")


def test_our_own_batch_shells_end_is_no_reason_to_lose_the_last_steps(bench: Bench) -> None:
    bench.end(3, 'end = "terminated"\nexit_code = 143\ntime = 1795189215\nlaunched = true\ngone = false\n')
    assert not bench.asks()


@pytest.mark.parametrize("kind", ["empty", "garbage", "fifo", "directory", "dangling link"])
def test_what_is_no_attempt_yet_is_probed_again(bench: Bench, kind: str) -> None:
    """Where there are no hard links the file is there before its content."""
    path = bench.attempts / "0004"
    if kind == "fifo":
        os.mkfifo(path)
    elif kind == "directory":
        path.mkdir()
    elif kind == "dangling link":
        path.symlink_to("/nowhere")
    else:
        path.write_bytes(b"" if kind == "empty" else b"\xff\x00job_id")
    assert not bench.asks() and not bench.asks()
    path.rmdir() if kind == "directory" else path.unlink()
    bench.take(4, 12)
    assert bench.asks()


def test_a_twin_that_is_still_being_written_is_not_passed_over_for_the_one_behind_it(bench: Bench) -> None:
    (bench.attempts / "0004").touch()
    bench.take(5, 13)
    assert not bench.asks() and not bench.asks()
    bench.take(4, 12)
    assert "attempt 4" in bench.asks()


def test_what_is_judged_for_good_is_not_read_again(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    for number in range(4, 100):
        bench.take(number, 1000 + number)
    assert not bench.asks()
    looked: list[str] = []
    look = os.stat

    def note(path: str, **options: object) -> os.stat_result:
        looked.append(path)
        return look(path, **options)  # type: ignore[arg-type]

    monkeypatch.setattr(os, "stat", note)
    assert not bench.asks()
    assert looked == ["0003.end", "0100"]


def test_a_run_directory_that_is_away_is_no_reason_to_stop(bench: Bench) -> None:
    away = bench.attempts.parent.with_name("away")
    bench.attempts.parent.rename(away)
    assert not bench.asks()
    away.rename(bench.attempts.parent)
    bench.take(4, 12)
    assert bench.asks()


@needs_root
def test_a_directory_without_permission_is_named_once(bench: Bench) -> None:
    open_the_way(bench.attempts / "x")
    bench.attempts.parent.chmod(0o755)
    bench.attempts.chmod(0o700)
    with acting_as(65532):
        assert not any(bench.asks() for _ in range(3))
    assert len(bench.said) == 1 and "cannot check for newer attempts" in bench.said[0]


def test_a_training_that_is_superseded_stops_without_saving_whatever_else_is_wished(run: Path) -> None:
    twin = 'number = 4\njob_id = 12\nlabel = "12"\nhost = "n17"\n'
    (run / "attempts" / "0004").write_text(twin)
    (run / "switches" / "kill").touch()
    said: list[str] = []
    with make_guard(run, say=said.append) as guard:
        guard.start()
        until(lambda: len(guard._runtime.agreement._requests) == 2)  # type: ignore[union-attr]
        decision = train(guard)
    assert (decision.stop, decision.save, guard.exit_code) == (True, False, 75)
    assert "attempt 4 of job 12 has started on n17: this attempt 3 stops without saving" in decision.reasons


def test_a_superseded_training_does_not_even_start(run: Path) -> None:
    (run / "attempts" / "0004").write_text('number = 4\njob_id = 12\nlabel = "12"\nhost = "n17"\n')
    with make_guard(run) as guard:
        assert guard.should_stop_early()
    assert guard.exit_code == 75


def test_it_can_be_switched_off(tmp_path: Path) -> None:
    run = make_run(tmp_path / "demo")
    (run / "attempts" / "0004").write_text("number = 4\njob_id = 12\n")
    with make_guard(run, superseded=False) as guard:
        assert not guard.should_stop_early()
