"""The watchdog learns the heartbeat of a log, and how long the training pauses, for this job and those to come."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from resilience.errors import NotSupported, ProbeError, SchedulerUnavailable
from tests.lab.fakes import FakeClock
from tests.watch.checks.log.training_run import Run
from tests.watch.checks.log.watcher import HOUR, MINUTE, LogWatcher
from tests.watch.checks.outcome import outcome

QUIET, SILENT = "WARNING no-progress", "CRITICAL no-progress"


@pytest.fixture
def watchdog(tmp_path: Path, clock: FakeClock) -> LogWatcher:
    return LogWatcher(tmp_path, "train.log", clock=clock)


# A hang that talks

TRAININGS: dict[str, Callable[[int], str]] = {
    "Composer": lambda n: f"[batch={n}/5000]:\n\t Train time/batch: {n - 1}\n\t Train loss/train/total: {9 / n:.4f}\n",
    "MMEngine": lambda n: (
        f"11/20 10:00:00 - mmengine - INFO - Epoch(train)  [1][{n}/1251]  eta: 1:02:03  loss: {9 / n}\n"
    ),
    "Hugging Face without a bar": lambda n: f"{{'loss': {9 / n:.4f}, 'learning_rate': 5e-05, 'epoch': 0.53}}\n",
    "Keras": lambda n: f"\r{n}/1875 [==>.........] - ETA: 12s - loss: {9 / n:.4f}",
    "rich": lambda n: f"\rEpoch 0/9 ━━━━╸━━━━ {n}/1251 0:00:10 • 0:01:20 12.3it/s v_num: 0.000",
    "verl": lambda n: f"step:{n} - actor/entropy:0.3 - timing_s/gen:12.1 - training/epoch:0\n",
    "Ultralytics": lambda n: f"\r  3/100  4.2G  1.2  0.9  120  640:  12%|# | {n}/250 [00:30<00:00,  4.1it/s]",
    "only the loss": lambda n: f"loss {9 / n:.4f}\n",
    "words of its own": lambda n: f"went over {64 * n} texts, {9 / n:.3f} nats\n",
    "French": lambda n: f"Itération {900 + 10 * n:,} — perte {9 / n:.4f}\n".replace(",", "\u202f").replace(".", ","),
}
TALKERS: dict[str, Callable[[int], str]] = {
    "memory": lambda n: f"[mem] rss={21300 + n} MiB\n",
    "a data loader": lambda n: f"[dataloader] prefetched {64 * n} shards, queue {n % 16}/16\n",
    "a keep-alive": lambda n: f"node01:14022 [{n % 8}] NCCL INFO [Service thread] keepalive {n} comm 0x55d\n",
    "GPUs": lambda n: f"GPU0 {90 + n % 9}% {71000 + n}MiB, GPU1 99% 71000MiB\n",
    "retries": lambda n: f"connection to n17 refused, attempt {n} of 1000\n",
}


@pytest.mark.parametrize("talker", TALKERS)
@pytest.mark.parametrize("training", TRAININGS)
def test_a_hang_is_found_while_other_lines_count_on(watchdog: LogWatcher, training: str, talker: str) -> None:
    for n in range(1, 61):
        watchdog.write(TALKERS[talker](n) + TRAININGS[training](n) + TALKERS[talker](n))
        assert watchdog.outcome() == "OK"
        watchdog.clock.sleep(MINUTE)
    found = []
    for n in range(61, 96):
        watchdog.write(TALKERS[talker](n))
        found.append(watchdog.outcome())
        watchdog.clock.sleep(MINUTE)
    assert found.index(QUIET) <= 29 and QUIET not in found[:28]


def test_a_phase_that_counts_only_while_the_training_pauses_is_progress(watchdog: LogWatcher) -> None:
    for n in range(1, 60):
        watchdog.write(f"step {n} loss 2.1\n")
        assert watchdog.outcome() == "OK"
        watchdog.clock.sleep(MINUTE)
    for n in range(1, 300):
        watchdog.write(f"\rPredicting: {n}/300 [10:00<20:00]")
        assert watchdog.outcome() == "OK"
        watchdog.clock.sleep(MINUTE)
    watchdog.clock.sleep(29 * MINUTE)
    assert watchdog.finding().fault == "no-progress"


def test_a_hang_keeps_its_fault_however_often_a_monitor_writes(watchdog: LogWatcher) -> None:
    for n in range(1, 30):
        watchdog.write(f"step {n} loss 2.1\n")
        watchdog.outcome()
        watchdog.clock.sleep(MINUTE)
    watchdog.clock.sleep(30 * MINUTE)
    faults = set()
    for n in range(300):
        if n % 60 == 0:
            watchdog.write(f"[disk] {n % 7} files of 812 GB are old\n")
        faults.add(watchdog.finding().fault)
        watchdog.clock.sleep(MINUTE)
    assert len(faults) == 1


def test_a_log_of_an_unknown_form_is_reported_for_twelve_hours(watchdog: LogWatcher) -> None:
    words = ("amber", "birch", "cedar", "dahlia", "elm", "fern", "grass", "hazel")
    found = []
    for n in range(90):
        watchdog.write(f"{words[n % 8]} {words[n // 8 % 8]} {words[n // 64]}\n")
        found.append(watchdog.outcome())
        watchdog.clock.sleep(10 * MINUTE)
    assert found == ["OK"] * 13 + ["WARNING no-step"] * 73 + ["OK"] * 4


# Pauses


def evaluates(watchdog: LogWatcher, step: int, pause_s: float, name: str = "") -> list[str]:
    """Let a training take steps each minute, then be silent, then go on; return the outcomes, each minute."""
    found = []
    for n in range(5):
        watchdog.write(f"step {step + n} loss 2.1\n", name)
        found.append(watchdog.outcome())
        watchdog.clock.sleep(MINUTE)
    for _ in range(int(pause_s / MINUTE)):
        found.append(watchdog.outcome())
        watchdog.clock.sleep(MINUTE)
    watchdog.write(f"step {step + 5} loss 2.1\n", name)
    return [*found, watchdog.outcome()]


def test_a_pause_of_any_length_that_ended_by_itself_is_no_alarm_when_it_comes_again(watchdog: LogWatcher) -> None:
    assert SILENT in evaluates(watchdog, 1, 2.5 * HOUR)
    for again in range(1, 5):
        assert set(evaluates(watchdog, 10 * again, 2.5 * HOUR)) == {"OK"}
    said = "\n".join(watchdog.finding().looked)
    assert "the longest quiet: 2 h 3" in said and "times" in said


def test_a_pause_is_learned_by_probes_each_quarter_of_an_hour(watchdog: LogWatcher) -> None:
    alarms = []
    for _ in range(4):
        for tick in range(8):
            first = 90 * tick
            if tick != 3 and tick != 4 and tick != 5:  # an evaluation of 45 minutes
                watchdog.write("".join(f"step {n} loss 2.1\n" for n in range(first, first + 90)).replace("step 0 ", ""))
            alarms.append(watchdog.finding().fault == "no-progress")
            watchdog.clock.sleep(15 * MINUTE)
    assert sum(alarms[:8]) <= 2 and not any(alarms[8:])


def test_what_a_run_has_learned_is_known_to_its_next_jobs(watchdog: LogWatcher, clock: FakeClock) -> None:
    run = Run(watchdog.directory, clock)
    runs = LogWatcher(watchdog.directory, clock=clock)
    found = []
    for number in range(1, 5):
        run.attempt(number)
        assert runs.finding().verdict.value == "OK", "no log yet"
        found.append(set(evaluates(runs, 100 * number, 50 * MINUTE, f"runs/gpt/logs/gpt-{100 + number}.out")))
        run.end(number, "exited")
        runs.findings()
        clock.sleep(HOUR)
    assert found == [{"OK", QUIET}, {"OK"}, {"OK"}, {"OK"}]


def test_what_logs_have_taught_is_known_of_logs_whose_names_differ_in_numbers(watchdog: LogWatcher) -> None:
    for places in (("logs/gpt-*.out",) * 2, ("logs/gpt-1001.out", "logs/gpt-1002.out")):
        (watchdog.directory / "logs").mkdir(exist_ok=True)
        first, second = watchdog.anew(places[0]), watchdog.anew(places[1])
        found = [evaluates(first, 1, 50 * MINUTE, "logs/gpt-1001.out")]
        (watchdog.directory / "logs" / "gpt-1001.out").unlink()
        watchdog.clock.sleep(10 * MINUTE)
        second.memory = first.memory
        for _ in range(2):
            found.append([])
            for n in range(56):
                if n < 5:
                    second.write(f"step {100 + n} loss\n", "logs/gpt-1002.out")
                path = str(watchdog.directory / "logs" / "gpt-1002.out")
                found[-1] += [outcome(finding) for finding in second.findings() if finding.subject == path]
                watchdog.clock.sleep(MINUTE)
        assert [QUIET in one for one in found[:2]] == [True, False]
        (watchdog.directory / "logs" / "gpt-1002.out").unlink()


def test_a_restart_is_no_pause_of_the_training(watchdog: LogWatcher) -> None:
    evaluates(watchdog, 1, MINUTE)
    watchdog.clock.sleep(3 * HOUR)
    watchdog.write("loading checkpoint from /ckpt\nstep 5 loss 2\n")
    watchdog.findings()
    watchdog.write("step 6 loss 2\n")
    watchdog.clock.sleep(29 * MINUTE)
    assert outcome(watchdog.finding()) in ("OK", QUIET)
    watchdog.clock.sleep(29 * MINUTE)
    assert watchdog.outcome() == SILENT


# Taught by an old log


def old_log(directory: Path, form: str) -> Path:
    """Write a log of an hour, with an evaluation of 50 minutes at step 30."""
    lines, at = [], 0
    for step in range(1, 60):
        at += 50 * 60 if step == 31 else 10
        time = f"{at // 3600:02d}:{at // 60 % 60:02d}:{at % 60:02d}"
        lines.append(form.format(step=step, time=time) + "\n")
        lines += ["Evaluating on 512 samples\n"] if step == 30 else []
    path = directory / "old.log"
    path.write_text("".join(lines))
    return path


@pytest.mark.parametrize(
    "form",
    [
        "[2026-11-13 {time},123] [INFO] step={step}, loss=2.1",
        "I1113 {time}.123456 140 train.py:48] [{step}] step {step}, loss=2.1",
        "11/13 {time} - mmengine - INFO - Iter(train) [{step}/8000]  loss: 2.1",
        "2026/11/13 {time} step {step} loss 2.1",
    ],
)
def test_an_old_log_teaches_the_pauses(watchdog: LogWatcher, form: str) -> None:
    watchdog = watchdog.anew(learn=(str(old_log(watchdog.directory, form)),))
    watchdog.write("step 5 loss\n")
    finding = watchdog.finding()
    assert any("the longest quiet: evaluation 50 min at step 30" in line for line in finding.looked), finding.looked
    later = watchdog.anew()
    later.memory = watchdog.memory
    later.write("step 6 loss\n")
    assert later.outcome() == "OK"
    later.clock.sleep(95 * MINUTE)
    assert later.outcome() == "OK"
    later.clock.sleep(10 * MINUTE)
    assert later.outcome() == QUIET


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("step 1 loss 2\nstep 2 loss 3\n", "no timestamps"),
        ("nothing here\n", "no step found"),
        (None, "No such file"),
    ],
)
def test_a_log_that_teaches_nothing_is_an_error(watchdog: LogWatcher, text: str | None, said: str) -> None:
    if text is not None:
        (watchdog.directory / "old.log").write_text(text)
    watchdog.write("step 5 loss\n")
    with pytest.raises(ProbeError, match=said) as caught:
        watchdog.anew(learn=("old.log",)).findings()
    assert text is None or caught.value.hint


def test_one_of_several_runs_must_be_named_to_be_taught(watchdog: LogWatcher, clock: FakeClock) -> None:
    old = old_log(watchdog.directory, "2026-11-13 {time} step {step}")
    for name in ("gpt", "bert"):
        Run(watchdog.directory, clock, name).attempt(1)
    with pytest.raises(ProbeError) as caught:
        LogWatcher(watchdog.directory, clock=clock, learn=(str(old),)).findings()
    assert "resil watch log bert --learn" in caught.value.hint
    LogWatcher(watchdog.directory, "gpt", clock=clock, learn=(str(old),)).findings()


# A second witness


class Queue:
    """A scheduler that tells the CPU time of a job that uses so many cores."""

    def __init__(self, clock: FakeClock) -> None:
        self.clock, self.cores, self.used, self.asked, self.at = clock, 8.0, 0.0, 0, clock.time
        self.error: Exception | None = None

    def __call__(self, *_: str, **__: Any) -> Queue:
        return self

    def uses(self, cores: float) -> None:
        self.used, self.at, self.cores = self.used + self.cores * (self.clock.time - self.at), self.clock.time, cores

    def cpu_seconds(self, job_id: object) -> float:
        assert str(job_id) == "101"
        self.asked += 1
        if self.error is not None:
            raise self.error
        self.uses(self.cores)
        return self.used


@pytest.mark.parametrize(
    ("cores", "error", "outcomes"),
    [
        (0.1, None, {"OK": 11, SILENT: 49}),
        (8.0, None, {"OK": 29, QUIET: 28, SILENT: 3}),
        (0.1, NotSupported("no JobAcctGatherType"), {"OK": 29, QUIET: 28, SILENT: 3}),
        (0.1, SchedulerUnavailable("sstat did not answer"), {"OK": 29, QUIET: 28, SILENT: 3}),
        (0.1, RuntimeError("a bug of a plugin"), {"OK": 29, QUIET: 28, SILENT: 3}),
    ],
)
def test_an_idle_job_confirms_a_hang_and_a_busy_one_proves_nothing(
    tmp_path: Path, clock: FakeClock, run: Run, cores: float, error: Exception | None, outcomes: dict[str, int]
) -> None:
    queue = Queue(clock)
    watchdog = LogWatcher(tmp_path, clock=clock, scheduler=queue)
    for step in range(60):
        run.log(101, f"step {step} loss\n")
        assert watchdog.outcome() == "OK"
        clock.sleep(MINUTE)
    assert queue.asked == 0, "the scheduler is not asked while the log goes on"
    queue.uses(cores)
    queue.error = error
    run.log(101, "step 60 loss\n")
    found: dict[str, int] = {}
    for _ in range(60):
        finding = watchdog.finding()
        found[outcome(finding)] = found.get(outcome(finding), 0) + 1
        clock.sleep(MINUTE)
    assert found == outcomes
    assert ("the job is idle" in finding.summary) == (cores < 1 and error is None)
    assert queue.asked <= 25, "at most every two minutes and a half"


def test_a_marked_training_is_judged_by_its_heartbeat_within_minutes_and_another_one_is_not(
    tmp_path: Path, clock: FakeClock, run: Run
) -> None:
    watchdog = LogWatcher(tmp_path, clock=clock)

    def beat(step: int, phase: str = "train", quiet_s: float = 0.0) -> None:
        run.beat(101, {0: (step, quiet_s, phase)})

    def hangs(step: int) -> int:
        """Return after how many minutes a hang is reported."""
        for minute in range(1, 60):
            clock.sleep(MINUTE)
            beat(step, quiet_s=minute * MINUTE)
            finding = watchdog.finding()
            if finding.fault:
                assert finding.verdict.value == "CRITICAL"
                return minute
        raise AssertionError("not found")

    for step in range(10):
        beat(step)
        assert watchdog.outcome() == "OK"
        clock.sleep(10)
    assert hangs(10) in (28, 29)
    clock.sleep(10)
    beat(11, "eval")
    watchdog.findings()
    clock.sleep(100)
    for step in range(12, 30):
        beat(step)
        watchdog.findings()
        clock.sleep(10)
    watchdog.memory["gpt"] = watchdog.memory["gpt"]._replace(
        reading=_without_train_pause(watchdog.memory["gpt"].reading)
    )
    assert hangs(30) <= 5


def _without_train_pause(reading: Any) -> Any:
    """Return the reading of a run that has not hung before."""
    from dataclasses import replace

    return replace(reading, pauses=tuple(one for one in reading.pauses if one[0] != "train"))


def test_the_notice_names_the_line_that_counts_although_it_has_no_training_word(watchdog: LogWatcher) -> None:
    for number in range(40):
        watchdog.write(f"{number},{number % 7}\n")
        watchdog.clock.sleep(MINUTE)
        finding = watchdog.finding()
    assert outcome(finding) == "WARNING no-step" and "lines like '#,#' count as progress" in finding.summary


# A start, and a heartbeat that is a monitor's


def monitored(
    watchdog: LogWatcher, minutes: int, name: str = "", text: Callable[[int], str] = lambda n: ""
) -> list[str]:
    """Write a line of a monitor without a known word each half minute, and the training's; return what is found."""
    found = []
    for n in range(minutes):
        watchdog.write(
            f"alloc: pool 61.2 GB, {31 * n} blocks split\n{text(n)}alloc: pool 61.3 GB, {31 * n + 7} blocks\n", name
        )
        watchdog.clock.sleep(MINUTE)
        found += sorted({outcome(finding) for finding in watchdog.findings()} - {"OK"}) or ["OK"]
    return found


def test_a_job_that_hangs_at_its_start_is_found_beside_a_monitor_because_earlier_jobs_had_steps(
    tmp_path: Path, clock: FakeClock
) -> None:
    (tmp_path / "logs").mkdir()
    watchdog = LogWatcher(tmp_path, "logs/*.out", clock=clock)

    def trains(n: int) -> str:
        return f"step {n} loss 2.1\n" if n > 3 else f"loading {n}\n"

    assert {*monitored(watchdog, 60, "logs/train-4801.out", trains)} == {"OK"}
    assert {*monitored(watchdog, 60, "logs/train-4802.out", trains)} == {"OK"}
    found = monitored(watchdog, 60, "logs/train-4803.out", lambda n: f"loading {n}\n" if n < 4 else "")
    assert found.index(QUIET) in (27, 28, 29) and found[-1] == "CRITICAL no-progress", found
    # The next job is of another program: its counter is new, so it is taken for the heartbeat.
    found = monitored(
        watchdog, 60, "logs/train-4804.out", lambda n: f"went over {64 * n} texts, {9 / (n + 1):.3f} nats\n"
    )
    assert found[2:] == ["OK"] * 58
    # And one of a program without steps, which only says which file it works on.
    names = (f"{one}{two}" for one in "abcdefgh" for two in "abcdefgh")
    found = monitored(watchdog, 60, "logs/train-4805.out", lambda n: f"now {next(names)}.txt\n")
    assert found[2:] == ["OK"] * 58


def test_a_long_start_of_an_earlier_job_is_known_however_much_it_wrote(tmp_path: Path, clock: FakeClock) -> None:
    (tmp_path / "logs").mkdir()
    watchdog = LogWatcher(tmp_path, "logs/*.out", clock=clock)

    def trains(n: int) -> str:
        return f"step {n} loss 2.1\n" if n > 40 else f"part {'abcdefghij'[n // 5]} is ready\n"

    for job in (4801, 4802, 4803):
        assert {*monitored(watchdog, 60, f"logs/train-{job}.out", trains)} <= {"OK", "WARNING no-step"}


def test_a_first_job_that_hangs_at_its_start_beside_a_monitor_is_a_notice(watchdog: LogWatcher) -> None:
    found = monitored(watchdog, 60, text=lambda n: f"loading {n}\n" if n < 4 else "")
    assert found[:28] == ["OK"] * 28 and found[29:] == ["WARNING no-step"] * 31


def test_a_log_with_monitors_only_is_a_warning_and_no_page(watchdog: LogWatcher) -> None:
    found = []
    for n in range(120):
        watchdog.write(f"GPU0 {51 + n % 5} C, up {60 * n} s\n")
        watchdog.clock.sleep(MINUTE)
        finding = watchdog.finding()
        found.append(outcome(finding))
    assert found == ["OK"] * 28 + [QUIET] * 92
    assert "never named a step" in finding.summary and "writes to another file" in finding.summary


def test_the_template_that_paused_while_the_heartbeat_went_on_is_the_training(watchdog: LogWatcher) -> None:
    def trains(n: int) -> str:
        return f"went over {64 * n} texts, {n % 7} done\n" if n % 60 > 5 else ""

    assert {*monitored(watchdog, 200, text=trains)} <= {"OK", "WARNING no-step"}
    assert "went over" in watchdog.finding().looked[0]
    found = monitored(watchdog, 40)
    assert found.index(QUIET) in (27, 28), found


def test_the_next_job_in_the_same_log_is_not_over_because_slurm_killed_the_one_before(watchdog: LogWatcher) -> None:
    killed = "slurmstepd: error: *** JOB 7 ON node01 CANCELLED AT 2026-11-20T10:00:00 DUE TO TIME LIMIT ***\n"
    assert {*monitored(watchdog, 60, text=lambda n: f"step {n} loss 2.1\n")} == {"OK"}
    watchdog.write(killed + "the last words of a rank\n")
    for _ in range(90):
        assert watchdog.outcome() == "OK"
        watchdog.clock.sleep(MINUTE)
    found = monitored(watchdog, 60, text=lambda n: f"loading {n}\n" if n < 4 else "")
    assert found.index(QUIET) in (27, 28, 29), found


@pytest.mark.parametrize(("evaluation_min", "found_min"), [(0, 10), (2, 10), (5, 18), (12, 28)])
def test_a_silent_hang_is_found_sooner_once_the_pauses_of_hours_are_known(
    watchdog: LogWatcher, evaluation_min: int, found_min: int
) -> None:
    for n in range(420):
        if n % 60 < 60 - evaluation_min:
            watchdog.write(f"step {n} loss 2.1\n")
        assert watchdog.outcome() == "OK"
        watchdog.clock.sleep(MINUTE)
    watchdog.write("step 420 loss 2.1\n")
    found = 0
    while watchdog.outcome() == "OK":
        watchdog.clock.sleep(MINUTE)
        found += 1
    assert found in (found_min, found_min + 1, found_min + 2)
