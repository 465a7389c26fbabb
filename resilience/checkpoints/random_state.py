"""Random state and the position in the data, so that a resumed training sees the same numbers and each sample once.

    sampler = ResumableSampler(len(data), rank=rank, world=world)
    loader = DataLoader(data, batch_size=32, sampler=sampler, num_workers=4)
    ...
    with guard.saving() as part:                                    # on every rank
        write_random_state(part.path / f"random.{rank}.json", sampler)
    ...
    read_random_state(checkpoint.path / f"random.{rank}.json", sampler)

Files are JSON: reading one runs no code, unlike a pickle.
"""

from __future__ import annotations

import base64
import importlib
import json
import os
import random
import sys
from functools import lru_cache

from resilience.errors import CheckpointError

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator
    from typing import Any

FORMAT = 1
_ROUNDS = 6
"""Rounds of the Feistel network; four make a pseudo-random permutation (Luby and Rackoff, 1988)."""
_MASK = 2**64 - 1


def write_random_state(path: str | os.PathLike[str], sampler: ResumableSampler | None = None) -> None:
    """Write the state of this process's random number generators, and a sampler's position, to a new file.

    Generators: those of Python, and of NumPy (the global one), torch and torch.cuda (all devices) where the process has
    imported them. Generators that your own code has created are yours. Raise OSError.
    """
    state = {"format": FORMAT, "random": random_state()}
    if sampler is not None:
        state["sampler"] = sampler.state()
    with open(path, "x", encoding="ascii") as file:
        json.dump(state, file)


def read_random_state(path: str | os.PathLike[str], sampler: ResumableSampler | None = None) -> None:
    """Restore what `write_random_state` wrote. Raise CheckpointError if the file is none, or of another rank's number.

    Changes nothing if the file cannot be read.
    """
    try:
        with open(path, encoding="ascii") as file:
            state = json.load(file)
        version, found = int(state["format"]), dict(state["random"])
        position = state.get("sampler")
    except FileNotFoundError:
        raise CheckpointError(
            f"{os.fspath(path)} does not exist",
            hint="after a change of the number of ranks, new ranks have no random state: seed them anew",
        ) from None
    except (ValueError, TypeError, KeyError, AttributeError) as error:
        raise CheckpointError(f"{os.fspath(path)} holds no random state: {error}") from None
    if version > FORMAT:
        raise CheckpointError(f"{os.fspath(path)} was written by a newer version of resil", hint="use that version")
    if sampler is not None:
        if position is None:
            raise CheckpointError(f"{os.fspath(path)} holds no position of a sampler", hint="pass it when writing")
        sampler.restore(position)
    restore_random_state(found)


def random_state() -> dict[str, Any]:
    """Return the state of the random number generators as JSON values."""
    version, words, gauss = random.getstate()
    state: dict[str, Any] = {"python": [version, list(words), gauss]}
    if numpy := sys.modules.get("numpy"):
        name, keys, position, has_gauss, cached = numpy.random.get_state()
        state["numpy"] = [name, keys.tolist(), int(position), int(has_gauss), float(cached)]
    if torch := sys.modules.get("torch"):
        state["torch"] = _text(torch.get_rng_state())
        if torch.cuda.is_initialized():
            state["cuda"] = [_text(one) for one in torch.cuda.get_rng_state_all()]
    return state


def restore_random_state(state: dict[str, Any]) -> None:
    """Restore what `random_state` returned; imports NumPy and torch if they are part of it.

    Raise CheckpointError if the state is damaged, or of another number of CUDA devices.
    """
    try:
        version, words, gauss = state["python"]
        random.setstate((version, tuple(words), gauss))
        if "numpy" in state:
            numpy = importlib.import_module("numpy")
            name, keys, *rest = state["numpy"]
            numpy.random.set_state((name, numpy.array(keys, dtype="uint32"), *rest))
        if "torch" in state:
            torch = importlib.import_module("torch")
            torch.set_rng_state(_tensor(torch, state["torch"]))
            if "cuda" in state:
                torch.cuda.set_rng_state_all([_tensor(torch, one) for one in state["cuda"]])
    except (ValueError, TypeError, KeyError, RuntimeError, IndexError) as error:
        raise CheckpointError(f"the random state cannot be restored: {error}") from None


def _text(tensor: Any) -> str:
    return base64.b64encode(bytes(tensor.tolist())).decode("ascii")


def _tensor(torch: Any, text: str) -> Any:
    return torch.tensor(list(base64.b64decode(text, validate=True)), dtype=torch.uint8)


class ResumableSampler:
    """Indices of this rank's samples, in an order that depends on seed and epoch only, from a position that is saved.

    Use it as `sampler=` of torch's DataLoader, instead of DistributedSampler. Call `trained` after each step: workers
    of the loader take indices long before the training does, so that only the training knows its position.

        for epoch in range(sampler.epoch, epochs):
            sampler.set_epoch(epoch)
            for batch in loader:
                train_step(batch)
                sampler.trained(len(batch))

    A position is valid for another number of ranks: the rest of the epoch is dealt out among them. Samples that are
    left at the end of an epoch, fewer than there are ranks, are left out, other ones in each epoch.

    Attributes:
        size: number of samples of the data.
        epoch: of the next sample.
        offset: number of samples of the epoch that all ranks together have trained on.
    """

    def __init__(self, size: int, *, seed: int = 0, rank: int = 0, world: int = 1, shuffle: bool = True) -> None:
        """Raise ValueError if `rank` is not below `world`, or there are fewer samples than ranks."""
        if not 0 <= rank < world or size < world:
            raise ValueError(f"rank {rank} of {world} cannot share {size} samples")
        self.size, self.seed, self.rank, self.world, self.shuffle = size, seed, rank, world, shuffle
        self.epoch = self.offset = 0

    def set_epoch(self, epoch: int) -> None:
        """Move to the beginning of an epoch, unless the position is in it; trainers call it on DistributedSampler."""
        if epoch != self.epoch:
            self.epoch, self.offset = epoch, 0

    def __len__(self) -> int:
        """Return how many samples are left for this rank in the epoch."""
        return (self.size - self.offset) // self.world

    def __iter__(self) -> Iterator[int]:
        """Return the indices from the position to the end of the epoch. The position moves by `trained` only."""
        first, left, epoch = self.offset + self.rank, len(self), self.epoch
        places = range(first, first + left * self.world, self.world)
        key = f"{self.seed}.{epoch}"
        return (permuted(place, self.size, key) if self.shuffle else place for place in places)

    def trained(self, samples: int) -> None:
        """Move on by the samples of one step of this rank; after the last step of an epoch, to the next epoch."""
        self.offset += samples * self.world
        if self.offset + self.world > self.size:
            self.epoch, self.offset = self.epoch + 1, 0

    def state(self) -> dict[str, Any]:
        """Return the position as JSON values."""
        return {
            "epoch": self.epoch, "offset": self.offset, "size": self.size, "seed": self.seed, "shuffle": self.shuffle,
        }  # fmt: skip

    def restore(self, state: dict[str, Any]) -> None:
        """Move to a saved position. Raise CheckpointError if it is one in other data or in another order."""
        try:
            epoch, offset = int(state["epoch"]), int(state["offset"])
        except (KeyError, TypeError, ValueError) as error:
            raise CheckpointError(f"the position of the sampler is damaged: {error}") from None
        for name in ("size", "seed", "shuffle"):
            if state.get(name) != getattr(self, name):
                raise CheckpointError(
                    f"the sampler was saved with {name} {state.get(name)}, and this one has {getattr(self, name)}",
                    hint="with other data or another order, samples would be seen twice: begin a new epoch",
                )
        if not (epoch >= 0 and 0 <= offset < self.size):
            raise CheckpointError(f"the position of the sampler is damaged: epoch {epoch}, offset {offset}")
        self.epoch, self.offset = epoch, offset

    state_dict, load_state_dict = state, restore


def permuted(index: int, size: int, key: str) -> int:
    """Given an index below `size`, return the index in its place in the order of `key`: a permutation, without a table.

    A Feistel network over the next even number of bits; what falls outside is encrypted again (cycle walking: Black and
    Rogaway, "Ciphers with arbitrary finite domains", 2002). Starting in the middle of an epoch therefore costs nothing.
    """
    half = max(1, ((size - 1).bit_length() + 1) // 2)
    mask = (1 << half) - 1
    keys = _round_keys(key)
    while True:
        left, right = index >> half, index & mask
        for one in keys:
            # The finalizer of splitmix64 (Steele, Lea and Flood, 2014) mixes all bits.
            mixed = (right + one) * 0xBF58476D1CE4E5B9 & _MASK
            mixed = (mixed ^ mixed >> 27) * 0x94D049BB133111EB & _MASK
            left, right = right, left ^ ((mixed ^ mixed >> 31) & mask)
        index = left << half | right
        if index < size:
            return index


@lru_cache(maxsize=64)
def _round_keys(key: str) -> tuple[int, ...]:
    source = random.Random(key)  # seeded by SHA-512 of the text: the same in every process
    return tuple(source.getrandbits(64) for _ in range(_ROUNDS))
