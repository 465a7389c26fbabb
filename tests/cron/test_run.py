"""The scheduler in the foreground: ticks at every slot, whatever the clock does, until it is told to end."""

from __future__ import annotations

import os
import resource
import signal
import subprocess
import sys
import time
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from resilience.cron.project import CronProject
from resilience.cron.records import Outcome, Table
from resilience.cron.report import TickReporter
from resilience.cron.run import REPEATED_EVERY, Ran, run, run_entry, tick
from resilience.cron.ticker import Ticker, TickResult
from resilience.errors import StateDirectoryError
from tests.cron.context import TOP, CronContext, wait_until
from tests.lab.descriptors import count_descriptors
from tests.lab.disks import fill, make_read_only, small_disk

ROOT = Path(__file__).parents[2]
A = "cron.minutely+a"


@pytest.fixture
def context(tmp_path: Path) -> CronContext:
    return CronContext(tmp_path)


def _run(context: CronContext, seconds: float, **more: object) -> Ran:
    end = context.clock.time + seconds
    return run(context.cron, driver="foreground", stop=lambda: context.clock.time >= end, **more)  # type: ignore[arg-type]


def test_it_ticks_at_every_minute_and_runs_every_slot_once(context: CronContext) -> None:
    context.drop("cron.minutely/a")
    ran = _run(context, 640)
    assert context.ran() == [TOP + 60 * minute for minute in range(11)]
    assert ran.why == "stop requested" and ran.ticks == 12
    beat = context.cron.state.heartbeat()
    assert beat is not None and beat.ticks == 12 and beat.late_s == 0


def test_a_slot_between_two_ticks_is_not_late(tmp_path: Path) -> None:
    context = CronContext(tmp_path, settings="tick_s = 300")
    context.crontab('SHELL=/bin/sh\n*/2 * * * * echo "$RESIL_CRON_SLOT $(date +\\%s)" >> ran2 # resil: name=x\n')
    started: list[float] = []
    context.clock.at_sleep = lambda _: started.append(context.clock.time)
    _run(context, 600)
    times = {record.slot: record.started for record in context.history("crontab+x")}
    assert len(times) == 5 and all(began is not None and began - slot < 2 for slot, began in times.items())


def test_it_ends_at_its_time_and_leaves_the_rest_to_the_next_one(context: CronContext) -> None:
    context.drop("cron.minutely/a", options="timeout=30s")
    ran = run(context.cron, driver="slurm", until=TOP + 140, stop=lambda: False)
    assert ran.why == "time limit reached"
    assert context.ran() == [TOP, TOP + 60], "the slot after could not have ended"
    run(context.cron, driver="slurm", until=TOP + 200, stop=lambda: False)
    assert context.ran() == [TOP, TOP + 60, TOP + 120]


def test_one_tick_waits_for_its_runs(context: CronContext) -> None:
    context.drop("cron.minutely/a", body="sleep 0.2; echo end >> ended")
    tick(context.cron, driver="x")
    context.clock.time = TOP
    assert len(tick(context.cron, driver="x").ended) == 1 and (context.home / "ended").exists()


def test_it_ends_when_the_scheduler_is_stopped(context: CronContext) -> None:
    context.drop("cron.minutely/a")

    def stop(_: float) -> None:
        if context.clock.time > TOP + 100 and not (context.cron.state.path / "stop").exists():
            context.cron.state.stop("alice", "enough", context.clock.time)

    context.clock.at_sleep = stop
    ran = _run(context, 10_000)
    assert "alice" in ran.why and context.ran() == [TOP, TOP + 60]


@pytest.mark.parametrize("jump_s", [3600, 86400, 8 * 3600 + 17])
def test_a_suspended_machine_makes_up_for_one_slot(context: CronContext, jump_s: float) -> None:
    """The wall clock has gone on, the monotonic clock has not."""
    context.drop("cron.minutely/a")

    def suspend(_: float) -> None:
        if TOP + 100 < context.clock.time < TOP + 110:
            context.clock.time += jump_s

    context.clock.at_sleep = suspend
    _run(context, 90 + 60 + jump_s)
    ran = context.ran()
    assert len(ran) == len(set(ran)) and ran[:2] == [TOP, TOP + 60]
    woken = [slot for slot in ran if slot > TOP + 120]
    assert 1 <= len(woken) <= 3 and woken[0] >= TOP + jump_s
    assert sum(r.count for r in context.history(A) if str(r.outcome) == "missed") == (woken[0] - TOP - 120) / 60


@pytest.mark.parametrize("jump_s", [300, 3600, 86400])
def test_a_clock_that_is_set_back_stops_nothing_for_long_and_runs_no_slot_twice(
    context: CronContext, jump_s: float
) -> None:
    context.drop("cron.minutely/a")
    is_done = False

    def set_back(_: float) -> None:
        nonlocal is_done
        if context.clock.time > TOP + 300 and not is_done:
            is_done = True
            context.clock.time -= jump_s

    context.clock.at_sleep = set_back
    began = context.clock.monotonic()
    run(context.cron, driver="x", stop=lambda: context.clock.monotonic() > began + 1200)
    ran = context.ran()
    assert len(ran) == len(set(ran))
    assert len(ran) >= 1200 / 60 - 1 - (jump_s / 60 if jump_s <= 900 else 1)


def test_a_failing_tick_is_reported_once_and_does_not_end_the_loop(
    context: CronContext, monkeypatch: pytest.MonkeyPatch
) -> None:
    context.drop("cron.minutely/a")
    errors: list[Exception] = [StateDirectoryError("cannot read cron: Stale file handle"), ZeroDivisionError("bug")]
    read = CronProject.read_table
    said: list[str] = []

    def sometimes(cron: CronProject) -> Table:
        if context.clock.time < TOP + 200:
            raise errors[context.clock.time > TOP + 90]
        return read(cron)

    monkeypatch.setattr(CronProject, "read_table", sometimes)
    _run(context, 400, say=said.append)
    assert context.ran()[-1] == TOP + 360
    assert len([line for line in said if "Stale" in line]) == 1 and len([line for line in said if "bug" in line]) == 1


@pytest.mark.parametrize("kind", ["read-only", "full", "unreadable"])
def test_trouble_with_the_state_directory_backs_off_to_the_next_regular_tick_and_is_said_once(
    tmp_path: Path, kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    begun: list[float] = []
    with small_disk(tmp_path / "state", "256k") as place:
        context = CronContext(tmp_path)
        context.crontab("@every 1s true # resil: name=x overlap=allow catch_up=all<=5\n@hourly true\n")
        context.tick(TOP - 30)
        report = TickReporter._report

        def counted(*call: Any) -> Any:
            begun.append(context.clock.time)
            return report(*call)

        monkeypatch.setattr(TickReporter, "_report", counted)
        if kind == "full":
            fill(place)
        elif kind == "read-only":
            make_read_only(place, True)
        else:
            (context.cron.state.path / "runs").write_text("")
        said: list[str] = []
        ran = _run(context, 300, say=said.append)
        assert ran.ticks <= 6, "as many as were due"
        assert len(begun) - ran.ticks in (0, 1), "and as many pings, and one of what ended after the last tick"
        words = {"full": "No space left", "read-only": "Read-only", "unreadable": "Not a directory"}[kind]
        assert len([line for line in said if words in line]) == len(said) == 1
        make_read_only(place, False)


def test_an_end_that_could_not_be_written_is_written_by_a_later_tick(tmp_path: Path) -> None:
    """Else the run that succeeded would be reported as cut short, and run again."""
    with small_disk(tmp_path / "state", "256k") as place:
        context = CronContext(tmp_path)
        context.drop("cron.minutely/a", options="rerun", body="while [ ! -e go ]; do sleep 0.02; done")
        context.tick(TOP - 30)
        ticker, context.clock.time = Ticker(context.cron, driver="foreground"), TOP
        ticker.tick()
        wait_until((context.home / "ran").exists)
        make_read_only(place, True)
        (context.home / "go").write_text("")
        (ended,) = ticker.poll(60.0).ended
        assert ended.outcome is Outcome.DONE and "Read-only" in ended.summary
        ticker.tick()
        make_read_only(place, False)
        assert ticker.tick().ended == (), "told already"
        assert context.outcomes(A) == {TOP: "done"} and context.ran() == [TOP]


def test_a_slot_that_runs_without_a_claim_runs_once_in_this_process(tmp_path: Path) -> None:
    with small_disk(tmp_path / "state", "256k") as place:
        context = CronContext(tmp_path)
        context.drop("cron.minutely/a", options="rerun overlap=allow")
        context.tick(TOP - 30)
        ticker = Ticker(context.cron, driver="foreground")
        make_read_only(place, True)
        started = 0
        for context.clock.time in (TOP, TOP + 5, TOP + 10):
            started += len(ticker.tick().started)
        ticker.poll(60.0)
        make_read_only(place, False)
        assert started == 1 and context.ran() == [TOP]


def test_a_run_that_ends_asks_for_the_slot_that_waits(tmp_path: Path) -> None:
    """A period shorter than the tick: each tick runs all slots since the last one, one after the other."""
    context = CronContext(tmp_path)
    context.crontab('SHELL=/bin/sh\n@every 10s echo "$RESIL_CRON_SLOT" >> ran # resil: name=x catch_up=all<=60\n')
    context.tick(TOP - 30)
    for minute in range(3):
        context.tick(TOP + 60 * minute)
    assert context.ran() == [TOP + 10 * number for number in range(-2, 13)]


def test_a_run_that_ends_while_the_scheduler_is_slow_asks_for_it_too(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A busy machine: each run has ended before anybody looks after it."""
    once = Ticker.tick

    def slow(ticker: Ticker) -> TickResult:
        done = once(ticker)
        time.sleep(0.3)
        return done

    monkeypatch.setattr(Ticker, "tick", slow)
    context = CronContext(tmp_path)
    context.crontab('SHELL=/bin/sh\n@every 10s echo "$RESIL_CRON_SLOT" >> ran # resil: name=x catch_up=all<=60\n')
    context.tick(TOP - 30)
    context.tick(TOP)
    assert context.ran() == [TOP + 10 * number for number in range(-2, 1)]


def test_the_loop_starts_what_waits_at_once_as_well(tmp_path: Path) -> None:
    context = CronContext(tmp_path)
    context.crontab('SHELL=/bin/sh\n@every 10s echo "$RESIL_CRON_SLOT" >> ran # resil: name=x catch_up=all<=60\n')
    context.tick(TOP - 30)
    context.clock.time = TOP + 30
    end = time.monotonic() + 60
    run(context.cron, driver="x", stop=lambda: len(context.ran()) >= 6 or time.monotonic() > end)
    assert context.ran()[:6] == [TOP + 10 * number for number in range(-2, 4)]


def test_settings_that_change_count_from_the_next_tick_and_invalid_ones_are_said(context: CronContext) -> None:
    """A daemon runs for a day: `resil alert test` has the new channels, and its own alerts must have them too."""
    settings = context.cron.project.loaded.path
    assert settings is not None
    before, said, digests = settings.read_text(), list[str](), list[float]()

    def edit(_: float) -> None:
        minute = int((context.clock.time - TOP) // 60)
        beat = context.cron.state.heartbeat()
        digests.append(beat.entries if beat is not None else 0)
        text = {1: before + 'digest_at = "08:00"\ntick_s = 30\n', 3: before + "tick_s = 0\n"}.get(minute, "")
        if text and settings.read_text() != text:
            settings.write_text(text)
            os.utime(settings, (minute, minute))

    context.clock.at_sleep = edit
    ran = _run(context, 400, say=said.append)
    assert digests[-1] == 1, "the entry of the digest"
    assert ran.ticks > 10, "two ticks a minute"
    (line,) = [line for line in said if "tick_s" in line]
    assert "must be more than zero" in line and line.endswith("the settings of before apply")


def test_a_project_that_was_moved_is_said_and_nothing_is_made_in_its_old_place(tmp_path: Path) -> None:
    context, state = CronContext(tmp_path, settings='ping_url = "https://localhost:9/"'), tmp_path / "state"
    context.drop("cron.minutely/a")
    _run(context, 90)
    wait_until(lambda: context.cron.state.book.active() == [])  # what still runs writes its end where it began
    before, said = context.ran(), list[str]()
    context.home.rename(tmp_path / "moved")
    state.rename(tmp_path / "moved" / "state")
    _run(context, 200, say=said.append)
    assert not context.home.exists() and not state.exists()
    assert len(said) == 1 and f"{context.home} is missing" in said[0] and "resil cron install" in said[0]
    (tmp_path / "moved" / "state").rename(state)
    (tmp_path / "moved").rename(context.home)
    _run(context, 90)
    assert len(context.ran()) > len(before)


def test_a_lasting_error_is_repeated_once_an_hour(context: CronContext, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(_: CronProject) -> Table:
        raise StateDirectoryError("no such luck")

    monkeypatch.setattr(CronProject, "read_table", fail)
    said: list[str] = []
    _run(context, 60 * REPEATED_EVERY + 120, say=said.append)
    assert said.count("no such luck") == 2


def test_hundreds_of_ticks_cost_no_memory_and_no_descriptors(context: CronContext) -> None:
    context.drop("cron.hourly/a")
    context.drop("cron.hourly/b.slurm")
    _run(context, 20 * 60)
    before = (count_descriptors(), resource.getrusage(resource.RUSAGE_SELF).ru_maxrss)
    _run(context, 200 * 60)
    after = (count_descriptors(), resource.getrusage(resource.RUSAGE_SELF).ru_maxrss)
    assert after[0] <= before[0] and after[1] - before[1] < 4096, "KiB"
    assert len(context.ran()) == 4


# ---- real processes -------------------------------------------------------------------------------------------------

_LOOP = """
import os, signal, sys
from pathlib import Path
from typing import Any
from resilience.cron.project import open_cron
from resilience.cron.run import run
from resilience.runs.project import Project
from resilience.settings.load import load
from resilience.system.ports import System
os.chdir(sys.argv[1])
system, ends = System(), []
signal.signal(signal.SIGTERM, lambda *_: ends.append(1))
print("ready", flush=True)
ran = run(open_cron(Project(system, load(system))), driver="foreground", grace_s=2.0, stop=lambda: bool(ends))
print(ran.why, flush=True)
"""


def _loops(context: CronContext, count: int) -> list[subprocess.Popen[bytes]]:
    words = [sys.executable, "-c", _LOOP, str(context.home)]
    loops = [
        subprocess.Popen(words, stdout=subprocess.PIPE, cwd=ROOT, env={**os.environ, "PYTHONPATH": str(ROOT)})
        for _ in range(count)
    ]
    for loop in loops:
        assert loop.stdout is not None and loop.stdout.readline() == b"ready\n"
    return loops


def _end(loop: subprocess.Popen[bytes]) -> str:
    loop.send_signal(signal.SIGTERM)
    said, _ = loop.communicate(timeout=120)
    assert loop.returncode == 0
    return said.decode().strip()


def test_two_schedulers_at_once_run_each_slot_once(context: CronContext) -> None:
    context.crontab(
        'SHELL=/bin/sh\n@every 1s echo "$RESIL_CRON_SLOT" >> ran # resil: name=x overlap=allow catch_up=all<=60\n'
    )
    loops = _loops(context, 2)
    wait_until(lambda: len(context.ran()) >= 4)
    for loop in loops:
        assert _end(loop) == "stop requested"
    ran = context.ran()
    assert set(Counter(ran).values()) == {1}
    assert sorted(ran) == list(range(min(ran), max(ran) + 1)), "and none was left out"


def test_sigterm_ends_what_runs_politely_and_records_it(context: CronContext) -> None:
    context.crontab(
        "SHELL=/bin/sh\n@every 1s trap 'echo polite > polite; exit 0' TERM; touch begun; while :; do sleep 0.1; done "
        "# resil: name=x\n"
    )
    (loop,) = _loops(context, 1)
    wait_until((context.home / "begun").exists)
    began = time.monotonic()
    assert _end(loop) == "stop requested"
    assert time.monotonic() - began < 60
    assert (context.home / "polite").exists()
    assert "cut short" in {str(record.outcome) for record in context.history("crontab+x")}
    assert context.names("runs") == []


def test_a_killed_scheduler_is_followed_by_the_next_one(context: CronContext) -> None:
    context.crontab('SHELL=/bin/sh\n@every 1s echo "$RESIL_CRON_SLOT" >> ran; sleep 0.5 # resil: name=x\n')
    (loop,) = _loops(context, 1)
    wait_until(lambda: len(context.ran()) >= 1)
    loop.kill()
    loop.communicate(timeout=60)
    known = len(context.ran())
    (loop,) = _loops(context, 1)
    wait_until(lambda: len(context.ran()) > known)
    _end(loop)
    assert set(Counter(context.ran()).values()) == {1}


# ---- one entry, now -------------------------------------------------------------------------------------------------


def test_an_entry_run_by_hand_runs_as_at_its_slot_and_costs_no_slot(context: CronContext) -> None:
    context.drop("cron.hourly/a", body="echo by hand; exit 3")
    context.tick(TOP - 30)
    (entry,) = context.cron.read_table().entries
    context.clock.time = TOP - 20
    record = run_entry(context.cron, entry)
    assert (record.outcome, record.exit_code, record.summary) == (Outcome.FAILED, 3, "exit code 3: by hand")
    assert context.ran() == [TOP - 20] and context.history(A.replace("minutely", "hourly")) == (record,)
    context.tick(TOP)
    assert context.ran() == [TOP - 20, TOP]
    context.clock.time = TOP - 20
    assert run_entry(context.cron, entry).slot == TOP - 19, "another run has this second"


def test_an_entry_run_by_hand_keeps_its_overlap_policy_and_can_be_ended(context: CronContext) -> None:
    context.drop("cron.hourly/a", body="sleep 100")
    context.tick(TOP - 30)
    (entry,) = context.cron.read_table().entries
    ticker = Ticker(context.cron, driver="x")
    context.clock.time = TOP
    ticker.tick()
    wait_until(lambda: len(context.ran()) == 1)
    context.clock.time = TOP + 5
    assert run_entry(context.cron, entry).outcome is Outcome.SKIPPED
    ticker.end_all(5.0)
    context.clock.time = TOP + 6
    record = run_entry(context.cron, entry, stop=lambda: len(context.ran()) == 2, grace_s=5.0)
    assert record.outcome is Outcome.CUT_SHORT and context.names("runs") == []


def test_a_batch_script_run_by_hand_is_submitted_once_and_its_end_is_heard(context: CronContext) -> None:
    context.drop("cron.hourly/b.slurm")
    context.tick(TOP - 30)
    (entry,) = context.cron.read_table().entries
    assert run_entry(context.cron, entry).outcome is Outcome.SUBMITTED
    context.queue.set(101, "COMPLETED")
    context.tick(TOP - 10)
    assert [str(record.outcome) for record in context.history("cron.hourly+b.slurm")] == ["done"]


def test_one_tick_that_is_stopped_while_it_waits_tells_what_it_ran(context: CronContext) -> None:
    waits = "while [ ! -e go ]; do sleep 0.05; done"
    context.crontab(f"SHELL=/bin/sh\n@every 10s {waits} # resil: name=x catch_up=all<=60\n")
    context.tick(TOP - 30)
    context.clock.time = TOP + 25

    def stop() -> bool:
        if not (context.home / "go").exists():
            context.cron.state.stop("ada", "", TOP)
            (context.home / "go").touch()
        return False

    done = tick(context.cron, driver="x", stop=stop)
    assert not done.stopped and [run.outcome for run in done.ended] == [Outcome.DONE]
    assert any("stopped by ada" in line for line in done.lines)
