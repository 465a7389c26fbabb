"""Tells W&B, MLflow or TensorBoard of restarts, saves and stops: `TrainingGuard.from_env(on_event=to_wandb(run))`.

Each is a metric with the step as its value, `resil/restart`, `resil/save` and `resil/stop`; the reason is a text.
Rank 0 tells them. A thread of its own talks to the tracker, so that a server that hangs never holds up the training; at
the guard's end it has FLUSH_S to finish. An error is logged once, and ends the telling.

None of the libraries is imported here: the object that the training already has is used.
"""

from __future__ import annotations

import logging
import queue
import threading
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

FLUSH_S = 5.0
"""How long the guard's end waits for what was not told yet."""


class Told(NamedTuple):
    """One event.

    Attributes:
        kind: `restart`, `save` or `stop`.
        step: number of completed steps.
        why: of a stop its reasons; of a restart the number of the attempt.
    """

    kind: str
    step: int
    why: str = ""

    @property
    def name(self) -> str:
        """Return the name of its metric."""
        return f"resil/{self.kind}"


def compose(event: Mapping[str, Any]) -> Told | None:
    """Given an event of the guard's journal, return what a tracker is told; None for other events. Pure."""
    name, step = event.get("event"), int(event.get("step") or 0)
    if name == "resume" and step:
        return Told("restart", step, f"attempt {event.get('attempt', 0)} continues at step {step}")
    if name == "save":
        return Told("save", step)
    if name == "decision" and event.get("stop"):
        return Told("stop", step, "; ".join(map(str, event.get("reasons") or ())))
    return None


def to_wandb(run: Any) -> Tell:
    """Tell a run of W&B, as `wandb.init()` returns it. The numbers go with the training's next `log`, so that no step
    is added to its history. The last reasons are in its summary, as `resil/stop_why`."""

    def tell(told: Told) -> None:
        run.log({told.name: told.step}, commit=False)
        if told.why:
            run.summary[f"{told.name}_why"] = told.why

    return Tell(tell)


def to_mlflow(client: Any, run_id: str) -> Tell:
    """Tell a run of MLflow, by `mlflow.MlflowClient()` and `mlflow.active_run().info.run_id`: metrics, and the last
    reasons as tags."""

    def tell(told: Told) -> None:
        client.log_metric(run_id, told.name, told.step, step=told.step)
        if told.why:
            client.set_tag(run_id, f"{told.name}_why", told.why)

    return Tell(tell)


def to_tensorboard(writer: Any) -> Tell:
    """Tell TensorBoard, by a `SummaryWriter`: scalars, and the reasons as texts."""

    def tell(told: Told) -> None:
        writer.add_scalar(told.name, told.step, told.step)
        if told.why:
            writer.add_text(f"{told.name}_why", told.why, told.step)
        writer.flush()

    return Tell(tell)


class Tell:
    """Passes events on in a thread of its own, for the guard's `on_event`. Waits only at the end, for FLUSH_S."""

    def __init__(self, tell: Callable[[Told], None]) -> None:
        """`tell` is called with one event at a time, and may raise or hang."""
        self._tell = tell
        self._queue: queue.SimpleQueue[Told | None] = queue.SimpleQueue()
        self._thread: threading.Thread | None = None

    def __call__(self, event: Mapping[str, Any]) -> None:
        """Take an event of the guard's journal."""
        if event.get("rank"):
            return
        if event.get("event") == "start":  # in the process that trains, after all forks
            self._thread = threading.Thread(target=self._work, name="resil-tracker", daemon=True)
            self._thread.start()
        told = compose(event)
        if told is not None:
            self._queue.put(told)
        if event.get("event") == "end" and self._thread is not None:
            self._queue.put(None)
            self._thread.join(FLUSH_S)

    def _work(self) -> None:
        while (told := self._queue.get()) is not None:
            try:
                self._tell(told)
            except Exception as error:
                text = "resil: the tracker cannot be told of restarts, saves and stops: %r"
                logging.getLogger(__name__).warning(text, error)
                return
