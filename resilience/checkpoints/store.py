"""The store that a training uses: saves into parts, and finds the newest checkpoint that verifies.

store = Store("checkpoints")
with TrainingGuard.from_env(store=store) as guard:
    if checkpoint := store.latest():            # on every rank
        guard.resumed(load(checkpoint.path))
    for batch in loader:
        train_step(batch)
        decision = guard.step()
        if decision.save:
            with guard.saving() as part:        # on every rank
                save(part.path)
"""

from __future__ import annotations

import json
import os
import threading
import time

from resilience.base.files import exists
from resilience.base.mounts import current_mounts, mount_of
from resilience.checkpoints.directory import StoreDirectory, read_record, write_record
from resilience.checkpoints.names import ATTEMPTS, part_name
from resilience.checkpoints.part import Part
from resilience.errors import CheckpointError

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from pathlib import Path
    from typing import Any

    from resilience.checkpoints.adopt import Found
    from resilience.checkpoints.child import Worker
    from resilience.checkpoints.directory import Checkpoint
    from resilience.checkpoints.part import Ranks
    from resilience.checkpoints.settings import CheckpointSettings

RECORD = "checkpoints.json"
"""In the run directory: where the run's checkpoints are, and whether any was committed. A directory that is not mounted
looks like a new one; with this record it is an error."""
BACKGROUND_LOOK_S, END_S = 0.5, 2.0
ALWAYS_KEPT = 2  # retention never lets go of the newest two


class Store:
    """A directory of checkpoints, as a training uses it.

    Attributes:
        path: of the directory.
        settings: of [checkpoints].
    """

    def __init__(self, path: str | os.PathLike[str], **settings: Any) -> None:
        """No I/O: the directory is created when the guard starts.

        `settings` are those of [checkpoints] in resil.toml, such as `latest=3`. Raise SettingsError if one is invalid.
        """
        from resilience.checkpoints.settings import read_store_settings

        self._set_up(read_store_settings({}, path=path, **settings), os.environ)

    @classmethod
    def from_env(cls, environ: Mapping[str, str] | None = None, **settings: Any) -> Store:
        """Return the store of this job, from `RESIL_CHECKPOINTS__KEY`, which a template exports from resil.toml.

        Arguments are settings and take precedence. Raise SettingsError if one is invalid, or there is no path.
        """
        from resilience.checkpoints.settings import read_store_settings
        from resilience.errors import SettingsError

        environ = os.environ if environ is None else environ
        chosen = read_store_settings(environ, **settings)
        if not chosen.path:
            raise SettingsError(
                "there is no directory for checkpoints",
                hint='set path in [checkpoints] of resil.toml, or Store("checkpoints")',
            )
        store = cls.__new__(cls)
        store._set_up(chosen, environ)
        return store

    def _set_up(self, settings: CheckpointSettings, environ: Mapping[str, str]) -> None:
        run_dir = environ.get("RESIL_RUN_DIR", "")
        self.settings = settings
        self._directory = StoreDirectory(settings.path.replace("{run}", environ.get("RESIL_RUN", "")))
        self.path: Path = self._directory.path
        self._ranks: Ranks | None = None
        self._session: dict[str, Any] | None = None
        self._run_dir = run_dir
        self._looks = 0
        self._began = 0.0
        self._is_loading = self._is_reading = self._has_committed = False
        self._earlier = self._loaded = ""
        self._parts: list[Part] = []
        self._is_over = threading.Event()
        self._background: list[threading.Thread] = []
        self._pruning: threading.Thread | None = None

    # ---- for the training -------------------------------------------------------------------------------------

    def latest(self, *, up_to: int | None = None) -> Checkpoint | None:
        """Return the newest checkpoint that verifies, or None if there never was one. Call it on every rank.

        With `up_to`, newer ones than of this step are set aside: their files are whole, but not what was saved in them,
        such as the weights of a GPU that computes wrong values (`guard.resumed_after.since`).

        The ranks choose together, once the guard has started: `with TrainingGuard.from_env(store=store)`. Bad ones are
        set aside, with words. Without a guard, a single process looks alone, and changes nothing. Load from `path`.

        Raise NoGoodCheckpoint if there were checkpoints and none is good; CheckpointError if the directory is none, or,
        with `transient`, cannot be read.
        """
        from resilience.checkpoints.resume import Look

        ranks = self._ranks
        if ranks is None:
            return self._latest_alone(up_to)
        self._open_session(ranks)
        self._looks += 1
        choice = Look(
            self._directory,
            ranks,
            number=self._looks,
            budget_s=self.settings.verify_budget_s,
            manage=self.settings.manage,
            earlier=self._earlier,
            find_unsealed=self._find_unsealed,
            up_to=up_to,
        ).choose()
        self._is_loading = choice.checkpoint is not None
        if choice.checkpoint is not None and not choice.is_read and ranks.is_first:
            self._read_on(choice.checkpoint, ranks)
        return choice.checkpoint

    def _latest_alone(self, up_to: int | None) -> Checkpoint | None:
        from resilience.checkpoints.resume import Alone, Look

        if (launched := _launched_ranks(os.environ)) > 1:
            raise CheckpointError(
                f"{launched} ranks cannot choose a checkpoint together before their guards have started",
                hint="inside of `with TrainingGuard.from_env(store=store):`, without RESIL_GUARD=off",
            )
        try:
            record = _read_record(self._run_dir)
            if not exists(self._directory.own) and not self._directory.is_there():
                self._refuse_vanished(record)
                return None
            earlier = self._missing(record, self._directory.ident())
        except OSError as error:
            raise _cannot_be_used(self.path, error) from None
        budget_s = self.settings.verify_budget_s
        look = Look(self._directory, Alone(), budget_s=budget_s, earlier=earlier, reads_only=True, up_to=up_to)
        return look.choose().checkpoint

    def latest_path(self) -> str | None:
        """Return the path of `latest()` as text, or None: for `resume_from_checkpoint=` and `ckpt_path=`."""
        checkpoint = self.latest()
        return None if checkpoint is None else str(checkpoint.path)

    def adopt(
        self, path: str | os.PathLike[str], step: int, *, label: str = "", metrics: Mapping[str, float] | None = None
    ) -> Callable[[], bool]:
        """Seal, in a child process, what a framework has saved in this directory under a name of its own. On one rank.

        Return a handle for `save.until`: a function that returns whether it is sealed, and raises CheckpointError if
        it cannot be. A `pattern` seals each save by itself: see `begin_save`.
        """
        from resilience.checkpoints.child import Worker

        ranks = self._ranks
        job = {
            "do": "seal", "store": str(self.path), "name": os.path.relpath(path, self.path), "step": step,
            "run": "" if ranks is None else ranks.run, "attempt": 0 if ranks is None else ranks.attempt,
            "label": label, "metrics": dict(metrics or {}),
        }  # fmt: skip
        worker = Worker.start(job)
        return lambda: worker.poll() is not None

    # ---- for the guard ----------------------------------------------------------------------------------------

    def connect(self, ranks: Ranks) -> None:
        """Take the ranks of a training, before its first step. Rank 0 creates the directory, and fences older attempts.

        Raise CheckpointError, on rank 0, if the directory cannot be used; the other ranks are told.
        """
        self._ranks, self._session = ranks, None
        self._is_over.clear()
        if not ranks.is_first:
            ranks.report("store")
            return
        try:
            self._session = self._open_first(ranks)
        except OSError as error:
            refusal = _cannot_be_used(self.path, error)
            ranks.report("store", fault=str(refusal))
            raise refusal from None
        except CheckpointError as error:
            ranks.report("store", fault=str(error))
            raise
        ranks.report("store", text=json.dumps(self._session))

    def begin_save(self, step: int, *, save: int, label: str = "", metrics: Mapping[str, float] | None = None) -> Part:
        """Return the part into which this rank writes save number `save` of this step, a number equal on all ranks.

        With a `pattern` or `tracker`, the framework writes under its own name, and the commit seals what has that name.
        Raise CheckpointError if the directory is gone, or cannot be written.
        """
        ranks = self._ranks
        if ranks is None:
            raise CheckpointError("the store has no guard", hint="TrainingGuard.from_env(store=store)")
        self._sweep()
        session = self._open_session(ranks)
        manifest = {
            "step": step, "algorithm": session["algorithm"], "run": ranks.run, "label": label, "world": ranks.world,
            "metrics": {name: float(value) for name, value in (metrics or {}).items()}, "started_at": time.time(),
        }  # fmt: skip
        part = Part(
            self._directory,
            ranks,
            part_name(step, ranks.attempt, save),
            manifest,
            sealed=self._sealed_name(step),
            reuse=self.settings.reuse,
            on_commit=self._committed,
            on_discard=lambda: self._prune(ranks),
        )
        try:
            self._check_still_there(session["id"])
        except CheckpointError as error:
            part.written(error)
            raise
        if ranks.is_first:
            self._parts.append(part)
        part.create()
        return part

    def _sealed_name(self, step: int) -> str:
        """Return how the framework names the checkpoint of a step; empty if the store does."""
        if not (self.settings.pattern or self.settings.tracker):
            return ""
        from resilience.checkpoints.adopt import pattern_of

        return pattern_of(self.settings.pattern, self.settings.tracker).name_of(step)

    def _find_unsealed(self) -> tuple[Found, ...]:
        """Return what a framework saved and nothing has sealed as it is: no tick runs, or it was killed before
        its seal. Raise CheckpointError, OSError."""
        settings = self.settings
        if not (settings.pattern or settings.tracker):
            return ()
        from resilience.checkpoints.adopt import find_new

        return find_new(self._directory, settings.pattern, settings.tracker, now=time.time(), began=self._began)

    def loaded(self, step: int) -> None:
        """Note that this rank got past loading its checkpoint: so did the training, once every rank has. Then prune: an
        attempt that saves only at its end has no time for that."""
        ranks, key = self._ranks, f"loaded {self._looks}"
        if ranks is None or key == self._loaded:
            return
        self._loaded, was_loading = key, self._is_loading
        if was_loading:
            ranks.report(key)
        if not ranks.is_first:
            return

        def wait() -> None:
            while was_loading and (answer := ranks.reported(key)) is None:
                if self._is_over.wait(BACKGROUND_LOOK_S):
                    return
            if was_loading and answer is not None and not answer.faults:
                self._end_start(is_past_load=True)

        if ranks.world == 1:
            wait()
            self._run_in_background(lambda: self._prune(ranks))
        else:
            self._run_in_background(wait, lambda: self._prune(ranks))

    def ended(self, *, failed: bool) -> None:
        """End what runs in the background. A training that ended in order while loading did not die of it, nor did one
        whose ranks have all loaded and that failed at once."""
        if not failed:
            self._end_start(is_past_load=False)
        elif self._is_loading and self._ranks is not None and self._loaded:
            answer = self._ranks.reported(self._loaded)
            if answer is not None and not answer.faults:
                self._end_start(is_past_load=True)
        self._sweep()
        self._is_over.set()
        for thread in self._background:
            thread.join(END_S)
        self._ranks = self._session = None

    # ---- at the start -----------------------------------------------------------------------------------------

    def _open_first(self, ranks: Ranks) -> dict[str, Any]:
        """On rank 0: create or open the directory, fence older attempts; return what all ranks need to know."""
        from resilience.checkpoints import fence
        from resilience.checkpoints.digest import best_algorithm

        self._run_dir = ranks.run_dir
        record = _read_record(self._run_dir)
        if not exists(self._directory.own):
            self._refuse_vanished(record)
        self._directory = StoreDirectory.create(self.path, ranks.run)
        ident = self._directory.ident()
        newest = fence.newest_attempt(self._directory)
        if 0 < ranks.attempt < newest:  # the guard tells this attempt to end
            return {"superseded": newest}
        fence.begin(self._directory, ranks.attempt)
        self._began = time.time()
        self._earlier = self._missing(record, ident)
        self._has_committed = bool(record.get("committed"))
        if not self._earlier:
            self._write_record(ident)
        return {"id": ident, "algorithm": best_algorithm()}

    def _refuse_vanished(self, record: dict[str, Any]) -> None:
        """Raise CheckpointError if the directory is new, although the run has one there: it is not mounted."""
        if record.get("path") != str(self.path):
            return
        if record.get("committed") or record.get("mount") != self._mount():
            was = f", on {record['mount']}" if record.get("mount") != self._mount() else ""
            raise CheckpointError(
                f"there are no checkpoints in {self.path}, where this run has saved before{was}: is it mounted?",
                hint=f"if they were deleted on purpose, remove {os.path.join(self._run_dir, RECORD)}",
            )

    def _missing(self, record: dict[str, Any], ident: str) -> str:
        """Return what shows that the run has committed checkpoints, should the directory have none."""
        if not record.get("committed"):
            return ""
        which = "there" if record.get("id") == ident else f"in {record.get('path')}"
        return f"this run has committed some {which} (if not any more, remove {os.path.join(self._run_dir, RECORD)})"

    def _mount(self) -> str:
        mount = mount_of(self.path, current_mounts())
        return "" if mount is None else f"{mount.point} ({mount.type})"

    def _open_session(self, ranks: Ranks) -> dict[str, Any]:
        """Return what rank 0 has told. Waits for it; raise CheckpointError if rank 0 could not use the directory."""
        if self._session is None:
            from resilience.checkpoints.resume import wait_for

            answer = wait_for(ranks, "store", hint="their guards have not started")
            if answer.faults:
                raise CheckpointError("; ".join(answer.faults))
            session = json.loads(answer.text)
            if "id" in session:
                self._check_still_there(session["id"])
            self._session = session
        if "superseded" in self._session:
            newest = self._session["superseded"]
            raise CheckpointError(
                f"attempt {newest} has begun to use {self.path}, and this is {ranks.attempt}",
                hint="two attempts must not train at once: resil status. If the run directory was removed since, and "
                f"attempts are counted anew: rm {self._directory.own / ATTEMPTS / str(newest)}",
            )
        return self._session

    def _check_still_there(self, ident: str) -> None:
        """Raise CheckpointError if this rank does not see the directory that rank 0 has opened."""
        try:
            if self._directory.ident() == ident:
                return
            found = "is another directory here"
        except CheckpointError as error:
            found = f"is not the same here: {error.message}"
        except OSError as error:
            found = f"cannot be read here: {error.strerror}"
        raise CheckpointError(
            f"the directory of checkpoints {self.path} {found}",
            hint="it must be mounted on every node, and stay mounted",
        )

    def _write_record(self, ident: str) -> None:
        record = {"path": str(self.path), "mount": self._mount(), "id": ident, "committed": self._has_committed}
        if self._run_dir and record != _read_record(self._run_dir):
            write_record(os.path.join(self._run_dir, RECORD), record)

    def _end_start(self, *, is_past_load: bool) -> None:
        ranks = self._ranks
        if not self._is_loading or ranks is None:
            return
        self._is_loading = False
        if ranks.is_first:
            from resilience.checkpoints import starts

            try:
                starts.end(self._directory, ranks.attempt, is_past_load=is_past_load)
            except OSError as error:
                ranks.warn(f"{self._directory.own} cannot be written: {error.strerror}")

    # ---- in the background ------------------------------------------------------------------------------------

    def _committed(self, done: dict[str, Any]) -> None:
        """On rank 0: record a commit, and delete what the settings do not keep. Called by the thread of the saves."""
        ranks = self._ranks
        assert ranks is not None
        assert self._session is not None
        if done.get("outcome") == "already":
            ranks.warn(f"{done['name']} was committed before, by a save that is equal or later: this one is discarded")
            return
        ranks.event("checkpoint", **done)
        try:
            if not self._has_committed:
                self._has_committed = True
                self._write_record(self._session["id"])
        except OSError as error:
            ranks.warn(f"{error.filename or self._run_dir} cannot be read or written: {error.strerror}")
        self._prune(ranks)

    def _prune(self, ranks: Ranks) -> None:
        """Delete in the background what no rule keeps and what failed saves have left, unless that is going on."""
        from resilience.checkpoints.prune import start_prune

        directory = self._directory
        if self._is_reading or self._is_over.is_set() or (self._pruning is not None and self._pruning.is_alive()):
            return
        try:
            if len(directory.checkpoints()) <= ALWAYS_KEPT and not directory.trash():
                return
            worker = start_prune(directory, self.settings.policy(), manage=self.settings.manage)
        except (OSError, CheckpointError) as error:
            ranks.warn(f"no checkpoint was deleted: {error.strerror if isinstance(error, OSError) else error}")
            return

        def say(done: dict[str, Any]) -> None:
            if done["deleted"]:
                ranks.event("checkpoints_deleted", names=done["deleted"], freed_bytes=done["freed_bytes"])
            for text in done["failed"]:
                ranks.warn(text)

        self._pruning = self._await(worker, say, lambda error: ranks.warn(f"no checkpoint was deleted: {error}"))

    def _read_on(self, checkpoint: Checkpoint, ranks: Ranks) -> None:
        """Read the whole checkpoint in the background, and say so if it is damaged."""
        from resilience.checkpoints.child import Worker

        def say(answer: dict[str, Any]) -> None:
            self._is_reading = False
            if fault := answer["fault"]:
                ranks.event("checkpoint_bad", name=checkpoint.name, why=fault)
                ranks.warn(
                    f"the checkpoint {checkpoint.name}, from which this training resumed, is damaged: {fault}. "
                    "Stop the training: the next start resumes from the one before"
                )
            self._prune(ranks)

        job = {"do": "verify", "store": str(self.path), "name": checkpoint.name, "with_parent": True}

        def fail(error: CheckpointError) -> None:
            self._is_reading = False
            ranks.warn(f"the rest of {checkpoint.name} was not verified: {error}")

        worker = Worker.start(job)
        self._is_reading = True
        self._await(worker, say, fail)

    def _await(
        self, worker: Worker, say: Callable[[dict[str, Any]], None], fail: Callable[[CheckpointError], None]
    ) -> threading.Thread:
        """Wait for a child in a thread, until the guard ends."""

        def wait() -> None:
            try:
                while (answer := worker.poll()) is None:
                    if self._is_over.wait(BACKGROUND_LOOK_S):
                        worker.kill()
                        return
                say(answer)
            except CheckpointError as error:
                fail(error)

        return self._run_in_background(wait)

    def _run_in_background(self, *works: Callable[[], None]) -> threading.Thread:
        thread = threading.Thread(target=lambda: [work() for work in works], name="resil-store", daemon=True)
        thread.start()
        self._background = [one for one in self._background if one.is_alive()] + [thread]
        return thread

    def _sweep(self) -> None:
        """On rank 0: discard the parts of failed saves that no rank writes any more."""
        self._parts = [part for part in self._parts if not part.is_settled()]


def _cannot_be_used(path: Path, error: OSError) -> CheckpointError:
    where = f" ({error.filename})" if error.filename else ""
    return CheckpointError(
        f"the directory of checkpoints {path} cannot be used: {error.strerror or error}{where}",
        hint="check that it is mounted, writable and not full: resil watch fs, resil ckpt prune",
        transient=True,
    )


def _launched_ranks(environ: Mapping[str, str]) -> int:
    """Return how many processes a launcher has started; 1 without one."""
    names = ("WORLD_SIZE", "OMPI_COMM_WORLD_SIZE", "PMI_SIZE", "SLURM_STEP_NUM_TASKS")
    counts = (int(environ[name]) for name in names if environ.get(name, "").isdigit())
    return next(counts, 1)


def _read_record(run_dir: str) -> dict[str, Any]:
    """Return the run's record of its checkpoints; empty without a run. Raise OSError."""
    return read_record(os.path.join(run_dir, RECORD)) if run_dir else {}
