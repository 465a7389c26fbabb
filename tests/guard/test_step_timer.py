"""The step timer, which samples the training: never less than the real duration, and little more."""

from __future__ import annotations

import threading
from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from resilience.guard.step_timer import REMEMBERED_LEAST_S, REMEMBERED_MOST_S, REMEMBERED_TIMES, SAVES, StepTimer


class Training:
    """A training with a fake clock, and its sampler: what `GuardRuntime` does, without waiting."""

    def __init__(self, period_s: float = 1.0) -> None:
        self.timer = StepTimer()
        self.now = 1000.0
        self.cpu_s = 5.0
        self.steps = self.polls = 0
        self._period_s = period_s
        self._next_look = self.now
        self._stepped = self.now
        self.true_gaps: list[float] = []

    def wait(self, seconds: float) -> None:
        """Let time pass without progress, with samples."""
        until = self.now + seconds
        while self._next_look <= until:
            self.cpu_s += max(0.0, self._next_look - self.now)
            self.now = self._next_look
            self.look()
            self._next_look += self._period_s
        self.cpu_s += until - self.now
        self.now = until

    def look(self) -> None:
        self.timer.sample(self.now, (self.steps, self.polls), self.cpu_s)

    def step(self, seconds: float) -> None:
        self.wait(seconds)
        self.steps += 1
        self.polls = 0
        self.true_gaps.append(self.now - self._stepped)
        self._stepped = self.now

    def poll_after(self, seconds: float) -> None:
        self.wait(seconds)
        self.polls += 1

    def save(self, seconds: float) -> None:
        self.timer.save_began(self.now)
        self.wait(seconds)
        self.timer.was_saving(seconds)
        self.timer.saved(seconds)
        self._stepped += seconds

    def stopped(self, seconds: float) -> None:
        """SIGSTOP: no sample, no CPU time."""
        self.now += seconds
        self._next_look = self.now

    def begin(self, step_s: float = 1.0) -> None:
        """Do the first steps, which end the start-up."""
        self.wait(1)
        for _ in range(3):
            self.step(step_s)
        self.wait(self._period_s)
        self.true_gaps.clear()

    @property
    def slowest_s(self) -> float:
        slowest = self.timer.slowest_step_s
        assert slowest is not None
        return slowest


def begun(step_s: float = 1.0, *, period_s: float = 1.0) -> Training:
    """A training whose start-up is over."""
    training = Training(period_s)
    training.begin(step_s)
    return training


def test_nothing_is_known_before_the_first_measurement() -> None:
    timer = StepTimer()
    assert (timer.slowest_step_s, timer.slowest_save_s) == (None, None)
    timer.sample(1.0, (0, 0), 0.0)
    assert timer.slowest_step_s is None


def test_the_start_up_never_counts_as_a_step() -> None:
    training = Training()
    training.step(1800)  # compilation
    training.wait(2)
    assert training.slowest_s < 5


def test_polls_while_data_is_skipped_do_not_end_the_start_up() -> None:
    training = Training()
    for _ in range(50):
        training.poll_after(2)
    assert training.timer.slowest_step_s is None
    training.step(600)
    training.wait(2)
    assert training.slowest_s < 5


def test_the_time_until_the_first_step_after_a_resume_is_start_up() -> None:
    training = Training()
    training.wait(3)
    training.steps = 5000  # guard.resumed(5000)
    training.timer.resumed()
    training.step(900)
    training.wait(2)
    assert training.slowest_s < 5


@given(
    st.lists(st.floats(0.01, 90), min_size=1, max_size=30),
    st.lists(st.floats(0.0, 40), max_size=30),
    st.sampled_from([0.1, 1.0, 3.0]),
)
def test_never_less_than_the_slowest_step_and_at_most_two_samples_more(
    steps: Sequence[float], saves: Sequence[float], period_s: float
) -> None:
    training = begun(step_s=0.01, period_s=period_s)
    for number, seconds in enumerate(steps):
        training.step(seconds)
        if number < len(saves):
            training.save(saves[number])
    training.wait(period_s)
    true = max(training.true_gaps)
    assert true - 1e-6 <= training.slowest_s <= max(true, period_s) + 2 * period_s + 1e-6


def test_many_steps_in_one_sample_are_at_most_two_samples_long() -> None:
    training = begun(step_s=0.01)
    for _ in range(1000):
        training.step(0.01)
    assert training.slowest_s <= max(training.true_gaps) + 2.0


def test_a_save_is_not_part_of_a_step_neither_after_it_nor_during_it() -> None:
    training = begun()
    training.step(1)
    training.timer.save_began(training.now)
    training.wait(300)
    assert training.slowest_s <= 4
    training.timer.was_saving(300)
    training.step(1)
    training.wait(1)
    assert training.slowest_s <= 4


def test_an_evaluation_without_polls_is_a_long_gap() -> None:
    training = begun()
    training.step(1)
    training.wait(240)
    training.step(1)
    training.wait(2)
    assert training.slowest_s == pytest.approx(241, abs=2)


def test_an_evaluation_with_polls_is_not() -> None:
    training = begun()
    for _ in range(240):
        training.poll_after(1)
    assert training.slowest_s <= 4


def test_the_unfinished_step_counts_once_it_is_slower_than_any_before() -> None:
    training = begun()
    training.wait(100)
    assert training.slowest_s >= 100


def test_an_evaluation_every_two_hours_is_not_forgotten_in_between() -> None:
    training = begun(period_s=5.0)
    training.step(60)  # the evaluation
    for _ in range(1430):
        training.step(5)
        assert training.slowest_s >= 60


def test_a_hitch_is_forgotten_after_a_while() -> None:
    training = begun(period_s=5.0)
    training.step(30)
    for _ in range(int(REMEMBERED_TIMES * 42 / 5)):
        training.step(5)
    assert training.slowest_s <= 15


def test_a_fast_training_remembers_its_slow_steps_for_an_hour_at_least_and_a_day_at_most() -> None:
    timer = StepTimer()
    now = 0.0
    for step in range(4):
        timer.sample(now, (step, 0), now)
        now += 1
    timer.sample(now + 2, (4, 0), now)
    timer.sample(
        now + 2 + REMEMBERED_LEAST_S - 10, (5, 0), 1e6
    )  # a gap of an hour: remembered for a day, not for eight
    hour = timer.slowest_step_s
    assert hour is not None and hour >= REMEMBERED_LEAST_S - 10
    now += REMEMBERED_LEAST_S
    timer.sample(now, (6, 0), 2e6)
    timer.sample(now + 1, (7, 0), 2e6)
    timer.sample(now + REMEMBERED_MOST_S - 3600 * 2, (7, 1), 3e6)
    timer.sample(now + REMEMBERED_MOST_S - 3600 * 2 + 1, (7, 2), 3e6)
    assert timer.slowest_step_s is not None and timer.slowest_step_s > REMEMBERED_LEAST_S


def test_the_memory_is_bounded_whatever_comes() -> None:
    training = begun()
    seconds = 3000.0
    while seconds > 0.01:  # ever shorter: the worst case
        training.step(seconds)
        seconds *= 0.99
    assert len(training.timer._gaps) < 400


def test_a_stopped_process_makes_no_slow_step() -> None:
    training = begun()
    training.wait(0.5)
    training.stopped(7200)
    training.step(1)
    training.wait(2)
    assert training.slowest_s <= 7


def test_a_process_that_is_stopped_while_it_saves_makes_the_next_step_no_shorter() -> None:
    training = begun()
    began = training.now
    training.timer.save_began(began)
    training.wait(3)
    training.stopped(600)
    training.wait(3)
    training.timer.was_saving(training.now - began)
    training.step(50)
    training.wait(2)
    assert 50 <= training.slowest_s <= 54


def test_a_call_that_keeps_the_interpreter_busy_is_a_slow_step_without_samples() -> None:
    training = begun()
    training.stopped(120)
    training.cpu_s += 118
    training.step(1)
    training.wait(2)
    assert training.slowest_s >= 118


def test_without_processor_times_a_stop_counts() -> None:
    timer = StepTimer()
    for now, step in ((0.0, 0), (1.0, 1), (2.0, 2), (500.0, 3), (501.0, 4)):
        timer.sample(now, (step, 0))
    assert timer.slowest_step_s is not None and timer.slowest_step_s >= 498


def test_the_slowest_of_the_recent_saves_counts_and_old_ones_are_forgotten() -> None:
    timer = StepTimer()
    timer.saved(90.0)
    for _ in range(SAVES - 1):
        timer.saved(10.0)
    assert timer.slowest_save_s == 90.0
    timer.saved(10.0)
    assert timer.slowest_save_s == 10.0


def test_threads_that_save_and_ask_at_once_do_not_disturb_each_other() -> None:
    timer, errors, over = StepTimer(), list[Exception](), threading.Event()

    def work(step: int) -> None:
        try:
            while not over.is_set():
                timer.saved(1.0)
                timer.sample(float(step), (step, 0), 0.0)
                step += 1
                assert timer.slowest_save_s == 1.0
        except Exception as error:
            errors.append(error)

    threads = [threading.Thread(target=work, args=(0,)) for _ in range(4)]
    for thread in threads:
        thread.start()
    over.wait(0.3)
    over.set()
    for thread in threads:
        thread.join()
    assert not errors


def test_the_timer_knows_of_a_running_save() -> None:
    timer = StepTimer()
    found = [timer.is_saving]
    timer.save_began(7.0)
    found.append(timer.is_saving)
    timer.was_saving(2.0)
    assert [*found, timer.is_saving] == [False, True, False]


def test_the_timer_knows_of_a_save_in_flight() -> None:
    timer = StepTimer()
    found = [timer.is_in_flight]
    timer.in_flight_since(7.0)
    found.append(timer.is_in_flight)
    timer.in_flight_since(None)
    assert [*found, timer.is_in_flight] == [False, True, False]


@pytest.mark.parametrize(("age_s", "left_s"), [(0, 60), (45, 15), (60, 0), (80, 20), (120, 60), (4000, 60)])
def test_a_save_that_is_late_takes_longer_still(age_s: float, left_s: float) -> None:
    """The time limit must not count on a save that should have been durable long ago."""
    timer = StepTimer()
    timer.in_flight_since(7.0)
    assert timer.in_flight_s(7.0 + age_s, otherwise_s=60) == left_s
