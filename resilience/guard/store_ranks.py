"""The store of checkpoints in a guard: how the store sees the ranks, and what it is told of the training.

The guard does not know the room of checkpoints: a store is any object with the methods of `Store`, below.
"""

from __future__ import annotations

from resilience.errors import GuardError
from resilience.guard.agreement.base import Agreement
from resilience.guard.gate import Gate
from resilience.guard.recorder import Recorder, say_on_stderr

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from pathlib import Path
    from typing import Protocol

    from resilience.guard.agreement.reports import Report
    from resilience.guard.rank_info import RankInfo

    class Part(Protocol):
        """A save in flight: an empty directory that the training fills, and its commit."""

        path: Path
        is_first: bool

        def written(self, error: BaseException | None) -> None:
            """The training has written its share, or failed. Called once."""

        def look(self) -> bool:
            """Return whether the checkpoint is committed. Raise CheckpointError if it never will be. Never waits."""

        def cut_off(self, why: str) -> None:
            """The guard waits no longer. May be called while `look` runs in another thread."""

    class Store(Protocol):
        """A store of checkpoints: `resilience.checkpoints.Store`."""

        def connect(self, ranks: StoreRanks) -> None:
            """The guard starts, on every rank, before the decision about the start. Raise CheckpointError to refuse."""

        def begin_save(self, step: int, *, save: int, label: str, metrics: Mapping[str, float]) -> Part:
            """Begin a save after `step`, the `save`-th of that step on every rank. Its keys of reports end in
            `STEP.SAVE`."""

        def loaded(self, step: int) -> None:
            """The training goes on from this step: `guard.resumed`, or the first completed step."""

        def ended(self, *, failed: bool) -> None:
            """The guard is closed."""


class StoreRanks:
    """The ranks as a store sees them.

    Attributes:
        rank, world: of this process.
        node, nodes: of this process. Node 0 of 1 where the nodes are unknown: rank 0 then does the work of all nodes.
        is_first: whether this is rank 0.
        is_first_of_node: whether this rank does the work of its node; one for each value of `node`.
        run, attempt, run_dir: as in `RankInfo`.
    """

    def __init__(self, place: RankInfo, agreement: Agreement, recorder: Recorder) -> None:
        self._agreement = agreement
        self.rank, self.world = place.rank, place.world
        is_known = place.nodes > 1 and place.node >= 0 and place.local_rank >= 0
        self.node, self.nodes = (place.node, place.nodes) if is_known else (0, 1)
        self.is_first = place.is_first
        self.is_first_of_node = place.is_first_of_node if is_known else place.is_first
        self.run, self.attempt, self.run_dir = place.run, place.attempt, place.run_dir
        self.warn, self.event = recorder.warn, recorder.event

    def report(self, key: str, *, fault: str = "", text: str = "") -> None:
        """Report to all ranks that this one has done its part of `key`, or failed: once for each key. Never waits."""
        self._agreement.report(key, fault=fault, text=text)

    def reported(self, key: str) -> Report | None:
        """Return the answer once all ranks have reported `key`, or one has failed or left; None before."""
        return self._agreement.reported(key)


class ConnectedStore:
    """The store of one guard, which numbers the saves."""

    def __init__(self, store: Store, place: RankInfo, agreement: Agreement, recorder: Recorder) -> None:
        """Connect the store. Raise CheckpointError if it refuses, GuardError if the agreement carries no reports."""
        if place.world > 1 and not getattr(agreement, "carries_reports", False):
            raise GuardError(
                f"a store of checkpoints over {place.world} ranks cannot commit: nothing carries reports between them",
                hint="remove agreement= or RESIL_GUARD=off; over several nodes the ranks need a run directory "
                "(RESIL_RUN_DIR)",
            )
        self._store, self._agreement, self._recorder = store, agreement, recorder
        self._saves: dict[int, int] = {}
        self._has_loaded = False
        store.connect(StoreRanks(place, agreement, recorder))

    def begin_save(self, step: int, label: str, metrics: Mapping[str, float]) -> Part:
        """Return the part of a new save. Ranks count the saves of each step, not all: a rank that was restarted alone
        has made fewer than the others."""
        number = self._saves[step] = self._saves.get(step, 0) + 1
        self._agreement.begin(f"{step}.{number}")  # the name in the keys of its reports
        return self._store.begin_save(step, save=number, label=label, metrics=metrics)

    def loaded(self, step: int) -> None:
        """Tell the store that the training goes on from here."""
        self._has_loaded = True
        self._store.loaded(step)

    def stepped(self, step: int) -> None:
        """Tell the store of the first completed step."""
        if not self._has_loaded:
            self.loaded(step)

    def ended(self, *, failed: bool) -> None:
        """Tell the store that the guard ends. Its errors are warnings."""
        try:
            self._store.ended(failed=failed)
        except Exception as error:
            self._recorder.warn(f"the store of checkpoints failed at the end: {error!r}")


def connect_alone(store: Store, place: RankInfo, say: Callable[[str], None] | None) -> ConnectedStore:
    """Connect the store of a process without a running guard (`RESIL_GUARD=off`). Raise GuardError if it has ranks."""
    return ConnectedStore(store, place, Agreement(Gate()), Recorder(place, say or say_on_stderr))
