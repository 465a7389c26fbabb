"""A part: one save in flight, from an empty directory to a committed checkpoint on all ranks.

    writing -> written -> (shares digested, with several nodes) -> committed

A thread of the guard polls `look`; the ranks tell each other through the agreement (`Ranks`), and child processes do
the work (`worker.py`). Nothing here waits. A fault of one rank ends the save on all of them.
"""

from __future__ import annotations

import contextlib
import threading
from pathlib import Path

from resilience.errors import CheckpointError

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from typing import Any, Protocol

    from resilience.checkpoints.child import Worker
    from resilience.checkpoints.directory import StoreDirectory

    class Report(Protocol):
        """What all ranks have reported for a key."""

        faults: tuple[str, ...]
        """With their ranks: `rank 3: No space left on device`; at the first fault not all ranks may have reported."""
        text: str
        """Of rank 0."""

    class Ranks(Protocol):
        """The ranks of a training, seen from one of them; the guard provides it. No method waits."""

        rank: int
        world: int
        node: int
        """Number of this rank's node; 0 if unknown."""
        nodes: int
        """Number of nodes; 1 if unknown."""
        is_first: bool
        is_first_of_node: bool
        run: str
        attempt: int
        """0 outside of a job."""
        run_dir: str

        def report(self, key: str, *, fault: str = "", text: str = "") -> None:
            """Report to all ranks; once per rank and key."""

        def reported(self, key: str) -> Report | None:
            """Return the answer for a key: None until all ranks have reported, or one a fault. A rank that has left is
            a fault."""

        def warn(self, text: str) -> None:
            """Warn the user."""

        def event(self, kind: str, **fields: Any) -> None:
            """Record in the journal."""


WRITING, WRITTEN, SHARE, COMMIT, FAILED = "writing", "written", "share", "commit", "failed"
STOPPED = "stopped"
"""Key of the report that a rank writes no more into the part of a failed save."""
MOST_WORDS = 400
"""Length of a fault that is reported to other ranks."""
LOCKED_S = 1.0
"""How long `cut_off` waits for a look in another thread."""


class Part:
    """One save in flight.

    Attributes:
        path: the directory into which the training writes; empty at first. Of a framework that names its checkpoints
            itself: what it writes.
        is_first: whether this is rank 0, which writes what only one rank writes.
        step: number of completed steps.
        stall_s: how long the training waited, in seconds; None: unknown. Set by the guard.
    """

    def __init__(
        self,
        store: StoreDirectory,
        ranks: Ranks,
        name: str,
        manifest: Mapping[str, Any],
        *,
        sealed: str = "",
        reuse: bool = False,
        on_commit: Callable[[dict[str, Any]], None] = lambda committed: None,
        on_discard: Callable[[], None] = lambda: None,
    ) -> None:
        """No I/O.

        Args:
            store: the directory of checkpoints.
            ranks: of the training.
            name: of the part's directory; reports of the ranks carry it.
            manifest: fields of the manifest: step, algorithm, label, metrics ...
            sealed: the name that a framework gives it: then it is sealed instead of committed, and never discarded.
            reuse: whether files that have not changed since the previous checkpoint may be stored once.
            on_commit: called on rank 0 with what the child returned.
            on_discard: called on rank 0 once the directory of a failed save is in the trash.
        """
        self.path = Path(store.path, sealed or name)
        self.step = int(manifest["step"])
        self.is_first = ranks.is_first
        self.stall_s: float | None = None
        self._store, self._ranks, self._name = store, ranks, name
        self._manifest, self._reuse = dict(manifest), reuse
        self._on_commit, self._on_discard = on_commit, on_discard
        self._sealed = sealed
        self._phase = WRITING
        self._worker: Worker | None = None
        self._faults: tuple[str, ...] = ()
        self._has_reported = self._has_failed_here = self._is_settled = False
        self._lock = threading.Lock()  # `cut_off` comes from another thread

    def create(self) -> None:
        """Create the directory, if no other rank has. Raise CheckpointError, which all ranks are told."""
        if self._sealed:
            return
        try:
            self.path.mkdir(exist_ok=True)
        except OSError as error:
            from resilience.checkpoints.worker import HINTS

            self.written(error)
            hint = HINTS.get(error.errno or 0, "check the file system")
            raise CheckpointError(f"{self.path} cannot be created: {_words(error)}", hint=hint) from None

    def written(self, error: BaseException | None) -> None:
        """Note that this rank writes no more into the part: all is written, or writing failed."""
        with self._lock:
            if self._phase != WRITING:
                return
            self._enter(WRITTEN)
            self._report(fault="" if error is None else _words(error))
            if error is not None:
                self._has_failed_here = True
                self._ranks.report(self._key(STOPPED))

    def look(self) -> bool:
        """Return whether the save is committed on all ranks; move on as far as possible without waiting.

        Raise CheckpointError, on all ranks, if it failed on one of them.
        """
        with self._lock:
            while self._phase not in (WRITING, FAILED):
                if not self._has_reported and not self._poll_worker():
                    return False
                answer = self._ranks.reported(self._key(self._phase))
                if answer is None:
                    return False
                if answer.faults:
                    self._fail(answer.faults)
                elif self._phase == COMMIT:
                    self._is_settled = True
                    return True
                else:
                    is_shared = self._phase == WRITTEN and self._ranks.nodes > 1 and not self._sealed
                    self._enter(SHARE if is_shared else COMMIT)
                    self._begin_work()
            if self._phase == WRITING or (self.is_first and not self._discard()):
                return False
        raise CheckpointError("; ".join(self._faults))

    def cut_off(self, why: str) -> None:
        """Abandon the save: its children are killed, and the directory is left for the next start."""
        is_free = self._lock.acquire(timeout=LOCKED_S)  # `look` may hang in a file system
        try:
            self._end_worker()
            if self._phase == WRITING:
                self._enter(WRITTEN)
            if not self._has_reported and self._phase != FAILED:
                self._report(fault=why)
            self._phase, self._is_settled, self._faults = FAILED, True, self._faults or (why,)
        finally:
            if is_free:
                self._lock.release()

    def is_settled(self) -> bool:
        """Return whether nothing is left to do, on rank 0: committed, cut off, or failed and discarded."""
        with self._lock:
            return self._is_settled or (self._has_failed_here and self._discard())

    def _discard(self) -> bool:
        """Move the directory of a failed save to the trash, once no rank writes into it any more.

        Return whether that is done. Never raises: the next start discards what is left.
        """
        if not self._is_settled and self._ranks.reported(self._key(STOPPED)) is not None:
            from resilience.checkpoints.trash import discard

            with contextlib.suppress(OSError):
                if not self._sealed:
                    discard(self._store, self._name)
                    self._on_discard()
            self._is_settled = True
        return self._is_settled

    # ---- phases -----------------------------------------------------------------------------------------------

    def _key(self, phase: str) -> str:
        return f"{phase} {self._name}"

    def _enter(self, phase: str) -> None:
        self._phase, self._has_reported = phase, False

    def _report(self, *, fault: str = "", text: str = "") -> None:
        self._has_reported = True
        self._ranks.report(self._key(self._phase), fault=fault[:MOST_WORDS], text=text)

    def _begin_work(self) -> None:
        """Start the child of this phase if it is this rank's; the other ranks have nothing to do."""
        ranks = self._ranks
        if self._phase == SHARE and ranks.is_first_of_node:
            job = {"do": "share", "node": ranks.node, "nodes": ranks.nodes, "algorithm": self._manifest["algorithm"]}
        elif self._phase == COMMIT and ranks.is_first and self._sealed:
            job = {"do": "seal", "name": self._sealed, "attempt": ranks.attempt, **self._manifest}
        elif self._phase == COMMIT and ranks.is_first:
            fields = {**self._manifest, "stall_s": self.stall_s}
            job = {"do": "commit", "nodes": ranks.nodes, "fields": fields, "reuse": self._reuse}
        else:
            self._report()
            return
        from resilience.checkpoints.child import Worker

        try:
            self._worker = Worker.start({"part": self._name, **job, "store": str(self._store.path)})
        except CheckpointError as error:
            self._report(fault=str(error))

    def _poll_worker(self) -> bool:
        """Return whether the child has ended and its result is reported."""
        if self._worker is None:
            return False  # cut off
        try:
            result = self._worker.poll()
        except CheckpointError as error:
            self._worker = None
            self._report(fault=str(error))
            return True
        if result is None:
            return False
        self._worker = None
        if self._phase == COMMIT:
            try:
                self._on_commit(result)  # before the others learn of it: what is told was recorded
            except Exception as error:  # it is committed nevertheless
                self._ranks.warn(f"{result.get('name')} is committed, and could not be recorded: {error!r}")
        self._report(text=str(result.get("name", "")))
        return True

    def _fail(self, faults: tuple[str, ...]) -> None:
        self._end_worker()
        self._phase, self._faults = FAILED, faults
        self._ranks.report(self._key(STOPPED))

    def _end_worker(self) -> None:
        if self._worker is not None:
            self._worker.kill()
            self._worker = None


def _words(error: BaseException) -> str:
    return (error.strerror if isinstance(error, OSError) else str(error)) or type(error).__name__
