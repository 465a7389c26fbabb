"""A tick of cron runs what is due once, records it before, and leaves a sign of life."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

import pytest

from resilience.base.processes import descendants, is_waiting_in_kernel
from resilience.cron import ticker as cron_ticker
from resilience.cron.book import State
from resilience.cron.project import CronProject
from resilience.cron.records import Heartbeat, Outcome, RunRecord, Table
from resilience.cron.ticker import Ticker, next_heartbeat
from resilience.errors import ProbeError, StateDirectoryError
from tests.cron.context import TOP, CronContext, wait_until
from tests.cron.records import DEAD, put_run
from tests.lab.disks import fill, make_read_only, small_disk
from tests.lab.hung import hung_directory

HOUR, DAY = 3600, 86400
A, B = "cron.hourly+a", "cron.hourly+b.slurm"


@pytest.fixture
def context(tmp_path: Path) -> CronContext:
    return CronContext(tmp_path)


def test_dropping_a_file_runs_it_from_the_next_slot_on(context: CronContext) -> None:
    context.drop("cron.hourly/a")
    assert context.tick(TOP - 30).started == ()
    done = context.tick(TOP + 1)
    assert [(r.slot, r.outcome) for r in done.ended] == [(TOP, Outcome.DONE)]
    assert context.ran() == [TOP] and context.outcomes(A) == {TOP: "done"}
    assert context.tick(TOP + 61).started == () and context.ran() == [TOP]


def test_the_past_of_a_new_entry_is_not_run(context: CronContext) -> None:
    context.tick(TOP - 2 * DAY)
    context.tick(TOP + 600)
    context.drop("cron.hourly/a")
    assert context.tick(TOP + 660).started == ()
    assert context.ran() == []


def test_an_entry_that_came_just_before_its_slot_is_run_by_the_tick_after_it(context: CronContext) -> None:
    context.drop("cron.hourly/other")
    context.tick(TOP - 59)
    context.drop("cron.hourly/a")
    context.tick(TOP + 1)
    assert context.outcomes(A) == {TOP: "done"}


def test_an_entry_removed_for_a_month_starts_anew(context: CronContext) -> None:
    path = context.drop("cron.hourly/a")
    context.tick(TOP - 30)
    context.tick(TOP)
    text = path.read_text()
    path.unlink()
    context.tick(TOP + 60)
    context.tick(TOP + 30 * DAY + 60)
    context.drop("cron.hourly/a", text)
    assert context.tick(TOP + 30 * DAY + 120).started == ()
    assert context.ran() == [TOP]


def test_another_schedule_is_another_beginning(context: CronContext) -> None:
    context.crontab("0 0 * * * true # resil: name=x\n")
    context.tick(TOP - 30)
    context.crontab("30 * * * * true # resil: name=x\n")
    assert context.tick(TOP + 10 * HOUR).started == ()


def test_a_claim_is_left_to_its_supervisor_for_some_seconds(context: CronContext) -> None:
    """The scheduler was killed right after it had started the supervisor, which takes the record now."""
    context.drop("cron.minutely/a")
    context.tick(TOP - 30)
    claim = put_run(context.cron.state, "cron.minutely+a", int(TOP), state=State.CLAIMED, pid=DEAD, at=TOP + 1)
    slots = context.cron.state.path / "slots"
    slots.mkdir(exist_ok=True)
    os.link(context.cron.state.path / "runs" / claim.name, slots / f"{claim.key}@{claim.slot}")
    assert context.tick(TOP + 3).ended == ()
    (cut,) = context.tick(TOP + 7).ended
    assert cut.outcome is Outcome.CUT_SHORT and cut.slot == TOP and context.ran() == []


def test_missed_slots_run_once_and_are_counted(context: CronContext) -> None:
    context.drop("cron.hourly/a")
    context.tick(TOP - 30)
    done = context.tick(TOP + 10 * HOUR + 5)
    assert context.ran() == [TOP + 10 * HOUR]
    (missed,) = done.skipped
    assert (missed.outcome, missed.count) == (Outcome.MISSED, 10)
    assert missed.summary == "the slot after runs on time"
    assert context.tick(TOP + 10 * HOUR + 65).skipped == ()


def test_a_slot_is_taken_before_it_runs(context: CronContext) -> None:
    context.drop("cron.hourly/a", body=f'ls "{context.cron.state.path}/slots" > seen_slots')
    context.tick(TOP - 30)
    context.tick(TOP)
    assert f"{A}@{int(TOP)}" in (context.home / "seen_slots").read_text()


def test_every_tick_leaves_a_sign_of_life(context: CronContext) -> None:
    context.tick(TOP - 30)
    beat = context.tick(TOP + 2).heartbeat
    assert beat == context.cron.state.heartbeat()
    assert beat is not None
    assert (beat.time, beat.expected, beat.alive_since, beat.ticks) == (TOP + 2, TOP + 60, TOP - 30, 2)
    assert (beat.driver, beat.late_s, beat.pid) == ("crontab", 2.0, os.getpid())


@pytest.mark.parametrize(
    ("gap_s", "late_s", "ticks"),
    [(60, 0, 2), (75, 15, 2), (180, 120, 2), (181, 121, 1), (DAY, DAY - 60, 1), (-30, 0, 2), (-DAY, 0, 1)],
)
def test_lateness_is_counted_from_the_moment_that_was_promised(gap_s: float, late_s: float, ticks: int) -> None:
    before = Heartbeat(time=TOP, expected=TOP + 60, alive_since=TOP - 9 * DAY)
    beat = next_heartbeat(before, TOP + gap_s, expected=TOP + gap_s + 60, period_s=60)
    assert (beat.late_s, beat.ticks) == (late_s, ticks)
    assert (beat.alive_since == TOP - 9 * DAY) == (ticks == 2)


def test_a_stopped_scheduler_runs_nothing_and_leaves_no_sign(context: CronContext) -> None:
    context.drop("cron.hourly/a")
    context.tick(TOP - 30)
    context.cron.state.stop("alice", "maintenance", TOP)
    done = context.tick(TOP + 1)
    assert done.heartbeat is None and "alice" in done.stopped and "maintenance" in done.stopped
    assert context.ran() == []
    context.cron.state.unstop()
    context.tick(TOP + 61)
    assert context.ran() == [TOP]


def test_a_damaged_word_to_stop_stops(context: CronContext) -> None:
    context.drop("cron.hourly/a")
    context.tick(TOP - 30)
    (context.cron.state.path / "stop").write_text("{")
    assert context.tick(TOP).stopped
    assert context.ran() == []


def test_a_run_that_is_still_under_way_has_its_next_slot_skipped_and_counted(context: CronContext) -> None:
    context.drop("cron.minutely/slow", body="while [ ! -e go ]; do sleep 0.05; done")
    context.tick(TOP - 30)
    context.tick(TOP, wait=False)
    wait_until(lambda: context.ran() == [TOP])
    done = context.tick(TOP + 60, wait=False)
    assert [r.outcome for r in done.skipped] == [Outcome.SKIPPED]
    (context.home / "go").touch()
    wait_until(lambda: context.names("runs") == [])
    context.tick(TOP + 120)
    assert context.outcomes("cron.minutely+slow") == {TOP: "done", TOP + 60: "skipped", TOP + 120: "done"}


def test_jitter_holds_a_slot_back_within_one_tick(context: CronContext) -> None:
    context.drop("cron.hourly/a", options="jitter=50s")
    context.tick(TOP - 30)
    began = context.clock.monotonic()
    done = context.tick(TOP)
    share = context.clock.monotonic() - began
    assert 0 < share <= 50 and [r.slot for r in done.ended] == [TOP]


@pytest.mark.parametrize("name", ["heartbeat", "seen"])
@pytest.mark.parametrize("text", ['{"time": "yest', "[]", "", '{"time": "x", "cron.hourly+a": 3}', "[" * 100_000])
def test_a_damaged_file_costs_no_slot(context: CronContext, name: str, text: str) -> None:
    context.drop("cron.hourly/a")
    context.tick(TOP - 30)
    (context.cron.state.path / name).write_text(text)
    done = context.tick(TOP)
    assert context.ran() == [TOP]
    assert sum("moved to" in line for line in done.lines) == 1
    assert (context.cron.state.path / f"{name}.damaged").exists()
    assert context.tick(TOP + 60).lines == ()


@pytest.mark.parametrize("name", ["heartbeat", "seen", "history/cron.hourly+a"])
@pytest.mark.parametrize("kind", ["fifo", "directory", "link"])
def test_something_else_instead_of_a_file_blocks_nothing(context: CronContext, name: str, kind: str) -> None:
    context.drop("cron.hourly/a")
    context.tick(TOP - 30)
    path = context.cron.state.path / name
    path.parent.mkdir(exist_ok=True)
    path.unlink(missing_ok=True)
    if kind == "fifo":
        os.mkfifo(path)
    elif kind == "directory":
        path.mkdir()
        (path / "x").touch()
    else:
        path.symlink_to(context.home / "elsewhere")
    context.tick(TOP)
    assert context.ran() == [TOP] and context.outcomes(A) == {TOP: "done"}
    assert not (context.home / "elsewhere").exists()


def test_a_directory_that_others_may_write_to_runs_nothing(context: CronContext) -> None:
    context.drop("cron.hourly/a")
    context.tick(TOP - 30)
    context.cron.state.path.chmod(0o777)
    with pytest.raises(StateDirectoryError, match="other users can write") as told:
        context.tick(TOP)
    assert "chmod" in told.value.hint and context.ran() == []


def test_another_users_directory_runs_nothing(context: CronContext) -> None:
    if os.geteuid():
        pytest.skip("only root can give a directory away")
    context.drop("cron.hourly/a")
    context.tick(TOP - 30)
    os.chown(context.cron.state.path, 12345, -1)
    with pytest.raises(StateDirectoryError, match="belongs to another user"):
        context.tick(TOP)
    assert context.ran() == []


def test_a_full_disk_is_said_and_stops_nothing_so_its_watchdog_runs_too(tmp_path: Path) -> None:
    with small_disk(tmp_path / "state", "256k") as place:
        context = CronContext(tmp_path)
        context.drop("cron.hourly/a")
        context.drop("cron.hourly/b.slurm")
        context.tick(TOP - 30)
        ballast = fill(place)
        with pytest.raises(StateDirectoryError, match="No space left") as told:
            context.tick(TOP)
        assert told.value.exit_code == 75
        assert context.ran() == [TOP] and len(context.queued()) == 1
        beat = context.cron.state.heartbeat()
        assert beat is not None and beat.time == TOP and "No space left" in beat.trouble
        ballast.unlink()
        context.tick(TOP + 60)
        assert context.ran() == [TOP] and len(context.queued()) == 1
        assert context.outcomes(A) == {TOP: "done"} and context.outcomes(B) == {TOP: "submitted"}


def test_a_directory_that_cannot_be_written_starts_only_what_may_be_repeated_and_each_slot_once(tmp_path: Path) -> None:
    with small_disk(tmp_path / "state", "256k") as place:
        context = CronContext(tmp_path)
        context.drop("cron.hourly/a")
        context.drop("cron.hourly/b.slurm")
        context.drop("cron.hourly/watch", "#!/bin/sh\n# resil: rerun\necho $RESIL_CRON_SLOT >> watched\n")
        context.tick(TOP - 30)
        make_read_only(place, True)
        for minute in range(5):
            with pytest.raises(StateDirectoryError, match="Read-only"):
                context.tick(TOP + 60 * minute)
        assert context.ran() == [] and (context.home / "watched").read_text() == f"{int(TOP)}\n"
        assert context.queued() == []
        make_read_only(place, False)
        context.tick(TOP + 300)
        assert context.outcomes(A) == {TOP: "done"} and len(context.queued()) == 1


def test_four_ticks_at_the_same_moment_run_and_submit_each_slot_once(context: CronContext) -> None:
    context.drop("cron.minutely/a")
    context.drop("cron.minutely/b.slurm", options="overlap=allow")
    context.tick(TOP - 30)
    for minute in range(5):
        pids = []
        for _ in range(4):
            pid = os.fork()
            if pid == 0:
                try:
                    context.tick(TOP + 60 * minute)
                finally:
                    os._exit(0)
            pids.append(pid)
        for pid in pids:
            os.waitpid(pid, 0)
    assert sorted(context.ran()) == [TOP + 60 * minute for minute in range(5)]
    assert len(set(context.queued())) == len(context.queued()) == 5


def test_a_clock_that_was_never_set_runs_nothing(context: CronContext) -> None:
    context.drop("cron.hourly/a")
    context.tick(TOP - 30)
    with pytest.raises(StateDirectoryError, match="never set") as told:
        context.tick(0.0)
    assert told.value.exit_code == 75
    context.tick(TOP)
    assert context.ran() == [TOP]


@pytest.mark.parametrize("jump_s", [HOUR, 3 * HOUR, DAY, 366 * DAY, 10 * 366 * DAY])
def test_a_clock_set_forward_makes_up_for_one_slot_at_most(context: CronContext, jump_s: float) -> None:
    context.drop("cron.hourly/a")
    context.tick(TOP - 30)
    context.tick(TOP)
    context.tick(TOP + jump_s)
    assert context.ran() == [TOP, TOP + jump_s]


@pytest.mark.parametrize("jump_s", [2 * HOUR, DAY, 366 * DAY])
def test_a_clock_set_back_silences_nothing_for_long(context: CronContext, jump_s: float) -> None:
    """It was in the future for a while, and comes back: the entry goes on with the next slot of the time of now."""
    context.drop("cron.hourly/a")
    context.tick(TOP - 30)
    for hours in range(12):
        context.tick(TOP + jump_s + hours * HOUR)
    before = context.ran()
    done = context.tick(TOP + 60)
    assert any("in the future" in line for line in done.lines)
    assert context.tick(TOP + 120).lines == ()
    context.tick(TOP + HOUR)
    assert context.ran() == [*before, TOP + HOUR]
    context.tick(TOP + 2 * HOUR)
    assert context.ran()[-1] == TOP + 2 * HOUR


def test_a_clock_set_back_by_minutes_runs_no_slot_twice(context: CronContext) -> None:
    context.drop("cron.minutely/a")
    context.tick(TOP - 30)
    for minute in range(10):
        context.tick(TOP + 60 * minute)
    for minute in range(5, 15):
        context.tick(TOP + 60 * minute)
    assert context.ran() == [TOP + 60 * minute for minute in range(15)]


def test_a_host_whose_clock_is_ten_minutes_ahead_runs_nothing_twice_with_ours(context: CronContext) -> None:
    context.drop("cron.minutely/a")
    context.tick(TOP - 30)
    for minute in range(12):
        context.tick(TOP + 60 * minute + 600)
        context.tick(TOP + 60 * minute)
    assert len(context.ran()) == len(set(context.ran()))


def test_an_unreadable_table_is_reported_and_runs_nothing(
    context: CronContext, monkeypatch: pytest.MonkeyPatch
) -> None:
    context.drop("cron.hourly/a")
    context.tick(TOP - 30)

    def fail(_: object) -> None:
        raise StateDirectoryError("cannot read cron: Stale file handle")

    with monkeypatch.context() as patched:
        patched.setattr("resilience.cron.project.CronProject.read_table", fail)
        done = context.tick(TOP)
    assert done.lines == ("cannot read cron: Stale file handle",)
    assert done.heartbeat is not None and done.heartbeat.trouble == done.lines[0]
    context.tick(TOP + 60)
    assert context.ran() == [TOP]


@pytest.mark.parametrize("name", ["cron.hourly/a", "cron.hourly/b.slurm"])
def test_a_drop_in_that_became_unsafe_after_the_table_was_read_is_not_run(
    context: CronContext, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = context.drop(name)
    context.tick(TOP - 30)
    table = context.cron.read_table()
    monkeypatch.setattr(CronProject, "read_table", lambda _: table)
    path.chmod(0o777)
    done = context.tick(TOP)
    (refused,) = done.refused
    assert "chmod o-w" in refused.summary
    assert context.ran() == [] and context.queued() == []


def test_a_hung_disk_is_reported_and_ticks_do_not_accumulate(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    context = CronContext(tmp_path)
    try:
        with hung_directory(tmp_path / "state"), monkeypatch.context() as patched:
            patched.setattr("resilience.cron.project.LOOK_S", 0.5)
            for _ in range(3):
                with pytest.raises(ProbeError, match=r"no entries run: .* does not respond") as told:
                    context.tick()
                assert told.value.exit_code == 75
            wait_until(lambda: sum(map(is_waiting_in_kernel, descendants(os.getpid()))) <= 1)
    except OSError as error:
        pytest.skip(f"no FUSE file system can be mounted here: {error}")
    (tmp_path / "state").rmdir()

    def is_run_again() -> bool:
        with suppress(ProbeError):  # as long as the look that hung has not ended
            return context.tick().heartbeat is not None
        return False

    wait_until(is_run_again)


def test_an_empty_directory_and_no_directory_run_nothing(context: CronContext) -> None:
    assert context.tick(TOP).heartbeat is not None
    (context.home / "cron").rmdir()
    done = context.tick(TOP + 60)
    assert done.heartbeat is not None and done.heartbeat.entries == 0 and done.lines == ()


def test_a_run_that_cannot_finish_in_time_is_left_to_the_next_scheduler_unless_it_never_could(
    context: CronContext,
) -> None:
    context.drop("cron.hourly/short", options="timeout=1m")
    context.drop("cron.hourly/long", options="timeout=10m")
    context.drop("cron.hourly/endless", options="timeout=10h")
    context.drop("cron.hourly/precious", options="timeout=10m catch_up=none")
    context.tick(TOP - 30)
    context.clock.time = TOP + 300 - HOUR
    ticker = Ticker(context.cron, driver="slurm", until=TOP + 300)
    context.clock.time = TOP
    begun = {record.name.partition("/")[2] for record in ticker.tick().started}
    while ticker.is_running:
        ticker.poll(10)
    assert begun == {"short", "endless", "precious"}
    context.tick(TOP + 400)
    assert context.outcomes("cron.hourly+long") == {TOP: "done"}


def test_a_run_with_a_long_time_limit_that_is_usually_short_is_started_before_a_hand_over(
    context: CronContext,
) -> None:
    context.drop("cron.hourly/quick", options="timeout=1h")
    context.drop("cron.hourly/slow", options="timeout=1h")
    context.tick(TOP - 30)
    for number in range(3):
        for name, took_s in (("quick", 20.0), ("slow", 1000.0)):
            slot = int(TOP) - 3600 * (4 - number)
            record = RunRecord(name=f"cron.hourly/{name}", slot=slot, outcome=Outcome.DONE, time=slot + took_s,
                               started=float(slot))  # fmt: skip
            context.cron.state.record(f"cron.hourly+{name}", record)
    context.clock.time = TOP + 600 - DAY
    ticker = Ticker(context.cron, driver="slurm", until=TOP + 600)
    context.clock.time = TOP
    assert [record.name for record in ticker.tick().started] == ["cron.hourly/quick"]
    while ticker.is_running:
        ticker.poll(10)


# ---- nothing to do --------------------------------------------------------------------------------------------------


def test_a_table_that_changed_just_now_is_not_remembered(context: CronContext, monkeypatch: pytest.MonkeyPatch) -> None:
    """It may change again without a new time: file systems count in milliseconds, some in seconds."""
    monkeypatch.setattr(cron_ticker, "SETTLED_S", 3600.0)
    context.drop("cron.hourly/a")
    for seconds in (60, 70):
        context.tick(TOP + seconds)
    assert not (context.cron.state.path / "idle").exists()
    monkeypatch.setattr(cron_ticker, "SETTLED_S", 0.0)
    context.tick(TOP + 80)
    assert (context.cron.state.path / "idle").exists()


@pytest.fixture
def idle(context: CronContext, monkeypatch: pytest.MonkeyPatch) -> tuple[CronContext, list[float]]:
    """A project whose last tick had nothing to do, and when the table was read since."""
    monkeypatch.setattr(cron_ticker, "SETTLED_S", 0.0)
    context.drop("cron.hourly/a", options="rerun")
    context.crontab("*/5 * * * * true # resil: name=x\n")
    context.tick(TOP + 60)
    context.tick(TOP + 70)
    read, seen = CronProject.read_table, list[float]()

    def reading(cron: CronProject) -> Table:
        seen.append(context.clock.time)
        return read(cron)

    monkeypatch.setattr(CronProject, "read_table", reading)
    return context, seen


def test_a_tick_with_nothing_to_do_reads_no_table_and_leaves_the_same_sign_of_life(
    idle: tuple[CronContext, list[float]],
) -> None:
    context, seen = idle
    for second in (120, 180, 299):
        beat = context.tick(TOP + second).heartbeat
        assert beat is not None and beat == context.cron.state.heartbeat() and seen == []
        assert (beat.time, beat.entries, beat.next_slot) == (TOP + second, 2, TOP + 300)
    assert [record.name for record in context.tick(TOP + 300).ended] == ["crontab/x"]
    assert seen == [TOP + 300]


CHANGES: dict[str, Callable[[CronContext], object]] = {
    "a new file": lambda context: context.drop("cron.hourly/b"),
    "another line": lambda context: context.crontab("* * * * * true # resil: name=x\n"),
    "another mode": lambda context: (context.home / "cron" / "cron.hourly" / "a").chmod(0o500),
    "a directory open to others": lambda context: context.home.chmod(0o777),
    "a new directory": lambda context: (context.home / "cron" / "cron.daily").mkdir(),
    "a run under way": lambda context: put_run(context.cron.state),
    "a run that was cut short": lambda context: context.cron.state.record(
        A, RunRecord(name="cron.hourly/a", slot=int(TOP), outcome=Outcome.CUT_SHORT, time=TOP)
    ),
    "a damaged heartbeat": lambda context: (context.cron.state.path / "heartbeat").write_text("{"),
    "damaged memory": lambda context: (context.cron.state.path / "idle").write_text("[1]"),
    "another beginning": lambda context: (context.cron.state.path / "seen").write_text("{}"),
    "another setting": lambda context: setattr(
        context, "cron", replace(context.cron, settings=replace(context.cron.settings, catch_up="none"))
    ),
    "a clock that was set back": lambda context: setattr(context.clock, "time", TOP - 1000),
}


@pytest.mark.parametrize("change", CHANGES)
def test_whatever_changes_has_the_table_read_again(idle: tuple[CronContext, list[float]], change: str) -> None:
    context, seen = idle
    context.clock.time = TOP + 120
    CHANGES[change](context)
    context.tick()
    assert len(seen) == 1


def test_a_run_whose_supervisor_is_killed_is_cut_short_and_not_repeated(context: CronContext) -> None:
    context.drop("cron.hourly/a", body="kill -9 $PPID")
    context.tick(TOP - 30)
    assert [str(record.outcome) for record in context.tick(TOP).ended] == ["cut short"]
    context.tick(TOP + 60)
    context.tick(TOP + 120)
    assert context.ran() == [TOP] and context.outcomes(A) == {TOP: "cut short"}


def test_one_that_may_be_repeated_is_and_not_for_ever(context: CronContext) -> None:
    context.drop("cron.hourly/a", options="rerun", body="kill -9 $PPID")
    context.tick(TOP - 30)
    for minute in range(6):
        context.tick(TOP + 60 * minute)
    assert context.ran() == [TOP] * 3
    context.drop("cron.hourly/a", options="rerun")
    context.tick(TOP + 3600)
    assert context.outcomes(A) == {TOP: "cut short", TOP + 3600: "done"}
    assert context.cron.state.keys() == (A,)


def test_a_run_ended_by_the_last_scheduler_is_rerun_by_the_next_if_allowed(context: CronContext) -> None:
    context.drop("cron.hourly/a", options="rerun", body="[ -e go ] || sleep 100")
    context.drop("cron.hourly/b", body="[ -e go ] || sleep 100")
    context.tick(TOP - 30)
    context.clock.time = TOP
    ticker = Ticker(context.cron, driver="x")
    ticker.tick()
    wait_until(lambda: len(context.ran()) == 2)
    assert {str(record.outcome) for record in ticker.end_all(5.0).ended} == {"cut short"}
    (context.home / "go").touch()
    context.tick(TOP + 60)
    assert context.outcomes(A) == {TOP: "done"} and context.outcomes("cron.hourly+b") == {TOP: "cut short"}


def test_reboot_entries_run_once_in_a_life_of_the_scheduler(context: CronContext) -> None:
    context.crontab("@reboot touch rebooted # resil: name=boot\n")
    assert len(context.tick(TOP).started) == 1
    assert context.tick(TOP + 60).started == ()
    assert context.open().state.history("crontab+boot")[0].outcome is Outcome.DONE
    context.crontab("@reboot touch rebooted # resil: name=boot\n@reboot touch later # resil: name=later\n")
    assert context.tick(TOP + 120).started == (), "written while it was running: it waits for the next start"


def test_the_books_stay_small(context: CronContext) -> None:
    context.drop("cron.minutely/a", "#!/bin/sh\nexit 0\n")
    context.tick(TOP - 30)
    for minute in range(15):
        context.tick(TOP + 60 * minute)
    assert len(context.names("slots")) <= 9 and context.names("runs") == []
    assert len(context.names("history")) == 1
    assert json.loads((context.cron.state.path / "seen").read_text()).keys() == {"cron.minutely+a"}
