"""A callback for Lightning's Trainer: saves and stops at the same optimizer step on every rank.

callback = ResilCallback(store=Store.from_env())
trainer = Trainer(callbacks=[callback], ...)
trainer.fit(model, ckpt_path=callback.latest_path())
sys.exit(callback.exit_code)
"""

from __future__ import annotations

import multiprocessing
import os
import signal
import threading
from concurrent.futures import Future
from pathlib import Path
from typing import Any

from lightning.pytorch import Callback, LightningModule, Trainer
from lightning.pytorch.plugins import AsyncCheckpointIO
from lightning.pytorch.utilities import rank_zero_info, rank_zero_warn

from resilience.checkpoints import Store
from resilience.errors import GuardError
from resilience.guard import TrainingGuard
from resilience.guard.saves import SaveBlock
from resilience.integrations.checkpoint_files import checkpoint_path, move_into_place, remove_older

FILE = "lightning.ckpt"
"""Lightning's file, or directory of a sharded strategy, in a checkpoint of the store."""


class ResilCallback(Callback):
    """Calls the guard after each optimizer step, so that a checkpoint never splits accumulated gradients.

    With a store, each save is a checkpoint there; with its `pattern`, Lightning's file has that name, and is sealed.
    With a directory, checkpoints are `resil-step=00001200.ckpt`, or `resil-<label>-step=...`, renamed once complete:
    Lightning itself writes through the temporary directory, often on another file system. The newest `keep` and all
    with a label stay.

    Attributes:
        guard: the guard; set at the start of `fit`, or by `latest_path`.
    """

    def __init__(
        self,
        directory: str | os.PathLike[str] = "",
        *,
        store: Store | None = None,
        keep: int = 2,
        cut_validation: bool = True,
        guard: TrainingGuard | None = None,
        **settings: Any,
    ) -> None:
        """Save into `store`, or as files into `directory`. Without `guard`, create one with `settings`.

        With `cut_validation`, a pending stop ends a running validation; its metrics then cover the batches so far.
        Raise GuardError without either, or with both.
        """
        if bool(os.fspath(directory)) == (store is not None):
            raise GuardError("ResilCallback saves into a store or into a directory", hint="ResilCallback(store=store)")
        self.guard, self._own = guard, guard is None
        self._store, self._directory, self._keep, self._cut = store, Path(directory), keep, cut_validation
        self._settings = settings
        self._handlers: dict[str, Any] = {}
        self._done = 0
        self._limit_val: Any = None

    @property
    def exit_code(self) -> int:
        """Return the exit code for the process after `fit`."""
        return self.guard.exit_code if self.guard is not None else 0

    def latest_path(self) -> str | None:
        """Return the `ckpt_path` for `fit`: of the store's newest checkpoint that verifies, or None.

        Call it on every rank. Starts the guard. Raise CheckpointError as `Store.latest` does.
        """
        if self._store is None:
            raise GuardError(
                "this callback has no store", hint="ckpt_path=newest_checkpoint(directory), or ResilCallback(store=...)"
            )
        if self.guard is None:
            self.guard = TrainingGuard.from_env(store=self._store, **self._settings)
        self.guard.start()
        checkpoint = self._store.latest()
        return None if checkpoint is None else str(self._file(checkpoint.path))

    def setup(self, trainer: Trainer, pl_module: LightningModule, stage: str) -> None:
        """Start the guard before Lightning sets its signal handlers."""
        if stage != "fit":
            return
        if self._own and (self._store is None or self.guard is None):
            self.guard = TrainingGuard.from_env(_environment(trainer), store=self._store, **self._settings)
        assert self.guard is not None
        if self._store is not None and self.guard.place.world != trainer.world_size:
            raise GuardError(
                f"Lightning has started {trainer.world_size} processes after one has chosen the checkpoint",
                hint="start them with srun or torchrun, so that they choose together",
            )
        self.guard.start()
        for name in self.guard.settings.signals:
            self._handlers[name] = signal.getsignal(getattr(signal, f"SIG{name}"))
        cluster = getattr(trainer.strategy, "cluster_environment", None)
        if getattr(cluster, "auto_requeue", False):
            rank_zero_warn(
                "resil: Lightning's auto-requeue, which saves in a signal handler, is replaced by the guard. Disable "
                "auto-requeue: Trainer(plugins=[SLURMEnvironment(auto_requeue=False)])"
            )

    def on_fit_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Stop before the first step if the kill switch is already set."""
        if self.guard is not None and self.guard.should_stop_early():
            self._stop(trainer)

    def on_train_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Set the step count from the checkpoint, and reinstall the guard's signal handlers, because Lightning's would
        not save."""
        assert self.guard is not None
        if threading.current_thread() is threading.main_thread():
            for name, handler in self._handlers.items():
                signal.signal(getattr(signal, f"SIG{name}"), handler)
        self._done = trainer.global_step
        self.guard.resumed(trainer.global_step)

    def on_train_batch_end(
        self, trainer: Trainer, pl_module: LightningModule, outputs: Any, batch: Any, batch_idx: int
    ) -> None:
        """Call the guard. Batches that only accumulate gradients count as polls."""
        guard = self.guard
        assert guard is not None
        if trainer.global_step == self._done:
            guard.poll()
            return
        self._done = trainer.global_step
        decision = guard.step()
        if decision.save:
            with guard.saving() as saving:
                saving.until(self._save(trainer, saving, decision.label))
        if decision.stop:
            self._stop(trainer)

    def on_validation_batch_end(self, trainer: Trainer, *arguments: Any, **keywords: Any) -> None:
        """Poll the guard during validation; end the validation if a stop is pending, so that the next step can save."""
        if self.guard is not None and self.guard.poll().stop and self._cut and not trainer.sanity_checking:
            rank_zero_info("resil: ending validation early before a stop; its metrics cover the batches so far")
            raise StopIteration  # ends the evaluation loop like the end of its data

    def on_exception(self, trainer: Trainer, pl_module: LightningModule, exception: BaseException) -> None:
        """Close the guard with the exception: the training failed."""
        if self._own and self.guard is not None:
            self.guard.__exit__(type(exception), exception, exception.__traceback__)

    def teardown(self, trainer: Trainer, pl_module: LightningModule, stage: str) -> None:
        """Close the guard."""
        if stage == "fit" and self.guard is not None:
            if self._limit_val is not None:
                trainer.limit_val_batches, self._limit_val = self._limit_val, None
            if self._own:
                self.guard.close()
            if self.guard.decided is not None and multiprocessing.parent_process() is not None:
                raise SystemExit(self.guard.exit_code)  # ddp_spawn: the parent process cannot read this callback

    def _file(self, path: Path) -> Path:
        """Return what Lightning writes and reads of a checkpoint of the store."""
        assert self._store is not None
        return path if self._store.settings.pattern else path / FILE

    def _save(self, trainer: Trainer, saving: SaveBlock, label: str) -> Future[None] | None:
        path = checkpoint_path(self._directory, trainer.global_step, label)
        part = path.with_suffix(".part") if self._store is None else self._file(saving.path)
        writer = trainer.strategy.checkpoint_io
        trainer.save_checkpoint(part)  # on all ranks; ends with a barrier

        def place() -> None:
            if isinstance(writer, AsyncCheckpointIO) and writer._error is not None:
                raise writer._error
            if self._store is None:
                move_into_place(part, path)
                remove_older(self._directory, self._keep)

        if not trainer.is_global_zero:
            return None
        if isinstance(writer, AsyncCheckpointIO):
            # Its futures and exceptions are private; its executor has one thread, so `place` runs after the save.
            writer._ensure_setup()
            assert writer._executor is not None
            placed: Future[None] = writer._executor.submit(place)
            return placed
        place()
        return None

    def _stop(self, trainer: Trainer) -> None:
        trainer.should_stop = True
        trainer.fit_loop.min_epochs = 0  # these two would make Lightning continue
        trainer.fit_loop.epoch_loop.min_steps = None
        self._limit_val, trainer.limit_val_batches = trainer.limit_val_batches, 0  # no validation before the stop


def _environment(trainer: Trainer) -> dict[str, str]:
    """Return the environment with the variables that Lightning does not set: RANK, WORLD_SIZE, LOCAL_WORLD_SIZE."""
    ranks = {"RANK": trainer.global_rank, "WORLD_SIZE": trainer.world_size, "LOCAL_RANK": trainer.local_rank}
    local = trainer.world_size // max(1, trainer.num_nodes)
    return {**os.environ, **{name: str(value) for name, value in ranks.items()}, "LOCAL_WORLD_SIZE": str(local)}
