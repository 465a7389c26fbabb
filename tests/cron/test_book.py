"""A record says truly whether a run is under way, moves to one place only, and is never lost on the way."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from resilience.base.processes import start_ticks
from resilience.cron import book as cron_book
from resilience.cron.book import CLAIM_S, KEPT, LAPSE_S, LOOSE, SKEW_S, Run, State, kill_session, session_members
from resilience.cron.records import Outcome, RunRecord
from resilience.cron.state_directory import CronDirectory
from resilience.errors import StateDirectoryError
from resilience.job import Liveness
from resilience.system.child import fork
from tests.cron.records import DEAD, FAR, KEY, SLOT, put_run, running, settle
from tests.cron.table.runs import until_true
from tests.lab.disks import fill, make_read_only, small_disk
from tests.system.people import NOBODY, acting_as, needs_root

NOW = 1_800_000_000.0
ROOT = Path(__file__).parents[2]


@pytest.fixture
def directory(tmp_path: Path) -> CronDirectory:
    return CronDirectory(tmp_path)


def a_record(slot: int = SLOT, outcome: Outcome = Outcome.DONE, summary: str = "") -> RunRecord:
    return RunRecord(name="crontab/it", slot=slot, outcome=outcome, time=float(slot), summary=summary)


def alive(directory: CronDirectory, run: Run, now: float = NOW) -> Liveness:
    return directory.book.liveness(run, now)[0]


# ---- is it under way ------------------------------------------------------------------------------------------------


def test_a_live_supervisor_of_this_host_is_alive_whatever_its_time_limit(directory: CronDirectory) -> None:
    assert alive(directory, put_run(directory, at=NOW - 1e6)) is Liveness.ALIVE


def test_a_dead_one_is_gone_and_so_is_its_number_given_to_another(directory: CronDirectory) -> None:
    ended = subprocess.Popen(["true"])
    zombie = put_run(directory, pid=ended.pid, ticks=start_ticks(ended.pid))
    os.waitid(os.P_PID, ended.pid, os.WEXITED | os.WNOWAIT)
    assert alive(directory, zombie) is Liveness.GONE
    ended.wait()
    assert alive(directory, zombie) is Liveness.GONE
    assert alive(directory, put_run(directory, ticks=1)) is Liveness.GONE


def test_a_rebooted_machine_runs_no_earlier_process(directory: CronDirectory) -> None:
    run = put_run(directory, machine_id=FAR, boot="an earlier one", at=NOW)
    state, reason = directory.book.liveness(run, NOW)
    assert state is Liveness.GONE and "rebooted" in reason


@needs_root
def test_a_colleague_s_process_that_proc_hides_is_unknown_and_not_dead(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cron_book, "start_ticks", lambda _: None)  # hidepid=2
    with acting_as(NOBODY):
        directory = CronDirectory(Path("/nonexistent"))
        at = f"{cron_book.machine()}-1-5-{NOW}"
        assert alive(directory, Run(KEY, SLOT, "x", State.RUNNING, at)) is Liveness.UNKNOWN
        gone = f"{cron_book.machine()}-{DEAD}-5-{NOW}"
        assert alive(directory, Run(KEY, SLOT, "x", State.RUNNING, gone)) is Liveness.GONE


@pytest.mark.parametrize(
    ("state", "about", "trusted_s"),
    [
        (State.RUNNING, {"limit_s": 60.0}, 60 + SKEW_S),
        (State.CLAIMED, {}, CLAIM_S),
    ],
)
def test_a_process_on_another_host_is_unknown_until_its_time_limit(
    directory: CronDirectory, state: State, about: dict[str, Any], trusted_s: float
) -> None:
    run = put_run(directory, machine_id=FAR, host="n2", state=state, at=NOW, **about)
    assert alive(directory, run, NOW + trusted_s - 1) is Liveness.UNKNOWN
    assert alive(directory, run, NOW + trusted_s + 1) is Liveness.GONE


@pytest.mark.parametrize("content", [None, b"", b"{", b"[]", b"\xff\0"])
def test_a_run_elsewhere_without_a_known_limit_is_trusted_as_long_as_its_record_is_touched(
    directory: CronDirectory, content: bytes | None
) -> None:
    run = put_run(directory, machine_id=FAR, host="n2", limit_s=0.0)
    path = directory.path / "runs" / run.name
    if content is not None:  # damaged: its name alone is believed
        path.write_bytes(content)
    directory.book.touch(run)
    os.utime(path, (NOW, NOW))
    assert alive(directory, run, NOW + LAPSE_S - 1) is Liveness.UNKNOWN
    assert alive(directory, run, NOW + LAPSE_S + 1) is Liveness.GONE
    assert directory.book.name_of(run) == "crontab/it"


# ---- who has it -----------------------------------------------------------------------------------------------------


def test_a_record_is_taken_over_by_one(directory: CronDirectory) -> None:
    run = directory.book.claim(KEY, SLOT, {"name": "crontab/it"}, lambda: NOW)
    assert run is not None and run.is_mine and directory.book.active() == [run]
    mine = directory.book.take(run, State.RUNNING, NOW + 5)
    assert mine is not None and (mine.time, mine.id) == (NOW + 5, run.id)
    assert directory.book.take(run, State.RUNNING, NOW + 5) is None
    assert not directory.book.end(run, a_record()), "who lost it writes nothing"
    assert directory.book.end(mine, a_record()) and directory.book.active() == []
    assert directory.history(KEY) == (a_record(),)


def test_of_two_that_settle_at_once_one_gets_the_record(directory: CronDirectory) -> None:
    for slot in range(40):
        put_run(directory, slot=slot, pid=DEAD, id=f"{slot:020x}")
    reading, writing = os.pipe()
    pids = []
    for _ in range(2):
        pid = fork()
        if pid == 0:
            try:
                os.write(writing, b"%d\n" % len(settle(directory)))
            finally:
                os._exit(0)
        pids.append(pid)
    os.close(writing)
    for pid in pids:
        os.waitpid(pid, 0)
    with os.fdopen(reading) as told:
        assert sum(map(int, told.read().split())) == 40
    assert directory.book.active() == []
    assert [run.outcome for run in directory.history(KEY)] == [Outcome.CUT_SHORT] * 40


def test_an_end_that_was_written_right_before_a_death_is_not_taken_for_a_cut(directory: CronDirectory) -> None:
    run = put_run(directory, pid=DEAD)
    directory.book._write(run, a_record(outcome=Outcome.FAILED))
    assert settle(directory) == [a_record(outcome=Outcome.FAILED)] == list(directory.history(KEY))
    assert settle(directory) == []


def test_a_settler_that_dies_or_has_no_room_leaves_the_run_to_the_next_one(tmp_path: Path) -> None:
    with small_disk(tmp_path / "disk") as disk:
        directory = CronDirectory(disk)
        put_run(directory, pid=DEAD)
        make_read_only(disk, True)
        with pytest.raises(StateDirectoryError, match="Read-only"):
            settle(directory)
        make_read_only(disk, False)
        (directory.path / "history").write_text("in the way")
        with pytest.raises(StateDirectoryError):
            settle(directory)
        (directory.path / "history").unlink()
        assert [run.slot for run in settle(directory)] == [SLOT], "this process had taken it over"


# ---- its end --------------------------------------------------------------------------------------------------------


def test_the_end_of_a_run_fits_into_its_record_when_the_disk_is_full(tmp_path: Path) -> None:
    end = a_record(outcome=Outcome.FAILED, summary="é" * 199)
    with small_disk(tmp_path / "disk") as disk:
        directory = CronDirectory(disk)
        run = directory.book.claim(KEY, SLOT, {"name": "crontab/it"}, lambda: NOW)
        assert run is not None
        fill(disk)
        assert directory.book.end(run, end)
        assert directory.history(KEY) == (end,)


def test_on_a_full_disk_a_slot_is_taken_by_a_name_alone_and_so_is_the_end_recorded(tmp_path: Path) -> None:
    with small_disk(tmp_path / "disk") as disk:
        directory = CronDirectory(disk)
        directory.book.claim(KEY, SLOT - 60, {}, lambda: NOW)
        fill(disk)
        run = directory.book.claim(KEY, SLOT, {"name": "crontab/it"}, lambda: NOW)
        assert run is not None and directory.book.claim(KEY, SLOT, {}, lambda: NOW) is None
        assert directory.book.has_slot(run) is True
        assert directory.book.end(run, a_record(outcome=Outcome.FAILED, summary="no room for this"))
        (record,) = directory.history(KEY)
        assert (record.name, record.slot, record.outcome) == ("crontab/it", SLOT, Outcome.FAILED)
        assert abs(record.time - time.time()) < 60


def test_on_a_full_disk_the_number_of_missed_slots_is_known_too(tmp_path: Path) -> None:
    with small_disk(tmp_path / "disk") as disk:
        directory = CronDirectory(disk)
        directory.record(KEY, a_record(SLOT - 60))
        fill(disk)
        directory.record(KEY, replace(a_record(outcome=Outcome.MISSED), count=7))
        assert [(run.outcome, run.count) for run in directory.history(KEY)] == [(Outcome.DONE, 1), (Outcome.MISSED, 7)]


def test_of_each_slot_the_last_end_counts(directory: CronDirectory) -> None:
    directory.record(KEY, a_record(outcome=Outcome.CUT_SHORT))
    directory.record(KEY, a_record())
    directory.record(KEY, a_record(SLOT - 60, Outcome.FAILED))
    assert [str(run.outcome) for run in directory.history(KEY)] == ["failed", "done"]
    assert directory.book.newest(KEY) == (SLOT, "DONE")
    assert directory.keys() == (KEY,)


def test_a_history_is_bounded_and_the_newest_are_kept(directory: CronDirectory) -> None:
    (directory.path / "history").mkdir(parents=True)
    old = directory.path / "history" / f"{KEY}.jsonl"  # of an earlier release
    old.write_text(json.dumps(a_record(1, Outcome.RUNNING).to_json()) + "\n" + json.dumps(a_record(2).to_json()) + "\n")
    count = KEPT + 5 * LOOSE
    for slot in range(100, 100 + count):
        directory.record(KEY, a_record(slot))
        if slot == 200:
            assert [run.slot for run in directory.history(KEY)] == [2, *range(100, 201)]
    found = [run.slot for run in directory.history(KEY)]
    assert found == list(range(100 + count - len(found), 100 + count)) and KEPT <= len(found) <= KEPT + 2 * LOOSE
    assert (
        len(list((directory.path / "history" / KEY).iterdir())) <= LOOSE + 1 + KEPT // (LOOSE // 2) and not old.exists()
    )


@pytest.mark.parametrize("damage", [b"", b"{", b'{"end": {"slot": "x"}}', b"\xff\xfe", b"[" * 100_000])
def test_a_damaged_record_says_what_its_name_says(directory: CronDirectory, damage: bytes) -> None:
    directory.record(KEY, a_record(outcome=Outcome.TIMEOUT))
    (path,) = (directory.path / "history" / KEY).iterdir()
    path.write_bytes(damage)
    for name in ("x", "5@y@DONE", "@@", "5@00@NEW", "5@00@MISSED+x", "3.jsonl"):
        (path.parent / name).write_bytes(damage)
    (record,) = directory.history(KEY)
    assert (record.slot, record.outcome) == (SLOT, Outcome.TIMEOUT)


def test_files_with_the_same_records_do_not_push_older_ones_out(directory: CronDirectory) -> None:
    """Two processes folded at once each time, and the second one saw one record more."""
    path, half = directory.path / "history" / KEY, LOOSE // 2
    path.mkdir(parents=True)
    for first in range(0, KEPT + 2 * half, half):
        lines = [json.dumps(a_record(slot).to_json()) + "\n" for slot in range(first, first + half + 1)]
        (path / f"{first + half - 1}@0.jsonl").write_text("".join(lines[:-1]))
        (path / f"{first + half}@1.jsonl").write_text("".join(lines[1:]))
    for slot in range(KEPT + 2 * half + 1, KEPT + 4 * half + 2):
        directory.record(KEY, a_record(slot))
    found = [run.slot for run in directory.history(KEY)]
    assert found == list(range(found[0], KEPT + 4 * half + 2)) and KEPT <= len(found) <= KEPT + LOOSE + half + 1


def test_of_three_that_fold_at_once_some_may_die_at_any_file(directory: CronDirectory) -> None:
    for slot in range(100, 100 + LOOSE):
        directory.record(KEY, a_record(slot))
    for number in (1, 2, 3):
        if fork() == 0:
            left = iter(range(9 * number))

            def unlink(path: Path, left: Iterator[int] = left, **_: bool) -> None:
                if next(left, None) is None:
                    os._exit(9)
                with suppress(FileNotFoundError):
                    os.unlink(path)  # noqa: PTH108 - that of Path is this one

            Path.unlink = unlink  # type: ignore[method-assign,assignment]
            try:
                directory.record(KEY, a_record(200 + number))
            finally:
                os._exit(0)
    for _ in range(3):
        os.wait()
    assert [run.slot for run in directory.history(KEY)] == [*range(100, 100 + LOOSE), 201, 202, 203]
    directory.record(KEY, a_record(204))
    assert [run.slot for run in directory.history(KEY)] == [*range(100, 100 + LOOSE), 201, 202, 203, 204]


_WRITER = """
import sys
from pathlib import Path
from typing import Any
from resilience.cron.records import Outcome, RunRecord
from resilience.cron.state_directory import CronDirectory
directory, first = CronDirectory(Path(sys.argv[1])), int(sys.argv[2])
for slot in range(first, first + 150):
    directory.record("k", RunRecord(name="k", slot=slot, outcome=Outcome.DONE, time=1.0))
    own = [run.slot for run in directory.history("k") if first <= run.slot < first + 150]
    assert own == list(range(first, slot + 1)), (own, slot)
"""


def test_three_that_write_and_read_at_once_miss_nothing(tmp_path: Path) -> None:
    writers = [
        subprocess.Popen([sys.executable, "-c", _WRITER, str(tmp_path), str(first)], cwd=ROOT)
        for first in (1000, 2000, 3000)
    ]
    assert [writer.wait(timeout=120) for writer in writers] == [0, 0, 0]
    assert len(CronDirectory(tmp_path).history("k")) == 450


# ---- what it leaves behind ------------------------------------------------------------------------------------------

_LEADER = """
import os, subprocess, sys, time
os.setsid()
inside = subprocess.Popen(["sleep", "87630"])
group = subprocess.Popen(["sleep", "87630"], process_group=0)
other = subprocess.Popen(["sleep", "87630"], start_new_session=True)
print(inside.pid, group.pid, other.pid, flush=True)
sys.stdin.read()
"""


def test_the_session_of_a_dead_leader_is_ended_and_no_other() -> None:
    leader = subprocess.Popen([sys.executable, "-c", _LEADER], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    assert leader.stdin is not None and leader.stdout is not None
    inside, group, other = map(int, leader.stdout.readline().split())
    try:
        assert set(session_members(leader.pid)) == {inside, group}
        assert kill_session(leader.pid) == 0  # the leader lives
        leader.kill()
        until_true(lambda: kill_session(leader.pid) == 2 or session_members(leader.pid) == (), "it is ended")
        until_true(lambda: session_members(leader.pid) == (), "none of it is left")
        os.kill(other, 0)
    finally:
        os.kill(other, 9)
        leader.stdin.close()
        leader.stdout.close()
        leader.wait()


def test_no_session_is_killed_by_a_meaningless_number() -> None:
    assert [kill_session(number) for number in (-1, 0, 1, os.getpid(), DEAD)] == [0] * 5


def test_strange_names_are_no_runs(directory: CronDirectory) -> None:
    run = put_run(directory)
    for name in ("x", "@5", "a@b@c@d@e", "a@5@x@running@y-z", "a@5@x@ended@m-1-1-1", "a@5@x@claimed@m--1-1-1", ".tmp"):
        (directory.path / "runs" / name).touch()
    assert directory.book.active() == [run] == running(directory)
