"""Patterns of progress in the logs of common trainers."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from resilience.watch.checks._log.digest import digest
from resilience.watch.checks._log.patterns import find, seconds_per_step
from resilience.watch.checks._log.reading import LogState

RECORDED = Path(__file__).parents[3] / "recorded" / "logs"


@pytest.mark.parametrize(
    ("name", "kind", "text", "interval_s"),
    [
        ("megatron.log", "step", "42780", 105.16),
        ("megatron_ms.log", "step", "33240", 23.4914),
        ("deepspeed.log", "step", "50", 1.0),
        ("huggingface.log", "bar", "501/1000", 1.21),
        ("lightning.log", "epoch and step", "epoch 3, 45/100", 1 / 1.21),
        ("nemo.log", "step", "11", 0.98),
        ("torchtitan.log", "step", "50", 60.0),
        ("nanogpt.log", "step", "110", 1.0516),
        ("tqdm.log", "bar", "150/200", 1 / 9.87),
    ],
)
def test_the_step_and_its_duration_are_found_for_each_trainer(
    name: str, kind: str, text: str, interval_s: float
) -> None:
    state = digest(LogState(), (RECORDED / name).read_bytes(), written=1000.0)
    assert (state.kind, state.text) == (kind, text)
    assert state.intervals and state.intervals[-1] == pytest.approx(interval_s)


@pytest.mark.parametrize(
    ("line", "step"),
    [
        (b"step 10 loss 2.1", 10),
        (b"Step: 000123, loss 2", 123),
        (b'{"loss": 2.1, "step": 17, "lr": 1e-5}', 17),
        (b"{'global_step': 17, 'loss': 2.1}", 17),
        (b"epoch 001:   100 / 1234 loss=3.1, num_updates=250, lr=0.1", 250),
        (b"train_step=40 loss=1", 40),
        (b"Training step [400/1000]", 400),
        (b"step=1,234,500 loss=2.1", 1234500),
        (b"step=10,skipped=0", 10),
        (b"iters: 1200, loss 2", 1200),
    ],
)
def test_common_step_formats_are_parsed(line: bytes, step: int) -> None:
    found = find(line + b"\n")
    assert found is not None and (found.kind, found.value) == ("step", step)


@pytest.mark.parametrize(
    "line",
    [
        b"elapsed time per iteration (s): 105.16",
        b"step time: 12.5 s",
        b"iter 12.5 ms",
        b"max_steps=1000",
        b"step 12k loss 2",
        b"step 3e3 loss 2",
        b"num_steps: 1000",
        b"eval step 12/40",
        b"validation iter 12",
        b"loss 2.1",
        b"",
    ],
)
def test_similar_text_is_no_step(line: bytes) -> None:
    assert find(line + b"\n") is None


def test_a_number_that_may_be_incomplete_is_ignored() -> None:
    assert find(b"step 12") is None
    assert find(b"step 12 ") is not None


def test_an_epoch_is_the_last_resort_and_may_be_a_fraction() -> None:
    found = find(b"{'loss': 2.1, 'learning_rate': 5e-05, 'epoch': 0.53}\n")
    assert found is not None and (found.kind, found.value) == ("epoch", 0.53)


@pytest.mark.parametrize(
    ("line", "text", "evaluates"),
    [
        (b"Epoch: [3][ 120/5005]\tTime  0.2 ( 0.3)\tLoss 6.9", "epoch 3, 120/5005", False),
        (b"Epoch: [0/100]  [  10/1251]  eta: 0:10:00  lr: 0.1", "epoch 0, 10/1251", False),
        (b"Train: 3 [ 120/1251 ( 10%)]  Loss: 6.9", "epoch 3, 120/1251", False),
        (b"Train Epoch: 1 [640/60000 (1%)]\tLoss: 2.3", "epoch 1, 640/60000", False),
        (b"Test: [ 10/196]\tTime 0.1", "10/196", True),
    ],
)
def test_positions_in_an_epoch_are_distinguished_from_those_in_an_evaluation(
    line: bytes, text: str, evaluates: bool
) -> None:
    found = find(line + b"\n")
    assert found is not None and (found.text, found.evaluates) == (text, evaluates)


def test_a_custom_pattern_replaces_the_built_in_ones() -> None:
    own = re.compile(rb"done (\d[\d,]*) of")
    found = find(b"step 5: done 1,234 of many\n", own)
    assert found is not None and (found.kind, found.value) == ("progress_regex", 1234)
    assert find(b"step 5\n", own) is None
    assert find(b"done x of\n", re.compile(rb"done (\w+) of")) is None
    assert find(b"done\n", re.compile(rb"done(\d)?")) is None


@pytest.mark.parametrize(
    ("line", "seconds"),
    [
        (b"1.21s/it]", 1.21),
        (b" 4.00it/s]", 0.25),
        (b"0.00it/s]", None),
        (b"elapsed time per iteration (ms): 250.0 |", 0.25),
        (b"elapsed time per iteration (s): 1.2.3 |", None),
        (b"iter time (s): 0.912 samples/sec", 0.912),
    ],
)
def test_seconds_per_step_are_read_from_the_line(line: bytes, seconds: float | None) -> None:
    assert seconds_per_step(line) == (None if seconds is None else pytest.approx(seconds))
