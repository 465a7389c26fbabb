"""Measurements kept for the next job: durations of steps and saves, memory growth, recent losses.

`learned/<rank>.json` of the run directory, rewritten about once a minute by rank 0, and after each durable save and at
the end by the first rank of each node and every rank that was given losses. The next job validates version, number of
ranks and, for the loss, the step at which the training resumes. Values that do not fit are dropped; the journal records
the reason.
"""

from __future__ import annotations

import json
import math
import threading
import time

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence
    from typing import Any, Protocol

    from resilience.guard.rank_info import RankInfo
    from resilience.guard.recorder import Recorder
    from resilience.guard.settings import GuardSettings
    from resilience.guard.step_timer import StepTimer
    from resilience.guard.triggers.loss import Loss

    class Learner(Protocol):
        """Measures something that the next job uses."""

        def learned(self, now: float) -> Mapping[str, Any]:
            """Return the measurements at `now` (monotonic seconds), in JSON types."""
            ...

        def restore(self, learned: Mapping[str, Any], now: float) -> None:
            """Use the measurements of another job. Raise ValueError, TypeError or KeyError if they are invalid."""
            ...


VERSION = 1
EVERY_S = 60.0
ARRIVES_S = 2.0
"""How long `resumed` waits for the file; without the file, the loss is judged from scratch."""
RETRY_FOR_S, RETRY_EVERY_S = 60.0, 0.2
"""How long the file is requested from the node's heartbeat process, which may not have started yet."""
SNAPSHOTS = 3
"""Losses are kept for this many of the last saves: the training may resume from an older one."""
MAX_LOSSES, MAX_GRAD_NORMS = 1000, 400
"""The file stays below the 64 KiB that are read of it."""
STEPS_APART = 10
"""Losses older than this many windows before the resumed step are not used."""
KILL_LEAST_S, KILL_TIMES = 60.0, 3.0
"""A training may take three times its slowest step and save, and a minute, to stop."""


def kill_after_s(set_s: float, step_s: float | None, save_s: float | None) -> float | None:
    """Return how many seconds a training may take to stop before it counts as hung. Pure.

    `set_s` is `kill_timeout_s` of the settings, which takes precedence. None if no step was measured yet.
    """
    if set_s:
        return set_s
    return None if step_s is None else KILL_LEAST_S + KILL_TIMES * (step_s + (save_s or 0.0))


class Learned:
    """The measurements of an earlier job, and those of this job."""

    def __init__(
        self,
        place: RankInfo,
        settings: GuardSettings,
        recorder: Recorder,
        timer: StepTimer,
        loss: Loss,
        grad_norm: Loss,
        learners: Mapping[str, Learner],
    ) -> None:
        """`learners`: by their names in the file, in addition to `pace`, `loss` and `grad_norm`."""
        self._place = place
        self._settings = settings
        self._recorder = recorder
        self._timer = timer
        self._loss, self._grad_norm = loss, grad_norm
        self._learners = {"pace": timer, **learners}
        self._arrived = threading.Event()
        self._snapshots: list[dict[str, Any]] = []
        self._begun: dict[str, Any] | None = None
        self._is_fresh = False
        self._due = time.monotonic() + EVERY_S / 6  # the batch shell reads the file early

    def read(self, fetch: Callable[[], str | None]) -> None:
        """Read the file in a thread, because the file system may hang. `fetch` returns the text of the file, None while
        it is not available yet."""
        if not self._place.run_dir:
            self._arrived.set()
            return
        try:
            threading.Thread(target=self._read, args=(fetch,), name="resil-learned", daemon=True).start()
        except RuntimeError:  # no more threads
            self._arrived.set()

    def resumed(self, step: int) -> None:
        """Restore the losses known at `step`, where the training resumes. For the training thread."""
        self._arrived.wait(ARRIVES_S)
        if not self._snapshots:
            return
        fitting = [one for one in self._snapshots if one["step"] <= step]
        reach = STEPS_APART * self._settings.loss_window
        if fitting and step - fitting[-1]["step"] <= reach:
            self._loss.restore(fitting[-1]["losses"], fitting[-1]["best"])
            self._grad_norm.restore(fitting[-1]["grad_norms"])
            self._snapshots = fitting
            self._recorder.event("learned", what="loss", step=fitting[-1]["step"], values=len(fitting[-1]["losses"]))
            return
        known = fitting[-1] if fitting else self._snapshots[0]
        self._drop("loss", f"the losses are of step {known['step']:,}, but the training resumes at step {step:,}")
        self._snapshots = []

    def save_begins(self, step: int) -> None:
        """Take a snapshot of the losses at the start of a save. For the training thread."""
        losses, norms = self._loss.window()[-MAX_LOSSES:], self._grad_norm.window()[-MAX_GRAD_NORMS:]
        self._begun = None
        if losses or norms:
            self._begun = {"step": step, "losses": losses, "grad_norms": norms, "best": self._loss.best}

    def saved(self, step: int) -> None:
        """Keep the snapshot of a durable save: a training may resume there."""
        begun = self._begun
        if begun is not None and begun["step"] == step:
            kept = [one for one in self._snapshots if one["step"] < step]
            self._snapshots = [*kept, begun][-SNAPSHOTS:]
        self._is_fresh = True

    def text(self, *, last: bool = False) -> str:
        """Return the content of the file if due to be written, else an empty text."""
        now = time.monotonic()
        is_due = last or self._is_fresh or (self._place.is_first and now >= self._due)
        if not is_due or not (self._place.is_first_of_node or self._snapshots):
            return ""
        if not self._arrived.is_set():
            return ""  # the file may know more; do not overwrite it yet
        self._due, self._is_fresh = now + EVERY_S, False
        step_s, save_s = self._timer.slowest_step_s, self._timer.slowest_save_s
        bound_s = kill_after_s(self._settings.kill_timeout_s, step_s, save_s)
        fields: dict[str, Any] = {"version": VERSION, "world": self._place.world, "attempt": self._place.attempt}
        if bound_s is not None:
            fields["kill_after_s"] = math.ceil(bound_s)
        fields["slowest_step_s"] = None if step_s is None else round(step_s, 3)
        fields["slowest_save_s"] = None if save_s is None else round(save_s, 3)
        fields |= {name: learner.learned(now) for name, learner in self._learners.items()}
        fields["losses"] = self._snapshots
        return json.dumps(fields, separators=(",", ":")) + "\n"

    # ---- the file ---------------------------------------------------------------------------------------------------

    def _read(self, fetch: Callable[[], str | None]) -> None:
        try:
            until = time.monotonic() + RETRY_FOR_S
            while (text := fetch()) is None and time.monotonic() < until:
                time.sleep(RETRY_EVERY_S)
            if text:
                self._restore(text)
        except Exception as error:  # no content of the file may end the training
            self._drop("all", f"cannot read the file: {error!r}"[:300])
        finally:
            self._arrived.set()

    def _restore(self, text: str) -> None:
        fields = json.loads(text)
        if fields["version"] != VERSION:
            self._drop("all", f"written by another version of resil: {fields['version']!r}"[:100])
            return
        self._snapshots = [
            {
                "step": int(one["step"]),
                "losses": finite(one["losses"])[-MAX_LOSSES:],
                "grad_norms": finite(one.get("grad_norms", ()))[-MAX_GRAD_NORMS:],
                "best": _best(one.get("best")),
            }
            for one in sorted(fields["losses"], key=lambda one: int(one["step"]))[-SNAPSHOTS:]
        ]
        for name, learner in self._learners.items():
            if name not in fields:
                continue  # disabled in that job
            try:
                if fields["world"] != self._place.world:
                    raise ValueError(f"written by {int(fields['world'])} ranks; this job has {self._place.world}")
                learner.restore(fields[name], time.monotonic())
            except Exception as error:  # no content of the file may end the training
                self._drop(name, str(error) if type(error) is ValueError else f"cannot read: {error!r}"[:300])

    def _drop(self, what: str, why: str) -> None:
        self._recorder.event("learned_dropped", what=what, why=why)


def _best(value: Any) -> tuple[float, int] | None:
    """Return a median and its step. Raise ValueError or TypeError if it is neither that nor None."""
    if value is None:
        return None
    median, step = value
    return finite([median])[0], int(step)


def finite(values: Sequence[Any]) -> list[float]:
    """Return the values as floats. Raise ValueError or TypeError if one is not a finite number."""
    found = [float(value) for value in values]
    if not all(math.isfinite(value) for value in found):
        raise ValueError("not a finite number")
    return found
