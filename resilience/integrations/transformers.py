"""A callback for the Trainer of Hugging Face transformers: saves and stops at the same step on every rank.

callback = ResilCallback(store=store)  # a Store of the directory output_dir, with pattern = "checkpoint-{step}"
if callback.should_stop_early(): sys.exit(callback.exit_code)
trainer = Trainer(..., callbacks=[callback])
trainer.train(resume_from_checkpoint=store.latest_path())
sys.exit(callback.exit_code)
"""

from __future__ import annotations

import json
import os
import re
import shutil
from pathlib import Path
from typing import Any

from transformers import TrainerCallback, TrainerControl, TrainerState, TrainingArguments
from transformers.utils import logging

from resilience.checkpoints import Store
from resilience.errors import GuardError
from resilience.guard import TrainingGuard
from resilience.guard.saves import SaveBlock

_log = logging.get_logger(__name__)
_NAME = re.compile(r"checkpoint-(\d+)")
_PATTERN = "checkpoint-{step}"


def newest_checkpoint(output_dir: str | os.PathLike[str]) -> str | None:
    """Return the newest complete checkpoint of the Trainer, or None without one.

    The Trainer writes `trainer_state.json` last (`Trainer._save_checkpoint`). transformers' own `get_last_checkpoint`
    also returns incomplete checkpoints, left by a full disk or a killed job. Raise OSError if the directory exists but
    cannot be listed: returning None would restart the training from scratch.
    """
    directory = Path(output_dir)
    paths = list(directory.iterdir()) if os.path.lexists(directory) else []
    steps = sorted((int(match[1]), path) for path in paths if (match := _NAME.fullmatch(path.name)))
    return next((str(path) for _, path in reversed(steps) if _is_whole(path)), None)


def _is_whole(checkpoint: Path) -> bool:
    try:
        json.loads((checkpoint / "trainer_state.json").read_bytes())
    except (OSError, ValueError) as error:
        _log.warning("resil: skipping incomplete checkpoint %s: %s", checkpoint, error)
        return False
    return True


class ResilCallback(TrainerCallback):
    """Calls the guard after each optimizer step. The checkpoints are the Trainer's own, `checkpoint-<step>`.

    With a store each one is sealed. A labelled save is also kept as `<label>-<step>`, by hard links, which
    `save_total_limit` does not remove. The loss is monitored as often as the Trainer logs it, because then it is a
    number.

    Attributes:
        guard: the guard.
    """

    def __init__(self, guard: TrainingGuard | None = None, *, store: Store | None = None, **settings: Any) -> None:
        """Use `guard`, or create one with the store and these settings. Call this where the Trainer is created."""
        self.guard = guard if guard is not None else TrainingGuard.from_env(store=store, **settings)
        self._own, self._store = guard is None, store
        self._saving: SaveBlock | None = None
        self._label = ""
        self._loss: float | None = None
        self._saved = -1

    @property
    def exit_code(self) -> int:
        """Return the exit code for the process after `train`."""
        return self.guard.exit_code

    def should_stop_early(self) -> bool:
        """Return True if the training should not start. Call before `train`, which always does a first step."""
        return self.guard.should_stop_early()

    def until(self, *handles: Any) -> None:
        """Mark the Trainer's save as asynchronous: see `guard.saving().until`.

        Call this in the Trainer's `_save_checkpoint`. Raise GuardError outside of a save.
        """
        if self._saving is None:
            raise GuardError(
                "callback.until() was called while the Trainer is not saving",
                hint="override the Trainer's _save_checkpoint and call until() there",
            )
        self._saving.until(*handles)

    def on_train_begin(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:
        """Start the guard and set its step count from the checkpoint.

        Raise GuardError if the store does not have the Trainer's checkpoints.
        """
        store, output = self._store, str(args.output_dir)
        if store is not None and (store.settings.pattern != _PATTERN or not _is_same(store.path, output)):
            raise GuardError(
                f"the Trainer writes {output}/{_PATTERN}, and the store is {store.path}/{store.settings.pattern}",
                hint=f'[checkpoints] pattern = "{_PATTERN}", and TrainingArguments(output_dir=str(store.path))',
            )
        self.guard.start()
        self.guard.resumed(state.global_step)
        if getattr(args, "enable_jit_checkpoint", False):
            _log.warning(
                "resil: enable_jit_checkpoint handles SIGTERM on each rank separately; the guard replaces that handler"
            )

    def on_substep_end(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:
        """Poll the guard while gradients are being accumulated."""
        self.guard.poll()

    def on_step_end(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any) -> None:
        """Call the guard. The Trainer saves after this hook has returned, and after an evaluation that is also due."""
        loss, self._loss = self._loss, None
        decision = self.guard.step(loss)
        if decision.save:
            control.should_save, self._label = True, decision.label
        if decision.stop or self.guard.decided is not None:
            control.should_training_stop, control.should_evaluate = True, False
        if control.should_save and not control.should_evaluate:
            self._begin_save()

    def on_evaluate(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any) -> None:
        """Begin the save that follows an evaluation."""
        if control.should_save:
            self._begin_save()

    def on_epoch_end(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:
        """Skip the evaluation and a second save at the end of an epoch if the training is about to stop."""
        if self.guard.decided is not None:
            control.should_evaluate = False
            control.should_save = control.should_save and self._saved != state.global_step
        if control.should_save and not control.should_evaluate:
            self._begin_save()

    def on_prediction_step(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:
        """Poll the guard during an evaluation, which the Trainer cannot leave."""
        self.guard.poll()

    def on_log(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, logs: Any = None, **kwargs: Any
    ) -> None:
        """Keep the logged loss for the next step, and check the logged norm of the gradients."""
        loss = (logs or {}).get("loss")
        self._loss = float(loss) if loss is not None else None
        self.guard.observe(grad_norm=(logs or {}).get("grad_norm"))

    def on_save(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any) -> None:
        """End the save: the Trainer calls this hook only after a successful one."""
        self._saved = state.global_step
        label, self._label = self._label, ""
        saving, self._saving = self._saving, None
        if label and args.should_save:
            saved = Path(str(args.output_dir)) / f"checkpoint-{state.global_step}"
            kept = saved.with_name(f"{label.replace('/', '_')}-{state.global_step}")
            if saving is not None and saving.is_in_flight:
                saving.until(lambda: _keep(saved, kept))
            else:
                _keep(saved, kept)
        if saving is not None:
            saving.__exit__(None, None, None)

    def on_train_end(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:
        """Close the guard."""
        if self._own:
            self.guard.close()

    def _begin_save(self) -> None:
        if self._saving is None:
            self._saving = self.guard.saving().__enter__()


def _is_same(path: Path, other: str) -> bool:
    return path.resolve() == Path(other).resolve()


def _keep(saved: Path, kept: Path) -> bool:
    """Copy a checkpoint by hard links, or by copies where the file system has none. Return True, as a handle does."""

    def link(source: str, target: str) -> None:
        try:
            os.link(source, target)
        except OSError:
            shutil.copy2(source, target)

    if saved.is_dir() and not kept.exists():
        shutil.copytree(saved, kept, copy_function=link)
    return True
