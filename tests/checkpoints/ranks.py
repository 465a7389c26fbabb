"""Ranks of a training without a training: in this process, with the answers that the agreement gives."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar

import pytest

from resilience.checkpoints import Store, worker
from resilience.checkpoints.part import Part
from resilience.errors import CheckpointError
from tests.lab.waiting import until

T = TypeVar("T")


@dataclass
class Answer:
    """The answer to a key."""

    faults: tuple[str, ...]
    text: str


@dataclass
class Rank:
    """One rank, as a store sees it. Attributes: see `part.Ranks`; `warnings` and `events` are what it was told."""

    launch: Launch
    rank: int
    world: int
    node: int
    nodes: int
    is_first_of_node: bool
    attempt: int
    run: str
    run_dir: str
    warnings: list[str] = field(default_factory=list)
    events: list[dict[str, Any]] = field(default_factory=list)

    @property
    def is_first(self) -> bool:
        """Return whether this is rank 0."""
        return self.rank == 0

    def report(self, key: str, *, fault: str = "", text: str = "") -> None:
        """Report to the launch."""
        self.launch.report(self.rank, key, fault, text)

    def reported(self, key: str) -> Answer | None:
        """Return the launch's answer."""
        return self.launch.reported(key)

    def warn(self, text: str) -> None:
        """Keep the text."""
        self.warnings.append(text)

    def event(self, kind: str, **fields: Any) -> None:
        """Keep the event."""
        self.events.append({"event": kind, **fields})


class Launch:
    """The ranks of one attempt with their stores.

    Attributes:
        ranks: from rank 0.
        stores: of the ranks.
    """

    def __init__(
        self, path: Path, world: int = 1, *, nodes: int = 1, attempt: int = 1, run: str = "demo",
        run_dir: Path | None = None, connects: bool = True, **settings: Any,
    ) -> None:  # fmt: skip
        self._changed = threading.Lock()
        self._reports: dict[str, dict[int, tuple[str, str]]] = {}
        self._answers: dict[str, Answer] = {}
        self._left: set[int] = set()
        of_node = world // nodes
        self.ranks = [
            Rank(self, rank, world, rank // of_node, nodes, rank % of_node == 0, attempt, run, str(run_dir or ""))
            for rank in range(world)
        ]
        self.stores = [Store(path, **settings) for _ in self.ranks]
        if connects:
            self.connect()

    def connect(self) -> None:
        """Connect the stores, as guards do at their start."""
        for rank, store in zip(self.ranks, self.stores, strict=True):
            store.connect(rank)

    def report(self, rank: int, key: str, fault: str, text: str) -> None:
        """Take a report; the first fault is the answer."""
        with self._changed:
            self._reports.setdefault(key, {})[rank] = (fault, text)

    def reported(self, key: str) -> Answer | None:
        """Return the answer, once all ranks have reported, or one has failed or left."""
        with self._changed:
            reports = self._reports.get(key, {})
            faults = [f"rank {rank}: {fault}" for rank, (fault, _) in sorted(reports.items()) if fault]
            faults += [f"rank {rank}: left" for rank in self._left if reports and rank not in reports]
            if key not in self._answers and (faults or len(reports) == len(self.ranks)):
                self._answers[key] = Answer(tuple(faults), reports.get(0, ("", ""))[1])
            return self._answers.get(key)

    def leave(self, rank: int) -> None:
        """Let a rank leave: killed."""
        with self._changed:
            self._left.add(rank)

    def each(self, do: Callable[[Store], T]) -> list[T]:
        """Do something on all ranks at the same time."""
        with ThreadPoolExecutor(len(self.stores)) as pool:
            return list(pool.map(do, self.stores))

    def parts(self, step: int, *, save: int = 1, **fields: Any) -> list[Part]:
        """Begin a save on all ranks, of which each writes a file."""
        parts = [store.begin_save(step, save=save, **fields) for store in self.stores]
        for rank, part in enumerate(parts):
            (part.path / f"rank{rank}.bin").write_bytes(f"{step} {rank} ".encode() * 500)
        return parts

    def save(self, step: int, *, save: int = 1, **fields: Any) -> None:
        """Save and commit on all ranks."""
        parts = self.parts(step, save=save, **fields)
        for part in parts:
            part.written(None)
        commit(*parts)

    def end(self, *, failed: bool = False) -> None:
        """End the training."""
        for store in self.stores:
            store.ended(failed=failed)


def commit(*parts: Part) -> None:
    """Look at parts until all are committed. Raise CheckpointError if they are not."""
    left = list(parts)

    def look() -> bool:
        left[:] = [part for part in left if not part.look()]
        return not left

    until(look, "the commit")


def fails(*parts: Part) -> list[str]:
    """Look at parts until all have failed; return their words."""
    words: dict[int, str] = {}

    def look() -> bool:
        for number, part in enumerate(parts):
            if number not in words:
                try:
                    assert not part.look()
                except CheckpointError as error:
                    words[number] = str(error)
        return len(words) == len(parts)

    until(look, "the failure")
    return [words[number] for number in range(len(parts))]


class WorkerHere:
    """A worker without a process: starting one costs as much as fifty commits."""

    def __init__(self, answer: dict[str, Any]) -> None:
        self._answer = answer

    @classmethod
    def start(cls, job: dict[str, Any]) -> WorkerHere:
        """Do the job at once."""
        return cls(worker.do(job))

    def poll(self) -> dict[str, Any]:
        """Return the answer, or raise the error."""
        if "error" in self._answer:
            raise CheckpointError(self._answer["error"], hint=self._answer["hint"], transient=self._answer["transient"])
        found: dict[str, Any] = self._answer["answer"]
        return found

    def kill(self) -> None:
        """It has ended."""


@pytest.fixture
def workers_here(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Do the work of children in this process."""
    for module in ("child", "prune"):
        monkeypatch.setattr(f"resilience.checkpoints.{module}.Worker", WorkerHere)
    yield
