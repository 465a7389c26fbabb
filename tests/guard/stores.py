"""A store of checkpoints that keeps nothing on disk but the parts: it commits when all ranks have reported."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from resilience.errors import CheckpointError


class FakePart:
    """A save: `written`, then `commit`, each reported by every rank."""

    def __init__(self, store: FakeStore, step: int, save: int) -> None:
        self.name = f"{step}.{save}"
        self.path = store.path / f".part-{self.name}"
        self.path.mkdir(exist_ok=True)
        self.is_first = store.ranks.is_first
        self.errors: list[BaseException | None] = []
        self.why_cut_off = ""
        self._store = store
        self._phase = ""

    def written(self, error: BaseException | None) -> None:
        self.errors.append(error)
        self._phase = "written"
        self._store.ranks.report(f"written {self.name}", fault="" if error is None else str(error))

    def look(self) -> bool:
        report = self._store.ranks.reported(f"{self._phase} {self.name}")
        if report is None or self._store.is_held:
            return False
        if report.faults:
            raise CheckpointError("; ".join(report.faults))
        if self._phase == "commit":
            self._store.committed.append((self.name, report.text))
            return True
        self._phase = "commit"
        text = f"step-{self.name}" if self.is_first else ""
        self._store.ranks.report(f"commit {self.name}", text=text)
        return False

    def cut_off(self, why: str) -> None:
        self.why_cut_off = why
        self._store.ranks.report(f"{self._phase or 'written'} {self.name}", fault=why)


class FakeStore:
    """See above.

    Attributes:
        calls: what the guard has said, in order.
        committed: name and rank 0's text of each committed checkpoint.
        is_held: whether no part gets on.
        refuses: connect refuses with these words.
    """

    def __init__(self, path: Path, refuses: str = "") -> None:
        self.path = path
        self.refuses = refuses
        self.calls: list[Any] = []
        self.committed: list[tuple[str, str]] = []
        self.parts: list[FakePart] = []
        self.is_held = False
        self.ranks: Any = None

    def connect(self, ranks: Any) -> None:
        self.calls.append("connect")
        self.ranks = ranks
        if self.refuses:
            raise CheckpointError(self.refuses)

    def begin_save(self, step: int, *, save: int, label: str, metrics: Mapping[str, float]) -> FakePart:
        self.calls.append(("save", step, save, label, dict(metrics)))
        self.parts.append(FakePart(self, step, save))
        return self.parts[-1]

    def loaded(self, step: int) -> None:
        self.calls.append(("loaded", step))

    def ended(self, *, failed: bool) -> None:
        self.calls.append(("ended", failed))
