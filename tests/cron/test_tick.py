"""A tick of cron runs what is due once, records it before, and leaves a sign of life."""

from __future__ import annotations

import json
import os
from contextlib import suppress
from pathlib import Path

import pytest

from resilience.base.processes import descendants, is_waiting_in_kernel
from resilience.cron.project import CronProject
from resilience.cron.records import Heartbeat, Outcome
from resilience.cron.ticked import succeed
from resilience.cron.ticker import Ticker
from resilience.errors import ProbeError, StateDirectoryError
from tests.cron.scene import TOP, CronScene, wait_until
from tests.guard.disks import fill, make_read_only, small_disk
from tests.system.hung import hung_folder

HOUR, DAY = 3600, 86400
A, B = "cron.hourly+a", "cron.hourly+b.slurm"


@pytest.fixture
def scene(tmp_path: Path) -> CronScene:
    return CronScene(tmp_path)


def test_dropping_a_file_runs_it_from_the_next_slot_on(scene: CronScene) -> None:
    scene.drop("cron.hourly/a")
    assert scene.tick(TOP - 30).started == ()
    done = scene.tick(TOP + 1)
    assert [(r.slot, r.outcome) for r in done.ended] == [(TOP, Outcome.DONE)]
    assert scene.ran() == [TOP] and scene.outcomes(A) == {TOP: "done"}
    assert scene.tick(TOP + 61).started == () and scene.ran() == [TOP]


def test_the_past_of_a_new_entry_is_not_made_up_for(scene: CronScene) -> None:
    scene.tick(TOP - 2 * DAY)
    scene.tick(TOP + 600)
    scene.drop("cron.hourly/a")
    assert scene.tick(TOP + 660).started == ()
    assert scene.ran() == []


def test_an_entry_that_came_just_before_its_slot_is_run_by_the_tick_after_it(scene: CronScene) -> None:
    scene.drop("cron.hourly/other")
    scene.tick(TOP - 59)
    scene.drop("cron.hourly/a")
    scene.tick(TOP + 1)
    assert scene.outcomes(A) == {TOP: "done"}


def test_an_entry_that_was_away_for_a_month_begins_anew(scene: CronScene) -> None:
    path = scene.drop("cron.hourly/a")
    scene.tick(TOP - 30)
    scene.tick(TOP)
    text = path.read_text()
    path.unlink()
    scene.tick(TOP + 60)
    scene.tick(TOP + 30 * DAY + 60)
    scene.drop("cron.hourly/a", text)
    assert scene.tick(TOP + 30 * DAY + 120).started == ()
    assert scene.ran() == [TOP]


def test_another_schedule_is_another_beginning(scene: CronScene) -> None:
    scene.crontab("0 0 * * * true # resil: name=x\n")
    scene.tick(TOP - 30)
    scene.crontab("30 * * * * true # resil: name=x\n")
    assert scene.tick(TOP + 10 * HOUR).started == ()


def test_what_was_missed_is_made_up_for_once_and_counted(scene: CronScene) -> None:
    scene.drop("cron.hourly/a")
    scene.tick(TOP - 30)
    done = scene.tick(TOP + 10 * HOUR + 5)
    assert scene.ran() == [TOP + 10 * HOUR]
    (missed,) = done.skipped
    assert (missed.outcome, missed.count) == (Outcome.MISSED, 10)
    assert scene.tick(TOP + 10 * HOUR + 65).skipped == ()


def test_a_slot_is_taken_before_it_runs(scene: CronScene) -> None:
    scene.drop("cron.hourly/a", body=f'ls "{scene.cron.state.path}/slots" > seen_slots')
    scene.tick(TOP - 30)
    scene.tick(TOP)
    assert f"{A}@{int(TOP)}" in (scene.home / "seen_slots").read_text()


def test_every_tick_leaves_a_sign_of_life(scene: CronScene) -> None:
    scene.tick(TOP - 30)
    beat = scene.tick(TOP + 2).heartbeat
    assert beat == scene.cron.state.heartbeat()
    assert beat is not None
    assert (beat.time, beat.expected, beat.alive_since, beat.ticks) == (TOP + 2, TOP + 60, TOP - 30, 2)
    assert (beat.driver, beat.late_s, beat.pid) == ("crontab", 2.0, os.getpid())


@pytest.mark.parametrize(
    ("gap_s", "late_s", "ticks"),
    [(60, 0, 2), (75, 15, 2), (180, 120, 2), (181, 121, 1), (DAY, DAY - 60, 1), (-30, 0, 2), (-DAY, 0, 1)],
)
def test_lateness_is_counted_from_the_moment_that_was_promised(gap_s: float, late_s: float, ticks: int) -> None:
    before = Heartbeat(time=TOP, expected=TOP + 60, alive_since=TOP - 9 * DAY)
    beat = succeed(before, TOP + gap_s, expected=TOP + gap_s + 60, period_s=60)
    assert (beat.late_s, beat.ticks) == (late_s, ticks)
    assert (beat.alive_since == TOP - 9 * DAY) == (ticks == 2)


def test_a_stopped_scheduler_runs_nothing_and_leaves_no_sign(scene: CronScene) -> None:
    scene.drop("cron.hourly/a")
    scene.tick(TOP - 30)
    scene.cron.state.stop("alice", "maintenance", TOP)
    done = scene.tick(TOP + 1)
    assert done.heartbeat is None and "alice" in done.stopped and "maintenance" in done.stopped
    assert scene.ran() == []
    scene.cron.state.unstop()
    scene.tick(TOP + 61)
    assert scene.ran() == [TOP]


def test_a_damaged_word_to_stop_stops(scene: CronScene) -> None:
    scene.drop("cron.hourly/a")
    scene.tick(TOP - 30)
    (scene.cron.state.path / "stop").write_text("{")
    assert scene.tick(TOP).stopped
    assert scene.ran() == []


def test_a_run_that_is_still_under_way_has_its_next_slot_skipped_and_counted(scene: CronScene) -> None:
    scene.drop("cron.minutely/slow", body="while [ ! -e go ]; do sleep 0.05; done")
    scene.tick(TOP - 30)
    scene.tick(TOP, wait=False)
    wait_until(lambda: scene.ran() == [TOP])
    done = scene.tick(TOP + 60, wait=False)
    assert [r.outcome for r in done.skipped] == [Outcome.SKIPPED]
    (scene.home / "go").touch()
    wait_until(lambda: scene.names("running") == [])
    scene.tick(TOP + 120)
    assert scene.outcomes("cron.minutely+slow") == {TOP: "done", TOP + 60: "skipped", TOP + 120: "done"}


def test_jitter_holds_a_slot_back_within_one_tick(scene: CronScene) -> None:
    scene.drop("cron.hourly/a", options="jitter=50s")
    scene.tick(TOP - 30)
    began = scene.clock.monotonic()
    done = scene.tick(TOP)
    share = scene.clock.monotonic() - began
    assert 0 < share <= 50 and [r.slot for r in done.ended] == [TOP]


@pytest.mark.parametrize("name", ["heartbeat", "seen"])
@pytest.mark.parametrize("text", ['{"time": "yest', "[]", "", '{"time": "x", "cron.hourly+a": 3}', "[" * 100_000])
def test_a_file_that_nobody_can_read_costs_no_slot(scene: CronScene, name: str, text: str) -> None:
    scene.drop("cron.hourly/a")
    scene.tick(TOP - 30)
    (scene.cron.state.path / name).write_text(text)
    done = scene.tick(TOP)
    assert scene.ran() == [TOP]
    assert sum("put aside" in line for line in done.lines) == 1
    assert (scene.cron.state.path / f"{name}.damaged").exists()
    assert scene.tick(TOP + 60).lines == ()


@pytest.mark.parametrize("name", ["heartbeat", "seen", "history/cron.hourly+a.jsonl"])
@pytest.mark.parametrize("kind", ["fifo", "folder", "link"])
def test_something_else_in_the_place_of_a_file_holds_nothing_up(scene: CronScene, name: str, kind: str) -> None:
    scene.drop("cron.hourly/a")
    scene.tick(TOP - 30)
    path = scene.cron.state.path / name
    path.parent.mkdir(exist_ok=True)
    path.unlink(missing_ok=True)
    if kind == "fifo":
        os.mkfifo(path)
    elif kind == "folder":
        path.mkdir()
        (path / "x").touch()
    else:
        path.symlink_to(scene.home / "elsewhere")
    scene.tick(TOP)
    assert scene.ran() == [TOP] and scene.outcomes(A) == {TOP: "done"}
    assert not (scene.home / "elsewhere").exists()


def test_a_folder_that_others_may_write_to_runs_nothing(scene: CronScene) -> None:
    scene.drop("cron.hourly/a")
    scene.tick(TOP - 30)
    scene.cron.state.path.chmod(0o777)
    with pytest.raises(StateDirectoryError, match="others may write") as told:
        scene.tick(TOP)
    assert "chmod" in told.value.hint and scene.ran() == []


def test_somebody_elses_folder_runs_nothing(scene: CronScene) -> None:
    if os.geteuid():
        pytest.skip("only root can give a folder away")
    scene.drop("cron.hourly/a")
    scene.tick(TOP - 30)
    os.chown(scene.cron.state.path, 12345, -1)
    with pytest.raises(StateDirectoryError, match="belongs to somebody else"):
        scene.tick(TOP)
    assert scene.ran() == []


def test_a_full_disk_runs_nothing_says_so_and_costs_no_slot(tmp_path: Path) -> None:
    with small_disk(tmp_path / "state", "256k") as place:
        scene = CronScene(tmp_path)
        scene.drop("cron.hourly/a")
        scene.drop("cron.hourly/b.slurm")
        scene.tick(TOP - 30)
        ballast = fill(place)
        with pytest.raises(StateDirectoryError, match="No space left") as told:
            scene.tick(TOP)
        assert told.value.exit_code == 75
        assert scene.ran() == [] and scene.queued() == []
        ballast.unlink()
        scene.tick(TOP + 60)
        assert scene.ran() == [TOP] and len(scene.queued()) == 1


def test_a_disk_that_is_read_only_runs_nothing_and_says_so(tmp_path: Path) -> None:
    with small_disk(tmp_path / "state", "256k") as place:
        scene = CronScene(tmp_path)
        scene.drop("cron.hourly/a")
        scene.tick(TOP - 30)
        make_read_only(place, True)
        with pytest.raises(StateDirectoryError, match="Read-only"):
            scene.tick(TOP)
        assert scene.ran() == []
        make_read_only(place, False)
        scene.tick(TOP + 60)
        assert scene.ran() == [TOP]


def test_four_ticks_at_the_same_moment_run_and_submit_each_slot_once(scene: CronScene) -> None:
    scene.drop("cron.minutely/a")
    scene.drop("cron.minutely/b.slurm", options="overlap=allow")
    scene.tick(TOP - 30)
    for minute in range(5):
        pids = []
        for _ in range(4):
            pid = os.fork()
            if pid == 0:
                try:
                    scene.tick(TOP + 60 * minute)
                finally:
                    os._exit(0)
            pids.append(pid)
        for pid in pids:
            os.waitpid(pid, 0)
    assert sorted(scene.ran()) == [TOP + 60 * minute for minute in range(5)]
    assert len(set(scene.queued())) == len(scene.queued()) == 5


def test_a_clock_that_was_never_set_runs_nothing(scene: CronScene) -> None:
    scene.drop("cron.hourly/a")
    scene.tick(TOP - 30)
    with pytest.raises(StateDirectoryError, match="never set") as told:
        scene.tick(0.0)
    assert told.value.exit_code == 75
    scene.tick(TOP)
    assert scene.ran() == [TOP]


@pytest.mark.parametrize("jump_s", [HOUR, 3 * HOUR, DAY, 366 * DAY, 10 * 366 * DAY])
def test_a_clock_set_forward_makes_up_for_one_slot_at_most(scene: CronScene, jump_s: float) -> None:
    scene.drop("cron.hourly/a")
    scene.tick(TOP - 30)
    scene.tick(TOP)
    scene.tick(TOP + jump_s)
    assert scene.ran() == [TOP, TOP + jump_s]


@pytest.mark.parametrize("jump_s", [2 * HOUR, DAY, 366 * DAY])
def test_a_clock_set_back_silences_nothing_for_long(scene: CronScene, jump_s: float) -> None:
    """It was in the future for a while, and comes back: the entry goes on with the next slot of the time of now."""
    scene.drop("cron.hourly/a")
    scene.tick(TOP - 30)
    for hours in range(12):
        scene.tick(TOP + jump_s + hours * HOUR)
    before = scene.ran()
    done = scene.tick(TOP + 60)
    assert any("in the future" in line for line in done.lines)
    assert scene.tick(TOP + 120).lines == ()
    scene.tick(TOP + HOUR)
    assert scene.ran() == [*before, TOP + HOUR]
    scene.tick(TOP + 2 * HOUR)
    assert scene.ran()[-1] == TOP + 2 * HOUR


def test_a_clock_set_back_by_minutes_runs_no_slot_twice(scene: CronScene) -> None:
    scene.drop("cron.minutely/a")
    scene.tick(TOP - 30)
    for minute in range(10):
        scene.tick(TOP + 60 * minute)
    for minute in range(5, 15):
        scene.tick(TOP + 60 * minute)
    assert scene.ran() == [TOP + 60 * minute for minute in range(15)]


def test_a_host_whose_clock_is_ten_minutes_ahead_runs_nothing_twice_with_ours(scene: CronScene) -> None:
    scene.drop("cron.minutely/a")
    scene.tick(TOP - 30)
    for minute in range(12):
        scene.tick(TOP + 60 * minute + 600)
        scene.tick(TOP + 60 * minute)
    assert len(scene.ran()) == len(set(scene.ran()))


def test_a_table_that_cannot_be_read_is_said_and_runs_nothing(
    scene: CronScene, monkeypatch: pytest.MonkeyPatch
) -> None:
    scene.drop("cron.hourly/a")
    scene.tick(TOP - 30)

    def fail(_: object) -> None:
        raise StateDirectoryError("cannot read cron: Stale file handle")

    with monkeypatch.context() as patched:
        patched.setattr("resilience.cron.project.CronProject.read_table", fail)
        done = scene.tick(TOP)
    assert done.lines == ("cannot read cron: Stale file handle",)
    assert done.heartbeat is not None and done.heartbeat.trouble == done.lines[0]
    scene.tick(TOP + 60)
    assert scene.ran() == [TOP]


@pytest.mark.parametrize("name", ["cron.hourly/a", "cron.hourly/b.slurm"])
def test_what_became_unsafe_after_the_table_was_read_is_not_run(
    scene: CronScene, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = scene.drop(name)
    scene.tick(TOP - 30)
    table = scene.cron.read_table()
    monkeypatch.setattr(CronProject, "read_table", lambda _: table)
    path.chmod(0o777)
    done = scene.tick(TOP)
    (refused,) = done.refused
    assert "chmod o-w" in refused.summary
    assert scene.ran() == [] and scene.queued() == []


def test_a_disk_that_hangs_is_told_and_ticks_do_not_pile_up_there(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    scene = CronScene(tmp_path)
    try:
        with hung_folder(tmp_path / "state"), monkeypatch.context() as patched:
            patched.setattr("resilience.cron.project.LOOK_S", 0.5)
            for _ in range(3):
                with pytest.raises(ProbeError, match=r"nothing is run: .* does not answer") as told:
                    scene.tick()
                assert told.value.exit_code == 75
            assert sum(map(is_waiting_in_kernel, descendants(os.getpid()))) <= 1
    except OSError as error:
        pytest.skip(f"no FUSE file system can be mounted here: {error}")
    (tmp_path / "state").rmdir()

    def is_run_again() -> bool:
        with suppress(ProbeError):  # as long as the look that hung has not ended
            return scene.tick().heartbeat is not None
        return False

    wait_until(is_run_again)


def test_an_empty_folder_and_no_folder_run_nothing(scene: CronScene) -> None:
    assert scene.tick(TOP).heartbeat is not None
    (scene.home / "cron").rmdir()
    done = scene.tick(TOP + 60)
    assert done.heartbeat is not None and done.heartbeat.entries == 0 and done.lines == ()


def test_what_cannot_end_in_time_is_left_to_the_next_scheduler_unless_it_never_could(scene: CronScene) -> None:
    scene.drop("cron.hourly/short", options="timeout=1m")
    scene.drop("cron.hourly/long", options="timeout=10m")
    scene.drop("cron.hourly/endless", options="timeout=10h")
    scene.drop("cron.hourly/precious", options="timeout=10m catch_up=none")
    scene.tick(TOP - 30)
    scene.clock.time = TOP
    ticker = Ticker(scene.cron, driver="slurm", until=TOP + 300, life_s=HOUR)
    begun = {record.name.partition("/")[2] for record in ticker.tick().started}
    while ticker.is_running:
        ticker.poll(10)
    assert begun == {"short", "endless", "precious"}
    scene.tick(TOP + 400)
    assert scene.outcomes("cron.hourly+long") == {TOP: "done"}


def test_a_run_whose_supervisor_is_killed_is_cut_short_and_not_repeated(scene: CronScene) -> None:
    scene.drop("cron.hourly/a", body="kill -9 $PPID")
    scene.tick(TOP - 30)
    assert [str(record.outcome) for record in scene.tick(TOP).ended] == ["cut short"]
    scene.tick(TOP + 60)
    scene.tick(TOP + 120)
    assert scene.ran() == [TOP] and scene.outcomes(A) == {TOP: "cut short"}


def test_one_that_may_be_repeated_is_and_not_for_ever(scene: CronScene) -> None:
    scene.drop("cron.hourly/a", options="rerun", body="kill -9 $PPID")
    scene.tick(TOP - 30)
    for minute in range(6):
        scene.tick(TOP + 60 * minute)
    assert scene.ran() == [TOP] * 3
    scene.drop("cron.hourly/a", options="rerun")
    scene.tick(TOP + 3600)
    assert scene.outcomes(A) == {TOP: "cut short", TOP + 3600: "done"}
    assert scene.cron.state.keys() == (A,)


def test_what_the_last_scheduler_had_to_end_is_run_again_by_the_next_one_where_it_may(scene: CronScene) -> None:
    scene.drop("cron.hourly/a", options="rerun", body="[ -e go ] || sleep 100")
    scene.drop("cron.hourly/b", body="[ -e go ] || sleep 100")
    scene.tick(TOP - 30)
    scene.clock.time = TOP
    ticker = Ticker(scene.cron, driver="x")
    ticker.tick()
    wait_until(lambda: len(scene.ran()) == 2)
    assert {str(record.outcome) for record in ticker.end_all(5.0).ended} == {"cut short"}
    (scene.home / "go").touch()
    scene.tick(TOP + 60)
    assert scene.outcomes(A) == {TOP: "done"} and scene.outcomes("cron.hourly+b") == {TOP: "cut short"}


def test_reboot_entries_run_once_in_a_life_of_the_scheduler(scene: CronScene) -> None:
    scene.crontab("@reboot touch rebooted # resil: name=boot\n")
    assert len(scene.tick(TOP).started) == 1
    assert scene.tick(TOP + 60).started == ()
    assert scene.open().state.history("crontab+boot")[0].outcome is Outcome.DONE
    scene.crontab("@reboot touch rebooted # resil: name=boot\n@reboot touch later # resil: name=later\n")
    assert scene.tick(TOP + 120).started == (), "written while it was running: it waits for the next start"


def test_the_books_stay_small(scene: CronScene) -> None:
    scene.drop("cron.minutely/a", "#!/bin/sh\nexit 0\n")
    scene.tick(TOP - 30)
    for minute in range(15):
        scene.tick(TOP + 60 * minute)
    assert len(scene.names("slots")) <= 9 and scene.names("open") == [] and scene.names("running") == []
    assert len(scene.names("history")) == 1
    assert json.loads((scene.cron.state.path / "seen").read_text()).keys() == {"cron.minutely+a"}
