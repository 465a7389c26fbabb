"""Stopped before the kernel kills, whichever limit is reached first; told early when the memory leaks."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from resilience.errors import GuardError
from resilience.guard import Request, TrainingGuard, watch
from resilience.guard.end_time import NO_LIMIT, EndTime
from resilience.guard.memory.limits import FAMILY, NODE, Reading
from resilience.guard.rank_info import RankInfo
from resilience.guard.recorder import Recorder
from resilience.guard.settings import GuardSettings, read_settings
from resilience.guard.step_timer import StepTimer
from resilience.guard.triggers.host_memory import Forecast, HostMemory, about, describe, judge, plan, stop_level
from resilience.guard.triggers.walltime import Walltime
from tests.guard import leaking_training
from tests.guard.guards import QUIET
from tests.guard.memory.memory_cgroups import MEMINFO, MIB, Machine, RealCgroup, a_real_cgroup
from tests.lab.waiting import until

GIB = 2**30
JOB = "the job's cgroup /slurm/uid_1000/job_12"
START = 1_800_000_000.0


def say(*readings: Reading, percent: float = 95.0, free_bytes: int = 0) -> str | None:
    return judge(readings, percent=percent, free_bytes=free_bytes, host="n17")


# ---- the level ------------------------------------------------------------------------------------------------------


def test_the_sentence_names_the_node_the_share_the_limit_and_whose_it_is() -> None:
    assert say(Reading(JOB, 200 * MIB, int(192.4 * MIB))) == (
        "the memory of n17 is at 96.2 % of the 200 MiB that the job's cgroup /slurm/uid_1000/job_12 allows"
    )
    assert say(Reading(NODE, 24 * GIB, 23 * GIB)) == "the memory of n17 is at 95.8 % of its 24.0 GiB"
    text = say(Reading(FAMILY, 24 * GIB, 23 * GIB))
    assert text == "the memory of n17 is at 95.8 % of its 24.0 GiB, used by this training alone"


def test_below_the_percentage_nothing_is_said_and_at_it_something_is() -> None:
    assert say(Reading(JOB, 1000, 949)) is None
    assert say(Reading(JOB, 1000, 950)) is not None


def test_each_limit_is_judged_by_its_own_use_and_the_fullest_is_named() -> None:
    step, job = Reading("the step's cgroup /s", 100, 96), Reading(JOB, 1000, 990)
    for readings in ((step, job), (job, step)):
        assert "99.0 %" in str(say(*readings, Reading(NODE, 10000, 100)))
    assert "96.0 %" in str(say(step, Reading(JOB, 1000, 300)))


def test_bytes_left_are_a_limit_too() -> None:
    assert say(Reading(NODE, 1000 * GIB, 900 * GIB), free_bytes=100 * GIB) is not None
    assert say(Reading(NODE, 1000 * GIB, 900 * GIB - 1), free_bytes=100 * GIB) is None
    assert say(Reading(JOB, 200 * GIB, 180 * GIB), free_bytes=30 * GIB) == (
        f"the memory of n17 has 20.0 GiB left of the 200 GiB that {JOB} allows: "
        "less than the 30.0 GiB that must stay free"
    )


def test_shared_memory_is_named_where_it_is_much_of_it() -> None:
    text = str(say(Reading(JOB, 200 * MIB, 195 * MIB, 120 * MIB)))
    assert text.endswith("allows, 120 MiB of it in /dev/shm and other shared memory")
    assert "/dev/shm" not in str(say(Reading(JOB, 200 * MIB, 195 * MIB, 10 * MIB)))


def test_the_level_is_the_smaller_of_both() -> None:
    assert stop_level(1000, 95.0, 0) == 950
    assert stop_level(1000, 95.0, 100) == 900
    assert stop_level(1000, 95.0, 10) == 950


@pytest.mark.parametrize("text", ["0.95", "1", "0.5", "0.95%"])
def test_a_percentage_of_1_or_less_is_refused_with_the_explanation(text: str) -> None:
    """psutil counts to 100: a threshold of 0.95 would stop every training at its first step."""
    for arguments, environ in (({"host_memory_percent": text}, {}), ({}, {"RESIL_GUARD__HOST_MEMORY_PERCENT": text})):
        with pytest.raises(GuardError) as caught:
            read_settings(environ, **arguments)
        told = f"{caught.value} {caught.value.hint}"
        assert "host_memory_percent" in told.lower()
        assert "%" in told


@pytest.mark.parametrize("value", [0.95, 1, 1.0, 0.01])
def test_a_number_of_1_or_less_is_refused_as_well(value: float) -> None:
    with pytest.raises(GuardError, match="every machine exceeds") as caught:
        read_settings({}, host_memory_percent=value)
    assert f"{value * 100:g} is probably meant" in str(caught.value.hint)


@pytest.mark.parametrize("value", [0, -5, 100.5, float("nan"), "half", True, "101%"])
def test_a_percentage_that_is_none_is_refused(value: Any) -> None:
    with pytest.raises(GuardError, match=r"(?i)host_memory_percent"):
        read_settings({}, host_memory_percent=value)


def test_percent_and_bytes_are_read_with_their_units() -> None:
    settings = read_settings({"RESIL_GUARD__HOST_MEMORY_PERCENT": "92.5%"}, host_memory_free_bytes="20GiB")
    assert (settings.host_memory_percent, settings.host_memory_free_bytes) == (92.5, 20 * GIB)
    with pytest.raises(GuardError):
        read_settings({}, host_memory_free_bytes=-1)


# ---- the forecast ---------------------------------------------------------------------------------------------------


def forecast(limit_in_s: float, *, percent: int = 85) -> Forecast:
    return Forecast(Reading(JOB, 200 * GIB, 2 * percent * GIB), 1.0, limit_in_s, limit_in_s)


@pytest.mark.parametrize(
    ("limit_in_s", "end_in_s", "saved_now", "next_save_s", "then"),
    [
        (9000.0, None, True, 600.0, "wait"),  # no end known: the level alone stops
        (60.0, None, True, 600.0, "wait"),
        (9000.0, 5000.0, True, 60000.0, "wait"),  # the job is over before
        (9000.0, 86400.0, True, 600.0, "wait"),  # another save fits in
        (500.0, 86400.0, True, 600.0, "stop"),  # none fits in: this is the last checkpoint boundary
        (500.0, 86400.0, False, 600.0, "wait"),  # between saves: the next one may still come
        (500.0, 86400.0, True, None, "wait"),
        (65.0, 86400.0, False, 600.0, "save"),  # 2 x 30 s + 10 s: hardly a save fits in
        (65.0, 86400.0, True, 600.0, "stop"),  # just saved: not once more
        (65.0, 60.0, False, 600.0, "wait"),
    ],
)
def test_what_a_forecast_leads_to(
    limit_in_s: float, end_in_s: float | None, saved_now: bool, next_save_s: float | None, then: str
) -> None:
    found = plan(forecast(limit_in_s), end_in_s=end_in_s, saved_now=saved_now, next_save_s=next_save_s, save_s=30.0)
    assert found == then


def test_far_from_the_limit_no_forecast_asks_for_a_save() -> None:
    """A data set that is loaded into memory for five minutes looks like a leak that is over in two."""
    far, near = forecast(65.0, percent=79), forecast(65.0, percent=80)
    found = [plan(one, end_in_s=1e5, saved_now=False, next_save_s=None, save_s=30.0) for one in (far, near)]
    assert found == ["wait", "save"]


def test_the_forecast_reads_as_a_sentence() -> None:
    one = Forecast(Reading(JOB, 200 * GIB, 100 * GIB), 100 * GIB / 12044, 12044.0, 11000.0)
    assert describe(one, "n17") == (
        f"the memory of n17 grows by 29.9 GiB per hour: the 200 GiB that {JOB} allows will be used up, "
        "limit reached in about 3 h 20 min"
    )


@pytest.mark.parametrize(
    ("seconds", "text"),
    [(12044, "3 h 20 min"), (1861, "31 min"), (83, "1 min 20 s"), (3, "10 s"), (100_000, "1 d 3 h"), (7199, "2 h")],
)
def test_no_more_digits_than_a_forecast_has(seconds: float, text: str) -> None:
    assert about(seconds) == text


class Leak:
    """A trigger on a pretended machine where time goes by hand, and what it told."""

    def __init__(self, machine: Machine, *, end_in_s: float | None = 86400.0, **settings: Any) -> None:
        self.now = 0.0
        self.told: list[str] = []
        self.job = machine.slurm(2, used=100 * MIB, limits={"job_12": 1000 * MIB})
        self.place = RankInfo(host="n17", end_time=None if end_in_s is None else START + end_in_s)
        self.timer = StepTimer()
        self.steps = 0
        self.recorder = Recorder(self.place, self.told.append)
        self.trigger = HostMemory(
            self.place,
            GuardSettings(**settings),
            self.recorder,
            self.timer,
            root=str(machine.root),
            clock=lambda: self.now,
            wall_clock=lambda: START + self.now,
        )

    def run(
        self, seconds: int, mib_per_s: float, *, save_every_s: int = 0, save_s: float = 10.0, steps: bool = True
    ) -> Request | None:
        """Let time pass, second by second, until something is request."""
        for _ in range(seconds):
            self.now += 1.0
            self.steps += steps
            self.timer.sample(self.now, (self.steps, 0))
            used = (
                f"{int((100 + self.now * mib_per_s) * MIB):<30}\n"  # over the old text: truncating costs 1 ms on ext4
            )
            with (self.job / "memory.current").open("r+") as file:
                file.write(used)
            if save_every_s and self.now % save_every_s == 0:
                self.timer.saved(save_s)
                self.trigger.saved(int(self.now))
            request = self.trigger.poll()
            if request is not None:
                return request
        return None

    def asks(self, seconds: int, mib_per_s: float, **options: Any) -> Request:
        """Let time pass until something is requested; fail if nothing is."""
        request = self.run(seconds, mib_per_s, **options)
        assert request is not None
        return request


def test_a_leak_is_reported_long_before_and_then_ever_more_seldom(machine: Machine) -> None:
    leak = Leak(machine)
    assert leak.run(2000, 0.3) is None
    assert "limit reached in about" in leak.told[0]
    assert leak.told[0].endswith("before the end of the job")
    assert "the memory of n17 grows by 1.1 GiB per hour: the 1000 MiB that the job's cgroup" in leak.told[0]
    assert 1 <= len(leak.told) <= 4


def test_the_training_stops_right_after_the_last_save_that_fits_in(machine: Machine) -> None:
    """900 MiB are left at 0.3 MiB/s: full after 3,000 s, stopped by level after 2,833 s; a save every 600 s."""
    leak = Leak(machine)
    request = leak.asks(3000, 0.3, save_every_s=600)
    assert (request.save, request.stop, leak.now) == (False, True, 2400.0)
    assert "limit reached in about 10 min" in request.why
    assert request.why.endswith("before another save; the last one has just completed")


def test_a_job_that_ends_before_is_left_alone(machine: Machine) -> None:
    leak = Leak(machine, end_in_s=2500.0)
    assert leak.run(2500, 0.3, save_every_s=600) is None
    assert leak.told == []


def test_without_a_known_end_the_forecast_is_reported_and_the_level_stops(machine: Machine) -> None:
    leak = Leak(machine, end_in_s=None)
    request = leak.asks(3000, 0.3, save_every_s=600)
    assert "limit reached in about" in leak.told[0]
    assert request.save
    assert "is at 95.0 % of the 1000 MiB" in request.why


def test_a_leak_too_fast_for_a_save_at_the_level_is_stopped_before_it(machine: Machine) -> None:
    """At 5 MiB/s the last 5 % are full in 10 s, and a save takes 30 s: it must begin earlier."""
    leak = Leak(machine)
    leak.timer.saved(30.0)
    request = leak.asks(180, 5.0)
    assert request.save
    assert request.why.endswith("barely enough for a save")
    assert 30.0 < 180.0 - leak.now <= 40.0  # as soon as it is at 80 %


def test_start_up_is_no_leak(machine: Machine) -> None:
    """Before the first step the data is loaded: as straight as a leak, and at the first save that is long over."""
    leak = Leak(machine)
    assert leak.run(800, 1.0, steps=False) is None
    assert leak.told == []


def test_a_forecast_that_is_switched_off_says_nothing(machine: Machine) -> None:
    leak = Leak(machine, host_memory_forecast=False)
    request = leak.asks(3000, 0.3, save_every_s=600)
    assert leak.told == []
    assert "is at 95.0 %" in request.why


def test_a_new_time_limit_is_heeded(machine: Machine) -> None:
    leak = Leak(machine, end_in_s=2500.0)
    assert leak.run(2000, 0.3, save_every_s=600) is None
    leak.place.end_time = START + 86400.0
    request = leak.asks(1000, 0.3, save_every_s=600)
    assert (request.save, leak.now) == (False, 2400.0)


def test_a_time_limit_that_was_changed_reaches_the_forecast_by_the_place() -> None:
    """The walltime trigger asks the scheduler; the forecast, and the forced exit, go by `RankInfo.end_time`."""
    place = RankInfo(end_time=time.time() + 500.0)
    ends = [time.time() + 86400.0, NO_LIMIT]
    asked = EndTime(place.end_time, lambda: ends[0], 0.05)
    said: list[str] = []
    walltime = Walltime(place, GuardSettings(), Recorder(place, said.append), StepTimer(), environ={}, end_time=asked)
    until(lambda: walltime.poll() is None and place.end_time == ends[0])
    ends.pop(0)
    until(lambda: walltime.poll() is None and place.end_time is None)


def next_job(leak: Leak, machine: Machine) -> Leak:
    """Another job on the same kind of machine, which knows what the one before has learned."""
    after = Leak(machine)
    after.trigger.restore(json.loads(json.dumps(leak.trigger.learned(leak.now))), 0.0)
    return after


def test_the_next_job_knows_the_leak_from_its_first_steps(machine: Machine) -> None:
    leak = Leak(machine)
    leak.run(2000, 0.3)
    after = next_job(leak, machine)
    assert after.run(20, 0.3) is None
    (told,) = after.told
    assert "the memory of n17 grew by 1.1 GiB per hour in the previous job: at that rate, the 1000 MiB" in told
    assert told.endswith("will be used up, limit reached in about 50 min, before the end of the job")
    after.run(80, 0.3)
    assert after.run(2000, 0.3) is None
    assert "the memory of n17 grows by 1.1 GiB per hour: " in after.told[-1]
    third = next_job(after, machine)
    assert third.run(20, 0.3) is None and len(third.told) == 1


def test_the_next_job_stops_at_the_last_save_that_fits_in_although_its_own_trend_comes_later(machine: Machine) -> None:
    """Full after 90 s, a save every 40: a trend of its own takes a minute, and then it is too late for the plan."""
    leak = Leak(machine)
    leak.run(2000, 0.3, save_every_s=40)
    learned = leak.trigger.learned(leak.now)
    after = Leak(machine)
    after.trigger.restore({**learned, "trend": [10.0 * MIB, 80.0]}, 0.0)
    request = after.asks(90, 10.0, save_every_s=40)
    assert (request.save, after.now) == (False, 40.0)
    assert "grew by 35.2 GiB per hour in the previous job" in request.why


@pytest.mark.parametrize("now", [0.0, 0.1, 1.0])
def test_a_leak_that_is_mended_or_another_one_is_forgotten_with_a_reason(machine: Machine, now: float) -> None:
    leak = Leak(machine)
    leak.run(2000, 0.3)
    after = next_job(leak, machine)
    after.run(200, now)
    (dropped,) = [event for event in after.recorder.take() if event["event"] == "learned_dropped"]
    assert dropped["what"] == "host_memory"
    assert dropped["why"].startswith("the memory grew by 1.1 GiB per hour before, and now grows by ")
    assert sum("in the previous job" in told for told in after.told) == 1
    trend = after.trigger.learned(after.now)["trend"]
    assert trend is None if now == 0.0 else trend[0] == pytest.approx(now * MIB, rel=0.01)


def test_what_a_save_needs_and_the_time_between_saves_are_known_to_the_next_job(machine: Machine) -> None:
    leak = Leak(machine)
    leak.trigger._save.restore([50 * MIB, 70 * MIB])
    leak.run(1000, 0.0, save_every_s=300)
    after = next_job(leak, machine)
    after.run(1, 0.0)
    assert after.trigger._save.bytes == 70 * MIB + 70 * MIB // 50
    assert after.trigger.learned(0.0)["gaps_s"] == [300.0] * 3


@pytest.mark.parametrize(
    "wrong",
    [
        {}, {"trend": 5}, {"trend": [1.0]}, {"trend": [-1.0, 5.0]}, {"trend": [0.0, 5.0]}, {"gaps_s": [float("nan")]},
        {"gaps_s": 5}, {"save_bytes": [float("inf")]}, {"save_bytes": [-1]}, {"trend": ["x", 1]},
    ],
)  # fmt: skip
def test_what_makes_no_sense_is_not_believed(machine: Machine, wrong: dict[str, Any]) -> None:
    good: dict[str, Any] = {"trend": [1.0, 60.0], "gaps_s": [3.0], "save_bytes": [5]}
    leak = Leak(machine, end_in_s=None)
    with pytest.raises((ValueError, TypeError, KeyError, OverflowError)):
        leak.trigger.restore({**good, **wrong} if wrong else {}, 0.0)
    assert leak.trigger.learned(0.0) == {"trend": None, "gaps_s": [], "save_bytes": []}


def test_steady_memory_costs_no_word(machine: Machine) -> None:
    leak = Leak(machine)
    assert leak.run(4000, 0.0, save_every_s=600) is None
    assert leak.told == []


# ---- the trigger ----------------------------------------------------------------------------------------------------


def make_trigger(machine: Machine, **settings: Any) -> tuple[HostMemory, list[str]]:
    told: list[str] = []
    place = RankInfo(host="n17")
    recorder = Recorder(place, told.append)
    return HostMemory(place, GuardSettings(**settings), recorder, StepTimer(), root=str(machine.root)), told


@pytest.mark.parametrize(
    ("version", "stat"),
    [
        (1, "total_inactive_file {0}\ntotal_active_file {0}\n"),
        (2, "inactive_file {0}\nactive_file {0}\n"),
    ],
)
def test_reclaimable_cache_does_not_stop_but_what_is_left_of_it_does(machine: Machine, version: int, stat: str) -> None:
    job = machine.slurm(version, used=199 * MIB, limits={"job_12": 200 * MIB}, stat=stat.format(40 * MIB))
    trigger, _ = make_trigger(machine)
    assert trigger.poll() is None
    (job / "memory.stat").write_text(stat.format(2 * MIB))
    request = trigger.poll()
    assert request is not None
    assert "is at 97.5 % of the 200 MiB that the job's cgroup" in request.why
    assert (request.save, request.stop) == (True, True)


def test_the_node_itself_stops_when_it_is_fuller_than_the_job(machine: Machine) -> None:
    machine.slurm(2, used=10 * MIB, limits={"job_12": 200 * MIB})
    (machine.root / "proc/meminfo").write_text(MEMINFO.format(available=200_000))
    request = make_trigger(machine)[0].poll()
    assert request is not None
    assert request.why == "the memory of n17 is at 99.2 % of its 23.5 GiB"


def test_a_machine_that_tells_nothing_is_said_once_and_stops_nobody(machine: Machine) -> None:
    trigger, told = make_trigger(machine)
    assert [trigger.poll() for _ in range(5)] == [None] * 5
    assert told == ["warning: cannot read the memory of n17: it is not watched"]


def test_it_is_asked_by_one_rank_of_each_node() -> None:
    assert HostMemory.ranks == "node"


def test_a_poll_is_cheap_here_and_now() -> None:
    place = RankInfo()
    trigger = HostMemory(place, GuardSettings(), Recorder(place), StepTimer())
    took = []
    for _ in range(300):
        start = time.perf_counter()
        trigger.poll()
        took.append(time.perf_counter() - start)
    assert sorted(took)[150] < 0.001, "about 300 us"


def test_a_guard_tells_the_trigger_of_saves_and_asks_it_at_once() -> None:
    """The way from `saving()` to the stop, with a trigger that is told of saves and asked every hour only."""

    class AfterSave:
        name = "after_save"
        has_saved = 0

        def poll(self) -> Request | None:
            return Request(self.name, "it is saved", save=False) if self.has_saved else None

        def saved(self, step: int) -> None:
            self.has_saved = step

        def done(self, outcome: str) -> None:
            pass

    trigger = AfterSave()
    with TrainingGuard.from_env({}, triggers=[trigger], **{**QUIET, "poll_s": 6.0}) as guard:
        for _ in range(5):
            assert not guard.step()
        start = time.monotonic()
        with guard.saving():
            pass
        while not (decision := guard.step()):
            assert time.monotonic() < start + 20
            time.sleep(0.001)
        assert time.monotonic() - start < 5  # not only at the next poll
    assert (decision.save, decision.stop, trigger.has_saved) == (False, True, 5)


def test_a_guard_has_the_memory_probed_during_each_save(monkeypatch: pytest.MonkeyPatch) -> None:
    """As often as the trigger wants, where it would otherwise be its turn in an hour."""
    monkeypatch.setattr(watch, "POLL_S", 3600.0)
    looks: list[bool] = []
    poll = HostMemory.poll

    def note(trigger: HostMemory) -> Request | None:
        looks.append(trigger._timer.is_saving)
        return poll(trigger)

    monkeypatch.setattr(HostMemory, "poll", note)
    with TrainingGuard.from_env({}, **{**QUIET, "host_memory": True, "poll_s": 3600.0}) as guard:
        until(lambda: looks)
        guard.step()
        with guard.saving():
            until(lambda: looks.count(True) > 3)


# ---- real cgroups ---------------------------------------------------------------------------------------------------


def run_training(how: str, real: RealCgroup, directory: Path, **environ: str) -> tuple[dict[str, Any], str]:
    """Run it in the job's task, and return what it printed; nothing if the kernel killed it."""
    root = str(Path(__file__).parents[3])
    done = subprocess.run(
        [sys.executable, leaking_training.__file__, how, str(real.task), str(directory)],
        capture_output=True,
        text=True,
        timeout=200,
        check=False,
        env={**os.environ, "PYTHONPATH": root, **environ},
    )
    return (json.loads(done.stdout) if done.returncode == 0 else {}), done.stderr


def test_a_leaking_data_loader_is_stopped_before_the_kernel_kills_it(real: RealCgroup, tmp_path: Path) -> None:
    """The limit is the job's, the training is in the task's cgroup, which says no limit; the leak is in a child."""
    told, errors = run_training("leak", real, tmp_path)
    assert told, errors
    assert (told["exit_code"], told["saves"]) == (75, 1)
    assert (
        f"of the 200 MiB that the job's cgroup {str(real.job).removeprefix('/sys/fs/cgroup/memory')} allows"
        in told["why"]
    )
    percent = float(told["why"].partition("is at ")[2].partition(" %")[0])
    assert 60.0 <= percent < 97.0
    assert real.kills() == 0


def test_without_the_guard_the_kernel_kills(real: RealCgroup, tmp_path: Path) -> None:
    """The other side: the same leak is a real one."""
    run_training("leak", real, tmp_path, RESIL_GUARD="off")
    assert real.kills() >= 1


@pytest.fixture
def small() -> Iterator[RealCgroup]:
    with a_real_cgroup(400 * MIB) as cgroup:
        yield cgroup


@pytest.mark.parametrize(("mib_per_s", "first_saves"), [(40, 3), (120, 3), (40, 0)])
def test_a_fast_leak_in_a_small_cgroup_is_stopped_before_the_kernel_kills_it(
    small: RealCgroup, tmp_path: Path, mib_per_s: int, first_saves: int
) -> None:
    """120 MiB/s fill it in three seconds. Also where no save was made before: then it must be 80 % full."""
    told, errors = run_training("fast", small, tmp_path, MIB_PER_S=str(mib_per_s), FIRST_SAVES=str(first_saves))
    assert told, errors
    assert (told["exit_code"], told["saves"]) == (75, first_saves + 1), told
    assert small.kills() == 0


def test_files_that_come_fast_stop_nobody(small: RealCgroup, tmp_path: Path) -> None:
    """300 MiB of file cache in a second or two, as fast as the leaks above: looked at closely, none of it is used."""
    told, errors = run_training("files", small, tmp_path)
    assert told, errors
    assert int((small.job / "memory.max_usage_in_bytes").read_text()) > 360 * MIB, "the test shows nothing"
    assert (told["why"], told["saves"], told["exit_code"]) == ("", 2, 0)


def test_files_read_again_and_again_fill_the_cgroup_and_stop_nobody(real: RealCgroup, tmp_path: Path) -> None:
    for _ in range(3):  # what the kernel puts there is its own affair
        told, errors = run_training("cache", real, tmp_path)
        assert told, errors
        if told["active"] > 30 * MIB:
            break
    assert told["highest"] > 0.9 * 200 * MIB, "the file cache did not fill the cgroup: the test shows nothing"
    assert told["active"] > 30 * MIB, "hardly anything is on the active list: the test shows little"
    assert (told["why"], told["exit_code"]) == ("", 0)


def test_filling_dev_shm_counts_against_the_jobs_limit_and_is_named(real: RealCgroup, tmp_path: Path) -> None:
    told, errors = run_training("shared", real, tmp_path)
    assert told, errors
    assert "of it in /dev/shm and other shared memory" in told["why"]
    assert real.kills() == 0


@pytest.mark.soak
@pytest.mark.skipif(os.environ.get("RESIL_SOAK") != "1", reason="a leak of a minute and a half: set RESIL_SOAK=1")
def test_a_slow_real_leak_is_forecast_and_stopped_at_a_save(real: RealCgroup, tmp_path: Path) -> None:
    told, errors = run_training("slow", real, tmp_path)
    assert told, errors
    assert "limit reached in about" in errors
    assert told["why"].endswith("before another save; the last one has just completed")
    assert told["unsaved_steps"] <= 20, "10 ms each: the stop follows the save at once"
    assert told["highest"] < 0.95 * 200 * MIB
    assert (told["exit_code"], real.kills()) == (75, 0)
