"""Random state and positions in the data: resumed, a training sees the same numbers and each sample once."""

from __future__ import annotations

import json
import random
from itertools import pairwise
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from resilience.checkpoints.random_state import (
    ResumableSampler,
    permuted,
    random_state,
    read_random_state,
    restore_random_state,
    write_random_state,
)
from resilience.errors import CheckpointError


@given(size=st.integers(1, 300), key=st.text(max_size=5))
def test_an_order_has_each_index_once(size: int, key: str) -> None:
    assert sorted(permuted(place, size, key) for place in range(size)) == list(range(size))


def test_orders_of_epochs_and_seeds_differ_and_spread() -> None:
    orders = [[permuted(place, 10_000, key) for place in range(500)] for key in ("0.0", "0.1", "1.0")]
    assert len({tuple(order) for order in orders}) == 3
    for order in orders:  # the mean of 500 of 10,000 is within 5 standard deviations
        assert abs(sum(order) / 500 - 5000) < 5 * 2887 / 500**0.5
        assert sum(b == a + 1 for a, b in pairwise(order)) < 5


def test_ranks_share_an_epoch_without_overlap() -> None:
    samplers = [ResumableSampler(12, rank=rank, world=3) for rank in range(3)]
    drawn = [list(sampler) for sampler in samplers]
    assert [len(one) for one in drawn] == [4, 4, 4]
    assert sorted(index for one in drawn for index in one) == list(range(12))


@given(
    size=st.integers(8, 200), worlds=st.lists(st.integers(1, 4), min_size=1, max_size=4), batch=st.integers(1, 5),
    steps=st.integers(1, 8), ahead=st.integers(0, 7),
)  # fmt: skip
def test_each_sample_is_seen_once_over_kills_with_other_numbers_of_ranks(
    size: int, worlds: list[int], batch: int, steps: int, ahead: int
) -> None:
    """Workers take samples `ahead` of the training; what is not trained on before a kill is seen after it."""
    seen: list[int] = []
    state = ResumableSampler(size, seed=3).state()
    for world in [*worlds, 1]:
        samplers = [ResumableSampler(size, seed=3, rank=rank, world=world) for rank in range(world)]
        for sampler in samplers:
            sampler.restore(json.loads(json.dumps(state)))
        queues = [iter(sampler) for sampler in samplers]
        taken: list[list[int]] = [[] for _ in samplers]
        for _ in range(steps if world != 1 or len(seen) < size // 2 else size):
            for queue, mine in zip(queues, taken, strict=True):
                mine += [index for _, index in zip(range(batch + ahead), queue, strict=False)]
            counts = {len(mine[:batch]) for mine in taken}
            assert len(counts) == 1, "ranks have the same number of samples in each step"
            if not taken[0] or samplers[0].epoch > 0:
                break
            for sampler, mine in zip(samplers, taken, strict=True):
                seen += mine[:batch]
                sampler.trained(len(mine[:batch]))
                del mine[:batch]
        assert len({json.dumps(sampler.state()) for sampler in samplers}) == 1
        state = samplers[0].state()
        if state["epoch"]:
            break
    assert len(seen) == len(set(seen))
    assert len(seen) <= size
    if state["epoch"]:
        assert len(seen) > size - 4


def test_the_end_of_an_epoch_is_the_beginning_of_the_next() -> None:
    sampler = ResumableSampler(10)
    sampler.trained(10)
    assert (sampler.epoch, sampler.offset, len(sampler)) == (1, 0, 10)
    sampler.set_epoch(1)
    sampler.trained(4)
    sampler.set_epoch(1)
    assert sampler.offset == 4
    sampler.set_epoch(2)  # a trainer that drops the last batch
    assert (sampler.epoch, sampler.offset) == (2, 0)


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"size": 11}, "size 10, and this one has 11"),
        ({"seed": 1}, "seed 0, and this one has 1"),
        ({"shuffle": False}, "shuffle True, and this one has False"),
    ],
)
def test_a_position_in_other_data_is_refused(change: dict[str, int], words: str) -> None:
    with pytest.raises(CheckpointError, match=words):
        ResumableSampler(**{"size": 10, **change}).restore(ResumableSampler(10).state())  # type: ignore[arg-type]


@pytest.mark.parametrize("state", [{}, {"epoch": "x", "offset": 0}, {"epoch": 0, "offset": 10}, {"epoch": -1}])
def test_a_damaged_position_is_refused(state: dict[str, object]) -> None:
    with pytest.raises(CheckpointError, match="position of the sampler is damaged"):
        ResumableSampler(10).restore({"size": 10, "seed": 0, "shuffle": True, **state})


def test_more_ranks_than_samples_are_refused() -> None:
    with pytest.raises(ValueError, match="cannot share"):
        ResumableSampler(3, world=4)


def test_a_restored_state_goes_on_with_the_same_numbers(tmp_path: Path) -> None:
    sampler = ResumableSampler(100)
    sampler.trained(30)
    random.gauss(0, 1)  # leaves half of a pair
    write_random_state(tmp_path / "random.0.json", sampler)
    expected = [random.gauss(0, 1), random.random(), list(sampler)]
    random.seed(1)
    again = ResumableSampler(100)
    read_random_state(tmp_path / "random.0.json", again)
    assert [random.gauss(0, 1), random.random(), list(again)] == expected


def test_a_state_is_written_once(tmp_path: Path) -> None:
    write_random_state(tmp_path / "state")
    with pytest.raises(FileExistsError):
        write_random_state(tmp_path / "state")


@pytest.mark.parametrize(
    "text", ["", "[]", "{}", '{"format": 1, "random": {}}', '{"format": 1, "random": {"python": 3}}']
)
def test_a_damaged_file_is_refused_in_words(tmp_path: Path, text: str) -> None:
    (tmp_path / "state").write_text(text)
    with pytest.raises(CheckpointError, match="random state"):
        read_random_state(tmp_path / "state")


def test_a_file_without_what_is_wanted_is_refused_in_words(tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match="number of ranks"):
        read_random_state(tmp_path / "none")
    write_random_state(tmp_path / "state")
    with pytest.raises(CheckpointError, match="no position of a sampler"):
        read_random_state(tmp_path / "state", ResumableSampler(3))
    (tmp_path / "state").write_text('{"format": 2, "random": {}}')
    with pytest.raises(CheckpointError, match="newer version"):
        read_random_state(tmp_path / "state")


def test_a_state_is_plain_json() -> None:
    state = json.loads(json.dumps(random_state()))
    restore_random_state(state)
    assert random_state()["python"] == state["python"]
