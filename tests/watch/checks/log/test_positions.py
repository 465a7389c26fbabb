"""Positions in the lines of common trainers."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from resilience.watch.checks._log.digest import digest
from resilience.watch.checks._log.positions import COMPLAINT, EVALUATION, TALK, find, rank_of
from resilience.watch.checks._log.reading import LogState

RECORDED = Path(__file__).parents[3] / "recorded" / "logs"


@pytest.mark.parametrize(
    ("name", "kind", "text"),
    [
        ("megatron.log", "step", "42780"),
        ("megatron_ms.log", "step", "33240"),
        ("deepspeed.log", "step", "40"),
        ("huggingface.log", "bar", "501/1000"),
        ("lightning.log", "bar", "epoch 3, 45/100"),
        ("nemo.log", "step", "11"),
        ("torchtitan.log", "step", "50"),
        ("nanogpt.log", "step", "110"),
        ("tqdm.log", "bar", "150/200"),
    ],
)
def test_the_step_is_found_for_each_trainer(name: str, kind: str, text: str) -> None:
    state = digest(LogState(), (RECORDED / name).read_bytes(), written=1000.0)
    assert (state.kind, state.text) == (kind, text)


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
    found = find(line + b"\n", any_number=False)
    assert found is None or found.kind == "figures" or rank_of(found, line) >= TALK


def test_a_number_that_may_be_incomplete_is_ignored() -> None:
    assert find(b"step 12", any_number=False) is None
    assert find(b"step 12 ") is not None


def test_an_epoch_is_the_last_resort_and_may_be_a_fraction() -> None:
    found = find(b"{'loss': 2.1, 'learning_rate': 5e-05, 'epoch': 0.53}\n")
    assert found is not None and (found.kind, found.epoch, found.text) == ("figures", 0.53, "epoch 0.53")


@pytest.mark.parametrize(
    ("line", "text", "evaluates"),
    [
        (b"Epoch: [3][ 120/5005]\tTime  0.2 ( 0.3)\tLoss 6.9", "epoch 3, 120/5005", False),
        (b"Epoch: [0/100]  [  10/1251]  eta: 0:10:00  lr: 0.1", "epoch 0, 10/1251", False),
        (b"Train: 3 [ 120/1251 ( 10%)]  Loss: 6.9", "120/1251", False),
        (b"Train Epoch: 1 [640/60000 (1%)]\tLoss: 2.3", "epoch 1, 640/60000", False),
        (b"Test: [ 10/196]\tTime 0.1", "10/196", True),
    ],
)
def test_positions_in_an_epoch_are_distinguished_from_those_in_an_evaluation(
    line: bytes, text: str, evaluates: bool
) -> None:
    found = find(line + b"\n")
    assert found is not None and (found.text, rank_of(found, line) == EVALUATION) == (text, evaluates)


def test_a_custom_pattern_replaces_the_built_in_ones() -> None:
    own = re.compile(rb"done (\d[\d,]*) of")
    found = find(b"step 5: done 1,234 of many\n", own)
    assert found is not None and (found.kind, found.value) == ("progress_regex", 1234)
    assert find(b"step 5\n", own) is None
    assert find(b"done x of\n", re.compile(rb"done (\w+) of")) is None
    assert find(b"done\n", re.compile(rb"done(\d)?")) is None


@pytest.mark.parametrize(
    ("line", "text"),
    [
        (b"120/1875 [==>...........................] - ETA: 12s - loss: 0.3", "120/1875"),
        (b"[batch=120/5000]:", "120"),
        (b"11/20 10:00:00 - mmengine - INFO - Epoch(train)  [3][120/1251]  lr: 1e-2  loss: 2.1", "epoch 3, 120/1251"),
        (b"11/20 10:00:00 - mmengine - INFO - Iter(train) [   120/80000]  lr: 1e-2", "120"),
        (b"Epoch 3/9 \xe2\x94\x81\xe2\x94\x81 120/1251 0:00:10 \xe2\x80\xa2 0:01:20 12.3it/s", "epoch 3, 120/1251"),
        (
            b"      3/100      4.2G     1.2     0.9    120    640: 100%|###| 12/250 [00:30<00:00, 4it/s]",
            "epoch 3, 12/250",
        ),
        (b"step:12 - actor/entropy:0.31 - training/epoch:0", "12"),
        (b"|    iterations           | 12          |", "12"),
        (b"completed step: 12, seconds: 3.2, TFLOP/s/device: 120.1, loss: 8.1", "12"),
        (b"{'loss': 1.2, 'epoch': 0.1, 'global_step/max_steps': '120/5000', 'elapsed_time': '12m 3s'}", "120/5000"),
        (b"{'loss': '2.1', 'epoch': '0.53'}", "epoch 0.53"),
        (b"17it [00:01, 12.1it/s]", "17"),
    ],
)
def test_positions_of_other_trainers_are_found_without_patterns_of_their_own(line: bytes, text: str) -> None:
    found = find(line + b"\n")
    assert found is not None and found.text.endswith(text) and rank_of(found, line) < TALK


@pytest.mark.parametrize(
    ("line", "rank"),
    [
        (b"[dataloader] prefetched 6400 shards, queue 3/16", TALK),
        (b"GPU0 98% 71000MiB", TALK),
        (b"retrying the connection, attempt 3/10", COMPLAINT),
        (b"waiting for rank 3 in barrier, 60 s", COMPLAINT),
        (b"Validation DataLoader 0:  45%|###| 45/100 [00:10<00:12]", EVALUATION),
        (b"eval step 12/40", EVALUATION),
    ],
)
def test_lines_that_only_talk_are_never_the_heartbeat(line: bytes, rank: int) -> None:
    found = find(line + b"\n")
    assert found is not None and rank <= rank_of(found, line) < rank + TALK
