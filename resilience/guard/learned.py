"""What a job has learned, for the next one: how long steps and saves take, how the memory grows, what the loss was.

`learned/<rank>.json` of the run directory, rewritten about once a minute by rank 0, and after each durable save and at
the end by the first rank of each node and every rank that was given losses. It is checked before it is believed:
version, number of ranks, and, for the loss, the step that the training resumes at. What does not fit is dropped, and
the journal says why.
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
        """Knows something that serves the next job."""

        def learned(self, now: float) -> Mapping[str, Any]:
            """What that is at `now` (monotonic seconds), in JSON types."""
            ...

        def restore(self, learned: Mapping[str, Any], now: float) -> None:
            """Go by what another job has learned. Raise ValueError, TypeError or KeyError if it is none of ours."""
            ...


VERSION = 1
EVERY_S = 60.0
ARRIVES_S = 2.0
"""How long `resumed` waits for the file: a step that is judged without it is judged as today."""
ASKED_S, ASK_AGAIN_S = 60.0, 0.2
"""How long the node's mirror process is asked: it may not have begun yet."""
SNAPSHOTS = 3
"""The loss at so many of the last saves is kept: the training may resume from an older one."""
MOST_LOSSES = 1000
STEPS_APART = 10
"""A loss that was seen more than so many windows before the step that is resumed tells nothing about it."""
KILL_LEAST_S, KILL_TIMES = 60.0, 3.0
"""A training that is to be stopped is given three times its slowest step and save, and a minute."""


def kill_after_s(set_s: float, step_s: float | None, save_s: float | None) -> float | None:
    """How many seconds a training may take to come to a stop before it counts as hung. Pure.

    `set_s` is `kill_timeout_s` of the settings, which wins. None while no step was measured: nothing tells.
    """
    if set_s:
        return set_s
    return None if step_s is None else KILL_LEAST_S + KILL_TIMES * (step_s + (save_s or 0.0))


class Learned:
    """What was learned before, and what this job has learned so far."""

    def __init__(
        self,
        place: RankInfo,
        settings: GuardSettings,
        recorder: Recorder,
        timer: StepTimer,
        loss: Loss,
        learners: Mapping[str, Learner],
    ) -> None:
        """`learners` by their names in the file, besides `pace` and `loss`."""
        self._place = place
        self._settings = settings
        self._recorder = recorder
        self._timer = timer
        self._loss = loss
        self._learners = {"pace": timer, **learners}
        self._arrived = threading.Event()
        self._snapshots: list[dict[str, Any]] = []
        self._begun: dict[str, Any] | None = None
        self._is_fresh = False
        self._due = time.monotonic() + EVERY_S / 6  # the batch shell wants to know soon

    def read(self, ask: Callable[[], str | None]) -> None:
        """Find out what was learned before, in a thread: the file system may hang. `ask` returns the text of the file,
        None while that is not known."""
        if not self._place.run_dir:
            self._arrived.set()
            return
        try:
            threading.Thread(target=self._read, args=(ask,), name="resil-learned", daemon=True).start()
        except RuntimeError:  # no thread can be had: nothing was learned
            self._arrived.set()

    def resumed(self, step: int) -> None:
        """The training goes on after `step` steps: judge its loss by what it was there. For the training thread."""
        self._arrived.wait(ARRIVES_S)
        if not self._snapshots:
            return
        fitting = [one for one in self._snapshots if one["step"] <= step]
        reach = STEPS_APART * self._settings.loss_window
        if fitting and step - fitting[-1]["step"] <= reach:
            self._loss.restore(fitting[-1]["losses"])
            self._snapshots = fitting
            self._recorder.event("learned", what="loss", step=fitting[-1]["step"], values=len(fitting[-1]["losses"]))
            return
        known = fitting[-1] if fitting else self._snapshots[0]
        self._drop("loss", f"it is of step {known['step']:,}, and the training goes on at step {step:,}")
        self._snapshots = []

    def save_begins(self, step: int) -> None:
        """A save begins: what is known now belongs to it. For the training thread."""
        losses = self._loss.window()[-MOST_LOSSES:]
        self._begun = {"step": step, "losses": losses} if losses else None

    def saved(self, step: int) -> None:
        """The save of that step is durable: a training may resume there."""
        begun = self._begun
        if begun is not None and begun["step"] == step:
            kept = [one for one in self._snapshots if one["step"] < step]
            self._snapshots = [*kept, begun][-SNAPSHOTS:]
        self._is_fresh = True

    def text(self, *, last: bool = False) -> str:
        """The file, if it is to be written now; else an empty text."""
        now = time.monotonic()
        is_due = last or self._is_fresh or (self._place.is_first and now >= self._due)
        if not is_due or not (self._place.is_first_of_node or self._snapshots):
            return ""
        if not self._arrived.is_set():
            return ""  # it would take the place of more than is known here
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

    def _read(self, ask: Callable[[], str | None]) -> None:
        try:
            until = time.monotonic() + ASKED_S
            while (text := ask()) is None and time.monotonic() < until:
                time.sleep(ASK_AGAIN_S)
            if text:
                self._take(text)
        except Exception as error:  # whatever stands there must not cost the training
            self._drop("all", f"it cannot be understood: {error!r}"[:300])
        finally:
            self._arrived.set()

    def _take(self, text: str) -> None:
        fields = json.loads(text)
        if fields["version"] != VERSION:
            self._drop("all", f"it was written by another version of resil: {fields['version']!r}"[:100])
            return
        self._snapshots = [
            {"step": int(one["step"]), "losses": finite(one["losses"])[-MOST_LOSSES:]}
            for one in sorted(fields["losses"], key=lambda one: int(one["step"]))[-SNAPSHOTS:]
        ]
        for name, learner in self._learners.items():
            if name not in fields:
                continue  # it was switched off
            try:
                if fields["world"] != self._place.world:
                    raise ValueError(f"it is of {int(fields['world'])} ranks, and these are {self._place.world}")
                learner.restore(fields[name], time.monotonic())
            except Exception as error:  # whatever stands there
                self._drop(
                    name, str(error) if type(error) is ValueError else f"it cannot be understood: {error!r}"[:300]
                )

    def _drop(self, what: str, why: str) -> None:
        self._recorder.event("learned_dropped", what=what, why=why)


def finite(values: Sequence[Any]) -> list[float]:
    """These numbers. Raise ValueError or TypeError if they are anything else."""
    found = [float(value) for value in values]
    if not all(math.isfinite(value) for value in found):
        raise ValueError("not a finite number")
    return found
