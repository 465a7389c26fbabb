"""Whole nights of healthy trainings, in the log format of each trainer, cause no alert; those of hung trainings do.

Steps, evaluations, saves and epochs happen at given times of a fake clock; the watchdog probes each minute.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import count
from pathlib import Path

import pytest

from resilience.finding import Verdict
from tests.lab.fakes import NOW, FakeClock
from tests.watch.checks.log.watcher import LogWatcher, write

Written = Iterator[tuple[float, str]]
"""(seconds since what was written before, text)."""


def megatron(step_s: float) -> Written:
    yield 90, " loading checkpoint from /ckpt at iteration 1000\n  successfully loaded checkpoint from /ckpt\n"
    for n in count(1001):
        step = f" iteration {n:8d}/  500000 | elapsed time per iteration (ms): {1000 * step_s:.1f} | lm loss: 1.9 |\n"
        yield step_s, step
        if n % 25 == 0:
            yield 0.1, f"saving checkpoint at iteration {n:7d} to /ckpt\n"
            yield 10 * step_s, f"  successfully saved checkpoint at iteration {n:7d} to /ckpt\n"
            yield 0.1, "Evaluating on 512 samples\n"
            yield 10 * step_s, f" validation loss at iteration {n} | lm loss value: 2.0E+00 |\n"


def megatron_that_logs_seldom(step_s: float) -> Written:
    for n in count(20, 20):
        yield 20 * step_s, f" iteration {n:8d}/  500000 | elapsed time per iteration (ms): {1000 * step_s:.1f} |\n"


def transformers_with_bars(step_s: float) -> Written:
    for n in count(1):
        yield step_s, f"\r  0%|          | {n}/20000 [10:00<99:00,  {step_s:.2f}s/it]"
        if n % 25 == 0:
            yield 0.1, "\n***** Running Evaluation *****\n  Num examples = 100\n"
            for k in range(1, 21):
                yield step_s / 2, f"\r {5 * k}%|#  | {k}/20 [00:04<00:02, 2.0it/s]"
            yield 0.1, f"\n{{'eval_loss': 2.0, 'epoch': {n / 1000:.2f}}}\n"
            yield 10 * step_s, f"Saving model checkpoint to out/checkpoint-{n}\n"


def transformers_without_bars(step_s: float) -> Written:
    for n in count(10, 10):
        yield 10 * step_s, f"{{'loss': {2 + n % 97 / 100:.4f}, 'grad_norm': 1.0, 'epoch': {n / 100000:.2f}}}\n"


def epochs_that_count_anew(step_s: float) -> Written:
    for epoch in count(1):
        for k in range(1, 41):
            yield step_s, f"Epoch {epoch}/100, Step {k}/40, Loss: 2.1\n"


def epochs_with_a_headline(step_s: float) -> Written:
    for epoch in count(1):
        yield 0.1, f"=== Epoch {epoch} ===\n"
        for k in range(40):
            yield step_s, f"step {k} loss 2.1\n"


def imagenet(step_s: float) -> Written:
    for epoch in count():
        for k in range(40):
            yield step_s, f"Epoch: [{epoch}][{k:3d}/40]\tTime {step_s:.3f} ({step_s:.3f})\tLoss 6.9\n"
        for k in range(20):
            yield step_s / 2, f"Test: [{k:3d}/20]\tTime {step_s:.3f}\n"


def nanogpt(step_s: float) -> Written:
    for n in count():
        if n % 25 == 0:
            yield 4 * step_s, f"step {n}: train loss 2.1, val loss 2.2\nsaving checkpoint to out\n"
        yield step_s, f"iter {n}: loss 3.1, time {1000 * step_s:.2f}ms, mfu 12.31%\n"


def thousands(step_s: float) -> Written:
    for n in count(999_990):
        yield step_s, f"step={n:,} loss=2.1\n"


TRAINERS = [
    megatron, megatron_that_logs_seldom, transformers_with_bars, transformers_without_bars, epochs_that_count_anew,
    epochs_with_a_headline, imagenet, nanogpt, thousands,
]  # fmt: skip


def buffered(written: Written) -> Written:
    """Return the same output as stdio writes it to a file: in whole blocks."""
    held, waited_s = "", 0.0
    for wait_s, text in written:
        held, waited_s = held + text, waited_s + wait_s
        full = len(held) // 4096 * 4096
        if full:
            yield waited_s, held[:full]
            held, waited_s = held[full:], 0.0


def night(directory: Path, written: Written, hours: float, hangs_at: float = float("inf")) -> list[tuple[float, str]]:
    """Return the faults that would be notified, with the seconds since the start."""
    clock, log = FakeClock(), directory / "train.log"
    watchdog = LogWatcher(directory, log, clock=clock)
    at, notices = NOW, []
    write(log, "", at=NOW)
    wait_s, text = next(written)
    while clock.time < NOW + hours * 3600:
        new = ""
        while at + wait_s <= min(clock.time, NOW + hangs_at):
            at, new = at + wait_s, new + text
            wait_s, text = next(written)
        if new:
            write(log, new, at=at, append=True)
        notices += [(clock.time - NOW, f.summary) for f in watchdog.findings() if f.verdict is not Verdict.OK]
        clock.sleep(60)
    return notices


@pytest.mark.parametrize("step_s", [5.0, 60.0])
@pytest.mark.parametrize("trainer", TRAINERS, ids=lambda trainer: trainer.__name__)
def test_a_healthy_training_causes_no_alert_all_night(
    tmp_path: Path, trainer: Callable[[float], Written], step_s: float
) -> None:
    assert night(tmp_path, trainer(step_s), hours=0.5 if step_s < 10 else 3) == []


@pytest.mark.parametrize("trainer", [megatron, transformers_with_bars, nanogpt, epochs_that_count_anew])
def test_buffered_output_is_judged_by_its_blocks(tmp_path: Path, trainer: Callable[[float], Written]) -> None:
    assert night(tmp_path, buffered(trainer(10.0)), hours=3) == []
    (_, summary), *_ = night(tmp_path, buffered(trainer(10.0)), hours=5, hangs_at=3 * 3600)
    assert "set PYTHONUNBUFFERED=1" in summary


def test_steps_hours_apart_raise_the_time_allowed(tmp_path: Path) -> None:
    """The first interval is unknown; from the second on it is typical."""
    for written in (transformers_without_bars(600.0), megatron_that_logs_seldom(300.0)):
        assert all(seconds <= 2 * 6000 for seconds, _ in night(tmp_path, written, hours=6))


@pytest.mark.parametrize("trainer", [nanogpt, epochs_that_count_anew, thousands, transformers_without_bars])
def test_every_hang_is_reported(tmp_path: Path, trainer: Callable[[float], Written]) -> None:
    (seconds, summary), *_ = night(tmp_path, trainer(5.0), hours=1.25, hangs_at=1750.0)
    assert 1750 < seconds < 1750 + 30 * 60, summary


def test_a_pause_every_few_hundred_steps_is_reported_once(tmp_path: Path) -> None:
    def with_silent_evaluations() -> Written:
        for n in count():
            yield 30 if n % 50 else 300, f"step {n} loss 2.1\n"

    assert all(seconds < 2 * 1800 for seconds, _ in night(tmp_path, with_silent_evaluations(), hours=6))
